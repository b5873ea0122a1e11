// SPDX-License-Identifier: Apache-2.0
//
// Runs one step of the model on ranks of any kind, from given weights and tokens, and brings loss and
// gradients back as float64 tensors under their names: what tests compare with a reference, or with another
// number of ranks. Each rank also leaves an account of what it did; where there is no data, that is all.
#pragma once

#include "model.hpp"
#include "reference_cases.hpp"
#include "support/device_values.hpp"
#include "support/rank_fixtures.hpp"

#include <plateau/collectives.hpp>
#include <plateau/kernels.hpp>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace test {

namespace pl = plateau;

// How a step is run.
struct step_setup {
  int ranks = 1, expert_parallel = 1;
  moe::index_t micro_batches = 1;
  const moe::forced_routing* forced = nullptr;
  bool backward = true; // or the losses alone
  moe::dispatch_settings dispatch{};
  moe::flatten_set flatten{}; // for a bundle that asks
  moe::loss_settings loss{};
  moe::checkpoint_settings checkpoint{};
};

// What one rank did in the step, before gradients were summed over ranks.
struct rank_account {
  moe::index_t tokens = 0;
  double loss_sum = 0;                             // over them
  pl::counters work, group;                        // at the backend; in the expert group
  std::vector<moe::routing_counts> routed;         // of each layer in the last micro-batch
  double shared_gradient = 0, expert_gradient = 0; // the largest magnitudes
  pl::peak dispatch;                               // bytes of rows and experts' intermediates
  pl::peak vocabulary;                             // bytes of the loss
  pl::peak checkpoint, parked;                     // bytes of boundaries, on the device and pinned
  std::vector<moe::peak_promise> promises;
};

struct step_result {
  double loss = 0; // with the balance loss
  reference::tensors gradients;
  std::vector<rank_account> accounts;
};

inline moe::model_config config_of(const reference::transformer_config& from) {
  moe::model_config c;
  c.layers = from.layers;
  c.hidden = from.hidden;
  c.heads = from.heads;
  c.kv_heads = from.kv_heads;
  c.experts = from.experts;
  c.top_k = from.top_k;
  c.intermediate = from.intermediate;
  c.vocabulary = from.vocabulary;
  c.norm_epsilon = static_cast<float>(from.rms_epsilon);
  c.rope_theta = from.rope_theta;
  c.tied = from.tied;
  c.balance_weight = static_cast<float>(from.balance_weight);
  return c;
}

inline double largest_magnitude(const std::vector<float>& values) {
  double largest = 0;
  for (const float each : values) {
    const double magnitude = std::fabs(static_cast<double>(each));
    if (!(magnitude <= largest)) largest = magnitude; // a NaN stays
  }
  return largest;
}

// tokens: (sequences, context + 1). The sequences of a micro-batch are dealt over the ranks, perhaps
// unevenly. `Peaks` is the bundle that deals with the four peaks.
template <class Peaks, class T, class Ranks = support::on_threads<>>
step_result run_model_of(const step_setup& setup, const reference::transformer_config& reference_config,
                         const reference::tensors& weights,
                         const std::vector<std::vector<std::int32_t>>& tokens, const Ranks& on = {}) {
  using Backend = typename Ranks::backend;
  using communicator = typename Ranks::communicator;
  using moe::index_t;
  moe::model_config config = config_of(reference_config);
  config.dispatch = setup.dispatch;
  config.flatten = setup.flatten;
  config.loss = setup.loss;
  config.checkpoint = setup.checkpoint;
  const int ranks = setup.ranks, expert_parallel = setup.expert_parallel;
  const auto sequences = static_cast<index_t>(tokens.size());
  const auto context = static_cast<index_t>(tokens.front().size()) - 1;
  step_result result;
  result.accounts.resize(static_cast<std::size_t>(ranks));
  std::mutex mutex;
  on.run(ranks, [&](communicator& world, Backend& backend) {
    communicator group = world.split(world.rank() / expert_parallel, world.rank());
    communicator replicas = world.split(world.rank() % expert_parallel, world.rank());
    moe::model<Backend, communicator, T, Peaks> model(backend, world, group, config, {ranks, expert_parallel},
                                                      {(sequences + ranks - 1) / ranks, context},
                                                      setup.forced);
    pl::device_buffer<unsigned char, Backend> scratch(
        backend.device(),
        static_cast<index_t>(std::max(pl::reduce_scratch_bytes<float>(ranks),
                                      pl::reduce_scratch_bytes<float>(replicas.size()))),
        pl::tag::other);
    auto stream = backend.make_stream("main");
    const auto each = [&](auto f) {
      for (const moe::parameter_group* g : model.layout().groups())
        for (const moe::parameter& p : g->all()) f(*g, p);
    };
    each([&](const moe::parameter_group& g, const moe::parameter& p) {
      const auto to = model.weights().of(g, p);
      if constexpr (Ranks::has_data) {
        const reference::vec& from = weights.at(p.name).data;
        support::to_device(backend, stream, to, [&, first = p.first_element()](index_t i) {
          return pl::narrow<T>(static_cast<float>(from[static_cast<std::size_t>(first + i)]));
        });
      } else {
        backend.launch(stream, pl::elements{to.n}, pl::fill<T>{}, pl::out(to));
      }
    });
    model.begin_step(stream);
    backend.wait(backend.record(stream));
    rank_account& account = result.accounts[static_cast<std::size_t>(world.rank())];
    const pl::counters work_before = backend.counters(), group_before = group.counters();
    for (index_t m = 0; m < setup.micro_batches; ++m) {
      const index_t first = sequences * m / setup.micro_batches,
                    count = sequences * (m + 1) / setup.micro_batches - first;
      const index_t begin = first + count * world.rank() / ranks,
                    end = first + count * (world.rank() + 1) / ranks;
      moe::micro_batch batch;
      for (index_t i = begin; i < end; ++i) batch.sequences.push_back(tokens[static_cast<std::size_t>(i)]);
      batch.context = context;
      batch.first_token = begin * context;
      batch.group_tokens = count * context;
      batch.step_tokens = sequences * context;
      account.tokens += (end - begin) * context;
      if (setup.backward)
        model.forward_backward(stream, std::move(batch));
      else
        model.forward_only(stream, std::move(batch));
    }
    backend.wait(backend.record(stream));
    account.work = backend.counters() - work_before;
    account.group = group.counters() - group_before;
    for (index_t l = 0; l < config.layers; ++l) account.routed.push_back(model.routed(l));
    if constexpr (Ranks::has_data) {
      const auto largest_of = [&](pl::view<float> v) {
        return largest_magnitude(support::from_device(backend, stream, v));
      };
      account.shared_gradient = largest_of(model.gradients().shared());
      account.expert_gradient = largest_of(model.gradients().expert());
    }
    account.dispatch = backend.device().meter().peak(pl::tag::dispatch);
    account.vocabulary = backend.device().meter().peak(pl::tag::vocabulary);
    account.checkpoint = backend.device().meter().peak(pl::tag::checkpoint);
    account.parked = backend.pinned().meter().peak(pl::tag::checkpoint);
    account.promises = model.promises();
    pl::all_reduce(backend, world, stream, pl::inout(model.gradients().shared()), scratch.all());
    pl::all_reduce(backend, replicas, stream, pl::inout(model.gradients().expert()), scratch.all());
    backend.wait(backend.record(stream));

    if constexpr (Ranks::has_data) {
      const std::vector<double> losses = support::from_device(backend, stream, model.loss_sums());
      reference::tensors gradients, parts;
      each([&](const moe::parameter_group& g, const moe::parameter& p) {
        const bool owned = g.kind() == moe::group_kind::owned;
        if (!owned && world.rank() >= expert_parallel) return;
        const auto values = support::from_device(backend, stream, model.gradients().of(g, p));
        (owned ? parts : gradients)[p.name] = {p.shape(), reference::vec(values.begin(), values.end())};
      });
      const std::lock_guard lock(mutex);
      if (world.rank() == 0) result.loss += losses[1];
      for (auto& [name, tensor] : gradients) result.gradients[name] = std::move(tensor);
      for (const moe::parameter& p : model.layout().owned.all()) {
        auto& whole = result.gradients[p.name];
        whole.shape = p.shape();
        whole.data.resize(static_cast<std::size_t>(p.whole_rows * p.cols));
        const reference::vec& mine = parts.at(p.name).data;
        std::copy(mine.begin(), mine.end(), whole.data.begin() + p.first_element());
      }
      account.loss_sum = losses[0];
    }
  });
  // In rank order, so that two runs give the same bits.
  for (const rank_account& each : result.accounts)
    result.loss += each.loss_sum / static_cast<double>(sequences * context);
  return result;
}

template <class T, class Ranks = support::on_threads<>>
step_result run_model(const step_setup& setup, const reference::transformer_config& config,
                      const reference::tensors& weights, const std::vector<std::vector<std::int32_t>>& tokens,
                      const Ranks& on = {}) {
  return run_model_of<moe::unflattened, T>(setup, config, weights, tokens, on);
}

template <class T>
step_result run_model(int ranks, int expert_parallel, const reference::transformer_config& config,
                      const reference::tensors& weights, const std::vector<std::vector<std::int32_t>>& tokens,
                      moe::index_t micro_batches = 1) {
  return run_model<T>({ranks, expert_parallel, micro_batches, nullptr, true}, config, weights, tokens);
}

// |a - b| / |b| by the 2-norm; the norm of a where b is zero.
inline double relative_difference(const reference::vec& a, const reference::vec& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

} // namespace test
