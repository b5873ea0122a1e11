// SPDX-License-Identifier: Apache-2.0
//
// The state that the ranks of one communicator share when ranks are threads. An exchange posts its list of
// sends and takes what its peers have posted: the receiver moves the bytes, outside the lock, so all ranks
// move at once. Each rank runs its exchanges one at a time in the order in which its host thread issued them,
// so the n-th of one rank meets the n-th of the others whatever their streams.
//
// How bytes move is a parameter. A Mover has
//   stream, call                  the streams of exchanges; exchange_call, or what is derived from it
//   on_host_thread                whether a rank's host thread carries out its exchanges, or another
//   Mover(ranks)                  one for each world; what it keeps for exchanges is its own business
//   receive(call&, call& theirs, peer, bytes)     moves all that `call` receives from that peer, `bytes`
//                                 together, or enqueues it. May throw: the call then leaves the exchange.
#pragma once

#include <plateau/config.hpp>
#include <plateau/host/abort_record.hpp>
#include <plateau/host/exchange_call.hpp>
#include <plateau/host/integer_board.hpp>
#include <plateau/host/issue_log.hpp>
#include <plateau/host/split_group.hpp>

#include <chrono>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace plateau::inline v0::host {

struct thread_options {
  // A wait fails when for this long no rank of the group has completed an operation.
  std::chrono::milliseconds deadline{60'000};
};

template <class Mover> class basic_thread_world {
 public:
  using options = thread_options;
  using stream = typename Mover::stream;
  using call_type = typename Mover::call;

  // That of a group of its own.
  static std::shared_ptr<basic_thread_world> make(int ranks, options o) {
    std::vector<int> origin(static_cast<std::size_t>(ranks));
    std::iota(origin.begin(), origin.end(), 0);
    return std::make_shared<basic_thread_world>(std::make_shared<abort_record>(ranks, o.deadline),
                                                std::move(origin));
  }
  // origin[r]: rank r in the outermost communicator, whose record all that are split off share.
  basic_thread_world(std::shared_ptr<abort_record> record, std::vector<int> origin)
      : record_(std::move(record)), origin_(std::move(origin)), mover_(size()), seats_(origin_.size()),
        board_(size()) {}
  basic_thread_world(const basic_thread_world&) = delete;
  basic_thread_world& operator=(const basic_thread_world&) = delete;

  int size() const { return static_cast<int>(origin_.size()); }
  int origin(int rank) const { return origin_[static_cast<std::size_t>(rank)]; }
  const std::shared_ptr<abort_record>& record() const { return record_; }
  Mover& mover() { return mover_; }

  // Every operation passes here first, on the host thread: refuses work in a failed group, and one that is
  // not what another rank has issued in its place.
  void issue(int rank, std::uint64_t sequence, operation_kind kind, const char* what) {
    abort_record::lock_type lock(record_->mutex());
    record_->check(lock, origin(rank));
    const issue_log::entry* other = log_.compare(sequence, kind, what, rank);
    if (other == nullptr) return;
    fail(lock, rank, rank, what, sequence,
         issue_log::contradiction(sequence, kind, what, origin(rank), *other, origin(other->rank)));
  }

  // Blocks until all ranks have given their integers. Host thread, after issue().
  void host_exchange(int rank, std::uint64_t sequence, std::span<const std::int64_t> mine,
                     std::span<std::int64_t> all, const char* what) {
    abort_record::lock_type lock(record_->mutex());
    record_->check(lock, origin(rank));
    board_.exchange(*record_, lock, origin_, rank, mine, all, what, sequence);
  }

  // Blocks until the mover has received everything, here and at the peers. When it leaves by an exception no
  // peer's mover is at work on the call any more. See Mover for the thread.
  void exchange(call_type& call) {
    abort_record::lock_type lock(record_->mutex());
    seat& mine = seat_of(call.rank);
    site here(*this, call);
    record_->await(lock, mine.wake, here, [&] { return mine.ended == call.index; });
    here.posted = true;
    const posting visible{lock, mine, call};
    for (const posted_send& s : call.sends)
      if (seat_of(s.peer).finished_receiving(call.index)) unexpected(lock, call.rank, call, s);
    for (seat& peer : seats_)
      if (peer.awaits(call)) peer.wake.notify_all();
    for (std::size_t left = call.receives.size(); left != 0;) {
      const int peer = next_ready(call);
      if (peer >= 0)
        left -= take(lock, call, peer);
      else
        record_->await(lock, mine.wake, here, [&] { return next_ready(call) >= 0; });
      if (record_->aborted()) record_->raise(lock, origin(call.rank));
    }
    for (const seat& peer : seats_)
      if (peer.in(call.index))
        for (const posted_send& s : peer.now->sends)
          if (s.peer == call.rank && !s.taken) unexpected(lock, call.rank, *peer.now, s);
    call.received = true;
    record_->await(lock, mine.wake, here, [&] { return call.taken == call.sends.size(); });
    ++mine.ended;
    record_->progress();
    mine.wake.notify_all(); // the next exchange of this rank may wait on another stream
  }

  // A stream of the rank failed before an exchange of it, or was given up by its host thread.
  void give_up(int rank, const char* what, std::uint64_t sequence, const failure& why) {
    const abort_record::lock_type lock(record_->mutex());
    record_->abort({failure::kind::collective, why.text, origin(rank), what, sequence}, true);
  }

  // The sender is named as the failed rank: a receive cannot be wrong by itself.
  [[noreturn]] void mismatch(abort_record::lock_type& lock, int finder, const exchange_call& call, int from,
                             std::size_t sent, int to, std::size_t expected, std::size_t which) {
    fail(lock, finder, from, call.what, call.sequence,
         sizes_differ(which, origin(from), origin(to), sent, expected));
  }

  // The rank's host thread has failed, or takes part in nothing more.
  void abort(int rank, failure why) {
    const abort_record::lock_type lock(record_->mutex());
    record_->abort(std::move(why));
    record_->confirm(origin(rank));
  }
  void leave(int rank) {
    const abort_record::lock_type lock(record_->mutex());
    record_->leave(origin(rank));
  }

  // The world of the ranks that gave one color in a split; the first one makes it. None for a negative color.
  std::shared_ptr<basic_thread_world> child(int, const split_group& agreed) {
    if (agreed.members.empty()) return nullptr;
    const abort_record::lock_type lock(record_->mutex());
    auto it = children_.begin();
    while (it != children_.end() && (it->sequence != agreed.sequence || it->color != agreed.color)) ++it;
    if (it == children_.end()) {
      std::vector<int> origins;
      for (const int m : agreed.members) origins.push_back(origin(m));
      children_.push_back({agreed.sequence, agreed.color, agreed.members.size(),
                           std::make_shared<basic_thread_world>(record_, std::move(origins))});
      it = children_.end() - 1;
    }
    std::shared_ptr<basic_thread_world> world = it->world;
    if (--it->expected == 0) children_.erase(it);
    return world;
  }

 private:
  struct seat {
    std::condition_variable wake;
    call_type* now = nullptr; // the exchange that this rank is in
    std::uint64_t ended = 0;  // its exchanges that have ended

    bool in(std::uint64_t index) const { return now != nullptr && now->index == index; }
    bool finished_receiving(std::uint64_t index) const {
      return ended > index || (in(index) && now->received);
    }
    // Asleep until `call` can be seen, whether or not there is something for it in there.
    bool awaits(const exchange_call& call) const {
      if (!in(call.index) || now->received) return false;
      for (const posted_receive& r : now->receives)
        if (r.peer == call.rank) return true;
      return false;
    }
  };
  struct offspring {
    std::uint64_t sequence;
    int color;
    std::size_t expected;
    std::shared_ptr<basic_thread_world> world;
  };
  // Peers see a call from its construction on; its destructor waits for those who receive from it. With the
  // lock held.
  struct posting {
    abort_record::lock_type& lock;
    seat& mine;
    call_type& call;
    posting(abort_record::lock_type& l, seat& s, call_type& c) : lock(l), mine(s), call(c) {
      mine.now = &call;
    }
    posting(const posting&) = delete;
    posting& operator=(const posting&) = delete;
    ~posting() {
      mine.now = nullptr;
      mine.wake.wait(lock, [&] { return call.readers == 0; });
    }
  };
  // Gives the lock back while it lasts; the sender's call stays where it is meanwhile.
  struct receiving {
    abort_record::lock_type& lock;
    seat& sender;
    call_type& theirs;
    receiving(abort_record::lock_type& l, seat& s) : lock(l), sender(s), theirs(*s.now) {
      ++theirs.readers;
      lock.unlock();
    }
    receiving(const receiving&) = delete;
    receiving& operator=(const receiving&) = delete;
    ~receiving() {
      lock.lock();
      --theirs.readers;
      if (sender.now == nullptr) sender.wake.notify_all(); // it leaves
    }
  };
  struct site final : wait_site {
    site(const basic_thread_world& w, const exchange_call& c)
        : wait_site(w.origin(c.rank), c.what, c.sequence), world(w), call(c) {
      on_host_thread = Mover::on_host_thread;
    }
    bool awaits(int other) const override {
      if (!posted) return false; // behind an exchange of its own
      for (const posted_receive& r : call.receives)
        if (!r.copied && world.origin(r.peer) == other) return true;
      for (const posted_send& s : call.sends)
        if (!s.taken && world.origin(s.peer) == other) return true;
      return false;
    }
    const basic_thread_world& world;
    const exchange_call& call;
    bool posted = false;
  };

  seat& seat_of(int rank) { return seats_[static_cast<std::size_t>(rank)]; }

  // A peer from which something is outstanding and whose sends can be seen, or never will; -1: none.
  int next_ready(const exchange_call& call) {
    for (const posted_receive& r : call.receives) {
      const seat& peer = seat_of(r.peer);
      if (!r.copied && (peer.in(call.index) || peer.ended > call.index)) return r.peer;
    }
    return -1;
  }

  // Receives everything that is outstanding from one peer. Returns the number of receives.
  std::size_t take(abort_record::lock_type& lock, call_type& call, int peer) {
    seat& other = seat_of(peer);
    const bool gone = other.ended > call.index;
    const std::span<posted_send> offered = gone ? std::span<posted_send>{} : other.now->sends;
    std::size_t next = 0, matched = 0, bytes = 0;
    for (posted_receive& r : call.receives) {
      if (r.peer != peer) continue;
      while (next < offered.size() && offered[next].peer != call.rank) ++next;
      if (next == offered.size() || offered[next].bytes != r.bytes) {
        std::size_t sent = 0;
        if (next < offered.size()) sent = offered[next].bytes;
        mismatch(lock, call.rank, call, peer, sent, call.rank, r.bytes, matched);
      }
      r.from = offered[next].p;
      offered[next++].taken = true;
      ++matched;
      bytes += r.bytes;
    }
    call_type& theirs = *other.now;
    {
      const receiving while_it_lasts(lock, other);
      mover_.receive(call, theirs, peer, bytes);
    }
    for (posted_receive& r : call.receives)
      if (r.peer == peer) r.copied = true;
    theirs.taken += matched;
    if (theirs.taken == theirs.sends.size()) other.wake.notify_all();
    return matched;
  }

  // `call` sends something that the rank which finds it does not receive.
  [[noreturn]] void unexpected(abort_record::lock_type& lock, int finder, const exchange_call& call,
                               const posted_send& s) {
    std::size_t before = 0;
    for (const posted_send* q = call.sends.data(); q != &s; ++q) before += q->peer == s.peer ? 1 : 0;
    mismatch(lock, finder, call, call.rank, s.bytes, s.peer, 0, before);
  }
  [[noreturn]] void fail(abort_record::lock_type& lock, int finder, int failed, const char* what,
                         std::uint64_t sequence, std::string text) {
    record_->fail(lock, origin(finder),
                  {failure::kind::collective, std::move(text), origin(failed), what, sequence});
  }

  std::shared_ptr<abort_record> record_;
  std::vector<int> origin_;
  Mover mover_;
  std::vector<seat> seats_;
  issue_log log_;
  integer_board board_;
  std::vector<offspring> children_;
};

} // namespace plateau::inline v0::host
