// SPDX-License-Identifier: Apache-2.0
//
// A stand-in for the CUDA runtime, cuBLAS and CUB on an ordinary CPU: g++ compiles with it what nvcc compiles
// with the real ones, and the tests run where there is no GPU.
//
// What it shows: wrong arguments, sizes and handles; a wait that is missing (streams are threads, operations
// come late on request); host code that touches device memory, and kernels that touch what is not theirs; a
// barrier that some threads of a block do not reach; results read from a thread that has none; calls that are
// not allowed in host functions, or that two host functions make wait for each other; leaks, double frees and
// use after free; and what a program does when any call fails.
//
// What it cannot show: anything about a GPU's numerics, speed, memory model, occupancy, registers, or about
// what the real libraries do beyond their documentation. A program that passes here can still fail on a GPU.
// Not modelled: the order between the default stream and others, full launch queues (they make the host
// wait), the few hardware queues that streams share, access between devices, and a kernel that reads ordinary
// host memory, which a GPU mostly cannot.
//
// This file: the settings, the journal of findings, and the count of calls, of which any can be made to fail.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <unistd.h>

namespace cuda_stand_in {

// In which order the threads of a block run between two barriers.
enum class thread_order { forward, backward, shuffled };

struct options {
  int devices = 1;
  int driver_version = 13000; // below runtime_version: every call says that the driver is too old
  int runtime_version = 13000;
  std::size_t memory_bytes = std::size_t{4} << 30; // of each device
  thread_order order = thread_order::forward;
  std::uint64_t seed = 1;            // of shuffled threads and of delays
  unsigned delay_microseconds = 0;   // the longest delay before an operation of a stream
  bool serial_host_functions = true; // as CUDA may run them: one at a time, whatever their streams
};

// Everything that is one per process. Never destroyed, since threads of streams may outlive main.
struct process {
  std::shared_mutex settings_mutex;
  options settings;
  std::atomic<std::uint64_t> settings_version{1};

  std::mutex journal_mutex;
  std::vector<std::string> journal;

  struct call_count {
    std::atomic<std::uint64_t> made{0};
    std::atomic<std::uint64_t> fail_at{0}; // 0: never
    std::atomic<int> fail_with{0};
  };
  std::shared_mutex calls_mutex; // readers share it: a lock of one's own would order the callers
  std::map<std::string, call_count, std::less<>> calls;
  call_count any_call;
  std::mutex failed_mutex;
  std::string failed_call; // the newest that was made to fail

  std::vector<void (*)()> at_exit; // what else looks for leaks
};

inline void leave_checked();

inline process& here() {
  static process* const one = [] {
    auto* p = new process;
    std::atexit(leave_checked);
    return p;
  }();
  return *one;
}

inline options settings() {
  std::shared_lock lock(here().settings_mutex);
  return here().settings;
}
// Applies to what is made or begun from now on.
inline void configure(const options& o) {
  std::lock_guard lock(here().settings_mutex);
  here().settings = o;
  here().settings_version.fetch_add(1, std::memory_order_relaxed);
}

// Something that is wrong, though no call returned an error. It is printed at once; a program that ends with
// findings that no test has taken ends with exit code 86.
inline void report(std::string text) {
  std::fprintf(stderr, "cuda stand-in: %s\n", text.c_str());
  std::lock_guard lock(here().journal_mutex);
  here().journal.push_back(std::move(text));
}
inline std::vector<std::string> take_findings() {
  std::lock_guard lock(here().journal_mutex);
  return std::exchange(here().journal, {});
}
inline void leave_checked() {
  for (void (*check)() : here().at_exit) check();
  std::size_t open = 0;
  {
    std::lock_guard lock(here().journal_mutex);
    open = here().journal.size();
  }
  if (open == 0) return;
  std::fprintf(stderr, "cuda stand-in: %zu findings\n", open);
  std::fflush(nullptr);
  ::_exit(86);
}

// The n-th call of this function from now on returns `code`, once; n = 0 takes that back.
inline process::call_count& count_of(std::string_view name) {
  {
    std::shared_lock lock(here().calls_mutex);
    const auto found = here().calls.find(name);
    if (found != here().calls.end()) return found->second;
  }
  std::unique_lock lock(here().calls_mutex);
  return here().calls[std::string(name)];
}
inline void fail_count(process::call_count& c, std::uint64_t n, int code) {
  c.fail_with.store(code, std::memory_order_relaxed);
  c.fail_at.store(n == 0 ? 0 : c.made.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
}
inline void fail_call(std::string_view name, std::uint64_t n, int code) {
  fail_count(count_of(name), n, code);
}
// The same over the calls of all functions together.
inline void fail_any_call(std::uint64_t n, int code) { fail_count(here().any_call, n, code); }
inline std::uint64_t calls_of(std::string_view name) {
  return count_of(name).made.load(std::memory_order_relaxed);
}
inline std::uint64_t all_calls() { return here().any_call.made.load(std::memory_order_relaxed); }

// Counts a call; the code that it must fail with, or 0.
inline int enter(std::string_view name) {
  int code = 0;
  for (process::call_count* c : {&count_of(name), &here().any_call}) {
    const std::uint64_t mine = c->made.fetch_add(1, std::memory_order_relaxed) + 1;
    if (mine == c->fail_at.load(std::memory_order_relaxed))
      code = c->fail_with.load(std::memory_order_relaxed);
  }
  if (code != 0) {
    std::lock_guard lock(here().failed_mutex);
    here().failed_call = name;
  }
  return code;
}
// The name of the call that was the last to be made to fail; asking forgets it.
inline std::string take_failed_call() {
  std::lock_guard lock(here().failed_mutex);
  return std::exchange(here().failed_call, {});
}

// A small generator: the same numbers everywhere.
struct random_bits {
  std::uint64_t state;
  std::uint64_t next() {
    state += 0x9e3779b97f4a7c15u;
    std::uint64_t x = state;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  std::uint64_t below(std::uint64_t n) { return next() % n; }
};

// What the calling thread is doing, if it belongs to a stream.
enum class activity : unsigned char { none, kernel, host_function, library };
inline constinit thread_local activity doing = activity::none;

} // namespace cuda_stand_in
