// SPDX-License-Identifier: Apache-2.0
//
// What a dispatch says of its calls: numbers of a case small enough to work out by hand, the caps that it
// keeps where rounds are limited, how long a stream has waited for rows; and what it says where ranks come
// with different plans.
#include "support/dispatch_checks.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace pl = plateau;
using pl::index_t;
using support::dispatch_case;
using support::dispatch_of;

namespace {

const support::on_threads<> threads;
using communicator = pl::thread_communicator;
using rank_type = support::dispatch_rank<float, pl::host_backend, communicator>;

// Two ranks with two experts each, three columns of fp32. Rank 0 has 6 rows for expert 0, its own; rank 1 has
// one for expert 0 and one for expert 3, its own. So rank 0 has 7 rows to compute and rank 1 has 1.
dispatch_case by_hand(pl::placement_policy policy, index_t cap) {
  dispatch_case c = dispatch_of({6, 2}, 4, 1, "all to one");
  c.shape.widths = {3};
  c.shape.send_cap_rows = c.shape.receive_cap_rows = cap;
  c.shape.placement.policy = policy;
  c.expert_of = [](int rank, index_t t, index_t) { return rank == 1 && t == 1 ? 3 : 0; };
  return c;
}
constexpr std::uint64_t row = 3 * sizeof(float), gate = sizeof(float);

} // namespace

TEST_CASE("a case by hand: nothing is moved, two rounds") {
  const dispatch_case c = by_hand(pl::placement_policy::native, 4);
  support::check_dispatch<float>(c, threads);
  const auto found = support::run_dispatch<float>(c, threads);
  const index_t sent[] = {6, 2}, received[] = {7, 1};
  // Out: the row of rank 1 for expert 0; in backward with its gradient and its gate. Home: what comes of it.
  const std::uint64_t forward[] = {row, row}, backward[] = {row + gate, row + row + gate};
  for (const std::size_t r : {0, 1}) {
    CAPTURE(r);
    for (const bool back : {false, true}) {
      const pl::dispatch_statistics& s = back ? found[r].backward : found[r].forward;
      CHECK(s.ranks == 2);
      CHECK(s.rounds == 2);
      CHECK(s.send_cap_rows == 4);
      CHECK(s.receive_cap_rows == 4);
      CHECK(s.all_rows == 8);
      CHECK(s.rows_sent == sent[r]);
      CHECK(s.rows_received == received[r]);
      CHECK(s.segments == 2);
      CHECK(s.groups == 3); // expert 0 in both rounds, expert 3 in one
      CHECK(s.rows_per_group() == 8.0 / 3);
      CHECK(s.moved_experts == 0);
      CHECK(s.largest_native_load == 7);
      CHECK(s.largest_load == 7);
      CHECK(s.native_skew() == 1.75);
      CHECK(s.skew() == 1.75);
      CHECK(s.wire_bytes == (back ? backward[r] : forward[r]));
    }
  }
}
TEST_CASE("the same by hand: three rows of expert 0 are moved, one round") {
  const dispatch_case c = by_hand(pl::placement_policy::bounded_least_loaded, 100);
  support::check_dispatch<float>(c, threads);
  const auto found = support::run_dispatch<float>(c, threads);
  // Rank 1 computes its own row of expert 0 and two of rank 0, and expert 3.
  const index_t sent[] = {6, 2}, received[] = {4, 4};
  // Rank 0 sends two rows and the weights of expert 0, one row of them; rank 1 what comes of the rows, and in
  // backward the gradient of the weights.
  const std::uint64_t forward[] = {2 * row + row, 2 * row},
                      backward[] = {2 * (row + row + gate) + row, 2 * (row + gate) + row};
  for (const std::size_t r : {0, 1}) {
    CAPTURE(r);
    for (const bool back : {false, true}) {
      const pl::dispatch_statistics& s = back ? found[r].backward : found[r].forward;
      CHECK(s.rounds == 1);
      CHECK(s.send_cap_rows == 100);
      CHECK(s.receive_cap_rows == 100);
      CHECK(s.all_rows == 8);
      CHECK(s.rows_sent == sent[r]);
      CHECK(s.rows_received == received[r]);
      CHECK(s.segments == 3);
      CHECK(s.groups == 3);
      CHECK(s.rows_per_group() == 8.0 / 3);
      CHECK(s.moved_experts == 1);
      CHECK(s.largest_native_load == 7);
      CHECK(s.largest_load == 4);
      CHECK(s.native_skew() == 1.75);
      CHECK(s.skew() == 1);
      CHECK(s.wire_bytes == (back ? backward[r] : forward[r]));
    }
  }
}
TEST_CASE("no rows at all: nothing is counted, and skews are those of balance") {
  const auto found = support::run_dispatch<float>(dispatch_of({3, 0}, 4, 2, "nowhere"), threads);
  for (const auto& mine : found) {
    const pl::dispatch_statistics& s = mine.forward;
    CHECK(s.rounds == 0);
    CHECK(s.segments == 0);
    CHECK(s.groups == 0);
    CHECK(s.rows_sent + s.rows_received + s.all_rows == 0);
    CHECK(s.wire_bytes == 0);
    CHECK(s.rows_per_group() == 0);
    CHECK(s.skew() == 1);
    CHECK(s.native_skew() == 1);
    CHECK(s.stall_seconds == 0);
  }
}

TEST_CASE("where rounds are limited: the caps that are kept, and never a round more") {
  struct limited {
    index_t cap, most_rounds, rounds, send, receive;
  };
  // At most 6 rows are sent by a rank and 7 received.
  const limited cases[] = {{1, 1, 1, 6, 7}, {1, 2, 2, 3, 4}, {1, 3, 3, 2, 3}, {1, 7, 7, 1, 1},
                           {1, 6, 6, 1, 2}, {1, 8, 7, 1, 1}, {4, 1, 1, 6, 7}, {4, 2, 2, 4, 4},
                           {4, 5, 2, 4, 4}, {6, 1, 1, 6, 7}, {7, 1, 1, 7, 7}, {100, 3, 1, 100, 100}};
  for (const limited& of : cases) {
    CAPTURE(of.cap);
    CAPTURE(of.most_rounds);
    dispatch_case c = by_hand(pl::placement_policy::native, of.cap);
    c.shape.most_rounds = of.most_rounds;
    support::check_dispatch<float>(c, threads);
    for (const auto& mine : support::run_dispatch<float>(c, threads))
      for (const pl::dispatch_statistics& s : {mine.forward, mine.backward}) {
        CHECK(s.rounds == of.rounds);
        CHECK(s.send_cap_rows == of.send);
        CHECK(s.receive_cap_rows == of.receive);
      }
  }
  for (index_t most = 1; most <= 20; ++most)
    for (const char* name : {"hot rank", "all to one", "spread"}) {
      CAPTURE(most);
      CAPTURE(name);
      dispatch_case c = dispatch_of({40, 1, 23}, 6, 2, name);
      c.shape.send_cap_rows = c.shape.receive_cap_rows = 5;
      c.shape.most_rounds = most;
      for (const auto& mine : support::run_dispatch<float>(c, threads)) {
        CHECK(mine.forward.rounds <= most);
        CHECK(mine.backward.rounds == mine.forward.rounds);
        CHECK(mine.forward.send_cap_rows >= 5);
        CHECK(mine.forward.send_cap_rows <= 80); // of 80 rows that the rank with most sends
      }
    }
}

namespace {

struct raise_flag {
  std::atomic<int>* raised;
  void operator()() const { ++*raised; }
};
// How long the streams of ranks 1 and 2 waited for rank 0, which came `late` after they had begun to.
std::vector<double> stalls(bool measured, int slots, std::chrono::milliseconds late) {
  dispatch_case c = dispatch_of({20, 20, 20}, 6, 2, "balanced");
  c.shape.measure_stalls = measured;
  c.shape.slots = slots;
  std::vector<double> seconds(3);
  std::atomic<int> waiting{0};
  threads.run(3, [&](auto& comm, auto& backend) {
    rank_type rank(c, backend, comm);
    pl::dispatch_plan p;
    rank.plan(p);
    backend.wait(backend.record(rank.stream()));
    if (comm.rank() == 0) {
      while (waiting < 2) std::this_thread::yield();
      std::this_thread::sleep_for(late);
      rank.forward(p);
    } else {
      // In stream order right before the wait for the first rows.
      rank.forward(p, [&](auto& stream) { backend.host_task(stream, raise_flag{&waiting}); });
    }
    backend.wait(backend.record(rank.stream()));
    seconds[static_cast<std::size_t>(comm.rank())] = rank.exchange().statistics().stall_seconds;
  });
  return seconds;
}

} // namespace

TEST_CASE("stalls: who waits for a rank that comes late says how long, where it was asked to") {
  for (const int slots : {1, 2, 3}) {
    CAPTURE(slots);
    const auto found = stalls(true, slots, std::chrono::milliseconds(200));
    // Rows of rank 0 cannot have come earlier; half of it is for the moment between flag and clock.
    for (const std::size_t r : {1, 2}) CHECK(found[r] > 0.1);
    for (const double each : stalls(false, slots, std::chrono::milliseconds(1))) CHECK(each == 0);
  }
}

namespace {

// A rank whose memory lies between guards, so that what is written past it shows.
struct guarded_rank {
  using op = rank_type::op;
  static constexpr index_t guard = 64;
  static constexpr float pattern = 1234.5F;

  index_t n, k, w;
  pl::host_backend& backend;
  support::toy_expert<pl::host_backend, float> expert;
  pl::workspace<pl::host_backend> space;
  std::vector<float> memory, before;
  std::vector<bool> written; // (memory): whether it may be
  pl::host_backend::stream stream;
  op exchange;
  pl::tile<float> rows, gates, upstream, out, drows, dgates;
  std::vector<pl::tile<const float>> weights;
  std::vector<pl::tile<float>> gradients;

  guarded_rank(const dispatch_case& c, pl::host_backend& on, communicator& comm)
      : n(c.tokens[static_cast<std::size_t>(comm.rank())]), k(c.shape.top_k), w(c.width()), backend(on),
        expert(&on, w), space(on, op::reserve_for(c.limits(), comm.size(), expert)),
        stream(on.make_stream("main")), exchange(on, comm, c.limits(), space, expert) {
    const index_t local = pl::expert_homes{c.shape.experts, comm.size()}.count(comm.rank());
    memory.assign(static_cast<std::size_t>(4 * n * w + 2 * n * k + 2 * local * w + (7 + 2 * local) * guard),
                  pattern);
    written.assign(memory.size(), false);
    index_t taken = guard;
    const auto take = [&](index_t r, index_t cols, bool output) {
      const pl::tile<float> t{memory.data() + taken, r, cols, cols};
      std::fill_n(t.p, r * cols, 1.0F);
      std::fill_n(written.begin() + taken, r * cols, output);
      taken += r * cols + guard;
      return t;
    };
    rows = take(n, w, false), upstream = take(n, w, false), gates = take(n, k, false);
    out = take(n, w, true), drows = take(n, w, true), dgates = take(n, k, true);
    for (index_t e = 0; e < local; ++e) {
      weights.push_back(take(1, w, false));
      gradients.push_back(take(1, w, true));
    }
    before = memory;
  }
  static std::vector<std::int32_t> ids_of(const dispatch_case& c, int rank) {
    std::vector<std::int32_t> ids;
    for (index_t t = 0; t < c.tokens[static_cast<std::size_t>(rank)]; ++t)
      for (index_t j = 0; j < c.shape.top_k; ++j) ids.push_back(c.expert_of(rank, t, j));
    return ids;
  }
  static pl::view<const std::int32_t> all_of(const std::vector<std::int32_t>& ids) {
    return {ids.data(), static_cast<index_t>(ids.size())};
  }
  void call(bool back, const pl::dispatch_plan& p, const std::vector<std::int32_t>& ids) {
    if (back)
      exchange.run_backward(stream, p, all_of(ids), {rows}, gates, upstream, drows, dgates, expert, weights,
                            gradients);
    else
      exchange.run(stream, p, all_of(ids), {rows}, gates, out, expert, weights);
  }
  bool rest_is_whole() const {
    for (std::size_t i = 0; i < memory.size(); ++i)
      if (!written[i] && memory[i] != before[i]) return false;
    return true;
  }
};

// Rank 1 comes with the plan of other ids, and with these ids or those; how the ranks end.
std::vector<std::optional<pl::failure>> ends_of(const dispatch_case& c, const dispatch_case& other, bool back,
                                                bool other_ids) {
  return pl::run_ranks_collecting(
      c.ranks(),
      [&](communicator& comm) {
        pl::host_backend backend;
        guarded_rank rank(c, backend, comm);
        const auto ids = guarded_rank::ids_of(c, comm.rank()),
                   others = guarded_rank::ids_of(other, comm.rank());
        const pl::dispatch_plan p = rank.exchange.plan(rank.stream, guarded_rank::all_of(ids)),
                                q = rank.exchange.plan(rank.stream, guarded_rank::all_of(others));
        const bool odd = comm.rank() == 1;
        const auto wait = [&] { backend.wait(backend.record(rank.stream)); };
        try {
          rank.call(back, odd ? q : p, odd && other_ids ? others : ids);
          wait();
          CHECK(rank.rest_is_whole());
          comm.close_step();
        } catch (...) {
          try {
            wait();
          } catch (...) {
          }
          CHECK(rank.rest_is_whole());
          throw;
        }
      },
      {std::chrono::seconds(60)});
}

dispatch_case native(dispatch_case c) {
  c.shape.placement.policy = pl::placement_policy::native;
  return c;
}
dispatch_case all_to(int expert) {
  dispatch_case c = dispatch_of({20, 20, 20}, 6, 2, "spread");
  c.expert_of = [expert](int, index_t, index_t) { return expert; };
  return c;
}

} // namespace

TEST_CASE("ranks with different plans end, all of them, by an error that names both sides") {
  struct pair {
    std::string what;
    dispatch_case c, other;
  };
  const std::vector<index_t> tokens{20, 20, 20};
  const pair pairs[] = {
      {"other counts", dispatch_of(tokens, 6, 2, "spread"), dispatch_of(tokens, 6, 2, "balanced")},
      {"other counts at home", native(dispatch_of(tokens, 6, 2, "spread")),
       native(dispatch_of(tokens, 6, 2, "holes"))},
      {"more rounds", native(dispatch_of(tokens, 6, 2, "balanced")),
       native(dispatch_of(tokens, 6, 2, "all to one"))},
      {"fewer rounds", native(dispatch_of(tokens, 6, 2, "all to one")),
       native(dispatch_of(tokens, 6, 2, "balanced"))},
      {"another rank's expert", native(all_to(0)), native(all_to(5))},
      {"pieces that move", dispatch_of(tokens, 6, 2, "balanced"), dispatch_of(tokens, 6, 2, "all to one")},
      {"another expert of the same home", native(all_to(2)), native(all_to(3))},
      {"no rows", dispatch_of(tokens, 6, 2, "spread"), dispatch_of(tokens, 6, 2, "nowhere")},
      {"rows where there are none", dispatch_of(tokens, 6, 2, "nowhere"),
       dispatch_of(tokens, 6, 2, "spread")}};
  for (const pair& each : pairs)
    for (const bool back : {false, true})
      for (const bool other_ids : {false, true}) {
        CAPTURE(each.what);
        CAPTURE(back);
        CAPTURE(other_ids);
        for (const auto& end : ends_of(each.c, each.other, back, other_ids)) {
          REQUIRE(end.has_value());
          CAPTURE(end->text);
          const auto named = [&](const char* rank) { return end->text.find(rank) != std::string::npos; };
          CHECK(named("rank 1"));
          CHECK((named("rank 0") || named("rank 2")));
        }
      }
}
