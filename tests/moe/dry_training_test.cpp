// SPDX-License-Identifier: Apache-2.0
//
// Dry and real runs of the training program side by side, in process: the same peaks and the same refusals;
// what is predicted is the same every time.
#include "dry_training.hpp"
#include "host_ranks.hpp"
#include "scratch_folder.hpp"
#include "support/rank_fixtures.hpp"

#include <plateau/dry_run/presets.hpp>
#include <plateau/host/backend.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace pl = plateau;
using moe_test::has;

namespace {

struct workplace {
  moe::corpus text;
  std::ostringstream out;

  workplace() {
    text.name = "numbers";
    text.vocabulary = 23;
    for (int i = 0; i < 900; ++i) text.tokens.push_back((i * i / 3 + i / 7) % 23);
  }
  static moe::options config(const std::string& routing) {
    moe::options o;
    o.ranks = 4;
    o.layers = 2;
    o.hidden = 12;
    o.heads = 2;
    o.kv_heads = 1;
    o.experts = 4;
    o.intermediate = 6;
    o.context = 8;
    o.batch = 7;
    o.accumulate = 2;
    o.steps = 1;
    o.routing = moe::parse_routing("--routing", routing);
    return o;
  }
  moe::training_job job(const moe::options& o) {
    moe::training_job j;
    j.config = o;
    j.text = &text;
    j.machine = pl::h200();
    j.out = &out;
    return j;
  }
  moe::run_result train(const moe::options& o) {
    return moe::run_on_host<pl::host_backend, float>(job(o)).value();
  }
  moe::run_result predict(const moe::options& o) {
    return moe::run_dry_training<pl::host_backend, float>(job(o));
  }
};

void check_same(const std::vector<moe::peak_record>& dry, const std::vector<moe::peak_record>& real) {
  REQUIRE(dry.size() == real.size());
  for (std::size_t i = 0; i < real.size(); ++i) {
    CAPTURE(real[i].rank);
    CAPTURE(real[i].tag);
    CAPTURE(real[i].space);
    CHECK(dry[i].rank == real[i].rank);
    CHECK(dry[i].tag == real[i].tag);
    CHECK(dry[i].space == real[i].space);
    CHECK(dry[i].bytes == real[i].bytes);
    CHECK(dry[i].held_at_peak == real[i].held_at_peak);
    CHECK(dry[i].phase == real[i].phase);
  }
}

template <class F> std::string refusal_of(F f) {
  try {
    f();
  } catch (const pl::collective_error& e) {
    return "rank " + std::to_string(e.failed_rank) + ": " + e.cause;
  }
  return {};
}

} // namespace

TEST_CASE("exact bytes: what moe_train --dry-run shows is what a run of the same shape shows") {
  workplace at;
  for (const std::string routing : {"balanced", "zipf:1.1", "hot:0.75,1", "hot:0.6,3", "all-to-one",
                                    "rotating:0.75,1", "ragged", "zero-rank:2", "zipf:0.7+ragged"}) {
    CAPTURE(routing);
    moe::options o = workplace::config(routing);
    o.expert_parallel = routing[0] == 'z' ? 4 : 2;
    o.balance_weight = routing[0] == 'h' ? 0.1 : 0;
    const moe::run_result real = at.train(o), dry = at.predict(o);
    check_same(dry.peaks, real.peaks);
    check_same(dry.totals, real.totals);
    CHECK(dry.prediction->trouble == "");
    CHECK(dry.prediction->found == 0);
    CHECK(dry.tokens_per_second > 0);
    const bool repeats = routing == "hot:0.75,1" || routing == "rotating:0.75,1";
    CHECK(dry.prediction->routing_note.empty() == !repeats);
    CHECK(dry.losses.empty());
  }
}

TEST_CASE("exact bytes: so it is with the dispatch by rounds, and the promise is what it holds") {
  workplace at;
  for (const std::string routing : {"balanced", "hot:0.75,1", "all-to-one", "zero-rank:2", "zipf:0.7+ragged"})
    for (const auto placement : {moe::expert_placement::native, moe::expert_placement::least_loaded}) {
      CAPTURE(routing);
      moe::options o = workplace::config(routing);
      o.flatten.dispatch = true;
      o.dispatch_cap = {12, 9};
      o.placement = placement;
      o.expert_parallel = routing[0] == 'z' ? 4 : 2;
      const moe::run_result real = at.train(o), dry = at.predict(o);
      check_same(dry.peaks, real.peaks);
      check_same(dry.totals, real.totals);
      CHECK(dry.prediction->trouble == "");
      CHECK(dry.prediction->found == 0);
      for (const moe::peak_record& peak : real.peaks) {
        CHECK(peak.promised.has_value() == (peak.tag == "dispatch"));
        if (peak.promised) CHECK(*peak.promised == peak.bytes);
      }
      for (std::size_t i = 0; i < real.peaks.size(); ++i)
        CHECK(dry.peaks[i].promised == real.peaks[i].promised);
      REQUIRE(real.dispatch.has_value());
      REQUIRE(dry.dispatch.has_value());
      CHECK(real.dispatch->calls == 4); // two layers, two micro-batches
      CHECK(dry.dispatch->rounds == real.dispatch->rounds);
      CHECK(dry.dispatch->wire_bytes == real.dispatch->wire_bytes);
      CHECK(dry.dispatch->moved == real.dispatch->moved);
      CHECK(real.evaluation.empty()); // nothing grows with what is routed
    }
}

TEST_CASE("exact bytes: what the evaluation after training holds is told apart") {
  workplace at;
  moe::options o = workplace::config("balanced");
  // Four tokens a step, to the first five experts: the last ranks have none until they evaluate.
  o.expert_parallel = 4;
  o.experts = 12;
  o.top_k = 1;
  o.intermediate = 64;
  o.context = 2;
  o.batch = 2;
  o.accumulate = 1;
  const moe::run_result real = at.train(o), dry = at.predict(o);
  check_same(dry.peaks, real.peaks);
  check_same(dry.totals, real.totals);
  CHECK(dry.evaluation.empty());
  REQUIRE(!real.evaluation.empty());
  for (const moe::peak_record& peak : real.evaluation) {
    CHECK(peak.phase == "evaluation");
    const auto of_training = std::find_if(real.totals.begin(), real.totals.end(), [&](const auto& total) {
      return total.space == "device" && total.rank == peak.rank;
    });
    REQUIRE(of_training != real.totals.end());
    CHECK(peak.bytes > of_training->bytes);
  }
}

TEST_CASE("P1: a limit on memory is refused in the same words, with data and without") {
  workplace at;
  moe::options o = workplace::config("all-to-one");
  SUBCASE("uncapped") {}
  SUBCASE("by rounds") { o.flatten.dispatch = true; }
  std::uint64_t most = 0;
  for (const moe::peak_record& total : at.predict(o).totals)
    if (total.space == "device") most = std::max(most, total.bytes);
  o.memory_limit_bytes = most;
  CHECK(refusal_of([&] { at.predict(o); }) == "");
  CHECK(refusal_of([&] { at.train(o); }) == "");
  for (const std::uint64_t limit : {most - 1, std::uint64_t{20'000}}) {
    o.memory_limit_bytes = limit;
    const std::string of_limit = " of the limit of " + std::to_string(limit);
    // Several ranks may be equally short, and the first to say so is named, with its own promises: whenever
    // both name the same, all words of the cause are the same.
    const auto rank_of = [](const std::string& text) { return text.substr(0, text.find(" asked for ")); };
    std::map<std::string, std::string> dry; // by rank
    std::string real = refusal_of([&] { at.train(o); });
    for (int tries = 0; tries < 100; ++tries) {
      const std::string text = refusal_of([&] { at.predict(o); });
      CHECK(has(text, " asked for "));
      CHECK(has(text, of_limit));
      CHECK(has(real, of_limit));
      dry[rank_of(text)] = text;
      if (limit != most - 1 || dry.contains(rank_of(real))) break;
      real = refusal_of([&] { at.train(o); });
    }
    if (limit == most - 1)
      CHECK(dry[rank_of(real)] == real); // in construction nothing tells which of several tags asks first
  }
}

TEST_CASE("100 dry runs have the same outcome, whichever threads were faster") {
  workplace at;
  moe::options o = workplace::config("hot:0.6,2+ragged");
  o.perturb = 0.2;
  o.perturb_seed = 5;
  const moe::run_result first = at.predict(o);
  CHECK(first.tokens_per_second > 0);
  for (int i = 1; i < 100; ++i) {
    const moe::run_result again = at.predict(o);
    CHECK(again.tokens_per_second == first.tokens_per_second);
    CHECK(again.prediction->operations == first.prediction->operations);
    check_same(again.peaks, first.peaks);
  }
  o.perturb_seed = 6;
  CHECK(at.predict(o).tokens_per_second != first.tokens_per_second);
}

TEST_CASE("a trace of a dry run has all ranks' kinds, and begins with what is reserved") {
  workplace at;
  moe::options o = workplace::config("zero-rank:1");
  CHECK_FALSE(at.predict(o).trace.has_value());
  o.trace = "somewhere";
  const moe::run_result traced = at.predict(o);
  REQUIRE(traced.trace.has_value());
  CHECK(traced.trace->events.size() > 500);
  CHECK(traced.trace->memory.front().bytes > 0);
  CHECK(std::is_sorted(
      traced.trace->memory.begin(), traced.trace->memory.end(),
      [](const auto& a, const auto& b) { return a.rank < b.rank || (a.rank == b.rank && a.at < b.at); }));
}

TEST_CASE("a size that no scenario gives is an error that names the fetch") {
  const moe::options o = workplace::config("balanced");
  const moe::forced_routing forced(o.routing, o.experts, o.top_k, o.layers, o.ranks);
  const moe::corpus text = moe::detail::no_text(23, o.context);
  const moe::token_sampler sampler(text, o.context, 1);
  using ranks = support::without_data<>;
  const std::string refusal = refusal_of([&] {
    ranks{}.run(4, [&](pl::dry_communicator& world, ranks::backend& backend) {
      moe::trainer<ranks::backend, pl::dry_communicator, float> train(
          backend, world, moe::model_of(o, 23), moe::grid_of(o), moe::settings_of(o), &forced);
      train.initialise(1);
      train.run_step(sampler, 0);
    });
  });
  CHECK(has(refusal, "'routes of each expert'"));
  CHECK(has(refusal, "uncapped_dispatch.hpp"));
  CHECK(has(refusal, "scenario"));
}
