// SPDX-License-Identifier: Apache-2.0
//
// What the ranks of one seeded communicator share. Its rules, records and texts are those of ranks that run
// side by side (host::thread_world); only waiting is different: whoever waits lets the schedule draw.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/exchange.hpp>
#include <plateau/host/abort_record.hpp>
#include <plateau/host/exchange_call.hpp>
#include <plateau/host/integer_board.hpp>
#include <plateau/host/issue_log.hpp>
#include <plateau/host/split_group.hpp>
#include <plateau/host/thread_world.hpp>
#include <plateau/testing/schedule.hpp>
#include <plateau/testing/seeded_exchange.hpp>
#include <plateau/testing/seeded_stream.hpp>

#include <algorithm>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace plateau::inline v0::testing {

// A world as basic_communicator wants it. Called by the rank whose thread has the token, unless said
// otherwise.
class seeded_group {
 public:
  using options = seeded_options;
  using stream = seeded_stream;

  static std::shared_ptr<seeded_group> make(int ranks, const options& o) {
    auto world = std::make_shared<testing::schedule>(ranks, o);
    std::vector<int> origin(static_cast<std::size_t>(ranks));
    std::iota(origin.begin(), origin.end(), 0);
    auto group = std::make_shared<host::thread_world>(world->record(), std::move(origin));
    return std::make_shared<seeded_group>(std::move(world), std::move(group));
  }
  seeded_group(std::shared_ptr<testing::schedule> world, std::shared_ptr<host::thread_world> group)
      : all_(std::make_shared<exchange_seats>()), offers_(static_cast<std::size_t>(group->size())) {
    all_->world = std::move(world);
    all_->seats.resize(offers_.size());
    all_->group = std::move(group);
  }

  int size() const { return all_->group->size(); }
  int origin(int rank) const { return all_->group->origin(rank); }
  const std::shared_ptr<host::abort_record>& record() const { return all_->group->record(); }
  const std::shared_ptr<testing::schedule>& schedule() const { return all_->world; }

  void issue(int rank, std::uint64_t sequence, host::operation_kind kind, const char* what) {
    all_->world->pause(origin(rank));
    settle(rank);
    all_->group->issue(rank, sequence, kind, what);
  }
  void host_exchange(int rank, std::uint64_t sequence, std::span<const std::int64_t> mine,
                     std::span<std::int64_t> all, const char* what) {
    offer& here = offers_[static_cast<std::size_t>(rank)];
    here = {mine, all, true};
    if (++arrived_ == offers_.size()) return share(rank, sequence, what);
    const std::uint64_t round = round_;
    const wait_for_all site(*this, rank, what, sequence);
    all_->world->await(origin(rank), &site,
                       [&] { return round_ != round || all_->world->failed_for(origin(rank)); });
    if (round_ != round) return;
    here.made = false;
    --arrived_;
    host::abort_record::lock_type lock(record()->mutex());
    record()->check(lock, origin(rank));
  }
  std::shared_ptr<seeded_group> child(int rank, const host::split_group& agreed) {
    std::shared_ptr<host::thread_world> group = all_->group->child(rank, agreed);
    if (!group) return nullptr;
    // Kept until all members have it: one may be done with it before another comes.
    auto it = std::find_if(children_.begin(), children_.end(),
                           [&](const offspring& o) { return o.made->all_->group == group; });
    if (it == children_.end()) {
      auto made = std::make_shared<seeded_group>(all_->world, std::move(group));
      it = children_.insert(children_.end(), {std::move(made), agreed.members.size()});
    }
    std::shared_ptr<seeded_group> made = it->made;
    if (--it->expected == 0) children_.erase(it);
    return made;
  }

  // Another thread speaks for a rank whose thread could never be started.
  void abort(int rank, failure why) {
    const int me = origin(rank);
    if (!all_->world->entered(me)) return all_->world->never_comes(me, std::move(why));
    if (!all_->world->ended(me)) all_->group->abort(rank, std::move(why));
  }
  void leave(int rank) {
    const int me = origin(rank);
    if (!all_->world->entered(me)) return all_->world->never_comes(me, {});
    if (!all_->world->ended(me)) all_->group->leave(rank);
  }

 private:
  friend void push_exchange(on<seeded_stream> s, const std::shared_ptr<seeded_group>& group,
                            const host::exchange_call& call, send_list sends, receive_list receives) {
    const stream_queue& queue = *s.stream.queue();
    if (queue.world != group->schedule() || queue.rank != group->origin(call.rank))
      throw config_error("plateau: rank " + std::to_string(group->origin(call.rank)) + ": " + call.what +
                         s.place().text() + ": stream '" + queue.name +
                         "' is not of this rank's world: make the backend from its communicator");
    s.stream.append(std::make_unique<seeded_exchange>(group->all_, call, sends, receives, s.place()));
  }

  struct offer {
    std::span<const std::int64_t> mine{};
    std::span<std::int64_t> all{};
    bool made = false;
  };
  struct offspring {
    std::shared_ptr<seeded_group> made;
    std::size_t expected = 0; // members that have not asked for it
  };
  class wait_for_all final : public host::wait_site {
   public:
    wait_for_all(const seeded_group& g, int by, const char* what, std::uint64_t at)
        : wait_site(g.origin(by), what, at), group_(g) {
      on_host_thread = true;
    }
    bool awaits(int other) const override {
      for (int r = 0; r < group_.size(); ++r)
        if (group_.origin(r) == other) return !group_.offers_[static_cast<std::size_t>(r)].made;
      return false;
    }

   private:
    const seeded_group& group_;
  };

  // Lets a rank that has failed say why before others are told.
  void settle(int rank) {
    const int me = origin(rank);
    all_->world->await(me, nullptr, [&] { return !record()->aborted() || all_->world->failed_for(me); });
  }
  // The last rank has come: everybody gets everybody's integers.
  void share(int rank, std::uint64_t sequence, const char* what) {
    arrived_ = 0;
    std::vector<std::vector<std::int64_t>> slots;
    for (offer& o : offers_) {
      slots.emplace_back(o.mine.begin(), o.mine.end());
      o.made = false;
    }
    {
      host::abort_record::lock_type lock(record()->mutex());
      std::vector<int> origins;
      for (int r = 0; r < size(); ++r) origins.push_back(origin(r));
      host::integer_board::check_lengths(*record(), lock, origins, rank, slots, what, sequence);
    }
    for (const offer& o : offers_) {
      std::int64_t* to = o.all.data();
      for (const auto& values : slots) to = std::copy(values.begin(), values.end(), to);
    }
    ++round_;
  }

  std::shared_ptr<exchange_seats> all_;
  std::vector<offer> offers_;
  std::size_t arrived_ = 0;
  std::uint64_t round_ = 0;
  std::vector<offspring> children_;
};

} // namespace plateau::inline v0::testing
