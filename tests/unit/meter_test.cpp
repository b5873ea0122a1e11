// SPDX-License-Identifier: Apache-2.0
//
// Metering: what is held by tag, peaks with what was held at that moment and when, limits that refuse with an
// itemised message, and counts that stay exact while several threads charge.
#include <plateau/meter.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace {

namespace pl = plateau;
using pl::tag;

std::size_t held(const pl::peak& p, tag t) { return p.held[static_cast<std::size_t>(t)]; }

TEST_CASE("tags are listed in their order, each with its name") {
  static_assert(pl::tag_count == 9);
  for (std::size_t i = 0; i < pl::tag_count; ++i) CHECK(static_cast<std::size_t>(pl::all_tags[i]) == i);
  CHECK(std::string(pl::name_of(tag::parameters)) == "parameters");
  CHECK(std::string(pl::name_of(tag::vocabulary)) == "vocabulary");
  CHECK(std::string(pl::name_of(tag::workspace)) == "workspace");
  CHECK(std::string(pl::name_of(tag::other)) == "other");
}

TEST_CASE("bytes are counted by tag") {
  pl::meter m("device");
  m.charge(tag::parameters, 100);
  m.charge(tag::activations, 50);
  m.charge(tag::parameters, 7);
  m.release(tag::activations, 20);
  CHECK(m.current() == 137);
  CHECK(m.current(tag::parameters) == 107);
  CHECK(m.current(tag::activations) == 30);
  CHECK(m.current(tag::optimizer) == 0);
  CHECK(m.held()[static_cast<std::size_t>(tag::activations)] == 30);
  CHECK(m.allocations() == 3);
}

TEST_CASE("allocations are counted by tag too; a change of the tag is none") {
  pl::meter m("device");
  m.charge(tag::dispatch, 10);
  m.charge(tag::dispatch, 10);
  m.charge(tag::optimizer, 10);
  m.retag(tag::dispatch, tag::other, 10);
  m.release(tag::dispatch, 10);
  CHECK(m.allocations(tag::dispatch) == 2);
  CHECK(m.allocations(tag::optimizer) == 1);
  CHECK(m.allocations(tag::other) == 0);
  CHECK(m.allocations() == 3);
}

TEST_CASE("a peak knows what was held at its moment, and in which phase") {
  pl::meter m("device");
  m.phase("forward");
  m.charge(tag::parameters, 100);
  m.charge(tag::vocabulary, 300); // total 400
  m.release(tag::vocabulary, 300);
  m.phase("backward");
  m.charge(tag::activations, 350); // total 450: the peak of the total, not of vocabulary
  m.release(tag::activations, 350);
  m.phase("update");
  m.charge(tag::optimizer, 200); // total 300

  CHECK(m.peak().bytes == 450);
  CHECK(std::string(m.peak().phase) == "backward");
  CHECK(held(m.peak(), tag::parameters) == 100);
  CHECK(held(m.peak(), tag::activations) == 350);
  CHECK(held(m.peak(), tag::vocabulary) == 0);
  CHECK(held(m.peak(), tag::optimizer) == 0);

  CHECK(m.peak(tag::vocabulary).bytes == 300);
  CHECK(std::string(m.peak(tag::vocabulary).phase) == "forward");
  CHECK(held(m.peak(tag::vocabulary), tag::parameters) == 100);
  CHECK(m.peak(tag::optimizer).bytes == 200);
  CHECK(std::string(m.peak(tag::optimizer).phase) == "update");
  CHECK(m.peak(tag::dispatch).bytes == 0);
}

TEST_CASE("an equal height later does not move a peak: the first moment counts") {
  pl::meter m("device");
  m.phase("first");
  m.charge(tag::other, 10);
  m.release(tag::other, 10);
  m.phase("second");
  m.charge(tag::other, 10);
  CHECK(std::string(m.peak().phase) == "first");
  CHECK(std::string(m.peak(tag::other).phase) == "first");
}

TEST_CASE("reset_peaks starts again from what is held") {
  pl::meter m("device");
  m.charge(tag::parameters, 40);
  m.charge(tag::dispatch, 500);
  m.release(tag::dispatch, 500);
  m.phase("step 2");
  m.reset_peaks();
  CHECK(m.peak().bytes == 40);
  CHECK(held(m.peak(), tag::parameters) == 40);
  CHECK(std::string(m.peak().phase) == "step 2");
  CHECK(m.peak(tag::dispatch).bytes == 0);
  CHECK(m.peak(tag::parameters).bytes == 40);
  m.charge(tag::dispatch, 5);
  CHECK(m.peak().bytes == 45);
}

TEST_CASE("retag moves bytes between purposes: no total changes, tag peaks do") {
  pl::meter m("device");
  m.charge(tag::workspace, 100);
  m.phase("loss");
  m.retag(tag::workspace, tag::vocabulary, 80);
  CHECK(m.current() == 100);
  CHECK(m.current(tag::workspace) == 20);
  CHECK(m.current(tag::vocabulary) == 80);
  m.retag(tag::vocabulary, tag::workspace, 80);
  CHECK(m.current(tag::workspace) == 100);
  CHECK(m.current(tag::vocabulary) == 0);
  CHECK(m.peak().bytes == 100);
  CHECK(m.peak(tag::vocabulary).bytes == 80);
  CHECK(std::string(m.peak(tag::vocabulary).phase) == "loss");
  CHECK(held(m.peak(tag::vocabulary), tag::workspace) == 20);
  CHECK(m.allocations() == 1);
}

TEST_CASE("a limit refuses what passes it, changes nothing, and says everything") {
  pl::meter m("device", "rank 2");
  m.limit(1000);
  m.phase("forward of layer 3");
  m.charge(tag::parameters, 600);
  m.charge(tag::dispatch, 300);
  std::string text;
  try {
    m.charge(tag::vocabulary, 101);
  } catch (const pl::budget_exceeded& e) {
    text = e.what();
  }
  for (const char* part :
       {"rank 2", "vocabulary asked for 101 bytes", "device memory", "900 of the limit of 1000",
        "forward of layer 3", "parameters 600", "dispatch 300"})
    CHECK_MESSAGE(text.find(part) != std::string::npos, part << " is missing in: " << text);
  CHECK(text.find("optimizer") == std::string::npos); // holds nothing
  CHECK(m.current() == 900);
  CHECK(m.current(tag::vocabulary) == 0);
  CHECK(m.peak().bytes == 900);
  CHECK(m.allocations() == 2);

  m.charge(tag::vocabulary, 100); // exactly the limit
  CHECK(m.current() == 1000);
  CHECK_THROWS_AS(m.charge(tag::other, 1), pl::budget_exceeded);
  m.charge(tag::other, 0);
  m.release(tag::dispatch, 300);
  m.charge(tag::other, 300);
  CHECK(m.current() == 1000);
}

TEST_CASE("a refusal says what each tag holds against its promise, as text and as numbers") {
  pl::meter m("device", "rank 2");
  m.limit(1000);
  m.phase("loss");
  m.expect(tag::parameters, 600);
  m.expect(tag::vocabulary, 40);
  m.expect(tag::dispatch, 250);
  m.expect(tag::checkpoint, 0);
  m.charge(tag::parameters, 600);
  m.charge(tag::dispatch, 300);
  m.charge(tag::other, 50);
  const auto refusal = [&](tag t, std::size_t bytes) {
    try {
      m.charge(t, bytes);
    } catch (const pl::budget_exceeded& e) {
      return e;
    }
    return pl::budget_exceeded("not refused");
  };
  const pl::budget_exceeded e = refusal(tag::vocabulary, 101);
  CHECK(
      std::string(e.what()) ==
      "plateau: rank 2: vocabulary asked for 101 bytes of device memory, but 950 of the limit of 1000 are "
      "held "
      "(in loss): parameters 600 of 600 promised, dispatch 300 of 250 promised, vocabulary 0 of 40 promised, "
      "other 50; with this vocabulary is furthest over its promise, by 61. Raise the limit, or make the "
      "shape "
      "smaller.");
  REQUIRE(e.facts.has_value());
  const pl::budget_facts& f = *e.facts;
  CHECK(f.asked_by == tag::vocabulary);
  CHECK(f.asked == 101);
  CHECK(f.taken == 950);
  CHECK(f.limit == 1000);
  CHECK(f.held == m.held());
  CHECK(f.promised[static_cast<std::size_t>(tag::dispatch)] == 250);
  CHECK(f.promised[static_cast<std::size_t>(tag::other)] == pl::budget_facts::no_promise);
  CHECK(f.over(tag::vocabulary) == 61);
  CHECK(f.over(tag::dispatch) == 50);
  CHECK(f.over(tag::parameters) == 0);
  CHECK(f.over(tag::other) == 0);
  CHECK(f.furthest_over() == tag::vocabulary);
  // Who asks last is not always who has taken too much.
  const pl::budget_exceeded last = refusal(tag::parameters, 60);
  CHECK(last.facts->asked_by == tag::parameters);
  CHECK(last.facts->furthest_over() == tag::parameters);
  m.release(tag::parameters, 100);
  m.expect(tag::parameters, 700);
  CHECK(refusal(tag::parameters, 160).facts->furthest_over() == tag::dispatch);
  m.expect(tag::dispatch, 300);
  CHECK(refusal(tag::parameters, 160).facts->furthest_over() == std::nullopt);
  // The most that can be asked for wraps nothing around.
  CHECK(refusal(tag::dispatch, std::numeric_limits<std::size_t>::max()).facts->over(tag::dispatch) ==
        std::numeric_limits<std::size_t>::max() - 300);
}

TEST_CASE("the numbers of a refusal come through text: a failure, another rank's error, words around it") {
  pl::meter m("pinned host"); // neither a rank nor a phase
  m.limit(10);
  m.expect(tag::optimizer, 7);
  pl::failure f;
  try {
    m.charge(tag::optimizer, 11);
  } catch (...) {
    f = pl::failure::current();
  }
  CHECK(f.what == pl::failure::kind::budget);
  try {
    f.raise();
  } catch (const pl::budget_exceeded& e) {
    REQUIRE(e.facts.has_value());
    CHECK(e.facts->asked == 11);
    CHECK(e.facts->over(tag::optimizer) == 4);
  }
  const pl::collective_error elsewhere(3, "trainer", 9, f.text + " (on stream 'main')");
  REQUIRE(elsewhere.budget().has_value());
  CHECK(elsewhere.budget()->asked_by == tag::optimizer);
  CHECK(elsewhere.budget()->furthest_over() == tag::optimizer);
  // Nothing is made up from a text that is none, or that was cut.
  for (const char* text : {"", "asked for 64 MiB", "rank 1 asked for 64 bytes of device memory",
                           "other asked for 6 bytes of x memory, but 5 of the limit of", " asked for "})
    CHECK(!pl::budget_facts::in(text).has_value());
  for (std::size_t n = 0; n < f.text.find(" Raise the limit"); ++n)
    CHECK(!pl::budget_facts::in(std::string_view(f.text).substr(0, n)).has_value());
}

TEST_CASE(
    "the numbers of a refusal are found whatever a phase is called, and behind words that are like them") {
  pl::meter m("device", "rank 1");
  m.limit(10);
  m.charge(tag::dispatch, 7);
  m.expect(tag::dispatch, 5);
  m.expect(tag::vocabulary, 9);
  for (const char* phase :
       {"layer 3 (backward)", "a): b", ":)", ": other 1.", "is (", "5 of the limit of 6"}) {
    CAPTURE(phase);
    m.phase(phase);
    try {
      m.charge(tag::vocabulary, 4);
      FAIL_CHECK("it was not refused");
    } catch (const pl::budget_exceeded& e) {
      for (const std::string& text :
           {std::string(e.what()), "what 'x asked for 1' began: " + std::string(e.what())}) {
        CAPTURE(text);
        const auto facts = pl::budget_facts::in(text);
        REQUIRE(facts.has_value());
        CHECK(facts->asked_by == tag::vocabulary);
        CHECK(facts->held == m.held());
        CHECK(facts->promised[static_cast<std::size_t>(tag::vocabulary)] == 9);
        CHECK(facts->furthest_over() == tag::dispatch);
      }
    }
  }
}

TEST_CASE("a limit below what is held refuses everything, and no sum overflows") {
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  pl::meter m("pinned host");
  m.charge(tag::other, 10);
  CHECK_THROWS_AS(m.charge(tag::other, most), pl::budget_exceeded);
  CHECK_THROWS_AS(m.charge(tag::other, most - 9), pl::budget_exceeded);
  m.limit(5);
  CHECK_THROWS_AS(m.charge(tag::other, 1), pl::budget_exceeded);
  CHECK(m.current() == 10);
}

TEST_CASE("a reservation counts against the limit, and in no peak before it is committed") {
  pl::meter m("device");
  m.limit(100);
  m.reserve(tag::parameters, 90);
  CHECK(m.current() == 0);
  CHECK_THROWS_AS(m.charge(tag::other, 11), pl::budget_exceeded);
  m.charge(tag::other, 10);
  m.withdraw(90);
  CHECK(m.peak().bytes == 10);
  CHECK(m.peak(tag::parameters).bytes == 0);
  CHECK(m.allocations() == 1);
  m.reserve(tag::parameters, 90);
  m.commit(tag::parameters, 90);
  CHECK(m.current() == 100);
  CHECK(m.peak().bytes == 100);
  CHECK(m.allocations() == 2);
}

TEST_CASE("an observer sees every change, in order, with what the tag holds then") {
  struct notebook : pl::meter_observer {
    std::vector<std::string> lines;
    void held(tag t, std::size_t bytes) noexcept override {
      lines.push_back(std::string(pl::name_of(t)) + " " + std::to_string(bytes));
    }
    void phase(const char* name) noexcept override { lines.push_back(name); }
  } seen;
  pl::meter m("device");
  m.limit(200);
  m.charge(tag::parameters, 60);
  m.phase("forward");
  m.observe(&seen); // begins with what is so already
  m.charge(tag::workspace, 40);
  m.reserve(tag::other, 50); // not held, so nothing is seen
  m.withdraw(50);
  CHECK_THROWS_AS(m.charge(tag::other, 101), pl::budget_exceeded);
  m.retag(tag::workspace, tag::dispatch, 30);
  m.phase("backward");
  m.release(tag::parameters, 60);
  CHECK(seen.lines == std::vector<std::string>{"parameters 60", "forward", "workspace 40", "workspace 10",
                                               "dispatch 30", "backward", "parameters 0"});
  m.observe(nullptr);
  m.release(tag::dispatch, 30);
  m.phase("after");
  CHECK(seen.lines.size() == 7);
}

TEST_CASE("threads charge and release at once: nothing is lost, and the limit holds at every moment") {
  constexpr std::size_t limit = 4 * 64;
  constexpr int rounds = 2000;
  pl::meter m("device");
  m.limit(limit);
  std::vector<std::thread> threads;
  std::vector<int> granted(4, 0);
  for (std::size_t id = 0; id < granted.size(); ++id)
    threads.emplace_back([&m, &count = granted[id], t = pl::all_tags[id]] {
      for (int i = 0; i < rounds; ++i) {
        try {
          m.charge(t, 100);
        } catch (const pl::budget_exceeded&) {
          continue;
        }
        ++count;
        m.retag(t, tag::workspace, 100);
        m.release(tag::workspace, 100);
      }
    });
  std::size_t seen = 0;
  for (int i = 0; i < rounds; ++i) seen = std::max(seen, m.peak().bytes);
  for (std::thread& t : threads) t.join();
  CHECK(m.current() == 0);
  for (const tag t : pl::all_tags) CHECK(m.current(t) == 0);
  CHECK(seen <= limit);
  CHECK(m.peak().bytes <= 200); // two fit, a third does not
  CHECK(m.peak().bytes >= 100);
  CHECK(m.allocations() == static_cast<std::uint64_t>(granted[0] + granted[1] + granted[2] + granted[3]));
}

} // namespace
