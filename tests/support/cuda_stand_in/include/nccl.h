// SPDX-License-Identifier: Apache-2.0
//
// Stand-in for nccl.h, see cuda_stand_in/nccl_ranks.hpp. Only what the library under test calls.
#pragma once

#include <cuda_runtime.h>
#include <cuda_stand_in/nccl_ranks.hpp>

#include <climits>

#define NCCL_MAJOR 2
#define NCCL_MINOR 28
#define NCCL_PATCH 9
#define NCCL_VERSION_CODE 22809
#define NCCL_SPLIT_NOCOLOR -1
#define NCCL_UNIQUE_ID_BYTES 128

using ncclComm_t = ncclComm*;
struct ncclUniqueId {
  char internal[NCCL_UNIQUE_ID_BYTES];
};
enum ncclDataType_t { ncclInt8 = 0, ncclChar = 0, ncclUint8 = 1 };
struct ncclConfig_t {
  unsigned magic;
  int blocking;
  int splitShare;
};
#define NCCL_CONFIG_INITIALIZER                                                                              \
  { 0xcafebeef, INT_MIN, INT_MIN }

namespace cuda_stand_in::nccl {
// The frame of a call: refused in host functions of streams, counted, and told to fail by fail_call.
template <class F> ncclResult_t call(const char* name, F f) {
  if (forbidden(name)) return ncclInvalidUsage;
  if (const int code = enter(name); code != 0) {
    const lock_type lock(here().mutex);
    return say(static_cast<ncclResult_t>(code), "told to fail");
  }
  return f();
}
inline ncclResult_t join(ncclComm** made, int ranks, const ncclUniqueId& id, int rank, bool blocking) {
  if (made == nullptr || ranks < 1 || rank < 0 || rank >= ranks) return ncclInvalidArgument;
  auto c = std::make_unique<ncclComm>();
  c->rank = rank;
  c->device = current_device;
  c->blocking = blocking;
  ncclComm* const mine = *made = communicators().add(std::move(c));
  const visit here_now("ncclCommInitRank", mine);
  lock_type lock(here().mutex);
  std::array<char, NCCL_UNIQUE_ID_BYTES> key;
  std::copy(std::begin(id.internal), std::end(id.internal), key.begin());
  auto& meeting = here().meeting[key];
  if (!meeting) meeting = std::make_shared<clique>(ranks);
  mine->of = meeting;
  mine->of->members[static_cast<std::size_t>(rank)] = mine;
  if (++mine->of->come == ranks) here().meeting.erase(key);
  return begin(lock, *mine, [mine] {
    const clique& of = *mine->of;
    if (of.come != of.size) return false;
    for (const ncclComm* a : of.members)
      for (const ncclComm* b : of.members)
        if (a != b && a->device == b->device) mine->error = say(ncclInvalidUsage, "Duplicate GPU detected");
    return true;
  });
}
inline ncclResult_t add_operation(const char* name, bool sends, void* p, std::size_t count, int peer,
                                  ncclComm* comm, cudaStream_t stream) {
  return call(name, [&] {
    const visit v(name, comm);
    if (!v) return ncclInvalidArgument;
    ncclResult_t result = ncclSuccess;
    {
      const lock_type lock(here().mutex);
      result = ready(*comm);
      if (result == ncclSuccess && (peer < 0 || peer >= comm->of->size || (p == nullptr && count != 0)))
        result = say(ncclInvalidArgument, "no such peer, or no buffer");
      const place where = locate(p);
      if (result == ncclSuccess && (where.kind == memory_kind::pageable || !reaches(where, count)))
        result = say(ncclInvalidArgument, "the buffer is not memory of a device");
      CUstream_st* const s = stream_of(stream);
      if (result == ncclSuccess && (s == nullptr || s->device != comm->device))
        result = say(ncclInvalidArgument, "the stream is not of the communicator's device");
    }
    if (result != ncclSuccess) {
      if (group.depth != 0 && group.error == ncclSuccess) group.error = result;
      return result;
    }
    group.operations.push_back({comm, sends, peer, p, count, stream, false});
    return group.depth == 0 ? end_group() : ncclSuccess;
  });
}
} // namespace cuda_stand_in::nccl

inline const char* ncclGetErrorString(ncclResult_t r) {
  constexpr const char* texts[] = {"no error",
                                   "unhandled cuda error",
                                   "unhandled system error",
                                   "internal error",
                                   "invalid argument",
                                   "invalid usage",
                                   "remote process exited or there was a network error",
                                   "NCCL operation in progress"};
  return r >= 0 && r < ncclNumResults ? texts[r] : "unknown result code";
}
inline const char* ncclGetLastError(ncclComm_t) {
  using namespace cuda_stand_in::nccl;
  static thread_local std::string copy;
  const lock_type lock(here().mutex);
  copy = here().last_error;
  return copy.c_str();
}
inline ncclResult_t ncclGetVersion(int* version) {
  using namespace cuda_stand_in::nccl;
  return call("ncclGetVersion", [&] {
    *version = version_here != 0 ? version_here : NCCL_VERSION_CODE;
    return ncclSuccess;
  });
}
inline ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  using namespace cuda_stand_in::nccl;
  return call("ncclGetUniqueId", [&] {
    const lock_type lock(here().mutex);
    std::snprintf(id->internal, sizeof id->internal, "meeting %llu",
                  static_cast<unsigned long long>(++here().ids));
    return ncclSuccess;
  });
}
inline ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                           ncclConfig_t* config) {
  using namespace cuda_stand_in::nccl;
  return call("ncclCommInitRankConfig", [&] {
    if (config != nullptr && config->magic != 0xcafebeefu) return ncclInvalidArgument;
    return join(comm, ranks, id, rank, config == nullptr || config->blocking != 0);
  });
}
inline ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  using namespace cuda_stand_in::nccl;
  return call("ncclCommInitRank", [&] { return join(comm, ranks, id, rank, true); });
}
// The child is put into *made when all have come.
inline ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made,
                                  ncclConfig_t* config) {
  using namespace cuda_stand_in::nccl;
  return call("ncclCommSplit", [&] {
    const visit v("ncclCommSplit", comm);
    if (!v || made == nullptr || color < NCCL_SPLIT_NOCOLOR) return ncclInvalidArgument;
    lock_type lock(here().mutex);
    if (const ncclResult_t r = ready(*comm); r != ncclSuccess) return r;
    *made = nullptr;
    const bool blocking = config != nullptr ? config->blocking != 0 : comm->blocking;
    const int number = comm->divided++;
    comm->of->divisions[number].wishes[comm->rank] = {color, key};
    here().changed.notify_all();
    return begin(lock, *comm, [=] {
      clique::division& d = comm->of->divisions[number];
      if (static_cast<int>(d.wishes.size()) != comm->of->size) return false;
      if (color == NCCL_SPLIT_NOCOLOR) return true;
      std::vector<std::pair<int, int>> members; // key, rank
      for (const auto& [r, wish] : d.wishes)
        if (wish.first == color) members.emplace_back(wish.second, r);
      std::sort(members.begin(), members.end());
      auto& part = d.parts[color];
      if (!part) part = std::make_shared<clique>(static_cast<int>(members.size()));
      auto c = std::make_unique<ncclComm>();
      while (members[static_cast<std::size_t>(c->rank + 1)].second != comm->rank) ++c->rank;
      ++c->rank;
      c->device = comm->device;
      c->blocking = blocking;
      c->of = part;
      *made = communicators().add(std::move(c));
      ++part->come;
      part->members[static_cast<std::size_t>((*made)->rank)] = *made;
      return true;
    });
  });
}
inline ncclResult_t ncclGroupStart() {
  using namespace cuda_stand_in::nccl;
  return call("ncclGroupStart", [] {
    ++group.depth;
    return ncclSuccess;
  });
}
inline ncclResult_t ncclGroupEnd() {
  using namespace cuda_stand_in::nccl;
  // Closes the group whatever happens; when it fails nothing of it is begun.
  struct closing {
    ~closing() {
      if (failed && group.depth != 0 && --group.depth == 0) group = {};
    }
    bool failed = true;
  } on_failure;
  return call("ncclGroupEnd", [&] {
    on_failure.failed = false;
    if (group.depth == 0) return ncclInvalidUsage;
    return --group.depth == 0 ? end_group() : ncclSuccess;
  });
}
inline ncclResult_t ncclSend(const void* p, std::size_t count, ncclDataType_t, int peer, ncclComm_t comm,
                             cudaStream_t stream) {
  return cuda_stand_in::nccl::add_operation("ncclSend", true, const_cast<void*>(p), count, peer, comm,
                                            stream);
}
inline ncclResult_t ncclRecv(void* p, std::size_t count, ncclDataType_t, int peer, ncclComm_t comm,
                             cudaStream_t stream) {
  return cuda_stand_in::nccl::add_operation("ncclRecv", false, p, count, peer, comm, stream);
}
inline ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  using namespace cuda_stand_in::nccl;
  return call("ncclCommGetAsyncError", [&] {
    const visit v("ncclCommGetAsyncError", comm);
    if (!v) return ncclInvalidArgument;
    answer_slowly();
    const lock_type lock(here().mutex);
    *error = progress(*comm);
    return ncclSuccess;
  });
}
// Tells the kernels, and frees what is there, at once: NCCL does the second at the end of a group, but only
// since 2.22.
inline ncclResult_t ncclCommAbort(ncclComm_t comm) {
  using namespace cuda_stand_in::nccl;
  return call("ncclCommAbort", [&] {
    const visit v("ncclCommAbort", comm, true);
    if (!v) return ncclInvalidArgument;
    {
      const lock_type lock(here().mutex);
      comm->aborted = true;
      here().changed.notify_all();
    }
    reclaim(*comm);
    return ncclSuccess;
  });
}
inline ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  using namespace cuda_stand_in::nccl;
  return call("ncclCommFinalize", [&] {
    const visit v("ncclCommFinalize", comm);
    if (!v) return ncclInvalidArgument;
    lock_type lock(here().mutex);
    if (const ncclResult_t r = ready(*comm); r != ncclSuccess) return r;
    comm->finalized = true;
    return begin(lock, *comm, [comm] { return comm->running == 0; });
  });
}
inline ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  using namespace cuda_stand_in::nccl;
  return call("ncclCommDestroy", [&] {
    const visit v("ncclCommDestroy", comm);
    if (!v) return ncclInvalidArgument;
    {
      const lock_type lock(here().mutex);
      if (comm->task) return say(ncclInvalidArgument, "something is in progress");
    }
    reclaim(*comm);
    return ncclSuccess;
  });
}

namespace cuda_stand_in::nccl {
template <class F> ncclResult_t ask(const char* name, ncclComm* comm, int* answer, F f) {
  return call(name, [&] {
    const visit v(name, comm);
    if (!v || answer == nullptr) return ncclInvalidArgument;
    const lock_type lock(here().mutex);
    if (comm->task) return say(ncclInvalidArgument, "something is in progress");
    *answer = f();
    return ncclSuccess;
  });
}
// For tests: from here on the communicator says this of itself.
inline void spoil(ncclComm* comm, ncclResult_t error) {
  const lock_type lock(here().mutex);
  comm->error = say(error, "spoilt by a test");
}
} // namespace cuda_stand_in::nccl

inline ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  return cuda_stand_in::nccl::ask("ncclCommCount", comm, count, [&] { return comm->of->size; });
}
inline ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  return cuda_stand_in::nccl::ask("ncclCommUserRank", comm, rank, [&] { return comm->rank; });
}
inline ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  return cuda_stand_in::nccl::ask("ncclCommCuDevice", comm, device, [&] { return comm->device; });
}
