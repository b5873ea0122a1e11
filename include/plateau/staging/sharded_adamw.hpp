// SPDX-License-Identifier: Apache-2.0
//
// AdamW whose state is dealt to the ranks (ZeRO-1) and lies in pinned host memory: gradients, in pinned host
// memory too, are summed over ranks piece by piece, each rank updates its shard bucket by bucket, and each
// bucket of parameters goes to the other ranks while the next is updated. Lists of parameters may be held by
// different ranks, as those of experts are. Without sharding it does the same with all of the state on each
// rank. Bits: those of one AdamW that has everything on one device and sums in rank order.
//
//   sharded_adamw<Backend, Communicator, bfloat16> adamw(backend, world, lists, shape, space);
//   adamw.step(stream, {{gradients, parameters, &active}, ...}, {.groups = settings, .clip = 1.0});
//
// Clipping and skipping are decided on the device, alike on all ranks of the world, before the first byte of
// state changes: no host waits. What it takes of the device is slots and a control block, whatever the number
// of parameters.
#pragma once

#include <plateau/access.hpp>
#include <plateau/checks.hpp>
#include <plateau/config.hpp>
#include <plateau/digest.hpp>
#include <plateau/drain.hpp>
#include <plateau/error.hpp>
#include <plateau/memory_source.hpp>
#include <plateau/staging/adamw_control.hpp>
#include <plateau/staging/adamw_on_host.hpp>
#include <plateau/staging/adamw_state.hpp>
#include <plateau/staging/adamw_steps.hpp>
#include <plateau/staging/gradient_control.hpp>
#include <plateau/staging/shard_gather.hpp>
#include <plateau/staging/sharded_adamw_shape.hpp>
#include <plateau/staging/sharded_reduce.hpp>
#include <plateau/staging/staging_pipeline.hpp>
#include <plateau/vote.hpp>
#include <plateau/workspace.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace plateau::inline v0 {

// Used by the rank's host thread. Collective: the constructor and step. Backend, communicators and workspace
// must outlive it.
template <class Backend, class Communicator, class Parameter> class sharded_adamw {
  static_assert(check_backend<Backend>());
  static_assert(check_communicator<Communicator, Backend>());
  static_assert(floating_scalar<Parameter> && !std::is_same_v<Parameter, double>,
                "plateau: sharded_adamw: parameters are float, bfloat16 or half");
  using stream = typename Backend::stream;
  using pipeline = staging_pipeline<Backend, staged<float, flow::in>, staged<float, flow::inout>,
                                    staged<float, flow::inout>, staged<float, flow::inout>,
                                    staged<Parameter, flow::resident>>;
  using host_side = detail::adamw::on_host<Backend, float, Parameter, host_space>;
  using reduce_type = sharded_reduce<Backend, Communicator>;
  using gather_type = shard_gather<Backend, Communicator>;
  using control_type = gradient_control<Backend, Communicator>;

 public:
  using shape = sharded_adamw_shape;
  // Shards begin at multiples of it.
  static constexpr index_t grain = control_type::block_elements;
  // Of all streamed fields; what bucket_bytes is divided by.
  static constexpr std::size_t streamed_bytes_per_element = pipeline::streamed_bytes_per_element;

  // A list, and the ranks that hold it: `comm` is of these alone, also where it is the world's. What the
  // norm counts follows from the shards; adamw_tensor::counts is not looked at.
  struct list {
    Communicator* comm = nullptr;
    std::span<const adamw_tensor> tensors{};

    sharded_list sizes() const {
      sharded_list s{comm->size(), 0, static_cast<index_t>(tensors.size())};
      for (const adamw_tensor& t : tensors) s.elements += t.elements;
      return s;
    }
  };
  // Of a step, one for each list: gradients of this rank (elements), which become sums over ranks, of its own
  // shard at least; parameters (elements), written. Of tensors that are not active the gradients must be
  // zeros on all ranks: they are updated, but nothing of them is exchanged. Null: all are active.
  struct arguments {
    view<float, host_space> gradients;
    view<Parameter> parameters;
    const tensor_activity* active = nullptr;
  };

  // All that it takes from a workspace: a control block, and whichever phase needs more. Throws config_error
  // for a shape that cannot work.
  static working_set working_set_of(const shape& limits, std::span<const sharded_list> lists, int world) {
    working_set set = detail::adamw::control_set(tensors_of(lists), world);
    return set.add(phases(limits, lists));
  }
  // All that it allocates for itself, and keeps: exact slabs of rank `rank_of[i]`'s shard of each list, and
  // counts.
  static working_set state_of(const shape& limits, std::span<const sharded_list> lists,
                              std::span<const int> rank_of) {
    working_set set(tag::optimizer);
    for (std::size_t i = 0; i < lists.size(); ++i) {
      const auto plan = detail::adamw::shards_of(lists[i], limits.state, grain);
      const index_t n = plan.of_rank(limits.state == adamw_state_of::all ? 0 : rank_of[i]).elements;
      set.pinned<float>("master weights", n).pinned<float>("first moments", n);
      set.pinned<float>("second moments", n);
    }
    return set.device<std::int64_t>("steps of each tensor", tensors_of(lists))
        .device<float>("norm of gradients", 1);
  }

  // Collective: all ranks reserve and agree. Masters, moments and counts begin as 0. Throws collective_error
  // on all ranks when one of them cannot, with its numbers, or a list has other tensors on another rank of
  // its group; on this rank alone where the vote is left to the caller, and so are the lists.
  sharded_adamw(Backend& backend, Communicator& world, std::span<const list> lists, const shape& limits,
                workspace<Backend>& space, voting who = voting::now)
      : backend_(&backend), world_(&world), space_(&space), shape_(limits), control_(backend, world),
        control_set_(tag::optimizer) {
    std::optional<failure> mine;
    try {
      reserve(lists);
    } catch (...) {
      if (who == voting::left_to_caller) throw;
      mine = failure::current();
    }
    if (who == voting::left_to_caller) return;
    digest d;
    limits.add_to(d);
    d.add(scalar_kind_of<Parameter>).add(lists.size());
    vote(world, d, mine ? &*mine : nullptr, "sharded_adamw", limits.text());
    detail::adamw::agree_on_lists(world, lists);
  }
  sharded_adamw(const sharded_adamw&) = delete;
  sharded_adamw& operator=(const sharded_adamw&) = delete;

  // One step. Only enqueues. Throws config_error for settings that cannot be and sizes that do not fit,
  // before anything is enqueued; what the backend throws comes out when all that was enqueued has ended, with
  // buckets whole. The other ranks end with it.
  void step(stream& s, std::span<const arguments> of_lists, const adamw_options& options) {
    guarded(s, [&] {
      check(of_lists, options);
      auto open = space_->open(control_set_);
      phase_source<Backend> source(open);
      const control_memory m(source, steps_.size(), world_->size());
      measure(s, m, of_lists, options);
      index_t first = 0;
      for (std::size_t i = 0; i < parts_.size(); ++i) {
        part& p = *parts_[i];
        const auto tensors = static_cast<index_t>(p.tensors.size());
        const auto factors = m.factors.sub(first, tensors);
        detail::adamw::count(*backend_, s, std::span<const adamw_tensor>(p.tensors), options,
                             view<const float>(m.decision.control), steps_.all().sub(first, tensors),
                             factors);
        update(s, m, p, factors, of_lists[i], options);
        first += tensors;
      }
      for (const auto& p : parts_)
        if (p->gather) p->gather->join(s);
    });
  }

  // This rank's shard of a list, and its state as it lies in memory, to save it and to load it: the host
  // reads and writes it when no step is in flight.
  element_range shard(std::size_t i) const { return parts_[i]->own; }
  const shard_plan& shards(std::size_t i) const { return parts_[i]->plan; }
  view<float, host_space> master(std::size_t i) const { return parts_[i]->master.all(); }
  view<float, host_space> first_moment(std::size_t i) const { return parts_[i]->first.all(); }
  view<float, host_space> second_moment(std::size_t i) const { return parts_[i]->second.all(); }
  // How often each tensor was updated of which this rank has a part; on the device.
  view<const std::int64_t> steps(std::size_t i) const {
    index_t first = 0;
    for (std::size_t l = 0; l < i; ++l) first += static_cast<index_t>(parts_[l]->tensors.size());
    return steps_.all().sub(first, static_cast<index_t>(parts_[i]->tensors.size()));
  }
  // All tensors have been updated so often, as after a load.
  void set_steps(stream& s, std::int64_t steps) {
    backend_->launch(s, elements{steps_.size()}, fill<std::int64_t>{steps}, out(steps_.all()));
  }
  // (1), on the device: the norm of the last step's gradients before clipping, the same on every rank.
  view<float> gradient_norm() const { return norm_.all(); }

 private:
  using control_memory = detail::adamw::control_memory;
  // A list on this rank. What has streams goes before the memory.
  struct part {
    Communicator* comm;
    shard_plan plan;
    element_range own;
    std::vector<adamw_tensor> tensors; // of its own
    bucket_plan buckets;
    pinned_buffer<float, Backend> master, first, second;
    reduce_type reduce;
    std::optional<gather_type> gather;

    part(Backend& backend, const list& from, const shape& limits, workspace<Backend>& space,
         std::size_t exchange_bytes)
        : comm(from.comm), plan(detail::adamw::shards_of(from.sizes(), limits.state, grain)),
          own(plan.of_rank(limits.state == adamw_state_of::all ? 0 : comm->rank())),
          tensors(detail::adamw::tensors_in(own, from.tensors)),
          buckets(bucket_plan::elementwise(lengths(tensors), limits.update.bucket_elements)),
          master(backend.pinned(), own.elements, tag::optimizer),
          first(backend.pinned(), own.elements, tag::optimizer),
          second(backend.pinned(), own.elements, tag::optimizer),
          reduce(backend, *comm, space, detail::adamw::pieces_of(from.sizes(), exchange_bytes, grain),
                 tag::optimizer, voting::left_to_caller) {
      if (limits.state == adamw_state_of::own_shard && comm->size() > 1) gather.emplace(backend, *comm);
    }
    static std::vector<index_t> lengths(const std::vector<adamw_tensor>& of) {
      std::vector<index_t> n;
      for (const adamw_tensor& t : of) n.push_back(t.elements);
      return n;
    }
  };

  static index_t tensors_of(std::span<const sharded_list> lists) {
    index_t n = 0; // all of them: a shard may have the whole list
    for (const sharded_list& l : lists) n += l.tensors;
    return n;
  }
  static working_set update_set(const shape& limits, index_t tensors) {
    limits.update.check();
    return limits.update.where == update_on::device
               ? pipeline::working_set_of({limits.update.bucket_elements, limits.update.slots})
               : host_side::working_set_of(limits.update, tensors);
  }
  static std::size_t exchange_bytes(const shape& limits) {
    return limits.exchange_bytes != 0
               ? limits.exchange_bytes
               : pipeline::working_set_of({limits.update.bucket_elements, limits.update.slots})
                     .device_bytes();
  }
  // The phase that takes most of the device, with the pinned memory of the update, which alone has some.
  static working_set phases(const shape& limits, std::span<const sharded_list> lists) {
    working_set most = update_set(limits, tensors_of(lists));
    for (const sharded_list& l : lists) {
      working_set other =
          reduce_type::working_set_of(detail::adamw::pieces_of(l, exchange_bytes(limits), grain), l.ranks);
      if (other.device_bytes() <= most.device_bytes()) continue;
      for (const memory_line& line : most)
        if (line.kind == memory_kind::pinned_host) other.add(line.what, line.kind, line.bytes);
      most = other;
    }
    return most;
  }

  void reserve(std::span<const list> lists) {
    std::vector<sharded_list> sizes;
    for (const list& l : lists) sizes.push_back(l.sizes());
    const working_set set = working_set_of(shape_, sizes, world_->size());
    if (set.device_bytes() > space_->device_bytes() || set.pinned_bytes() > space_->pinned_bytes())
      throw config_error("plateau: sharded_adamw: needs " + std::to_string(set.device_bytes()) +
                         " device and " + std::to_string(set.pinned_bytes()) +
                         " pinned bytes, but the workspace has " + std::to_string(space_->device_bytes()) +
                         " and " + std::to_string(space_->pinned_bytes()) +
                         ": reserve working_set_of(shape, lists, ranks)");
    control_set_ = detail::adamw::control_set(tensors_of(sizes), world_->size());
    for (const list& l : lists)
      parts_.push_back(std::make_unique<part>(*backend_, l, shape_, *space_, exchange_bytes(shape_)));
    steps_ = device_buffer<std::int64_t, Backend>(backend_->device(), tensors_of(sizes), tag::optimizer);
    norm_ = device_buffer<float, Backend>(backend_->device(), 1, tag::optimizer);
    const adamw_shape& u = shape_.update;
    if (u.where == update_on::host)
      host_.emplace(*backend_, u);
    else
      pipeline_.emplace(*backend_, *space_, staging_shape{u.bucket_elements, u.slots});
    stream begin = backend_->make_stream("adamw state");
    for (const auto& p : parts_)
      for (const auto& slab : {p->master.all(), p->first.all(), p->second.all()})
        backend_->host_task(begin, detail::adamw::zero_host{}, out(slab));
    set_steps(begin, 0);
    backend_->launch(begin, elements{1}, fill<float>{0}, out(norm_.all()));
    backend_->wait(backend_->record(begin));
  }

  void check(std::span<const arguments> of_lists, const adamw_options& options) const {
    const auto refuse = [&](const std::string& why) {
      throw config_error("plateau: rank " + std::to_string(world_->rank()) + ": sharded_adamw: " + why);
    };
    if (of_lists.size() != parts_.size())
      refuse("arguments for " + std::to_string(of_lists.size()) + " lists, expected " +
             std::to_string(parts_.size()));
    if (!options.present.empty()) refuse("`present` does not go with shards: use tensor_activity");
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      options.check(parts_[i]->tensors);
      const index_t n = parts_[i]->plan.elements();
      if (of_lists[i].gradients.n != n || of_lists[i].parameters.n != n)
        refuse("list " + std::to_string(i) + " has " + std::to_string(n) + " elements, but got " +
               std::to_string(of_lists[i].gradients.n) + " gradients and " +
               std::to_string(of_lists[i].parameters.n) + " parameters");
    }
  }

  void measure(stream& s, const control_memory& m, std::span<const arguments> of_lists,
               const adamw_options& options) {
    control_.begin(s, m.decision);
    const tensor_activity all;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      part& p = *parts_[i];
      // Of sums that all ranks of a list have, one counts them.
      const bool counts = shape_.state == adamw_state_of::own_shard || p.comm->rank() == 0;
      const auto each = [&](stream& on, index_t, view<const float> sums) {
        control_.add(on, m.decision, sums, 0, sums.n, counts);
      };
      const tensor_activity& active = of_lists[i].active != nullptr ? *of_lists[i].active : all;
      if (shape_.state == adamw_state_of::own_shard)
        p.reduce.run(s, p.plan, active, of_lists[i].gradients, each);
      else
        p.reduce.run_whole(s, active, of_lists[i].gradients, each);
    }
    control_.finish(s, m.decision, options.clip, norm_.all());
  }

  void update(stream& s, const control_memory& m, part& p, view<adamw_factors> factors, const arguments& of,
              const adamw_options& options) {
    const index_t step = shape_.update.bucket_elements;
    const auto mine = [&](auto v) { return v.sub(p.own.first, p.own.elements); };
    const auto send = [&](stream& made, index_t i) {
      if (p.gather) p.gather->piece(made, p.plan, step, i, of.parameters);
    };
    index_t sent = 0;
    if (host_) {
      const auto progress = [](const bucket&) {};
      host_->run(s, *space_, p.buckets, factors, m.decision.control,
                 view<const float, host_space>(mine(of.gradients)), p.master.all(), p.first.all(),
                 p.second.all(), mine(of.parameters), options, progress);
    } else {
      pipeline_->run(s, p.buckets,
                     {mine(of.gradients), p.master.all(), p.first.all(), p.second.all(), mine(of.parameters)},
                     [&](stream& on, const bucket& b, view<const float> g, view<float> master,
                         view<float> first, view<float> second, view<Parameter> parameter) {
                       for (index_t t = b.first_tensor; t < b.last_tensor; ++t) {
                         const tensor_part cut = p.buckets.part_of(b, t);
                         const auto part_of = [&](auto v) { return v.sub(cut.at, cut.elements); };
                         backend_->launch(
                             on, rows{adamw_counted_update::rows_of(cut.elements)}, adamw_counted_update{},
                             in(view<const adamw_factors>(factors.sub(t, 1))), in(part_of(g)),
                             in(view<const float>(m.decision.control)), inout(part_of(master)),
                             inout(part_of(first)), inout(part_of(second)), inout(part_of(parameter)));
                       }
                       send(on, b.index);
                       sent = b.index + 1;
                     });
    }
    // Those of longer shards than this rank's, or all that the host has made.
    if (p.gather)
      for (; sent < p.plan.pieces(step); ++sent) send(s, sent);
  }

  // What fails on one rank fails on all: the others wait in its exchanges.
  template <class F> void guarded(stream& s, F f) {
    try {
      f();
    } catch (...) {
      failure why = failure::current();
      if (why.operation.empty()) why.operation = "sharded_adamw";
      if constexpr (requires { world_->abort(why); })
        world_->abort(why);
      else
        world_->abort(why.text);
      for (const auto& p : parts_)
        if (p->gather) p->gather->settle();
      const drain<Backend> before_it_goes(*backend_, s);
      throw;
    }
  }

  Backend* backend_;
  Communicator* world_;
  workspace<Backend>* space_;
  shape shape_;
  control_type control_;
  working_set control_set_;
  device_buffer<std::int64_t, Backend> steps_; // of the tensors of all lists that this rank has a part of
  device_buffer<float, Backend> norm_;
  std::vector<std::unique_ptr<part>> parts_;
  std::optional<pipeline> pipeline_;
  std::optional<host_side> host_;
};

} // namespace plateau::inline v0
