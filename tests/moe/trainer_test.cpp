// SPDX-License-Identifier: Apache-2.0
//
// Training in fp32: steps against AdamW in float64 on the reference's gradients, the schedule, clipping,
// steps that are skipped, and state that is saved and resumed.
#include "scratch_folder.hpp"
#include "trainer_on_ranks.hpp"
#include "trainer_reference.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

using moe::index_t;
using moe_test::scratch_folder;
using test::batch_of, test::reference_of, test::reference_run, test::train_reference;
using test::training_case, test::weights_after;

namespace {

const std::vector<moe::rank_grid> grids{{1, 1}, {2, 1}, {2, 2}, {3, 3}, {4, 1}, {4, 2}, {4, 4}};

double distance(const reference::tensors& a, const reference::tensors& b) {
  double squares = 0;
  for (const auto& [name, tensor] : a)
    for (std::size_t i = 0; i < tensor.data.size(); ++i) {
      const double d = tensor.data[i] - b.at(name).data[i];
      squares += d * d;
    }
  return std::sqrt(squares);
}

} // namespace

TEST_CASE("the schedule is the reference's, with a floor of a tenth") {
  for (const auto& [steps, warmup] : {std::pair{100, 10}, {7, 0}, {5, 5}, {1, 0}, {1, 1}, {300, 20}}) {
    moe::training_settings s;
    s.steps = steps;
    s.warmup = warmup;
    s.learning_rate = 3e-3;
    for (std::int64_t step = 0; step < steps; ++step)
      CHECK(s.rate(step) ==
            doctest::Approx(reference::cosine_rate(step, warmup, steps, 3e-3, 3e-4)).epsilon(1e-12));
    if (warmup < steps) CHECK(s.rate(10 * steps) == doctest::Approx(3e-4).epsilon(1e-12));
  }
}

TEST_CASE("D11: a trainer with another shape on one rank: all ranks are told, with both") {
  const training_case c = test::tiny_case();
  const auto outcomes = plateau::run_ranks_collecting(2, [&](plateau::thread_communicator& comm) {
    plateau::host_backend backend;
    moe::model_config shape = c.config;
    if (comm.rank() == 1) shape.layers += 1;
    moe::trainer<plateau::host_backend, plateau::thread_communicator, float> made(backend, comm, shape,
                                                                                  {2, 1}, c.settings);
  });
  const std::string layers = std::to_string(c.config.layers), more = std::to_string(c.config.layers + 1);
  for (const auto& o : outcomes) {
    REQUIRE(o.has_value());
    CHECK(o->operation == "trainer");
    CHECK(o->text.find("rank 1 has fp32, layers " + more) != std::string::npos);
    CHECK(o->text.find("rank 0 has fp32, layers " + layers) != std::string::npos);
  }
}

// Adam divides each gradient by its own size, so that a rounding of a gradient that is nearly zero moves its
// weight by a full step: weights are compared by norm, relative to how far training has moved them.
TEST_CASE("five steps are those of AdamW in float64 with the reference's gradients") {
  for (const float clip : {0.0F, 0.3F}) {
    CAPTURE(clip);
    training_case c = test::tiny_case();
    c.config.balance_weight = clip > 0 ? 0.1F : 0.0F;
    c.settings.adamw.clip = clip;
    c.settings.steps = 5;
    c.settings.warmup = 2;
    const moe::corpus text = test::random_text(c.config.vocabulary, 500, 3);
    const moe::token_sampler sampler(text, c.settings.context, 1);
    const auto begin = weights_after(c, sampler, 0);
    const reference_run expected = train_reference(c, sampler, 5, begin);
    for (const moe::rank_grid grid : {moe::rank_grid{1, 1}, moe::rank_grid{4, 2}}) {
      CAPTURE(grid.ranks);
      c.grid = grid;
      std::vector<moe::step_outcome> outcomes;
      const auto end = weights_after(c, sampler, 5, &outcomes);
      REQUIRE(outcomes.size() == 5);
      for (std::size_t step = 0; step < 5; ++step) {
        CAPTURE(step);
        CHECK(std::fabs(outcomes[step].loss - expected.losses[step]) <= 2e-6 * expected.losses[step]);
        CHECK(std::fabs(outcomes[step].gradient_norm - expected.norms[step]) <= 2e-5 * expected.norms[step]);
      }
      CHECK(distance(end, expected.weights) <= 1e-3 * distance(begin, expected.weights));
    }
  }
}

TEST_CASE("the first step is the same on any number of ranks, its norm counted once for every parameter") {
  training_case c = test::tiny_case();
  const moe::corpus text = test::random_text(c.config.vocabulary, 500, 4);
  const moe::token_sampler sampler(text, c.settings.context, 1);
  std::vector<moe::step_outcome> first;
  std::vector<double> held_out(grids.size());
  for (std::size_t i = 0; i < grids.size(); ++i) {
    c.grid = grids[i];
    test::train_on_ranks<float>(c, [&](auto& train) {
      const double loss = train.held_out_loss(sampler);
      const moe::step_outcome outcome = train.run_step(sampler, 0);
      if (train.world().rank() != 0) return;
      held_out[i] = loss;
      first.push_back(outcome);
    });
    CAPTURE(c.grid.ranks);
    CAPTURE(c.grid.expert_parallel);
    CHECK(first[i].loss == doctest::Approx(first[0].loss).epsilon(1e-6));
    CHECK(first[i].gradient_norm == doctest::Approx(first[0].gradient_norm).epsilon(1e-6));
    CHECK(held_out[i] == doctest::Approx(held_out[0]).epsilon(1e-6));
    REQUIRE(first[i].loads.size() == 2);
    for (std::size_t layer = 0; layer < 2; ++layer)
      CHECK(first[i].loads[layer].rows == first[0].loads[layer].rows);
  }
  // And it is right: that of the reference.
  const auto begin = weights_after({c.config, {}, c.settings, 1, nullptr}, sampler, 0);
  const reference::transformer model(reference_of(c.config), begin);
  const auto held = batch_of(sampler.held_out_sequences(), c.settings.context,
                             [&](index_t i) { return sampler.held_out(i); });
  CHECK(held_out[0] == doctest::Approx(model.forward(held).loss).epsilon(1e-6));
}

TEST_CASE("micro-batches of a step are its batch") {
  training_case c = test::tiny_case({3, 3});
  const moe::corpus text = test::random_text(c.config.vocabulary, 500, 5);
  const moe::token_sampler sampler(text, c.settings.context, 1);
  std::vector<moe::step_outcome> steps;
  for (const index_t accumulate : {1, 2, 5}) {
    c.settings.accumulate = accumulate;
    weights_after(c, sampler, 1, &steps);
    CHECK(steps.back().loss == doctest::Approx(steps[0].loss).epsilon(1e-6));
    CHECK(steps.back().gradient_norm == doctest::Approx(steps[0].gradient_norm).epsilon(1e-6));
    CHECK(steps.back().loads[1].rows == steps[0].loads[1].rows);
  }
}

TEST_CASE("training learns") {
  training_case c = test::tiny_case({2, 2});
  moe::corpus text = test::random_text(c.config.vocabulary, 40, 6);
  for (int i = 0; i < 20; ++i) // a text that repeats itself
    text.tokens.insert(text.tokens.end(), text.tokens.begin(), text.tokens.begin() + 40);
  const moe::token_sampler sampler(text, c.settings.context, 1);
  c.settings.steps = 60;
  std::vector<moe::step_outcome> steps;
  weights_after(c, sampler, 60, &steps);
  CHECK(steps.back().loss < 0.5 * steps.front().loss);
}

TEST_CASE(
    "O7 and O8: a step with an infinite weight or gradient is skipped on every rank; the next recovers") {
  struct poison {
    const char* name;
    int rank; // of the only one that has it; -1: all that hold it
  };
  for (const poison where :
       {poison{"model.layers.0.block_sparse_moe.experts.0.w1.weight", -1}, poison{"lm_head.weight", 1},
        poison{"model.layers.1.post_attention_layernorm.weight", 3}}) {
    CAPTURE(where.name);
    const moe::forced_routing forced(moe::parse_routing("--routing", "balanced"), 12, 2);
    training_case c = test::tiny_case({4, 2});
    c.forced = &forced;
    const moe::corpus text = test::random_text(c.config.vocabulary, 500, 7);
    const moe::token_sampler sampler(text, c.settings.context, 1);
    std::vector<test::state_values> clean(4);
    std::vector<double> losses(4);
    test::train_on_ranks<float>(c, [&](auto& train) {
      const auto rank = static_cast<std::size_t>(train.world().rank());
      for (int step = 0; step < 3; ++step) losses[rank] = train.run_step(sampler, step).loss;
      clean[rank] = test::state_of(train);
    });
    std::vector<std::string> complaints(4);
    test::train_on_ranks<float>(c, [&](auto& train) {
      const auto rank = static_cast<std::size_t>(train.world().rank());
      for (int step = 0; step < 2; ++step) train.run_step(sampler, step);
      plateau::view<float> spoiled; // one element, or none
      for (const moe::parameter_group* group :
           {&train.model().layout().shared, &train.model().layout().expert})
        for (const moe::parameter& p : group->all())
          if (p.name == where.name && (where.rank < 0 || where.rank == static_cast<int>(rank)))
            spoiled = train.optimizer().master(*group, p).sub(5, 1);
      const auto good = support::from_device(train.backend(), train.stream(), spoiled);
      const auto put = [&](auto value_of) {
        support::to_device(train.backend(), train.stream(), spoiled, value_of);
      };
      put([](index_t) { return std::numeric_limits<float>::infinity(); });
      const auto before = test::state_of(train);
      if (std::isfinite(train.run_step(sampler, 2).gradient_norm)) complaints[rank] += "finite norm; ";
      if (!test::same_bits(before, test::state_of(train))) complaints[rank] += "state changed; ";
      put([&](index_t) { return good.front(); });
      const moe::step_outcome again = train.run_step(sampler, 2);
      if (again.loss != losses[rank]) complaints[rank] += "another loss afterwards; ";
      if (!test::same_bits(clean[rank], test::state_of(train)))
        complaints[rank] += "another state afterwards; ";
    });
    for (const std::string& each : complaints) CHECK(each == "");
  }
}

TEST_CASE("O11: saved and resumed, training goes on bit for bit") {
  const scratch_folder folder;
  for (const moe::rank_grid grid : {moe::rank_grid{1, 1}, moe::rank_grid{4, 2}}) {
    const training_case c = test::tiny_case(grid);
    const moe::corpus text = test::random_text(c.config.vocabulary, 500, 8);
    const moe::token_sampler sampler(text, c.settings.context, 1);
    // Steps [first, last) from `from`, or from the seed; saves in `to`.
    const auto run = [&](const std::string& from, std::int64_t first, std::int64_t last,
                         const std::string& to) {
      std::vector<double> losses;
      test::train_on_ranks<float>(c, [&](auto& train) {
        using mover = moe::state_mover<std::remove_reference_t<decltype(train)>>;
        if (!from.empty()) mover(train).load(moe::safetensors_reader(folder.file(from)), true);
        for (std::int64_t step = first; step < last; ++step) {
          const double loss = train.run_step(sampler, step).loss;
          if (train.world().rank() == 0) losses.push_back(loss);
        }
        mover(train).save(folder.file(to), {{"step", std::to_string(last)}});
        train.world().close_step();
      });
      return losses;
    };
    const auto whole = run("", 0, 20, "whole");
    auto parts = run("", 0, 10, "half");
    const auto rest = run("half", 10, 20, "resumed");
    parts.insert(parts.end(), rest.begin(), rest.end());
    CHECK(whole == parts);
    CHECK(moe_test::read_file(folder.file("whole")) == moe_test::read_file(folder.file("resumed")));
    CHECK(moe_test::read_file(folder.file("whole")) != moe_test::read_file(folder.file("half")));
  }
}

TEST_CASE("a state saved by one number of ranks is the same on any other") {
  const scratch_folder folder;
  training_case c = test::tiny_case({4, 2});
  const moe::corpus text = test::random_text(c.config.vocabulary, 500, 9);
  const moe::token_sampler sampler(text, c.settings.context, 1);
  const auto pass_on = [&](const std::string& from, const std::string& to) {
    double loss = 0;
    test::train_on_ranks<float>(c, [&](auto& train) {
      using mover = moe::state_mover<std::remove_reference_t<decltype(train)>>;
      if (from.empty()) {
        train.run_step(sampler, 0);
      } else {
        const moe::safetensors_reader file(folder.file(from));
        moe::check_state(file, c.config, true);
        mover(train).load(file, true);
      }
      mover(train).save(folder.file(to), {{"step", "1"}});
      train.world().close_step();
      const double held_out = train.held_out_loss(sampler);
      if (train.world().rank() == 0) loss = held_out;
    });
    return loss;
  };
  const double loss = pass_on("", "first");
  const std::string bytes = moe_test::read_file(folder.file("first"));
  for (const moe::rank_grid grid : grids) {
    CAPTURE(grid.ranks);
    CAPTURE(grid.expert_parallel);
    c.grid = grid;
    CHECK(pass_on("first", "next") == doctest::Approx(loss).epsilon(1e-6));
    CHECK(moe_test::read_file(folder.file("next")) == bytes);
  }
}

TEST_CASE("memory by tag: weights 4 B, gradients 4 B, optimizer 8 B a parameter") {
  for (const moe::rank_grid grid : grids) test::check_memory<float>(test::tiny_case(grid));
}

TEST_CASE("D8: routes forced onto one rank show in its peak, and only there") {
  training_case c = test::tiny_case({4, 4});
  c.settings.batch = 8;
  const moe::corpus text = test::random_text(c.config.vocabulary, 500, 10);
  const moe::token_sampler sampler(text, c.settings.context, 1);
  std::map<std::string, std::vector<std::size_t>> peaks;
  for (const char* scenario : {"balanced", "all-to-one"}) {
    const moe::forced_routing forced(moe::parse_routing("--routing", scenario), 12, 2);
    c.forced = &forced;
    test::backends<plateau::host_backend> on(4);
    for (const auto& end : test::outcomes_of<float>(c, on, [&](auto& train) { train.run_step(sampler, 0); }))
      CHECK_FALSE(end.has_value());
    for (int rank = 0; rank < 4; ++rank)
      peaks[scenario].push_back(on[rank].device().meter().peak(plateau::tag::dispatch).bytes);
  }
  const auto &even = peaks.at("balanced"), &skewed = peaks.at("all-to-one");
  // Beside what is reserved whatever the routing.
  const auto reserved =
      moe::uncapped_dispatch<plateau::host_backend, plateau::thread_communicator, float>::working_set(
          c.config, c.grid, c.settings.limits(4))
          .device_bytes();
  CHECK(skewed[0] - reserved > 2 * (even[0] - reserved));
  for (std::size_t rank = 1; rank < 4; ++rank) CHECK(skewed[rank] < even[rank]);
}
