// SPDX-License-Identifier: Apache-2.0
//
// AdamW on the processor against the memory it works in: the reference reads and writes the same streams with
// an addition for each, the best of what one can write by hand. The state is that of several tensors which
// take turns, so that none is found in a cache: a training step meets each byte once. Beside that, one small
// tensor that stays in the cache, where the roots and quotients show.
//
// fp32: masters, moments and gradients, 28 B a parameter. bf16: the same with gradients in bf16, and
// parameters in bf16 that leave around the caches, 28 B too.

#include "table.hpp"

#include <plateau/staging/adamw_settings.hpp>
#include <plateau/staging/host_adamw.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace pl = plateau;
using pl::index_t, pl::bfloat16, pl::host_space;

namespace {

struct state {
  bench::touched_buffer<float> master, m, v, g;
  bench::touched_buffer<std::uint16_t> g16, p16;

  explicit state(std::size_t n)
      : master(n, 1.0F), m(n, 1e-3F), v(n, 1e-5F), g(n, 1e-3F), g16(n, 0x3a83), p16(n, 0x3f80) {}
};

// Vectors of 64 bytes, whatever the machine has; the loops are compiled three times, as the kernels are.
using floats [[gnu::vector_size(64), gnu::may_alias, gnu::aligned(4)]] = float;
using words [[gnu::vector_size(32), gnu::may_alias, gnu::aligned(2)]] = std::uint16_t;

struct roofline {
  template <pl::cpu_level> struct loop {
    static void run(index_t first, index_t last, float* p, float* m, float* v, const float* g) {
      for (index_t i = first; i < last; i += 16) {
        const floats x = *reinterpret_cast<const floats*>(g + i);
        *reinterpret_cast<floats*>(p + i) += x;
        *reinterpret_cast<floats*>(m + i) += x;
        *reinterpret_cast<floats*>(v + i) += x;
      }
    }
  };
  // Parameters leave by way of a buffer in the nearest cache, a few lines at a time: the fastest of 128 to
  // 2048 elements.
  template <pl::cpu_level> struct narrow_loop {
    static void run(index_t first, index_t last, float* p, float* m, float* v, const std::uint16_t* g,
                    std::uint16_t* out) {
      alignas(64) std::uint16_t row[256];
      for (index_t i = first; i < last; i += 256) {
        const index_t n = std::min<index_t>(256, last - i);
        for (index_t k = 0; k < n; k += 16) {
          const words w = *reinterpret_cast<const words*>(g + i + k);
          const floats x = __builtin_convertvector(w, floats);
          *reinterpret_cast<floats*>(p + i + k) += x;
          *reinterpret_cast<floats*>(m + i + k) += x;
          *reinterpret_cast<floats*>(v + i + k) += x;
          *reinterpret_cast<words*>(row + k) = w;
        }
        pl::host::stream_bytes(out + i, row, static_cast<std::size_t>(n) * 2);
      }
      pl::host::finish_streaming();
    }
  };
};

// Both sides share the work among threads alike: a thread takes the next chunk.
class crew {
 public:
  explicit crew(int threads) {
    for (int i = 1; i < threads; ++i) helpers_.push_back(std::make_unique<pl::host::stream>("roofline"));
  }
  template <class F> void share(index_t n, F f) {
    constexpr index_t chunk = 64 * 2048;
    std::atomic<index_t> next{0};
    const auto work = [&] {
      for (index_t first; (first = next.fetch_add(chunk)) < n;) f(first, std::min(n, first + chunk));
    };
    std::vector<pl::host::event> done;
    for (const auto& h : helpers_) {
      h->push([&work] { work(); });
      done.push_back(h->record());
    }
    work();
    for (const auto& d : done) d.wait();
  }

 private:
  std::vector<std::unique_ptr<pl::host::stream>> helpers_;
};

void compare(bench::table& out, index_t n, int threads, bool narrow, bool cached, int repeats) {
  // At least 256 MiB of state in turn.
  const int tensors = cached ? 1 : static_cast<int>(std::max<index_t>(1, (index_t{12} << 20) / n));
  std::vector<std::unique_ptr<state>> all;
  for (int i = 0; i < tensors; ++i) all.push_back(std::make_unique<state>(static_cast<std::size_t>(n)));
  pl::host_adamw adamw(threads);
  crew reference(threads);
  const pl::cpu_level level = pl::detect_cpu_level();
  const pl::adamw_factors factors = pl::adamw_factors_of({}, 100);
  float go[] = {1, 0};
  const pl::view<const float, host_space> control{go, 2};
  const auto floats_of = [n](const auto& b) { return pl::view<float, host_space>{b.data(), n}; };
  const auto ours = [&] {
    for (const auto& s : all)
      if (narrow)
        adamw.update(
            factors,
            pl::view<const bfloat16, host_space>{reinterpret_cast<const bfloat16*>(s->g16.data()), n},
            control, floats_of(s->master), floats_of(s->m), floats_of(s->v),
            pl::view<bfloat16, host_space>{reinterpret_cast<bfloat16*>(s->p16.data()), n});
      else
        adamw.update(factors, pl::view<const float, host_space>(floats_of(s->g)), control,
                     floats_of(s->master), floats_of(s->m), floats_of(s->v));
  };
  const auto limit = [&] {
    for (const auto& s : all)
      reference.share(n, [&](index_t first, index_t last) {
        // The level as a constant: these loops have no kernel to dispatch.
        if (narrow)
          pl::detail::run_at_level<roofline::narrow_loop>(
              level, first, last, s->master.data(), s->m.data(), s->v.data(),
              static_cast<const std::uint16_t*>(s->g16.data()), s->p16.data());
        else
          pl::detail::run_at_level<roofline::loop>(level, first, last, s->master.data(), s->m.data(),
                                                   s->v.data(), static_cast<const float*>(s->g.data()));
      });
  };
  const bench::pairs p = bench::in_turns(repeats, ours, limit);
  const std::string what =
      fmt::format("AdamW {}, {}M{}, {} thread{}: part of the roofline", narrow ? "bf16" : "fp32", n >> 20,
                  cached ? " in the cache" : "", threads, threads == 1 ? "" : "s");
  out.row(what, p.speed(),
          cached ? bench::goal{} : bench::goal::at_least(n < (index_t{8} << 20) ? 0.95 : 0.97));
  const double bytes = 28.0 * static_cast<double>(n) * tensors;
  const bench::spread time = p.reference.in(1.0);
  out.row("  its roofline, GB/s", {bytes / time.median * 1e-9, bytes / time.p90 * 1e-9,
                                   bytes / time.p10 * 1e-9, bytes / time.minimum * 1e-9, 0});
}

} // namespace

int main(int argc, char** argv) {
  bench::table out(argv);
  const bool quick = argc > 1 && std::string_view(argv[1]) == "quick";
  const int repeats = quick ? 5 : 31;
  const auto cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  for (const int threads : {1, cores})
    for (const bool narrow : {false, true}) {
      for (const index_t millions : {1, 16, 64})
        if (!quick || millions < 64) compare(out, millions << 20, threads, narrow, false, repeats);
      compare(out, index_t{1} << 20, threads, narrow, true, repeats);
    }
  return 0;
}
