// SPDX-License-Identifier: Apache-2.0
//
// Ring attention against float64 on one rank: any number of ranks, any split, documents across shards,
// lengths off every tile.
#include "support/attention_cases.hpp"
#include "support/dense_attention.hpp"
#include "support/plain_attention.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace pl = plateau;
using pl::index_t, pl::attention_mask, pl::sequence_split, pl::view, pl::tile;
using support::attention_case, support::run_attention, support::values_of;

namespace {

using threads = support::on_threads<>;

attention_case case_of(sequence_split split, attention_mask mask = attention_mask::causal) {
  attention_case c;
  c.split = std::move(split);
  c.shape.heads = 4;
  c.shape.kv_heads = 2;
  c.shape.head_size = 8;
  c.shape.mask = mask;
  c.shape.tile = {10, 14, 1};
  c.shape.hop_rows = 16;
  return c;
}
template <class T, class Kernel = pl::attention_by_gemm> void check(const attention_case& c) {
  const auto values = values_of<T>(c);
  check_attention(c, values, run_attention<T, Kernel>(c, values, threads{}));
}

// Uneven shards, some of them empty, in an order of their own.
sequence_split uneven(index_t tokens, int ranks) {
  const index_t a = tokens / 7, b = tokens / 2;
  if (ranks == 1) return sequence_split::of(tokens, {{{b, tokens - b}, {0, b}}});
  if (ranks == 2) return sequence_split::of(tokens, {{}, {{a, tokens - a}, {0, a}}});
  std::vector<std::vector<pl::position_range>> chunks(static_cast<std::size_t>(ranks));
  chunks[0] = {{b, 3}, {0, a}};
  chunks[2] = {{a, b - a}, {b + 3, tokens - b - 3}};
  return sequence_split::of(tokens, chunks);
}

using support::plain_attention;
static_assert(pl::attention_tile_kernel<plain_attention, pl::host_backend, float>);
static_assert(!pl::attention_tile_kernel<pl::attention_by_gemm, pl::host_backend, float>);

} // namespace

TEST_CASE("1, 2, 3, 4, 8 ranks: outputs, states and gradients agree with one rank in float64") {
  for (const attention_mask mask : {attention_mask::causal, attention_mask::full})
    for (const int ranks : {1, 2, 3, 4, 8}) {
      CAPTURE(ranks);
      CAPTURE(static_cast<int>(mask));
      attention_case c = case_of(sequence_split::balanced(83, ranks), mask);
      c.seed = static_cast<std::uint64_t>(ranks);
      check<float>(c);
      c.split = sequence_split::contiguous(83, ranks);
      check<pl::bfloat16>(c);
    }
}

namespace {
// Some seeds of a case on so many ranks each, beside the plain computation with all scores.
template <class T, class Kernel = pl::attention_by_gemm, class Split>
void check_beside_dense(attention_case c, const std::vector<int>& ranks, Split split) {
  std::vector<support::attention_errors<T>> ring(ranks.size());
  support::attention_errors<T> dense;
  for (c.seed = 1; c.seed < 160; c.seed += 10) {
    c.split = split(1);
    const auto values = values_of<T>(c);
    const reference::packed_attention oracle = oracle_of(c, values);
    const auto seen = oracle.forward();
    const auto gradients = oracle.backward(support::widened(values.dout));
    dense.add(support::dense_attention<T>{c, values}.compute(), seen, gradients);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      c.split = split(ranks[i]);
      ring[i].add(run_attention<T, Kernel>(c, values, threads{}), seen, gradients);
    }
  }
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    CAPTURE(ranks[i]);
    ring[i].check_beside(dense);
  }
}
} // namespace

TEST_CASE("errors are at most twice those of the plain computation with all scores") {
  for (int i = 0; i < 4; ++i) {
    CAPTURE(i);
    attention_case c =
        case_of(sequence_split::contiguous(0, 1), i < 2 ? attention_mask::causal : attention_mask::full);
    if (i > 0) c.cu_seqlens = {0, 1, 4, 40, 53};
    if (i == 3) c.size = 8; // few keys have nearly all of a row
    const auto split = [&](int ranks) {
      return i % 2 == 0 ? sequence_split::balanced(53, ranks) : uneven(53, ranks);
    };
    check_beside_dense<float>(c, {1, 2, 3, 4, 8}, split);
    check_beside_dense<pl::bfloat16>(c, {1, 2, 3, 4, 8}, split);
    check_beside_dense<pl::half>(c, {3}, split);
    if (i < 3)
      check_beside_dense<float, plain_attention>(c, {3}, split); // a logarithm keeps less of a large one
  }
}

TEST_CASE("documents across shards, more than a tile's mask holds, uneven and empty shards, hidden keys") {
  for (const int ranks : {1, 2, 3, 4})
    for (int i = 0; i < 8; ++i) {
      CAPTURE(ranks);
      CAPTURE(i);
      attention_case c =
          case_of(uneven(83, ranks), i % 2 == 0 ? attention_mask::causal : attention_mask::full);
      c.seed = static_cast<std::uint64_t>(10 * ranks + i);
      if (i < 4) c.cu_seqlens = {0, 0, 3, 40, 40, 41, 79, 83, 83};
      if (i == 4 || i == 5) { // documents of one and two tokens
        c.shape.tile = {40, 60, 2};
        for (index_t p = 0; p < 83; p += 1 + p % 2) c.cu_seqlens.push_back(p);
        c.cu_seqlens.push_back(83);
      }
      if (i == 2 || i == 3) c.spare = 3, c.skew = 1, c.agreed = true;
      if (i == 1) c.shape.kv_heads = 4, c.shape.tile.kv_heads = 3;
      if (i == 0) c.shape.heads = 6, c.shape.kv_heads = 1, c.shape.tile.kv_heads = 0, c.shape.head_size = 5;
      if (i == 6 || i == 7) c.shape.hidden_keys = true, c.hide_every = 3, c.cu_seqlens = {0, 1, 2, 60, 83};
      check<float>(c);
      if (i % 4 == ranks % 4) check<pl::half>(c);
    }
}

TEST_CASE("a row whose keys are all hidden has the output 0 and no gradient; an empty sequence is one too") {
  attention_case c = case_of(sequence_split::balanced(30, 2));
  c.shape.hidden_keys = true;
  c.hide_every = 1;
  for (const attention_mask mask : {attention_mask::causal, attention_mask::full}) {
    c.shape.mask = mask;
    const auto r = run_attention<float>(c, values_of<float>(c), threads{});
    for (const auto* each : {&r.out, &r.dq, &r.dk, &r.dv})
      for (const float x : *each) CHECK(x == 0.0F);
    for (const pl::online_lse& state : r.states) CHECK(state.s == 0.0F);
  }
  for (const int ranks : {1, 3}) check<float>(case_of(sequence_split::contiguous(0, ranks)));
  check<float>(case_of(sequence_split::contiguous(2, 4)));
}

TEST_CASE("scores that are more than 89 apart, in rising and in falling order around the ring") {
  for (const int ranks : {1, 3})
    for (const float sign : {1.0F, -1.0F}) {
      CAPTURE(ranks);
      CAPTURE(sign);
      attention_case c = case_of(sequence_split::contiguous(60, ranks), attention_mask::full);
      c.shape.kv_heads = c.shape.heads = 1;
      c.shape.head_size = 4; // scale 1/2
      c.shape.hop_rows = 7;
      auto v = values_of<float>(c);
      for (index_t i = 0; i < 60; ++i)
        for (index_t e = 0; e < 4; ++e) {
          const auto at = static_cast<std::size_t>(i * 4 + e);
          v.q[at] = e == 0 ? 16.0F : 0.0F;
          // Scores of 8 k: 96 apart every 7 keys, and the same between; the largest is 0.
          const auto step = static_cast<float>(i / 7 * 12);
          if (e == 0) v.k[at] = sign > 0 ? step - 96 : -step;
        }
      const auto r = run_attention<float>(c, v, threads{});
      check_attention(c, v, r);
      for (const float x : r.out) CHECK(pl::is_finite(x));
    }
}

TEST_CASE("a NaN stays in its row") {
  attention_case c = case_of(sequence_split::balanced(50, 3));
  auto v = values_of<float>(c);
  const auto clean = run_attention<float>(c, v, threads{});
  const index_t row = 31 * c.shape.query_columns(), size = c.shape.head_size;
  v.q[static_cast<std::size_t>(row + size)] = static_cast<float>(NAN); // of the second head
  const auto r = run_attention<float>(c, v, threads{});
  for (std::size_t i = 0; i < r.out.size(); ++i) {
    const auto at = static_cast<index_t>(i);
    const bool its = at >= row + size && at < row + 2 * size;
    CHECK(pl::is_nan(r.out[i]) == its);
    CHECK(pl::is_nan(r.dq[i]) == its);
    if (!its) CHECK(r.out[i] == clean.out[i]);
  }
}

TEST_CASE("a hidden key gets no gradient, not even from a row that is NaN") {
  attention_case c = case_of(sequence_split::balanced(50, 3));
  c.shape.hidden_keys = true;
  c.hide_every = 3;
  auto v = values_of<float>(c);
  const index_t columns = c.shape.key_columns();
  v.k[static_cast<std::size_t>(4 * columns)] = static_cast<float>(NAN); // so are all rows that see it
  v.k[static_cast<std::size_t>(6 * columns)] = static_cast<float>(NAN); // hidden: nobody does
  const auto r = run_attention<float>(c, v, threads{});
  CHECK(pl::is_nan(r.out.back()) == false); // of another key head
  CHECK(pl::is_nan(r.out[static_cast<std::size_t>(10 * c.shape.query_columns())]));
  for (index_t i = 0; i < static_cast<index_t>(r.dv.size()); ++i)
    if (i / columns % 3 == 0) CHECK(r.dv[static_cast<std::size_t>(i)] == 0.0F);
}

TEST_CASE("a kernel of the user's that gives (out, lse) takes the place of the products") {
  for (const int ranks : {1, 2, 3})
    for (int i = 0; i < 4; ++i) {
      CAPTURE(ranks);
      CAPTURE(i);
      attention_case c =
          case_of(uneven(61, ranks), i % 2 == 0 ? attention_mask::causal : attention_mask::full);
      if (i > 0) c.cu_seqlens = {0, 5, 5, 33, 61};
      if (i > 1) c.shape.hidden_keys = true, c.hide_every = 2, c.cu_seqlens = {0, 1, 2, 33, 61};
      check<float, plain_attention>(c);
      check<pl::bfloat16, plain_attention>(c);
    }
  attention_case c = case_of(sequence_split::balanced(9, 2));
  c.shape.head_size = 65;
  CHECK_THROWS_WITH_AS((check<float, plain_attention>(c)),
                       doctest::Contains("plain_attention: heads of up to 64"), pl::error);
}

TEST_CASE("work is even over ranks, and what a planner is told is what is done") {
  for (const int ranks : {1, 2, 3, 4, 8})
    for (int i = 0; i < 3; ++i) {
      CAPTURE(ranks);
      CAPTURE(i);
      attention_case c = case_of(i == 2 ? uneven(256, ranks) : sequence_split::balanced(512, ranks));
      if (i == 1) c.cu_seqlens = {0, 100, 101, 512};
      if (i == 2) c.shape.hidden_keys = true, c.shape.mask = attention_mask::full;
      c.shape.heads = 2, c.shape.kv_heads = 1, c.shape.head_size = 2;
      c.shape.tile = {16, 16, 1};
      c.shape.hop_rows = 32;
      c.shape.tokens = c.split.most_rows();
      const auto r = run_attention<float>(c, values_of<float>(c), threads{});
      const pl::packed_documents documents(c.tokens(), c.cu_seqlens);
      double most = 0, sum = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto at = static_cast<std::size_t>(rank);
        const auto w = pl::attention_work::of(c.shape, c.split, documents, rank, sizeof(float));
        CHECK(static_cast<double>(r.work[at].matrix_flops) == w.forward_flops + w.backward_flops);
        CHECK(r.world[at].sent_bytes == w.forward_bytes + w.backward_bytes);
        CHECK(w.steps == w.rounds * ranks);
        CHECK(w.pairs >= c.split.visible_pairs(rank, documents, c.shape.mask));
        CHECK(r.work[at].host_round_trips == 0);
        CHECK(r.world[at].host_exchanges == 1);
        most = std::max(most, w.forward_flops);
        sum += w.forward_flops;
      }
      if (i == 0) CHECK(most <= 1.02 * sum / ranks);
    }
}

TEST_CASE("causal work is even at every step, where each waits for its neighbour") {
  for (const int ranks : {2, 4, 8}) {
    CAPTURE(ranks);
    pl::attention_shape shape = case_of(sequence_split::contiguous(0, 1)).shape;
    const sequence_split split = sequence_split::balanced(2048 * ranks, ranks);
    const pl::packed_documents one(split.tokens());
    pl::attention_rounds rounds;
    rounds.assign(split, 512);
    const pl::ring_schedule schedule(split.rows_of_ranks(), 512);
    double slowest = 0, all = 0; // pairs, as if all waited for the slowest at each step
    for (index_t t = 0; t < schedule.steps(); ++t) {
      double most = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const pl::ring_step at = schedule.at(rank, t);
        index_t pairs = 0, rows = 0;
        for (const pl::attention_piece& p : rounds.pieces(at.owner, at.round)) {
          CHECK(p.block_row == rows);
          rows += p.positions.rows;
          for (const pl::position_range& chunk : split.chunks(rank))
            pairs += one.visible_pairs(chunk, p.positions, shape.mask);
        }
        CHECK(rows == at.rows);
        most = std::max(most, static_cast<double>(pairs));
        all += static_cast<double>(pairs);
      }
      slowest += most * ranks;
    }
    CHECK(slowest <= 1.1 * all);
  }
}
