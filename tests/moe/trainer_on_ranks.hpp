// SPDX-License-Identifier: Apache-2.0
//
// Trainers on ranks of any kind, on a text of chance, for tests of steps, state and memory.
#pragma once

#include "state_file.hpp"
#include "support/device_values.hpp"
#include "support/rank_fixtures.hpp"
#include "trainer.hpp"

#include <plateau/host/backend.hpp>
#include <plateau/run_ranks.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace test {

namespace pl = plateau;

struct training_case {
  moe::model_config config;
  moe::rank_grid grid;
  moe::training_settings settings;
  std::uint64_t seed = 1;
  const moe::forced_routing* forced = nullptr;
};

// Small, with nothing that divides anything, and every part of the schedule in a few steps.
inline training_case tiny_case(moe::rank_grid grid = {}) {
  training_case c;
  c.config.layers = 2;
  c.config.hidden = 12;
  c.config.heads = 6;
  c.config.kv_heads = 3;
  c.config.experts = 12;
  c.config.top_k = 2;
  c.config.intermediate = 7;
  c.config.vocabulary = 31;
  c.grid = grid;
  c.settings.context = 9;
  c.settings.batch = 5;
  c.settings.steps = 20;
  c.settings.warmup = 3;
  c.settings.learning_rate = 1e-2;
  return c;
}

inline moe::corpus random_text(std::int64_t vocabulary, std::size_t tokens, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  moe::corpus text;
  text.name = "a text of chance";
  text.vocabulary = vocabulary;
  for (std::size_t i = 0; i < tokens; ++i)
    text.tokens.push_back(static_cast<std::int32_t>(engine() % static_cast<std::uint64_t>(vocabulary)));
  return text;
}

// `Peaks`, here and below, is the bundle that deals with the four peaks.
template <class T, class Backend = pl::host_backend, class Communicator = pl::thread_communicator,
          class Peaks = moe::unflattened>
using trainer_of = moe::trainer<Backend, Communicator, T, Peaks>;

// One backend for each rank that outlives the ranks, so that their meters can be read afterwards.
template <class Backend = pl::host_backend> class backends {
 public:
  explicit backends(int ranks) {
    for (int r = 0; r < ranks; ++r) {
      names_.push_back(std::make_unique<std::string>("rank " + std::to_string(r)));
      all_.push_back(std::make_unique<Backend>(names_.back()->c_str()));
    }
  }
  Backend& operator[](int rank) { return *all_[static_cast<std::size_t>(rank)]; }
  // Bytes of both spaces that some rank still holds.
  std::size_t held() {
    std::size_t bytes = 0;
    for (const auto& each : all_)
      bytes += each->device().meter().current() + each->pinned().meter().current();
    return bytes;
  }

 private:
  std::vector<std::unique_ptr<std::string>> names_;
  std::vector<std::unique_ptr<Backend>> all_;
};

// Makes a trainer on every rank and runs body(trainer) there; how each rank ended.
template <class T, class Communicator = pl::thread_communicator, class Peaks = moe::unflattened,
          class Backend, class F>
std::vector<std::optional<pl::failure>> outcomes_of(const training_case& c, backends<Backend>& on, F body,
                                                    typename Communicator::options options = {}) {
  return pl::run_ranks_collecting<Communicator>(
      c.grid.ranks,
      [&](Communicator& world) {
        trainer_of<T, Backend, Communicator, Peaks> train(on[world.rank()], world, c.config, c.grid,
                                                          c.settings, c.forced);
        train.initialise(c.seed);
        body(train);
      },
      options);
}

// The same where nothing may fail, on ranks of any kind.
template <class T, class Peaks = moe::unflattened, class F, class Ranks = support::on_threads<>>
void train_on_ranks(const training_case& c, F body, const Ranks& on = {}) {
  on.run(c.grid.ranks, [&](typename Ranks::communicator& world, typename Ranks::backend& backend) {
    trainer_of<T, typename Ranks::backend, typename Ranks::communicator, Peaks> train(
        backend, world, c.config, c.grid, c.settings, c.forced);
    train.initialise(c.seed);
    body(train);
  });
}

// Masters and moments of a rank, by their names in a saved state.
using state_values = std::map<std::string, std::vector<float>>;
template <class Trainer> state_values state_of(Trainer& train) {
  state_values out;
  for (const moe::parameter_group* group : train.model().layout().groups())
    for (const moe::parameter& p : group->all())
      for (int which = 0; which < 3; ++which) {
        const auto from =
            which == 0 ? train.optimizer().master(*group, p) : train.optimizer().moment(*group, p, which);
        out[moe::state_prefixes[static_cast<std::size_t>(which)] + p.name] =
            support::from_device(train.backend(), train.stream(), from);
      }
  return out;
}
inline bool same_bits(const state_values& a, const state_values& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](const auto& x, const auto& y) {
           return x.first == y.first && x.second.size() == y.second.size() &&
                  std::memcmp(x.second.data(), y.second.data(), x.second.size() * sizeof(float)) == 0;
         });
}

// Parameters of one rank.
inline moe::index_t shared_elements(const moe::model_config& c) {
  const moe::index_t keys = c.kv_heads * c.head_size();
  return c.layers * c.hidden * (2 + 2 * c.hidden + 2 * keys + c.experts) + c.hidden +
         c.vocabulary * c.hidden * (c.tied ? 1 : 2);
}
inline moe::index_t expert_elements(const moe::model_config& c, const moe::rank_grid& g) {
  return c.layers * c.experts / g.expert_parallel * 3 * c.hidden * c.intermediate;
}

// What an update sums gradients through, or measures them in; between updates these bytes are the
// workspace's.
inline std::size_t optimizer_lent_bytes(const moe::rank_grid& g) {
  pl::working_set control(pl::tag::optimizer);
  pl::counting_source source(control);
  pl::gradient_control_memory(source, g.ranks);
  return std::max({control.device_bytes(), pl::aligned_bytes(pl::reduce_scratch_bytes<float>(g.ranks)),
                   pl::aligned_bytes(pl::reduce_scratch_bytes<float>(g.ranks / g.expert_parallel))});
}
// What the optimizer holds per rank between updates: `per_parameter` bytes, a count and factors for each
// tensor, the norm.
inline std::size_t optimizer_bytes(const moe::model_config& c, const moe::rank_grid& g,
                                   std::size_t per_parameter) {
  const auto tensors =
      static_cast<std::size_t>(c.layers * (7 + 3 * c.experts / g.expert_parallel) + 2 + (c.tied ? 0 : 1));
  return per_parameter * static_cast<std::size_t>(shared_elements(c) + expert_elements(c, g)) +
         tensors * (sizeof(std::int64_t) + sizeof(pl::adamw_factors)) + sizeof(float);
}

// One step, and what each tag held at most on each rank, against formulas.
template <class T, class Backend = pl::host_backend, class Communicator = pl::thread_communicator>
void check_memory(const training_case& c) {
  const moe::corpus text = random_text(c.config.vocabulary, 500, 1);
  const moe::token_sampler sampler(text, c.settings.context, 1);
  backends<Backend> on(c.grid.ranks);
  const auto ends = outcomes_of<T, Communicator>(c, on, [&](auto& train) { train.run_step(sampler, 0); });
  constexpr bool fp32 = sizeof(T) == sizeof(float);
  const moe::batch_limits limits = c.settings.limits(c.grid.ranks);
  const auto parameters =
      static_cast<std::size_t>(shared_elements(c.config) + expert_elements(c.config, c.grid));
  for (int rank = 0; rank < c.grid.ranks; ++rank) {
    CAPTURE(rank);
    REQUIRE_FALSE(ends[static_cast<std::size_t>(rank)].has_value());
    const pl::meter& meter = on[rank].device().meter();
    const auto peak = [&](pl::tag t) { return meter.peak(t).bytes; };
    CHECK(peak(pl::tag::parameters) == sizeof(T) * parameters);
    CHECK(peak(pl::tag::gradients) == 4 * parameters);
    // Of an fp32 model the weights are the masters.
    CHECK(peak(pl::tag::optimizer) ==
          optimizer_bytes(c.config, c.grid, fp32 ? 8 : 12) + optimizer_lent_bytes(c.grid));
    CHECK(peak(pl::tag::checkpoint) ==
          sizeof(T) * static_cast<std::size_t>((c.config.layers + 1) * limits.tokens() * c.config.hidden));
    // The logits of the rank's own sequences; in bf16 their gradient has a place of its own.
    const moe::index_t sequences = c.settings.own_sequences_of(0, rank, c.grid.ranks).size();
    const auto logits =
        static_cast<std::size_t>(sequences * c.settings.context * c.config.vocabulary) * (fp32 ? 4 : 6);
    const auto reserved =
        moe::dense_loss<Backend, Communicator, T>::working_set(c.config, c.grid, limits).device_bytes();
    CHECK(peak(pl::tag::vocabulary) == reserved + logits);
    CHECK(meter.peak(pl::tag::vocabulary).phase == std::string("loss"));
    // The parts of a peak are what it is made of.
    for (const pl::tag t : pl::all_tags) {
      const pl::peak p = meter.peak(t);
      CHECK(p.held[static_cast<std::size_t>(t)] == p.bytes);
    }
    std::size_t sum = 0;
    for (const std::size_t each : meter.peak().held) sum += each;
    CHECK(sum == meter.peak().bytes);
  }
  CHECK(on.held() == 0);
}

} // namespace test
