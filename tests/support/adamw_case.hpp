// SPDX-License-Identifier: Apache-2.0
//
// Some steps of a streamed AdamW on any kind of ranks, and the same steps without it: one launch a tensor
// over vectors. Gradients follow from rank, step and element; which tensors have one, which of them is not
// finite, and the settings of a step may change.
#pragma once

#include "support/device_values.hpp"
#include "support/tensors.hpp"

#include <plateau/drain.hpp>
#include <plateau/host/cpu_dispatch.hpp>
#include <plateau/resource.hpp>
#include <plateau/staging/streamed_adamw.hpp>
#include <plateau/workspace.hpp>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

namespace support {

namespace pl = plateau;
using pl::index_t;

struct adamw_case {
  std::vector<pl::adamw_tensor> tensors{{100}};
  pl::adamw_shape shape{16, 3};
  std::vector<pl::adamw_group> groups{{3e-3, 0.9, 0.99, 1e-8, 0.1}};
  double clip = 1;
  int steps = 3;
  // Of each step, the tensors without a gradient.
  std::vector<std::vector<index_t>> absent{};
  // A gradient that is not finite: on this rank, in this step (from 0), at this element.
  int bad_rank = -1, bad_step = -1;
  index_t bad_element = 0;
  float bad_value = std::numeric_limits<float>::infinity();
  // Rank r counts a tensor if each rank has another one (all of them), or is the first.
  bool same_on_all_ranks = false;

  index_t elements() const {
    index_t n = 0;
    for (const pl::adamw_tensor& t : tensors) n += t.elements;
    return n;
  }
  std::vector<unsigned char> present(int step) const {
    std::vector<unsigned char> out(tensors.size(), 1);
    if (static_cast<std::size_t>(step) < absent.size())
      for (const index_t t : absent[static_cast<std::size_t>(step)]) out[static_cast<std::size_t>(t)] = 0;
    return out;
  }
  std::vector<pl::adamw_group> groups_at(int step) const {
    auto out = groups;
    for (pl::adamw_group& g : out) g.learning_rate *= 1.0 + 0.25 * step;
    return out;
  }
};

PLATEAU_HD inline float adamw_value(index_t element, std::uint32_t salt) {
  auto h = (static_cast<std::uint32_t>(element) + 0x9e3779b9u) * (2 * salt + 0x85ebca6bu);
  h ^= h >> 15;
  h *= 0x846ca68bu;
  h ^= h >> 13;
  return static_cast<float>(static_cast<std::int32_t>(h >> 8) - (1 << 23)) * 0x1p-23f;
}
// As a kernel and as a host task.
struct adamw_gradients {
  std::uint32_t salt = 0;
  index_t bad = -1;
  float bad_value = 0;

  template <class T, class S> PLATEAU_HD void operator()(index_t i, pl::view<T, S> g) const {
    g[i] = static_cast<T>(i == bad ? bad_value : adamw_value(i, salt) * 0.5f);
  }
  template <class T> void operator()(pl::view<T, pl::host_space> g) const {
    for (index_t i = 0; i < g.n; ++i) (*this)(i, g);
  }
};

template <class P> struct adamw_result {
  std::vector<float> master, m, v;
  std::vector<P> parameters;
  std::vector<std::int64_t> steps;
  std::vector<float> norms;
  pl::counters counted;

  bool same_state(const adamw_result& other) const {
    return same_bits(master, other.master) && same_bits(m, other.m) && same_bits(v, other.v) &&
           same_bits(parameters, other.parameters) && steps == other.steps;
  }
};

inline adamw_gradients gradients_of(const adamw_case& c, int rank, int step) {
  const auto salt = static_cast<std::uint32_t>(step * 64 + (c.same_on_all_ranks ? 0 : rank) + 1);
  return {salt, rank == c.bad_rank && step == c.bad_step ? c.bad_element : -1, c.bad_value};
}
struct adamw_look {
  template <class V> void operator()(V) const {}
};

// Starts from `from` where it is given, at step `first`.
template <class G, class P, class GradientSpace = pl::device_space, class MasterSpace = pl::host_space,
          class Ranks>
std::vector<adamw_result<P>> run_adamw(const adamw_case& c, int ranks, const Ranks& on,
                                       const std::vector<adamw_result<P>>* from = nullptr, int first = 0) {
  using backend_type = typename Ranks::backend;
  using communicator_type = typename Ranks::communicator;
  using adamw_type = pl::streamed_adamw<backend_type, communicator_type, G, P, GradientSpace, MasterSpace>;
  constexpr bool on_host = std::is_same_v<GradientSpace, pl::host_space>;
  std::vector<adamw_result<P>> all(static_cast<std::size_t>(ranks));
  on.run(ranks, [&](communicator_type& world, backend_type& backend) {
    const int rank = world.rank();
    adamw_result<P>& mine = all[static_cast<std::size_t>(rank)];
    const index_t n = c.elements(), count = static_cast<index_t>(c.tensors.size());
    auto tensors = c.tensors;
    if (c.same_on_all_ranks)
      for (auto& t : tensors) t.counts = rank == 0;
    pl::device_buffer<P, backend_type> parameters(backend.device(), n, pl::tag::parameters);
    pl::device_buffer<G, backend_type> gradients(backend.device(), on_host ? 0 : n, pl::tag::gradients);
    pl::pinned_buffer<G, backend_type> pinned(backend.pinned(), on_host ? n : 0, pl::tag::gradients);
    pl::pinned_buffer<P, backend_type> values(backend.pinned(), n, pl::tag::other);
    pl::pinned_buffer<float, backend_type> norm(backend.pinned(), 1, pl::tag::other);
    pl::workspace<backend_type> space(backend, adamw_type::working_set_of(c.shape, count, ranks));
    adamw_type adamw(backend, world, tensors, c.shape, space);
    auto s = backend.make_stream("main");
    const pl::drain<backend_type> before_they_go(backend, s);
    const auto each = [&](auto f) {
      if constexpr (Ranks::has_data)
        for (index_t t = 0; t < count; ++t) f(t, adamw.plan().first_of(t));
    };
    if (from == nullptr) {
      backend.launch(s, pl::elements{n}, adamw_gradients{1000}, pl::out(parameters.all()));
      adamw.set_masters(s, parameters.all());
    } else {
      const adamw_result<P>& was = (*from)[static_cast<std::size_t>(rank)];
      each([&](index_t t, index_t at) {
        if constexpr (std::is_same_v<MasterSpace, pl::host_space>)
          std::copy_n(was.master.data() + at, adamw.master(t).n, adamw.master(t).p);
        std::copy_n(was.m.data() + at, adamw.first_moment(t).n, adamw.first_moment(t).p);
        std::copy_n(was.v.data() + at, adamw.second_moment(t).n, adamw.second_moment(t).p);
      });
      adamw.write_steps(s, was.steps);
      adamw.publish(s, parameters.all());
    }
    mine.counted = backend.counters();
    for (int step = first; step < first + c.steps; ++step) {
      const auto make = gradients_of(c, rank, step);
      const auto groups = c.groups_at(step);
      const auto present = c.present(step);
      const pl::adamw_options options{groups, c.clip, present};
      if constexpr (on_host) {
        backend.host_task(s, make, pl::out(pinned.all()));
        adamw.step(s, pl::view<const G, pl::host_space>(pinned.all()), parameters.all(), options);
      } else {
        backend.launch(s, pl::elements{n}, make, pl::out(gradients.all()));
        adamw.step(s, pl::view<const G>(gradients.all()), parameters.all(), options);
      }
      if constexpr (Ranks::has_data) {
        backend.copy(s, pl::in(adamw.gradient_norm()), pl::out(norm.all()));
        backend.wait(backend.record(s));
        mine.norms.push_back(norm.all()[0]);
      }
    }
    mine.counted.host_round_trips = backend.counters().host_round_trips - mine.counted.host_round_trips;
    mine.steps.resize(static_cast<std::size_t>(count));
    adamw.read_steps(s, mine.steps);
    backend.copy(s, pl::in(pl::view<const P>(parameters.all())), pl::out(values.all()));
    backend.wait(backend.record(s));
    const auto append = [](auto& to, auto v) { to.insert(to.end(), v.p, v.p + v.n); };
    each([&](index_t t, index_t) {
      if constexpr (std::is_same_v<MasterSpace, pl::host_space>)
        append(mine.master, adamw.master(t));
      else
        for (const float x : from_device(backend, s, adamw.master(t))) mine.master.push_back(x);
      append(mine.m, adamw.first_moment(t)), append(mine.v, adamw.second_moment(t));
    });
    if constexpr (Ranks::has_data) mine.parameters.assign(values.data(), values.data() + n);
  });
  return all;
}

// The same without streaming: with the norms that were found.
template <class G, class P>
adamw_result<P> adamw_at_once(const adamw_case& c, int rank, const std::vector<float>& norms) {
  adamw_result<P> r;
  const index_t n = c.elements();
  const auto size = static_cast<std::size_t>(n);
  r.parameters.resize(size), r.master.resize(size), r.m.resize(size), r.v.resize(size);
  r.steps.resize(c.tensors.size());
  for (index_t i = 0; i < n; ++i) adamw_gradients{1000}(i, all(r.parameters));
  for (std::size_t i = 0; i < size; ++i) r.master[i] = static_cast<float>(r.parameters[i]);
  std::vector<G> g(size);
  for (int step = 0; step < c.steps; ++step) {
    for (index_t i = 0; i < n; ++i) gradients_of(c, rank, step)(i, all(g));
    const float norm = norms[static_cast<std::size_t>(step)];
    if (!pl::is_finite(norm)) continue;
    const float limit = static_cast<float>(c.clip), factor = limit / (norm + 1e-6f);
    const std::vector<float> control{limit > 0 && factor < 1 ? factor : 1.0f, 0};
    const auto groups = c.groups_at(step);
    const auto present = c.present(step);
    index_t at = 0;
    for (std::size_t t = 0; t < c.tensors.size(); ++t) {
      const pl::adamw_tensor& tensor = c.tensors[t];
      if (present[t] != 0) {
        const auto f =
            pl::adamw_factors_of(groups[static_cast<std::size_t>(tensor.group)], ++r.steps[t], tensor.decays);
        const auto part = [&](auto& v) { return all(v).sub(at, tensor.elements); };
        pl::host::run_rows(pl::detect_cpu_level(), index_t{0}, pl::adamw_update::rows_of(tensor.elements),
                           pl::adamw_update{f}, pl::view<const G>(part(g)), all(control), part(r.master),
                           part(r.m), part(r.v), part(r.parameters));
      }
      at += tensor.elements;
    }
  }
  return r;
}

} // namespace support
