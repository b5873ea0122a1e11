// SPDX-License-Identifier: Apache-2.0
//
// A dispatch in which one operation of one rank fails: on the host thread that issues it, or where it runs,
// on the caller's stream or the dispatch's own. Every rank must end, with the cause, and hold nothing.
#include "support/dispatch_checks.hpp"
#include "support/faulty_backend.hpp"

#include <plateau/close_step.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace pl = plateau;
using pl::index_t;
using support::dispatch_case, support::faulty_backend;
using place = support::fault_plan::place;

namespace {

// Nobody may be freed by it.
constexpr pl::thread_options options{std::chrono::seconds(60)};

struct outcome {
  std::vector<std::optional<pl::failure>> ends;
  std::vector<const char*> kinds; // of the operations of the rank that may fail
  std::size_t held = 0;           // by all ranks, when all was gone
};
outcome run(const dispatch_case& c, int failed, std::int64_t at, place where) {
  outcome out;
  std::vector<std::size_t> held(c.tokens.size());
  out.ends = pl::run_ranks_collecting(
      c.ranks(),
      [&](pl::thread_communicator& comm) {
        faulty_backend backend;
        const bool mine = comm.rank() == failed;
        if (mine) backend.plan().at = at, backend.plan().where = where;
        const auto note = [&] {
          held[static_cast<std::size_t>(comm.rank())] =
              backend.device().meter().current() + backend.pinned().meter().current();
          if (mine) out.kinds = backend.plan().seen;
        };
        try {
          support::dispatch_rank<float, faulty_backend, pl::thread_communicator> rank(c, backend, comm);
          pl::dispatch_plan p;
          rank.plan(p);
          rank.forward(p);
          rank.backward(p);
          pl::close_step(backend, comm, rank.stream());
        } catch (...) {
          note();
          throw;
        }
        note();
      },
      options);
  for (const std::size_t bytes : held) out.held += bytes;
  return out;
}

void fail_everywhere(const dispatch_case& c, int failed, place where, std::int64_t step) {
  const outcome whole = run(c, failed, -1, where);
  for (const auto& end : whole.ends) REQUIRE_FALSE(end.has_value());
  REQUIRE(std::set<std::string>(whole.kinds.begin(), whole.kinds.end()).size() >= 8);
  for (std::int64_t k = failed; k < static_cast<std::int64_t>(whole.kinds.size()); k += step) {
    CAPTURE(c.shape.slots);
    CAPTURE(failed);
    CAPTURE(k);
    INFO("kind: ", whole.kinds[static_cast<std::size_t>(k)]);
    const outcome with = run(c, failed, k, where);
    for (std::size_t rank = 0; rank < with.ends.size(); ++rank) {
      CAPTURE(rank);
      REQUIRE(with.ends[rank].has_value());
      const pl::failure& end = *with.ends[rank];
      CAPTURE(end.text);
      CHECK(end.text.find(support::fault_plan::text) != std::string::npos);
      if (static_cast<int>(rank) == failed && end.what != pl::failure::kind::collective) continue;
      CHECK(end.what == pl::failure::kind::collective);
      CHECK(end.failed_rank == failed);
    }
    CHECK(with.held == 0);
  }
}

std::vector<dispatch_case> cases() {
  std::vector<dispatch_case> all;
  for (const int slots : {1, 2, 3}) {
    all.push_back(support::dispatch_of({17, 0, 21}, 6, 2, "hot rank"));
    all.back().shape.slots = slots;
    all.back().shape.send_cap_rows = all.back().shape.receive_cap_rows = 9;
  }
  return all;
}

} // namespace

TEST_CASE("P3: an operation that fails on the host thread of one rank reaches every rank") {
  for (const dispatch_case& c : cases())
    for (const int failed : {0, 1, 2}) fail_everywhere(c, failed, place::host, 4);
}
TEST_CASE("P3: so does one that fails where it runs, whichever stream it is on") {
  for (const dispatch_case& c : cases())
    for (const int failed : {0, 1, 2}) fail_everywhere(c, failed, place::stream, 2);
}
