// SPDX-License-Identifier: Apache-2.0
//
// Element kernels against memory: y = a x + y and y = a x on 64 MiB of floats each, through the seam's launch
// and at plain -O2, against hand-written loops over the same streams in this run, the faster of AVX-512 and
// AVX2. What memcpy makes of two streams stands beside them: it stores without reading first, which a kernel
// cannot know to be right.
#include "table.hpp"

#include <plateau/host/backend.hpp>

#include <algorithm>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

using plateau::index_t;
constexpr std::size_t n = std::size_t{1} << 24;

struct axpy {
  float a;
  template <class S>
  PLATEAU_HD void operator()(index_t i, plateau::view<const float, S> x, plateau::view<float, S> y) const {
    y[i] = a * x[i] + y[i];
  }
};
struct scaled {
  float a;
  template <class S>
  PLATEAU_HD void operator()(index_t i, plateau::view<const float, S> x, plateau::view<float, S> y) const {
    y[i] = a * x[i];
  }
};

// Two vectors a step; with Add, y is read too.
#if defined(__x86_64__)
template <bool Add> [[gnu::target("avx2,fma")]] void loop_avx2(float a, const float* x, float* y) {
  const __m256 factor = _mm256_set1_ps(a);
  for (std::size_t i = 0; i < n; i += 16)
    for (std::size_t k = i; k < i + 16; k += 8) {
      const __m256 v = _mm256_loadu_ps(x + k);
      _mm256_storeu_ps(y + k,
                       Add ? _mm256_fmadd_ps(factor, v, _mm256_loadu_ps(y + k)) : _mm256_mul_ps(factor, v));
    }
}
template <bool Add> [[gnu::target("avx512f")]] void loop_avx512(float a, const float* x, float* y) {
  const __m512 factor = _mm512_set1_ps(a);
  for (std::size_t i = 0; i < n; i += 32)
    for (std::size_t k = i; k < i + 32; k += 16) {
      const __m512 v = _mm512_loadu_ps(x + k);
      _mm512_storeu_ps(y + k,
                       Add ? _mm512_fmadd_ps(factor, v, _mm512_loadu_ps(y + k)) : _mm512_mul_ps(factor, v));
    }
}
#endif
template <bool Add> void loop_plain(float a, const float* x, float* y) {
  for (std::size_t i = 0; i < n; ++i) y[i] = Add ? a * x[i] + y[i] : a * x[i];
}

// The fastest loop with these streams on this machine.
template <bool Add> void (*fastest(const float* x, float* y))(float, const float*, float*) {
  std::vector<void (*)(float, const float*, float*)> loops{&loop_plain<Add>};
#if defined(__x86_64__)
  if (plateau::cpu_supports(plateau::cpu_level::avx2)) loops.push_back(&loop_avx2<Add>);
  if (plateau::cpu_supports(plateau::cpu_level::avx512)) loops.push_back(&loop_avx512<Add>);
#endif
  double best = 1e9;
  auto winner = loops.front();
  for (int round = 0; round < 5; ++round)
    for (const auto loop : loops) {
      const double t = bench::seconds_of([&] { loop(0.5f, x, y); });
      if (t < best) {
        best = t;
        winner = loop;
      }
    }
  return winner;
}

} // namespace

int main(int, char** argv) {
  bench::table table(argv);
  const bench::touched_buffer<float> x(n, 1.0f), y(n, 1.0f);
  plateau::host_backend backend;
  auto stream = backend.make_stream("main");
  const plateau::view<const float> from{x.data(), static_cast<index_t>(n)};
  const plateau::view<float> to{y.data(), static_cast<index_t>(n)};
  const auto run = [&](auto kernel, auto output) {
    backend.launch(stream, plateau::elements{to.n}, kernel, plateau::in(from), output);
    backend.wait(backend.record(stream));
  };
  const auto roofline_axpy = fastest<true>(x.data(), y.data());
  const auto roofline_scaled = fastest<false>(x.data(), y.data());
  constexpr int repeats = 41;
  const double mib = static_cast<double>(n * sizeof(float)) / (1 << 20);

  const auto add = bench::in_turns(
      repeats, [&] { run(axpy{0.5f}, plateau::inout(to)); },
      [&] { roofline_axpy(0.5f, x.data(), y.data()); });
  table.row(fmt::format("y = a x + y, {:.0f} MiB each / best loop", mib), add.speed(),
            bench::goal::at_least(0.9));
  const auto copied = bench::in_turns(
      repeats, [&] { run(scaled{0.5f}, plateau::out(to)); },
      [&] { roofline_scaled(0.5f, x.data(), y.data()); });
  table.row("y = a x / best loop with ordinary stores", copied.speed(), bench::goal::at_least(0.9));
  const auto against_memcpy = bench::in_turns(
      repeats, [&] { run(scaled{0.5f}, plateau::out(to)); },
      [&] { std::memcpy(y.data(), x.data(), n * sizeof(float)); });
  table.row("y = a x / memcpy", against_memcpy.speed());
  const auto seam_copy = bench::in_turns(
      repeats,
      [&] {
        backend.copy(stream, plateau::in(from), plateau::out(to));
        backend.wait(backend.record(stream));
      },
      [&] { std::memcpy(y.data(), x.data(), n * sizeof(float)); });
  table.row("copy through the seam / memcpy", seam_copy.speed(), bench::goal::at_least(0.9));
}
