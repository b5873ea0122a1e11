// SPDX-License-Identifier: Apache-2.0
//
// The timeline's model a second time, as plainly as it can be said: time goes on in steps of a fixed length,
// and at each step everything that can happen does. Slow and inexact by a few steps, and with nothing in it
// of heaps, predicted ends or matching tables.
#pragma once

#include <plateau/dry_run/cost.hpp>
#include <plateau/dry_run/exchange_match.hpp>
#include <plateau/dry_run/group_table.hpp>
#include <plateau/dry_run/program.hpp>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

namespace plateau_test {

class tiny_steps {
 public:
  tiny_steps(const std::vector<const plateau::dry::rank_program*>& programs, const plateau::hardware& h,
             double step)
      : programs_(programs), model_(h), table_(programs, {}),
        match_(plateau::dry::match_exchanges(table_, model_)), step_(step), ranks_(programs.size()) {
    for (std::size_t r = 0; r < programs.size(); ++r) {
      ranks_[r].host_ready = launch_of(r);
      ranks_[r].posted.assign(programs[r]->groups.size(), 0);
      ranks_[r].came.assign(programs[r]->groups.size(), 0);
    }
  }
  // When all is done; negative if that is not before `limit`.
  double run(double limit) {
    for (std::uint64_t n = 0;; ++n) {
      now_ = static_cast<double>(n) * step_;
      if (now_ > limit) return -1;
      while (anything_happens()) {
      }
      if (all_done()) return now_;
      for (rank& r : ranks_) advance(r);
    }
  }

 private:
  using action = plateau::dry::action;
  struct command {
    std::size_t instruction = 0;
    bool begun = false, has_posted = false;
    double left = 0;
    plateau::dry::cost cost{};
  };
  struct stream {
    std::deque<command> commands;
    std::uint64_t completed = 0, issued = 0;
  };
  struct rank {
    std::vector<stream> streams;
    std::vector<std::uint64_t> posted, came; // exchanges and host exchanges, by group
    std::size_t next = 0;
    double host_ready = 0;
    bool has_come = false;
  };

  const plateau::dry::instruction& code(std::size_t r, std::size_t i) const {
    return programs_[r]->instructions[i];
  }
  double launch_of(std::size_t r) const {
    const std::size_t next = ranks_[r].next;
    if (next >= programs_[r]->instructions.size()) return 0;
    const action what = code(r, next).what;
    return what == action::operation || what == action::exchange ? model_.machine().launch_seconds : 0;
  }
  bool all_done() const {
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].next < programs_[r]->instructions.size() || ranks_[r].host_ready > now_) return false;
      for (const stream& s : ranks_[r].streams)
        if (!s.commands.empty()) return false;
    }
    return true;
  }
  bool anything_happens() {
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      for (stream& s : ranks_[r].streams)
        if (!s.commands.empty() && goes_on(r, s)) return true;
      if (ranks_[r].next < programs_[r]->instructions.size() && ranks_[r].host_ready <= now_ + 1e-12 &&
          host_goes_on(r))
        return true;
    }
    return false;
  }
  bool goes_on(std::size_t r, stream& s) {
    command& c = s.commands.front();
    const auto& i = code(r, c.instruction);
    if (c.begun) {
      if (c.left > 1e-12) return false;
    } else if (i.what == action::wait) {
      if (ranks_[r].streams[i.other].completed < i.bytes) return false;
    } else if (i.what == action::operation) {
      return begin(c, model_.operation(i));
    } else {
      const auto& e = programs_[r]->exchanges[i.index];
      if (!c.has_posted) {
        if (ranks_[r].posted[e.group] != e.index) return false;
        ++ranks_[r].posted[e.group];
        return c.has_posted = true;
      }
      for (const auto* list : {&e.sends, &e.receives})
        for (const auto& m : *list) {
          const auto peer = static_cast<std::size_t>(
              programs_[r]->groups[e.group].members[static_cast<std::size_t>(m.peer)]);
          if (ranks_[peer].posted[e.group] <= e.index)
            return false; // groups are numbered alike in these tests
        }
      return begin(c, model_.exchange(match_.exchanges[r][i.index].load));
    }
    s.commands.pop_front();
    ++s.completed;
    return true;
  }
  static bool begin(command& c, const plateau::dry::cost& cost) {
    c.begun = true;
    c.cost = cost;
    c.left = cost.seconds;
    return true;
  }
  bool host_goes_on(std::size_t r) {
    rank& me = ranks_[r];
    const auto& i = code(r, me.next);
    switch (i.what) {
    case action::operation:
    case action::exchange:
    case action::wait:
      me.streams[i.stream].commands.push_back({me.next});
      ++me.streams[i.stream].issued;
      break;
    case action::open_stream:
      if (me.streams.size() <= i.stream) me.streams.resize(i.stream + std::size_t{1});
      break;
    case action::host_wait:
      if (me.streams[i.other].completed < i.bytes) return false;
      break;
    case action::close_stream:
      if (me.streams[i.stream].completed < me.streams[i.stream].issued) return false;
      break;
    case action::host_exchange: {
      const auto& e = programs_[r]->host_exchanges[i.index];
      if (!me.has_come) {
        ++me.came[e.group];
        return me.has_come = true;
      }
      const auto& members = programs_[r]->groups[e.group].members;
      for (const int m : members)
        if (ranks_[static_cast<std::size_t>(m)].came[e.group] <= e.index) return false;
      me.has_come = false;
      ++me.next;
      me.host_ready = now_ + model_.host_exchange_seconds(members.size()) + launch_of(r);
      return true;
    }
    default:
      break;
    }
    ++me.next;
    me.host_ready = now_ + launch_of(r);
    return true;
  }
  void advance(rank& r) {
    double asked[plateau::dry::resource_count] = {};
    for (const stream& s : r.streams)
      if (!s.commands.empty() && s.commands.front().begun)
        for (std::size_t k = 0; k < plateau::dry::resource_count; ++k)
          asked[k] += s.commands.front().cost.shares[k];
    for (stream& s : r.streams) {
      if (s.commands.empty() || !s.commands.front().begun) continue;
      double most = 1;
      for (std::size_t k = 0; k < plateau::dry::resource_count; ++k)
        if (s.commands.front().cost.shares[k] > 0) most = std::max(most, asked[k]);
      s.commands.front().left -= step_ / most;
    }
  }

  std::vector<const plateau::dry::rank_program*> programs_;
  plateau::dry::cost_model model_;
  plateau::dry::group_table table_;
  plateau::dry::exchange_match match_;
  double step_, now_ = 0;
  std::vector<rank> ranks_;
};

} // namespace plateau_test
