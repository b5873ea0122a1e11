// SPDX-License-Identifier: Apache-2.0
//
// How the host threads of the ranks of an nccl_communicator reach one another: to agree before anything is
// made, to carry the NCCL unique id, for host exchanges, and to tell of failures. NCCL can do none of this.
// Over a communicator whose ranks are threads or processes it is communicator_channel, over a function of the
// user's callback_channel. What is said of a World's members in basic_communicator.hpp holds for these too.
#pragma once

#include <plateau/config.hpp>
#include <plateau/counters.hpp>
#include <plateau/error.hpp>
#include <plateau/host/abort_record.hpp>
#include <plateau/host/issue_log.hpp>
#include <plateau/host/split_group.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace plateau::inline v0::nccl {

// This rank's end of it. Host thread, but for record(), abort(), abandon() and poll(): these any thread.
class host_channel {
 public:
  host_channel() = default;
  host_channel(const host_channel&) = delete;
  host_channel& operator=(const host_channel&) = delete;
  virtual ~host_channel() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // The number of rank r in the outermost communicator: in errors, and in the record.
  virtual int origin(int r) const = 0;
  // This process's; shared with what the channel was made from, and with all that are split off.
  virtual const std::shared_ptr<host::abort_record>& record() const = 0;

  virtual void issue(std::uint64_t sequence, host::operation_kind kind, const char* what) = 0;
  virtual void host_exchange(std::uint64_t sequence, std::span<const std::int64_t> mine,
                             std::span<std::int64_t> all, const char* what) = 0;
  // Collective; null for a negative color.
  virtual std::shared_ptr<host_channel> child(const host::split_group& agreed) = 0;
  virtual std::int64_t split_offer() = 0;

  virtual void abort(failure why) = 0;
  // This rank unwinds: the others are told, with a cause for which it may still have a better one.
  virtual void abandon(failure why) = 0;
  virtual void leave() = 0;
  // Called now and then while this rank waits for a GPU, so that failures elsewhere reach the record.
  virtual void poll() = 0;
};

// A channel as a communicator for host exchanges alone, as vote() takes one; counts its operations.
class channel_ranks {
 public:
  explicit channel_ranks(host_channel& over) : over_(&over) {}

  int rank() const { return over_->rank(); }
  int size() const { return over_->size(); }
  int origin_rank(int r) const { return over_->origin(r); }
  const plateau::counters& counters() const { return counters_; }
  std::uint64_t sequence() const { return counters_.host_exchanges; }
  void host_exchange(std::span<const std::int64_t> mine, std::span<std::int64_t> all, const char* what) {
    over_->issue(sequence(), host::operation_kind::host_exchange, what);
    over_->host_exchange(counters_.host_exchanges++, mine, all, what);
  }
  // A channel between the same ranks, whose operations count from 0. Collective.
  std::shared_ptr<host_channel> duplicate(const char* what) {
    const std::uint64_t number = sequence();
    const std::int64_t mine[] = {0, rank(), over_->split_offer()};
    std::vector<std::int64_t> all(3 * static_cast<std::size_t>(size()));
    host_exchange(mine, all, what);
    return over_->child(host::agree_on_split(number, rank(), all));
  }

 private:
  host_channel* over_;
  plateau::counters counters_;
};

} // namespace plateau::inline v0::nccl
