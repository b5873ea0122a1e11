// SPDX-License-Identifier: Apache-2.0
//
// What a dispatch refuses. Whatever is wrong on one rank, all ranks end with the cause: none hangs, none goes
// on with what the others do not know of, and nothing is written where it does not belong.
#include "support/dispatch_case.hpp"

#include <plateau/host/backend.hpp>
#include <plateau/run_ranks.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace pl = plateau;
using pl::index_t;
using support::dispatch_case;

namespace {

using communicator = pl::thread_communicator;
using op = pl::capped_all_to_all<pl::host_backend, communicator, float>;

// Fails in its k-th call.
struct failing_expert : support::toy_expert<pl::host_backend, float> {
  using base = support::toy_expert<pl::host_backend, float>;
  using base::base;
  static constexpr const char* text = "the user's expert is broken";

  int fail_at = -1, calls = 0;
  std::size_t more_scratch = 0;

  template <class... A> void forward(A&&... a) {
    if (calls++ == fail_at) throw std::runtime_error(text);
    base::forward(std::forward<A>(a)...);
  }
  template <class... A> void backward(A&&... a) {
    if (calls++ == fail_at) throw std::runtime_error(text);
    base::backward(std::forward<A>(a)...);
  }
  std::size_t forward_scratch_bytes(index_t, index_t) const { return more_scratch; }
};

// What a rank gives to a dispatch; tests change one thing or another.
struct rank_call {
  index_t n, k, w;
  pl::host_backend& backend;
  failing_expert expert;
  pl::workspace<pl::host_backend> space;
  std::vector<std::int32_t> id_values;
  std::vector<float> memory; // of everything else
  pl::host_backend::stream stream;
  op exchange;

  pl::view<const std::int32_t> ids;
  pl::tile<const float> rows, gates, upstream;
  pl::tile<float> out, drows, dgates;
  std::vector<pl::tile<const float>> weights;
  std::vector<pl::tile<float>> gradients;
  pl::dispatch_plan made;

  rank_call(const dispatch_case& c, pl::host_backend& on, communicator& comm,
            std::optional<pl::reservation> room = {})
      : n(c.tokens[static_cast<std::size_t>(comm.rank())]), k(c.shape.top_k), w(c.width()), backend(on),
        expert(&on, w), space(on, room ? *room : op::reserve_for(c.limits(), comm.size(), expert)),
        stream(on.make_stream("main")), exchange(on, comm, c.limits(), space, expert) {
    for (index_t t = 0; t < n; ++t)
      for (index_t j = 0; j < k; ++j) id_values.push_back(c.expert_of(comm.rank(), t, j));
    const index_t local = pl::expert_homes{c.shape.experts, comm.size()}.count(comm.rank());
    memory.resize(static_cast<std::size_t>(4 * n * w + 2 * n * k + 2 * local * w));
    index_t taken = 0;
    const auto take = [&](index_t r, index_t cols) {
      const pl::tile<float> t{memory.data() + taken, r, cols, cols};
      taken += r * cols;
      return t;
    };
    ids = {id_values.data(), static_cast<index_t>(id_values.size())};
    rows = take(n, w), upstream = take(n, w), out = take(n, w), drows = take(n, w);
    gates = take(n, k), dgates = take(n, k);
    for (index_t e = 0; e < local; ++e) weights.push_back(take(1, w)), gradients.push_back(take(1, w));
  }
  void plan() { exchange.plan(stream, ids, made); }
  void forward() { exchange.run(stream, made, ids, {rows}, gates, out, expert, weights); }
  void backward() {
    exchange.run_backward(stream, made, ids, {rows}, gates, upstream, drows, dgates, expert, weights,
                          gradients);
  }
  void wait() { backend.wait(backend.record(stream)); }
};

// Three ranks; most rows go to the last one, so that pieces move; several rounds.
dispatch_case busy(std::vector<index_t> tokens = {20, 9, 14}) {
  dispatch_case c;
  c.tokens = std::move(tokens);
  c.shape.experts = 6;
  c.shape.top_k = 2;
  c.shape.widths = {12};
  c.shape.send_cap_rows = c.shape.receive_cap_rows = 10;
  c.shape.placement.least_piece_rows = 1;
  c.expert_of = [](int rank, index_t t, index_t j) {
    return static_cast<int>(t % 4 != 0 ? 5 - (t + j) % 2 : (rank + t + j) % 6);
  };
  return c;
}

using body = std::function<void(rank_call&, communicator&)>;

// Nobody may be freed by the deadline.
std::vector<std::optional<pl::failure>> ends_of(const dispatch_case& c, const body& each,
                                                std::optional<pl::reservation> room_of_1 = {}) {
  return pl::run_ranks_collecting(
      c.ranks(),
      [&](communicator& comm) {
        pl::host_backend backend;
        rank_call rank(c, backend, comm, comm.rank() == 1 ? room_of_1 : std::optional<pl::reservation>());
        each(rank, comm);
        rank.wait();
        comm.close_step();
      },
      {std::chrono::seconds(60)});
}
// All ranks have ended with the text; those but `failed` know who it was.
void check_ends(const std::vector<std::optional<pl::failure>>& ends, int failed,
                const std::vector<std::string>& texts) {
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    CAPTURE(rank);
    REQUIRE(ends[rank].has_value());
    CAPTURE(ends[rank]->text);
    for (const std::string& text : texts)
      CHECK_MESSAGE(ends[rank]->text.find(text) != std::string::npos, text);
    if (static_cast<int>(rank) == failed && ends[rank]->what != pl::failure::kind::collective) continue;
    CHECK(ends[rank]->what == pl::failure::kind::collective);
    CHECK(ends[rank]->failed_rank == failed);
  }
}
// The collective_error that f throws.
template <class F> pl::failure thrown_by(F f) {
  try {
    f();
  } catch (...) {
    return pl::failure::current();
  }
  FAIL_CHECK("nothing was thrown");
  return {};
}

} // namespace

TEST_CASE("an id out of range is named on every rank, and the communicator stays usable") {
  const dispatch_case c = busy();
  constexpr std::int32_t least = std::numeric_limits<std::int32_t>::min(),
                         most = std::numeric_limits<std::int32_t>::max();
  const auto ends = ends_of(c, [&](rank_call& rank, communicator& comm) {
    for (const std::int32_t bad : {6, -2, least, most})
      for (const std::size_t at : {std::size_t{0}, std::size_t{7}, std::size_t{17}}) {
        CAPTURE(bad);
        CAPTURE(at);
        const std::vector<std::int32_t> right = rank.id_values;
        if (comm.rank() > 0) rank.id_values[at] = bad; // both say so; the lower rank is named
        if (comm.rank() == 1) rank.id_values[17] = 99; // the first one is named
        if (comm.rank() == 1 && at == 17) rank.id_values[17] = bad;
        const pl::failure f = thrown_by([&] { rank.plan(); });
        CHECK(f.what == pl::failure::kind::collective);
        CHECK(f.failed_rank == 1);
        CHECK(f.operation == "dispatch plan");
        CHECK(f.text == "token " + std::to_string(at / 2) + ", slot " + std::to_string(at % 2) +
                            " goes to expert " + std::to_string(bad) +
                            "; expected 0 to 5, or -1 for no route");
        rank.id_values = right;
        rank.ids.p = rank.id_values.data();
        rank.plan();
        rank.forward();
        rank.backward();
        rank.wait();
      }
  });
  for (const auto& end : ends) CHECK_FALSE(end.has_value());
}
TEST_CASE("so are too many tokens, and ids that are no whole number of tokens") {
  const dispatch_case c = busy({20, 20, 20});
  const auto ends = ends_of(c, [&](rank_call& rank, communicator& comm) {
    const auto right = rank.ids;
    const std::vector<std::int32_t> more(42, 0);
    if (comm.rank() == 2) rank.ids = {more.data(), 42};
    pl::failure f = thrown_by([&] { rank.plan(); });
    CHECK(f.what == pl::failure::kind::collective);
    CHECK(f.failed_rank == 2);
    CHECK(f.text.find("21 tokens, but the dispatch was made for at most 20") != std::string::npos);
    rank.ids = right;
    if (comm.rank() == 0) rank.ids = right.sub(0, 39);
    f = thrown_by([&] { rank.plan(); });
    CHECK(f.what == pl::failure::kind::collective);
    CHECK(f.failed_rank == 0);
    CHECK(f.text.find("39 ids are not a whole number of tokens with 2 routes each") != std::string::npos);
    rank.ids = right;
    rank.plan();
    rank.forward();
  });
  for (const auto& end : ends) CHECK_FALSE(end.has_value());
}

TEST_CASE("what does not fit on one rank ends all of them with that rank's words") {
  using change = std::function<void(rank_call&)>;
  struct fault {
    const char* text;
    change make;
    bool forward = true, backward = true;
  };
  const fault faults[] = {
      {"rows (8, 12); expected (9, 12)", [](rank_call& r) { r.rows.rows = 8; }},
      {"rows (9, 11); expected (9, 12)", [](rank_call& r) { r.rows.cols = 11; }},
      {"gates (9, 1); expected (9, 2)", [](rank_call& r) { r.gates.cols = 1; }},
      {"gates (10, 2); expected (9, 2)", [](rank_call& r) { r.gates.rows = 10; }},
      {"the rows of gates must be adjacent", [](rank_call& r) { r.gates.ld = 3; }},
      {"16 ids; the plan was made from 18", [](rank_call& r) { r.ids.n = 16; }},
      {"1 weights; expected 2, 1 for each of the rank's experts", [](rank_call& r) { r.weights.pop_back(); }},
      {"weights 1 has the extents (1, 13); the expert says (1, 12)",
       [](rank_call& r) { r.weights[1].cols = 13; }},
      {"the output (9, 13); expected (9, 12)", [](rank_call& r) { r.out.cols = 13; }, true, false},
      {"output gradients (3, 12); expected (9, 12)", [](rank_call& r) { r.upstream.rows = 3; }, false},
      {"row gradients (9, 1); expected (9, 12)", [](rank_call& r) { r.drows.cols = 1; }, false},
      {"gate gradients (9, 3); expected (9, 2)", [](rank_call& r) { r.dgates.cols = 3; }, false},
      {"the rows of gate gradients must be adjacent", [](rank_call& r) { r.dgates.ld = 4; }, false},
      {"3 gradients; expected 2", [](rank_call& r) { r.gradients.push_back(r.gradients[0]); }, false},
      {"gradients 0 has the extents (2, 12)", [](rank_call& r) { r.gradients[0].rows = 2; }, false},
  };
  for (const fault& f : faults) {
    CAPTURE(f.text);
    for (const bool backward : {false, true}) {
      if (!(backward ? f.backward : f.forward)) continue;
      CAPTURE(backward);
      const auto ends = ends_of(busy(), [&](rank_call& rank, communicator& comm) {
        rank.plan();
        if (comm.rank() == 1) f.make(rank);
        backward ? rank.backward() : rank.forward();
      });
      check_ends(ends, 1, {f.text, std::string("rank 1: dispatch ") + (backward ? "backward" : "forward")});
      for (const int other : {0, 2})
        CHECK(ends[static_cast<std::size_t>(other)]->operation ==
              (backward ? "dispatch backward" : "dispatch forward"));
    }
  }
}
TEST_CASE("weights that may travel must be adjacent, with the first plan as with any other") {
  for (const bool native : {false, true}) {
    dispatch_case c = busy();
    c.expert_of = [](int rank, index_t, index_t) { return 2 * rank; }; // nothing moves
    c.tokens = {10, 10, 10};
    c.shape.placement.policy =
        native ? pl::placement_policy::native : pl::placement_policy::bounded_least_loaded;
    const auto ends = ends_of(c, [&](rank_call& rank, communicator&) {
      rank.plan();
      CHECK(rank.made.pieces.empty());
      for (auto& w : rank.weights) w.ld = 20; // of one row: no matter
      rank.forward();
    });
    for (const auto& end : ends) CHECK_FALSE(end.has_value());
  }
}
TEST_CASE("the others end although the caller of the rank that failed goes on as if nothing was") {
  for (const int what : {0, 1, 2}) {
    CAPTURE(what);
    std::atomic<int> ended{0};
    std::barrier<> made(3);
    const auto ends = ends_of(busy(), [&](rank_call& rank, communicator& comm) {
      made.arrive_and_wait();
      if (comm.rank() != 1) {
        try {
          rank.plan();
          rank.forward();
          rank.backward();
          rank.wait();
          comm.close_step();
        } catch (...) {
          ++ended;
          throw;
        }
        return;
      }
      if (what == 0) rank.id_values.clear(), rank.ids = {nullptr, -2};
      try {
        rank.plan();
        if (what == 1) rank.out.cols = 3;
        rank.expert.fail_at = what == 2 ? 1 : -1;
        rank.forward();
      } catch (const std::exception&) {
      }
      while (ended < 2) std::this_thread::yield();
    });
    check_ends(ends, 1, {what == 0 ? "" : what == 1 ? "the output (9, 3)" : failing_expert::text});
    for (const auto& end : ends) CHECK(end->text.find("no rank completed") == std::string::npos);
  }
}

TEST_CASE("a plan that another dispatch has made is refused where it does not fit") {
  dispatch_case large = busy({40, 30, 30});
  large.shape.placement.foreign_experts = 4;
  large.expert_of = [](int, index_t t, index_t j) { return static_cast<int>(4 + (t + j) % 2); };
  struct other {
    const char* text;
    std::function<void(pl::dispatch_plan&, int rank)> make;
  };
  const other plans[] = {
      {"a plan of 0 ranks and 0 experts; this one is of 3 and 6", [](pl::dispatch_plan& p, int) { p = {}; }},
      {"a plan of 3 ranks and 6 experts; this one is of 3 and 6",
       [](pl::dispatch_plan& p, int) { p.rows.clear(); }},
      {"a plan of 2 ranks and 6 experts; this one is of 3 and 6",
       [](pl::dispatch_plan& p, int) { p.ranks = 2, p.rows.resize(12); }},
      {"a plan of 3 ranks and 7 experts; this one is of 3 and 6",
       [](pl::dispatch_plan& p, int) { p.experts = 7, p.rows.resize(21); }},
      {"a plan in which rank 1 sends 41 rows",
       [](pl::dispatch_plan& p, int) {
         p.rows[6] = 41, p.rows[7] = p.rows[8] = p.rows[9] = p.rows[10] = p.rows[11] = 0;
       }},
      {"would hold 3 experts of other ranks, but has room for 2",
       [](pl::dispatch_plan& p, int) {
         p.pieces = {{0, 2, 1}, {1, 2, 1}, {2, 2, 1}};
       }},
      {"rows of expert 0 are moved, but it has",
       [](pl::dispatch_plan& p, int) {
         p.pieces = {{0, 2, 100}};
       }},
  };
  for (const other& o : plans)
    for (const bool backward : {false, true}) {
      CAPTURE(o.text);
      const auto ends = ends_of(busy(), [&](rank_call& rank, communicator& comm) {
        rank.plan();
        o.make(rank.made, comm.rank());
        backward ? rank.backward() : rank.forward();
      });
      for (const auto& end : ends) {
        REQUIRE(end.has_value());
        CAPTURE(end->text);
        CHECK(end->text.find(o.text) != std::string::npos);
      }
    }
  // One that a dispatch for more tokens and more moved experts has made.
  const auto ends = ends_of(large, [&](rank_call& rank, communicator& comm) {
    rank.plan();
    dispatch_case smaller = busy({20, 9, 14});
    pl::workspace<pl::host_backend> space(rank.backend,
                                          op::reserve_for(smaller.limits(), comm.size(), rank.expert));
    op exchange(rank.backend, comm, smaller.limits(), space, rank.expert);
    exchange.run(rank.stream, rank.made, rank.ids, {rank.rows}, rank.gates, rank.out, rank.expert,
                 rank.weights);
  });
  for (const auto& end : ends) {
    REQUIRE(end.has_value());
    CAPTURE(end->text);
    CHECK(end->text.find("not one of this dispatch, of at most 20 tokens with 2 routes each") !=
          std::string::npos);
  }
}

TEST_CASE("shapes that cannot be are refused by their field, before anything exists") {
  const auto refused = [](const char* field, auto change) {
    CAPTURE(field);
    dispatch_case c = busy();
    pl::dispatch_shape<1> s = c.limits();
    change(s);
    const failing_expert expert(nullptr, 12);
    const pl::failure f =
        thrown_by([&] { static_cast<void>(op::working_set_of(s, 3, expert, pl::dispatch_pass::forward)); });
    CHECK(f.what == pl::failure::kind::config);
    CHECK_MESSAGE(f.text.find(std::string("dispatch_shape.") + field + ": ") != std::string::npos, f.text);
    // One rank alone that is given it: all say so.
    const auto ends = pl::run_ranks_collecting(3, [&](communicator& comm) {
      pl::host_backend backend;
      pl::workspace<pl::host_backend> space(backend, op::reserve_for(c.limits(), 3, expert));
      const op exchange(backend, comm, comm.rank() == 1 ? s : c.limits(), space, expert);
    });
    check_ends(ends, 1, {std::string("dispatch_shape.") + field + ": "});
  };
  refused("send_cap_rows", [](auto& s) { s.send_cap_rows = 0; });
  refused("send_cap_rows", [](auto& s) { s.send_cap_rows = -4; });
  refused("receive_cap_rows", [](auto& s) { s.receive_cap_rows = 0; });
  refused("slots", [](auto& s) { s.slots = 4; });
  refused("slots", [](auto& s) { s.slots = 0; });
  refused("top_k", [](auto& s) { s.top_k = 0; });
  refused("experts", [](auto& s) { s.experts = 0; });
  refused("tokens", [](auto& s) { s.tokens = -1; });
  refused("tokens", [](auto& s) { s.tokens = index_t{1} << 30; });
  refused("widths", [](auto& s) { s.widths = {0}; });
  refused("result_width", [](auto& s) { s.result_width = -1; });
  refused("most_rounds", [](auto& s) { s.most_rounds = -1; });
  refused("placement.foreign_experts", [](auto& s) { s.placement.foreign_experts = -1; });
}
TEST_CASE("D11: ranks that were given different shapes do not begin") {
  const auto refused = [](auto change, const std::vector<std::string>& texts) {
    const dispatch_case c = busy();
    const auto ends = pl::run_ranks_collecting(3, [&](communicator& comm) {
      pl::host_backend backend;
      failing_expert expert(&backend, comm.rank() == 1 && texts.empty() ? 13 : 12);
      pl::dispatch_shape<1> s = c.limits();
      if (comm.rank() == 1) change(s);
      pl::workspace<pl::host_backend> space(backend, op::reserve_for(s, 3, expert));
      const op exchange(backend, comm, s, space, expert);
    });
    check_ends(ends, 1, {"rank 1 against rank 0, 2"});
    check_ends(ends, 1, texts);
  };
  refused([](auto& s) { s.send_cap_rows = 4; }, {"send cap 4", "send cap 10"});
  refused([](auto& s) { s.receive_cap_rows = 3; }, {"receive cap 3", "receive cap 10"});
  refused([](auto& s) { s.slots = 3; }, {"slots 3", "slots 2"});
  refused([](auto& s) { s.tokens = 21; }, {"tokens 21", "tokens 20"});
  refused([](auto& s) { s.experts = 7; }, {"experts 7", "experts 6"});
  refused([](auto& s) { s.top_k = 1; }, {"top_k 1", "top_k 2"});
  refused([](auto& s) { s.most_rounds = 5; }, {"most rounds 5", "most rounds 0"});
  refused([](auto& s) { s.placement.foreign_experts = 1; }, {"foreign experts 1", "foreign experts 2"});
  refused([](auto& s) { s.rounds = pl::round_policy::smooth; }, {"rank 1"});
  refused([](auto& s) { s.order = pl::row_order::strided; }, {"rank 1"});
  refused([](auto& s) { s.ordered = true; }, {"rank 1"});
  refused([](auto& s) { s.placement.least_piece_rows = 7; }, {"rank 1"});
  refused([](auto& s) { s.placement.weight_move_rows = 7; }, {"rank 1"});
  refused([](auto& s) { s.placement.capacity_millionths = 1'100'000; }, {"rank 1"});
  refused([](auto& s) { s.placement.threshold_millionths = 1'100'000; }, {"rank 1"});
  refused([](auto& s) { s.placement.policy = pl::placement_policy::native; }, {"rank 1"});
  refused([](auto&) {}, {}); // an expert of other weights
}

TEST_CASE("an expert of other weights, or of more scratch, than the dispatch was made for") {
  struct other {
    const char* text;
    std::function<void(rank_call&)> make;
  };
  const other experts[] = {
      {"the expert has other weights than the one that the operator was made for",
       [](rank_call& r) { r.expert = failing_expert(&r.backend, 11); }},
      {"bytes of scratch, ", [](rank_call& r) { r.expert.more_scratch = 1 << 20; }},
  };
  for (const other& o : experts) {
    CAPTURE(o.text);
    const auto ends = ends_of(busy(), [&](rank_call& rank, communicator& comm) {
      rank.plan();
      if (comm.rank() == 1) o.make(rank);
      rank.forward();
    });
    check_ends(ends, 1, {o.text, "make an operator for it"});
  }
}

TEST_CASE("a workspace without room is refused by the constructor, on all ranks") {
  const dispatch_case c = busy();
  const failing_expert expert(nullptr, 12);
  const auto need = [&](pl::dispatch_pass pass) {
    return op::working_set_of(c.limits(), 3, expert, pass).device_bytes();
  };
  const std::size_t plan = need(pl::dispatch_pass::plan), forward = need(pl::dispatch_pass::forward),
                    backward = need(pl::dispatch_pass::backward);
  REQUIRE(plan < forward);
  REQUIRE(forward < backward);
  const std::size_t pinned = op::reserve_for(c.limits(), 3, expert).pinned_bytes;
  const auto refused = [&](pl::dispatch_shape<1> limits, pl::reservation room, std::size_t wanted) {
    dispatch_case asked = c;
    asked.shape = limits;
    const auto ends = ends_of(
        asked, [](rank_call&, communicator&) { FAIL_CHECK("was made"); }, room);
    check_ends(ends, 1, {"a pass needs " + std::to_string(wanted), "pinned bytes, but the workspace has "});
  };
  refused(c.shape, {plan - 1, pinned}, plan);
  refused(c.shape, {forward - 1, pinned}, forward);
  refused(c.shape, {backward - 1, pinned}, backward);
  refused(c.shape, {backward, pinned - 1}, plan);
  // Without backward there is no need of its room; one who then calls it is told, and so are the others.
  dispatch_case only_forward = c;
  only_forward.shape.backward = false;
  const auto ends = ends_of(
      only_forward,
      [&](rank_call& rank, communicator& comm) {
        rank.plan();
        rank.forward();
        if (comm.rank() == 1) rank.backward();
      },
      pl::reservation{forward, pinned});
  check_ends(ends, 1, {"shape.backward"});
}

TEST_CASE("the published placement, above what ranks have room for, is refused on all, which go on") {
  dispatch_case c = busy({30, 30, 30});
  c.shape.experts = 15;
  c.shape.placement.policy = pl::placement_policy::published_least_loaded;
  c.shape.placement.foreign_experts = 1;
  c.expert_of = [](int, index_t t, index_t j) { return static_cast<int>((t + j) % 5); }; // of rank 0
  const auto ends = ends_of(c, [&](rank_call& rank, communicator&) {
    const pl::failure f = thrown_by([&] { rank.plan(); });
    CHECK(f.what == pl::failure::kind::config);
    CHECK(f.text.find("experts of other ranks, but has room for 1: raise placement.foreign_experts") !=
          std::string::npos);
    for (std::size_t i = 0; i < rank.id_values.size(); ++i)
      rank.id_values[i] = static_cast<std::int32_t>(i % 15);
    rank.plan();
    rank.forward();
  });
  for (const auto& end : ends) {
    if (end) CAPTURE(end->text);
    CHECK_FALSE(end.has_value());
  }
}

TEST_CASE("P3: an expert that throws on one rank, in any round, forward or backward, ends all ranks") {
  for (const int slots : {1, 2, 3}) {
    dispatch_case c = busy();
    c.shape.slots = slots;
    std::atomic<int> calls{0}; // of rank 1 in one pass
    ends_of(c, [&](rank_call& rank, communicator& comm) {
      rank.plan();
      rank.forward();
      if (comm.rank() == 1) calls = rank.expert.calls;
    });
    REQUIRE(calls > 2);
    for (int at = 0; at < 2 * calls; ++at) {
      CAPTURE(slots);
      CAPTURE(at);
      const auto ends = ends_of(c, [&](rank_call& rank, communicator& comm) {
        if (comm.rank() == 1) rank.expert.fail_at = at;
        rank.plan();
        rank.forward();
        rank.backward();
      });
      check_ends(ends, 1, {failing_expert::text});
      for (const int other : {0, 2})
        CHECK(ends[static_cast<std::size_t>(other)]->operation ==
              (at < calls ? "dispatch forward" : "dispatch backward"));
    }
  }
}
TEST_CASE("P3: so does the work that runs under the transfers") {
  const auto ends = ends_of(busy(), [&](rank_call& rank, communicator& comm) {
    rank.plan();
    rank.exchange.run(rank.stream, rank.made, rank.ids, {rank.rows}, rank.gates, rank.out, rank.expert,
                      rank.weights, [&](auto&) {
                        if (comm.rank() == 2) throw std::runtime_error("the shared expert is broken");
                      });
  });
  check_ends(ends, 2, {"the shared expert is broken"});
}

TEST_CASE("in a group that was split off, ranks are called what they are called outside") {
  const dispatch_case c = busy({20, 9});
  for (const int what : {0, 1, 2}) {
    const auto ends = pl::run_ranks_collecting(3, [&](communicator& world) {
      communicator group = world.split(world.rank() == 0 ? -1 : 0, world.rank());
      if (world.rank() == 0) return;
      pl::host_backend backend;
      rank_call rank(c, backend, group);
      if (world.rank() == 2 && what == 0) rank.id_values[3] = 77;
      rank.plan();
      if (world.rank() == 2 && what == 1) rank.out.cols = 3;
      if (world.rank() == 2 && what == 2) rank.expert = failing_expert(&backend, 11);
      rank.forward();
      rank.wait();
    });
    CHECK_FALSE(ends[0].has_value());
    for (const int r : {1, 2}) {
      const auto& end = ends[static_cast<std::size_t>(r)];
      REQUIRE(end.has_value());
      CAPTURE(end->text);
      if (what == 0 || r == 1) CHECK(end->failed_rank == 2);
      if (what > 0) CHECK(end->text.find("plateau: rank 2: dispatch forward: ") != std::string::npos);
    }
  }
}
