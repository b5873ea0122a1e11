// SPDX-License-Identifier: Apache-2.0
//
// Random programs over an offload store, on a backend of any kind: tensors of unequal sizes and kinds,
// several micro-batches, two streams, scopes that overlap, handles that are moved, dropped and asked in any
// order. Every read goes to a place of its own, so that at the end each can be held to what was written.
#pragma once

#include "support/device_values.hpp"

#include <plateau/drain.hpp>
#include <plateau/kernels.hpp>
#include <plateau/offload/offload_store.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace support {

namespace pl = plateau;
using pl::index_t;

struct count_up { // to[i] = first + i
  float first = 0;
  template <class S> PLATEAU_HD void operator()(index_t i, pl::view<float, S> to) const {
    to[i] = first + static_cast<float>(i);
  }
};

struct offload_program {
  std::uint64_t seed = 1;
  int steps = 60;
  bool second_stream = true;

  struct result {
    std::vector<float> read, expected;
    pl::offload_statistics statistics;
    int reads = 0;
  };

  std::uint64_t draw(std::uint64_t& state, std::uint64_t below) const { // splitmix64
    std::uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % below;
  }
  pl::offload_shape shape() const {
    std::uint64_t state = seed;
    pl::offload_shape s;
    const std::uint64_t tensors = 2 + draw(state, 5);
    index_t all = 0;
    for (std::uint64_t t = 0; t < tensors; ++t) {
      s.tensors.push_back({static_cast<index_t>(draw(state, 8) == 0 ? 0 : 4 * (1 + draw(state, 90))),
                           static_cast<int>(draw(state, 4) == 0)});
      all += pl::offload_shape::slot_bytes(s.tensors.back().bytes);
    }
    s.restored_at_once = 1 + static_cast<int>(draw(state, 3));
    s.in_flight = 1 + static_cast<int>(draw(state, 3));
    if (draw(state, 3) == 0)
      s.host_budget_bytes =
          static_cast<index_t>(draw(state, static_cast<std::uint64_t>(all * s.in_flight + 1)));
    return s;
  }

  template <class Backend> result run(Backend& be) const {
    using handle = pl::offload_handle<pl::view<float>, Backend>;
    using scope = typename handle::read_scope;
    const pl::offload_shape limits = shape();
    std::uint64_t state = seed + 1'000'003;
    result r;
    const index_t log_elements = static_cast<index_t>(steps) * 96;
    pl::device_buffer<float, Backend> log(be.device(), log_elements, pl::tag::other);
    pl::workspace<Backend> space(be, pl::offload_store<Backend>::working_set_of(limits));
    auto main = be.make_stream("main"), other = be.make_stream("other");
    pl::offload_store<Backend> store(be, space, limits);
    const pl::drain<Backend> after_other(be, other), after_main(be, main);
    be.launch(main, pl::elements{log_elements}, pl::fill<float>{-1}, pl::out(log.all()));
    be.wait(other, be.record(main));
    struct held {
      handle h;
      float first = 0;
      index_t n = 0;
      std::optional<scope> reading;
      index_t log_at = 0;
      bool on_other = false;
    };
    std::vector<std::unique_ptr<held>> live;
    float next_value = 1;
    index_t logged = 0;
    const auto stream_of = [&](bool second) -> auto& { return second ? other : main; };
    const auto open_scopes = [&] {
      int n = 0;
      for (const auto& h : live) n += h->reading.has_value();
      return n;
    };
    const auto read_now = [&](held& h) {
      be.copy(stream_of(h.on_other), pl::in(h.reading->view()), pl::out(log.all().sub(h.log_at, h.n)));
      h.reading.reset();
    };
    for (int step = 0; step < steps; ++step) {
      const std::uint64_t what = draw(state, 10);
      const bool second = second_stream && draw(state, 3) == 0;
      if (what < 4) { // write
        const auto t = static_cast<index_t>(draw(state, limits.tensors.size()));
        int mine = 0;
        for (const auto& h : live) mine += h->h.tensor() == t;
        if (mine == limits.in_flight || open_scopes() >= limits.restored_at_once) continue;
        auto h = std::make_unique<held>();
        h->n = limits.tensors[static_cast<std::size_t>(t)].bytes / 4;
        if (draw(state, 4) == 0) h->n = h->n / 2;
        h->first = next_value;
        next_value += 128;
        h->h = store.template open<pl::view<float>>(t);
        {
          auto w = h->h.write(stream_of(second), h->n);
          be.launch(stream_of(second), pl::elements{h->n}, count_up{h->first}, pl::out(w.view()));
        }
        live.push_back(std::move(h));
      } else if (live.empty()) {
        continue;
      } else {
        held& h = *live[draw(state, live.size())];
        if (what < 8) { // read: now, or later
          if (h.reading) {
            read_now(h);
            continue;
          }
          if (open_scopes() >= limits.restored_at_once) continue;
          h.on_other = second;
          h.reading.emplace(h.h.get(stream_of(second)));
          h.log_at = logged;
          logged += h.n;
          ++r.reads;
          for (index_t i = 0; i < h.n; ++i) r.expected.push_back(h.first + static_cast<float>(i));
          if (draw(state, 2) == 0) read_now(h);
        } else if (what == 8) {
          if (!h.reading) h.h.prefetch();
        } else { // drop, perhaps with copies in flight
          if (h.reading) read_now(h);
          std::swap(live[draw(state, live.size())], live.back());
          if (live.back()->reading) read_now(*live.back());
          live.pop_back();
        }
      }
    }
    for (auto& h : live)
      if (h->reading) read_now(*h);
    store.raise_failure();
    be.wait(main, be.record(other));
    r.read = from_device(be, main, log.all().sub(0, logged));
    r.statistics = store.statistics();
    return r;
  }
};

} // namespace support
