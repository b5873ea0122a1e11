// SPDX-License-Identifier: Apache-2.0
//
// Stand-in for NCCL: communicators whose ranks are threads of this process. As with NCCL, sends and receives
// of a pair are matched in order and in nothing else: when sizes differ, both ranks hang until they abort. A
// communicator that does not block is "in progress" for a while after each call; a group of sends and
// receives stands in its stream only when it is not any more, and not before the other ranks have come, too.
//
// What is wrong though NCCL would not say so is reported: two threads in one communicator at a time, a call
// for one that was destroyed or aborted, and at the end of the program communicators that are left.
#pragma once

#include <cuda_stand_in/calls.hpp>
#include <cuda_stand_in/memory.hpp>
#include <cuda_stand_in/process.hpp>
#include <cuda_stand_in/stream.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
  ncclNumResults = 8
};
struct ncclComm;

namespace cuda_stand_in::nccl {

// One send or receive, from the call until the bytes have moved.
struct operation {
  ncclComm* comm = nullptr;
  bool sends = false;
  int peer = -1;
  void* given = nullptr;
  std::size_t bytes = 0;
  cudaStream_t stream = nullptr;
  bool done = false;
};

// Those who belong together, and what they have for one another.
struct clique {
  explicit clique(int ranks)
      : size(ranks), members(static_cast<std::size_t>(ranks)), pairs(members.size() * members.size()),
        met(pairs.size()) {}
  struct pair {
    std::deque<operation*> sends, receives;
    bool jammed = false; // sizes differ: nothing more comes through
  };
  struct division {
    std::map<int, std::pair<int, int>> wishes; // of rank: color and key
    std::map<int, std::shared_ptr<clique>> parts;
  };
  pair& from_to(int a, int b) { return pairs[static_cast<std::size_t>(a * size + b)]; }
  // Whether rank a has told NCCL of something with b.
  bool knows(int a, int b) const { return met[static_cast<std::size_t>(a * size + b)]; }
  void introduce(int a, int b) { met[static_cast<std::size_t>(a * size + b)] = true; }

  int size;
  std::vector<ncclComm*> members;
  int come = 0;
  bool shares_a_device = false;
  std::vector<pair> pairs;
  std::vector<bool> met;
  std::map<int, division> divisions; // by their number
};

// What one lock guards. Never destroyed.
struct state {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::array<char, 128>, std::shared_ptr<clique>> meeting; // by unique id, until all have come
  std::uint64_t ids = 0;
  unsigned polls_in_progress = 3; // how often a communicator says so after a call, at least
  std::atomic<unsigned> slow_answer_microseconds{0}; // now and then it takes up to that long to say so
  std::atomic<int> deaf_rank{-1};                    // whose work NCCL does, and does not come to say so
  std::string last_error;
  std::map<int, int> running_on; // groups in streams of a device, of all communicators
};
inline state& here() {
  static auto* const one = new state;
  return *one;
}
using lock_type = std::unique_lock<std::mutex>;

// Where ranks are threads that play nodes with different libraries; 0: that of the header.
inline constinit thread_local int version_here = 0;

inline ncclResult_t say(ncclResult_t code, std::string why) { // with the lock held
  here().last_error = std::move(why);
  return code;
}

} // namespace cuda_stand_in::nccl

struct ncclComm {
  using clique_type = cuda_stand_in::nccl::clique;

  std::shared_ptr<clique_type> of;
  int rank = -1, device = 0;
  bool blocking = true;
  // What goes on in the background, asked again until it is done; and how often it is asked in vain before.
  std::function<bool()> task{};
  unsigned vain_polls = 0;
  ncclResult_t error = ncclSuccess; // stays
  int divided = 0;                  // times
  int running = 0;                  // groups in streams
  bool aborted = false, finalized = false, gone = false;
  std::atomic<int> inside{0};
};

namespace cuda_stand_in::nccl {

inline registry<ncclComm>& communicators() {
  static auto* const one = new registry<ncclComm>;
  return *one;
}
inline void report_communicators() {
  if (const std::size_t n = communicators().living(); n != 0)
    report("at the end there still are " + std::to_string(n) + " NCCL communicators");
}
inline const bool communicators_are_watched =
    (cuda_stand_in::here().at_exit.push_back(&report_communicators), true);

// A call for a communicator. `alone`: NCCL wants no other thread in there meanwhile.
class visit {
 public:
  visit(const char* name, ncclComm* comm, bool aborts = false) : comm_(comm) {
    if (comm == nullptr || !communicators().has(comm)) {
      report(std::string(name) +
             " is called for a communicator that does not exist, or was destroyed or aborted");
      comm_ = nullptr;
      return;
    }
    const int others = comm_->inside.fetch_add(1);
    // A call that blocks is ended by an abort; others are over in a moment, and must be.
    if (others != 0 && !(aborts && comm_->blocking))
      report(std::string(name) + " is called while another thread is in the same communicator");
  }
  visit(const visit&) = delete;
  ~visit() {
    if (comm_ != nullptr) comm_->inside.fetch_sub(1);
  }
  explicit operator bool() const { return comm_ != nullptr; }

 private:
  ncclComm* comm_;
};

// A thread that asks how a communicator is may be held up before it gets the answer, and do the work then.
inline void answer_slowly() {
  static std::atomic<std::uint32_t> asked{0};
  const std::uint32_t mixed = (asked.fetch_add(1) + 1) * 2654435761U;
  const unsigned most = here().slow_answer_microseconds;
  if (most != 0 && mixed >> 28 == 0)
    std::this_thread::sleep_for(std::chrono::microseconds((mixed >> 12) % most));
}

// Whether what was begun goes on; moves it on. With the lock held.
inline ncclResult_t progress(ncclComm& c) {
  if (c.error != ncclSuccess) return c.error;
  if (!c.task) return ncclSuccess;
  if (c.vain_polls != 0) {
    --c.vain_polls;
    return ncclInProgress;
  }
  if (!c.task()) return c.error != ncclSuccess ? c.error : ncclInProgress;
  c.task = nullptr;
  here().changed.notify_all();
  if (c.rank == here().deaf_rank) {
    c.task = [] { return false; };
    return ncclInProgress;
  }
  return c.error;
}
// Begins something: in the background, or until it is done. With the lock held.
inline ncclResult_t begin(lock_type& lock, ncclComm& c, std::function<bool()> task) {
  c.task = std::move(task);
  c.vain_polls = c.blocking ? 0 : here().polls_in_progress;
  if (!c.blocking) return ncclInProgress;
  here().changed.notify_all();
  here().changed.wait(lock, [&] { return c.aborted || progress(c) != ncclInProgress; });
  return c.aborted ? say(ncclInternalError, "aborted") : c.error;
}
// A communicator that may be used: nothing goes on in it.
inline ncclResult_t ready(ncclComm& c) {
  if (c.aborted) return say(ncclInvalidUsage, "the communicator was aborted");
  if (c.finalized) return say(ncclInvalidUsage, "the communicator was finalized");
  if (c.error != ncclSuccess) return c.error;
  if (c.task)
    return say(ncclInvalidArgument,
               "Attempt to use communicator before the previous operation returned ncclSuccess");
  return ncclSuccess;
}

// Moves what both sides have in hand. With the lock held.
inline void match(clique& of, int from, int to) {
  clique::pair& p = of.from_to(from, to);
  while (!p.jammed && !p.sends.empty() && !p.receives.empty()) {
    operation &s = *p.sends.front(), &r = *p.receives.front();
    if (s.bytes != r.bytes) {
      p.jammed = true;
      return;
    }
    const place a = locate(s.given), b = locate(r.given);
    if (!reaches(a, s.bytes) || !reaches(b, r.bytes))
      fail_device(s.comm->device, cudaErrorIllegalAddress,
                  "NCCL moves bytes from or to memory that is not there");
    else
      std::memmove(b.real, a.real, s.bytes);
    s.done = r.done = true;
    p.sends.pop_front();
    p.receives.pop_front();
  }
}
// The kernel of a group, in its stream.
inline void run(ncclComm& c, std::vector<operation>& operations) {
  lock_type lock(here().mutex);
  clique& of = *c.of;
  if (!c.aborted) {
    for (operation& o : operations) {
      clique::pair& p = o.sends ? of.from_to(c.rank, o.peer) : of.from_to(o.peer, c.rank);
      (o.sends ? p.sends : p.receives).push_back(&o);
    }
    for (const operation& o : operations) match(of, o.sends ? c.rank : o.peer, o.sends ? o.peer : c.rank);
    here().changed.notify_all();
    here().changed.wait(lock, [&] {
      return c.aborted || std::all_of(operations.begin(), operations.end(), [](auto& o) { return o.done; });
    });
  }
  for (clique::pair& p : of.pairs) {
    const auto mine = [&](const operation* o) { return o->comm == &c; };
    std::erase_if(p.sends, mine);
    std::erase_if(p.receives, mine);
  }
  --c.running;
  --here().running_on[c.device];
  here().changed.notify_all();
}

// What a thread has put into its group.
struct open_group {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  std::vector<operation> operations;
};
inline thread_local open_group group;

// Puts the operations of one communicator into their streams once all that they go to have come.
inline ncclResult_t launch(lock_type& lock, ncclComm& c, std::vector<operation> all) {
  for (const operation& o : all)
    if (o.peer == c.rank) {
      const auto of_kind = [&](bool sends) {
        return std::count_if(all.begin(), all.end(),
                             [&](const operation& q) { return q.peer == c.rank && q.sends == sends; });
      };
      if (of_kind(true) != of_kind(false))
        return say(ncclInvalidUsage,
                   "Trying to send to self without a matching recv, or the other way round");
    }
  for (const operation& o : all) c.of->introduce(c.rank, o.peer);
  here().changed.notify_all();
  return begin(lock, c, [&c, operations = std::move(all)]() mutable {
    for (const operation& o : operations)
      if (!c.of->knows(o.peer, c.rank)) return false;
    while (!operations.empty()) {
      const cudaStream_t stream = operations.front().stream;
      const auto rest = std::stable_partition(operations.begin(), operations.end(),
                                              [&](const operation& o) { return o.stream == stream; });
      std::vector<operation> kernel(operations.begin(), rest);
      operations.erase(operations.begin(), rest);
      ++c.running;
      ++here().running_on[c.device];
      append(
          stream_of(stream), [&c, k = std::move(kernel)]() mutable { run(c, k); }, true);
    }
    return true;
  });
}
// Frees a communicator that was aborted, or in which nothing goes on. Memory of a device is freed behind all
// that runs there, so this waits for the kernels of other communicators too.
inline void reclaim(ncclComm& c) {
  lock_type lock(here().mutex);
  here().changed.wait(lock, [&] { return here().running_on[c.device] == 0; });
  c.task = nullptr;
  c.gone = true;
  communicators().remove(&c);
}

inline ncclResult_t end_group() {
  open_group mine = std::exchange(group, {});
  ncclResult_t result = mine.error;
  if (result == ncclSuccess) {
    lock_type lock(here().mutex);
    while (!mine.operations.empty()) {
      ncclComm* const c = mine.operations.front().comm;
      const auto rest = std::stable_partition(mine.operations.begin(), mine.operations.end(),
                                              [&](const operation& o) { return o.comm == c; });
      std::vector<operation> its(mine.operations.begin(), rest);
      mine.operations.erase(mine.operations.begin(), rest);
      const ncclResult_t one = launch(lock, *c, std::move(its));
      if (result == ncclSuccess || (result == ncclInProgress && one != ncclSuccess)) result = one;
    }
  }
  return result;
}

} // namespace cuda_stand_in::nccl
