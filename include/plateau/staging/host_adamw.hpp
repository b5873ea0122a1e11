// SPDX-License-Identifier: Apache-2.0
//
// AdamW on the processor, over state in host memory: the arithmetic of adamw_update, to the bit, with the
// widest vectors of this CPU (g++; clang needs -mfma for a fast one) and any number of threads. For machines
// whose memory is faster than the link to the device. It moves each byte once: moments and masters are
// updated in place, and parameters, where they are many, leave by stores that bypass the caches, since nobody
// here reads them.
#pragma once

#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/host/copy_bytes.hpp>
#include <plateau/host/cpu_dispatch.hpp>
#include <plateau/host/stream.hpp>
#include <plateau/staging/adamw_kernel.hpp>
#include <plateau/view.hpp>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

namespace plateau::inline v0 {

namespace detail::adamw {

// One tensor, or a part of one; the parameter may be missing. All of one length.
template <class Gradient, class Parameter> struct host_state {
  view<const Gradient, host_space> gradient;
  view<float, host_space> master, first_moment, second_moment;
  view<Parameter, host_space> parameter;
};

// A functor, as for_each is compiled for a device too.
template <class Parameter> struct rounded {
  const float* from;
  Parameter* to;
  PLATEAU_HD void operator()(index_t i) const { to[i] = narrow<Parameter>(from[i]); }
};

// Rows [first, last) of adamw_update. `around` says that the parameter is written around the caches.
template <cpu_level Level> struct host_loop {
  template <class Gradient, class Parameter>
  static void run(index_t first, index_t last, const adamw_update& kernel,
                  const view<const float, host_space>& control, const host_state<Gradient, Parameter>& s,
                  bool around) {
    plateau::detail::level_team<Level> team;
    if (s.parameter.n == 0) {
      for (index_t row = first; row < last; ++row)
        kernel(team, row, s.gradient, control, s.master, s.first_moment, s.second_moment);
      return;
    }
    // Little at a time: what was updated is still in the nearest cache when it is rounded, in a loop of its
    // own, since one with elements of two sizes is not vectorised as well.
    constexpr index_t length = 256;
    const index_t end = std::min(last * adamw_update::row_elements, s.master.n);
    alignas(64) Parameter published[static_cast<std::size_t>(length)];
    for (index_t from = first * adamw_update::row_elements; from < end; from += length) {
      const index_t n = std::min(length, end - from);
      const auto part = [from, n](auto v) { return decltype(v){v.p + from, n}; };
      kernel(team, index_t{0}, part(s.gradient), control, part(s.master), part(s.first_moment),
             part(s.second_moment));
      const float* const updated = s.master.p + from;
      Parameter* const to = around ? published : s.parameter.p + from;
      team.for_each(n, rounded<Parameter>{updated, to});
      if (around)
        host::stream_bytes(s.parameter.p + from, published, static_cast<std::size_t>(n) * sizeof(Parameter));
    }
    if (around) host::finish_streaming();
  }
};

} // namespace detail::adamw

// Used by one thread at a time, which works too and returns when all is done.
class host_adamw {
  // What a thread takes at a time: long against the start of a stream of memory, short enough that a thread
  // that a neighbour slows down does not hold up the others.
  static constexpr index_t chunk_rows = 64;

 public:
  // `threads` in all, of which threads - 1 are made here; `level` must be one that this machine supports.
  // Throws config_error for fewer than one thread, backend_error when the machine has none.
  explicit host_adamw(int threads = 1, cpu_level level = detect_cpu_level()) : level_(level) {
    if (threads < 1 || threads > 4096)
      throw config_error("plateau: host_adamw: threads must be 1 to 4096, got " + std::to_string(threads));
    helpers_.reserve(static_cast<std::size_t>(threads) - 1);
    for (int i = 1; i < threads; ++i) helpers_.emplace_back("adamw");
    done_.resize(helpers_.size());
  }
  host_adamw(const host_adamw&) = delete;
  host_adamw& operator=(const host_adamw&) = delete;

  int threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // One step of one tensor, or of a part of one; all views of one length but `control` (2), as adamw_update
  // reads it. Without a parameter view the masters alone are written. The same bits for any number of
  // threads. Throws config_error when lengths differ, before anything is written.
  template <class Gradient, class Parameter>
  void update(const adamw_factors& factors, view<const Gradient, host_space> gradient,
              view<const float, host_space> control, view<float, host_space> master,
              view<float, host_space> first_moment, view<float, host_space> second_moment,
              view<Parameter, host_space> parameter) {
    check("gradient", gradient.n, master.n);
    check("first moment", first_moment.n, master.n);
    check("second moment", second_moment.n, master.n);
    if (parameter.n != 0) check("parameter", parameter.n, master.n);
    if (control.n != 2) check("control", control.n, 2);
    if (control[1] != 0.0f) return; // a skipped step leaves every bit
    const detail::adamw::host_state<Gradient, Parameter> state{gradient, master, first_moment, second_moment,
                                                               parameter};
    const bool around = parameter.bytes() >= host::streaming_copy_bytes / 4;
    const index_t rows = adamw_update::rows_of(master.n), chunks = (rows + chunk_rows - 1) / chunk_rows;
    std::atomic<index_t> next{0};
    const auto work = [&] {
      for (;;) {
        const index_t first = next.fetch_add(1, std::memory_order_relaxed) * chunk_rows;
        if (first >= rows) return;
        plateau::detail::run_at_level<detail::adamw::host_loop>(
            level_, first, std::min(rows, first + chunk_rows), adamw_update{factors}, control, state, around);
      }
    };
    const std::size_t helpers =
        std::min(helpers_.size(), static_cast<std::size_t>(std::max<index_t>(chunks - 1, 0)));
    for (std::size_t i = 0; i < helpers; ++i) {
      helpers_[i].push([&work] { work(); });
      done_[i] = helpers_[i].record();
    }
    work();
    for (std::size_t i = 0; i < helpers; ++i) done_[i].wait();
  }
  template <class Gradient>
  void update(const adamw_factors& factors, view<const Gradient, host_space> gradient,
              view<const float, host_space> control, view<float, host_space> master,
              view<float, host_space> first_moment, view<float, host_space> second_moment) {
    update(factors, gradient, control, master, first_moment, second_moment, view<float, host_space>{});
  }

 private:
  static void check(const char* what, index_t has, index_t expected) {
    if (has != expected)
      throw config_error("plateau: host_adamw: " + std::string(what) + " has " + std::to_string(has) +
                         " elements, expected " + std::to_string(expected));
  }

  cpu_level level_;
  std::vector<host::stream> helpers_;
  std::vector<host::event> done_;
};

} // namespace plateau::inline v0
