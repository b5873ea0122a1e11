// SPDX-License-Identifier: Apache-2.0
//
// A step of a staging pipeline without data, in virtual time: how long it takes on a machine, beside how long
// its bytes take alone each way and its updates by themselves.
#pragma once

#include <plateau/dry_run/backend.hpp>
#include <plateau/dry_run/predict.hpp>
#include <plateau/dry_run/presets.hpp>
#include <plateau/dry_run/run_dry.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/staging/staging_pipeline.hpp>

#include <algorithm>
#include <tuple>
#include <utility>

namespace support {

namespace pl = plateau;
using pl::index_t;

// An update that moves so many bytes of device memory for each element, and is otherwise any.
struct update_of_bytes {
  double bytes_per_element;
  template <class... V> PLATEAU_HD void operator()(index_t, V...) const {}
  template <class... V> std::uint64_t moved_bytes(index_t n, V...) const {
    return static_cast<std::uint64_t>(bytes_per_element * static_cast<double>(n));
  }
};

// Seconds of all buckets together.
struct stage_seconds {
  double in = 0, compute = 0, out = 0;
  // What both ways take together, as far as they share: the link, and this rank's part of its host's memory.
  double link = 0, host_memory = 0;

  // What no schedule beats, and what two slots cannot beat.
  double bound() const { return std::max({in, compute, out, link, host_memory}); }
  double two_slots() const { return std::max(bound(), (in + compute + out) / 2); }
  double all() const { return in + compute + out; }
};

template <class... Field> struct dry_staging {
  using backend = pl::dry_run<pl::host_backend>;
  using pipeline = pl::staging_pipeline<backend, Field...>;

  index_t elements = 0, buckets = 0;
  double compute_bytes = 0; // of an element
  pl::dry_ranks ran;

  dry_staging(index_t n, const pl::staging_shape& shape, double compute_bytes_per_element)
      : elements(n), compute_bytes(compute_bytes_per_element) {
    const pl::bucket_plan plan = pl::bucket_plan::elementwise(n, shape.bucket_elements);
    buckets = plan.buckets();
    ran = pl::run_dry(1, [&](pl::dry_communicator& comm) {
      backend be(comm);
      auto stream = be.make_stream("main");
      std::tuple<memory<Field>...> fields{memory<Field>(be, stream, n)...};
      pl::workspace<backend> space(be, pipeline::working_set_of(shape));
      pipeline stage(be, space, shape);
      const auto run = [&](const auto&... field) {
        stage.run(stream, plan, {field.all()...}, [&](auto& s, const pl::bucket& b, auto... part) {
          be.launch(s, pl::elements{b.elements}, update_of_bytes{compute_bytes}, tagged<Field>(part)...);
        });
      };
      std::apply(run, fields);
      be.wait(be.record(stream));
    });
    if (ran.cause) ran.cause->raise();
  }

  static constexpr double in_bytes = ((pl::comes_in(Field::direction) ? Field::streamed_bytes : 0.0) + ...);
  static constexpr double out_bytes = ((pl::goes_out(Field::direction) ? Field::streamed_bytes : 0.0) + ...);

  // Bytes and rates alone: no latency of an operation.
  stage_seconds stages(const pl::hardware& h) const {
    const auto n = static_cast<double>(elements);
    const double of_bucket = compute_bytes * n / static_cast<double>(std::max<index_t>(buckets, 1));
    const bool cached = of_bucket <= static_cast<double>(h.cache_bytes);
    const double ways = n * (in_bytes + out_bytes);
    return {n * in_bytes / h.host_to_device_bytes_per_second,
            n * compute_bytes / (cached ? h.cache_bytes_per_second : h.device_memory_bytes_per_second),
            n * out_bytes / h.device_to_host_bytes_per_second, ways / h.host_link_bytes_per_second,
            ways * h.ranks_per_node / h.host_memory_bytes_per_second};
  }
  double seconds(const pl::hardware& h, pl::dry::solve_options options = {}) const {
    return pl::predict(ran, h, options).seconds;
  }

 private:
  template <class F> struct memory {
    static constexpr bool on_device = F::direction == pl::flow::resident;
    using element = std::remove_const_t<typename F::element_type>;
    std::conditional_t<on_device, pl::device_buffer<element, backend>, pl::pinned_buffer<element, backend>>
        data;

    memory(backend& be, typename backend::stream& s, index_t n) : data(resource(be), n, pl::tag::optimizer) {
      be.adopt(data.data(), data.bytes(), s);
    }
    auto all() const { return data.all(); }
    static auto& resource(backend& be) {
      if constexpr (on_device)
        return be.device();
      else
        return be.pinned();
    }
  };
  template <class F> static auto tagged(typename F::part v) {
    if constexpr (F::direction == pl::flow::in)
      return pl::in(v);
    else if constexpr (F::direction == pl::flow::out)
      return pl::out(v);
    else
      return pl::inout(v);
  }
};

// A link that gives each way its full rate, and a device whose memory the copies do not keep busy, so that
// the three stages are alone with themselves: of an element's bytes each way and in the update, the times are
// as the bytes.
inline pl::hardware separate_stages() {
  pl::hardware h = pl::h200();
  h.name = "H200 with separate stages";
  h.host_link_bytes_per_second = 1e13;
  h.host_memory_bytes_per_second = 1e14;
  h.device_memory_bytes_per_second = 1e14;
  h.cache_bytes = std::uint64_t{1} << 60; // so that kernels take nothing of it
  h.cache_bytes_per_second = h.host_to_device_bytes_per_second;
  return h;
}

} // namespace support
