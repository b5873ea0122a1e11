// SPDX-License-Identifier: Apache-2.0
//
// The communicator of a dry run. Its ranks are threads only for what goes between hosts: integers, votes,
// failures, the order in which collectives are issued. Exchanges move nothing and wait for nobody; they are
// recorded, and the timeline lets them meet. Ranks that are alike may be folded: one thread then stands for
// many.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/counters.hpp>
#include <plateau/dry_run/folding.hpp>
#include <plateau/dry_run/options.hpp>
#include <plateau/dry_run/recorder.hpp>
#include <plateau/dry_run/stream.hpp>
#include <plateau/error.hpp>
#include <plateau/exchange.hpp>
#include <plateau/host/abort_record.hpp>
#include <plateau/host/thread_communicator.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace plateau::inline v0 {

class dry_communicator {
 public:
  // The communicators of `ranks` (>= 1) threads, with a recorder for each; see run_dry.
  static std::vector<dry_communicator> make_group(int ranks, const dry_options& options = {},
                                                  thread_options threads = {}) {
    const auto groups = std::make_shared<split_groups>(ranks);
    std::vector<dry_communicator> group;
    for (thread_communicator& host : thread_communicator::make_group(ranks, threads)) {
      auto state = std::make_shared<rank_state>(host.rank(), options, groups);
      group.push_back(dry_communicator(std::move(host), std::move(state), ""));
    }
    return group;
  }

  dry_communicator(dry_communicator&&) noexcept = default;
  dry_communicator& operator=(dry_communicator&&) noexcept = default;

  int rank() const { return host_.rank(); }
  int size() const { return host_.size(); }
  int origin_rank(int r) const { return host_.origin_rank(r); }
  plateau::counters counters() const {
    plateau::counters c = host_.counters();
    c.host_exchanges += folded_exchanges_;
    c.host_exchanges -= folding_exchanges_;
    return c;
  }
  // This rank's. It outlives the communicator for whoever holds it.
  std::shared_ptr<dry::recorder> recorder() const { return {state_, &state_->recorder}; }

  // Collective, before any fold. As thread_communicator::split.
  dry_communicator split(int color, int key) {
    if (state_->firsts)
      throw config_error(named("split") + ": after fold, the ranks that others stand for cannot say their "
                                          "color: split first");
    require_group("split");
    record_host_exchange("split", 3 * sizeof(std::int64_t));
    dry_communicator part{host_.split(color, key), state_, path_ + "/" + std::to_string(splits_++)};
    if (part.size() != 0) state_->groups->add(part.path_, state_->recorder.rank(), part.origin_rank(0));
    return part;
  }

  // Collective, of the outermost communicator, once, when everything is constructed. Ranks are alike if they
  // give the same key and have done the same so far (where the program is recorded; the key alone says so
  // where it is not); the first of them stands for all. Returns whether this
  // rank goes on: one that does not has nothing more to do, and returns. From here on the ranks of a class
  // must do the same, up to the numbers of their peers, and give host exchanges the same integers; the key
  // must tell apart those that would not. Throws config_error when it cannot be folded.
  bool fold(std::uint64_t key) {
    if (!path_.empty() || state_->firsts)
      throw config_error(named("fold") + ": once, and of the outermost communicator");
    const std::int64_t mine[] = {static_cast<std::int64_t>(key),
                                 static_cast<std::int64_t>(dry::digest_of(state_->recorder.program()))};
    std::vector<std::int64_t> all(2 * static_cast<std::size_t>(size()));
    const std::uint64_t before = host_.counters().host_exchanges;
    host_.host_exchange(mine, all, "fold");
    const std::vector<int>& first = state_->stands_for = dry::first_alike(all, 2);
    const auto me = static_cast<std::size_t>(rank());
    const bool goes_on = first[me] == rank();
    state_->firsts.emplace(host_.split(goes_on ? 0 : -1, rank()));
    folding_exchanges_ = host_.counters().host_exchanges - before; // none of the program's own
    if (goes_on) {
      state_->meetings[""].place = dry::places_among_firsts(first);
      for (const auto& [path, group_of] : state_->groups->all()) {
        const std::vector<int> part = dry::tied_ranks(first, group_of);
        folded_meeting& made = state_->meetings[path];
        made.place = dry::places_among_firsts(first, part);
        if (std::count(part.begin(), part.end(), part[me]) != size())
          made.part.emplace(state_->firsts->split(part[me], rank()));
      }
    }
    return goes_on;
  }
  // For each rank of the outermost communicator, the one that stands for it.
  const std::vector<int>& stands_for() const { return state_->stands_for; }

  // As thread_communicator::exchange, but nothing moves. It is over once it is issued, and so restarts the
  // deadlines of those who wait for this rank.
  void exchange(on<dry::stream> s, send_list sends, receive_list receives, const char* what = "exchange") {
    const host::exchange_call call = host_.announce_exchange(s.place(), sends, receives, what);
    {
      host::abort_record& record = *host_.world()->record();
      const host::abort_record::lock_type lock(record.mutex());
      record.progress();
    }
    dry::recorder& r = s.stream.recorded_by();
    try {
      r.exchange(s.stream.number(), s.place(), what, group_at(r), call.index, sends, receives);
    } catch (...) { // peers count on it: a rank that goes on all the same is out of step
      state_->recorder.ended_by(failure::current());
      throw;
    }
  }

  void host_exchange(std::span<const std::int64_t> mine, std::span<std::int64_t> all,
                     const char* what = "host_exchange") {
    require_group(what);
    if (all.size() != static_cast<std::size_t>(size()) * mine.size())
      throw config_error(named(what) + ": room for " + std::to_string(all.size()) + " integers, but " +
                         std::to_string(size()) + " ranks give " + std::to_string(mine.size()) + " each");
    record_host_exchange(what, mine.size_bytes());
    if (!state_->firsts) return host_.host_exchange(mine, all, what);
    ++folded_exchanges_;
    // By those who go on; everyone else gives what the one does that stands for it.
    const folded_meeting& meeting = state_->meetings.at(path_);
    thread_communicator& firsts = who_meets();
    given_.resize(static_cast<std::size_t>(firsts.size()) * mine.size());
    firsts.host_exchange(mine, given_, what);
    auto to = all.begin();
    for (int r = 0; r < size(); ++r) {
      const auto from = static_cast<std::size_t>(meeting.place[static_cast<std::size_t>(origin_rank(r))]);
      to = std::copy_n(given_.begin() + static_cast<std::ptrdiff_t>(from * mine.size()), mine.size(), to);
    }
  }

  void close_step() {
    require_group("close_step");
    record_host_exchange("close_step", 0);
    if (!state_->firsts) return host_.close_step();
    ++folded_exchanges_;
    who_meets().close_step();
  }
  void latch(failure why) { host_.latch(std::move(why)); }
  void abort(const failure& cause) {
    require_group("abort");
    state_->recorder.ended_by(cause);
    host_.abort(cause);
  }
  void abort(const std::string& cause) { abort(failure{failure::kind::other, cause}); }
  void leave() { host_.leave(); }
  std::optional<failure> cause() const { return host_.cause(); }

 private:
  // What has been split, on all ranks: by path, for each rank of the outermost communicator the first member
  // of its group, -1 where it is in none. Any thread.
  class split_groups {
   public:
    explicit split_groups(int ranks) : ranks_(static_cast<std::size_t>(ranks)) {}
    void add(const std::string& path, int rank, int first_member) {
      const std::lock_guard lock(mutex_);
      std::vector<int>& list = of_path_.try_emplace(path, ranks_, -1).first->second;
      list[static_cast<std::size_t>(rank)] = first_member;
    }
    std::map<std::string, std::vector<int>> all() const {
      const std::lock_guard lock(mutex_);
      return of_path_;
    }

   private:
    const std::size_t ranks_;
    mutable std::mutex mutex_;
    std::map<std::string, std::vector<int>> of_path_;
  };
  // Those who meet, once folded, when the groups of a path do: groups that have no rank in common, nor one
  // that stands for another's, do not wait for each other.
  struct folded_meeting {
    std::optional<thread_communicator> part; // nothing: all who go on
    std::vector<int> place;                  // there, by rank of the outermost communicator
  };
  // What all communicators of one rank share.
  struct rank_state {
    rank_state(int rank, const dry_options& options, std::shared_ptr<split_groups> of_all)
        : name("rank " + std::to_string(rank)), recorder(name.c_str(), rank, options),
          groups(std::move(of_all)) {}
    std::string name;
    dry::recorder recorder;
    std::shared_ptr<split_groups> groups;
    std::vector<int> stands_for;                    // by rank of the outermost communicator, once folded
    std::optional<thread_communicator> firsts;      // of the ranks that go on
    std::map<std::string, folded_meeting> meetings; // by path
  };
  dry_communicator(thread_communicator host, std::shared_ptr<rank_state> state, std::string path)
      : host_(std::move(host)), state_(std::move(state)), path_(std::move(path)) {}

  std::string named(const char* what) const { return error_prefix(state_->name.c_str()) + what; }
  void require_group(const char* what) const {
    if (size() == 0)
      throw config_error(named(what) + ": on a communicator of size 0, which split gives to a rank with a "
                                       "negative color");
  }
  void record_host_exchange(const char* what, std::size_t bytes) {
    state_->recorder.host_exchange(what, group_at(state_->recorder), host_exchanges_++, bytes);
  }
  thread_communicator& who_meets() {
    folded_meeting& meeting = state_->meetings.at(path_);
    return meeting.part ? *meeting.part : *state_->firsts;
  }
  // This group's number at a recorder: that of this rank, or of a backend that was made by itself.
  std::uint32_t group_at(dry::recorder& r) {
    for (const auto& [known, number] : numbers_)
      if (known == &r && number < r.program().groups.size() && r.program().groups[number].path == path_)
        return number; // otherwise a recorder that has gone, and another one in its place
    std::erase_if(numbers_, [&](const auto& n) { return n.first == &r; });
    dry::group_record g{path_, {}, rank()};
    for (int i = 0; i < size(); ++i) g.members.push_back(origin_rank(i));
    numbers_.emplace_back(&r, r.add_group(std::move(g)));
    return numbers_.back().second;
  }

  thread_communicator host_;
  std::shared_ptr<rank_state> state_;
  std::string path_;
  int splits_ = 0;
  std::uint64_t host_exchanges_ = 0, folded_exchanges_ = 0, folding_exchanges_ = 0;
  std::vector<std::pair<const dry::recorder*, std::uint32_t>> numbers_;
  std::vector<std::int64_t> given_;
};

} // namespace plateau::inline v0
