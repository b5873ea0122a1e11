// SPDX-License-Identifier: Apache-2.0
//
// Runs kernels over a range on the calling thread, at the speed of the CPU that is there: each kernel is
// instantiated three times, for the baseline the program was compiled for, for AVX2 with FMA and for AVX-512,
// and a level chosen at run time picks one. `flatten` pulls the whole kernel into a function that carries the
// target, so that it is vectorised for it; no kernel needs an attribute, nor the program a compiler flag
// beyond -O2. With g++ on x86-64; clang ignores `flatten` across targets, and on other CPUs there is one
// level: they run the baseline alone.
//
// Results are the same bits at one level, run to run and for any split of the range. Levels may differ in the
// last place: the baseline has no fused multiply-add.
#pragma once

#include <plateau/config.hpp>
#include <plateau/team.hpp>

// Under the address and thread sanitizers the baseline alone is compiled: the loops are the same code, and
// three copies of it with every access checked cost minutes.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) &&     \
    !defined(__SANITIZE_THREAD__)
#define PLATEAU_CPU_LEVELS 1
#else
#define PLATEAU_CPU_LEVELS 0
#endif

namespace plateau::inline v0 {

enum class cpu_level : unsigned char { baseline, avx2, avx512 };

// Whether this machine (and, for the vector registers, its operating system) can run a level.
inline bool cpu_supports(cpu_level level) noexcept {
#if defined(__x86_64__) && defined(__GNUC__)
  __builtin_cpu_init();
  if (level == cpu_level::avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (level == cpu_level::avx512)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("fma");
#endif
  return level == cpu_level::baseline;
}

// The widest level of this machine. A value for a backend to hold: nothing remembers it globally.
inline cpu_level detect_cpu_level() noexcept {
  if (cpu_supports(cpu_level::avx512)) return cpu_level::avx512;
  return cpu_supports(cpu_level::avx2) ? cpu_level::avx2 : cpu_level::baseline;
}

constexpr const char* cpu_level_name(cpu_level level) noexcept {
  return level == cpu_level::avx512 ? "avx512" : level == cpu_level::avx2 ? "avx2" : "baseline";
}

namespace detail {

#if PLATEAU_CPU_LEVELS
// In place, all team_lanes of them. The builtins and not their headers' names: <immintrin.h> takes half a
// second to compile.
inline void sqrt_lanes_sse(float* lanes) {
  using vector [[gnu::vector_size(16)]] = float;
  for (index_t lane = 0; lane < team_lanes; lane += 4) {
    vector v;
    __builtin_memcpy(&v, lanes + lane, sizeof v);
    v = __builtin_ia32_sqrtps(v);
    __builtin_memcpy(lanes + lane, &v, sizeof v);
  }
}
[[gnu::target("avx2,fma")]] inline void sqrt_lanes_avx(float* lanes) {
  using vector [[gnu::vector_size(32)]] = float;
  for (index_t lane = 0; lane < team_lanes; lane += 8) {
    vector v;
    __builtin_memcpy(&v, lanes + lane, sizeof v);
    v = __builtin_ia32_sqrtps256(v);
    __builtin_memcpy(lanes + lane, &v, sizeof v);
  }
}
// The root itself takes twice as long for twice the width, but the loops around write and read the lanes 16
// at a time: a wide load that finds two narrow stores waits until both have left the core.
[[gnu::target("avx512f")]] inline void sqrt_lanes_avx512(float* lanes) {
  using vector [[gnu::vector_size(64)]] = float;
  for (index_t lane = 0; lane < team_lanes; lane += 16) {
    vector v;
    __builtin_memcpy(&v, lanes + lane, sizeof v);
    v = __builtin_ia32_sqrtps512_mask(v, v, -1, 4); // all lanes, usual rounding
    __builtin_memcpy(lanes + lane, &v, sizeof v);
  }
}
#endif

// The team of row kernels at one level: does for it what the compiler does not vectorise by itself.
template <cpu_level Level> class level_team : public serial_team {
 public:
#if PLATEAU_CPU_LEVELS
  template <class Radicand, class F> PLATEAU_HD void for_each_sqrt(index_t n, Radicand radicand, F f) const {
#if !defined(__CUDA_ARCH__)
    float lanes[team_lanes];
    index_t i = 0;
    for (; i + team_lanes <= n; i += team_lanes) {
      PLATEAU_INDEPENDENT
      for (index_t lane = 0; lane < team_lanes; ++lane) lanes[lane] = radicand(i + lane);
      if constexpr (Level == cpu_level::baseline)
        sqrt_lanes_sse(lanes);
      else if constexpr (Level == cpu_level::avx2)
        sqrt_lanes_avx(lanes);
      else
        sqrt_lanes_avx512(lanes);
      PLATEAU_INDEPENDENT
      for (index_t lane = 0; lane < team_lanes; ++lane) f(i + lane, lanes[lane]);
    }
    for (; i < n; ++i) f(i, __builtin_sqrtf(radicand(i)));
#endif
  }
#endif
};

// A block of constant length, as -O2 vectorises only loops whose count is a known multiple of the vector.
template <cpu_level> struct element_loop {
  template <class Kernel, class... Args>
  static void run(index_t first, index_t last, const Kernel& kernel, const Args&... args) {
    index_t i = first;
    for (; i + team_lanes <= last; i += team_lanes) {
      PLATEAU_INDEPENDENT
      for (index_t lane = 0; lane < team_lanes; ++lane) kernel(i + lane, args...);
    }
    const index_t rest = last - i;
    for (index_t lane = 0; lane < rest; ++lane) kernel(i + lane, args...);
  }
};

template <cpu_level Level> struct row_loop {
  template <class Kernel, class... Args>
  static void run(index_t first, index_t last, const Kernel& kernel, const Args&... args) {
    level_team<Level> team;
    for (index_t row = first; row < last; ++row) kernel(team, row, args...);
  }
};

#if PLATEAU_CPU_LEVELS
// Kernel and arguments by value: as locals they live in registers, while behind a reference every store
// through a view might change them.
template <class Loop, class Kernel, class... Args>
[[gnu::flatten, gnu::noinline]] void run_baseline(index_t first, index_t last, Kernel kernel, Args... args) {
  Loop::run(first, last, kernel, args...);
}
template <class Loop, class Kernel, class... Args>
[[gnu::flatten, gnu::noinline, gnu::target("avx2,fma")]] void run_avx2(index_t first, index_t last,
                                                                       Kernel kernel, Args... args) {
  Loop::run(first, last, kernel, args...);
}
template <class Loop, class Kernel, class... Args>
[[gnu::flatten, gnu::noinline,
  gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512")]] void
run_avx512(index_t first, index_t last, Kernel kernel, Args... args) {
  Loop::run(first, last, kernel, args...);
}
#else
template <class Loop, class Kernel, class... Args>
void run_baseline(index_t first, index_t last, Kernel kernel, Args... args) {
  Loop::run(first, last, kernel, args...);
}
#endif

template <template <cpu_level> class Loop, class Kernel, class... Args>
void run_at_level([[maybe_unused]] cpu_level level, index_t first, index_t last, Kernel kernel,
                  Args... args) {
#if PLATEAU_CPU_LEVELS
  if (level == cpu_level::avx512) return run_avx512<Loop<cpu_level::avx512>>(first, last, kernel, args...);
  if (level == cpu_level::avx2) return run_avx2<Loop<cpu_level::avx2>>(first, last, kernel, args...);
#endif
  run_baseline<Loop<cpu_level::baseline>>(first, last, kernel, args...);
}

} // namespace detail

namespace host {

// kernel(i, args...) for every i in [first, last), on the calling thread. `level` must be one this machine
// supports. Nothing happens for first >= last.
template <class Kernel, class... Args>
void run_elements(cpu_level level, index_t first, index_t last, Kernel kernel, Args... args) {
  plateau::detail::run_at_level<plateau::detail::element_loop>(level, first, last, kernel, args...);
}

// kernel(team, row, args...) for every row in [first, last), on the calling thread, which is the whole team.
template <class Kernel, class... Args>
void run_rows(cpu_level level, index_t first, index_t last, Kernel kernel, Args... args) {
  plateau::detail::run_at_level<plateau::detail::row_loop>(level, first, last, kernel, args...);
}

} // namespace host

} // namespace plateau::inline v0
