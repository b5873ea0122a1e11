// SPDX-License-Identifier: Apache-2.0
//
// State that is larger than the device, updated on the device: it lies in pinned host memory and passes
// through a few slots, bucket by bucket. While one bucket is updated, the next comes in and the last goes
// out, so that the time is that of the slowest of the three, and the device's memory that of the slots,
// whatever the size of the state. docs/staging.md says what is promised, what it costs and when it pays.
//
//   using pipeline = staging_pipeline<Backend, staged<float, flow::in>, staged<float, flow::inout>>;
//   workspace space(backend, pipeline::working_set_of(shape));
//   pipeline stage(backend, space, shape);                   // streams are made here, once
//   stage.run(stream, plan, {gradients.all(), moments.all()},
//             [&](auto& s, const bucket& b, view<const float> g, view<float> m) { backend.launch(s, ...); });
//
// The results are those of the same update of the whole state, to the bit, for any bucket, number of slots
// and timing, where the update itself does not depend on how elements are cut.
#pragma once

#include <plateau/access.hpp>
#include <plateau/checks.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/memory_source.hpp>
#include <plateau/staging/bucket_plan.hpp>
#include <plateau/staging/staging_fields.hpp>
#include <plateau/staging/staging_shape.hpp>
#include <plateau/staging/staging_slots.hpp>
#include <plateau/view.hpp>
#include <plateau/working_set.hpp>
#include <plateau/workspace.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

namespace plateau::inline v0 {

// Fields: staged<T, flow>. Used by the rank's host thread, one call at a time; not collective. `backend` and
// `space` must outlive it. It holds no state between calls.
template <class Backend, class... Field> class staging_pipeline {
  static_assert(check_backend<Backend>());
  static_assert(sizeof...(Field) > 0 && (is_staged_field<Field> && ...),
                "plateau: staging_pipeline<Backend, Fields...> takes fields as staged<T, flow>");
  static_assert(staging_shape::most_slots * sizeof...(Field) <= working_set::capacity,
                "plateau: staging_pipeline: at most 16 fields");
  using stream = typename Backend::stream;
  using event = typename Backend::event;

 public:
  using shape = staging_shape;
  // The whole of each field, as the caller has it: view<T, host_space> of memory that is pinned already
  // (const T where it only comes in), view<T> of the device for a resident one.
  using slabs = std::tuple<typename Field::slab...>;

  // Of all streamed fields; what bucket_bytes is divided by.
  static constexpr std::size_t streamed_bytes_per_element = (Field::streamed_bytes + ...);

  // A shape with buckets of bucket_bytes, all streamed fields together; 0: default_bucket_bytes for a state
  // of `elements`, but at least one element. Throws config_error for a bucket smaller than one element.
  static shape shape_for(index_t elements, std::size_t bucket_bytes = 0, int slots = 3) {
    shape s{1, slots};
    s.check();
    if (bucket_bytes == 0)
      bucket_bytes = std::max(
          streamed_bytes_per_element,
          default_bucket_bytes(static_cast<std::size_t>(elements) * streamed_bytes_per_element, slots));
    s.bucket_elements = bucket_elements_for(bucket_bytes, streamed_bytes_per_element);
    return s;
  }
  // All that it takes from a workspace: slots x bucket_elements x streamed_bytes_per_element, each part
  // rounded up to part_alignment; no pinned memory. Throws config_error for a shape that cannot work.
  static working_set working_set_of(const shape& limits, tag purpose = tag::optimizer) {
    limits.check();
    working_set set(purpose);
    counting_source source(set);
    detail::staging_slots<Field...>(source, limits);
    return set;
  }

  // Throws config_error when the shape cannot work or the workspace is too small for it.
  staging_pipeline(Backend& backend, workspace<Backend>& space, const shape& limits,
                   tag purpose = tag::optimizer)
      : backend_(&backend), space_(&space), shape_(limits), set_(checked(limits, space, purpose)),
        in_(backend.make_stream("staging in")), out_(backend.make_stream("staging out")) {
    if (limits.compute == staging_compute::own_stream)
      compute_.emplace(backend.make_stream("staging compute"));
  }
  staging_pipeline(const staging_pipeline&) = delete;
  staging_pipeline& operator=(const staging_pipeline&) = delete;

  // Streams every bucket of the plan. update(stream, bucket, parts...) enqueues the work of one bucket: on
  // that stream, on a view of bucket.elements of each field. progress(bucket) is called on this thread when
  // all of a bucket's work is enqueued, buckets in order. Work that is on `caller` before begins first; what
  // comes after it waits for the last bucket. Only enqueues: no wait of the host, no allocation.
  //
  // Throws config_error when a bucket of the plan does not fit into a slot, or a slab has not as many
  // elements as the plan, before anything is enqueued. What update or progress throw comes out when all that
  // was enqueued has ended: buckets whose update returned are whole in host memory, the others are as they
  // were. So it is when a stream fails at an update or on the way in; only a copy on the way out that fails
  // may leave its own bucket half written.
  template <class Update, class Progress>
  void run(stream& caller, const bucket_plan& plan, const slabs& whole, Update&& update,
           Progress&& progress) {
    check(plan, whole, fields());
    if (plan.buckets() == 0) return;
    auto open = space_->open(set_);
    phase_source<Backend> source(open);
    const slots_type memory(source, shape_);
    try {
      issue(caller, plan, whole, memory, update, progress);
    } catch (...) {
      join(caller);
      throw;
    }
  }
  template <class Update>
  void run(stream& caller, const bucket_plan& plan, const slabs& whole, Update&& update) {
    run(caller, plan, whole, std::forward<Update>(update), [](const bucket&) {});
  }

  const shape& limits() const { return shape_; }

 private:
  using slots_type = detail::staging_slots<Field...>;
  static constexpr bool any_in = (comes_in(Field::direction) || ...),
                        any_out = (goes_out(Field::direction) || ...);
  static constexpr std::index_sequence_for<Field...> fields() { return {}; }
  template <std::size_t Index> using field = std::tuple_element_t<Index, std::tuple<Field...>>;

  static working_set checked(const shape& limits, const workspace<Backend>& space, tag purpose) {
    const working_set set = working_set_of(limits, purpose);
    if (set.device_bytes() > space.device_bytes())
      throw config_error("plateau: staging_pipeline: " + std::to_string(limits.slots) + " slots of " +
                         std::to_string(limits.bucket_elements) + " elements need " +
                         std::to_string(set.device_bytes()) + " device bytes, but the workspace has " +
                         std::to_string(space.device_bytes()) + ": reserve working_set_of(shape)");
    return set;
  }
  template <std::size_t... Index>
  void check(const bucket_plan& plan, const slabs& whole, std::index_sequence<Index...>) const {
    if (plan.largest() > shape_.bucket_elements)
      throw config_error("plateau: staging_pipeline: the plan has a bucket of " +
                         std::to_string(plan.largest()) + " elements, but a slot holds " +
                         std::to_string(shape_.bucket_elements) +
                         ": make the plan with the shape's bucket_elements");
    const auto same = [&](std::size_t number, index_t n) {
      if (n != plan.elements())
        throw config_error("plateau: staging_pipeline: the slab of field " + std::to_string(number) +
                           " has " + std::to_string(n) + " elements, but the plan is of " +
                           std::to_string(plan.elements()) + ": all fields are as long as the plan");
    };
    (same(Index, std::get<Index>(whole).n), ...);
  }

  // A bucket of one field as the update gets it.
  template <std::size_t Index>
  static typename field<Index>::part part(const typename slots_type::slot& slot, const slabs& whole,
                                          const bucket& b) {
    if constexpr (is_streamed(field<Index>::direction))
      return std::get<Index>(slot).memory.sub(0, b.elements);
    else
      return std::get<Index>(whole).sub(b.first, b.elements);
  }
  template <std::size_t Index>
  void copy_in(const typename slots_type::slot& slot, const slabs& whole, const bucket& b) {
    if constexpr (comes_in(field<Index>::direction))
      backend_->copy(in_, plateau::in(std::get<Index>(whole).sub(b.first, b.elements)),
                     plateau::out(std::get<Index>(slot).memory.sub(0, b.elements)));
  }
  template <std::size_t Index>
  void copy_out(const typename slots_type::slot& slot, const slabs& whole, const bucket& b) {
    if constexpr (goes_out(field<Index>::direction))
      backend_->copy(out_, plateau::in(std::get<Index>(slot).memory.sub(0, b.elements)),
                     plateau::out(std::get<Index>(whole).sub(b.first, b.elements)));
  }

  template <class Update, class Progress>
  void issue(stream& caller, const bucket_plan& plan, const slabs& whole, const slots_type& memory,
             Update& update, Progress& progress) {
    issue(caller, plan, whole, memory, update, progress, fields());
  }
  // Of each slot, the event after which nothing uses it: the end of its own bucket's way out, or of the
  // update where nothing goes out. Its next bucket waits for that one and for no other: a later event would
  // cost time, an earlier one the state.
  template <class Update, class Progress, std::size_t... Index>
  void issue(stream& caller, const bucket_plan& plan, const slabs& whole, const slots_type& memory,
             Update& update, Progress& progress, std::index_sequence<Index...>) {
    Backend& be = *backend_;
    stream& compute = compute_ ? *compute_ : caller;
    std::array<event, staging_shape::most_slots> unused{};
    // What the caller has made of the fields, and of the workspace, is there before the first stage begins.
    // The stages after it wait for the first.
    if constexpr (any_in)
      be.wait(in_, be.record(caller));
    else if (compute_)
      be.wait(compute, be.record(caller));
    for (index_t i = 0; i < plan.buckets(); ++i) {
      const bucket b = plan.at(i);
      const auto number = static_cast<std::size_t>(i % shape_.slots);
      const auto& slot = memory.slots[number];
      if constexpr (any_in) {
        if (i >= shape_.slots) be.wait(in_, unused[number]);
        (copy_in<Index>(slot, whole, b), ...);
        be.wait(compute, be.record(in_));
      } else if constexpr (any_out) {
        if (i >= shape_.slots) be.wait(compute, unused[number]);
      }
      update(compute, b, part<Index>(slot, whole, b)...);
      if constexpr (any_out) {
        be.wait(out_, be.record(compute));
        (copy_out<Index>(slot, whole, b), ...);
        unused[number] = be.record(out_);
      } else {
        unused[number] = be.record(compute);
      }
      progress(b);
    }
    const auto last = static_cast<std::size_t>((plan.buckets() - 1) % shape_.slots);
    if (any_out || compute_) be.wait(caller, unused[last]);
  }
  // Whoever catches may let the memory go that copies and updates use; and a bucket on its way out must
  // arrive. A failure of a stream itself is latched there and has come out already.
  void join(stream& caller) noexcept {
    const auto ended = [&](stream& s) {
      try {
        backend_->wait(backend_->record(s));
      } catch (...) {
      }
    };
    ended(in_);
    ended(compute_ ? *compute_ : caller);
    ended(out_);
  }

  Backend* backend_;
  workspace<Backend>* space_;
  shape shape_;
  working_set set_;
  stream in_, out_;
  std::optional<stream> compute_;
};

} // namespace plateau::inline v0
