// SPDX-License-Identifier: Apache-2.0
//
// Small messages on their way out. Sending never waits: MPI takes most at once, and what it does not is kept
// here until it has. Buffers are used again, so that in the steady state nothing is allocated.
#pragma once

#include <plateau/config.hpp>
#include <plateau/mpi/check.hpp>
#include <plateau/mpi/packet.hpp>

#include <algorithm>
#include <utility>
#include <vector>

namespace plateau::inline v0::mpi {

// One thread at a time.
class outbox {
 public:
  static constexpr int tag = 0; // all other tags carry the bytes of exchanges

  explicit outbox(MPI_Comm comm) : comm_(comm) {
    for (int i = 0; i < 16; ++i) spare_.push_back(blank());
  }
  outbox(const outbox&) = delete;
  outbox& operator=(const outbox&) = delete;
  // What MPI may still read is not freed.
  ~outbox() {
    if (!underway_.empty()) static_cast<void>(new std::vector<letter>(std::move(underway_)));
  }

  packet take() {
    if (spare_.empty()) return blank();
    packet p = std::move(spare_.back());
    spare_.pop_back();
    return p;
  }
  void give(packet&& p) { spare_.push_back(std::move(p)); }

  // Returns MPI's code. `of`: whose, for underway().
  int send(int to, packet&& content, const void* of = nullptr) {
    letter l{MPI_REQUEST_NULL, std::move(content), of, to};
    int code =
        MPI_Isend(l.content.data(), static_cast<int>(l.content.size()), MPI_BYTE, to, tag, comm_, &l.request);
    int done = 1;
    if (code == MPI_SUCCESS) code = MPI_Test(&l.request, &done, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS || done != 0)
      give(std::move(l.content));
    else
      underway_.push_back(std::move(l));
    return code;
  }
  // Forgets what has gone.
  void reap() {
    const auto gone = [this](letter& l) {
      int done = 0;
      check(MPI_Test(&l.request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      if (done != 0) give(std::move(l.content));
      return done != 0;
    };
    underway_.erase(std::remove_if(underway_.begin(), underway_.end(), gone), underway_.end());
  }
  bool empty() const { return underway_.empty(); }
  // Whether MPI still has some of what was sent for `of`, to any rank or to that one.
  bool underway(const void* of, int to = -1) const {
    return std::any_of(underway_.begin(), underway_.end(),
                       [=](const letter& l) { return l.of == of && (to < 0 || l.to == to); });
  }

 private:
  static packet blank() {
    packet p;
    p.reserve(1024); // enough for most
    return p;
  }
  struct letter {
    MPI_Request request;
    packet content; // its bytes stay where they are when it is moved
    const void* of;
    int to;
  };
  MPI_Comm comm_;
  std::vector<letter> underway_;
  std::vector<packet> spare_;
};

} // namespace plateau::inline v0::mpi
