// SPDX-License-Identifier: Apache-2.0
//
// A traced communicator records its exchanges on their streams and its host exchanges as waits, in whatever
// group; what has no bytes leaves nothing.
#include <plateau/checks.hpp>
#include <plateau/close_step.hpp>
#include <plateau/collectives.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/resource.hpp>
#include <plateau/run_ranks.hpp>
#include <plateau/trace/traced_communicator.hpp>

#include <contract/archetype_communicator.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace {

namespace pl = plateau;
using pl::trace_kind;
using backend_t = pl::traced_backend<pl::host_backend>;
using communicator_t = pl::traced_communicator<pl::thread_communicator, backend_t>;
static_assert(pl::communicator<communicator_t, backend_t>);
static_assert(pl::check_communicator<communicator_t, backend_t>());

// Of one that has what the concept asks for, and no more.
using bare_backend = pl::traced_backend<archetypes::archetype_backend>;
using bare_communicator = pl::traced_communicator<archetypes::archetype_communicator, bare_backend>;
static_assert(pl::communicator<bare_communicator, bare_backend>);
template <class C> constexpr bool leaves = requires(C& c) { c.leave(); };
static_assert(leaves<communicator_t> && !leaves<bare_communicator>);

} // namespace

TEST_CASE("exchanges of two ranks, and of a group split from them") {
  const auto origin = pl::trace_recorder::clock::now();
  std::vector<std::unique_ptr<pl::trace_recorder>> recorders;
  for (int r = 0; r < 2; ++r) recorders.push_back(std::make_unique<pl::trace_recorder>(r, origin));
  pl::run_ranks(2, [&](pl::thread_communicator& threads) {
    const int me = threads.rank();
    backend_t backend(*recorders[static_cast<std::size_t>(me)]);
    communicator_t comm(threads, backend);
    pl::device_buffer<std::int64_t, backend_t> x(backend.device(), 10, pl::tag::other);
    auto s = backend.make_stream("main");
    auto other = comm.split(0, -me);
    if (other.rank() != 1 - me || other.origin_rank(0) != 1 || other.size() != 2)
      throw pl::config_error("a split of another order");
    comm.exchange(s, {send_to(1 - me, x.first(4)), send_to(me, x.first(2))},
                  {receive_from(1 - me, x.all().sub(4, 4)), receive_from(me, x.all().sub(8, 2))}, "rows");
    other.exchange(s, {send_to(other.rank(), x.first(0))}, {}, "nothing");
    std::array<std::int64_t, 2> all{};
    const std::array<std::int64_t, 1> mine{me};
    other.host_exchange(mine, all, "counts");
    pl::close_step(backend, comm, s);
    if (comm.counters().exchanges != 1 || other.counters().exchanges != 1 || comm.cause())
      throw pl::config_error("the counters are not the communicator's own");
  });
  const pl::trace t = pl::trace_recorder::merge("", {recorders[0].get(), recorders[1].get()});
  for (int r = 0; r < 2; ++r) {
    std::vector<std::string> names;
    for (const pl::trace_event& e : t.events) {
      if (e.rank != r) continue;
      names.push_back(t.streams[e.stream] + ": " + e.name + " " + std::to_string(e.bytes));
      CHECK((e.kind == (e.stream == 0 ? trace_kind::waiting : trace_kind::exchange)));
    }
    std::sort(names.begin(), names.end());
    CHECK(names == std::vector<std::string>{"host: close_step 0", "host: counts 8", "host: split 0",
                                            "host: wait 0", "main: rows 32"});
  }
}
