// SPDX-License-Identifier: Apache-2.0
//
// What a dispatch takes: no byte beyond its working set, and of that every byte; slots that know neither
// tokens, nor skew, nor ranks; no allocation from the second call on; the wire bytes that it says. Several
// plans in flight and several operators in one workspace.
#include "support/counted_new.hpp"
#include "support/dispatch_checks.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace pl = plateau;
using pl::index_t;
using support::dispatch_case;

namespace {

const support::on_threads<> threads;
using op = pl::capped_all_to_all<pl::host_backend, pl::thread_communicator, float>;
using rank_type = support::dispatch_rank<float, pl::host_backend, pl::thread_communicator>;
using support::toy_expert;

// All ranks send as much as they can, in several full rounds: `hot` to the experts of rank 0, so that the
// others help it with as many experts as they can hold; otherwise evenly.
dispatch_case full(int ranks, bool hot, int slots) {
  dispatch_case c;
  c.tokens.assign(static_cast<std::size_t>(ranks), 160);
  c.shape.experts = 4 * ranks;
  c.shape.top_k = 2;
  c.shape.widths = {96};
  c.shape.slots = slots;
  c.shape.send_cap_rows = c.shape.receive_cap_rows = 32;
  c.shape.placement.least_piece_rows = 1;
  if (hot) { // in unequal shares, which cannot be dealt without cutting them
    c.expert_of = [](int, index_t t, index_t j) {
      const index_t share = (2 * t + j) % 10;
      return share < 4 ? 0 : share < 7 ? 1 : share < 9 ? 2 : 3;
    };
    return c;
  }
  const int experts = 4 * ranks;
  c.expert_of = [experts](int rank, index_t t, index_t j) {
    return static_cast<int>((rank + 2 * t + j) % experts);
  };
  return c;
}

pl::working_set set_of(const dispatch_case& c, pl::dispatch_pass pass) {
  return op::working_set_of(c.limits(), c.ranks(), toy_expert<pl::host_backend, float>(nullptr, c.width()),
                            pass);
}

struct named_bytes {
  std::string what;
  index_t bytes;
};
void check_lines(const pl::working_set& set, const std::vector<named_bytes>& expected) {
  std::size_t i = 0;
  for (const pl::memory_line& line : set) {
    REQUIRE(i < expected.size());
    CAPTURE(expected[i].what);
    CHECK(line.what == expected[i].what);
    CHECK(line.bytes == static_cast<std::size_t>(expected[i].bytes));
    CHECK((line.kind == (i + 1 == expected.size() && expected[i].what == "rows of each expert"
                             ? pl::memory_kind::pinned_host
                             : pl::memory_kind::device)));
    ++i;
  }
  CHECK(i == expected.size());
}

} // namespace

TEST_CASE("the working set, line by line, is the formula of the documentation") {
  for (const bool ordered : {false, true})
    for (const int slots : {1, 2, 3}) {
      dispatch_case c = full(4, false, slots);
      c.shape.ordered = ordered;
      c.shape.send_cap_rows = 24;
      c.shape.result_width = 70;
      const index_t tokens = 160, routes = 320, experts = 16, in = 96, out = 70, send = 24, receive = 32,
                    foreign = 2, weights = 96;
      const auto grouping =
          static_cast<index_t>(pl::host_backend::group_by_key_scratch_bytes(routes, experts + 1));
      const std::vector<named_bytes> index{{"routes by expert", 4 * routes},
                                           {"place of each route", 4 * routes},
                                           {"first route of each expert", 8 * (experts + 2)}};
      std::vector<named_bytes> plan = index, forward = index, backward = index;
      plan.insert(plan.end(), {{"rows of each expert", 8 * (experts + 2)},
                               {"ids out of range", 8},
                               {"scratch", grouping},
                               {"rows of each expert", 8 * (experts + 2)}});
      if (ordered) {
        forward.push_back({"result of each route", 4 * routes * out});
        backward.push_back({"gradient of each route", 4 * routes * in});
      } else {
        forward.push_back({"sums of tokens", 4 * tokens * out});
        backward.push_back({"sums of tokens", 4 * tokens * in});
      }
      for (int s = 0; s < slots; ++s) {
        forward.insert(forward.end(), {{"route of each row", 4 * send},
                                       {"rows to send", 4 * send * in},
                                       {"rows received", 4 * receive * in},
                                       {"results", 4 * receive * out}});
        backward.insert(backward.end(), {{"route of each row", 4 * send},
                                         {"rows to send", 4 * send * in},
                                         {"rows received", 4 * receive * in},
                                         {"output gradients to send", 4 * send * out},
                                         {"gates to send", 4 * send},
                                         {"output gradients received", 4 * receive * out},
                                         {"gates received", 4 * receive},
                                         {"row gradients", 4 * receive * in},
                                         {"gate gradients", 4 * receive}});
      }
      forward.insert(forward.end(), {{"foreign weights", 4 * foreign * weights}, {"scratch", grouping}});
      backward.insert(backward.end(), {{"foreign weights", 4 * foreign * weights},
                                       {"gradients of foreign weights", 4 * foreign * weights},
                                       {"gradient on its way home", 4 * weights},
                                       {"scratch", std::max(grouping, 4 * receive * in)}});
      check_lines(set_of(c, pl::dispatch_pass::plan), plan);
      check_lines(set_of(c, pl::dispatch_pass::forward), forward);
      check_lines(set_of(c, pl::dispatch_pass::backward), backward);
    }
}

TEST_CASE("what a pass holds is its working set, and after construction nothing is taken") {
  const dispatch_case c = full(3, true, 3);
  threads.run(3, [&](auto& comm, auto& backend) {
    rank_type rank(c, backend, comm);
    pl::dispatch_plan p;
    const std::uint64_t taken = backend.device().meter().allocations(pl::tag::workspace) +
                                backend.pinned().meter().allocations(pl::tag::workspace);
    const auto check = [&](pl::dispatch_pass pass) {
      const pl::working_set set = set_of(c, pass);
      CHECK(backend.device().meter().peak(pl::tag::dispatch).bytes == set.device_bytes());
      CHECK(backend.pinned().meter().peak(pl::tag::dispatch).bytes == set.pinned_bytes());
      backend.device().meter().reset_peaks();
      backend.pinned().meter().reset_peaks();
    };
    rank.plan(p);
    check(pl::dispatch_pass::plan);
    rank.forward(p);
    check(pl::dispatch_pass::forward);
    rank.backward(p);
    check(pl::dispatch_pass::backward);
    CHECK(backend.device().meter().allocations(pl::tag::dispatch) == 0);
    CHECK(backend.pinned().meter().allocations(pl::tag::dispatch) == 0);
    CHECK(backend.device().meter().allocations(pl::tag::workspace) +
              backend.pinned().meter().allocations(pl::tag::workspace) ==
          taken);
    rank.results();
  });
}

namespace {

// A pattern over the whole workspace; where its device memory begins.
template <class Rank, class Backend> const unsigned char* fill_space(Rank& rank, Backend& backend) {
  pl::working_set all(pl::tag::other);
  const auto bytes = static_cast<index_t>(rank.space().device_bytes());
  all.template device<unsigned char>("all", bytes);
  auto open = rank.space().open(all);
  const auto slab = open.template device<unsigned char>(bytes);
  backend.launch(rank.stream(), pl::elements{bytes}, pl::fill<unsigned char>{0xa5}, pl::out(slab));
  return slab.p;
}

// Of each line of a pass, the longest run of bytes that keep the pattern: on the rank where it is shortest.
std::vector<std::pair<std::string, std::size_t>> untouched(const dispatch_case& c, pl::dispatch_pass pass) {
  const pl::working_set set = set_of(c, pass);
  std::vector<std::vector<std::pair<std::string, std::size_t>>> of_rank(c.tokens.size());
  threads.run(c.ranks(), [&](auto& comm, auto& backend) {
    rank_type rank(c, backend, comm);
    pl::dispatch_plan p;
    rank.plan(p);
    const unsigned char* at = fill_space(rank, backend);
    if (pass == pl::dispatch_pass::plan) rank.plan(p);
    if (pass == pl::dispatch_pass::forward) rank.forward(p);
    if (pass == pl::dispatch_pass::backward) rank.backward(p);
    backend.wait(backend.record(rank.stream()));
    for (const pl::memory_line& line : set) {
      if (line.kind != pl::memory_kind::device) continue;
      std::size_t run = 0, longest = 0;
      for (std::size_t i = 0; i < line.bytes; ++i) {
        run = at[i] == 0xa5 ? run + 1 : 0;
        longest = std::max(longest, run);
      }
      of_rank[static_cast<std::size_t>(comm.rank())].emplace_back(line.what, longest);
      at += pl::aligned_bytes(line.bytes);
    }
  });
  auto least = of_rank[0];
  for (const auto& lines : of_rank)
    for (std::size_t i = 0; i < least.size(); ++i)
      least[i].second = std::min(least[i].second, lines[i].second);
  return least;
}

} // namespace

// All tokens there are, to the experts of one rank: every line is then used up, those of foreign experts on
// the ranks that help.
TEST_CASE("the promise is tight: the worst input touches every part of it") {
  for (const int slots : {1, 2, 3})
    for (const bool ordered : {false, true}) {
      CAPTURE(slots);
      CAPTURE(ordered);
      dispatch_case c = full(4, true, slots);
      c.shape.ordered = ordered;
      for (const auto pass :
           {pl::dispatch_pass::plan, pl::dispatch_pass::forward, pl::dispatch_pass::backward}) {
        CAPTURE(static_cast<int>(pass));
        for (const auto& line : untouched(c, pass)) {
          CAPTURE(line.first);
          CHECK(line.second <= 256);
        }
      }
    }
}

TEST_CASE("slots have the same bytes for any tokens, and for 2 to 64 ranks; only index and sums grow") {
  struct parts {
    std::size_t slots = 0, index_and_sums = 0, scratch = 0;
  };
  const toy_expert<pl::host_backend, float> expert(nullptr, 2880);
  const auto split = [&](const pl::dispatch_shape<1>& s, int ranks, pl::dispatch_pass pass) {
    parts p;
    for (const pl::memory_line& line : op::working_set_of(s, ranks, expert, pass)) {
      const std::string what = line.what;
      const bool grows =
          what == "routes by expert" || what == "place of each route" || what == "sums of tokens";
      (what == "scratch" ? p.scratch : grows ? p.index_and_sums : p.slots) += line.bytes;
    }
    return p;
  };
  pl::dispatch_shape<1> s;
  s.experts = 256;
  s.top_k = 8;
  s.widths = {2880};
  s.tokens = 1024;
  for (const auto pass : {pl::dispatch_pass::forward, pl::dispatch_pass::backward}) {
    s.tokens = 1024;
    const std::size_t at_first = split(s, 2, pass).slots;
    for (const index_t tokens : {index_t{1024}, index_t{65536}, index_t{1} << 20})
      for (int ranks = 2; ranks <= 64; ++ranks) {
        s.tokens = tokens;
        const parts p = split(s, ranks, pass);
        CHECK(p.slots == at_first);
        CHECK(p.index_and_sums == static_cast<std::size_t>(tokens * (8 * 8 + 4 * 2880)));
        const std::size_t of_expert = pass == pl::dispatch_pass::backward ? 4096 * 2880 * sizeof(float) : 0;
        CHECK(p.scratch ==
              std::max(of_expert, pl::host_backend::group_by_key_scratch_bytes(tokens * 8, 257)));
      }
  }
  // Where the rounds are bounded, the slots are not.
  s.tokens = 65536;
  s.most_rounds = 8;
  CHECK(split(s, 8, pl::dispatch_pass::forward).slots > static_cast<std::size_t>(s.routes() / 8 * 2880 * 8));
}

TEST_CASE("from the second call on nothing is allocated, whatever its tokens and its skew") {
  for (const int slots : {1, 2, 3}) {
    dispatch_case first = full(3, false, slots), hot = full(3, true, slots), holes = hot;
    first.tokens = {1, 0, 3};
    first.shape = hot.shape;
    holes.expert_of = support::workload("holes", 3, 12, 2);
    dispatch_case most = hot; // the operator is made for this one
    std::atomic<std::uint64_t> before{0}, after{0};
    threads.run(3, [&](auto& comm, auto& backend) {
      rank_type rank(most, backend, comm);
      pl::dispatch_plan p, q;
      const auto together = [&] { comm.host_exchange({}, {}, "together"); };
      rank.turn_to(first);
      rank.plan(p), rank.plan(q);
      rank.forward(p);
      rank.backward(p);
      for (const dispatch_case* c : {&hot, &holes, &hot}) {
        rank.turn_to(*c);
        together();
        if (comm.rank() == 0) before = counted_new::calls.load();
        together();
        rank.plan(p);
        rank.forward(p);
        rank.plan(q);
        rank.backward(p);
        rank.forward(q);
        backend.wait(backend.record(rank.stream()));
        together();
        if (comm.rank() == 0) after = counted_new::calls.load();
        together();
        CHECK(after == before);
      }
    });
  }
}

TEST_CASE("the statistics' wire bytes are those that the communicator has counted") {
  for (const char* name : support::dispatch_workloads) {
    CAPTURE(name);
    const dispatch_case c = support::dispatch_of({30, 0, 25}, 6, 2, name);
    threads.run(3, [&](auto& comm, auto& backend) {
      rank_type rank(c, backend, comm);
      pl::dispatch_plan p;
      rank.plan(p);
      for (const bool backward : {false, true}) {
        const std::uint64_t sent = comm.counters().sent_bytes;
        backward ? rank.backward(p) : rank.forward(p);
        CHECK(rank.exchange().statistics().wire_bytes == comm.counters().sent_bytes - sent);
      }
      backend.wait(backend.record(rank.stream()));
    });
  }
}

namespace {

void check_results(const dispatch_case& c, int r, const support::dispatch_results<float>& mine) {
  const auto expected = support::oracle_of<float>(c, r);
  CHECK(support::same_as_exact(mine.drows, expected.drows));
  CHECK(support::same_as_exact(mine.dgates, expected.dgates));
  CHECK(support::same_as_exact(mine.dweights, expected.dweights));
}

} // namespace

TEST_CASE("several plans in flight: F1 F2 B1 B2 and F1 F2 B2 B1, with other tokens in each") {
  const dispatch_case first = support::dispatch_of({30, 3, 20}, 6, 2, "hot rank");
  dispatch_case second = support::dispatch_of({1, 3, 0}, 6, 2, "spread");
  second.shape = first.shape;
  for (const bool stack : {false, true})
    threads.run(3, [&](auto& comm, auto& backend) {
      const int r = comm.rank();
      rank_type rank(first, backend, comm);
      pl::dispatch_plan plans[2];
      const dispatch_case* cases[] = {&first, &second};
      for (const int i : {0, 1}) {
        rank.turn_to(*cases[i]);
        rank.plan(plans[i]);
        rank.forward(plans[i]);
        CHECK(support::same_as_exact(rank.results().out, support::oracle_of<float>(*cases[i], r).out));
      }
      for (const int i : {stack ? 1 : 0, stack ? 0 : 1}) {
        rank.turn_to(*cases[i]);
        rank.backward(plans[i]);
        check_results(*cases[i], r, rank.results());
      }
    });
}

TEST_CASE("ids that are not those of the plan spoil what the rank itself gets, and touch nothing else") {
  for (const bool ordered : {false, true}) {
    dispatch_case right = support::dispatch_of({30, 25, 20}, 6, 2, "hot rank"), wrong = right;
    right.shape.ordered = ordered;
    wrong.shape = right.shape;
    wrong.expert_of = support::workload("holes", 3, 6, 2);
    threads.run(3, [&](auto& comm, auto& backend) {
      const int r = comm.rank();
      rank_type rank(right, backend, comm);
      pl::dispatch_plan p;
      rank.plan(p);
      if (r == 1) rank.turn_to(wrong);
      rank.forward(p);
      rank.backward(p);
      const auto mine = rank.results();
      if (r == 1) return;
      const auto expected = support::oracle_of<float>(right, r);
      CHECK(support::same_as_exact(mine.out, expected.out));
      CHECK(support::same_as_exact(mine.drows, expected.drows));
      CHECK(support::same_as_exact(mine.dgates, expected.dgates));
    });
  }
}

TEST_CASE("two operators of other shapes in one workspace, in turn") {
  dispatch_case narrow = support::dispatch_of({30, 3, 20}, 6, 2, "hot rank"),
                wide = support::dispatch_of({9, 30, 0}, 5, 3, "spread");
  wide.shape.widths = {37};
  wide.shape.slots = 3;
  threads.run(3, [&](auto& comm, auto& backend) {
    const int r = comm.rank();
    const auto room = [&](const dispatch_case& c) {
      return op::reserve_for(c.limits(), 3, toy_expert<pl::host_backend, float>(nullptr, c.width()));
    };
    rank_type a(narrow, backend, comm), b(wide, backend, comm);
    pl::workspace<pl::host_backend> space(backend, pl::overlay(room(narrow), room(wide)));
    op of_a(backend, comm, narrow.limits(), space, a.expert()),
        of_b(backend, comm, wide.limits(), space, b.expert());
    const auto then = [&](rank_type& from, rank_type& to) {
      backend.wait(to.stream(), backend.record(from.stream()));
    };
    for (int step = 0; step < 2; ++step) {
      pl::dispatch_plan p, q;
      a.reset(), b.reset();
      a.plan_with(of_a, p), then(a, b);
      b.plan_with(of_b, q), then(b, a);
      a.forward_with(of_a, a.expert(), p), then(a, b);
      b.forward_with(of_b, b.expert(), q);
      b.backward_with(of_b, b.expert(), q), then(b, a);
      a.backward_with(of_a, a.expert(), p);
      check_results(narrow, r, a.results());
      check_results(wide, r, b.results());
    }
  });
}
