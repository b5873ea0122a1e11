// SPDX-License-Identifier: Apache-2.0
//
// One process's end of a communicator between processes: what basic_communicator asks of a world. All that
// were split from one share its link; each has a number of its own in the tags of its messages, so that
// a split needs nothing from MPI.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/exchange.hpp>
#include <plateau/host/exchange_call.hpp>
#include <plateau/host/exchange_command.hpp>
#include <plateau/host/split_group.hpp>
#include <plateau/host/stream.hpp>
#include <plateau/mpi/duplicate.hpp>
#include <plateau/mpi/integer_rounds.hpp>
#include <plateau/mpi/joining.hpp>
#include <plateau/mpi/link.hpp>
#include <plateau/mpi/options.hpp>
#include <plateau/mpi/transfer.hpp>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace plateau::inline v0::mpi {

class world {
 public:
  using options = mpi_options;
  using stream = host::stream;

  // Collective over `comm`, of which a duplicate is used: the original is not touched. Throws config_error
  // when it, or MPI, cannot serve, backend_error when its other ranks do not come before the deadline, and on
  // all ranks collective_error when they were built with, or run, different versions.
  static std::pair<std::shared_ptr<world>, int> join(MPI_Comm comm, options o = {}) {
    auto over = std::make_shared<link>(duplicate(comm, o), o);
    int size = 0;
    check(MPI_Comm_size(over->comm(), &size), "MPI_Comm_size");
    std::vector<int> origin(static_cast<std::size_t>(size));
    std::iota(origin.begin(), origin.end(), 0);
    const int rank = over->rank();
    auto made = std::make_shared<world>(over, origin, rank, 0);
    // Over a communicator of its own, so that the operations of the one that is made count from 0.
    joining_ranks<world> others{
        std::make_shared<world>(over, std::move(origin), rank, static_cast<int>(over->next_context++)), rank};
    agree_on_versions(others, versions_here());
    over->founded = true;
    return {std::move(made), rank};
  }
  // origin[r]: rank r in the outermost communicator.
  world(std::shared_ptr<link> over, std::vector<int> origin, int rank, int context)
      : link_(std::move(over)), record_(link_), origin_(std::move(origin)), context_(context),
        box_(open(*link_, context)), transfer_(*link_, box_, origin_, rank, context),
        integers_(*link_, box_, origin_, rank, context) {}
  world(const world&) = delete;
  world& operator=(const world&) = delete;
  ~world() {
    const lock_type lock(link_->mutex());
    link_->drop(context_);
  }

  int size() const { return static_cast<int>(origin_.size()); }
  int origin(int rank) const { return origin_[static_cast<std::size_t>(rank)]; }
  const std::shared_ptr<host::abort_record>& record() const { return record_; }

  // Every operation passes here first, on the host thread: refuses work in a failed group, and one that is
  // not what another rank has been heard to issue in its place.
  void issue(int, std::uint64_t sequence, host::operation_kind kind, const char* what) {
    link_->poll_if_nobody_does();
    lock_type lock(link_->mutex());
    link_->check(lock, me());
    if (const auto* other = box_.log.compare(sequence, kind, what, me()); other != nullptr)
      link_->fail(lock, me(),
                  {failure::kind::collective,
                   host::issue_log::contradiction(sequence, kind, what, me(), *other, other->rank), me(),
                   what, sequence});
  }
  // Blocks until all ranks have given their integers. Host thread, after issue().
  void host_exchange(int, std::uint64_t sequence, std::span<const std::int64_t> mine,
                     std::span<std::int64_t> all, const char* what) {
    lock_type lock(link_->mutex());
    link_->check(lock, me());
    guarded(lock, what, sequence, [&] { integers_.run(lock, wake_, mine, all, what, sequence); });
  }
  // Blocks until everything has been received and sent. When it leaves by an exception MPI does not touch the
  // buffers any more. Worker thread of a stream. Exchanges of one rank run in the order of their issue,
  // whatever their streams.
  void exchange(host::exchange_call& call) {
    lock_type lock(link_->mutex());
    queued behind(me(), call.what, call.sequence);
    guarded(lock, call.what, call.sequence, [&] {
      link_->await(lock, wake_, behind, [&] { return box_.exchanges_ended == call.index; });
      transfer_.run(lock, wake_, call);
    });
    ++box_.exchanges_ended;
    link_->completed();
    wake_.notify_all();
  }
  // A stream of this rank failed before an exchange of it, or was given up by its host thread.
  void give_up(int, const char* what, std::uint64_t sequence, const failure& why) {
    const lock_type lock(link_->mutex());
    link_->abort({failure::kind::collective, why.text, me(), what, sequence}, true);
  }
  // The rank's host thread has failed, or takes part in nothing more.
  void abort(int, failure why) {
    const lock_type lock(link_->mutex());
    link_->abort(std::move(why));
    link_->confirm(me());
  }
  void leave(int) {
    const lock_type lock(link_->mutex());
    link_->leave_group();
  }
  // Hears what other ranks have to say; for those who wait for something else meanwhile. Any thread.
  void poll() { link_->poll(); }
  // Leaves the whole group and waits for all others to leave it, see link::farewell.
  bool farewell() { return link_->farewell(link_->options().deadline); }

  std::int64_t split_offer(int) {
    const lock_type lock(link_->mutex());
    return link_->next_context;
  }
  // Collective, but no rank hears of the others here: all compute the same numbers. Throws config_error when
  // MPI has no tag left.
  std::shared_ptr<world> child(int rank, const host::split_group& agreed) {
    const std::int64_t next = agreed.offer + agreed.parts;
    if (next + outbox::tag > largest_tag())
      throw config_error("plateau: rank " + std::to_string(me()) + ": split: communicator " +
                         std::to_string(next) + " of this group, but MPI has tags for " +
                         std::to_string(largest_tag() - outbox::tag) +
                         "; split less often, and keep what was split off");
    {
      const lock_type lock(link_->mutex());
      link_->next_context = next;
    }
    if (agreed.members.empty()) return nullptr;
    std::vector<int> origins;
    for (const int m : agreed.members) origins.push_back(origin(m));
    const auto place = std::find(agreed.members.begin(), agreed.members.end(), rank);
    return std::make_shared<world>(link_, std::move(origins),
                                   static_cast<int>(place - agreed.members.begin()),
                                   static_cast<int>(agreed.offer + agreed.part));
  }

 private:
  using lock_type = host::abort_record::lock_type;
  // Behind an exchange of its own rank.
  struct queued final : host::wait_site {
    using wait_site::wait_site;
    bool awaits(int) const override { return false; }
  };

  static inbox& open(link& over, int context) {
    const lock_type lock(over.mutex());
    return over.box(context);
  }
  static std::int64_t largest_tag() {
    void* value = nullptr;
    int found = 0;
    check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&value), &found),
          "MPI_Comm_get_attr");
    return found != 0 ? *static_cast<int*>(value) : 32'767;
  }
  int me() const { return link_->rank(); }
  // What MPI refuses fails the group, and so does memory that is not there.
  template <class F> void guarded(lock_type& lock, const char* what, std::uint64_t sequence, F f) {
    try {
      f();
    } catch (const collective_error&) {
      throw;
    } catch (const std::exception& e) {
      if (!lock.owns_lock()) lock.lock();
      link_->fail(lock, me(), {failure::kind::collective, e.what(), me(), what, sequence});
    }
  }

  std::shared_ptr<link> link_;
  std::shared_ptr<host::abort_record> record_; // the link
  std::vector<int> origin_;
  int context_;
  inbox& box_;
  std::condition_variable wake_;
  transfer transfer_;
  integer_rounds integers_;
};

inline void push_exchange(on<host::stream> s, const std::shared_ptr<world>& of,
                          const host::exchange_call& call, send_list sends, receive_list receives) {
  host::push_exchange_command(s, of, call, sends, receives);
}

} // namespace plateau::inline v0::mpi
