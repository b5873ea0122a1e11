// SPDX-License-Identifier: Apache-2.0
//
// The machine under a benchmark: what it is, how busy it is, and how far apart its cores are, which on a
// virtual machine changes within seconds and moves two-thread bandwidth by a factor of two. Buffers are
// touched before anything is timed, on huge pages where the system gives them. Environment variables that
// force a slow kernel on OpenBLAS would flatter every ratio to it: a program that finds them starts again
// without.
#pragma once

#include "measure.hpp"

#include <fmt/core.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif
#if PLATEAU_BENCH_HAS_BLAS
extern "C" char* openblas_get_corename(void);
extern "C" void openblas_set_num_threads(int);
#endif

namespace bench {

// Nanoseconds that a cache line takes from one core to another: two threads pass a number to and fro.
inline spread handoff_ns() {
  constexpr int batches = 15, passes = 4000;
  std::atomic<int> turn{0};
  std::vector<double> each;
  std::thread other([&] {
    for (int i = 0; i < batches * passes; ++i) {
      while (turn.load(std::memory_order_acquire) != 2 * i + 1) {
      }
      turn.store(2 * i + 2, std::memory_order_release);
    }
  });
  for (int batch = 0; batch < batches; ++batch) {
    const double begun = seconds_now();
    for (int i = batch * passes; i < (batch + 1) * passes; ++i) {
      turn.store(2 * i + 1, std::memory_order_release);
      while (turn.load(std::memory_order_acquire) != 2 * i + 2) {
      }
    }
    each.push_back((seconds_now() - begun) * 1e9 / (2.0 * passes));
  }
  other.join();
  return spread_of(each);
}

inline std::string load_average() {
  std::ifstream file("/proc/loadavg");
  std::string one;
  file >> one;
  return one.empty() ? "unknown" : one;
}
inline std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  return "unknown";
}

// A line with what may change while a program runs: print it before and after.
inline void print_state(const char* when) {
  const spread s = handoff_ns();
  fmt::print("{}: core-to-core hand-off {:.0f} ns (10%..90%: {:.0f}..{:.0f}), load {}\n", when, s.median,
             s.p10, s.p90, load_average());
}

// Starts the program again where the environment would slow OpenBLAS down, or let it make threads of its own:
// they spin for a while from the moment that the library is loaded, beside what is measured.
inline void prepare_machine([[maybe_unused]] char** argv) {
#if defined(__linux__)
  bool again = false;
  for (const char* name : {"OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"})
    if (std::getenv(name) != nullptr) {
      unsetenv(name);
      again = true;
    }
  const char* threads = std::getenv("OPENBLAS_NUM_THREADS");
  if (threads == nullptr || std::strcmp(threads, "1") != 0) {
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    again = true;
  }
  if (again) execv("/proc/self/exe", argv);
#endif
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  fmt::print("{} x {}", std::thread::hardware_concurrency(), cpu_name());
#if PLATEAU_BENCH_HAS_BLAS
  openblas_set_num_threads(1);
  fmt::print("; BLAS kernel: {}, one thread", openblas_get_corename());
#endif
  fmt::print("\n");
  print_state("before");
}

// n elements on huge pages if there are any, all touched.
template <class T> class touched_buffer {
 public:
  explicit touched_buffer(std::size_t n, T value = T{}) : n_(n) {
    const std::size_t bytes = (n * sizeof(T) + huge_page - 1) / huge_page * huge_page;
    p_.reset(static_cast<T*>(::operator new(bytes, std::align_val_t(huge_page))));
#if defined(__linux__)
    madvise(p_.get(), bytes, MADV_HUGEPAGE);
#endif
    for (std::size_t i = 0; i < n; ++i) p_.get()[i] = value;
  }
  T* data() const { return p_.get(); }
  std::size_t size() const { return n_; }
  T& operator[](std::size_t i) const { return p_.get()[i]; }

 private:
  static constexpr std::size_t huge_page = std::size_t{1} << 21;
  struct release {
    void operator()(T* p) const { ::operator delete(p, std::align_val_t(huge_page)); }
  };
  std::size_t n_;
  std::unique_ptr<T, release> p_;
};

} // namespace bench
