// SPDX-License-Identifier: Apache-2.0
//
// How the bytes of an exchange move between ranks that are threads with streams of the CUDA backend: the
// receiver's stream waits for the sender's event "ready", copies, and records an event "taken", for which the
// sender's stream waits. All of it is enqueued by the rank's host thread, which meets its peers' host threads
// for that and waits for nothing on a device. Every wait is for an event that has been recorded already, so
// that no circle of waits can come about on a device, or between devices.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/cuda/check.hpp>
#include <plateau/cuda/event.hpp>
#include <plateau/cuda/stream.hpp>
#include <plateau/exchange.hpp>
#include <plateau/host/exchange_call.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <vector>

namespace plateau::inline v0::cudart {

// What one rank keeps from exchange to exchange, so that none allocates once it has seen its longest lists.
struct exchange_lane {
  std::vector<unsigned char> lists;
  std::vector<event> taken; // by peer: behind the copies that it has made from this rank's buffers
  event last;               // behind the rank's latest exchange in this communicator
};

// One rank's part in one exchange, while its host thread is in it.
class device_exchange : public host::exchange_call {
 public:
  device_exchange(const host::exchange_call& call, exchange_lane& lane, on<stream> s, send_list to_send,
                  receive_list to_receive)
      : exchange_call(call), lane_(lane), stream_(s.stream), at_(s.place()) {
    lane_.lists.resize(host::exchange_list_bytes(to_send.size(), to_receive.size()));
    post_lists(*this, lane_.lists.data(), to_send, to_receive);
  }
  device_exchange(const device_exchange&) = delete;
  device_exchange& operator=(const device_exchange&) = delete;
  // After a failure, peers may have begun to copy; the buffers are not the caller's again before they end.
  ~device_exchange() {
    for (event& e : lane_.taken) {
      if (e.handle() != nullptr) forgive(cudaEventSynchronize(e.handle()));
      e = {};
    }
  }

  // Before peers can see it: behind this rank's earlier exchanges, whatever their streams.
  void announce() {
    if (idle()) return;
    wait_for(lane_.last);
    ready_ = stream_.record(at_);
  }
  // Enqueues the receives from one peer, whose exchange cannot end meanwhile.
  void receive(device_exchange& theirs, int peer) {
    const bool mine = &theirs == this; // in the order of the stream anyway
    if (!mine) wait_for(theirs.ready_);
    struct unfinished {
      cudaStream_t s;
      ~unfinished() { // nobody can be told to wait for copies without an event
        if (s != nullptr) forgive(cudaStreamSynchronize(s));
      }
    } copies{stream_.handle()};
    for (const host::posted_receive& r : receives)
      if (r.peer == peer)
        check(cudaMemcpyAsync(r.p, r.from, r.bytes, cudaMemcpyDefault, stream_.handle()), "cudaMemcpyAsync",
              at_.file, at_.line);
    if (!mine) theirs.lane_.taken[static_cast<std::size_t>(rank)] = stream_.record(at_);
    copies.s = nullptr;
  }
  // When all peers have enqueued their copies: what comes later on the stream may overwrite what was sent.
  void settle() {
    if (idle()) return;
    for (event& e : lane_.taken) {
      wait_for(e);
      e = {};
    }
    lane_.last = stream_.record(at_);
  }

 private:
  bool idle() const { return sends.empty() && receives.empty(); }
  // Not stream::wait: a failure of another rank's host code is that rank's to report, under its name.
  void wait_for(const event& e) {
    if (e.handle() == nullptr) return;
    check(cudaStreamWaitEvent(stream_.handle(), e.handle(), 0), "cudaStreamWaitEvent", at_.file, at_.line);
  }

  exchange_lane& lane_;
  stream& stream_;
  source_line at_;
  event ready_;
};

// The mover of host::basic_thread_world.
class device_mover {
 public:
  using stream = cudart::stream;
  using call = device_exchange;
  static constexpr bool on_host_thread = true;

  explicit device_mover(int ranks) : lanes_(static_cast<std::size_t>(ranks)) {
    for (exchange_lane& each : lanes_) each.taken.resize(lanes_.size());
  }
  exchange_lane& lane(int rank) { return lanes_[static_cast<std::size_t>(rank)]; }
  void receive(call& mine, call& theirs, int peer, std::size_t) const { mine.receive(theirs, peer); }

 private:
  std::vector<exchange_lane> lanes_;
};

} // namespace plateau::inline v0::cudart
