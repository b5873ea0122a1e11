// SPDX-License-Identifier: Apache-2.0
//
// What a ring attention takes: no byte beyond its working set, and of that every byte; no allocation from the
// second step on; and what it is told that cannot work is an error on every rank.
#include "support/attention_cases.hpp"
#include "support/counted_new.hpp"
#include "support/plain_attention.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <vector>

namespace pl = plateau;
using pl::index_t, pl::attention_mask, pl::sequence_split;
using support::attention_case, support::values_of, support::run_attention;

namespace {

using threads = support::on_threads<>;
template <class T, class Kernel = pl::attention_by_gemm>
using on_host = pl::ring_attention<pl::host_backend, pl::thread_communicator, T, Kernel>;

attention_case case_of(sequence_split split) {
  attention_case c;
  c.split = std::move(split);
  c.shape.heads = 4;
  c.shape.kv_heads = 2;
  c.shape.head_size = 24;
  c.shape.tile = {32, 48, 1};
  c.shape.hop_rows = 64;
  c.shape.tokens = c.split.most_rows();
  return c;
}

// Lines of which more than 256 bytes in a row keep a pattern, on any rank.
template <class T, class Kernel = pl::attention_by_gemm>
std::vector<std::string> untouched(const attention_case& c) {
  std::vector<std::string> out;
  const pl::working_set set = on_host<T, Kernel>::working_set(c.shape, c.ranks());
  std::vector<unsigned char*> slab(static_cast<std::size_t>(c.ranks()));
  std::mutex one_at_a_time;
  run_attention<T, Kernel>(
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
        const std::lock_guard lock(one_at_a_time);
        const unsigned char* at = slab[static_cast<std::size_t>(stage.rank)];
        for (const pl::memory_line& line : set) {
          std::size_t run = 0, longest = 0;
          for (std::size_t i = 0; i < line.bytes; ++i) {
            run = at[i] == 0xa5 ? run + 1 : 0;
            longest = std::max(longest, run);
          }
          if (longest > 256) out.push_back(line.what);
          at += pl::aligned_bytes(line.bytes);
        }
      });
  return out;
}

} // namespace

TEST_CASE("the promise is tight: the worst input touches all of it") {
  for (const int ranks : {1, 3})
    for (int i = 0; i < 4; ++i) {
      CAPTURE(ranks);
      CAPTURE(i);
      attention_case c = case_of(sequence_split::contiguous(150 * ranks, ranks));
      c.shape.hidden_keys = i == 1;
      if (i == 2) c.shape.kv_heads = 4, c.shape.tile.kv_heads = 0;
      c.shape.forward_only = i == 3;
      for (const std::string& line : untouched<float>(c)) FAIL_CHECK("untouched: " << line);
      for (const std::string& line : untouched<pl::bfloat16>(c)) FAIL_CHECK("untouched: " << line);
      if (i > 1) continue;
      for (const std::string& line : untouched<pl::bfloat16, support::plain_attention>(c))
        FAIL_CHECK("untouched, with a kernel of the user's: " << line);
    }
}

TEST_CASE("from the second step on nothing is allocated, whatever the sequence") {
  for (const int ranks : {1, 3}) {
    CAPTURE(ranks);
    attention_case c = case_of(sequence_split::balanced(120, ranks));
    c.steps = 3;
    c.forwards = 2;
    c.cu_seqlens = {0, 20, 77, 120};
    std::vector<std::uint64_t> before(3), made(3);
    const auto index = [](const auto& stage) { return static_cast<std::size_t>(stage.rank); };
    run_attention<float>(
        c, values_of<float>(c), threads{},
        [&](auto stage) { before[index(stage)] = counted_new::calls.load(); },
        [&](auto stage) { made[index(stage)] = counted_new::calls.load() - before[index(stage)]; });
    for (const std::uint64_t calls : made) CHECK(calls == 0);
  }
}

TEST_CASE("working memory is the formula, linear in the local rows in two lines and constant in all others") {
  pl::attention_shape s;
  s.heads = 64, s.kv_heads = 8, s.head_size = 128;
  s.hop_rows = 1024;
  s.tile = {256, 512, 2};
  const auto bytes = [](const pl::working_set& set) {
    std::size_t sum = 0;
    for (const pl::memory_line& line : set)
      if (std::string(line.what) != "scratch") sum += line.bytes;
    return sum;
  };
  const std::size_t rows = 256 * 8 * 2, keys = 8 * 128;
  for (const index_t tokens : {1 << 14, 1 << 20}) {
    s.tokens = tokens;
    const auto n = static_cast<std::size_t>(tokens);
    const std::size_t wide = 2 * 2 * 1024 * keys * 4 + 3 * 2 * 1024 * keys * 4 // moving, and coming home
                             + n * 64 * 4                                      // dots
                             + rows * (2 * 128 * 4 + 8 + 128 * 4 + 2 * 512 * 4);
    CHECK(bytes(on_host<float>::working_set(s, 8)) == wide);
    const std::size_t narrow = 2 * 2 * 1024 * keys * 2 + 3 * 2 * 1024 * keys * 4 + n * 64 * (4 + 128 * 4) +
                               rows * (2 * 128 * 2 + 8 + 128 * 4 + 512 * (4 + 4 + 2 + 2));
    CHECK(bytes(on_host<pl::bfloat16>::working_set(s, 8)) == narrow);
    CHECK(bytes(on_host<pl::bfloat16>::working_set(s, 64)) == narrow);
    CHECK(on_host<float>::saved_bytes(s) == n * 64 * 8);
  }
  // One rank moves nothing; in fp32 gradients of keys stand where they are wanted.
  s.tokens = 2048;
  CHECK(bytes(on_host<float>::working_set(s, 1)) ==
        2048 * 64 * 4 + rows * (2 * 128 * 4 + 8 + 128 * 4 + 2 * 512 * 4));
  s.forward_only = true;
  CHECK(bytes(on_host<float>::working_set(s, 1)) == rows * (128 * 4 + 8 + 128 * 4 + 512 * 4));
}

namespace {
// The error that ends a case, and on how many ranks it was seen: where f(rank, backend, comm) throws.
template <class F> std::string told(int ranks, int expected, F f) {
  std::atomic<int> seen{0};
  std::string text;
  std::mutex one_at_a_time;
  pl::run_ranks(ranks, [&](pl::thread_communicator& comm) {
    pl::host_backend backend;
    try {
      f(comm, backend);
    } catch (const pl::error& e) {
      const std::lock_guard lock(one_at_a_time);
      ++seen;
      text = e.what();
    }
  });
  CHECK(seen == expected);
  return text;
}
} // namespace

TEST_CASE("a shape that cannot work is refused, on every rank, with what was asked and what can be") {
  const auto refused = [](auto change, const char* expected) {
    pl::attention_shape s = case_of(sequence_split::contiguous(40, 2)).shape;
    pl::attention_shape wrong = s;
    change(wrong);
    CHECK_THROWS_WITH_AS(on_host<float>::working_set(wrong, 2), doctest::Contains(expected),
                         pl::config_error);
    const std::string text = told(3, 3, [&](pl::thread_communicator& comm, pl::host_backend& backend) {
      pl::workspace<pl::host_backend> space(backend, on_host<float>::working_set(s, 3));
      on_host<float> op(backend, comm, comm.rank() == 1 ? wrong : s, space);
    });
    CHECK_MESSAGE(text.find(expected) != std::string::npos, text);
  };
  refused([](auto& s) { s.kv_heads = 3; }, "kv_heads must divide the 4 heads, got 3");
  refused([](auto& s) { s.heads = 0; }, "heads must be in [1, 1048576], got 0");
  refused([](auto& s) { s.head_size = 257; }, "head_size must be in [1, 256], got 257");
  refused([](auto& s) { s.hop_rows = 0; }, "hop_rows must be");
  refused([](auto& s) { s.tile.queries = 0; }, "tile.queries must be");
  refused([](auto& s) { s.tile.keys = -1; }, "tile.keys must be");
  refused([](auto& s) { s.tile.kv_heads = -1; }, "tile.kv_heads (0: all) must be");
  refused([](auto& s) { s.tokens = -1; }, "tokens must be");
  refused([](auto& s) { s.score_scale = -1; }, "score_scale must be positive");
  refused([](auto& s) { s.tokens = index_t{1} << 48, s.heads = s.kv_heads = 1 << 10; }, "overflows");
  const std::string other = told(3, 3, [](pl::thread_communicator& comm, pl::host_backend& backend) {
    pl::attention_shape s = case_of(sequence_split::contiguous(40, 2)).shape;
    pl::workspace<pl::host_backend> space(backend, on_host<float>::working_set(s, 3));
    if (comm.rank() == 2) s.mask = attention_mask::full;
    on_host<float> op(backend, comm, s, space);
  });
  CHECK_MESSAGE(other.find("rank 2 has fp32, tokens 20, heads 4") != std::string::npos, other);
  const std::string room = told(2, 2, [](pl::thread_communicator& comm, pl::host_backend& backend) {
    const pl::attention_shape s = case_of(sequence_split::contiguous(40, 2)).shape;
    pl::workspace<pl::host_backend> space(backend, pl::reservation{comm.rank() == 0 ? 100u : 10000000u, 0});
    on_host<float> op(backend, comm, s, space);
  });
  CHECK_MESSAGE(room.find("the workspace has 100 device bytes") != std::string::npos, room);
}

TEST_CASE("where the vote is the caller's, not a word passes, and what does not fit is told here") {
  pl::run_ranks(2, [&](pl::thread_communicator& comm) {
    pl::host_backend backend;
    const pl::attention_shape s = case_of(sequence_split::contiguous(40, 2)).shape;
    pl::workspace<pl::host_backend> space(backend, on_host<float>::working_set(s, 2));
    const on_host<float> op(backend, comm, s, space, pl::voting::left_to_caller);
    CHECK(comm.counters().host_exchanges == 0);
    if (comm.rank() == 1) return;
    pl::attention_shape wrong = s;
    wrong.kv_heads = 3;
    CHECK_THROWS_AS(on_host<float>(backend, comm, wrong, space, pl::voting::left_to_caller),
                    pl::config_error);
  });
}

TEST_CASE("inputs that do not fit or differ are an error on every rank; agreed, on the rank that has them") {
  const auto refused = [](auto change, const char* expected, bool agreed) {
    const std::string text =
        told(3, agreed ? 1 : 3, [&](pl::thread_communicator& comm, pl::host_backend& be) {
          const attention_case c = case_of(sequence_split::balanced(60, 3));
          pl::workspace<pl::host_backend> space(be, on_host<float>::working_set(c.shape, 3));
          on_host<float> op(be, comm, c.shape, space);
          auto stream = be.make_stream("main");
          std::vector<float> q(20 * 96), k(20 * 48);
          std::vector<pl::online_lse> states(80);
          const pl::tile<float> queries{q.data(), 20, 96, 96}, keys{k.data(), 20, 48, 48};
          std::vector<index_t> begins{0, 30, 60};
          pl::attention_saved keep{pl::view<pl::online_lse>{states.data(), 80}};
          pl::tile<float> out = queries;
          sequence_split split = c.split;
          pl::attention_inputs<float> in{queries, keys, keys, &split, {}, {}, agreed};
          if (comm.rank() == 1) change(in, begins, split, keep, out);
          in.cu_seqlens = begins;
          // Agreed, the others would wait for this one: they do not come.
          if (!agreed || comm.rank() == 1) op.forward(stream, in, keep, out);
          be.wait(be.record(stream));
        });
    CHECK_MESSAGE(text.find(expected) != std::string::npos, text);
  };
  using in_t = pl::attention_inputs<float>;
  using list = std::vector<index_t>;
  using saved = pl::attention_saved;
  for (const bool agreed : {false, true}) {
    const auto each = [&](auto change, const char* expected) {
      refused([&](in_t& in, list& begins, sequence_split& split, saved& keep,
                  pl::tile<float>& out) { change(in, begins, split, keep, out); },
              expected, agreed);
    };
    each(
        [](auto&, auto& b, auto&, auto&, auto&) {
          b = {0, 40, 30, 60};
        },
        "rank 1: ring_attention: cu_seqlens must never decrease, but falls from 40 to 30");
    each(
        [](auto&, auto& b, auto&, auto&, auto&) {
          b = {0, 30, 59};
        },
        "the end of cu_seqlens, the tokens of the sequence, must be 60, got 59");
    each(
        [](auto&, auto& b, auto&, auto&, auto&) {
          b = {1, 30, 60};
        },
        "the beginning of cu_seqlens must be 0, got 1");
    each([](auto& in, auto&, auto&, auto&, auto&) { in.split = nullptr; }, "a split must be given");
    each([](auto&, auto&, auto& s, auto&, auto&) { s = sequence_split::balanced(60, 2); },
         "a split must be given: its ranks must be 3, got 2");
    each([](auto&, auto&, auto& s, auto&, auto&) { s = sequence_split::balanced(66, 3); },
         "the rows of this rank's chunks must be at most 20, got 22");
    each([](auto& in, auto&, auto&, auto&, auto&) { in.q.rows = 19; }, "the rows of q must be 20, got 19");
    each([](auto& in, auto&, auto&, auto&, auto&) { in.k.cols = 96; }, "the columns of k must be 48, got 96");
    each([](auto& in, auto&, auto&, auto&, auto&) { in.v.ld = 40; },
         "the elements from row to row of v must be at least 48, got 40");
    each([](auto& in, auto&, auto&, auto&, auto&) { in.hidden_keys.n = 20; },
         "the hidden keys, of a shape with them, must be 0, got 20");
    each([](auto&, auto&, auto&, auto& keep, auto&) { keep.rows.n = 79; },
         "the rows of saved, for each row and head one, must be at least 80, got 79");
    each([](auto&, auto&, auto&, auto&, auto& out) { out.cols = 95; },
         "the columns of out must be 96, got 95");
  }
  refused(
      [](auto&, auto& b, auto&, auto&, auto&) {
        b = {0, 31, 60};
      },
      "rank 1: ring_attention: split and cu_seqlens are of the whole sequence and must be the same", false);
  refused([](auto&, auto&, auto& s, auto&, auto&) { s = sequence_split::contiguous(60, 3); },
          "differ from those of rank 0", false);
}

TEST_CASE("backward refuses what is not its forward's") {
  const auto refused = [](auto change, const char* expected) {
    const std::string text = told(1, 1, [&](pl::thread_communicator& comm, pl::host_backend& be) {
      attention_case c = case_of(sequence_split::balanced(20, 1));
      pl::workspace<pl::host_backend> space(be, on_host<float>::working_set(c.shape, 1));
      on_host<float> op(be, comm, c.shape, space);
      auto stream = be.make_stream("main");
      std::vector<float> q(20 * 96), k(20 * 48);
      std::vector<pl::online_lse> states(80);
      const pl::tile<float> queries{q.data(), 20, 96, 96}, keys{k.data(), 20, 48, 48};
      pl::attention_saved keep{pl::view<pl::online_lse>{states.data(), 80}};
      sequence_split split = c.split;
      const std::vector<index_t> begins{0, 20};
      pl::attention_inputs<float> in{queries, keys, keys, &split, begins};
      op.forward(stream, in, keep, queries);
      be.wait(be.record(stream));
      pl::tile<const float> dout = queries;
      pl::attention_gradients<float> to{queries, keys, keys};
      change(in, keep, dout, to);
      op.backward(stream, in, keep, queries, dout, to);
      be.wait(be.record(stream));
    });
    CHECK_MESSAGE(text.find(expected) != std::string::npos, text);
  };
  refused([](auto& in, auto&, auto&, auto&) { in.cu_seqlens = {}; },
          "`saved` is of no forward with this split and these cu_seqlens");
  refused([](auto&, auto& keep, auto&, auto&) { keep.of = 0; }, "`saved` is of no forward");
  refused([](auto&, auto&, auto& dout, auto&) { dout.rows = 3; }, "dout must be (20, 96), got (3, 96)");
  refused([](auto&, auto&, auto&, auto& to) { to.dk.cols = 96; }, "dk must be (20, 48), got (20, 96)");
  refused([](auto&, auto&, auto&, auto& to) { to.dv.ld = 47; },
          "dv must have its rows at least 48 elements apart, got 47");
  refused([](auto& in, auto&, auto&, auto&) { in.k.rows = 3; }, "the rows of k must be 20, got 3");
}
