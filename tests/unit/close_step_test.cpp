// SPDX-License-Identifier: Apache-2.0
//
// How failures on streams reach all ranks is in the communicators' contract suite; here: what closing waits
// for and costs, and which of two failures is told.
#include <plateau/close_step.hpp>

#include <doctest/doctest.h>

#include <plateau/host/backend.hpp>
#include <plateau/run_ranks.hpp>

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

namespace pl = plateau;

TEST_CASE("close_step: what was issued has run, for one host exchange") {
  pl::run_ranks(2, [](auto& comm) {
    pl::host_backend backend;
    auto first = backend.make_stream("first"), second = backend.make_stream("second");
    int ran = 0;
    for (auto* s : {&first, &second})
      backend.host_task(*s, [&ran, s, &first] {
        std::this_thread::sleep_for(std::chrono::milliseconds(s == &first ? 1 : 20));
        if (s != &first) ran = 1;
      });
    pl::close_step(backend, comm, first, second);
    if (ran != 1) throw std::logic_error("a stream was not waited for");
    if (comm.counters().host_exchanges != 1) throw std::logic_error("more than one host exchange");
  });
}

TEST_CASE("close_step: a failure that was latched before is the one that is told") {
  const auto outcomes = pl::run_ranks_collecting(2, [](auto& comm) {
    pl::host_backend backend;
    auto s = backend.make_stream("s");
    if (comm.rank() == 1) {
      backend.host_task(s, [] { throw std::runtime_error("later"); });
      pl::failure bad_label{pl::failure::kind::other, "label 9 of token 4 is out of range"};
      bad_label.operation = "linear cross-entropy";
      comm.latch(bad_label);
    }
    pl::close_step(backend, comm, s);
  });
  for (const auto& o : outcomes) {
    REQUIRE(o.has_value());
    CHECK(o->failed_rank == 1);
    CHECK(o->operation == "linear cross-entropy");
    CHECK(o->text == "label 9 of token 4 is out of range");
  }
}

TEST_CASE("close_step: the failure of a group that has failed already stays as it is") {
  const auto outcomes = pl::run_ranks_collecting(2, [](auto& comm) {
    pl::host_backend backend;
    auto s = backend.make_stream("s");
    int x = 0;
    if (comm.rank() == 1) throw std::runtime_error("the first cause");
    comm.exchange(s, {}, {{&x, sizeof(x), 1}}, "ring");
    pl::close_step(backend, comm, s);
  });
  REQUIRE(outcomes[0].has_value());
  CHECK(outcomes[0]->text == "the first cause");
  CHECK(outcomes[0]->operation == "its own code, before any operation");
}
