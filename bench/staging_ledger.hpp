// SPDX-License-Identifier: Apache-2.0
//
// A worked case in the dry run: 35 billion parameters on 40 GPUs, experts over 8 of them. What optimizer and
// gradients take of each device when the state is dealt to the ranks and lies in host memory, and how far the
// time is from what the bytes alone take on the slowest of all that they pass through.
#pragma once

#include "table.hpp"

#include <plateau/dry_run/backend.hpp>
#include <plateau/dry_run/predict.hpp>
#include <plateau/dry_run/run_dry.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/staging/adamw_kernel.hpp>
#include <plateau/staging/gradient_accumulators.hpp>
#include <plateau/staging/shard_gather.hpp>
#include <plateau/staging/sharded_reduce.hpp>
#include <plateau/staging/staging_pipeline.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

namespace bench {

class staging_ledger {
  using index_t = plateau::index_t;
  using backend_type = plateau::dry_run<plateau::host_backend>;
  using communicator_type = plateau::dry_communicator;
  using reduce_type = plateau::sharded_reduce<backend_type, communicator_type>;
  using gather_type = plateau::shard_gather<backend_type, communicator_type>;
  using flow = plateau::flow;
  template <class T, flow F> using staged = plateau::staged<T, F>;
  using pipeline_type =
      plateau::staging_pipeline<backend_type, staged<float, flow::in>, staged<float, flow::inout>,
                                staged<float, flow::inout>, staged<float, flow::inout>,
                                staged<plateau::bfloat16, flow::resident>>;

  static constexpr int ranks = 40, expert_parallel = 8, replicas = ranks / expert_parallel;
  static constexpr index_t grain = 65536; // over which squares of gradients are summed
  static constexpr index_t layers = 48, hidden = 2048, vocabulary = 151936;
  // As many whole grains for each owner, so that ranks are alike: 2.9 billion on every rank, and an eighth of
  // 32.1 billion on the ranks that hold the same experts.
  static constexpr index_t shared = 1106 * grain * ranks, expert = 12244 * grain * replicas;
  static constexpr index_t ends = 2 * vocabulary * hidden; // embedding and head, of the shared ones
  static constexpr index_t own = shared / ranks + expert / replicas;
  static constexpr index_t squares = shared / grain + expert_parallel * (expert / grain);

 public:
  static constexpr std::size_t budget = std::size_t{128} << 20;

  explicit staging_ledger(const plateau::hardware& machine) {
    const std::size_t left = budget - plateau::aligned_bytes(squares * sizeof(double)) - 4096;
    shared_shape_ = plateau::sharded_shape::fitting(left, ranks, 2, grain);
    expert_shape_ = plateau::sharded_shape::fitting(left, replicas, 2, grain);
    buckets_ = pipeline_type::shape_for(0, left / 3 - 4096, 3);
    const auto seconds = [&](auto run) {
      const plateau::dry_ranks ran = plateau::run_dry(ranks, run, {.check_order = false});
      if (ran.cause) ran.cause->raise();
      device_bytes_ = ran.peaks(0).tags[static_cast<std::size_t>(plateau::tag::optimizer)].bytes;
      const auto times = plateau::predict(ran, machine);
      const auto& marks = times.ranks.front().marks;
      return passes{(marks[1].so_far - marks[0].so_far).seconds, (marks[2].so_far - marks[1].so_far).seconds};
    };
    bound_ = seconds([this](communicator_type& world) { run_bound(world); });
    time_ = seconds([this](communicator_type& world) { run_rank(world); });
  }

  void print(table& out) const {
    const auto one = [](double x) { return spread{x, x, x, x, 0}; };
    const auto mib = [&](std::size_t bytes) { return one(static_cast<double>(bytes) / (1 << 20)); };
    const auto giga = [&](double bytes) { return one(bytes / 1e9); };
    out.row("35B on 40: optimizer state of a rank, GB, in host memory", giga(12.0 * own));
    out.row("  the device's part of it, MiB, as metered", mib(device_bytes_), goal::at_most(128));
    out.row("  of which while gradients of all ranks are summed, 40 ranks", mib(exchange_bytes(ranks)));
    out.row("  of which while those of experts are, 5 ranks", mib(exchange_bytes(replicas)));
    out.row("  of which slots of the update, three",
            mib(pipeline_type::working_set_of(buckets_).device_bytes()));
    out.row("  of which partial sums of squares", mib(squares * sizeof(double)));
    out.row("gradients, GB, if they stayed: fp32", giga(4.0 * (shared + expert)));
    out.row("  of the device: two layers, embedding and head", giga(static_cast<double>(gradient_bytes())));
    out.row("sums of gradients: ms", one(1e3 * time_.sums));
    out.row("  bound / time", one(bound_.sums / time_.sums), goal::at_least(0.97));
    out.row("update and parameters to all: ms", one(1e3 * time_.update));
    out.row("  bound / time", one(bound_.update / time_.update), goal::at_least(0.97));
  }

 private:
  struct passes {
    double sums = 0, update = 0;
  };

  std::size_t exchange_bytes(int of) const {
    return reduce_type::working_set_of(of == ranks ? shared_shape_ : expert_shape_, of).device_bytes();
  }
  static std::size_t gradient_bytes() {
    using pinned = plateau::view<float, plateau::host_space>;
    std::vector<plateau::gradient_part> parts(layers + 1);
    for (plateau::gradient_part& layer : parts)
      layer.home = {pinned{nullptr, (shared - ends) / layers}, pinned{nullptr, expert / layers}};
    parts.back().home = {pinned{nullptr, ends}};
    parts.back().resident = true;
    return plateau::gradient_accumulators<backend_type>::working_set_of(parts).device_bytes();
  }

  void run_rank(communicator_type& world) const {
    backend_type backend(world);
    communicator_type same_experts = world.split(world.rank() % expert_parallel, world.rank());
    using pinned = plateau::pinned_buffer<float, backend_type>;
    const pinned gradients(backend.pinned(), shared + expert, plateau::tag::gradients);
    const pinned master(backend.pinned(), own, plateau::tag::optimizer),
        first(backend.pinned(), own, plateau::tag::optimizer),
        second(backend.pinned(), own, plateau::tag::optimizer);
    const plateau::device_buffer<plateau::bfloat16, backend_type> weights(backend.device(), shared + expert,
                                                                          plateau::tag::parameters);
    const plateau::device_buffer<double, backend_type> sums(backend.device(), squares,
                                                            plateau::tag::optimizer);
    const plateau::device_buffer<float, backend_type> control(backend.device(), 2, plateau::tag::optimizer);
    plateau::workspace<backend_type> space(
        backend, plateau::overlay(reduce_type::working_set_of(shared_shape_, ranks),
                                  reduce_type::working_set_of(expert_shape_, replicas),
                                  pipeline_type::working_set_of(buckets_)));
    reduce_type reduce_shared(backend, world, space, shared_shape_),
        reduce_expert(backend, same_experts, space, expert_shape_);
    gather_type to_all(backend, world), to_replicas(backend, same_experts);
    pipeline_type pipeline(backend, space, buckets_);
    auto stream = backend.make_stream("main");
    for (const auto& each : {gradients.all(), master.all(), first.all(), second.all()})
      backend.host_access(plateau::out(each));
    backend.launch(stream, plateau::elements{weights.size()}, plateau::fill<plateau::bfloat16>{},
                   plateau::out(weights.all()));
    if (!world.fold(0)) return;

    const auto step = [&](const char* name) {
      backend.wait(backend.record(stream));
      backend.recorder().mark(name);
    };
    step("sums");
    const auto shards = plateau::shard_plan::even(shared, ranks, grain),
               expert_shards = plateau::shard_plan::even(expert, replicas, grain);
    const auto square = [&](auto& s, index_t, plateau::view<const float> g) {
      backend.launch(s, plateau::rows{(g.n + grain - 1) / grain}, sum_of_squares{}, plateau::in(g),
                     plateau::out(sums.first((g.n + grain - 1) / grain)));
    };
    reduce_shared.run(stream, shards, {}, gradients.first(shared), square);
    reduce_expert.run(stream, expert_shards, {}, gradients.all().sub(shared, expert), square);
    step("update");
    backend.launch(stream, plateau::elements{2}, plateau::fill<float>{1}, plateau::out(control.all()));
    const auto update = [&](const plateau::shard_plan& plan, int rank, index_t group, index_t state,
                            gather_type& gather) {
      const auto mine = plan.of_rank(rank);
      const auto all = weights.all().sub(group, plan.elements());
      const auto part = [&](const pinned& of) { return of.all().sub(state, mine.elements); };
      pipeline.run(stream, plateau::bucket_plan::elementwise(mine.elements, buckets_.bucket_elements),
                   {gradients.all().sub(group + mine.first, mine.elements), part(master), part(first),
                    part(second), all.sub(mine.first, mine.elements)},
                   [&](auto& s, const plateau::bucket& b, auto g, auto w, auto m, auto v, auto p) {
                     backend.launch(s, plateau::rows{plateau::adamw_update::rows_of(b.elements)},
                                    plateau::adamw_update{}, plateau::in(g), plateau::in(control.all()),
                                    plateau::inout(w), plateau::inout(m), plateau::inout(v),
                                    plateau::inout(p));
                     gather.piece(s, plan, buckets_.bucket_elements, b.index, all);
                   });
    };
    update(shards, world.rank(), 0, 0, to_all);
    update(expert_shards, same_experts.rank(), shared, shared / ranks, to_replicas);
    to_all.join(stream);
    to_replicas.join(stream);
    step("done");
  }

  // The same bytes, each way in one operation, and all ways at the same time: nothing waits for anything.
  void run_bound(communicator_type& world) const {
    backend_type backend(world);
    communicator_type same_experts = world.split(world.rank() % expert_parallel, world.rank());
    const plateau::pinned_buffer<float, backend_type> host(backend.pinned(), shared + expert + 8 * own,
                                                           plateau::tag::optimizer);
    const plateau::device_buffer<float, backend_type> device(
        backend.device(), 2 * (shared + expert) + 8 * own, plateau::tag::optimizer);
    auto in = backend.make_stream("in"), out = backend.make_stream("out"),
         transfer = backend.make_stream("transfer");
    backend.host_access(plateau::out(host.all()));
    backend.launch(in, plateau::elements{device.size()}, plateau::fill<float>{}, plateau::out(device.all()));
    if (!world.fold(0)) return;
    const auto exchange = [&](communicator_type& comm, index_t bytes) {
      std::vector<plateau::send_op> sends;
      std::vector<plateau::receive_op> receives;
      for (int r = 0; r < comm.size(); ++r)
        if (r != comm.rank()) {
          sends.push_back({device.data(), static_cast<std::size_t>(bytes), r});
          receives.push_back({device.data() + shared + expert, static_cast<std::size_t>(bytes), r});
        }
      comm.exchange(transfer, sends, receives, "bytes");
    };
    const auto pass = [&](const char* name, index_t floats_in, index_t floats_out, index_t exchanged) {
      for (auto* each : {&in, &out, &transfer}) backend.wait(backend.record(*each));
      backend.recorder().mark(name);
      backend.copy(in, plateau::in(host.first(floats_in)), plateau::out(device.first(floats_in)));
      backend.copy(out, plateau::in(device.first(floats_out)), plateau::out(host.first(floats_out)));
      exchange(world, exchanged * (shared / ranks));
      exchange(same_experts, exchanged * (expert / replicas));
    };
    pass("sums", shared + expert, own, 4);
    pass("update", 4 * own, 3 * own, 2);
    pass("done", 0, 0, 0);
  }

  // Its shape alone counts here.
  struct sum_of_squares {
    template <class Team, class S>
    void operator()(Team&, index_t, plateau::view<const float, S>, plateau::view<double, S>) const {}
  };

  plateau::sharded_shape shared_shape_, expert_shape_;
  plateau::staging_shape buckets_;
  passes time_, bound_;
  std::size_t device_bytes_ = 0;
};

} // namespace bench
