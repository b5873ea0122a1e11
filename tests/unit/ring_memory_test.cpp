// SPDX-License-Identifier: Apache-2.0
//
// What a linear cross-entropy takes: no byte beyond its working set, and of that every byte; no allocation
// from the second step on; four products; the bytes that the ring must move, and no others; no round trip of
// the host, and one exchange of integers.
#include "support/counted_new.hpp"
#include "support/ring_cases.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <vector>

namespace pl = plateau;
using pl::index_t, pl::rotation;
using support::ring_case, support::values_of, support::run_ring;

namespace {

using threads = support::on_threads<>;
using on_host = pl::linear_cross_entropy<pl::host_backend, pl::thread_communicator, float>;

ring_case case_of(std::vector<index_t> tokens, std::vector<index_t> shards, rotation rotate) {
  ring_case c;
  c.tokens = std::move(tokens);
  c.shards = std::move(shards);
  c.shape.hidden = 24;
  c.shape.tile = {8, 16};
  c.shape.hop_rows = 16;
  c.shape.rotate = rotate;
  c.shape.vocabulary = c.vocabulary();
  for (const index_t n : c.tokens) c.shape.tokens = std::max(c.shape.tokens, n);
  return c;
}

// Lines of which more than 256 bytes in a row keep the pattern.
struct untouched {
  std::vector<std::string> lines;
  std::size_t bytes = 0;
};
template <class T> std::vector<untouched> tightness(const ring_case& c) {
  std::vector<untouched> out(c.tokens.size());
  using loss = pl::linear_cross_entropy<pl::host_backend, pl::thread_communicator, T>;
  const pl::working_set set = loss::working_set(c.shape, c.ranks());
  std::vector<unsigned char*> slab(c.tokens.size());
  run_ring<T>(
      c, values_of<T>(c), threads{},
      [&](auto stage) {
        pl::working_set all(pl::tag::other);
        all.add("all", pl::memory_kind::device, stage.space.device_bytes());
        CHECK(stage.space.device_bytes() == set.device_bytes());
        auto open = stage.space.open(all);
        const auto bytes = open.template device<unsigned char>(static_cast<index_t>(set.device_bytes()));
        slab[static_cast<std::size_t>(stage.rank)] = bytes.p;
        stage.backend.launch(stage.stream, pl::elements{bytes.n}, pl::fill<unsigned char>{0xa5},
                             pl::out(bytes));
      },
      [&](auto stage) {
        stage.backend.wait(stage.backend.record(stage.stream));
        const unsigned char* at = slab[static_cast<std::size_t>(stage.rank)];
        for (const pl::memory_line& line : set) {
          if (line.kind != pl::memory_kind::device) continue;
          std::size_t run = 0, longest = 0;
          for (std::size_t i = 0; i < line.bytes; ++i) {
            run = at[i] == 0xa5 ? run + 1 : 0;
            longest = std::max(longest, run);
          }
          if (longest > 256) {
            out[static_cast<std::size_t>(stage.rank)].lines.push_back(line.what);
            out[static_cast<std::size_t>(stage.rank)].bytes += longest;
          }
          at += pl::aligned_bytes(line.bytes);
        }
      });
  return out;
}

} // namespace

TEST_CASE("the promise is tight: the worst input touches all of it") {
  for (const rotation r : {rotation::activations, rotation::weights})
    for (const int ranks : {1, 3}) {
      CAPTURE(ranks);
      CAPTURE(static_cast<int>(r));
      ring_case c = case_of(std::vector<index_t>(static_cast<std::size_t>(ranks), 37),
                            std::vector<index_t>(static_cast<std::size_t>(ranks), 41), r);
      c.shape.bias = true;
      for (const untouched& u : tightness<float>(c)) {
        for (const std::string& line : u.lines) FAIL_CHECK("untouched: " << line);
      }
    }
}

TEST_CASE("from the second step on nothing is allocated, whatever the number of tokens") {
  for (const rotation r : {rotation::activations, rotation::weights})
    for (const int ranks : {1, 3}) {
      CAPTURE(ranks);
      ring_case c = case_of({20, 0, 33}, {30, 31, 0}, r);
      if (ranks == 1) c.tokens = {53}, c.shards = {61};
      c.steps = 3;
      c.forwards = 2;
      std::vector<std::uint64_t> before(3), made(3);
      const auto index = [](const auto& stage) { return static_cast<std::size_t>(stage.rank); };
      run_ring<float>(
          c, values_of<float>(c), threads{},
          [&](auto stage) { before[index(stage)] = counted_new::calls.load(); },
          [&](auto stage) { made[index(stage)] = counted_new::calls.load() - before[index(stage)]; });
      for (const std::uint64_t calls : made) CHECK(calls == 0);
    }
}

TEST_CASE("four products, the ring's bytes and no others, no round trip, one exchange of integers") {
  for (const rotation r : {rotation::activations, rotation::weights})
    for (const int ranks : {1, 2, 3})
      for (const bool given : {false, true}) {
        CAPTURE(ranks);
        ring_case c = case_of({}, {}, r);
        for (int i = 0; i < ranks; ++i) c.tokens.push_back(20 + 5 * i), c.shards.push_back(33 - 4 * i);
        c.counts_given = given;
        const auto result = run_ring<float>(c, values_of<float>(c), threads{});
        const index_t h = c.shape.hidden;
        std::uint64_t flops = 0, sent = 0;
        for (const pl::counters& w : result.work) flops += w.matrix_flops;
        for (const pl::counters& w : result.world) sent += w.sent_bytes;
        CHECK(flops == 4 * static_cast<std::uint64_t>(2 * c.all_tokens() * c.vocabulary() * h));
        // A row goes to the others twice; what is made of it comes home by way of all of them.
        const index_t float_bytes = 4, hops = ranks - 1, home = ranks > 1 ? ranks : 0;
        const index_t bytes =
            r == rotation::activations
                ? c.all_tokens() * (hops * (2 * h * float_bytes + 8 + 24) + home * (16 + h * float_bytes))
                : c.vocabulary() * (hops * 2 * h * float_bytes + home * h * float_bytes);
        const index_t sums = 32 * (ranks - 1); // of losses and weights
        CHECK(sent == static_cast<std::uint64_t>(bytes + sums));
        for (const pl::counters& w : result.work) CHECK(w.host_round_trips == 0);
        for (const pl::counters& w : result.world) CHECK(w.host_exchanges == (given ? 0 : 1));
      }
}

TEST_CASE("working memory does not depend on the tokens, nor on the ranks from two on") {
  pl::cross_entropy_shape s;
  s.tokens = 16384;
  s.hidden = 2880;
  s.vocabulary = 201088;
  s.hop_rows = 2048;
  s.rotate = rotation::activations;
  using loss = pl::linear_cross_entropy<pl::host_backend, pl::thread_communicator, pl::bfloat16>;
  const auto bytes = [&](int ranks) { return loss::working_set(s, ranks).device_bytes(); };
  const std::size_t at_first = bytes(8);
  s.tokens = index_t{1} << 20;
  CHECK(bytes(8) == at_first);
  CHECK(bytes(64) <= at_first + 64 * 16);
  // The formula: two sub-blocks of rows, three of what comes home, a tile in fp32 and in bf16, scratch.
  const std::size_t hop = 2048, hidden = 2880, tile = 1024 * 2048;
  std::size_t scratch = 0;
  for (const pl::memory_line& line : loss::working_set(s, 8))
    if (std::string(line.what) == "scratch") scratch = line.bytes;
  const std::size_t formula = 2 * hop * (hidden * 2 + 24) + 3 * hop * hidden * 4 + tile * (4 + 2) + scratch +
                              256 * 24 + 7 * 8 + 4 + 16;
  CHECK(at_first >= formula);
  CHECK(at_first <= formula + 8 * 256);
  CHECK(at_first <= 150000000);
}

TEST_CASE("what rotates is what moves fewer bytes in forward and backward together") {
  const auto activations = [](const pl::cross_entropy_shape& s, int ranks) {
    return pl::detail::cross_entropy_plan<pl::host_backend, pl::bfloat16>(s, ranks).activations;
  };
  pl::cross_entropy_shape s;
  s.hidden = 2880;
  s.vocabulary = 201088;
  s.tokens = 16384; // fewer than the rows of a shard
  CHECK(activations(s, 8));
  s.tokens = 65536;
  CHECK_FALSE(activations(s, 8));
  CHECK(activations(s, 2));
  s.frozen_inputs = true; // half of the bytes of a token do not move
  s.tokens = 40000;
  CHECK(activations(s, 8));
  s.frozen_weights = true;
  CHECK_FALSE(activations(s, 8));
  s.rotate = rotation::activations;
  CHECK(activations(s, 8));
}
