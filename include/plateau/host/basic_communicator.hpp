// SPDX-License-Identifier: Apache-2.0
//
// A communicator over a world: one object per rank, used by that rank's host thread. What it says and what it
// counts is the same for every world; a world waits and moves data in its own way. host::thread_world is
// shared by ranks that are threads; where ranks are processes each has its end of a world. Its operations are
// collective: all ranks issue the same operations in the same order, those with nothing to move too. What
// fails on one rank fails on all, in this communicator and in all that were split from the same one, with the
// first cause; errors name ranks of the outermost communicator.
//
// A world has
//   options, stream                                          types
//   make(ranks, options) -> shared_ptr<World>                where ranks are threads; or
//   join(arguments...) -> {shared_ptr<World>, rank}          where each rank comes by itself
//   size(), origin(rank), record()                           record: this process's host::abort_record
//   issue(rank, sequence, kind, what)                        every operation passes here first
//   host_exchange(rank, sequence, mine, all, what)           blocks
//   child(rank, split_group) -> shared_ptr<World>            nullptr for a negative color; collective
//   split_offer(rank)                                        optional: of all ranks' offers child() gets the
//                                                            largest
//   abort(rank, failure), leave(rank)                        do not throw
// and a function push_exchange(on<stream>, shared_ptr<World>, exchange_call, sends, receives) beside it.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/counters.hpp>
#include <plateau/error.hpp>
#include <plateau/exchange.hpp>
#include <plateau/host/abort_record.hpp>
#include <plateau/host/exchange_call.hpp>
#include <plateau/host/issue_log.hpp>
#include <plateau/host/split_group.hpp>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace plateau::inline v0 {

template <class World> class basic_communicator {
 public:
  using options = typename World::options;

  // The communicators of `ranks` (>= 1) ranks; hand one to each.
  static std::vector<basic_communicator> make_group(int ranks, options with = {}) {
    if (ranks < 1)
      throw config_error("plateau: a group of " + std::to_string(ranks) + " ranks; there must be at least 1");
    const std::shared_ptr<World> world = World::make(ranks, with);
    std::vector<basic_communicator> group;
    for (int r = 0; r < ranks; ++r) group.push_back({world, r, std::make_shared<last_operation>()});
    return group;
  }

  // This rank's end of a world that each rank joins by itself: mpi_communicator comm{MPI_COMM_WORLD}.
  // Collective; throws what World::join throws.
  template <class... Args>
    requires requires(Args&&... a) { World::join(std::forward<Args>(a)...); }
  explicit basic_communicator(Args&&... args)
      : basic_communicator(World::join(std::forward<Args>(args)...)) {}

  basic_communicator(basic_communicator&&) noexcept = default;
  basic_communicator& operator=(basic_communicator&&) noexcept = default;

  // Of a communicator of size 0 (see split): -1 and 0.
  int rank() const { return rank_; }
  int size() const { return world_ ? world_->size() : 0; }
  // What errors call rank r: its number in the outermost communicator.
  int origin_rank(int r) const { return world_->origin(r); }
  const plateau::counters& counters() const { return counters_; }
  // What all ranks share; null for a communicator of size 0.
  const std::shared_ptr<World>& world() const { return world_; }

  // Collective. One communicator for each color, ranked by key, then by rank here. A rank with a negative
  // color gets a communicator of size 0, with which nothing can be done.
  basic_communicator split(int color, int key) {
    const std::uint64_t number = sequence_;
    std::int64_t offer = 0;
    if constexpr (requires { world_->split_offer(rank_); }) offer = world_->split_offer(rank_);
    const std::int64_t mine[] = {color, key, offer};
    std::vector<std::int64_t> all(3 * static_cast<std::size_t>(size()));
    host_exchange(mine, all, "split");
    const host::split_group agreed = host::agree_on_split(number, rank_, all);
    auto part = world_->child(rank_, agreed);
    if (color < 0) return {};
    const auto me = std::find(agreed.members.begin(), agreed.members.end(), rank_) - agreed.members.begin();
    return {std::move(part), static_cast<int>(me), last_};
  }

  // Enqueued on the stream; a later command finds everything received and may overwrite what was sent. The
  // k-th send from a to b meets b's k-th receive from a and must have its size; sends to oneself are legal,
  // operations of zero bytes are skipped on both sides. Exchanges run in the order in which they are issued,
  // whatever their streams; operators that run at the same time use communicators of their own, made by
  // split. `what` names the exchange in errors and must be the same on all ranks, and a literal. Throws
  // config_error for a peer that does not exist, collective_error when the group has failed; what fails later
  // latches in the stream.
  void exchange(on<typename World::stream> s, send_list sends, receive_list receives,
                const char* what = "exchange") {
    push_exchange(s, world_, announce_exchange(s.place(), sends, receives, what), sends, receives);
  }
  // The part of an exchange that needs no stream: checks it, counts it, and compares it with what other ranks
  // have announced at this place. For communicators that move the data themselves, or none.
  host::exchange_call announce_exchange(source_line at, send_list sends, receive_list receives,
                                        const char* what) {
    require_group(what);
    plateau::counters added = counters_;
    ++added.exchanges;
    const int ranks = size(); // lists may have thousands of entries
    for (const send_op& o : sends) {
      if (o.peer < 0 || o.peer >= ranks) refuse_peer(o.peer, what, at);
      if (o.peer != rank_) added.sent_bytes += o.bytes;
    }
    for (const receive_op& o : receives)
      if (o.peer < 0 || o.peer >= ranks) refuse_peer(o.peer, what, at);
    issue(host::operation_kind::exchange, what);
    host::exchange_call call;
    call.rank = rank_;
    call.index = counters_.exchanges;
    call.sequence = sequence_++;
    call.what = what;
    counters_ = added;
    return call;
  }

  // Blocks until every rank has called it. `all` gets every rank's integers in rank order, size() x
  // mine.size() of them. Different lengths on different ranks are a collective_error on all of them; an `all`
  // of the wrong size is a config_error.
  void host_exchange(std::span<const std::int64_t> mine, std::span<std::int64_t> all,
                     const char* what = "host_exchange") {
    require_group(what);
    if (all.size() != static_cast<std::size_t>(size()) * mine.size())
      throw config_error(named(what) + ": room for " + std::to_string(all.size()) + " integers, but " +
                         std::to_string(size()) + " ranks give " + std::to_string(mine.size()) + " each");
    issue(host::operation_kind::host_exchange, what);
    ++counters_.host_exchanges;
    world_->host_exchange(rank_, sequence_++, mine, all, what);
  }

  // The one closing exchange of a step: returns when all ranks have come, throws on all of them what any of
  // them has latched. Streams are not waited for: plateau::close_step(backend, comm, streams...) does that.
  void close_step() {
    require_group("close_step");
    std::optional<failure> mine;
    {
      const host::abort_record::lock_type lock(record().mutex());
      mine = record().latched(origin_rank(rank_));
    }
    if (mine) abort(*mine);
    host_exchange({}, {}, "close_step");
  }

  // Keeps a failure that must not stop the step until close_step throws it on all ranks; the first one stays.
  // Its `operation`, if it has one, says in errors what failed. Any thread.
  void latch(failure why) {
    require_group("latch");
    const host::abort_record::lock_type lock(record().mutex());
    record().latch(origin_rank(rank_), std::move(why));
  }

  // This rank cannot go on: all ranks fail with this cause unless there is one already. Errors name what
  // failed by the cause's `operation`; where it has none, by the last operation that this rank has issued, in
  // any communicator of the group. Does not throw.
  void abort(const failure& cause) {
    require_group("abort");
    failure why = cause;
    if (cause.what != failure::kind::collective) {
      why.what = failure::kind::collective;
      why.failed_rank = origin_rank(rank_);
      why.sequence = last_->sequence;
      if (why.operation.empty())
        why.operation = last_->what == nullptr ? "its own code, before any operation"
                                               : "its own code after '" + std::string(last_->what) + "'";
    }
    world_->abort(rank_, std::move(why));
  }
  void abort(const std::string& cause) { abort(failure{failure::kind::other, cause}); }

  // This rank takes part in nothing more: who waits for it fails at once.
  void leave() {
    require_group("leave");
    world_->leave(rank_);
  }
  // The cause of the group's failure, if it has failed.
  std::optional<failure> cause() const {
    require_group("cause");
    const host::abort_record::lock_type lock(record().mutex());
    return record().cause();
  }

 private:
  basic_communicator() = default;
  // What a rank's host thread has issued last, in any of its communicators.
  struct last_operation {
    const char* what = nullptr;
    std::uint64_t sequence = 0;
  };
  basic_communicator(std::shared_ptr<World> world, int rank, std::shared_ptr<last_operation> last)
      : world_(std::move(world)), last_(std::move(last)), rank_(rank) {}
  explicit basic_communicator(std::pair<std::shared_ptr<World>, int> joined)
      : basic_communicator(std::move(joined.first), joined.second, std::make_shared<last_operation>()) {}

  host::abort_record& record() const { return *world_->record(); }
  void require_group(const char* what) const {
    if (!world_)
      throw config_error("plateau: " + std::string(what) +
                         " on a communicator of size 0, which split gives to a rank with a negative color");
  }
  std::string named(const char* what) const {
    return "plateau: rank " + std::to_string(origin_rank(rank_)) + ": " + what;
  }
  void issue(host::operation_kind kind, const char* what) {
    world_->issue(rank_, sequence_, kind, what);
    *last_ = {what, sequence_};
  }
  [[noreturn]] void refuse_peer(int peer, const char* what, source_line at) const {
    throw config_error(named(what) + at.text() + ": peer " + std::to_string(peer) + " does not exist among " +
                       std::to_string(size()) + " ranks");
  }

  std::shared_ptr<World> world_;
  std::shared_ptr<last_operation> last_;
  int rank_ = -1;
  std::uint64_t sequence_ = 0;
  plateau::counters counters_;
};

} // namespace plateau::inline v0
