// SPDX-License-Identifier: Apache-2.0
//
// --flatten optimizer against the optimizer on the device: losses, gradient norms and the saved state are the
// same bits, with the state in shards or not, on any ranks, for any buckets and slots, updated on either
// side, also where a step is skipped, experts have no rows, and a run goes on with the other one. And its
// memory: what was promised, and what a dry run says.
#include "dry_run_peaks.hpp"
#include "scratch_folder.hpp"

#include <doctest/doctest.h>

#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace pl = plateau;
using moe::index_t;
using moe_test::scratch_folder;
using test::training_case;

namespace {

// More shared parameters than a few grains of a shard, in little time.
training_case case_of(moe::rank_grid grid) {
  training_case c;
  c.config.layers = 2;
  c.config.hidden = 48;
  c.config.heads = 4;
  c.config.kv_heads = 2;
  c.config.experts = 4;
  c.config.top_k = 2;
  c.config.intermediate = 40;
  c.config.vocabulary = 300;
  c.grid = grid;
  c.settings.context = 5;
  c.settings.batch = 5;
  c.settings.steps = 20;
  c.settings.warmup = 2;
  c.settings.learning_rate = 1e-2;
  return c;
}
moe::optimizer_settings settings(std::size_t bucket, int slots, bool zero1,
                                 pl::update_on where = pl::update_on::device) {
  return {bucket, slots, where, zero1};
}

struct outcome {
  std::vector<double> losses, norms; // of rank 0
  std::string state;                 // the bytes of the file
};
struct journey {
  std::int64_t first = 0, last = 3;
  std::string from, to = "to"; // files
  std::int64_t spoiled = -1;   // a step in which a weight is not finite
};

template <class T> outcome run(const training_case& c, const scratch_folder& folder, const journey& j) {
  outcome out;
  const moe::corpus text = test::random_text(c.config.vocabulary, 500, 8);
  const moe::token_sampler sampler(text, c.settings.context, 1);
  test::train_on_ranks<T, moe::chosen_peaks>(c, [&](auto& train) {
    using mover = moe::state_mover<std::remove_reference_t<decltype(train)>>;
    if (!j.from.empty()) mover(train).load(moe::safetensors_reader(folder.file(j.from)), true);
    const moe::parameter_group& shared = train.model().layout().shared;
    const auto weight = train.model().weights().of(shared, shared[train.model().layout().layers[0].query]);
    for (std::int64_t step = j.first; step < j.last; ++step) {
      std::vector<T> good;
      if (step == j.spoiled) {
        good = support::from_device(train.backend(), train.stream(), weight.sub(5, 1));
        support::to_device(train.backend(), train.stream(), weight.sub(5, 1),
                           [](index_t) { return pl::narrow<T>(std::numeric_limits<float>::infinity()); });
      }
      const moe::step_outcome did = train.run_step(sampler, step);
      if (step == j.spoiled)
        support::to_device(train.backend(), train.stream(), weight.sub(5, 1),
                           [&](index_t) { return good[0]; });
      if (train.world().rank() != 0) continue;
      if (step != j.spoiled) out.losses.push_back(did.loss);
      out.norms.push_back(std::isfinite(did.gradient_norm) ? did.gradient_norm : -1);
    }
    mover(train).save(folder.file(j.to), {{"step", std::to_string(j.last)}});
    train.world().close_step();
  });
  std::ifstream file(folder.file(j.to), std::ios::binary);
  out.state.assign(std::istreambuf_iterator<char>(file), {});
  return out;
}
void check_same(const outcome& a, const outcome& b) {
  CHECK(a.losses == b.losses);
  CHECK(a.norms == b.norms);
  CHECK(a.state.size() > 1000);
  CHECK(a.state == b.state);
}

template <class T> void check_variants() {
  const scratch_folder folder;
  struct variant {
    moe::rank_grid grid;
    int accumulate;
    float clip;
    bool dispatch, spoiled;
    std::vector<moe::optimizer_settings> of;
  };
  using pl::update_on;
  const std::vector<variant> all{
      {{1, 1}, 1, 1, false, true, {settings(0, 3, false), settings(4096, 2, true, update_on::host)}},
      {{2, 1}, 3, 0.25F, false, false, {settings(1 << 16, 2, true), settings(100000, 1, false)}},
      {{2, 2}, 2, 0, true, false, {settings(30000, 4, true), settings(0, 3, false, update_on::host)}},
      {{4, 2},
       2,
       0.5F,
       false,
       true,
       {settings(20000, 3, true), settings(7777, 3, true, update_on::host), settings(1 << 18, 2, false)}},
      {{4, 4}, 1, 1, false, false, {settings(12345, 2, true)}},
      {{4, 1}, 1, 1, true, false, {settings(50000, 3, true)}}};
  for (const variant& v : all) {
    CAPTURE(v.grid.ranks);
    CAPTURE(v.grid.expert_parallel);
    training_case c = case_of(v.grid);
    c.settings.accumulate = v.accumulate;
    c.settings.adamw.clip = v.clip;
    c.config.flatten.dispatch = v.dispatch;
    journey j;
    if (v.spoiled) j.spoiled = 1;
    const outcome plain = run<T>(c, folder, j);
    c.config.flatten.optimizer = true;
    for (const moe::optimizer_settings& o : v.of) {
      CAPTURE(o.bucket_bytes);
      c.config.optimizer = o;
      check_same(run<T>(c, folder, j), plain);
    }
  }
}

} // namespace

TEST_CASE("fp32: the same losses, norms and state, to the bit") { check_variants<float>(); }
TEST_CASE("bf16: the same losses, norms and state, to the bit") { check_variants<pl::bfloat16>(); }

TEST_CASE("experts without rows on any rank: nothing is exchanged for them, and the bits are the same") {
  const scratch_folder folder;
  training_case c = case_of({4, 2});
  c.config.experts = 8;
  const moe::forced_routing forced(moe::parse_routing("--routing", "hot:1,2"), c.config.experts,
                                   c.config.top_k, c.config.layers, 4);
  c.forced = &forced;
  for (const bool dispatch : {false, true}) {
    c.config.flatten.dispatch = dispatch;
    c.config.flatten.optimizer = false;
    const outcome plain = run<float>(c, folder, {});
    c.config.flatten.optimizer = true;
    for (const bool zero1 : {true, false}) {
      c.config.optimizer = settings(30000, 2, zero1);
      check_same(run<float>(c, folder, {}), plain);
    }
  }
}

TEST_CASE("O11: a run goes on to the bit with other buckets, shards or none, or on the device") {
  const scratch_folder folder;
  training_case c = case_of({4, 2});
  const outcome whole = run<float>(c, folder, {0, 4, "", "whole"});
  const auto with = [&](bool flat, const moe::optimizer_settings& o) {
    training_case other = c;
    other.config.flatten.optimizer = flat;
    other.config.optimizer = o;
    return other;
  };
  run<float>(with(true, settings(9000, 2, true)), folder, {0, 1, "", "a"});
  run<float>(with(false, {}), folder, {1, 2, "a", "b"});
  run<float>(with(true, settings(0, 3, false, pl::update_on::host)), folder, {2, 3, "b", "c"});
  const outcome last = run<float>(with(true, settings(123456, 1, true)), folder, {3, 4, "c", "d"});
  CHECK(last.losses.at(0) == whole.losses.at(3));
  CHECK(last.state == whole.state);
}

TEST_CASE("memory: what is held was promised, and does not grow with the layers") {
  std::vector<std::size_t> optimizer, gradients;
  for (const index_t layers : {2, 6}) {
    training_case c = case_of({2, 1});
    c.config.layers = layers;
    c.config.flatten.optimizer = true;
    c.config.optimizer = settings(65536, 3, true);
    const moe::corpus text = test::random_text(c.config.vocabulary, 500, 8);
    const moe::token_sampler sampler(text, c.settings.context, 1);
    test::train_on_ranks<pl::bfloat16, moe::chosen_peaks>(c, [&](auto& train) {
      train.run_step(sampler, 0);
      pl::close_step(train.backend(), train.world(), train.stream());
      for (const moe::peak_promise& p : train.promises()) {
        const std::size_t device = train.backend().device().meter().peak(p.of).bytes,
                          host = train.backend().pinned().meter().peak(p.of).bytes;
        CHECK(device <= p.most.device_bytes);
        CHECK(device + 1024 > p.most.device_bytes);
        CHECK(host <= p.most.pinned_bytes);
        CHECK(host + 4096 > p.most.pinned_bytes);
        if (train.world().rank() == 0) (p.of == pl::tag::optimizer ? optimizer : gradients).push_back(device);
      }
    });
  }
  REQUIRE(optimizer.size() == 2);
  REQUIRE(gradients.size() == 2);
  CHECK(gradients[0] == gradients[1]);
  // A count and factors for each tensor are all that grows: 40 bytes.
  CHECK(optimizer[1] - optimizer[0] <= 4 * (7 + 12) * 40 + 512);
}

TEST_CASE("a dry run holds what a run holds, byte for byte, and finds nothing unordered") {
  test::check_grid<float>(3, 77, {.optimizer = true});
  test::check_grid<float>(2, 78, {.dispatch = true, .optimizer = true});
}
