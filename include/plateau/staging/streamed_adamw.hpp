// SPDX-License-Identifier: Apache-2.0
//
// AdamW whose state lies in pinned host memory and passes through a few slots on the device, bucket by
// bucket; or stays there, and the processor updates it. Master weights and both moments are fp32, gradients
// fp32 or bf16, on the device or in pinned memory; the parameters leave in the same pass, rounded to their
// type. The device's memory is that of the slots and of a control block, whatever the number of parameters.
//
//   streamed_adamw<host_backend, thread_communicator, float, bfloat16> adamw(backend, comm, tensors, shape,
//   space); adamw.set_masters(stream, parameters); adamw.step(stream, gradients, parameters, {.groups =
//   settings, .clip = 1.0});
//
// Clipping and skipping are decided on the device, alike on all ranks, before the first byte of state
// changes: no host waits. The results are the bits of the same update of the whole state, for any bucket,
// number of slots and timing, and on either side.
#pragma once

#include <plateau/access.hpp>
#include <plateau/checks.hpp>
#include <plateau/config.hpp>
#include <plateau/drain.hpp>
#include <plateau/error.hpp>
#include <plateau/memory_source.hpp>
#include <plateau/staging/adamw_control.hpp>
#include <plateau/staging/adamw_on_host.hpp>
#include <plateau/staging/adamw_shape.hpp>
#include <plateau/staging/adamw_state.hpp>
#include <plateau/staging/adamw_steps.hpp>
#include <plateau/staging/gradient_control.hpp>
#include <plateau/staging/staging_pipeline.hpp>
#include <plateau/vote.hpp>
#include <plateau/workspace.hpp>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace plateau::inline v0 {

// GradientSpace: where gradients lie, MasterSpace: where master weights do; device_space or host_space, which
// is pinned memory. All lists have their tensors one after another. Used by the rank's host thread; backend,
// communicator and workspace must outlive it. Collective: the constructor and step.
template <class Backend, class Communicator, class Gradient, class Parameter,
          class GradientSpace = device_space, class MasterSpace = host_space>
class streamed_adamw {
  static_assert(check_backend<Backend>());
  static_assert(check_communicator<Communicator, Backend>());
  static_assert(floating_scalar<Gradient> && floating_scalar<Parameter> &&
                    !std::is_same_v<Gradient, double> && !std::is_same_v<Parameter, double>,
                "plateau: streamed_adamw: gradients and parameters are float, bfloat16 or half");
  static constexpr bool gradients_on_host = std::is_same_v<GradientSpace, host_space>;
  static constexpr bool masters_on_host = std::is_same_v<MasterSpace, host_space>;
  using stream = typename Backend::stream;
  using gradient_field = std::conditional_t<gradients_on_host, staged<Gradient, flow::in>,
                                            staged<const Gradient, flow::resident>>;
  using master_field = staged<float, masters_on_host ? flow::inout : flow::resident>;
  using pipeline = staging_pipeline<Backend, gradient_field, master_field, staged<float, flow::inout>,
                                    staged<float, flow::inout>, staged<Parameter, flow::resident>>;
  using norm_pipeline = staging_pipeline<Backend, staged<Gradient, flow::in>>;
  using host_side = detail::adamw::on_host<Backend, Gradient, Parameter, GradientSpace>;

 public:
  using shape = adamw_shape;
  using gradients_view = view<const Gradient, GradientSpace>;

  // Of all streamed fields; what bucket_bytes is divided by.
  static constexpr std::size_t streamed_bytes_per_element = pipeline::streamed_bytes_per_element;

  // All that it takes from a workspace: a control block, and slots. Throws config_error for a shape that
  // cannot work.
  static working_set working_set_of(const shape& limits, index_t tensors, int ranks) {
    limits.check();
    working_set set = detail::adamw::control_set(tensors, ranks);
    return set.add(slots_set(limits, tensors));
  }
  // All that it allocates for itself, and keeps: exact slabs of the state, and a count for each tensor.
  static working_set state_of(index_t elements, index_t tensors) {
    working_set set(tag::optimizer);
    if constexpr (masters_on_host)
      set.pinned<float>("master weights", elements);
    else
      set.device<float>("master weights", elements);
    set.pinned<float>("first moments", elements).pinned<float>("second moments", elements);
    return set.device<std::int64_t>("steps of each tensor", tensors).device<float>("norm of gradients", 1);
  }

  // Collective: all ranks reserve and agree; tensors may differ from rank to rank. Masters, moments and
  // counts begin as 0. Throws collective_error on all ranks when one of them cannot, with its numbers: a
  // shape that cannot work, a workspace that is too small, a state beyond the host's budget. Nothing is left
  // then.
  streamed_adamw(Backend& backend, Communicator& comm, std::span<const adamw_tensor> tensors,
                 const shape& limits, workspace<Backend>& space, voting who = voting::now)
      : backend_(&backend), comm_(&comm), space_(&space), tensors_(tensors.begin(), tensors.end()),
        shape_(limits),
        control_set_(detail::adamw::control_set(static_cast<index_t>(tensors.size()), comm.size())),
        control_(backend, comm) {
    std::optional<failure> mine;
    try {
      reserve();
    } catch (...) {
      if (who == voting::left_to_caller) throw;
      mine = failure::current();
    }
    if (who == voting::left_to_caller) return;
    digest d;
    limits.add_to(d);
    d.add(scalar_kind_of<Gradient>).add(scalar_kind_of<Parameter>);
    vote(comm, d, mine ? &*mine : nullptr, "streamed_adamw",
         std::string(scalar_name<Gradient>()) + " gradients, " + std::string(scalar_name<Parameter>()) +
             " parameters, " + limits.text());
  }
  streamed_adamw(const streamed_adamw&) = delete;
  streamed_adamw& operator=(const streamed_adamw&) = delete;

  // One step: gradients (elements) are read, parameters (elements) written. progress(bucket) is called when
  // all of a bucket's work is enqueued, as that of staging_pipeline is. Only enqueues; one exchange. Throws
  // config_error, before anything is enqueued, for settings that cannot be, sizes that do not fit; what
  // progress or the backend throw comes out when all that was enqueued has ended, with buckets whole. The
  // other ranks end with it.
  template <class Progress>
  void step(stream& s, gradients_view gradients, view<Parameter> parameters, const adamw_options& options,
            Progress&& progress) {
    options.check(tensors_);
    check_size("gradients", gradients.n);
    check_size("parameters", parameters.n);
    guarded(s, [&] {
      auto open = space_->open(control_set_);
      phase_source<Backend> source(open);
      const control_memory m(source, tensors(), comm_->size());
      measure(s, m, gradients, options);
      detail::adamw::count(*backend_, s, std::span<const adamw_tensor>(tensors_), options,
                           view<const float>(m.decision.control), state_->steps.all(), m.factors);
      if (shape_.where == update_on::device)
        update_on_device(s, m, gradients, parameters, options, progress);
      else if constexpr (masters_on_host)
        host_->run(s, *space_, plan_, m.factors, m.decision.control, gradients, state_->master.all(),
                   state_->first_moment.all(), state_->second_moment.all(), parameters, options, progress);
    });
  }
  void step(stream& s, gradients_view gradients, view<Parameter> parameters, const adamw_options& options) {
    step(s, gradients, parameters, options, [](const bucket&) {});
  }

  // Masters become the values of the parameters; parameters become the masters, rounded, as after a load. For
  // the beginning: bucket by bucket through pinned memory of their own, and they wait for the stream.
  void set_masters(stream& s, view<const Parameter> parameters) {
    check_size("parameters", parameters.n);
    if constexpr (!masters_on_host) {
      backend_->launch(s, plateau::elements{elements()}, convert{}, in(parameters),
                       out(state_->master.all()));
    } else {
      in_turns(s, [&](const bucket& b, view<Parameter, host_space> values) {
        backend_->copy(s, in(parameters.sub(b.first, b.elements)), out(values));
        backend_->host_task(s, detail::adamw::convert_host{}, in(view<const Parameter, host_space>(values)),
                            out(state_->master.all().sub(b.first, b.elements)));
      });
    }
  }
  void publish(stream& s, view<Parameter> parameters) {
    check_size("parameters", parameters.n);
    const auto masters = view<const float, MasterSpace>(state_->master.all());
    if constexpr (!masters_on_host) {
      backend_->launch(s, plateau::elements{elements()}, convert{}, in(masters), out(parameters));
    } else {
      in_turns(s, [&](const bucket& b, view<Parameter, host_space> values) {
        backend_->host_task(s, detail::adamw::convert_host{}, in(masters.sub(b.first, b.elements)),
                            out(values));
        backend_->copy(s, in(view<const Parameter, host_space>(values)),
                       out(parameters.sub(b.first, b.elements)));
      });
    }
  }

  index_t tensors() const { return static_cast<index_t>(tensors_.size()); }
  index_t elements() const { return plan_.elements(); }
  const bucket_plan& plan() const { return plan_; }
  // The state of a tensor, as it lies in memory, to save it and to load it: the host reads and writes it when
  // no step is in flight.
  view<float, MasterSpace> master(index_t tensor) const { return of(state_->master.all(), tensor); }
  view<float, host_space> first_moment(index_t tensor) const {
    return of(state_->first_moment.all(), tensor);
  }
  view<float, host_space> second_moment(index_t tensor) const {
    return of(state_->second_moment.all(), tensor);
  }
  // Of all tensors: how often each was updated. Read with a host round trip, for a save; `into` and `from`
  // have a number for each tensor, or config_error is thrown. Both wait for the stream.
  void read_steps(stream& s, std::span<std::int64_t> into) {
    check_count("steps", static_cast<index_t>(into.size()));
    const auto host = pinned_steps();
    const drain<Backend> before_it_goes(*backend_, s);
    backend_->copy(s, in(view<const std::int64_t>(state_->steps.all())), out(host.all()));
    backend_->fetch(backend_->record(s), in(view<const std::int64_t, host_space>(host.all())), into,
                    "steps of each tensor", std::int64_t{0});
  }
  void write_steps(stream& s, std::span<const std::int64_t> from) {
    check_count("steps", static_cast<index_t>(from.size()));
    for (std::size_t t = 0; t < from.size(); ++t)
      if (from[t] < 0)
        throw config_error("plateau: streamed_adamw: tensor " + std::to_string(t) + " cannot have made " +
                           std::to_string(from[t]) + " steps");
    const auto host = pinned_steps();
    const drain<Backend> before_it_goes(*backend_, s);
    backend_->host_task(s, copy_steps{from.data()}, out(host.all()));
    backend_->copy(s, in(view<const std::int64_t, host_space>(host.all())), out(state_->steps.all()));
    backend_->wait(backend_->record(s));
  }
  // (1), on the device: the norm of the last step's gradients before clipping, the same on every rank.
  view<const float> gradient_norm() const { return state_->norm.all(); }

 private:
  using control_memory = detail::adamw::control_memory;
  struct copy_steps {
    const std::int64_t* from;
    void operator()(view<std::int64_t, host_space> to) const { std::copy_n(from, to.n, to.p); }
  };

  // Buckets of whole blocks, so that the norm's bits do not depend on them; as long as the slots of an update
  // allow, but one block at least.
  static staging_shape norm_shape(const shape& limits) {
    constexpr index_t block = gradient_control<Backend, Communicator>::block_elements;
    const index_t most = limits.bucket_elements * static_cast<index_t>(streamed_bytes_per_element) /
                         static_cast<index_t>(sizeof(Gradient));
    return {std::max<index_t>(most / block, 1) * block, std::min(limits.slots, 2)};
  }
  // Whichever phase needs more; they alternate.
  static working_set slots_set(const shape& limits, index_t tensors) {
    working_set most = limits.where == update_on::device
                           ? pipeline::working_set_of({limits.bucket_elements, limits.slots})
                           : host_side::working_set_of(limits, tensors);
    const auto take = [&most](const working_set& other) {
      if (other.device_bytes() > most.device_bytes()) {
        working_set larger = other;
        for (const memory_line& line : most)
          if (line.kind == memory_kind::pinned_host) larger.add(line.what, line.kind, line.bytes);
        most = larger;
      }
    };
    if constexpr (gradients_on_host) take(norm_pipeline::working_set_of(norm_shape(limits)));
    return most;
  }

  void reserve() {
    shape_.check();
    std::vector<index_t> lengths;
    for (const adamw_tensor& t : tensors_) lengths.push_back(t.elements);
    plan_ = bucket_plan::elementwise(lengths, shape_.bucket_elements);
    const working_set set = working_set_of(shape_, tensors(), comm_->size());
    if (set.device_bytes() > space_->device_bytes() || set.pinned_bytes() > space_->pinned_bytes())
      throw config_error(
          "plateau: streamed_adamw: " + std::to_string(shape_.slots) + " slots of " +
          std::to_string(shape_.bucket_elements) + " elements need " + std::to_string(set.device_bytes()) +
          " device and " + std::to_string(set.pinned_bytes()) + " pinned bytes, but the workspace has " +
          std::to_string(space_->device_bytes()) + " and " + std::to_string(space_->pinned_bytes()) +
          ": reserve working_set_of(shape, tensors, ranks)");
    if (shape_.where == update_on::host) {
      if constexpr (!masters_on_host)
        throw config_error("plateau: streamed_adamw: the host cannot update master weights on the device: "
                           "keep them in host memory, or update on the device");
      host_.emplace(*backend_, shape_);
    } else {
      pipeline_.emplace(*backend_, *space_, staging_shape{shape_.bucket_elements, shape_.slots});
    }
    if constexpr (gradients_on_host) {
      norm_pipeline_.emplace(*backend_, *space_, norm_shape(shape_));
      norm_plan_ = bucket_plan::elementwise(lengths, norm_shape(shape_).bucket_elements);
    }
    state_.emplace(*backend_, plan_.elements(), tensors());
    stream begin = backend_->make_stream("adamw state");
    state_->clear(*backend_, begin);
    backend_->wait(backend_->record(begin));
  }

  void check_size(const char* what, index_t has) const {
    if (has != elements()) refuse_size(what, has, elements(), "elements");
  }
  void check_count(const char* what, index_t has) const {
    if (has != tensors()) refuse_size(what, has, tensors(), "tensors");
  }
  [[noreturn]] void refuse_size(const char* what, index_t has, index_t expected, const char* of) const {
    throw config_error("plateau: rank " + std::to_string(comm_->rank()) + ": streamed_adamw: " + what +
                       " has " + std::to_string(has) + " entries, but there are " + std::to_string(expected) +
                       " " + of);
  }
  template <class Space> view<float, Space> of(view<float, Space> whole, index_t tensor) const {
    if (tensor < 0 || tensor >= tensors())
      throw config_error("plateau: streamed_adamw: there is no tensor " + std::to_string(tensor) + " of " +
                         std::to_string(tensors()));
    return whole.sub(plan_.first_of(tensor), plan_.elements_of(tensor));
  }
  pinned_buffer<std::int64_t, Backend> pinned_steps() const {
    return {backend_->pinned(), tensors(), tag::optimizer};
  }
  template <class F> void in_turns(stream& s, F f) {
    const pinned_buffer<Parameter, Backend> values(backend_->pinned(), plan_.largest(), tag::optimizer);
    const drain<Backend> before_they_go(*backend_, s);
    for (index_t i = 0; i < plan_.buckets(); ++i) f(plan_.at(i), values.first(plan_.at(i).elements));
    backend_->wait(backend_->record(s));
  }

  void measure(stream& s, const control_memory& m, gradients_view gradients, const adamw_options& options) {
    control_.begin(s, m.decision);
    if constexpr (gradients_on_host) {
      norm_pipeline_->run(s, norm_plan_, {gradients},
                          [&](stream& on, const bucket& b, view<const Gradient> part) {
                            detail::adamw::for_each_run(
                                plan_, tensors_, options, [&](index_t first, index_t count, bool counts) {
                                  const index_t from = std::max(first, b.first) - b.first;
                                  const index_t to = std::min(first + count, b.first + b.elements) - b.first;
                                  if (from < to) control_.add(on, m.decision, part, from, to - from, counts);
                                });
                          });
    } else {
      detail::adamw::for_each_run(plan_, tensors_, options, [&](index_t first, index_t count, bool counts) {
        control_.add(s, m.decision, gradients, first, count, counts);
      });
    }
    control_.finish(s, m.decision, options.clip, state_->norm.all());
  }
  template <class Progress>
  void update_on_device(stream& s, const control_memory& m, gradients_view gradients,
                        view<Parameter> parameters, const adamw_options& options, Progress& progress) {
    pipeline_->run(
        s, plan_,
        {gradients, state_->master.all(), state_->first_moment.all(), state_->second_moment.all(),
         parameters},
        [&](stream& on, const bucket& b, view<const Gradient> g, view<float> master, view<float> first_moment,
            view<float> second_moment, view<Parameter> parameter) {
          for (index_t t = b.first_tensor; t < b.last_tensor; ++t) {
            if (!options.has(t)) continue;
            const tensor_part p = plan_.part_of(b, t);
            const auto part = [&p](auto v) { return v.sub(p.at, p.elements); };
            backend_->launch(on, rows{adamw_counted_update::rows_of(p.elements)}, adamw_counted_update{},
                             in(view<const adamw_factors>(m.factors.sub(t, 1))), in(part(g)),
                             in(view<const float>(m.decision.control)), inout(part(master)),
                             inout(part(first_moment)), inout(part(second_moment)), inout(part(parameter)));
          }
        },
        progress);
  }

  // What fails on one rank fails on all: the others wait in the exchange of the norm. What has been enqueued
  // uses the caller's memory, so it ends before the caller learns of it.
  template <class F> void guarded(stream& s, F f) {
    try {
      f();
    } catch (...) {
      failure why = failure::current();
      if (why.operation.empty()) why.operation = "streamed_adamw";
      if constexpr (requires { comm_->abort(why); })
        comm_->abort(why);
      else
        comm_->abort(why.text);
      const drain<Backend> before_it_goes(*backend_, s);
      throw;
    }
  }

  Backend* backend_;
  Communicator* comm_;
  workspace<Backend>* space_;
  std::vector<adamw_tensor> tensors_;
  shape shape_;
  working_set control_set_;
  bucket_plan plan_, norm_plan_;
  gradient_control<Backend, Communicator> control_;
  // Before what has streams: those are joined before the memory goes.
  std::optional<detail::adamw::state<Backend, MasterSpace>> state_;
  std::optional<pipeline> pipeline_;
  std::optional<norm_pipeline> norm_pipeline_; // gradients in host memory
  std::optional<host_side> host_;              // update_on::host
};

} // namespace plateau::inline v0
