// SPDX-License-Identifier: Apache-2.0
//
// Causal attention over one sequence of three packed documents, and its gradients: by four ranks that share
// the sequence, by one rank, and, score by score, in float64. Prints how far they are apart, and the most
// bytes that a rank held beside its part of the sequence and its gradients.
#include <plateau/plateau.hpp>
#include <plateau/ring.hpp>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <vector>

namespace pl = plateau;
using pl::index_t, pl::tag;
using backend_type = pl::host_backend;
using communicator_type = pl::thread_communicator;
using attention_type = pl::ring_attention<backend_type, communicator_type, float>;
template <class T> using device = pl::device_buffer<T, backend_type>;

constexpr index_t tokens = 1024, query_heads = 8, kv_heads = 2, head_size = 32;
constexpr index_t query_columns = query_heads * head_size, key_columns = kv_heads * head_size;
const std::vector<index_t> documents{0, 300, 301, tokens}; // where they begin, as cu_seqlens

// What q, k, v and the gradient of the result (`of` 0 to 3) are at a position.
float value(index_t of, index_t position, index_t column) {
  return static_cast<float>((position * 89 + column * 31 + of * 17) % 997) / 499 - 1;
}

struct results { // of the whole sequence
  std::vector<float> out{std::vector<float>(tokens * query_columns)};
  std::vector<float> dq{out}, dk{std::vector<float>(tokens * key_columns)}, dv{dk};
  std::vector<std::size_t> bytes{std::vector<std::size_t>(8)}; // of each rank
};

// A rank with the rows at its positions; its part of the results goes into `to`.
void run_rank(communicator_type& comm, results& to) {
  backend_type backend;
  auto& memory = backend.device();
  auto stream = backend.make_stream("main");
  // A part of the front and one of the back of each document: causal work is even.
  const auto split = pl::sequence_split::balanced(pl::packed_documents(tokens, documents), comm.size());
  const index_t n = split.rows(comm.rank());
  const std::vector<index_t> positions = split.positions(comm.rank());
  std::vector<device<float>> mine; // q, k, v, gradient of out, out, dq, dk, dv
  for (const index_t columns : {query_columns, key_columns, key_columns, query_columns, query_columns,
                                query_columns, key_columns, key_columns})
    mine.emplace_back(memory, n * columns, tag::activations);
  const auto rows = [&](std::size_t i) {
    return mine[i].matrix(n, mine[i].size() / std::max<index_t>(1, n));
  };
  for (std::size_t i = 0; i < 4; ++i) // memory of the host, which nobody else uses yet
    for (index_t r = 0; r < n; ++r)
      for (index_t c = 0; c < rows(i).cols; ++c)
        rows(i)(r, c) = value(static_cast<index_t>(i), positions[static_cast<std::size_t>(r)], c);
  const std::size_t before = memory.meter().current();

  // Its rows, heads, size of a head; 16 keys go around at a time; 32 x 32 scores exist at a time.
  const attention_type::shape limits{split.most_rows(),          query_heads, kv_heads,   head_size,
                                     pl::attention_mask::causal, 16,          {32, 32, 1}};
  pl::workspace<backend_type> space(backend, attention_type::working_set(limits, comm.size()));
  attention_type attention(backend, comm, limits, space);
  device<pl::online_lse> states(memory, n * query_heads, tag::activations); // 8 bytes a row and head
  const pl::drain<backend_type> before_they_go(backend, stream);
  attention_type::saved saved{states.all()};
  const attention_type::inputs in{rows(0), rows(1), rows(2), &split, documents};
  attention.forward(stream, in, saved, rows(4));
  attention.backward(stream, in, saved, rows(4), rows(3), {rows(5), rows(6), rows(7)});
  pl::close_step(backend, comm, stream);
  to.bytes[static_cast<std::size_t>(comm.rank())] = memory.meter().peak().bytes - before;
  for (index_t r = 0; r < n; ++r)
    for (std::size_t i = 4; i < 8; ++i) {
      auto& whole = i == 4 ? to.out : i == 5 ? to.dq : i == 6 ? to.dk : to.dv;
      std::copy_n(rows(i).row(r), rows(i).cols,
                  whole.data() + positions[static_cast<std::size_t>(r)] * rows(i).cols);
    }
}

// How far `out` is from attention as its formula says it, at one row in 37.
double from_formula(const std::vector<float>& out) {
  double most = 0;
  const pl::packed_documents packed(tokens, documents);
  for (index_t t = 0; t < tokens; t += 37)
    for (index_t h = 0; h < query_heads; ++h) {
      const index_t key = h / (query_heads / kv_heads) * head_size;
      std::vector<double> sums(head_size);
      double weight = 0;
      for (index_t u = packed[packed.at(t)].first; u <= t; ++u) {
        double score = 0;
        for (index_t e = 0; e < head_size; ++e)
          score += double(value(0, t, h * head_size + e)) * double(value(1, u, key + e));
        const double share = std::exp(score / std::sqrt(double(head_size)));
        weight += share;
        for (std::size_t e = 0; e < head_size; ++e) sums[e] += share * double(value(2, u, key + index_t(e)));
      }
      for (std::size_t e = 0; e < head_size; ++e)
        most = std::max(most, std::abs(sums[e] / weight -
                                       double(out[std::size_t(t * query_columns + h * head_size) + e])));
    }
  return most;
}
double apart(const std::vector<float>& a, const std::vector<float>& b) {
  float most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return double(most);
}

int main() {
  results alone, shared;
  pl::run_ranks(1, [&](communicator_type& comm) { run_rank(comm, alone); });
  pl::run_ranks(4, [&](communicator_type& comm) { run_rank(comm, shared); });
  const double formula = from_formula(shared.out), out = apart(shared.out, alone.out);
  const double gradients =
      std::max({apart(shared.dq, alone.dq), apart(shared.dk, alone.dk), apart(shared.dv, alone.dv)});
  std::cout << "four ranks: " << formula << " from the formula, " << out << " from one rank, gradients "
            << gradients << "\nbytes beside the sequence: " << alone.bytes[0] << " on one rank, "
            << *std::max_element(shared.bytes.begin(), shared.bytes.end()) << " on each of four\n";
  return formula + out + gradients < 1e-4 ? 0 : 1;
}
