// SPDX-License-Identifier: Apache-2.0
//
// A sharded AdamW on ranks of any kind, on two lists of parameters of which the second is held by every
// group-th rank, beside the same with loops on one rank.
#pragma once

#include "support/device_values.hpp"
#include "support/rank_fixtures.hpp"

#include <plateau/close_step.hpp>
#include <plateau/drain.hpp>
#include <plateau/staging/sharded_adamw.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace support::sharded {

namespace pl = plateau;
using pl::index_t;

inline constexpr index_t grain = 16384;

struct adamw_case {
  int ranks = 4, group = 2; // ranks of one expert group: lists of experts are held by every group-th rank
  std::vector<pl::adamw_tensor> shared{{2 * grain + 100, 0, true}, {7, 1, false}, {grain - 50, 0, true}};
  std::vector<pl::adamw_tensor> expert{{grain + 5, 0, true}, {grain / 2, 0, true}};
  pl::sharded_adamw_shape shape{};
  double clip = 1;
  int steps = 3, stopped = -1; // a step in which one rank has a gradient that is not finite
  bool idle_expert = false;    // the second expert tensor has no gradient on any rank

  adamw_case() { shape.update.bucket_elements = 5000; }
};

PLATEAU_HD inline std::uint32_t mixed(index_t i, int list, int owner, int rank, int step) {
  auto n = static_cast<std::uint32_t>(i * 2654435761 + list * 7919 + owner * 104729 + rank * 40503 +
                                      step * 9973 + 7);
  n ^= n >> 15;
  return n * 2246822519u;
}
// A gradient of a rank: `owner` says which experts it is of.
inline float gradient_of(const adamw_case& c, index_t i, int list, int owner, int rank, int step) {
  if (list == 1 && c.idle_expert && i >= c.expert[0].elements) return 0;
  if (step == c.stopped && list == 1 && rank == 1 && i == 3) return std::numeric_limits<float>::infinity();
  return (static_cast<float>(mixed(i, list, owner, rank, step) % 2001) - 1000) * 1e-5F;
}
struct fill_gradients {
  const adamw_case* c;
  int list, owner, rank, step;
  void operator()(pl::view<float, pl::host_space> to) const {
    for (index_t i = 0; i < to.n; ++i) to[i] = gradient_of(*c, i, list, owner, rank, step);
  }
};
PLATEAU_HD inline float initial(index_t i, int list, int owner) {
  return (static_cast<float>(mixed(i, list, owner, 0, 99) % 2001) - 1000) * 1e-3F;
}
struct fill_masters {
  int list, owner;
  index_t first;
  void operator()(pl::view<float, pl::host_space> to) const {
    for (index_t i = 0; i < to.n; ++i) to[i] = initial(first + i, list, owner);
  }
};
struct fill_parameters {
  int list, owner;
  template <class T, class S> PLATEAU_HD void operator()(index_t i, pl::view<T, S> to) const {
    to[i] = pl::narrow<T>(initial(i, list, owner));
  }
};

inline index_t elements_of(const std::vector<pl::adamw_tensor>& tensors) {
  index_t n = 0;
  for (const pl::adamw_tensor& t : tensors) n += t.elements;
  return n;
}

// Of each list of a rank.
struct list_state {
  std::vector<float> master, first, second; // of its shard
  std::vector<float> parameters;            // widened
  pl::element_range shard;
  std::vector<std::int64_t> steps; // of the tensors that it has a part of
};
struct rank_state {
  std::array<list_state, 2> lists;
  std::vector<float> norms;
  std::size_t device = 0, pinned = 0, left = 0;
  std::uint64_t sent_bytes = 0, host_exchanges = 0; // of the last step
  pl::counters work;
};

template <class T, class Ranks> std::vector<rank_state> run_case(const adamw_case& c, const Ranks& on) {
  using backend_type = typename Ranks::backend;
  using communicator_type = typename Ranks::communicator;
  using adamw_type = pl::sharded_adamw<backend_type, communicator_type, T>;
  std::vector<rank_state> all(static_cast<std::size_t>(c.ranks));
  on.run(c.ranks, [&](communicator_type& world, backend_type& backend) {
    rank_state& mine = all[static_cast<std::size_t>(world.rank())];
    const int owner = world.rank() % c.group; // of which experts
    communicator_type everybody = world.split(0, world.rank()), same = world.split(owner, world.rank());
    const auto note = [&] {
      mine.left = backend.device().meter().current() + backend.pinned().meter().current();
    };
    try {
      const std::array<typename adamw_type::list, 2> lists{{{&everybody, c.shared}, {&same, c.expert}}};
      const std::array<pl::sharded_list, 2> sizes{lists[0].sizes(), lists[1].sizes()};
      const auto set = adamw_type::working_set_of(c.shape, sizes, c.ranks);
      std::vector<pl::pinned_buffer<float, backend_type>> gradients;
      std::vector<pl::device_buffer<T, backend_type>> parameters;
      auto stream = backend.make_stream("main");
      // The workspace goes before: where something fails, what uses it has ended when that comes out.
      const pl::drain<backend_type> before_they_go(backend, stream);
      pl::workspace<backend_type> space(backend, set);
      adamw_type adamw(backend, world, lists, c.shape, space);
      const auto kept =
          adamw_type::state_of(c.shape, sizes, std::array<int, 2>{everybody.rank(), same.rank()});
      mine.device = backend.device().meter().current(pl::tag::optimizer);
      mine.pinned = backend.pinned().meter().current(pl::tag::optimizer);
      const auto exact = [](const pl::working_set& of, pl::memory_kind kind) {
        std::size_t n = 0;
        for (const pl::memory_line& line : of) n += line.kind == kind ? line.bytes : 0;
        return n;
      };
      CHECK(mine.device == exact(kept, pl::memory_kind::device));
      CHECK(mine.pinned == exact(kept, pl::memory_kind::pinned_host));
      for (const int l : {0, 1}) {
        const auto i = static_cast<std::size_t>(l);
        const index_t n = elements_of(l == 0 ? c.shared : c.expert);
        const int of = l == 0 ? 0 : owner;
        gradients.emplace_back(backend.pinned(), n, pl::tag::gradients);
        parameters.emplace_back(backend.device(), n, pl::tag::parameters);
        backend.launch(stream, pl::elements{n}, fill_parameters{l, of}, pl::out(parameters.back().all()));
        backend.host_task(stream, fill_masters{l, of, adamw.shard(i).first}, pl::out(adamw.master(i)));
      }
      pl::tensor_activity active(std::vector<index_t>{c.expert[0].elements, c.expert[1].elements});
      if (c.idle_expert) active.set(1, false);
      std::array<pl::adamw_group, 2> settings{};
      settings[1].weight_decay = 0;
      for (int step = 0; step < c.steps; ++step) {
        for (auto& each : settings) each.learning_rate = 1e-2 / (step + 1);
        for (const int l : {0, 1})
          backend.host_task(stream, fill_gradients{&c, l, l == 0 ? 0 : owner, world.rank(), step},
                            pl::out(gradients[static_cast<std::size_t>(l)].all()));
        const auto sent = [&] {
          std::array<std::uint64_t, 2> n{};
          for (const communicator_type* each : {&world, &everybody, &same}) {
            n[0] += each->counters().sent_bytes;
            n[1] += each->counters().host_exchanges;
          }
          return n;
        };
        const auto before = sent();
        const auto work = backend.counters();
        adamw.step(stream,
                   std::array<typename adamw_type::arguments, 2>{
                       {{gradients[0].all(), parameters[0].all(), nullptr},
                        {gradients[1].all(), parameters[1].all(), &active}}},
                   {settings, c.clip, {}});
        mine.sent_bytes = sent()[0] - before[0];
        mine.host_exchanges = sent()[1] - before[1];
        mine.work = backend.counters() - work;
        if constexpr (Ranks::has_data)
          mine.norms.push_back(support::from_device(backend, stream, adamw.gradient_norm())[0]);
      }
      pl::close_step(backend, world, stream);
      if constexpr (Ranks::has_data)
        for (const int l : {0, 1}) {
          const auto i = static_cast<std::size_t>(l);
          list_state& to = mine.lists[i];
          const auto host = [](auto v) { return std::vector<float>(v.p, v.p + v.n); };
          to.master = host(adamw.master(i));
          to.first = host(adamw.first_moment(i));
          to.second = host(adamw.second_moment(i));
          to.shard = adamw.shard(i);
          to.steps = support::from_device(backend, stream, adamw.steps(i));
          for (const T p : support::from_device(backend, stream, parameters[i].all()))
            to.parameters.push_back(static_cast<float>(pl::widen(p)));
        }
    } catch (...) {
      note();
      throw;
    }
    note();
  });
  return all;
}

// Not a lambda: a team's functions are for the device too.
struct square_of {
  const float* from;
  PLATEAU_HD double operator()(index_t k) const {
    const double v = static_cast<double>(from[k]);
    return v * v;
  }
};
// What one rank makes of the sums over all ranks: a case of one rank whose gradients they are.
struct plain_adamw {
  std::array<std::vector<std::vector<float>>, 2> master, first, second; // list, owner
  std::vector<float> norms;
};
inline plain_adamw expected_of(const adamw_case& c) {
  plain_adamw e;
  std::array<std::vector<std::vector<float>>, 2> sums;
  for (const int l : {0, 1}) {
    const auto i = static_cast<std::size_t>(l);
    const auto& tensors = l == 0 ? c.shared : c.expert;
    const auto n = static_cast<std::size_t>(elements_of(tensors));
    for (int owner = 0; owner < (l == 0 ? 1 : c.group); ++owner) {
      e.master[i].emplace_back(n);
      e.first[i].emplace_back(n);
      e.second[i].emplace_back(n);
      sums[i].emplace_back(n);
      for (std::size_t k = 0; k < n; ++k) e.master[i].back()[k] = initial(static_cast<index_t>(k), l, owner);
    }
  }
  int counted = 0;
  for (int step = 0; step < c.steps; ++step) {
    std::array<std::int64_t, static_cast<std::size_t>(pl::exact_sum::words)> total{};
    bool finite = true;
    for (const int l : {0, 1}) {
      const auto i = static_cast<std::size_t>(l);
      for (std::size_t owner = 0; owner < sums[i].size(); ++owner) {
        auto& g = sums[i][owner];
        const int hop = l == 0 ? 1 : c.group;
        for (std::size_t k = 0; k < g.size(); ++k) {
          const auto at = static_cast<index_t>(k);
          const int of = static_cast<int>(owner);
          g[k] = gradient_of(c, at, l, of, of, step);
          for (int r = of + hop; r < c.ranks; r += hop) g[k] = g[k] + gradient_of(c, at, l, of, r, step);
          finite = finite && std::isfinite(g[k]);
        }
        // The squares of whole blocks, as a team sums them.
        const pl::serial_team team;
        for (std::size_t b = 0; finite && b * grain < g.size(); ++b) {
          const float* from = g.data() + b * grain;
          const index_t count = std::min<index_t>(grain, static_cast<index_t>(g.size() - b * grain));
          pl::exact_sum::add(total.data(), team.reduce(count, 0.0, pl::plus{}, square_of{from}));
          pl::exact_sum::carry(total.data());
        }
      }
    }
    if (!finite) continue;
    const float norm = static_cast<float>(std::sqrt(pl::exact_sum::value(total.data())));
    e.norms.push_back(norm);
    const float limit = static_cast<float>(c.clip);
    const float factor = c.clip > 0 ? std::min(1.0F, limit / (norm + 1e-6F)) : 1.0F;
    std::array<float, 2> control{factor, 0};
    ++counted;
    for (const int l : {0, 1}) {
      const auto i = static_cast<std::size_t>(l);
      const auto& tensors = l == 0 ? c.shared : c.expert;
      for (std::size_t owner = 0; owner < sums[i].size(); ++owner) {
        index_t at = 0;
        for (const pl::adamw_tensor& t : tensors) {
          pl::adamw_group settings;
          settings.learning_rate = 1e-2 / (step + 1);
          if (t.group == 1) settings.weight_decay = 0;
          const pl::adamw_update kernel{pl::adamw_factors_of(settings, counted, t.decays)};
          pl::serial_team team;
          const auto part = [&](std::vector<float>& v) { return pl::view<float>{v.data() + at, t.elements}; };
          for (index_t row = 0; row < pl::adamw_update::rows_of(t.elements); ++row)
            kernel(team, row, pl::view<const float>(part(sums[i][owner])),
                   pl::view<const float>{control.data(), 2}, part(e.master[i][owner]),
                   part(e.first[i][owner]), part(e.second[i][owner]));
          at += t.elements;
        }
      }
    }
  }
  return e;
}
// Of all ranks, or of one.
template <class T> void check_case(const adamw_case& c, const std::vector<rank_state>& all, int only = -1) {
  const plain_adamw e = expected_of(c);
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (only >= 0 && static_cast<int>(r) != only) continue;
    CAPTURE(r);
    CHECK(all[r].left == 0);
    std::vector<float> norms;
    for (const float n : all[r].norms)
      if (std::isfinite(n)) norms.push_back(n);
    CHECK(norms == e.norms);
    for (std::size_t l = 0; l < 2; ++l) {
      CAPTURE(l);
      const list_state& s = all[r].lists[l];
      const std::size_t owner = l == 0 ? 0 : r % static_cast<std::size_t>(c.group);
      const auto same = [&](const std::vector<float>& a, const std::vector<float>& whole) {
        return a.size() == static_cast<std::size_t>(s.shard.elements) &&
               (a.empty() || std::memcmp(a.data(), whole.data() + s.shard.first, 4 * a.size()) == 0);
      };
      CHECK(same(s.master, e.master[l][owner]));
      CHECK(same(s.first, e.first[l][owner]));
      CHECK(same(s.second, e.second[l][owner]));
      bool rounded = s.parameters.size() == e.master[l][owner].size();
      for (std::size_t i = 0; rounded && i < s.parameters.size(); ++i)
        rounded = s.parameters[i] == static_cast<float>(pl::widen(pl::narrow<T>(e.master[l][owner][i])));
      CHECK(rounded);
    }
  }
}

} // namespace support::sharded
