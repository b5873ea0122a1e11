// SPDX-License-Identifier: Apache-2.0
//
// Ring attention on the host, fp32, causal, forward and backward: one rank against the same matrix products
// replayed alone, seven for each tile of scores that it computes. Then what is arithmetic: how even the work
// of ranks is, and how the bytes grow with a rank's part of the sequence.
//
//   attention_bench [pairs [tokens]]
#include "table.hpp"

#include <plateau/host/backend.hpp>
#include <plateau/ring/attention.hpp>
#include <plateau/run_ranks.hpp>
#include <plateau/workspace.hpp>

#if PLATEAU_BENCH_HAS_BLAS
#include <plateau/blas/blas_gemm.hpp>
#endif

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

namespace {

namespace pl = plateau;
using pl::index_t, pl::transpose;
using communicator_type = pl::thread_communicator;

constexpr index_t heads = 8, head_size = 64, columns = heads * head_size;

bench::spread one(double x) { return {x, x, x, x, 0}; }

pl::attention_shape shape_of(index_t tokens) {
  pl::attention_shape s;
  s.tokens = tokens;
  s.heads = s.kv_heads = heads;
  s.head_size = head_size;
  return s;
}

template <class Gemm> class problem {
 public:
  using backend_type = pl::basic_host_backend<Gemm>;
  using attention_type = pl::ring_attention<backend_type, communicator_type, float>;

  problem(communicator_type& comm, index_t tokens)
      : n_(tokens), shape_(shape_of(tokens)), split_(pl::sequence_split::balanced(tokens, 1)),
        states_(at(n_ * heads)), stream_(backend_.make_stream("main")) {
    std::uint64_t draw = 88172645463325252u;
    for (auto& matrix : matrices_) {
      matrix.emplace(at(n_ * columns));
      for (index_t i = 0; i < n_ * columns; ++i) {
        draw ^= draw << 13, draw ^= draw >> 7, draw ^= draw << 17;
        matrix->data()[i] = static_cast<float>(draw % 2001) / 1000.0F - 1.0F;
      }
    }
    space_.emplace(backend_, attention_type::working_set(shape_, 1));
    op_.emplace(backend_, comm, shape_, *space_);
    const auto scores = at(shape_.tile.queries * shape_.tile.keys);
    scores_.emplace(scores);
    gradients_.emplace(scores);
    sums_.emplace(at(shape_.tile.queries * head_size), 0.0F);
    std::size_t most = 1;
    for (const transpose a : {transpose::no, transpose::yes})
      for (const transpose b : {transpose::no, transpose::yes})
        most = std::max(most, backend_type::template gemm_scratch_bytes<float, float, float>(
                                  a, b, shape_.tile.keys, shape_.tile.keys, shape_.tile.keys));
    scratch_.emplace(most);
  }

  void step() {
    typename attention_type::inputs in;
    in.q = rows(0), in.k = rows(1), in.v = rows(2);
    in.split = &split_;
    typename attention_type::saved keep;
    keep.rows = {states_.data(), n_ * heads};
    op_->forward(stream_, in, keep, rows(4));
    op_->backward(stream_, in, keep, rows(4), rows(3), {rows(5), rows(6), rows(7)});
    wait();
  }
  // The products of a step, and nothing between them.
  void products() {
    const pl::packed_documents one_document(n_);
    pl::attention_rounds rounds;
    rounds.assign(split_, shape_.hop_rows);
    const index_t blocks = (n_ + shape_.hop_rows - 1) / shape_.hop_rows;
    for (const bool backward : {false, true})
      for (index_t block = 0; block < blocks; ++block)
        pl::each_queries(shape_, split_, one_document, 0, [&](const pl::attention_queries& q) {
          for (index_t h = 0; h < heads; ++h)
            for (const pl::attention_piece& piece : rounds.pieces(0, block))
              pl::meet(q, piece, shape_.tile.keys, [&](index_t first, const pl::attention_tile_mask& mask) {
                tile(backward, h, q.local_row, mask.queries.rows, piece.local_row + first, mask.keys.rows);
              });
        });
    wait();
  }
  double flops() const {
    const auto w = pl::attention_work::of(shape_, split_, pl::packed_documents(n_), 0, sizeof(float));
    return w.forward_flops + w.backward_flops;
  }

 private:
  static std::size_t at(index_t n) { return static_cast<std::size_t>(n); }
  pl::tile<float> rows(std::size_t i) { return {matrices_[i]->data(), n_, columns, columns}; }
  pl::tile<float> head(std::size_t i, index_t h, index_t first, index_t n) {
    return {rows(i).row(first) + h * head_size, n, head_size, columns};
  }
  void tile(bool backward, index_t h, index_t q0, index_t queries, index_t k0, index_t keys) {
    const pl::scratch_view space{scratch_->data(), static_cast<index_t>(scratch_->size())};
    const pl::tile<float> z{scores_->data(), queries, keys, keys},
        dz{gradients_->data(), queries, keys, keys}, sums{sums_->data(), queries, head_size, head_size};
    const auto q = head(0, h, q0, queries), k = head(1, h, k0, keys), v = head(2, h, k0, keys),
               d = head(3, h, q0, queries);
    const auto product = [&](transpose a, transpose b, auto x, auto y, float beta, auto to) {
      backend_.gemm(stream_, a, b, 1.0F, pl::in(x), pl::in(y), beta, pl::inout(to), space);
    };
    product(transpose::no, transpose::yes, q, k, 0, z);
    if (!backward) return product(transpose::no, transpose::no, z, v, 0, sums);
    product(transpose::no, transpose::yes, d, v, 0, dz);
    product(transpose::yes, transpose::no, z, d, 0, head(7, h, k0, keys));
    product(transpose::no, transpose::no, dz, k, 0, sums);
    product(transpose::yes, transpose::no, dz, q, 0, head(6, h, k0, keys));
  }
  void wait() { backend_.wait(backend_.record(stream_)); }

  index_t n_;
  pl::attention_shape shape_;
  pl::sequence_split split_;
  backend_type backend_;
  std::optional<bench::touched_buffer<float>> matrices_[8]; // q, k, v, dout, out, dq, dk, dv
  bench::touched_buffer<pl::online_lse> states_;
  std::optional<bench::touched_buffer<float>> scores_, gradients_, sums_;
  std::optional<bench::touched_buffer<unsigned char>> scratch_;
  std::optional<pl::workspace<backend_type>> space_;
  typename backend_type::stream stream_;
  std::optional<attention_type> op_;
};

template <class Gemm> void alone(bench::table& table, index_t tokens, int pairs) {
  pl::run_ranks(1, [&](communicator_type& comm) {
    problem<Gemm> p(comm, tokens);
    const bench::pairs t = bench::in_turns(
        pairs, [&] { p.step(); }, [&] { p.products(); });
    table.row(fmt::format("forward and backward / its products, {}, {} tokens", Gemm::name, tokens), t.time(),
              bench::goal::at_most(1.30));
    table.row("  seconds", t.ours.in(1));
    table.row("  GFLOP of its products", one(p.flops() / 1e9));
  });
}

// The most of a rank over the mean, less 1, in percent, at the worst of these lengths: of pairs that are
// seen, and of those that are computed, which are whole tiles.
void evenness(bench::table& table, int ranks) {
  double seen = 0, computed = 0;
  for (const index_t tokens : {index_t{8192}, index_t{10'007}, index_t{131'072}}) {
    const pl::packed_documents all(tokens);
    const auto split = pl::sequence_split::balanced(tokens, ranks);
    const auto over_mean = [&](auto of_rank) {
      double most = 0, sum = 0;
      for (int r = 0; r < ranks; ++r) {
        const auto pairs = static_cast<double>(of_rank(r));
        most = std::max(most, pairs), sum += pairs;
      }
      return 100 * (most * ranks / sum - 1);
    };
    seen = std::max(
        seen, over_mean([&](int r) { return split.visible_pairs(r, all, pl::attention_mask::causal); }));
    computed = std::max(computed, over_mean([&](int r) {
                          return pl::attention_work::of(shape_of(split.most_rows()), split, all, r, 4).pairs;
                        }));
  }
  table.row(fmt::format("most work of {} ranks over the mean, %, pairs seen", ranks), one(seen),
            bench::goal::at_most(2));
  table.row("  pairs computed", one(computed), bench::goal::at_most(2));
}

// What is taken from a workspace, by tokens of a rank: a constant, and so many bytes of each token.
template <class T> void bytes(bench::table& table, const char* type) {
  using backend_type = pl::host_backend;
  using attention_type = pl::ring_attention<backend_type, communicator_type, T>;
  const auto of = [](index_t tokens) {
    return static_cast<double>(attention_type::working_set(shape_of(tokens), 8).device_bytes());
  };
  const double token = (of(1 << 17) - of(1 << 16)) / (1 << 16);
  table.row(fmt::format("bytes of a token of a rank, {}, 8 ranks", type), one(token));
  table.row("  MiB whatever the tokens", one((of(1 << 16) - token * (1 << 16)) / (1 << 20)));
  table.row("  bytes at 1,048,576 tokens that a line does not say",
            one(of(1 << 20) - of(1 << 16) - token * ((1 << 20) - (1 << 16))), bench::goal::at_most(0));
}

} // namespace

int main(int argc, char** argv) {
  bench::table table(argv);
  const int pairs = argc > 1 ? std::atoi(argv[1]) : 5;
  const index_t tokens = argc > 2 ? std::atoi(argv[2]) : 8192;
#if PLATEAU_BENCH_HAS_BLAS
  alone<pl::blas_gemm>(table, tokens, pairs);
#endif
  alone<pl::block_gemm>(table, tokens, pairs);
  for (int ranks = 2; ranks <= 8; ++ranks) evenness(table, ranks);
  bytes<float>(table, "fp32");
  bytes<pl::bfloat16>(table, "bf16");
}
