// SPDX-License-Identifier: Apache-2.0
//
// Times that can be believed on a machine that is not quiet: what is measured and what it is measured against
// take turns, and each pair gives one ratio. A neighbour who takes a core for a while then spoils a few pairs
// and not the median. The smallest times of both sides, and the time of the processor, which a neighbour does
// not lengthen, stand beside it.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <ctime>
#include <vector>

namespace bench {

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
// Of all threads of this program.
inline double processor_seconds_now() {
#if defined(CLOCK_PROCESS_CPUTIME_ID)
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
#else
  return 0;
#endif
}

// Keeps the compiler from dropping what was computed into `value`.
template <class T> void keep(T& value) { asm volatile("" : : "r"(&value) : "memory"); }

template <class F> double seconds_of(F&& f) {
  const double begun = seconds_now();
  f();
  return seconds_now() - begun;
}

struct spread {
  double median = 0, p10 = 0, p90 = 0;
  double minimum = 0;   // of ratios: the ratio of the smallest times
  double processor = 0; // the median of the same by time of the processor; 0: not known
};

inline spread spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const auto at = [&](double q) {
    return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
  };
  return {at(0.5), at(0.1), at(0.9), values.front(), 0};
}

// Times of one side, repeat by repeat.
struct series {
  std::vector<double> wall, processor;

  template <class F> void time(F&& f) {
    const double processor_begun = processor_seconds_now(), begun = seconds_now();
    f();
    wall.push_back(seconds_now() - begun);
    processor.push_back(processor_seconds_now() - processor_begun);
  }
  // In a unit of `unit` seconds.
  spread in(double unit) const {
    const spread w = spread_of(wall);
    return {w.median / unit, w.p10 / unit, w.p90 / unit, w.minimum / unit,
            spread_of(processor).median / unit};
  }
};

// above / below, pair by pair.
inline spread ratios(const series& above, const series& below) {
  const auto each = [](const std::vector<double>& a, const std::vector<double>& b) {
    std::vector<double> r(a.size());
    for (std::size_t i = 0; i < r.size(); ++i) r[i] = b[i] > 0 ? a[i] / b[i] : 0;
    return spread_of(std::move(r));
  };
  spread s = each(above.wall, below.wall);
  s.minimum = spread_of(above.wall).minimum / spread_of(below.wall).minimum;
  s.processor = each(above.processor, below.processor).median;
  return s;
}

struct pairs {
  series ours, reference;

  // How often ours fits into the time of the reference: 0.9 is 90% of its speed.
  spread speed() const { return ratios(reference, ours); }
  // How much longer ours takes.
  spread time() const { return ratios(ours, reference); }
};

// `repeats` pairs after one untimed run of each; who goes first changes from pair to pair.
template <class Ours, class Reference> pairs in_turns(int repeats, Ours&& ours, Reference&& reference) {
  ours();
  reference();
  pairs p;
  for (int i = 0; i < repeats; ++i) {
    if (i % 2 == 0) p.ours.time(ours);
    p.reference.time(reference);
    if (i % 2 != 0) p.ours.time(ours);
  }
  return p;
}

// `f` alone, after one untimed run.
template <class F> series alone(int repeats, F&& f) {
  f();
  series s;
  for (int i = 0; i < repeats; ++i) s.time(f);
  return s;
}

} // namespace bench
