// SPDX-License-Identifier: Apache-2.0
//
// Steps of training in which one rank fails: at any operation of its backend, on the host thread or where
// kernels run; or out of memory, while it is made and in its first step; as everyone has it, and with all
// four peaks flattened. Every rank must end, with the cause, and hold nothing afterwards, no thread either.
#include "chosen_peaks.hpp"
#include "support/faulty_backend.hpp"
#include "support/sanitized.hpp"
#include "trainer_on_ranks.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

using moe_backends = test::backends<support::faulty_backend>;
using place = support::fault_plan::place;
using test::training_case;

namespace {

// Nobody may be freed by it.
constexpr plateau::thread_options options{std::chrono::seconds(60)};

training_case small_case(moe::rank_grid grid) {
  training_case c = test::tiny_case(grid);
  c.config.layers = 1;
  c.config.balance_weight = 0.1F;
  c.settings.context = 5;
  c.settings.batch = 2; // so that some rank has nothing to do
  return c;
}

// All four peaks in few operations: two layers, two ranks, one bucket and one tile of everything.
training_case least_case() {
  training_case c = small_case({2, 2});
  c.config.layers = 2;
  c.config.experts = 4;
  c.config.flatten = {true, true, true, true};
  c.config.dispatch = {20, 20, 2, moe::expert_placement::least_loaded, 1};
  c.config.loss = {64, 64, 64, plateau::rotation::activations};
  c.config.optimizer = {1 << 16, 2, plateau::update_on::device, true};
  c.settings.context = 3;
  return c;
}

using outcomes = std::vector<std::optional<plateau::failure>>;
template <class F> outcomes outcomes_of(const training_case& c, moe_backends& on, F body) {
  return test::outcomes_of<float, plateau::thread_communicator, moe::chosen_peaks>(c, on, body, options);
}

outcomes run_steps(const training_case& c, moe_backends& on, int steps) {
  static const moe::corpus text = test::random_text(c.config.vocabulary, 200, 1);
  const moe::token_sampler sampler(text, c.settings.context, 1);
  return outcomes_of(c, on, [&](auto& train) {
    for (int step = 0; step < steps; ++step) {
      train.run_step(sampler, step);
      train.world().close_step();
    }
  });
}

// Of this process; 0 where nobody tells.
std::ptrdiff_t threads() {
  std::error_code none;
  return std::distance(std::filesystem::directory_iterator("/proc/self/task", none), {});
}

// Every rank has ended with the text; those but `failed` know who it was.
void check_ends(const outcomes& ends, int failed, const std::string& text) {
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    CAPTURE(rank);
    REQUIRE(ends[rank].has_value());
    CAPTURE(ends[rank]->text);
    CHECK(ends[rank]->text.find(text) != std::string::npos);
    if (static_cast<int>(rank) == failed && ends[rank]->what != plateau::failure::kind::collective) continue;
    CHECK(ends[rank]->what == plateau::failure::kind::collective);
    CHECK(ends[rank]->failed_rank == failed);
  }
}

// Operations of a rank in some steps that nothing disturbs, making the trainer included.
std::vector<const char*> operations_of(const training_case& c, int rank, int steps) {
  moe_backends on(c.grid.ranks);
  for (const auto& end : run_steps(c, on, steps)) REQUIRE_FALSE(end.has_value());
  CHECK(on.held() == 0);
  return on[rank].plan().seen;
}

// The first and the last operation of each kind, and `more` others.
std::set<std::int64_t> sample_of(const std::vector<const char*>& kinds, int more, std::uint64_t seed) {
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> ends;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const auto k = static_cast<std::int64_t>(i);
    const auto [entry, is_new] = ends.try_emplace(kinds[i], k, k);
    if (!is_new) entry->second.second = k;
  }
  std::set<std::int64_t> sample;
  for (const auto& [kind, both] : ends) sample.insert({both.first, both.second});
  std::mt19937_64 engine(seed);
  for (int i = 0; i < more; ++i) sample.insert(static_cast<std::int64_t>(engine() % kinds.size()));
  return sample;
}

// Every operation; where each takes ten times as long, a tenth.
std::set<std::int64_t> all_or_some(const std::vector<const char*>& kinds, int rank) {
  if (support::sanitized) return sample_of(kinds, 40, static_cast<std::uint64_t>(rank));
  std::set<std::int64_t> all;
  for (std::size_t k = 0; k < kinds.size(); ++k) all.insert(static_cast<std::int64_t>(k));
  return all;
}

void fail_at(const training_case& c, int failed, place where, const std::vector<const char*>& kinds,
             std::int64_t k, int steps) {
  CAPTURE(failed);
  CAPTURE(k);
  INFO("kind: ", kinds[static_cast<std::size_t>(k)]);
  const std::ptrdiff_t threads_before = threads();
  {
    moe_backends on(c.grid.ranks);
    on[failed].plan().at = k;
    on[failed].plan().where = where;
    const auto begun = std::chrono::steady_clock::now();
    const outcomes ends = run_steps(c, on, steps);
    CHECK(std::chrono::steady_clock::now() - begun < options.deadline / 2);
    check_ends(ends, failed, support::fault_plan::text);
    CHECK(on.held() == 0);
  }
  CHECK(threads() == threads_before);
}

void fail_at_any_operation(const training_case& c, int failed, place where, std::uint64_t seed) {
  const auto kinds = operations_of(c, failed, 2);
  REQUIRE(std::set<std::string>(kinds.begin(), kinds.end()).size() >= 10);
  for (const std::int64_t k : sample_of(kinds, 200, seed)) fail_at(c, failed, where, kinds, k, 2);
}

} // namespace

TEST_CASE("P3: a rank that fails on its host thread, at any operation, reaches every rank") {
  fail_at_any_operation(small_case({3, 3}), 0, place::host, 1);
  fail_at_any_operation(small_case({4, 2}), 3, place::host, 2);
}
TEST_CASE("P3: a rank that fails in a kernel, or any other command of its stream, reaches every rank") {
  fail_at_any_operation(small_case({3, 3}), 2, place::stream, 3);
  fail_at_any_operation(small_case({4, 2}), 1, place::stream, 4);
}
TEST_CASE("P3: with all four peaks flattened so does each operation of each rank") {
  const training_case c = least_case();
  for (const int failed : {0, 1}) {
    const auto kinds = operations_of(c, failed, 1);
    REQUIRE(kinds.size() > 500);
    for (const std::int64_t k : all_or_some(kinds, failed)) fail_at(c, failed, place::host, kinds, k, 1);
  }
}
TEST_CASE("P3: and each command of their streams, of either rank in turn") {
  const training_case c = least_case();
  for (const int failed : {0, 1}) {
    const auto kinds = operations_of(c, failed, 1);
    for (const std::int64_t k : all_or_some(kinds, failed)) {
      const std::string_view kind = kinds[static_cast<std::size_t>(k)];
      const bool on_host = kind == "fetch" || kind.ends_with("memory");
      if (k % 2 == failed && !on_host) fail_at(c, failed, place::stream, kinds, k, 1);
    }
  }
}

TEST_CASE("P1: a rank whose memory does not suffice is found when trainers are made, and named on all") {
  const training_case c = test::tiny_case({4, 2});
  const auto shared = test::shared_elements(c.config), expert = test::expert_elements(c.config, c.grid);
  const std::string parameters = "parameters " + std::to_string(4 * (shared + expert));
  for (const int poor : {0, 2}) {
    moe_backends on(4);
    on[poor].device().meter().limit(static_cast<std::size_t>(10 * (shared + expert)));
    bool ran = false;
    const auto ends = outcomes_of(c, on, [&](auto&) { ran = true; });
    CHECK_FALSE(ran);
    for (const auto& end : ends) {
      REQUIRE(end.has_value());
      CAPTURE(end->text);
      CHECK(end->what == plateau::failure::kind::collective);
      CHECK(end->failed_rank == poor);
      CHECK(end->operation == "trainer");
      for (const std::string& part : {"rank " + std::to_string(poor) + ": ", std::string(" asked for "),
                                      std::string("bytes of device memory"), parameters,
                                      "gradients " + std::to_string(4 * (shared + expert))})
        CHECK_MESSAGE(end->text.find(part) != std::string::npos, part);
    }
    CHECK(on.held() == 0);
  }
}

TEST_CASE("P1: a rank out of memory in its first step reaches every rank; the optimizer takes nothing then") {
  const training_case c = test::tiny_case({4, 2});
  const moe::corpus text = test::random_text(c.config.vocabulary, 500, 1);
  const moe::token_sampler sampler(text, c.settings.context, 1);
  const int poor = 1;
  for (const bool all : {false, true}) {
    moe_backends on(4);
    const auto ends = outcomes_of(c, on, [&](auto& train) {
      plateau::meter& meter = train.backend().device().meter();
      if (all || train.world().rank() == poor) meter.limit(meter.current() + 1000);
      train.run_step(sampler, 0);
    });
    for (const auto& end : ends) {
      REQUIRE(end.has_value());
      CAPTURE(end->text);
      CHECK(end->text.find(" asked for ") != std::string::npos);
      CHECK(end->text.find("optimizer " + std::to_string(test::optimizer_bytes(c.config, c.grid, 8))) !=
            std::string::npos);
      if (!all) CHECK(end->text.find("rank 1: ") != std::string::npos);
    }
    CHECK(on.held() == 0);
    for (int rank = 0; rank < 4; ++rank)
      CHECK(on[rank].device().meter().peak(plateau::tag::optimizer).phase == std::string(""));
  }
}

TEST_CASE("the logits ask for tokens x vocabulary x 4 bytes; over the limit every rank says so") {
  training_case c = test::tiny_case({2, 1});
  c.config.vocabulary = 3001;
  c.config.layers = 0; // so that nothing but the loss asks for more
  const moe::corpus text = test::random_text(c.config.vocabulary, 500, 1);
  const moe::token_sampler sampler(text, c.settings.context, 1);
  const auto bytes = std::to_string(c.settings.limits(2).tokens() * 3001 * 4);
  moe_backends on(2);
  const auto ends = outcomes_of(c, on, [&](auto& train) {
    plateau::meter& meter = train.backend().device().meter();
    if (train.world().rank() == 1) meter.limit(meter.current() + 100'000);
    train.run_step(sampler, 0);
  });
  check_ends(ends, 1, "rank 1: vocabulary asked for " + bytes + " bytes of device memory");
  for (const auto& end : ends) CHECK(end->text.find("(in loss)") != std::string::npos);
  CHECK(on.held() == 0);
}

TEST_CASE("trainers that were given different settings do not begin") {
  const training_case c = test::tiny_case({3, 1});
  const auto ends = plateau::run_ranks_collecting(3, [&](plateau::thread_communicator& world) {
    support::faulty_backend backend;
    auto settings = c.settings;
    if (world.rank() == 1) settings.learning_rate *= 1.0000001;
    test::trainer_of<float, support::faulty_backend, plateau::thread_communicator, moe::chosen_peaks> train(
        backend, world, c.config, c.grid, settings);
  });
  check_ends(ends, 1, "rank 1 against rank 0, 2");
}
