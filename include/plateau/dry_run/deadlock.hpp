// SPDX-License-Identifier: Apache-2.0
//
// Why ranks do not come to their end: for each stream and host that is held, the operation, its line and what
// it waits for; and the circle in which they wait for one another.
#pragma once

#include <plateau/config.hpp>
#include <plateau/dry_run/group_table.hpp>
#include <plateau/dry_run/program.hpp>
#include <plateau/dry_run/rank_clock.hpp>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace plateau::inline v0::dry {

class deadlock_explainer {
 public:
  deadlock_explainer(const group_table& table, std::span<const rank_clock> clocks)
      : table_(table), clocks_(clocks) {}

  std::string text() const {
    constexpr std::size_t most = 16;
    std::vector<place> stuck;
    for (std::size_t p = 0; p < clocks_.size(); ++p) {
      if (clocks_[p].host_held_at() != nullptr) stuck.push_back({p, host});
      for (std::size_t s = 0; s < clocks_[p].streams().size(); ++s)
        if (clocks_[p].streams()[s].at != rank_clock::phase::idle) stuck.push_back({p, static_cast<int>(s)});
    }
    std::string text = "plateau: dry run: deadlock: ";
    for (std::size_t i = 0; i < std::min(most, stuck.size()); ++i)
      text += (i > 0 ? "; " : "") + held_text(stuck[i]);
    if (stuck.size() > most) text += "; and " + std::to_string(stuck.size() - most) + " more";
    if (!stuck.empty()) text += circle_text(stuck.front());
    return text;
  }

 private:
  static constexpr int host = -1;
  struct place {
    std::size_t program;
    int stream; // or host
    bool operator==(const place&) const = default;
  };

  const rank_clock::stream_state& state(place at) const {
    return clocks_[at.program].streams()[static_cast<std::size_t>(at.stream)];
  }
  // What a place is at, nullptr if it is not held.
  const instruction* held_at(place at) const {
    if (at.stream == host) return clocks_[at.program].host_held_at();
    return state(at).at == rank_clock::phase::idle ? nullptr : &clocks_[at.program].code(state(at).current);
  }
  std::string name_of(place at) const {
    std::string text = "rank " + std::to_string(table_.rank(at.program));
    if (at.stream == host) return text + " host";
    const rank_program& p = *table_.programs()[at.program];
    for (const instruction& i : p.instructions) // the last name that the number had is near enough
      if (i.what == action::open_stream && i.stream == at.stream)
        return text + " stream '" + p.stream_names[i.name] + "'";
    return text + " stream " + std::to_string(at.stream);
  }
  std::string held_text(place at) const {
    const instruction& i = *held_at(at);
    std::string text = name_of(at) + " is held in ";
    text += i.what == action::close_stream ? "close_stream" : text_of(*table_.programs()[at.program], i);
    text += ", waiting for ";
    const std::vector<place> causes = waits_for(at);
    for (std::size_t c = 0; c < std::min<std::size_t>(causes.size(), 4); ++c)
      text += (c > 0 ? ", " : "") + name_of(causes[c]);
    if (causes.size() > 4) text += " and " + std::to_string(causes.size() - 4) + " more";
    return text;
  }
  std::string circle_text(place from) const {
    std::vector<place> way{from};
    for (;;) {
      const std::vector<place> causes = waits_for(way.back());
      // Of several, one that is itself held.
      const auto next =
          std::find_if(causes.begin(), causes.end(), [&](place at) { return held_at(at) != nullptr; });
      if (next == causes.end()) return {};
      const auto seen = std::find(way.begin(), way.end(), *next);
      if (seen == way.end()) {
        way.push_back(*next);
        continue;
      }
      std::string text = "; the circle: ";
      for (auto at = seen; at != way.end(); ++at) text += name_of(*at) + " -> ";
      return text + name_of(*seen);
    }
  }

  std::vector<place> waits_for(place at) const {
    const rank_clock& clock = clocks_[at.program];
    const instruction& i = *held_at(at);
    switch (i.what) {
    case action::wait:
    case action::host_wait:
      return {{at.program, i.other}};
    case action::close_stream:
      return {{at.program, i.stream}};
    case action::host_exchange: {
      const host_exchange_record& r = clock.program().host_exchanges[i.index];
      return missing(at.program, table_.path_of(at.program, r.group), r.index, action::host_exchange);
    }
    default:
      break;
    }
    const exchange_record& r = clock.program().exchanges[i.index];
    const std::size_t path = table_.path_of(at.program, r.group);
    if (state(at).at == rank_clock::phase::unordered) return {where(at.program, path, clock.posted(r.group))};
    return missing(at.program, path, r.index, action::exchange);
  }
  // The places of those who have not come to the k-th meeting of a group.
  std::vector<place> missing(std::size_t program, std::size_t path, std::uint64_t k, action what) const {
    std::vector<place> list;
    for (const std::uint32_t q : table_.others(program, path)) {
      if (what == action::exchange) {
        const auto group = table_.group(q, path) - table_.programs()[q]->groups.data();
        if (clocks_[q].posted(static_cast<std::uint32_t>(group)) <= k && shares_bytes(program, q, path, k))
          list.push_back(where(q, path, k));
      } else if (!has_come(q, path, k)) {
        list.push_back({q, host});
      }
    }
    return list;
  }
  bool shares_bytes(std::size_t program, std::size_t q, std::size_t path, std::uint64_t k) const {
    const rank_program& p = *table_.programs()[program];
    const exchange_record& r = p.exchanges[table_.exchanges(program, path)[k]];
    const auto is_q = [&](const message& m) {
      return table_.program_of(table_.group(program, path)->members[static_cast<std::size_t>(m.peer)]) == q;
    };
    return std::any_of(r.sends.begin(), r.sends.end(), is_q) ||
           std::any_of(r.receives.begin(), r.receives.end(), is_q);
  }
  // Whether the program's host is at, or past, its k-th host exchange of a path.
  bool has_come(std::size_t q, std::size_t path, std::uint64_t k) const {
    const instruction* at = clocks_[q].host_held_at();
    if (at == nullptr) return true; // at its end
    const rank_program& p = *table_.programs()[q];
    const std::uint32_t wanted = table_.host_exchanges(q, path)[k];
    for (const instruction* i = p.instructions.data(); i <= at; ++i)
      if (i->what == action::host_exchange && i->index == wanted) return true;
    return false;
  }
  // The stream in which the k-th exchange of a path is, begun or queued; the host that has not issued it.
  place where(std::size_t q, std::size_t path, std::uint64_t k) const {
    const auto list = table_.exchanges(q, path);
    if (k >= list.size()) return {q, host};
    const rank_clock& clock = clocks_[q];
    const auto is_it = [&](std::uint32_t number) {
      const instruction& i = clock.code(number);
      return i.what == action::exchange && i.index == list[k];
    };
    for (std::size_t s = 0; s < clock.streams().size(); ++s) {
      const rank_clock::stream_state& state = clock.streams()[s];
      if (state.at != rank_clock::phase::idle && is_it(state.current)) return {q, static_cast<int>(s)};
      for (std::size_t n = 0; n < state.queue.size(); ++n)
        if (is_it(state.queue[n])) return {q, static_cast<int>(s)};
    }
    return {q, host};
  }

  const group_table& table_;
  std::span<const rank_clock> clocks_;
};

} // namespace plateau::inline v0::dry
