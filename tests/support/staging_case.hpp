// SPDX-License-Identifier: Apache-2.0
//
// A state of five fields, one of each direction and one more, that is streamed through a pipeline in some
// steps, beside the same update of all of it at once. Values are integers that depend on the element's
// number, the step and all other fields, so that an element in a wrong place, a stale one and one that is
// updated twice all show. The pipelines with fewer fields have other waits.
#pragma once

#include "support/device_values.hpp"

#include <plateau/access.hpp>
#include <plateau/drain.hpp>
#include <plateau/resource.hpp>
#include <plateau/staging/staging_pipeline.hpp>
#include <plateau/team.hpp>
#include <plateau/workspace.hpp>

#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <tuple>
#include <vector>

namespace support {

namespace pl = plateau;
using pl::index_t, pl::flow, pl::staged;

PLATEAU_HD inline std::uint32_t staging_hash(index_t element, std::uint32_t salt) {
  std::uint32_t h = (static_cast<std::uint32_t>(element) + 0x9e3779b9u) * (2 * salt + 0x85ebca6bu);
  return h ^ (h >> 13);
}

// What an update does to element first + i.
struct mix_state {
  index_t first;
  std::uint32_t salt;
  // in, inout, inout, out, resident
  PLATEAU_HD void operator()(index_t i, pl::view<const std::uint32_t> a, pl::view<std::uint32_t> b,
                             pl::view<std::uint64_t> c, pl::view<std::uint16_t> d,
                             pl::view<std::uint32_t> e) const {
    const std::uint32_t h = staging_hash(first + i, salt) ^ a[i];
    b[i] = b[i] * 3 + h;
    c[i] = (c[i] ^ (c[i] >> 7)) * 5 + b[i];
    e[i] = e[i] * 7 + static_cast<std::uint32_t>(c[i] >> 3);
    d[i] = static_cast<std::uint16_t>(e[i] ^ b[i]);
  }
  // in, resident
  PLATEAU_HD void operator()(index_t i, pl::view<const std::uint32_t> a, pl::view<std::uint32_t> e) const {
    e[i] = e[i] * 7 + (staging_hash(first + i, salt) ^ a[i]);
  }
  // out, resident
  PLATEAU_HD void operator()(index_t i, pl::view<std::uint16_t> d, pl::view<std::uint32_t> e) const {
    e[i] = e[i] * 7 + staging_hash(first + i, salt);
    d[i] = static_cast<std::uint16_t>(e[i] >> 5);
  }
  // resident
  PLATEAU_HD void operator()(index_t i, pl::view<std::uint32_t> e) const {
    e[i] = e[i] * 7 + staging_hash(first + i, salt);
  }
};
struct first_values {
  index_t salt;
  template <class T, class S> PLATEAU_HD void operator()(index_t i, pl::view<T, S> v) const {
    v[i] = static_cast<T>(staging_hash(i, static_cast<std::uint32_t>(salt)));
  }
  // As a host task.
  template <class T> void operator()(pl::view<T, pl::host_space> v) const {
    for (index_t i = 0; i < v.n; ++i) (*this)(i, v);
  }
};

// Work of the caller's on a resident field, between steps.
struct add_one {
  PLATEAU_HD void operator()(index_t i, pl::view<std::uint32_t> e) const { e[i] += 1; }
};

enum class staging_fields : unsigned char { all, in_alone, out_alone, resident_alone };

struct staging_case {
  std::vector<index_t> tensors{0}; // elements of each
  bool whole = false;              // buckets hold whole tensors
  pl::staging_shape shape{};
  int steps = 2;

  static staging_case of(index_t elements, index_t bucket_elements, int slots = 3) {
    staging_case c;
    c.tensors = {elements};
    c.shape.bucket_elements = bucket_elements;
    c.shape.slots = slots;
    return c;
  }
  index_t elements() const { return std::accumulate(tensors.begin(), tensors.end(), index_t{0}); }
  pl::bucket_plan plan() const {
    return whole ? pl::bucket_plan::whole_tensors(tensors, shape.bucket_elements)
                 : pl::bucket_plan::elementwise(tensors, shape.bucket_elements);
  }
};

// What the fields hold in the end.
struct staging_values {
  std::vector<std::uint32_t> b;
  std::vector<std::uint64_t> c;
  std::vector<std::uint16_t> d;
  std::vector<std::uint32_t> e;

  friend bool operator==(const staging_values&, const staging_values&) = default;

  explicit staging_values(index_t n) {
    const auto size = static_cast<std::size_t>(n);
    b.resize(size), c.resize(size), d.resize(size), e.resize(size);
    first_values{2}(pl::view<std::uint32_t, pl::host_space>{b.data(), n});
    first_values{3}(pl::view<std::uint64_t, pl::host_space>{c.data(), n});
    first_values{4}(pl::view<std::uint16_t, pl::host_space>{d.data(), n});
    first_values{5}(pl::view<std::uint32_t, pl::host_space>{e.data(), n});
  }
  staging_values() = default;
  // The same update without a pipeline, of the elements [first, last).
  void update(staging_fields which, std::uint32_t salt, index_t first, index_t last) {
    const index_t n = static_cast<index_t>(b.size());
    std::vector<std::uint32_t> a(b.size());
    first_values{static_cast<index_t>(salt + 100)}(pl::view<std::uint32_t, pl::host_space>{a.data(), n});
    const pl::view<const std::uint32_t> va{a.data(), n};
    const pl::view<std::uint32_t> vb{b.data(), n}, ve{e.data(), n};
    const pl::view<std::uint64_t> vc{c.data(), n};
    const pl::view<std::uint16_t> vd{d.data(), n};
    const mix_state mix{0, salt};
    for (std::uint32_t& each : e) ++each;
    for (index_t i = first; i < last; ++i) switch (which) {
      case staging_fields::all:
        mix(i, va, vb, vc, vd, ve);
        break;
      case staging_fields::in_alone:
        mix(i, va, ve);
        break;
      case staging_fields::out_alone:
        mix(i, vd, ve);
        break;
      case staging_fields::resident_alone:
        mix(i, ve);
        break;
      }
  }
};
inline staging_values staged_at_once(const staging_case& c, staging_fields which = staging_fields::all) {
  staging_values v(c.elements());
  for (int step = 0; step < c.steps; ++step)
    v.update(which, static_cast<std::uint32_t>(step), 0, c.elements());
  return v;
}

template <class B>
using all_fields_pipeline =
    pl::staging_pipeline<B, staged<std::uint32_t, flow::in>, staged<std::uint32_t, flow::inout>,
                         staged<std::uint64_t, flow::inout>, staged<std::uint16_t, flow::out>,
                         staged<std::uint32_t, flow::resident>>;
template <class B>
using in_pipeline =
    pl::staging_pipeline<B, staged<std::uint32_t, flow::in>, staged<std::uint32_t, flow::resident>>;
template <class B>
using out_pipeline =
    pl::staging_pipeline<B, staged<std::uint16_t, flow::out>, staged<std::uint32_t, flow::resident>>;
template <class B> using resident_pipeline = pl::staging_pipeline<B, staged<std::uint32_t, flow::resident>>;

// The fields on one backend, and what is done to them. Every step the caller's stream makes a new `a`, and it
// reads the results when the last step is enqueued, so that the pipeline's waits for it and by it matter.
template <class Backend> class staging_rig {
 public:
  using progress = std::function<void(const pl::bucket&)>;

  staging_rig(Backend& backend, typename Backend::stream& stream, index_t n)
      : backend_(backend), stream_(stream), n_(n), a_(backend.pinned(), n, pl::tag::gradients),
        b_(backend.pinned(), n, pl::tag::optimizer), c_(backend.pinned(), n, pl::tag::optimizer),
        d_(backend.pinned(), n, pl::tag::parameters), e_(backend.device(), n, pl::tag::optimizer),
        before_they_go_(backend, stream) {
    make(b_, 2), make(c_, 3), make(d_, 4);
    backend.launch(stream, pl::elements{n}, first_values{5}, pl::out(e_.all()));
  }

  // One step on the pipeline of these fields. Both hooks may throw; `before` comes before a bucket's update.
  template <class Pipeline>
  void step(
      Pipeline& pipeline, const pl::bucket_plan& plan, std::uint32_t salt,
      const progress& after = [](const pl::bucket&) {}, const progress& before = [](const pl::bucket&) {}) {
    make(a_, static_cast<index_t>(salt + 100));
    backend_.launch(stream_, pl::elements{n_}, add_one{}, pl::inout(e_.all()));
    if constexpr (std::is_same_v<Pipeline, all_fields_pipeline<Backend>>)
      pipeline.run(
          stream_, plan, {a_.all(), b_.all(), c_.all(), d_.all(), e_.all()},
          [&](auto& s, const pl::bucket& k, auto a, auto b, auto c, auto d, auto e) {
            before(k);
            backend_.launch(s, pl::elements{k.elements}, mix_state{k.first, salt}, pl::in(a), pl::inout(b),
                            pl::inout(c), pl::out(d), pl::inout(e));
          },
          after);
    else if constexpr (std::is_same_v<Pipeline, in_pipeline<Backend>>)
      pipeline.run(
          stream_, plan, {a_.all(), e_.all()},
          [&](auto& s, const pl::bucket& k, auto a, auto e) {
            before(k);
            backend_.launch(s, pl::elements{k.elements}, mix_state{k.first, salt}, pl::in(a), pl::inout(e));
          },
          after);
    else if constexpr (std::is_same_v<Pipeline, out_pipeline<Backend>>)
      pipeline.run(
          stream_, plan, {d_.all(), e_.all()},
          [&](auto& s, const pl::bucket& k, auto d, auto e) {
            before(k);
            backend_.launch(s, pl::elements{k.elements}, mix_state{k.first, salt}, pl::out(d), pl::inout(e));
          },
          after);
    else
      pipeline.run(
          stream_, plan, std::tuple{e_.all()},
          [&](auto& s, const pl::bucket& k, auto e) {
            before(k);
            backend_.launch(s, pl::elements{k.elements}, mix_state{k.first, salt}, pl::inout(e));
          },
          after);
  }
  // In the order of the caller's stream.
  staging_values values() {
    staging_values v;
    v.b = read(b_), v.c = read(c_), v.d = read(d_);
    v.e = from_device(backend_, stream_, e_.all());
    return v;
  }

 private:
  template <class T> void make(pl::pinned_buffer<T, Backend>& field, index_t salt) {
    backend_.host_task(stream_, first_values{salt}, pl::out(field.all()));
  }
  template <class T> std::vector<T> read(const pl::pinned_buffer<T, Backend>& field) {
    const pl::device_buffer<T, Backend> seen(backend_.device(), n_, pl::tag::other);
    const pl::drain<Backend> before_it_goes(backend_, stream_);
    backend_.copy(stream_, pl::in(field.all()), pl::out(seen.all()));
    return from_device(backend_, stream_, seen.all());
  }

  Backend& backend_;
  typename Backend::stream& stream_;
  index_t n_;
  pl::pinned_buffer<std::uint32_t, Backend> a_;
  pl::pinned_buffer<std::uint32_t, Backend> b_;
  pl::pinned_buffer<std::uint64_t, Backend> c_;
  pl::pinned_buffer<std::uint16_t, Backend> d_;
  pl::device_buffer<std::uint32_t, Backend> e_;
  pl::drain<Backend> before_they_go_;
};

template <class Pipeline, class Backend> staging_values run_staging(const staging_case& c, Backend& backend) {
  auto stream = backend.make_stream("main");
  staging_rig<Backend> rig(backend, stream, c.elements());
  pl::workspace<Backend> space(backend, Pipeline::working_set_of(c.shape));
  Pipeline pipeline(backend, space, c.shape);
  const pl::drain<Backend> before_they_go(backend, stream);
  const pl::bucket_plan plan = c.plan();
  for (int step = 0; step < c.steps; ++step) rig.step(pipeline, plan, static_cast<std::uint32_t>(step));
  return rig.values();
}
template <class Backend>
staging_values run_staging(const staging_case& c, Backend& backend, staging_fields which) {
  switch (which) {
  case staging_fields::in_alone:
    return run_staging<in_pipeline<Backend>>(c, backend);
  case staging_fields::out_alone:
    return run_staging<out_pipeline<Backend>>(c, backend);
  case staging_fields::resident_alone:
    return run_staging<resident_pipeline<Backend>>(c, backend);
  case staging_fields::all:
    break;
  }
  return run_staging<all_fields_pipeline<Backend>>(c, backend);
}
inline constexpr staging_fields all_staging_fields[] = {
    staging_fields::all, staging_fields::in_alone, staging_fields::out_alone, staging_fields::resident_alone};

} // namespace support
