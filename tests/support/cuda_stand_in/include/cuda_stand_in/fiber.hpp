// SPDX-License-Identifier: Apache-2.0
//
// A stack of its own for each thread of a block, and the switch between them. All of a block's stacks are run
// by one thread of the process, so that they share its thread-local variables, as a block shares its memory.
// The thread sanitizer is not told of the switches: it takes all for one thread, which is what the order of
// memory is here; only its lists of callers are then wrong inside kernels.
#pragma once

#include <cuda_stand_in/sanitizers.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include <sys/mman.h>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#if defined(CUDA_STAND_IN_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace cuda_stand_in {

#if defined(__x86_64__)
// Pushes what a call must preserve, keeps the stack's top in *save, and goes on where `load` was left.
__attribute__((naked, noinline)) inline void switch_stacks(void** /*save*/, void* /*load*/) {
  __asm__ volatile("pushq %rbp\n\t"
                   "pushq %rbx\n\t"
                   "pushq %r12\n\t"
                   "pushq %r13\n\t"
                   "pushq %r14\n\t"
                   "pushq %r15\n\t"
                   "movq %rsp, (%rdi)\n\t"
                   "movq %rsi, %rsp\n\t"
                   "popq %r15\n\t"
                   "popq %r14\n\t"
                   "popq %r13\n\t"
                   "popq %r12\n\t"
                   "popq %rbx\n\t"
                   "popq %rbp\n\t"
                   "ret");
}
#endif

// Where something can be left and gone on with: a fiber, or the stack of the thread itself.
struct context {
#if defined(__x86_64__)
  void* top = nullptr;
#else
  ucontext_t state{};
#endif
  const void* bottom = nullptr; // of the stack, for the address sanitizer
  std::size_t bytes = 0;
  void* fake = nullptr;
};

// Leaves `from` for `to`; returns when somebody switches back. `forever`: nobody will.
inline void switch_to(context& from, context& to, [[maybe_unused]] bool forever = false) {
#if defined(CUDA_STAND_IN_ASAN)
  __sanitizer_start_switch_fiber(forever ? nullptr : &from.fake, to.bottom, to.bytes);
#endif
#if defined(__x86_64__)
  switch_stacks(&from.top, to.top);
#else
  ::swapcontext(&from.state, &to.state);
#endif
#if defined(CUDA_STAND_IN_ASAN)
  __sanitizer_finish_switch_fiber(from.fake, nullptr, nullptr);
#endif
}

// A stack on which `entry` runs when one first switches to it. `entry` never returns.
class fiber {
 public:
#if defined(CUDA_STAND_IN_ASAN)
  static constexpr std::size_t stack_bytes = 256 << 10;
#else
  static constexpr std::size_t stack_bytes = 128 << 10;
#endif
  static constexpr std::size_t guard_bytes = 4096;

  explicit fiber(void (*entry)()) : entry_(entry) {
    void* p = ::mmap(nullptr, guard_bytes + stack_bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) std::abort();
    memory_ = static_cast<char*>(p);
    ::mprotect(memory_, guard_bytes, PROT_NONE);
    rewind();
  }
  fiber(const fiber&) = delete;
  fiber& operator=(const fiber&) = delete;
  ~fiber() { ::munmap(memory_, guard_bytes + stack_bytes); }

  // Forgets what runs there: the next switch begins `entry` anew. Nothing is unwound.
  void rewind() {
    char* const base = memory_ + guard_bytes;
    here = {};
    here.bottom = base;
    here.bytes = stack_bytes;
#if defined(CUDA_STAND_IN_ASAN)
    __asan_unpoison_memory_region(base, stack_bytes);
#endif
#if defined(__x86_64__)
    // As a call leaves it: six registers, where to go on, and nothing to return to, 8 bytes off a multiple
    // of 16.
    auto* top = reinterpret_cast<std::uintptr_t*>(base + stack_bytes) - 1;
    *top = 0;
    *--top = reinterpret_cast<std::uintptr_t>(entry_);
    for (int i = 0; i < 6; ++i) *--top = 0;
    here.top = top;
#else
    ::getcontext(&here.state);
    here.state.uc_stack.ss_sp = base;
    here.state.uc_stack.ss_size = stack_bytes;
    here.state.uc_link = nullptr;
    ::makecontext(&here.state, entry_, 0);
#endif
  }

  context here;

 private:
  void (*entry_)();
  char* memory_ = nullptr;
};

} // namespace cuda_stand_in
