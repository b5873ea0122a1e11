// SPDX-License-Identifier: Apache-2.0
//
// An exchange between its issue and its end. Behind it in its stream stands a host call that tells when it
// has ended: by itself, or because the group failed and NCCL's kernels were made to stop. The stream is told
// in the second case, so that who waits for it gets the cause and not the bytes of half an exchange.
#pragma once

#include <plateau/config.hpp>
#include <plateau/cuda/event.hpp>
#include <plateau/cuda/host_calls.hpp>
#include <plateau/error.hpp>
#include <plateau/host/abort_record.hpp>
#include <plateau/nccl/handle.hpp>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace plateau::inline v0::nccl {

// A wait for other ranks that NCCL does not tell of: for all of them until it is over.
struct wait_for_peers final : host::wait_site {
  // `peers` by their numbers in the outermost communicator.
  wait_for_peers(int waiting_rank, const char* in_operation, std::uint64_t at_sequence, std::vector<int> of)
      : wait_site(waiting_rank, in_operation, at_sequence), peers(std::move(of)) {}
  bool awaits(int other) const override {
    return reached && std::find(peers.begin(), peers.end(), other) != peers.end();
  }

  std::vector<int> peers;
  bool reached = true; // false: something else of this rank comes first
};

// How long a wait may go on. With the record's mutex held.
class patience {
 public:
  using clock = host::abort_record::clock;

  explicit patience(std::chrono::milliseconds left_grace) : grace_(left_grace) {}
  // The failure of the wait, when it is over. One for a rank that has left fails only some time later: NCCL
  // holds what that rank had sent before, and this rank may have yet to take it.
  std::optional<failure> over(const host::abort_record& record, const wait_for_peers& wait) {
    for (const int p : wait.peers) {
      if (!record.has_left(p) || !wait.awaits(p)) continue;
      if (!left_) left_ = clock::now();
      if (clock::now() - std::max(*left_, wait.begun) >= grace_) return record.left_alone(p, wait);
    }
    return record.overdue(wait, wait.begun);
  }

 private:
  std::chrono::milliseconds grace_;
  std::optional<clock::time_point> left_{};
};

// Of one rank; under the record's mutex.
struct rank_state {
  explicit rank_state(std::shared_ptr<host::abort_record> of) : record(std::move(of)) {}

  const std::shared_ptr<host::abort_record> record;
  bool given_up = false; // what is in flight: the group has failed, and NCCL's kernels are being stopped
};

// What the host call knows; under the record's mutex.
struct flight_end {
  explicit flight_end(std::shared_ptr<rank_state> of) : rank(std::move(of)) {}

  std::shared_ptr<rank_state> rank;
  bool done = false;
  std::optional<failure> skipped{}; // the stream's failure: the exchange had nothing proper to send
};

// The host call. On a thread of CUDA's, which may be the only one: it waits for nobody.
class landing {
 public:
  explicit landing(std::shared_ptr<flight_end> end) : end_(std::move(end)) {}

  void operator()() const {
    host::abort_record& record = *end_->rank->record;
    std::optional<failure> cause;
    {
      const host::abort_record::lock_type lock(record.mutex());
      end_->done = true;
      if (end_->rank->given_up)
        cause = record.cause();
      else
        record.progress();
    }
    if (cause) cause->raise();
  }
  void skipped(const failure& why) const {
    host::abort_record& record = *end_->rank->record;
    const host::abort_record::lock_type lock(record.mutex());
    end_->done = true;
    if (!record.aborted()) end_->skipped = why;
  }

 private:
  std::shared_ptr<flight_end> end_;
};

// What the watchdog knows.
struct flight {
  flight(const handle* in, cudart::event at_its_begin, std::shared_ptr<flight_end> at_its_end,
         std::shared_ptr<cudart::host_calls> in_its_stream, wait_for_peers waits,
         std::chrono::milliseconds left_grace)
      : of(in), reached(std::move(at_its_begin)), end(std::move(at_its_end)), calls(std::move(in_its_stream)),
        ticket(calls->issued()), wait(std::move(waits)), until(left_grace) {
    wait.reached = false;
    wait.begun = patience::clock::now() + std::chrono::hours(24 * 365); // it has not
  }
  void begin() {
    wait.reached = true;
    wait.begun = patience::clock::now();
  }
  // The stream's own failure before the end of the exchange: a host task threw, or the stream's owner unwinds
  // and waits for it. With the record's mutex held.
  std::optional<failure> failed_in_stream() const {
    return end->skipped || end->done ? end->skipped : calls->failure_at(ticket);
  }

  const handle* of;      // whose exchanges run one after the other
  cudart::event reached; // everything before it in its stream has ended
  std::shared_ptr<flight_end> end;
  std::shared_ptr<cudart::host_calls> calls;
  std::uint64_t ticket; // of the host call at its end
  wait_for_peers wait;
  patience until;
  std::optional<host::abort_record::listed> listed{};
};

} // namespace plateau::inline v0::nccl
