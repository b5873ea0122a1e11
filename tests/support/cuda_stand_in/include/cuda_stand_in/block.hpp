// SPDX-License-Identifier: Apache-2.0
//
// Runs the threads of one block after another, each until its next barrier, in an order that can be turned
// round or shuffled: what only works because thread 0 comes first, fails here. A barrier that some threads
// never reach is reported, and so is an access to memory that is not the kernel's; both end the kernel with
// an error that stays, as on a GPU.
#pragma once

#include <cuda_stand_in/fault.hpp>
#include <cuda_stand_in/fiber.hpp>
#include <cuda_stand_in/process.hpp>

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
// What a kernel sees. One for each stream's thread; the fibers take turns.
inline constinit thread_local uint3 threadIdx{0, 0, 0}, blockIdx{0, 0, 0};
inline constinit thread_local dim3 blockDim, gridDim;

namespace cuda_stand_in {

inline constexpr unsigned lanes = 32; // threads of a warp

class block_runner {
 public:
  // Calls body(closure) once for each thread of each block. True, or false and why not.
  bool run(void (*body)(void*), void* closure, dim3 grid, dim3 block, std::string& why) {
    body_ = body;
    closure_ = closure;
    gridDim = grid;
    blockDim = block;
    threads_.resize(std::size_t{block.x} * block.y * block.z);
    order_.resize(threads_.size());
    read_settings();
    for (unsigned z = 0; z < grid.z; ++z)
      for (unsigned y = 0; y < grid.y; ++y)
        for (unsigned x = 0; x < grid.x; ++x) {
          blockIdx = {x, y, z};
          if (!run_block(why)) return false;
        }
    return true;
  }

  // A barrier of the block (mask 0), or of the lanes of the warp that the mask names.
  void barrier(unsigned mask, const char* file, int line) {
    thread& me = threads_[current_];
    me.state = mask == 0 ? waiting_block : waiting_warp;
    me.mask = mask;
    me.file = file;
    me.line = line;
    switch_to(me.on->here, main_);
  }
  bool running() const { return active_; }

  // From the handler of a fault in a kernel: never returns.
  [[noreturn]] void fault(const void* address) {
    trouble_ = "a kernel touches memory that is not its own: " + text_of(address);
    leave_for_good();
  }

  static block_runner& mine() {
    static thread_local block_runner one;
    return one;
  }

 private:
  enum status : unsigned char { fresh, ready, waiting_block, waiting_warp, finished };
  struct thread {
    fiber* on = nullptr;
    status state = fresh;
    unsigned mask = 0;
    const char* file = "";
    int line = 0;
  };

  void read_settings() {
    const std::uint64_t version = here().settings_version.load(std::memory_order_relaxed);
    if (version == settings_version_) return;
    settings_version_ = version;
    const options now = settings();
    how_ = now.order;
    random_.state = now.seed;
  }

  bool run_block(std::string& why) {
    std::size_t left = threads_.size();
    for (thread& t : threads_) t = {};
    std::iota(order_.begin(), order_.end(), 0u);
    if (how_ == thread_order::backward) std::iota(order_.rbegin(), order_.rend(), 0u);
    active_ = true;
    while (left != 0 && trouble_.empty()) {
      if (how_ == thread_order::shuffled)
        for (std::size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random_.below(i)]);
      for (const unsigned t : order_) {
        if (threads_[t].state != fresh && threads_[t].state != ready) continue;
        resume(t);
        if (!trouble_.empty()) break;
        if (threads_[t].state == finished) --left;
      }
      if (left != 0 && trouble_.empty() && !release()) trouble_ = stuck();
    }
    active_ = false;
    if (trouble_.empty()) return true;
    why = std::exchange(trouble_, {});
    spare_.clear();
    for (const auto& f : fibers_) {
      f->rewind();
      spare_.push_back(f.get());
    }
    return false;
  }

  void resume(unsigned t) {
    thread& next = threads_[t];
    if (next.on == nullptr) {
      if (spare_.empty()) {
        fibers_.push_back(std::make_unique<fiber>(&run_threads));
        spare_.reserve(fibers_.size());
        spare_.push_back(fibers_.back().get());
      }
      next.on = spare_.back();
      spare_.pop_back();
    }
    current_ = t;
    threadIdx = {t % blockDim.x, t / blockDim.x % blockDim.y, t / (blockDim.x * blockDim.y)};
    doing = activity::kernel;
    leave_kernel = [](const void* address) { mine().fault(address); };
    switch_to(main_, next.on->here);
    doing = activity::library;
    if (next.state == finished) {
      spare_.push_back(next.on);
      next.on = nullptr;
    }
  }

  // The life of a fiber: one thread of a block after another.
  static void run_threads() {
    block_runner& r = mine();
    r.entered();
    for (;;) {
      try {
        r.body_(r.closure_);
      } catch (const std::exception& e) {
        r.trouble_ = std::string("an exception leaves a kernel, which has none on a GPU: ") + e.what();
      } catch (...) {
        r.trouble_ = "an exception leaves a kernel, which has none on a GPU";
      }
      thread& me = r.threads_[r.current_];
      me.state = finished;
      switch_to(me.on->here, r.main_);
    }
  }
  // A fiber begins: the address sanitizer tells where the stack lies that was left, the thread's own.
  void entered() {
#if defined(CUDA_STAND_IN_ASAN)
    __sanitizer_finish_switch_fiber(nullptr, &main_.bottom, &main_.bytes);
#endif
  }
  [[noreturn]] void leave_for_good() {
    switch_to(threads_[current_].on->here, main_, true);
    std::abort();
  }

  // Lets go on whoever has all its companions at the barrier. False where nobody has.
  bool release() {
    bool any = false;
    std::size_t at_block = 0;
    for (const thread& t : threads_) at_block += t.state == waiting_block ? 1 : 0;
    if (at_block == threads_.size() && same_place(0, threads_.size(), ~0u)) {
      for (thread& t : threads_) t.state = ready;
      return true;
    }
    for (std::size_t first = 0; first < threads_.size(); first += lanes) {
      const std::size_t end = std::min(first + lanes, threads_.size());
      for (std::size_t t = first; t < end; ++t) {
        if (threads_[t].state != waiting_warp) continue;
        const unsigned mask = threads_[t].mask;
        if (!all_wait(first, end, mask) || !same_place(first, end, mask)) continue;
        // In a shuffled order some warps run ahead of others.
        if (how_ == thread_order::shuffled && any && random_.below(2) == 0) continue;
        for (std::size_t u = first; u < end; ++u)
          if ((mask >> (u - first) & 1u) != 0) threads_[u].state = ready;
        any = true;
      }
    }
    return any;
  }
  bool all_wait(std::size_t first, std::size_t end, unsigned mask) const {
    for (std::size_t u = first; u < end; ++u)
      if ((mask >> (u - first) & 1u) != 0 && (threads_[u].state != waiting_warp || threads_[u].mask != mask))
        return false;
    return true;
  }
  bool same_place(std::size_t first, std::size_t end, unsigned mask) const {
    const thread* one = nullptr;
    for (std::size_t u = first; u < end; ++u) {
      if (mask != ~0u && (mask >> (u - first) & 1u) == 0) continue;
      if (one == nullptr) one = &threads_[u];
      if (threads_[u].line != one->line || std::strcmp(threads_[u].file, one->file) != 0) return false;
    }
    return true;
  }
  std::string stuck() const {
    std::size_t gone = 0;
    const thread* one = nullptr;
    const thread* other = nullptr;
    std::size_t waiting = 0, which = 0;
    for (std::size_t t = 0; t < threads_.size(); ++t) {
      if (threads_[t].state == finished) ++gone;
      if (threads_[t].state != waiting_block && threads_[t].state != waiting_warp) continue;
      ++waiting;
      if (one == nullptr) {
        one = &threads_[t];
        which = t;
      } else if (other == nullptr && (threads_[t].line != one->line || threads_[t].state != one->state)) {
        other = &threads_[t];
      }
    }
    const auto place = [](const thread& t) {
      return std::string(t.state == waiting_warp ? "__syncwarp" : "__syncthreads") + " at " + t.file + ":" +
             std::to_string(t.line);
    };
    std::string text = "a barrier that not all threads reach: of " + std::to_string(threads_.size()) +
                       " threads of block " + std::to_string(blockIdx.x) + ", " + std::to_string(waiting) +
                       " wait, " + std::to_string(gone) + " have left the kernel; thread " +
                       std::to_string(which) + " waits in " + place(*one);
    if (other != nullptr) text += ", another one in " + place(*other);
    return text;
  }

  void (*body_)(void*) = nullptr;
  void* closure_ = nullptr;
  std::vector<thread> threads_;
  std::vector<unsigned> order_;
  std::vector<std::unique_ptr<fiber>> fibers_;
  std::vector<fiber*> spare_;
  context main_;
  unsigned current_ = 0;
  bool active_ = false;
  std::string trouble_;
  thread_order how_ = thread_order::forward;
  random_bits random_{1};
  std::uint64_t settings_version_ = 0;
};

} // namespace cuda_stand_in
