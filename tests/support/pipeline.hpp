// SPDX-License-Identifier: Apache-2.0
//
// A pipeline as staging and offload have it: numbers in pinned memory pass through a few device slots, copied
// in by one stream, changed by a kernel on another, copied out by a third, with an event for each hand-over.
// None of its waits can be spared, and each can be left out, so that who promises to find a missing wait can
// be asked for every one.
#pragma once

#include <plateau/access.hpp>
#include <plateau/resource.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <algorithm>
#include <vector>

namespace support {

namespace pl = plateau;
using pl::index_t;

// Does not commute with another one, nor with itself under another bucket's number.
struct mix_with {
  std::uint32_t bucket;
  PLATEAU_HD void operator()(index_t i, pl::view<std::uint32_t> x) const {
    x[i] = (x[i] ^ (x[i] >> 7)) * (2 * bucket + 3) + static_cast<std::uint32_t>(i);
  }
};

template <class Backend> class pipeline {
 public:
  pipeline(Backend& backend, index_t bucket, int slots = 3)
      : backend_(backend), bucket_(bucket), slab_(backend.device(), bucket * slots, pl::tag::other),
        free_(static_cast<std::size_t>(slots)), in_(backend.make_stream("in")),
        compute_(backend.make_stream("compute")), out_(backend.make_stream("out")) {}

  // Changes x in place. `drop_wait`: which wait to leave out, counted from 0; -1: none. Returns the number of
  // waits; the last one is the host's.
  int apply(pl::view<std::uint32_t, pl::host_space> x, int drop_wait = -1) {
    int waits = 0;
    const auto wait = [&](auto&&... on_what) {
      if (waits++ != drop_wait) backend_.wait(on_what...);
    };
    for (index_t first = 0, k = 0; first < x.n; first += bucket_, ++k) {
      const index_t n = std::min(bucket_, x.n - first), slot = k % static_cast<index_t>(free_.size());
      const auto here = x.sub(first, n);
      const auto there = slab_.all().sub(slot * bucket_, n);
      if (k >= static_cast<index_t>(free_.size())) wait(in_, free_[static_cast<std::size_t>(slot)]);
      backend_.copy(in_, pl::in(here), pl::out(there));
      wait(compute_, backend_.record(in_));
      backend_.launch(compute_, pl::elements{n}, mix_with{static_cast<std::uint32_t>(k)}, pl::inout(there));
      wait(out_, backend_.record(compute_));
      backend_.copy(out_, pl::in(there), pl::out(here));
      free_[static_cast<std::size_t>(slot)] = backend_.record(out_);
    }
    wait(backend_.record(out_));
    return waits;
  }

 private:
  Backend& backend_;
  index_t bucket_;
  pl::device_buffer<std::uint32_t, Backend> slab_;
  std::vector<typename Backend::event> free_;
  typename Backend::stream in_, compute_, out_; // after what they use
};

} // namespace support
