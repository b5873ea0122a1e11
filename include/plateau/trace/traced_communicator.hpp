// SPDX-License-Identifier: Apache-2.0
//
// Any communicator, with a record of when its exchanges ran and how long the host waited in those of
// integers: over the streams of a traced_backend, whose recorder it shares.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/exchange.hpp>
#include <plateau/trace/trace.hpp>
#include <plateau/trace/traced_backend.hpp>

#include <memory>
#include <span>
#include <string>
#include <utility>

namespace plateau::inline v0 {

// One per rank and group, used by that rank's host thread. An exchange's event lasts from when its stream
// comes to it until it has ended there, with the wait for other ranks, and has the bytes sent to others.
template <class Communicator, class TracedBackend> class traced_communicator {
 public:
  using stream = typename TracedBackend::stream;

  // Borrows both; they must outlive it, and what is split from it.
  traced_communicator(Communicator& comm, TracedBackend& backend) : comm_(&comm), backend_(&backend) {}
  traced_communicator(traced_communicator&&) noexcept = default;
  traced_communicator& operator=(traced_communicator&&) noexcept = default;

  int rank() const { return comm_->rank(); }
  int size() const { return comm_->size(); }
  decltype(auto) counters() const { return std::as_const(*comm_).counters(); }

  traced_communicator split(int color, int key) {
    const waiting for_others(backend_->recorder(), "split");
    return traced_communicator(std::make_unique<Communicator>(comm_->split(color, key)), *backend_);
  }

  void exchange(on<stream> s, send_list sends, receive_list receives, const char* what = "exchange") {
    bool something = false;
    std::uint64_t bytes = 0;
    for (const send_op& o : sends) {
      something = something || o.bytes != 0;
      if (o.peer != rank()) bytes += o.bytes;
    }
    for (const receive_op& o : receives) something = something || o.bytes != 0;
    backend_->traced(s, what, trace_kind::exchange, bytes, something,
                     [&](auto plain) { comm_->exchange(plain, sends, receives, what); });
  }
  void host_exchange(std::span<const std::int64_t> mine, std::span<std::int64_t> all,
                     const char* what = "host_exchange") {
    const waiting for_others(backend_->recorder(), what, {}, mine.size_bytes());
    comm_->host_exchange(mine, all, what);
  }
  void close_step() {
    const waiting for_others(backend_->recorder(), "close_step");
    comm_->close_step();
  }

  void latch(failure why) { comm_->latch(std::move(why)); }
  void abort(const std::string& cause) { comm_->abort(cause); }

  // What some communicators have beyond the concept.
  void abort(const failure& cause) requires requires(Communicator& c, const failure& f) { c.abort(f); }
  { comm_->abort(cause); }
  int origin_rank(int r) const requires requires(const Communicator& c) { c.origin_rank(0); }
  { return comm_->origin_rank(r); }
  void leave() requires requires(Communicator& c) { c.leave(); }
  { comm_->leave(); }
  auto cause() const requires requires(const Communicator& c) { c.cause(); }
  { return comm_->cause(); }

 private:
  using waiting = typename TracedBackend::waiting;
  traced_communicator(std::unique_ptr<Communicator> owned, TracedBackend& backend)
      : owned_(std::move(owned)), comm_(owned_.get()), backend_(&backend) {}

  std::unique_ptr<Communicator> owned_; // of one that was split off
  Communicator* comm_;
  TracedBackend* backend_;
};

} // namespace plateau::inline v0
