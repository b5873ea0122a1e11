// SPDX-License-Identifier: Apache-2.0
//
// A rank's end of a communicator that moves data with NCCL. The host thread issues an exchange as one group
// of sends and receives of bytes; NCCL matches the k-th send of a pair with its k-th receive and runs them in
// the stream. Calls do not block: NCCL says "in progress" while it connects ranks in the background, and
// until it says "done" nothing stands in the stream yet, so each exchange is waited for up to there, under
// the deadline.
#pragma once

#include <plateau/config.hpp>
#include <plateau/cuda/check.hpp>
#include <plateau/cuda/event.hpp>
#include <plateau/cuda/stream.hpp>
#include <plateau/error.hpp>
#include <plateau/exchange.hpp>
#include <plateau/host/basic_communicator.hpp>
#include <plateau/host/exchange_call.hpp>
#include <plateau/nccl/agreement.hpp>
#include <plateau/nccl/callback_channel.hpp>
#include <plateau/nccl/check.hpp>
#include <plateau/nccl/communicator_channel.hpp>
#include <plateau/nccl/flight.hpp>
#include <plateau/nccl/group.hpp>
#include <plateau/nccl/handle.hpp>
#include <plateau/nccl/size_check.hpp>

#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <concepts>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace plateau::inline v0::nccl {

class world {
 public:
  using options = nccl_options;
  using stream = cudart::stream; // cuda_backend's
  using joined = std::pair<std::shared_ptr<world>, int>;

  // Collective: all ranks of the host channel make, or adopt, with the calling thread's current device. The
  // callers' communicator, or callback, must outlive what is made. Throws the same collective_error on all
  // ranks when one has failed or they do not fit together (see agreement.hpp).
  template <class Over>
    requires(!std::same_as<Over, world>)
  static joined join(basic_communicator<Over>& channel, nccl_options with = {}) {
    return make(communicator_channel<Over>::split_off(channel), std::nullopt, with);
  }
  template <class Over>
    requires(!std::same_as<Over, world>)
  static joined join(basic_communicator<Over>& channel, ncclComm_t adopted, nccl_options with = {}) {
    return make(communicator_channel<Over>::split_off(channel), adopted, with);
  }
  static joined join(nccl_callback channel, nccl_options with = {}) {
    return make(callback_channel::make(std::move(channel)), std::nullopt, with);
  }
  static joined join(nccl_callback channel, ncclComm_t adopted, nccl_options with = {}) {
    return make(callback_channel::make(std::move(channel)), adopted, with);
  }

  // `channel`: what is agreed on before, by `ranks`, goes over that, the communicator's own operations over
  // others, where they count from 0. Collective.
  world(std::shared_ptr<group> shared, channel_ranks& ranks, std::shared_ptr<handle> comm)
      : group_(std::move(shared)), channel_(ranks.duplicate(making)),
        sizes_over_(group_->options().check_sizes ? ranks.duplicate(making) : nullptr),
        comm_(std::move(comm)), exceptions_(std::uncaught_exceptions()) {
    if (sizes_over_) sizes_.emplace(*sizes_over_);
  }
  world(const world&) = delete;
  world& operator=(const world&) = delete;
  // Waits for the exchanges in flight, under the deadline, unless the group has failed or an exception
  // passes: then what is in flight is aborted.
  ~world() {
    const bool unwinds = std::uncaught_exceptions() > exceptions_;
    if (unwinds && in_flight())
      channel_->abandon({failure::kind::collective,
                         "an exception passed through the scope of its communicator", group_->me(),
                         last_what_, last_sequence_});
    try {
      if (!unwinds && !group_->failed()) settle();
    } catch (...) { // the group has failed meanwhile
    }
    if (group_->failed()) group_->abort_all();
    if (comm_->whose() == ownership::ours) handle::abort({&comm_, 1}); // while an exception passes
    group_->remove(comm_);
    comm_->release(); // the watchdog may be asking for its state: an adopted one's owner may destroy it now
  }

  int size() const { return channel_->size(); }
  int origin(int rank) const { return channel_->origin(rank); }
  const std::shared_ptr<host::abort_record>& record() const { return channel_->record(); }
  // NCCL's own, for what is not here. In the order of this communicator's operations, from its host thread,
  // and never after the group has failed.
  ncclComm_t native() const { return comm_->get(); }

  void issue(int, std::uint64_t sequence, host::operation_kind kind, const char* what) {
    channel_->issue(sequence, kind, what);
  }
  void host_exchange(int, std::uint64_t sequence, std::span<const std::int64_t> mine,
                     std::span<std::int64_t> all, const char* what) {
    channel_->host_exchange(sequence, mine, all, what);
  }
  std::int64_t split_offer(int) { return channel_->split_offer(); }
  void abort(int, failure why) { channel_->abort(std::move(why)); }
  void leave(int) { channel_->leave(); }

  std::shared_ptr<world> child(int rank, const host::split_group& agreed) {
    const auto part = channel_->child(agreed);
    const auto me = std::find(agreed.members.begin(), agreed.members.end(), rank) - agreed.members.begin();
    wait_for_peers wait(group_->me(), "split", agreed.sequence, peers());
    comm_->slot() = nullptr; // NCCL's word for "not made", should it not even be called
    try {
      ncclConfig_t config = settings();
      start(wait, [&] {
        check(ncclCommSplit(comm_->get(), agreed.color < 0 ? NCCL_SPLIT_NOCOLOR : agreed.part,
                            static_cast<int>(me), &comm_->slot(), &config),
              "ncclCommSplit", comm_->get());
      });
      await_done(wait, "ncclCommSplit");
      if (part == nullptr) return nullptr;
      auto comm = std::make_shared<handle>(comm_->slot(), ownership::ours);
      group_->add(comm);
      comm_->slot() = nullptr; // from here on the group ends it
      channel_ranks ranks(*part);
      return std::make_shared<world>(group_, ranks, std::move(comm));
    } catch (...) {
      fail_split(agreed.sequence);
    }
  }

  // Host thread. See basic_communicator::exchange.
  void exchange(on<stream> s, const host::exchange_call& call, send_list sends, receive_list receives) {
    last_what_ = call.what;
    last_sequence_ = call.sequence;
    if (auto wrong = mismatch_with_itself(*channel_, call, sends, receives)) group_->fail(std::move(*wrong));
    if (sizes_)
      if (auto wrong = mismatch_anywhere(*sizes_, call, sends, receives)) group_->fail(std::move(*wrong));
    std::vector<int> others = peers_of(sends, receives);
    if (nothing_in(sends) && nothing_in(receives)) return;
    check_device(s);
    try {
      s.stream.wait(last_, s.place());
      cudart::event reached = s.stream.record(s.place());
      wait_for_peers wait(group_->me(), call.what, call.sequence, std::move(others));
      start(wait, [&] { enqueue(s, sends, receives); });
      await_done(wait, "ncclGroupEnd");
      end_ = std::make_shared<flight_end>(group_->state());
      s.stream.push(landing(end_), s.place());
      last_ = s.stream.record(s.place());
      group_->add(std::make_shared<flight>(comm_.get(), std::move(reached), end_, s.stream.calls(),
                                           std::move(wait), group_->options().left_grace));
    } catch (...) {
      group_->fail_with_current(call.what, call.sequence);
    }
  }

 private:
  static ncclConfig_t settings() {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.splitShare = 0; // each can then be aborted by itself
    return config;
  }
  static joined make(std::shared_ptr<host_channel> channel, std::optional<ncclComm_t> adopted,
                     nccl_options with) {
    const auto shared = std::make_shared<group>(channel, with);
    channel_ranks ranks(*channel);
    const introduction own = agree(ranks, adopted, with);
    shared->on_device(static_cast<int>(own.device));
    const auto whose = !adopted             ? ownership::ours
                       : with.abort_adopted ? ownership::adopted_and_ours_to_abort
                                            : ownership::adopted;
    auto made =
        std::make_shared<world>(shared, ranks, std::make_shared<handle>(adopted.value_or(nullptr), whose));
    if (!adopted)
      made->found(ranks);
    else
      shared->add(made->comm_);
    const int rank = channel->rank();
    return {std::move(made), rank};
  }
  // Makes the communicator of all ranks.
  void found(channel_ranks& ranks) {
    wait_for_peers wait(group_->me(), making, ranks.sequence(), peers());
    try {
      ncclUniqueId id{};
      if (ranks.rank() == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
      share(ranks, id);
      ncclConfig_t config = settings();
      check(ncclCommInitRankConfig(&comm_->slot(), size(), id, ranks.rank(), &config),
            "ncclCommInitRankConfig");
      comm_->made();
      group_->add(comm_);
      await_done(wait, "ncclCommInitRankConfig");
    } catch (...) {
      group_->fail_with_current(making, wait.sequence);
    }
  }
  // The id of rank 0 to all ranks.
  static void share(channel_ranks& ranks, ncclUniqueId& id) {
    constexpr std::size_t words = sizeof(ncclUniqueId) / sizeof(std::int64_t);
    static_assert(sizeof(ncclUniqueId) == words * sizeof(std::int64_t));
    std::int64_t mine[words];
    std::memcpy(mine, &id, sizeof id);
    std::vector<std::int64_t> all(words * static_cast<std::size_t>(ranks.size()));
    ranks.host_exchange(mine, all, making);
    std::memcpy(&id, all.data(), sizeof id);
  }

  // Calls NCCL for this communicator, unless it is gone with the group.
  template <class F> void start(wait_for_peers& wait, F calls) {
    const handle::in_use here(*comm_);
    std::optional<group::blocking_call> may_block;
    if (comm_->whose() != ownership::ours) may_block.emplace(*group_, wait);
    if (here) return calls();
    host::abort_record::lock_type lock(record()->mutex());
    record()->check(lock, group_->me());
    throw backend_error("plateau: rank " + std::to_string(group_->me()) +
                        ": the NCCL communicator has ended");
  }
  // For the exception being handled. Throws the group's failure, behind which this communicator has ended,
  // and NCCL's work in the background with it: if that had made the new one before, or half of it, and nobody
  // has been told, nobody else will end it. In an adopted communicator that is not ours to abort NCCL may
  // still be at work, and then what it makes stays. (Through NCCL 2.28, by its source, a rank that gets no
  // part may crash in there when an abort interrupts its split.)
  [[noreturn]] void fail_split(std::uint64_t sequence) {
    try {
      group_->fail_with_current("split", sequence);
    } catch (...) {
      if (comm_->slot() != nullptr && comm_->status() != ncclInProgress)
        static_cast<void>(ncclCommAbort(std::exchange(comm_->slot(), nullptr)));
      throw;
    }
  }
  // Until NCCL has done what was started, which peers may hold up.
  void await_done(wait_for_peers& wait, const char* call) {
    group_->await(wait, [&] {
      const auto now = comm_->status();
      if (now && is_failure(*now)) throw backend_error("plateau: " + comm_->error(*now, call));
      return now == ncclSuccess;
    });
  }
  void enqueue(on<stream> s, send_list sends, receive_list receives) const {
    const ncclComm_t comm = comm_->get();
    check(ncclGroupStart(), "ncclGroupStart", comm, s.file, s.line);
    std::exception_ptr first;
    try {
      for (const send_op& o : sends)
        if (o.bytes != 0)
          check(ncclSend(o.p, o.bytes, ncclInt8, o.peer, comm, s.stream.handle()), "ncclSend", comm, s.file,
                s.line);
      for (const receive_op& o : receives)
        if (o.bytes != 0)
          check(ncclRecv(o.p, o.bytes, ncclInt8, o.peer, comm, s.stream.handle()), "ncclRecv", comm, s.file,
                s.line);
    } catch (...) {
      first = std::current_exception();
    }
    const ncclResult_t ended = ncclGroupEnd(); // the group must not stay open on this thread
    if (first) std::rethrow_exception(first);
    check(ended, "ncclGroupEnd", comm, s.file, s.line);
  }

  bool in_flight() const {
    const host::abort_record::lock_type lock(record()->mutex());
    return end_ != nullptr && !end_->done;
  }
  // The orderly end: exchanges run one after the other, so when the last has ended all have.
  void settle() {
    wait_for_peers wait(group_->me(), "the end of the communicator", last_sequence_, peers());
    group_->await(wait, [&] { return !in_flight(); });
    if (comm_->whose() != ownership::ours) return;
    try {
      start(wait, [&] { check(ncclCommFinalize(comm_->get()), "ncclCommFinalize", comm_->get()); });
      await_done(wait, "ncclCommFinalize");
      comm_->destroy();
    } catch (...) {
      group_->fail_with_current(wait.operation, wait.sequence);
    }
  }

  template <class List> static bool nothing_in(const List& ops) {
    return std::all_of(ops.begin(), ops.end(), [](const auto& o) { return o.bytes == 0; });
  }
  // The others, as errors call them.
  std::vector<int> peers() const {
    std::vector<int> all;
    for (int r = 0; r < size(); ++r)
      if (r != channel_->rank()) all.push_back(origin(r));
    return all;
  }
  std::vector<int> peers_of(send_list sends, receive_list receives) const {
    std::vector<int> some;
    const auto add = [&](const auto& o) {
      if (o.bytes != 0 && o.peer != channel_->rank()) some.push_back(origin(o.peer));
    };
    std::for_each(sends.begin(), sends.end(), add);
    std::for_each(receives.begin(), receives.end(), add);
    std::sort(some.begin(), some.end());
    some.erase(std::unique(some.begin(), some.end()), some.end());
    return some;
  }
  void check_device(on<stream> s) const {
    int now = -1;
    cudart::check(cudaGetDevice(&now), "cudaGetDevice", s.file, s.line);
    if (now != group_->device())
      throw config_error("plateau: rank " + std::to_string(group_->me()) + ": an exchange" +
                         s.place().text() + " while CUDA device " + std::to_string(now) +
                         " is current; the communicator was made on device " +
                         std::to_string(group_->device()));
  }

  std::shared_ptr<group> group_;
  std::shared_ptr<host_channel> channel_;
  std::shared_ptr<host_channel> sizes_over_; // null unless sizes are checked
  std::optional<channel_ranks> sizes_{};
  std::shared_ptr<handle> comm_;
  int exceptions_;
  cudart::event last_;              // behind the exchange before
  std::shared_ptr<flight_end> end_; // its end
  const char* last_what_ = making;
  std::uint64_t last_sequence_ = 0;
};

inline void push_exchange(on<world::stream> s, const std::shared_ptr<world>& w,
                          const host::exchange_call& call, send_list sends, receive_list receives) {
  w->exchange(s, call, sends, receives);
}

} // namespace plateau::inline v0::nccl
