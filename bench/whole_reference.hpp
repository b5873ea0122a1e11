// SPDX-License-Identifier: Apache-2.0
//
// How far a run's losses of single tokens are from a float64 reference that has the same weights and the same
// experts for every token. Only some tokens have logits there, since those of all would not fit into memory;
// hidden states are computed for all.
#pragma once

#include "whole_runs.hpp"

#include "reference/transformer.hpp"
#include "safetensors.hpp"
#include "token_sampler.hpp"

#include <plateau/scalar.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace bench {

inline reference::transformer_config reference_config(const moe::options& o) {
  reference::transformer_config c;
  c.vocabulary = *o.vocabulary;
  c.hidden = o.hidden;
  c.layers = o.layers;
  c.heads = o.heads;
  c.kv_heads = o.kv_heads;
  c.experts = o.experts;
  c.top_k = o.top_k;
  c.intermediate = o.intermediate;
  c.rope_theta = o.rope_theta;
  c.rms_epsilon = o.norm_epsilon;
  c.tied = o.tied;
  return c;
}

// The weights that runs of this shape begin with, rounded as the model has them. A short run that learns
// nothing writes them to a file, which is read and removed.
inline reference::tensors first_weights(moe::options o) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("plateau-whole-bench-" + std::to_string(std::random_device{}()) + ".safetensors");
  struct removed {
    std::filesystem::path path;
    ~removed() {
      std::error_code ignored;
      std::filesystem::remove(path, ignored);
    }
  } const at_the_end{path};
  o.context = 16;
  o.batch = o.ranks;
  o.steps = 1;
  o.learning_rate = 0;
  o.save = path.string();
  train(o);
  const moe::safetensors_reader file(path.string());
  reference::tensors weights;
  for (const auto& [name, shape] : reference::parameter_shapes(reference_config(o))) {
    std::vector<float> values(static_cast<std::size_t>(reference::element_count(shape)));
    file.read(name, moe::tensor_shape(shape.begin(), shape.end()), values);
    reference::tensor& to = weights[name] = reference::zero_tensor(shape);
    for (std::size_t i = 0; i < values.size(); ++i)
      to.data[i] = static_cast<double>(static_cast<float>(plateau::bfloat16(values[i])));
  }
  return weights;
}

// Some tokens of every sequence of the first step, evenly spread, the last one among them.
struct sampled_losses {
  std::int64_t of_each_sequence = 0;
  std::vector<double> loss;   // sequence by sequence
  std::vector<double> margin; // of the routes of each, where the router chooses (reference::sampled_rows)

  std::int64_t position(std::int64_t i, std::int64_t context) const {
    return (i + 1) * context / of_each_sequence - 1;
  }
};

// What the reference says of `tokens` tokens. One sequence a thread.
inline sampled_losses reference_losses(const moe::options& o, const reference::tensors& weights,
                                       std::int64_t tokens) {
  sampled_losses out;
  out.of_each_sequence = tokens / o.batch;
  out.loss.resize(static_cast<std::size_t>(tokens));
  out.margin.resize(static_cast<std::size_t>(tokens));
  const moe::token_sampler sampler(text_for(o.context), o.context, o.seed);
  std::optional<moe::forced_routing> forced;
  if (o.routing.forced()) forced.emplace(o.routing, o.experts, o.top_k, o.layers, o.ranks);
  const auto of_sequence = [&](std::int64_t sequence) {
    reference::transformer model(reference_config(o), weights);
    if (forced)
      model.force([&](reference::index layer, reference::index row, reference::index slot) {
        return forced->expert(layer, sequence * o.context + row, slot);
      });
    const auto ids = sampler.sequence(0, sequence);
    const reference::batch data =
        reference::next_token_batch(std::vector<reference::index>(ids.begin(), ids.end()), 1, o.context);
    std::vector<reference::index> rows;
    for (std::int64_t i = 0; i < out.of_each_sequence; ++i) rows.push_back(out.position(i, o.context));
    const reference::sampled_rows some = model.losses_of(data, rows);
    const auto first = sequence * out.of_each_sequence;
    std::copy(some.loss.begin(), some.loss.end(), out.loss.begin() + first);
    std::copy(some.margin.begin(), some.margin.end(), out.margin.begin() + first);
  };
  const auto at_a_time = std::max<std::int64_t>(1, std::thread::hardware_concurrency());
  for (std::int64_t next = 0; next < o.batch; next += at_a_time) {
    std::vector<std::jthread> threads;
    for (std::int64_t i = next; i < std::min(o.batch, next + at_a_time); ++i)
      threads.emplace_back(of_sequence, i);
  }
  return out;
}

// RMS and largest, of a run's first step.
struct loss_distance {
  double rms = 0, largest = 0;
};
inline loss_distance distance(const real_run& run, const sampled_losses& expected, const moe::options& o) {
  loss_distance d;
  std::vector<float> all; // ranks have their sequences in order
  for (const auto& rank : run.first_losses) all.insert(all.end(), rank.begin(), rank.end());
  std::size_t at = 0;
  for (std::int64_t s = 0; s < o.batch; ++s)
    for (std::int64_t i = 0; i < expected.of_each_sequence; ++i) {
      const auto token = static_cast<std::size_t>(s * o.context + expected.position(i, o.context));
      const double off = static_cast<double>(all[token]) - expected.loss[at++];
      d.rms += off * off;
      d.largest = std::max(d.largest, std::abs(off));
    }
  d.rms = std::sqrt(d.rms / static_cast<double>(at));
  return d;
}

} // namespace bench
