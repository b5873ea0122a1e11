// SPDX-License-Identifier: Apache-2.0
//
// Runs one step of the model on ranks that are threads, from given weights and tokens, and brings loss and
// gradients back as float64 tensors under their names: what tests compare with a reference, or with another
// number of ranks.
#pragma once

#include "model.hpp"
#include "reference/transformer.hpp"

#include <plateau/collectives.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/run_ranks.hpp>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace test {

namespace pl = plateau;

struct step_result {
  double loss = 0; // with the balance loss
  reference::tensors gradients;
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

// tokens: (sequences, context + 1). The sequences of a micro-batch are dealt over the ranks, perhaps
// unevenly.
template <class T, class Backend = pl::host_backend>
step_result run_model(int ranks, int expert_parallel, const reference::transformer_config& reference_config,
                      const reference::tensors& weights, const std::vector<std::vector<std::int32_t>>& tokens,
                      moe::index_t micro_batches = 1) {
  using communicator = pl::thread_communicator;
  using moe::index_t;
  const moe::model_config config = config_of(reference_config);
  const auto sequences = static_cast<index_t>(tokens.size());
  const auto context = static_cast<index_t>(tokens.front().size()) - 1;
  step_result result;
  std::mutex mutex;
  pl::run_ranks(ranks, [&](communicator& world) {
    Backend backend;
    communicator group = world.split(world.rank() / expert_parallel, world.rank());
    communicator replicas = world.split(world.rank() % expert_parallel, world.rank());
    moe::model<Backend, communicator, T> model(backend, world, group, config, {ranks, expert_parallel},
                                               {(sequences + ranks - 1) / ranks, context});
    pl::device_buffer<unsigned char, Backend> scratch(
        backend.device(), static_cast<index_t>(pl::reduce_scratch_bytes<float>(ranks)), pl::tag::other);
    auto stream = backend.make_stream("main");
    const auto each = [&](auto f) {
      for (const moe::parameter_group* g : {&model.layout().shared, &model.layout().expert})
        for (const moe::parameter& p : g->all()) f(*g, p);
    };
    each([&](const moe::parameter_group& g, const moe::parameter& p) {
      const auto to = model.weights().of(g, p);
      const reference::vec& from = weights.at(p.name).data;
      for (index_t i = 0; i < to.n; ++i)
        to[i] = pl::narrow<T>(static_cast<float>(from[static_cast<std::size_t>(i)]));
    });
    model.begin_step(stream);
    for (index_t m = 0; m < micro_batches; ++m) {
      const index_t first = sequences * m / micro_batches,
                    count = sequences * (m + 1) / micro_batches - first;
      const index_t begin = first + count * world.rank() / ranks,
                    end = first + count * (world.rank() + 1) / ranks;
      moe::micro_batch batch;
      for (index_t i = begin; i < end; ++i) batch.sequences.push_back(tokens[static_cast<std::size_t>(i)]);
      batch.context = context;
      batch.first_token = begin * context;
      batch.group_tokens = count * context;
      batch.step_tokens = sequences * context;
      model.forward_backward(stream, std::move(batch));
    }
    pl::all_reduce(backend, world, stream, pl::inout(model.gradients().shared()), scratch.all());
    pl::all_reduce(backend, replicas, stream, pl::inout(model.gradients().expert()), scratch.all());
    backend.wait(backend.record(stream));

    const std::lock_guard lock(mutex);
    result.loss += model.loss_sums()[0] / static_cast<double>(sequences * context);
    if (world.rank() == 0) result.loss += model.loss_sums()[1];
    if (world.rank() < expert_parallel)
      each([&](const moe::parameter_group& g, const moe::parameter& p) {
        const auto from = model.gradients().of(g, p);
        result.gradients[p.name] = {p.shape(), reference::vec(from.p, from.p + from.n)};
      });
  });
  return result;
}

// The tokens of a reference batch, with the last label at the end of each sequence.
inline std::vector<std::vector<std::int32_t>> tokens_of(const reference::batch& b) {
  std::vector<std::vector<std::int32_t>> out;
  for (reference::index s = 0; s < b.sequences; ++s) {
    std::vector<std::int32_t> row;
    for (reference::index t = 0; t < b.length; ++t)
      row.push_back(static_cast<std::int32_t>(b.inputs[static_cast<std::size_t>(s * b.length + t)]));
    row.push_back(static_cast<std::int32_t>(b.labels[static_cast<std::size_t>((s + 1) * b.length - 1)]));
    out.push_back(std::move(row));
  }
  return out;
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
