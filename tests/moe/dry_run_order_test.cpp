// SPDX-License-Identifier: Apache-2.0
//
// Training steps of the model under the order check of the dry run, with one wait left out or one operation
// failing: what is missing is named, and no rank frees what is in flight. And what every combination of
// peaks multiplies and sends.
#include "dry_run_peaks.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace pl = plateau;
using moe::index_t;

namespace {

// Two steps of four ranks in two expert groups, with all parts of the model.
test::forced_case small_case(const moe::flatten_set& flatten = {}) {
  test::forced_case c;
  c.scenario = "hot:0.75,1+ragged";
  c.of = test::tiny_case({4, 2});
  c.of.config.experts = 4;
  c.of.config.balance_weight = 0.1F;
  c.of.config.flatten = flatten;
  c.of.config.loss = {8, 16, 64, pl::rotation::activations};                // where it has no logits
  c.of.config.dispatch = {6, 6, 2, moe::expert_placement::least_loaded, 1}; // where it goes by rounds
  c.of.settings.context = 5;
  c.of.settings.accumulate = 2;
  c.of.settings.batch = 10;
  const auto routing = moe::parse_routing("--routing", c.scenario);
  c.of.settings.shares = routing.shares;
  c.routing = std::make_shared<moe::forced_routing>(routing, 4, 2, 2, 4);
  c.of.forced = c.routing.get();
  return c;
}

// All four peaks, in as few operations as there can be with two layers and two ranks.
test::forced_case least_case(index_t accumulate) {
  test::forced_case c;
  c.scenario = "hot:0.75,1";
  c.of = test::tiny_case({2, 2});
  c.of.config.experts = 4;
  c.of.config.flatten = {true, true, true, true};
  c.of.config.dispatch = {20, 20, 2, moe::expert_placement::least_loaded, 1};
  c.of.config.loss = {64, 64, 64, pl::rotation::activations};
  c.of.config.optimizer = {1 << 16, 2, pl::update_on::device, true};
  c.of.settings.context = 3;
  c.of.settings.accumulate = accumulate;
  c.of.settings.batch = 2 * accumulate;
  c.routing = std::make_shared<moe::forced_routing>(moe::parse_routing("--routing", c.scenario), 4, 2, 2, 2);
  c.of.forced = c.routing.get();
  return c;
}

struct outcome {
  pl::dry_ranks ran;
  std::vector<std::size_t> left;    // bytes that each rank held at its end
  std::vector<pl::counters> worked; // of each rank's backend
};

// `evaluates`: the held-out loss behind each step, and all within the bytes that a step promises.
outcome run_steps(const test::forced_case& c, pl::dry_options faults, int steps, bool evaluates = false) {
  static const moe::corpus text = test::random_text(13, 300, 1);
  const moe::token_sampler sampler(text, c.of.settings.context, 1);
  const moe::dry_routing routing = test::routing_of(c);
  faults.scenario = [&](const pl::dry_fetch& fetch) { return routing.answer(fetch); };
  outcome out;
  out.left.resize(static_cast<std::size_t>(c.of.grid.ranks));
  out.worked.resize(out.left.size());
  const support::without_data<> on{faults, &out.ran};
  on.run(c.of.grid.ranks, [&](pl::dry_communicator& world, pl::dry_run<pl::host_backend>& backend) {
    const auto note = [&] {
      out.left[static_cast<std::size_t>(world.rank())] =
          backend.device().meter().current() + backend.pinned().meter().current();
      out.worked[static_cast<std::size_t>(world.rank())] = backend.counters();
    };
    if (evaluates)
      backend.device().meter().limit(
          moe::step_promise_of<pl::dry_run<pl::host_backend>, pl::dry_communicator, float, moe::chosen_peaks>(
              c.of.config, c.of.grid, c.of.settings, world.rank(), {true})
              .total.device_bytes);
    try {
      test::trainer_of<float, pl::dry_run<pl::host_backend>, pl::dry_communicator, moe::chosen_peaks> train(
          backend, world, c.of.config, c.of.grid, c.of.settings, c.of.forced);
      train.initialise(1);
      for (int step = 0; step < steps; ++step) {
        train.run_step(sampler, step);
        pl::close_step(backend, world, train.stream());
        if (evaluates) train.held_out_loss(sampler);
      }
    } catch (...) {
      note(); // what the rank had made is gone by now
      throw;
    }
    note();
  });
  return out;
}
outcome two_steps(const test::forced_case& c, const pl::dry_options& faults, bool evaluates = false) {
  return run_steps(c, faults, 2, evaluates);
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Leaves out each wait of rank 1 in turn. How many were missed, and how many could be spared, by file.
using by_file = std::map<std::string, int>;
struct waits_left_out {
  by_file missed, spared;
  std::vector<std::string> findings; // the first one of each that was missed
  std::vector<std::string> files;    // of these
  std::uint64_t all = 0;
};

waits_left_out leave_out_each_wait(const test::forced_case& c, bool evaluates = false) {
  waits_left_out out;
  const outcome whole = two_steps(c, {}, evaluates);
  REQUIRE_FALSE(whole.ran.cause.has_value());
  for (const std::string& each : whole.ran.findings()) FAIL_CHECK(each);
  out.all = whole.ran.recorders[1]->waits();
  for (std::uint64_t k = 0; k < out.all; ++k) {
    CAPTURE(k);
    pl::dry_options options;
    options.drop_wait = k;
    options.only_rank = 1;
    const outcome with = two_steps(c, options, evaluates);
    REQUIRE_FALSE(with.ran.cause.has_value());
    for (std::size_t other = 0; other < with.ran.recorders.size(); ++other)
      if (other != 1) CHECK(with.ran.recorders[other]->found() == 0);
    REQUIRE(with.ran.recorders[1]->dropped().has_value());
    const std::string place = with.ran.recorders[1]->dropped()->text(),
                      file = place.substr(place.rfind('/') + 1, place.rfind(':') - place.rfind('/') - 1);
    const auto findings = with.ran.findings();
    if (findings.empty()) {
      ++out.spared[file];
      continue;
    }
    ++out.missed[file];
    out.findings.push_back(findings.front());
    out.files.push_back(file);
  }
  return out;
}

} // namespace

TEST_CASE("F2, F3: every wait of the model that matters is missed where it is left out") {
  const auto out = leave_out_each_wait(small_case());
  for (std::size_t i = 0; i < out.findings.size(); ++i) {
    CAPTURE(out.findings[i]);
    // A fetch reads what a copy may still write; what a drain has guarded goes while somebody may use it.
    const bool freed = out.files[i] == "drain.hpp";
    CHECK(has(out.findings[i], freed ? "the host frees " : " reads what 'copy' (operation "));
    CHECK(has(out.findings[i], freed ? "may still run" : "no event orders them"));
    CHECK(has(out.findings[i], "on stream 'main' at "));
  }
  // In two steps of two micro-batches: a fetch of counts in each of two layers; drains of two layers forward
  // and backward, and of the loss; a fetch of losses at each step's end.
  CHECK(out.missed == by_file{{"uncapped_dispatch.hpp", 8}, {"drain.hpp", 20}, {"trainer.hpp", 2}});
  // Two can be spared in each step: the fetch of the norm waits for the event that the fetch of losses has
  // waited for, and when the step is closed nothing was issued since.
  CHECK(out.spared == by_file{{"trainer.hpp", 2}, {"close_step.hpp", 2}});
  CHECK(out.all == 34);
}

TEST_CASE("F2, F3: so is every wait of the dispatch by rounds") {
  const auto out = leave_out_each_wait(small_case({.dispatch = true}));
  CHECK(out.missed.at("plan_exchange.hpp") == 8); // a fetch of counts in each layer's forward
  CHECK(out.missed.at("drain.hpp") == 4);         // of the loss
  CHECK(out.missed.at("trainer.hpp") == 2);
  // In each of sixteen calls one at its begin and one at its end, and two in each round.
  CHECK(out.missed.at("dispatch_call.hpp") >= 16 * (2 + 2));
  CHECK(out.spared == by_file{{"trainer.hpp", 2}, {"close_step.hpp", 2}});
}

TEST_CASE("F2, F3: so is every wait of the loss without logits") {
  const auto out = leave_out_each_wait(small_case({.vocabulary = true}));
  CHECK(out.missed.at("drain.hpp") == 16); // none of the loss
  // Eleven in each of eight passes around the ring. The first rank has no tokens: two of them wait for its
  // rows.
  CHECK(out.missed.at("ring_reduce.hpp") == 8 * 9);
  const int none = 8 * 2;
  CHECK(out.spared == by_file{{"trainer.hpp", 2}, {"close_step.hpp", 2}, {"ring_reduce.hpp", none}});
}

TEST_CASE("F2, F3: so is every wait of parked inputs that nothing else stands for") {
  const auto out = leave_out_each_wait(small_case({.checkpoint = true}));
  CHECK(out.missed.at("drain.hpp") == 20);
  CHECK(out.missed.at("uncapped_dispatch.hpp") == 8);
  CHECK(out.missed.at("trainer.hpp") == 2);
  // In each of four passes: a copy out behind each of three writers, and two waits for what comes back.
  CHECK(out.missed.at("offload_store.hpp") == 4 * 5);
  // The rest is on one stream.
  CHECK(out.spared == by_file{{"trainer.hpp", 2}, {"close_step.hpp", 2}, {"offload_store.hpp", 18}});
}

TEST_CASE("F2, F3: so is, with all four together, every wait that nothing else stands for") {
  const auto out = leave_out_each_wait(least_case(2));
  // In two steps of two micro-batches: a fetch of counts in each layer's forward; sixteen calls of one round;
  // eight passes around a ring of two; inputs of layers out and back; gradients out, in the second
  // micro-batch in again, and through the ring; three lists of parameters through one bucket each.
  CHECK(out.missed == by_file{{"plan_exchange.hpp", 8},
                              {"dispatch_call.hpp", 16 * 4},
                              {"ring_reduce.hpp", 8 * 7},
                              {"offload_store.hpp", 4 * 7},
                              {"gradient_accumulators.hpp", 22},
                              {"sharded_reduce.hpp", 14},
                              {"staging_pipeline.hpp", 15},
                              {"shard_gather.hpp", 3},
                              {"trainer.hpp", 2}});
  // Beside those at a step's end: a layer's gradients have left before those of the ends, for which the next
  // micro-batch has waited, and all of a step's before its losses were fetched; so have inputs that came back
  // before counts were fetched. Behind the last update nobody reads, and a stream ends where it goes, as that
  // of the constructor.
  CHECK(out.spared == by_file{{"trainer.hpp", 2},
                              {"close_step.hpp", 2},
                              {"gradient_accumulators.hpp", 2 * 2 + 1},
                              {"offload_store.hpp", 10},
                              {"staging_pipeline.hpp", 1},
                              {"shard_gather.hpp", 1},
                              {"sharded_adamw.hpp", 1}});
}

// The evaluations of both steps are held to the promise of a step, too.
TEST_CASE("F2, F3: so is every wait of an evaluation, which is lent what updates and the next step are") {
  const auto steps = leave_out_each_wait(least_case(1)), both = leave_out_each_wait(least_case(1), true);
  const auto more = [](const by_file& in_all, by_file before) {
    by_file out;
    for (const auto& [file, n] : in_all)
      if (n != before[file]) out[file] = n - before[file];
    return out;
  };
  // Two evaluations of two batches, forward only: calls of one round, passes around a ring of two. And who
  // reads behind the last update: two waits of it are missed now.
  CHECK(more(both.missed, steps.missed) == by_file{{"plan_exchange.hpp", 8},
                                                   {"dispatch_call.hpp", 8 * 4},
                                                   {"ring_reduce.hpp", 4 * 7},
                                                   {"offload_store.hpp", 22},
                                                   {"staging_pipeline.hpp", 1},
                                                   {"shard_gather.hpp", 1},
                                                   {"trainer.hpp", 2}});
  // The fetch of the norm, and inputs that nobody reads before counts are fetched.
  CHECK(more(both.spared, steps.spared) == by_file{{"offload_store.hpp", 5}, {"trainer.hpp", 2}});
}

// Fails operation k of rank `failed` in each way: every rank ends with that cause, and nothing leaks.
void fail_at(const test::forced_case& c, std::uint64_t k, int failed, int steps) {
  CAPTURE(failed);
  CAPTURE(k);
  pl::dry_options options;
  options.throw_at = k;
  options.only_rank = failed;
  const outcome with = run_steps(c, options, steps);
  REQUIRE(with.ran.cause.has_value());
  const std::string text = "operation " + std::to_string(k) + " fails, as the dry run was told";
  for (std::size_t rank = 0; rank < with.left.size(); ++rank) {
    CAPTURE(rank);
    const auto& end = with.ran.left_with[rank];
    REQUIRE(end.has_value());
    CAPTURE(end->text);
    CHECK(end->text.find(text) != std::string::npos);
    if (rank != static_cast<std::size_t>(failed)) CHECK(end->failed_rank == failed);
    CHECK(with.left[rank] == 0);
  }
  for (const std::string& each : with.ran.findings()) FAIL_CHECK(each);
  // The timeline reports the failure, not the messages that nobody answers any more.
  const pl::dry::timeline times = pl::predict(with.ran, pl::h200());
  CHECK_FALSE(times.complete);
  CHECK(times.trouble.find(text) != std::string::npos);
}

TEST_CASE(
    "F2: the update has the bytes of backward and of the next forward, and each waits for the one before") {
  test::forced_case c = small_case({true, true, true, true});
  c.of.config.layers = 1;
  c.of.config.hidden = 24;
  c.of.config.optimizer = {5000, 2, pl::update_on::device, true};
  c.of.settings.context = 40;
  c.of.settings.accumulate = 1;
  c.of.settings.batch = 5;
  const outcome whole = two_steps(c, {});
  REQUIRE_FALSE(whole.ran.cause.has_value());
  for (const std::string& each : whole.ran.findings()) FAIL_CHECK(each);
  // "... 'later' at <place> writes what 'earlier' at <place> reads, and no event orders them: ...
  // (workspace)"
  const auto of_update = [](const std::string& operation) { return has(operation, "/staging/"); };
  int update_too_early = 0, update_too_late = 0;
  for (std::uint64_t k = 0; k < whole.ran.recorders[1]->waits(); ++k) {
    pl::dry_options options;
    options.drop_wait = k;
    options.only_rank = 1;
    const outcome with = two_steps(c, options);
    bool early = false, late = false;
    for (const std::string& each : with.ran.findings()) {
      const std::size_t what = each.find(" what '");
      if (what == std::string::npos || !has(each, "(workspace)")) continue;
      const bool later = of_update(each.substr(0, what)), earlier = of_update(each.substr(what));
      early = early || (later && !earlier);
      late = late || (!later && earlier);
    }
    update_too_early += early ? 1 : 0;
    update_too_late += late ? 1 : 0;
  }
  CHECK(update_too_early >= 2); // in each step
  CHECK(update_too_late >= 1);  // between the two
}

TEST_CASE(
    "F2, P3: an operation that fails, whichever it is, ends all ranks with that cause, and nothing leaks") {
  moe::flatten_set flatten;
  SUBCASE("as everyone has it") {}
  SUBCASE("with the dispatch by rounds") { flatten.dispatch = true; }
  SUBCASE("without logits") { flatten.vocabulary = true; }
  SUBCASE("with parked inputs") { flatten.checkpoint = true; }
  const test::forced_case c = small_case(flatten);
  const outcome whole = two_steps(c, {});
  const std::uint64_t operations = whole.ran.recorders[2]->operations();
  REQUIRE(operations > 400);
  const std::uint64_t stride =
      flatten.vocabulary || flatten.checkpoint ? 16 : 1; // the operator's own tests have all of its own
  for (std::uint64_t k = 0; k < operations; k += stride + k % 5) fail_at(c, k, 2, 2);
}

TEST_CASE("F2, P3: with all four together so does each operation of each rank") {
  const test::forced_case c = least_case(1);
  const outcome whole = run_steps(c, {}, 1);
  for (int failed = 0; failed < 2; ++failed) {
    const std::uint64_t operations = whole.ran.recorders[static_cast<std::size_t>(failed)]->operations();
    REQUIRE(operations > 300);
    for (std::uint64_t k = 0; k < operations; ++k) fail_at(c, k, failed, 1);
  }
}

// With every boundary kept: forward, again in backward, and as much for each of a product's two gradients;
// attention's scores once more. Of what is flattened the loss multiplies with the head again, and the
// dispatch leaves out an expert's last product, which its backward does not need.
TEST_CASE("no product but attention's scores goes forward more than twice, in any combination") {
  const test::forced_case plain = small_case();
  const moe::model_config& m = plain.of.config;
  const auto u = [](index_t n) { return static_cast<std::uint64_t>(n); };
  const std::uint64_t tokens = u(plain.of.settings.batch * plain.of.settings.context), layers = u(m.layers),
                      hidden = u(m.hidden), queries = u(m.heads * m.head_size()),
                      keys = u(m.kv_heads * m.head_size()),
                      expert_product = 2 * u(m.top_k) * tokens * hidden * u(m.intermediate),
                      head = 2 * tokens * hidden * u(m.vocabulary),
                      scores = 2 * tokens * u(plain.of.settings.context) * queries,
                      layer = 2 * tokens * hidden * (2 * queries + 2 * keys + u(m.experts)) +
                              3 * expert_product + 2 * scores;
  constexpr std::size_t none = 0, dispatch = 1, vocabulary = 2, checkpoint = 4, optimizer = 8;
  std::vector<std::uint64_t> sent(16);
  for (std::size_t i = 0; i < 16; ++i) {
    const moe::flatten_set flatten{(i & dispatch) != 0, (i & vocabulary) != 0, (i & checkpoint) != 0,
                                   (i & optimizer) != 0};
    CAPTURE(i);
    const outcome whole = run_steps(small_case(flatten), {}, 1);
    REQUIRE_FALSE(whole.ran.cause.has_value());
    for (const std::string& each : whole.ran.findings()) FAIL_CHECK(each);
    std::uint64_t flops = 0;
    for (const pl::counters& each : whole.worked) flops += each.matrix_flops;
    std::uint64_t expected = layers * (4 * layer + scores) + 3 * head;
    if (flatten.vocabulary) expected += head;
    if (flatten.dispatch) expected -= layers * expert_product;
    CHECK(flops == expected);
    for (const pl::dry::rank_times& each : pl::predict(whole.ran, pl::h200()).ranks)
      sent[i] += each.sent_bytes;
  }
  // What one peak adds to what is sent, or saves, does not depend on the others.
  CHECK(sent[dispatch] > sent[none]);
  CHECK(sent[vocabulary] > sent[none]);
  CHECK(sent[checkpoint] == sent[none]);
  CHECK(sent[optimizer] == sent[none]);
  for (std::size_t i = 0; i < 16; ++i) {
    CAPTURE(i);
    std::uint64_t parts = sent[none];
    for (const std::size_t one : {dispatch, vocabulary, checkpoint, optimizer})
      if ((i & one) != 0) parts += sent[one] - sent[none];
    CHECK(sent[i] == parts);
  }
}
