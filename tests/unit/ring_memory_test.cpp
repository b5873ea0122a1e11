// SPDX-License-Identifier: Apache-2.0
//
// What a linear cross-entropy takes: no byte beyond its working set, and of that every byte; no allocation
// from the second step on; four products; the bytes that the ring must move, and no others; no round trip of
// the host, and one exchange of integers.
#include "support/counted_new.hpp"
#include "support/ring_cases.hpp"

#include <plateau/cuda/scratch_model.hpp>
#include <plateau/dry_run.hpp>
#include <plateau/ring/entropy.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <string>
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
    for (int i = 0; i < 7; ++i) {
      const int ranks = i % 2 == 0 && i < 6 ? 3 : 1, mode = i / 2; // of tiles, of blocks, one pass
      CAPTURE(ranks);
      CAPTURE(mode);
      CAPTURE(static_cast<int>(r));
      ring_case c = case_of(std::vector<index_t>(static_cast<std::size_t>(ranks), 37),
                            std::vector<index_t>(static_cast<std::size_t>(ranks), 41), r);
      c.shape.bias = true;
      if (mode == 1) c.shape.tiles_in_flight = 2;
      if (mode == 2) {
        for (index_t& n : c.shards) n = 48;
        c.shape.vocabulary = c.vocabulary();
        c.shape.fixed_block = 16;
        c.shape.entropy = c.shape.argmax = true;
      }
      c.shape.one_pass = mode == 3;
      c.shape.strip_rows = 10;
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
      c.shape.tiles_in_flight = r == rotation::weights ? 2 : 1;
      c.shape.one_pass = ranks == 1 && r == rotation::activations;
      std::vector<std::uint64_t> before(3), made(3);
      const auto index = [](const auto& stage) { return static_cast<std::size_t>(stage.rank); };
      run_ring<float>(
          c, values_of<float>(c), threads{},
          [&](auto stage) { before[index(stage)] = counted_new::calls.load(); },
          [&](auto stage) { made[index(stage)] = counted_new::calls.load() - before[index(stage)]; });
      for (const std::uint64_t calls : made) CHECK(calls == 0);
    }
}

TEST_CASE("four products, in one pass three, the ring's bytes and no others, no round trip, one exchange of "
          "integers") {
  for (const rotation r : {rotation::activations, rotation::weights})
    for (const int ranks : {1, 2, 3})
      for (const bool given : {false, true}) {
        CAPTURE(ranks);
        ring_case c = case_of({}, {}, r);
        c.shape.one_pass = ranks == 1 && given;
        for (int i = 0; i < ranks; ++i) c.tokens.push_back(20 + 5 * i), c.shards.push_back(33 - 4 * i);
        c.counts_given = given;
        const auto result = run_ring<float>(c, values_of<float>(c), threads{});
        const index_t h = c.shape.hidden;
        std::uint64_t flops = 0, sent = 0;
        for (const pl::counters& w : result.work) flops += w.matrix_flops;
        for (const pl::counters& w : result.world) sent += w.sent_bytes;
        CHECK(flops == (c.shape.one_pass ? 3 : 4) *
                           static_cast<std::uint64_t>(2 * c.all_tokens() * c.vocabulary() * h));
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
  // The formula: two sub-blocks of rows, three of what comes home, for each tile in flight its logits in
  // fp32, their gradients in bf16 and scratch; the states of fixed blocks travel in place of a state.
  const std::size_t hidden = 2880, tile = 1024 * 2048;
  for (const int tiles : {1, 2})
    for (const index_t block : {0, 65536, 16}) {
      s.tiles_in_flight = tiles;
      s.fixed_block = block;
      s.hop_rows = tiles == 1 ? 2048 : 1024;
      const auto hop = static_cast<std::size_t>(s.hop_rows), n = static_cast<std::size_t>(tiles);
      std::size_t scratch = 0;
      for (const pl::memory_line& line : loss::working_set(s, 8))
        if (std::string(line.what) == "scratch") scratch = line.bytes;
      const std::size_t blocks = block == 0 ? 1 : (201088 + static_cast<std::size_t>(block) - 1) / block;
      const std::size_t columns = block == 16 ? 16 : 2048;
      const std::size_t formula = 2 * hop * (hidden * 2 + 24) + 3 * hop * std::max(hidden * 4, blocks * 16) +
                                  n * (tile / 2048 * columns * (4 + 2) + scratch) + 256 * 24 + 7 * 8 + 4 + 16;
      CAPTURE(tiles);
      CAPTURE(block);
      CHECK(bytes(8) >= formula);
      CHECK(bytes(8) <= formula + 12 * 256);
    }
  s.fixed_block = 0;
  CHECK(bytes(8) <= 150000000);
  using on_cuda = pl::linear_cross_entropy<pl::dry_run<pl::cuda_scratch>, pl::dry_communicator, pl::bfloat16>;
  for (const index_t tokens : {1 << 14, 1 << 20}) {
    s.tokens = tokens;
    CHECK(on_cuda::working_set(s, 8).device_bytes() <= 150000000);
  }
  // One pass: a strip, and what is the same in all modes.
  s.one_pass = true;
  s.tiles_in_flight = 1;
  s.strip_rows = 512;
  s.vocabulary = 65536;
  s.hidden = 512;
  CHECK(on_host::working_set(s, 1).device_bytes() >= 512 * 65536 * 4);
  CHECK(on_host::working_set(s, 1).device_bytes() <= 130u << 20);
  // Recompute mode on one rank: its tile, and rows of which only targets travel.
  s.one_pass = false;
  s.tokens = s.hop_rows = 2048;
  CHECK(on_host::working_set(s, 1).device_bytes() >= 1024 * 2048 * 4 + 2048 * 24);
  CHECK(on_host::working_set(s, 1).device_bytes() <= 10u << 20);
}

TEST_CASE("one pass is refused where it cannot be right, on all ranks, and says what to do instead") {
  pl::cross_entropy_shape s;
  s.tokens = 8, s.hidden = 4, s.vocabulary = 12;
  s.one_pass = true;
  CHECK_THROWS_WITH_AS(on_host::working_set(s, 2), doctest::Contains("one_pass = false"), pl::config_error);
  for (int i = 0; i < 4; ++i) {
    pl::cross_entropy_shape other = s;
    if (i == 0) other.tiles_in_flight = 2;
    if (i == 1) other.fixed_block = 4;
    if (i == 2) other.input_gradient_accumulator = true;
    if (i == 3) other.strip_rows = 0;
    CHECK_THROWS_AS(on_host::working_set(other, 1), pl::config_error);
  }
  s.tokens = 1 << 20, s.strip_rows = 1 << 20;
  s.vocabulary = index_t{1} << 48;
  CHECK_THROWS_WITH_AS(on_host::working_set(s, 1), doctest::Contains("strip_rows"), pl::config_error);
  for (int i = 0; i < 5; ++i) {
    CAPTURE(i);
    ring_case c = case_of({9}, {21}, rotation::automatic);
    c.shape.one_pass = true;
    if (i == 0) c.tokens = {9, 3}, c.shards = {11, 10};
    if (i == 1) c.upstream_each = true;
    std::string text;
    try {
      if (i == 2) {
        c.tokens = {5};
        c.shape.tiles_in_flight = 3;
      }
      if (i == 3) c.shape.fixed_block = 8, c.shape.one_pass = false, c.tokens = {4, 5}, c.shards = {11, 10};
      if (i == 4) {
        c.shape.fixed_block = 8, c.shape.one_pass = false, c.shape.hop_rows = 12;
        c.shape.rotate = rotation::weights;
      }
      run_ring<float>(c, values_of<float>(c), threads{});
    } catch (const pl::error& e) {
      text = e.what();
    }
    constexpr const char* expected[] = {"one_pass = false", "recompute mode, one_pass = false",
                                        "tiles_in_flight must be 1 or 2",
                                        "the shard of rank 1 must begin at a multiple of fixed_block 8",
                                        "hop_rows must be a multiple of fixed_block 8, got 12"};
    CHECK_MESSAGE(text.find(expected[i]) != std::string::npos, text);
  }
}

namespace {
// A machine that has no thread for one of the streams, on rank 1.
struct short_of_threads : pl::host_backend {
  const char* missing = nullptr;
  using pl::host_backend::host_backend;

  stream make_stream(const char* what) {
    if (missing != nullptr && std::string(what) == missing)
      throw pl::backend_error("no thread for " + std::string(what));
    return pl::host_backend::make_stream(what);
  }
};
} // namespace

TEST_CASE("a stream that one rank cannot make is an error on all of them, which may try again") {
  for (const char* missing : {"ring", "second tile"}) {
    using loss = pl::linear_cross_entropy<short_of_threads, pl::thread_communicator, float>;
    std::atomic<int> told{0};
    pl::run_ranks(3, [&](pl::thread_communicator& comm) {
      short_of_threads backend;
      pl::cross_entropy_shape s;
      s.tokens = 4, s.hidden = 4, s.vocabulary = 9, s.tiles_in_flight = 2;
      pl::workspace<short_of_threads> space(backend, loss::working_set(s, 3));
      if (comm.rank() == 1) backend.missing = missing;
      try {
        loss op(backend, comm, s, space);
      } catch (const pl::collective_error& e) {
        const std::string text = e.what();
        told += e.failed_rank == 1 && text.find("no thread for " + std::string(missing)) != std::string::npos;
      }
      backend.missing = nullptr;
      const loss again(backend, comm, s, space);
      CHECK(again.first_row(3) == 9);
    });
    CHECK(told == 3);
  }
  using entropy = pl::linear_entropy<short_of_threads, pl::thread_communicator, float>;
  std::atomic<int> told{0};
  pl::run_ranks(3, [&](pl::thread_communicator& comm) {
    short_of_threads backend;
    pl::entropy_shape s;
    s.tokens = 4, s.hidden = 4, s.vocabulary = 9;
    pl::workspace<short_of_threads> space(backend, entropy::working_set(s, 3));
    if (comm.rank() == 1) backend.missing = "ring";
    try {
      entropy op(backend, comm, s, space);
    } catch (const pl::collective_error& e) {
      told += e.failed_rank == 1 && std::string(e.what()).find("no thread for ring") != std::string::npos;
    }
    backend.missing = nullptr;
    const entropy again(backend, comm, s, space);
  });
  CHECK(told == 3);
}

TEST_CASE("V5: sizes whose products overflow are refused, and not taken for small ones") {
  const index_t most = index_t{1} << 48;
  const auto refused = [](const pl::cross_entropy_shape& s) {
    for (const int ranks : {1, 4}) CHECK_THROWS_AS(on_host::working_set(s, ranks), pl::config_error);
  };
  for (const index_t n : {most + 1, index_t{1} << 62, std::numeric_limits<index_t>::max()})
    for (int i = 0; i < 3; ++i) {
      pl::cross_entropy_shape s;
      s.tokens = 100, s.hidden = 10, s.vocabulary = 1000;
      (i == 0 ? s.tokens : i == 1 ? s.hidden : s.vocabulary) = n;
      refused(s);
    }
  pl::cross_entropy_shape s;
  s.tokens = s.vocabulary = most, s.hidden = 10;
  s.tile = {most, most};
  s.hop_rows = most;
  refused(s);
  s.tile = {1024, 2048};
  s.hop_rows = 1024;
  CHECK(on_host::working_set(s, 4).device_bytes() < 100u << 20);
  s.rotate = rotation::weights;
  s.input_gradient_accumulator = true;
  s.hidden = most;
  refused(s);
  s.hidden = 10;
  s.input_gradient_accumulator = false;
  s.fixed_block = s.hop_rows = 16;
  refused(s);
  pl::entropy_shape e;
  e.tokens = e.vocabulary = e.tile_tokens = e.tile_vocabulary = e.hop_rows = most, e.hidden = 10;
  using entropy = pl::linear_entropy<pl::host_backend, pl::thread_communicator, float>;
  for (const int ranks : {1, 4}) CHECK_THROWS_AS(entropy::working_set(e, ranks), pl::config_error);
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

TEST_CASE("predicted: with two tiles in flight the small work of one hides under the other's products") {
  // Eight ranks of the paper's shape, for fewer tokens, on a GPU whose kernels' starts and ends overlap.
  pl::hardware machine = pl::h200();
  machine.kernel_gap_seconds = machine.operation_seconds;
  ring_case c;
  c.tokens.assign(8, 1024);
  c.shards.assign(8, 201088 / 8);
  c.shape.hidden = 2880;
  c.shape.hop_rows = 1024;
  c.shape.rotate = rotation::activations;
  support::ring_values<pl::bfloat16> none;
  none.upstream = {1};
  double seconds[2] = {};
  for (const int tiles : {1, 2}) {
    c.shape.tiles_in_flight = tiles;
    pl::dry_ranks ran;
    pl::dry_options options;
    options.check_order = false;
    const support::without_data<pl::cuda_scratch> on{options, &ran};
    const auto mark = [](auto stage) {
      stage.backend.wait(stage.backend.record(stage.stream));
      stage.backend.recorder().mark("here");
    };
    run_ring<pl::bfloat16>(c, none, on, mark, mark);
    REQUIRE_FALSE(ran.cause.has_value());
    const pl::dry::timeline t = pl::predict(ran, machine);
    REQUIRE(t.complete);
    const auto step = t.ranks[3].marks[1].so_far - t.ranks[3].marks[0].so_far;
    seconds[tiles - 1] = step.seconds;
    CHECK(step.exposed_transfer <= 0.02 * step.seconds);
    const double products = step.flops / machine.half_flops + 4 * 8 * 13 * machine.operation_seconds;
    CHECK((step.seconds <= 1.03 * products) == (tiles == 2));
  }
  CHECK(seconds[1] <= 0.9 * seconds[0]);
}
