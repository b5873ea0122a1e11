// SPDX-License-Identifier: Apache-2.0
//
// Training in float64 beside a trainer: the same steps from the same weights on the same sequences.
#pragma once

#include "reference/optimizer.hpp"
#include "reference/transformer.hpp"
#include "trainer_on_ranks.hpp"

#include <plateau/scalar.hpp>

#include <cstdint>
#include <mutex>
#include <type_traits>
#include <vector>

namespace test {

inline reference::transformer_config reference_of(const moe::model_config& c) {
  reference::transformer_config out;
  out.vocabulary = c.vocabulary;
  out.hidden = c.hidden;
  out.layers = c.layers;
  out.heads = c.heads;
  out.kv_heads = c.kv_heads;
  out.experts = c.experts;
  out.top_k = c.top_k;
  out.intermediate = c.intermediate;
  out.rope_theta = c.rope_theta;
  out.rms_epsilon = static_cast<double>(c.norm_epsilon);
  out.tied = c.tied;
  out.balance_weight = static_cast<double>(c.balance_weight);
  return out;
}

template <class SequenceOf>
reference::batch batch_of(moe::index_t sequences, moe::index_t context, SequenceOf sequence) {
  std::vector<reference::index> tokens;
  for (moe::index_t i = 0; i < sequences; ++i) {
    const auto one = sequence(i);
    tokens.insert(tokens.end(), one.begin(), one.end());
  }
  return reference::next_token_batch(tokens, sequences, context);
}

// Masters of the first rank of each place of the expert group, widened, after so many steps on ranks of any
// kind.
template <class T = float, class Ranks = support::on_threads<>>
reference::tensors weights_after(const training_case& c, const moe::token_sampler& sampler,
                                 std::int64_t steps, std::vector<moe::step_outcome>* outcomes = nullptr,
                                 const Ranks& on = {}) {
  reference::tensors out;
  std::mutex mutex;
  train_on_ranks<T>(
      c,
      [&](auto& train) {
        for (std::int64_t step = 0; step < steps; ++step) {
          const moe::step_outcome outcome = train.run_step(sampler, step);
          if (outcomes != nullptr && train.world().rank() == 0) outcomes->push_back(outcome);
        }
        const auto state = state_of(train);
        const std::lock_guard lock(mutex);
        if (train.world().rank() >= c.grid.expert_parallel) return;
        for (const moe::parameter_group* group :
             {&train.model().layout().shared, &train.model().layout().expert})
          for (const moe::parameter& p : group->all()) {
            const auto& values = state.at(p.name);
            out[p.name] = {p.shape(), reference::vec(values.begin(), values.end())};
          }
      },
      on);
  return out;
}

struct reference_run {
  std::vector<double> losses, norms;
  reference::tensors weights;
};

// What a model of type T computes with.
template <class T> reference::tensors rounded(reference::tensors masters) {
  if constexpr (!std::is_same_v<T, float>)
    for (auto& [name, tensor] : masters)
      for (double& value : tensor.data)
        value = static_cast<double>(pl::widen(pl::narrow<T>(static_cast<float>(value))));
  return masters;
}

// AdamW in float64 on the gradients of the reference, from these masters, of which a model of type T has
// roundings.
template <class T = float>
reference_run train_reference(const training_case& c, const moe::token_sampler& sampler, std::int64_t steps,
                              reference::tensors weights) {
  const moe::training_settings& s = c.settings;
  reference_run out;
  auto first = reference::zeros_like(weights), second = first;
  for (std::int64_t step = 0; step < steps; ++step) {
    const reference::transformer model(reference_of(c.config), rounded<T>(weights));
    const auto data = batch_of(s.batch, s.context, [&](moe::index_t i) { return sampler.sequence(step, i); });
    const auto result = model.forward(data);
    auto gradients = model.backward(data, result);
    out.losses.push_back(result.loss);
    out.norms.push_back(reference::global_norm(gradients));
    const double factor = reference::clip_factor(out.norms.back(), static_cast<double>(s.adamw.clip));
    reference::adamw_options o;
    o.learning_rate =
        reference::cosine_rate(step, s.warmup, s.steps, s.learning_rate, s.final_share * s.learning_rate);
    o.beta1 = static_cast<double>(s.adamw.beta1);
    o.beta2 = static_cast<double>(s.adamw.beta2);
    o.epsilon = static_cast<double>(s.adamw.epsilon);
    for (auto& [name, weight] : weights) {
      for (double& g : gradients.at(name).data) g *= factor;
      o.weight_decay = weight.shape.size() == 1 ? 0 : static_cast<double>(s.adamw.weight_decay);
      reference::adamw(weight.data, gradients.at(name).data, first.at(name).data, second.at(name).data,
                       step + 1, o);
    }
  }
  out.weights = weights;
  return out;
}

} // namespace test
