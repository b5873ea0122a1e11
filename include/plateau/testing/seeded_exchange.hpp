// SPDX-License-Identifier: Apache-2.0
//
// An exchange of a seeded communicator, as one rank's stream holds it. Each send that has met its receive is
// a step of its own, so that peers see every state that a network could leave them in. It meets its peers
// once it is at the head of its stream and all earlier exchanges of the rank in this communicator have ended.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/exchange.hpp>
#include <plateau/host/abort_record.hpp>
#include <plateau/host/exchange_call.hpp>
#include <plateau/host/thread_world.hpp>
#include <plateau/testing/schedule.hpp>
#include <plateau/testing/stream_queue.hpp>

#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace plateau::inline v0::testing {

class seeded_exchange;

// What the exchanges of one communicator know of each other, for each rank.
struct exchange_seat {
  seeded_exchange* now = nullptr; // the one that peers can meet
  std::uint64_t ended = 0;
};
struct exchange_seats {
  std::shared_ptr<schedule> world;
  std::shared_ptr<host::thread_world> group; // for its record and its texts
  std::vector<exchange_seat> seats;

  exchange_seat& of(int rank) { return seats[static_cast<std::size_t>(rank)]; }
};

class seeded_exchange final : public command {
 public:
  seeded_exchange(std::shared_ptr<exchange_seats> all, const host::exchange_call& call, send_list sends,
                  receive_list receives, source_line place)
      : command(call.what, place), all_(std::move(all)), call_(call),
        met_(static_cast<std::size_t>(all_->group->size())), site_(*this) {
    for (const send_op& s : sends)
      if (s.bytes != 0) sends_.push_back({s.p, s.bytes, s.peer});
    for (const receive_op& r : receives)
      if (r.bytes != 0) receives_.push_back({r.p, nullptr, r.bytes, r.peer});
    send_of_.resize(receives_.size());
  }
  ~seeded_exchange() override { withdraw(); }

  std::size_t choices() override {
    if (record().aborted()) return all_->world->failed_for(origin(call_.rank)) ? 1 : 0;
    exchange_seat& mine = all_->of(call_.rank);
    if (mine.ended != call_.index) return 0;
    mine.now = this;
    meet_all();
    return wrong_ || complete() ? 1 : ready_.size();
  }
  bool run(std::size_t choice) override {
    if (record().aborted()) {
      withdraw();
      const failure why = *record().cause();
      why.raise();
    }
    meet_all(); // some may have come since
    if (wrong_) {
      withdraw();
      host::abort_record::lock_type lock(record().mutex());
      all_->group->mismatch(lock, call_.rank, call_, wrong_->from, wrong_->sent, wrong_->to, wrong_->expected,
                            wrong_->which);
    }
    if (complete()) {
      withdraw();
      ++all_->of(call_.rank).ended;
      return true;
    }
    const std::size_t i = ready_[choice];
    host::posted_receive& r = receives_[i];
    ready_[choice] = ready_.back();
    ready_.pop_back();
    std::memmove(r.p, r.from, r.bytes);
    r.copied = true;
    ++copied_;
    seeded_exchange& sender = *all_->of(r.peer).now;
    sender.sends_[send_of_[i]].taken = true;
    ++sender.taken_;
    return false;
  }
  void skipped(const failure& why) override {
    withdraw();
    all_->group->give_up(call_.rank, call_.what, call_.sequence, why);
  }
  const host::wait_site* site() override { return &site_; }

 private:
  struct mismatch {
    int from;
    std::size_t sent;
    int to;
    std::size_t expected, which;
  };
  class wait_for_peers final : public host::wait_site {
   public:
    explicit wait_for_peers(const seeded_exchange& e)
        : wait_site(e.origin(e.call_.rank), e.call_.what, e.call_.sequence), of_(e) {}
    bool awaits(int other) const override {
      if (of_.all_->of(of_.call_.rank).now != &of_) return false; // behind an exchange of its own
      for (const host::posted_receive& r : of_.receives_)
        if (!r.copied && of_.origin(r.peer) == other) return true;
      for (const host::posted_send& s : of_.sends_)
        if (!s.taken && of_.origin(s.peer) == other) return true;
      return false;
    }

   private:
    const seeded_exchange& of_;
  };

  int origin(int rank) const { return all_->group->origin(rank); }
  host::abort_record& record() const { return *all_->group->record(); }
  bool complete() const { return copied_ == receives_.size() && taken_ == sends_.size(); }
  void withdraw() {
    exchange_seat& mine = all_->of(call_.rank);
    if (mine.now == this) mine.now = nullptr;
  }

  void meet_all() {
    for (int peer = 0; peer < all_->group->size() && !wrong_; ++peer)
      if (!met_[static_cast<std::size_t>(peer)]) meet(peer);
  }
  // Matches what the peer sends to us, if that can be seen. A peer that has ended without us had nothing for
  // us, and takes nothing.
  void meet(int peer) {
    exchange_seat& other = all_->of(peer);
    const bool here = other.now != nullptr && other.now->call_.index == call_.index;
    const bool gone = other.ended > call_.index;
    if (!here && !gone) return;
    met_[static_cast<std::size_t>(peer)] = true;
    static const std::vector<host::posted_send> none;
    const auto& offered = here ? other.now->sends_ : none;
    std::size_t next = 0, matched = 0;
    const auto to_next = [&] {
      while (next < offered.size() && offered[next].peer != call_.rank) ++next;
      return next < offered.size();
    };
    for (std::size_t i = 0; i < receives_.size(); ++i) {
      host::posted_receive& r = receives_[i];
      if (r.peer != peer) continue;
      const std::size_t sent = to_next() ? offered[next].bytes : 0;
      if (sent != r.bytes) {
        wrong_ = {peer, sent, call_.rank, r.bytes, matched};
        return;
      }
      r.from = offered[next].p;
      send_of_[i] = next++;
      ready_.push_back(i);
      ++matched;
    }
    if (to_next()) {
      wrong_ = {peer, offered[next].bytes, call_.rank, 0, matched};
    } else if (gone) {
      for (const host::posted_send& s : sends_)
        if (s.peer == peer) {
          wrong_ = {call_.rank, s.bytes, peer, 0, 0};
          return;
        }
    }
  }

  std::shared_ptr<exchange_seats> all_;
  host::exchange_call call_;
  std::vector<host::posted_send> sends_;
  std::vector<host::posted_receive> receives_;
  std::vector<bool> met_;
  std::vector<std::size_t> ready_;   // of receives_: matched, but not copied
  std::vector<std::size_t> send_of_; // of receives_: the peer's send
  std::size_t copied_ = 0, taken_ = 0;
  std::optional<mismatch> wrong_;
  wait_for_peers site_;
};

} // namespace plateau::inline v0::testing
