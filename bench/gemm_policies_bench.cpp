// SPDX-License-Identifier: Apache-2.0
//
// The GEMM policies of the host backend against the BLAS called directly, on one thread: each iteration times
// one after the other, and what counts is the median of the ratios of these pairs (above 1: ours is faster).
// Without OpenBLAS only the built-in one's speed is shown.
#include <benchmark/benchmark.h>

#include <plateau/host/block_gemm.hpp>
#if defined(PLATEAU_BENCH_HAS_BLAS)
#include <plateau/blas/blas_gemm.hpp>

extern "C" char* openblas_get_corename(void);
extern "C" void openblas_set_num_threads(int);
#endif

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

namespace pl = plateau;
using pl::index_t;
using pl::transpose;

template <class T> std::vector<T> values(index_t n) {
  std::vector<T> out;
  std::uint32_t state = 1;
  for (index_t i = 0; i < n; ++i) {
    state = state * 1664525u + 1013904223u;
    out.push_back(T(static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31f));
  }
  return out;
}

// CPU time of this thread, which computes alone: a neighbour that takes the core away is not in it.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Repeats until a reading is long beside the clock, so that 16 rows are measured as well as 1,024.
template <class F> double time_of(index_t repeats, F&& f) {
  const double start = thread_seconds();
  for (index_t r = 0; r < repeats; ++r) f();
  return (thread_seconds() - start) / static_cast<double>(repeats);
}

double quantile(std::vector<double> x, double at) {
  std::sort(x.begin(), x.end());
  return x.empty() ? 0.0 : x[static_cast<std::size_t>(at * static_cast<double>(x.size() - 1) + 0.5)];
}

// C (m, n) = A (m, k) op(B), T into T.
template <class Gemm, class T> void multiply(benchmark::State& state, transpose op_b, pl::cpu_level level) {
  const index_t m = state.range(0), n = state.range(1), k = state.range(2);
  const std::vector<T> a = values<T>(m * k), b = values<T>(k * n);
  std::vector<T> c(static_cast<std::size_t>(m * n));
  const pl::scalar_kind kind = pl::scalar_kind_of<T>;
  const std::size_t bytes = Gemm::scratch_bytes(transpose::no, op_b, m, n, k, kind, kind, kind);
  void* scratch = std::aligned_alloc(64, (bytes + 127) / 64 * 64);
  const index_t ldb = op_b == transpose::no ? n : k;
  const double flops = pl::gemm_shape{transpose::no, op_b, m, n, k}.flops();
  const auto repeats = static_cast<index_t>(std::max(1.0, 3e7 / flops));
  const auto ours = [&] {
    Gemm::run(transpose::no, op_b, m, n, k, 1.0f, a.data(), k, b.data(), ldb, 0.0f, c.data(), n, scratch,
              level);
    benchmark::ClobberMemory();
  };
#if defined(PLATEAU_BENCH_HAS_BLAS)
  const std::vector<float> a_float = values<float>(m * k), b_float = values<float>(k * n);
  std::vector<float> c_float(static_cast<std::size_t>(m * n));
  const auto direct = [&] {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, op_b == transpose::no ? CblasNoTrans : CblasTrans,
                static_cast<blasint>(m), static_cast<blasint>(n), static_cast<blasint>(k), 1.0f,
                a_float.data(), static_cast<blasint>(k), b_float.data(), static_cast<blasint>(ldb), 0.0f,
                c_float.data(), static_cast<blasint>(n));
    benchmark::ClobberMemory();
  };
  direct();
  std::vector<double> ratios;
#endif
  std::vector<double> times;
  ours();
  for (auto _ : state) {
    times.push_back(time_of(repeats, ours));
    state.SetIterationTime(times.back());
#if defined(PLATEAU_BENCH_HAS_BLAS)
    ratios.push_back(time_of(repeats, direct) / times.back());
#endif
  }
  state.counters["GFLOP/s"] = flops / quantile(times, 0.5) * 1e-9;
#if defined(PLATEAU_BENCH_HAS_BLAS)
  state.counters["x_blas"] = quantile(ratios, 0.5);
  state.counters["x_blas_low"] = quantile(ratios, 0.1);
  state.counters["x_blas_high"] = quantile(ratios, 0.9);
#endif
  std::free(scratch);
}

template <class Gemm, class T>
void add(const std::string& name, index_t m, index_t n, index_t k, transpose op_b, pl::cpu_level level) {
  const std::string full = name + (op_b == transpose::no ? "/nn" : "/nt");
  benchmark::RegisterBenchmark(full.c_str(), [=](benchmark::State& s) { multiply<Gemm, T>(s, op_b, level); })
      ->Args({m, n, k})
      ->UseManualTime()
      ->Iterations(31)
      ->Unit(benchmark::kMicrosecond);
}

} // namespace

int main(int argc, char** argv) {
  // OpenBLAS reads these once, when it is loaded: they may name a lesser kernel, which would flatter every
  // ratio.
  if (std::getenv("OPENBLAS_CORETYPE") != nullptr || std::getenv("OPENBLAS_L2_SIZE") != nullptr) {
    unsetenv("OPENBLAS_CORETYPE");
    unsetenv("OPENBLAS_L2_SIZE");
    execv("/proc/self/exe", argv);
    std::perror("gemm_bench: cannot start again without OPENBLAS_CORETYPE");
    return 1;
  }
#if defined(PLATEAU_BENCH_HAS_BLAS)
  openblas_set_num_threads(1);
  std::printf("BLAS kernel: %s, one thread\n", openblas_get_corename());
#endif
  const pl::cpu_level level = pl::detect_cpu_level();
  std::printf("built-in kernel: %s\n", pl::cpu_level_name(level));

  using pl::block_gemm;
  for (const index_t n : {128, 256, 512, 1024})
    add<block_gemm, float>("block/fp32", n, n, n, transpose::no, level);
  add<block_gemm, float>("block/fp32", 512, 512, 512, transpose::yes, level);
  for (const index_t n : {512, 1024})
    add<block_gemm, pl::bfloat16>("block/bf16", n, n, n, transpose::no, level);
  // An expert's rows, and a router: tall and narrow, or a few rows against a large weight.
  add<block_gemm, float>("block/fp32 expert", 2048, 64, 512, transpose::yes, level);
  add<block_gemm, float>("block/fp32 expert", 2048, 512, 64, transpose::yes, level);
  for (const index_t m : {1, 4, 16, 64})
    add<block_gemm, float>("block/fp32 expert", m, 512, 512, transpose::yes, level);
  add<block_gemm, pl::bfloat16>("block/bf16 expert", 16, 512, 512, transpose::yes, level);
  add<block_gemm, float>("block/fp32 router", 2048, 8, 512, transpose::yes, level);
  for (const pl::cpu_level lesser : {pl::cpu_level::baseline, pl::cpu_level::avx2})
    if (lesser != level && pl::cpu_supports(lesser))
      add<block_gemm, float>(std::string("block/fp32 ") + pl::cpu_level_name(lesser), 512, 512, 512,
                             transpose::no, lesser);
#if defined(PLATEAU_BENCH_HAS_BLAS)
  add<pl::blas_gemm, float>("blas/fp32", 512, 512, 512, transpose::no, level);
  for (const index_t n : {512, 1024})
    add<pl::blas_gemm, pl::bfloat16>("blas/bf16", n, n, n, transpose::no, level);
#endif
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
