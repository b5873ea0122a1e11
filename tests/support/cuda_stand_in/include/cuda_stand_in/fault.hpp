// SPDX-License-Identifier: Apache-2.0
//
// What happens at an access to memory that may not be touched. In a kernel it ends the kernel, as on a GPU;
// on the host it ends the program, also as with a GPU, after a line that says whose memory it was.
// The thread sanitizer wants no such handler: there, both end the program.
#pragma once

#include <cuda_stand_in/memory.hpp>
#include <cuda_stand_in/process.hpp>
#include <cuda_stand_in/sanitizers.hpp>

#include <csignal>
#include <cstdint>
#include <cstdio>
#include <string>

#include <unistd.h>

namespace cuda_stand_in {

inline std::string text_of(const void* address) {
  char text[32];
  const void* given = memory().device.holds(address) ? memory().device.shown(address) : address;
  std::snprintf(text, sizeof text, "%p", given);
  std::string all = text;
  if (memory().device.holds(address) || memory().device.shows(address)) all += " (device memory)";
  if (memory().pinned.holds(address)) all += " (pinned memory)";
  return all;
}

// Set while a kernel may be running: how to leave it.
using kernel_exit = void (*)(const void* address);
inline constinit thread_local kernel_exit leave_kernel = nullptr;

struct fault_handler {
  std::mutex mutex;
  struct sigaction before {};
};
inline fault_handler& faults() {
  static auto* const one = new fault_handler;
  return *one;
}

inline void on_fault(int, siginfo_t* info, void*) {
  if (doing == activity::kernel && leave_kernel != nullptr) leave_kernel(info->si_addr);
  const auto say = [](const char* text) {
    std::size_t n = 0;
    while (text[n] != 0) ++n;
    if (::write(2, text, n) < 0) return;
  };
  if (memory().device.shows(info->si_addr) || memory().device.holds(info->si_addr))
    say("cuda stand-in: host code touches device memory, or a kernel follows a pointer that it read\n");
  else if (memory().pinned.holds(info->si_addr))
    say("cuda stand-in: pinned memory is touched outside its allocation, or after it was freed\n");
  // The instruction is run again, for whoever handled faults before.
  ::sigaction(SIGSEGV, &faults().before, nullptr);
}

// Again and again, since test frameworks install handlers for each test.
inline void watch_faults() {
#if !defined(CUDA_STAND_IN_TSAN)
  std::lock_guard lock(faults().mutex);
  struct sigaction now {};
  ::sigaction(SIGSEGV, nullptr, &now);
  if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == &on_fault) return;
  faults().before = now;
  struct sigaction ours {};
  ours.sa_sigaction = &on_fault;
  ours.sa_flags = SA_SIGINFO | SA_NODEFER;
  ::sigemptyset(&ours.sa_mask);
  ::sigaction(SIGSEGV, &ours, nullptr);
#endif
}

} // namespace cuda_stand_in
