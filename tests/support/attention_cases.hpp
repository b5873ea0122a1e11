// SPDX-License-Identifier: Apache-2.0
//
// A ring attention on ranks of any kind, with every option, beside the same on one rank in float64. Values
// are drawn for the whole sequence, and dealt to the ranks as a case says.
#pragma once

#include "reference/attention.hpp"
#include "support/accuracy.hpp"
#include "support/ring_cases.hpp"

#include <plateau/ring/attention.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace support {

struct attention_case {
  pl::attention_shape shape{}; // tokens are taken from the split
  pl::sequence_split split = pl::sequence_split::contiguous(0, 1);
  std::vector<index_t> cu_seqlens; // or none
  int hide_every = 0;              // every so many keys are hidden; 0: none
  index_t spare = 0;               // elements between rows
  index_t skew = 0;                // elements in front of every array
  bool agreed = false;
  double size = 1; // of queries, which makes scores larger
  std::uint64_t seed = 1;
  int forwards = 1; // with storage of their own; backwards follow, last in first out
  int backwards = 1;
  int steps = 1;
  bool shorter_first = false; // steps before the last are of a shorter sequence

  int ranks() const { return split.ranks(); }
  index_t tokens() const { return split.tokens(); }
};

// The whole sequence, in order of position.
template <class T> struct attention_values {
  std::vector<T> q, k, v, dout;
  std::vector<unsigned char> hidden;
};
template <class T> attention_values<T> values_of(const attention_case& c) {
  const index_t n = c.tokens(), queries = n * c.shape.query_columns(), keys = n * c.shape.key_columns();
  attention_values<T> v{random_values<T>(queries, c.seed, c.size),
                        random_values<T>(keys, c.seed + 1),
                        random_values<T>(keys, c.seed + 2),
                        random_values<T>(queries, c.seed + 3),
                        {}};
  if (c.shape.hidden_keys)
    for (index_t i = 0; i < n; ++i) v.hidden.push_back(c.hide_every != 0 && i % c.hide_every == 0 ? 1 : 0);
  return v;
}
template <class T>
reference::packed_attention oracle_of(const attention_case& c, const attention_values<T>& v) {
  reference::packed_attention o;
  o.tokens = c.tokens();
  o.heads = c.shape.heads;
  o.kv_heads = c.shape.kv_heads;
  o.head_dim = c.shape.head_size;
  o.causal = c.shape.mask == pl::attention_mask::causal;
  o.q = widened(v.q);
  o.k = widened(v.k);
  o.v = widened(v.v);
  o.cu_seqlens.assign(c.cu_seqlens.begin(), c.cu_seqlens.end());
  o.hidden_keys.assign(v.hidden.begin(), v.hidden.end());
  o.scale = static_cast<double>(c.shape.scale());
  return o;
}

// What the ranks give; of a whole sequence in order of position.
template <class T> struct attention_result {
  std::vector<T> out, dq, dk, dv;
  std::vector<pl::online_lse> states;
  std::vector<pl::counters> work, world; // of each rank, of the last step
  std::vector<std::size_t> left;         // bytes held at the end
};

template <class T> bool same_bits(const attention_result<T>& a, const attention_result<T>& b) {
  const auto bits = [](const std::vector<pl::online_lse>& s) {
    std::vector<float> out;
    for (const pl::online_lse& state : s) out.push_back(state.m), out.push_back(state.s);
    return out;
  };
  return same_bits(a.out, b.out) && same_bits(a.dq, b.dq) && same_bits(a.dk, b.dk) && same_bits(a.dv, b.dv) &&
         same_bits(bits(a.states), bits(b.states));
}

// Runs the case and gives what each rank has; of ranks that are other processes nothing. before_last(stage)
// is called before the last step, after(stage) when that is issued.
template <class T, class Kernel = pl::attention_by_gemm, class Ranks, class Before = detail::nothing,
          class After = detail::nothing>
std::vector<attention_result<T>> run_attention_ranks(attention_case c, const attention_values<T>& values,
                                                     const Ranks& on, Before before_last = {},
                                                     After after = {}) {
  using backend_type = typename Ranks::backend;
  using attention = pl::ring_attention<backend_type, typename Ranks::communicator, T, Kernel>;
  c.shape.tokens = std::max(c.shape.tokens, c.split.most_rows());
  std::vector<attention_result<T>> of_rank(static_cast<std::size_t>(c.ranks()));
  on.run(c.ranks(), [&](typename Ranks::communicator& world, backend_type& backend) {
    const int me = world.rank();
    attention_result<T>& result = of_rank[static_cast<std::size_t>(me)];
    result.work.resize(1);
    result.world.resize(1);
    const auto note = [&] {
      result.left = {backend.device().meter().current() + backend.pinned().meter().current()};
    };
    try {
      const index_t n = c.split.rows(me), heads = c.shape.query_columns(), keys = c.shape.key_columns();
      const std::vector<index_t> positions = c.split.positions(me);
      auto stream = backend.make_stream("main");
      detail::ring_arrays<backend_type, Ranks::has_data> make{backend, stream, c.skew};
      const auto dealt = [&](const auto& all, index_t cols) {
        std::decay_t<decltype(all)> mine;
        if (Ranks::has_data)
          for (const index_t p : positions)
            mine.insert(mine.end(), all.begin() + p * cols, all.begin() + (p + 1) * cols);
        return mine;
      };
      const bool back = !c.shape.forward_only;
      const auto q = make.template filled<T>(n, heads, c.spare, dealt(values.q, heads), 0);
      const auto k = make.template filled<T>(n, keys, c.spare, dealt(values.k, keys), 0);
      const auto v = make.template filled<T>(n, keys, c.spare, dealt(values.v, keys), 0);
      const auto dout = make.template filled<T>(n, heads, c.spare, dealt(values.dout, heads), 0);
      const auto hidden = make.template filled<unsigned char>(
          c.shape.hidden_keys ? n : 0, 1, 0,
          c.shape.hidden_keys ? dealt(values.hidden, 1) : std::vector<unsigned char>{}, 0);
      const auto out = make.template zero<T>(n, heads, c.spare);
      const auto dq = make.template zero<T>(back ? n : 0, heads, c.spare);
      const auto dk = make.template zero<T>(back ? n : 0, keys, c.spare);
      const auto dv = make.template zero<T>(back ? n : 0, keys, c.spare);
      std::vector<decltype(make.template make<pl::online_lse>(0, 1, 0))> states;
      std::vector<pl::attention_saved> saved(static_cast<std::size_t>(c.forwards));
      for (auto& keep : saved) {
        states.push_back(make.template make<pl::online_lse>(n * c.shape.heads, 1, 0));
        keep.rows = states.back().list();
      }
      pl::workspace<backend_type> space(backend, attention::working_set(c.shape, world.size()));
      attention op(backend, world, c.shape, space);
      const pl::drain<backend_type> before_they_go(backend, stream);
      const pl::attention_inputs<T> in{q.all(),      k.all(),       v.all(), &c.split,
                                       c.cu_seqlens, hidden.list(), c.agreed};
      pl::counters work, sent;
      for (int step = 0; step < c.steps; ++step) {
        // Inputs come from what the stream has just done.
        for (const auto* each : {&q, &k, &v, &dout})
          backend.launch(stream, pl::elements{each->memory.size()}, pl::scale{1},
                         pl::inout(each->memory.all()));
        if (step + 1 == c.steps) {
          before_last(ring_stage<backend_type>{me, backend, space, stream});
          work = backend.counters();
          sent = world.counters();
        } else if (c.shorter_first) {
          const pl::sequence_split less = pl::sequence_split::balanced(c.tokens() / 2, c.ranks());
          const index_t few = less.rows(me);
          const auto cut = [&](const auto& a) { return a.all().row_block(0, std::min(n, few)); };
          if (n < few) continue; // on every rank: such cases have ranks of equal size
          const pl::attention_inputs<T> fewer{
              cut(q), cut(k), cut(v), &less, {}, hidden.list().sub(0, c.shape.hidden_keys ? few : 0)};
          op.forward(stream, fewer, saved.front(), cut(out));
          if (back)
            op.backward(stream, fewer, saved.front(), cut(out), cut(dout), {cut(dq), cut(dk), cut(dv)});
          continue;
        }
        for (auto& keep : saved) op.forward(stream, in, keep, out.all());
        std::reverse(saved.begin(), saved.end());
        for (const auto& keep : saved)
          for (int again = 0; back && again < c.backwards; ++again)
            op.backward(stream, in, keep, out.all(), dout.all(), {dq.all(), dk.all(), dv.all()});
        if (step + 1 == c.steps) {
          after(ring_stage<backend_type>{me, backend, space, stream});
          result.work[0] = backend.counters() - work;
          result.world[0] = world.counters() - sent;
        }
        pl::close_step(backend, world, stream);
      }
      result.out = make.values(out);
      result.dq = make.values(dq);
      result.dk = make.values(dk);
      result.dv = make.values(dv);
      result.states = make.values(states.front());
    } catch (...) {
      note(); // what the rank had made is gone by now
      throw;
    }
    note();
  });
  return of_rank;
}
// The same as one sequence.
template <class T, class Kernel = pl::attention_by_gemm, class Ranks, class Before = detail::nothing,
          class After = detail::nothing>
attention_result<T> run_attention(const attention_case& c, const attention_values<T>& values, const Ranks& on,
                                  Before before_last = {}, After after = {}) {
  const auto of_rank = run_attention_ranks<T, Kernel>(c, values, on, before_last, after);
  attention_result<T> all;
  const auto place = [&](auto& to, const auto& from, int rank, index_t cols) {
    if (from.empty()) return;
    to.resize(static_cast<std::size_t>(c.tokens() * cols));
    index_t i = 0;
    for (const index_t p : c.split.positions(rank))
      for (index_t e = 0; e < cols; ++e)
        to[static_cast<std::size_t>(p * cols + e)] = from[static_cast<std::size_t>(i++)];
  };
  for (int r = 0; r < c.ranks(); ++r) {
    const attention_result<T>& its = of_rank[static_cast<std::size_t>(r)];
    place(all.out, its.out, r, c.shape.query_columns());
    place(all.dq, its.dq, r, c.shape.query_columns());
    place(all.dk, its.dk, r, c.shape.key_columns());
    place(all.dv, its.dv, r, c.shape.key_columns());
    place(all.states, its.states, r, c.shape.heads);
    all.work.insert(all.work.end(), its.work.begin(), its.work.end());
    all.world.insert(all.world.end(), its.world.begin(), its.world.end());
    all.left.insert(all.left.end(), its.left.begin(), its.left.end());
  }
  return all;
}

// Everything of a result against float64.
template <class T>
void check_attention(const attention_case& c, const attention_values<T>& v, const attention_result<T>& r) {
  const reference::packed_attention oracle = oracle_of(c, v);
  const auto seen = oracle.forward();
  constexpr double out_bound = std::is_same_v<T, float> ? 2e-6 : 0x1p-8;
  CHECK(relative_distance(r.out, seen.out) <= out_bound);
  for (std::size_t i = 0; i < seen.lse.size(); ++i) {
    const double lse = static_cast<double>(r.states[i].m) + std::log(static_cast<double>(r.states[i].s));
    if (std::isinf(seen.lse[i]))
      CHECK(r.states[i].s == 0.0F);
    else
      CHECK(std::fabs(lse - seen.lse[i]) <= 4e-6 * std::max(1.0, std::fabs(seen.lse[i])));
  }
  if (c.shape.forward_only) return;
  const auto expected = oracle.backward(widened(v.dout));
  CHECK(relative_distance(r.dq, expected.dq) <= gradient_bound<T>);
  CHECK(relative_distance(r.dk, expected.dk) <= gradient_bound<T>);
  CHECK(relative_distance(r.dv, expected.dv) <= gradient_bound<T>);
}

} // namespace support
