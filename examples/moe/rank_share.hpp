// SPDX-License-Identifier: Apache-2.0
//
// What one rank contributes to the result of a run, on its way to rank 0: its peaks, what it routed, what it
// traced. As words, since ranks need not share memory.
#pragma once

#include "peak_records.hpp"
#include "run_result.hpp"
#include "scenario_file.hpp"
#include "words.hpp"

#include <plateau/trace/trace.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moe {

namespace detail {

inline void put(word_writer& to, const std::vector<peak_record>& records) {
  to.put(records.size());
  for (const peak_record& r : records) {
    to.put(r.rank);
    to.put(r.tag);
    to.put(r.space);
    to.put(r.bytes);
    to.put(r.promised.has_value());
    to.put(r.promised.value_or(0));
    to.put(r.held_at_peak.size());
    for (const auto& [tag, bytes] : r.held_at_peak) {
      to.put(tag);
      to.put(bytes);
    }
    to.put(r.phase);
  }
}

inline std::vector<peak_record> take_peaks(word_reader& from) {
  std::vector<peak_record> records;
  for (auto left = from.number(); left > 0; --left) {
    peak_record& r = records.emplace_back();
    r.rank = from.number<int>();
    r.tag = from.text();
    r.space = from.text();
    r.bytes = from.number<std::uint64_t>();
    const bool promised = from.number<bool>();
    const auto bytes = from.number<std::uint64_t>();
    if (promised) r.promised = bytes;
    for (auto tags = from.number(); tags > 0; --tags) {
      std::string tag = from.text();
      r.held_at_peak[std::move(tag)] = from.number<std::uint64_t>();
    }
    r.phase = from.text();
  }
  return records;
}

// Names are put once each; events refer to them by number.
inline void put(word_writer& to, const plateau::trace& t) {
  std::map<std::string_view, std::int64_t> numbers;
  std::vector<std::string_view> names;
  const auto number_of = [&](const char* name) {
    const auto [at, added] = numbers.emplace(name, static_cast<std::int64_t>(names.size()));
    if (added) names.push_back(at->first);
    return at->second;
  };
  for (const plateau::trace_event& e : t.events) {
    number_of(e.name);
    number_of(e.at.file);
  }
  for (const plateau::trace_phase& p : t.phases) number_of(p.name);
  to.put(names.size());
  for (const std::string_view name : names) to.put(name);
  to.put(t.streams.size());
  for (const std::string& name : t.streams) to.put(name);
  to.put(t.events.size());
  for (const plateau::trace_event& e : t.events) {
    to.put(number_of(e.name));
    to.put(number_of(e.at.file));
    to.put(e.at.line);
    to.put(e.rank);
    to.put(e.stream);
    to.put(e.kind);
    to.put(e.begin);
    to.put(e.end);
    to.put(e.bytes);
  }
  to.put(t.memory.size());
  for (const plateau::trace_memory& m : t.memory) {
    to.put(m.rank);
    to.put(m.pool);
    to.put(m.tag);
    to.put(m.at);
    to.put(m.bytes);
  }
  to.put(t.phases.size());
  for (const plateau::trace_phase& p : t.phases) {
    to.put(p.rank);
    to.put(number_of(p.name));
    to.put(p.at);
  }
}

// Adds the trace of a rank to that of the ranks before it. Streams of one name are one; where a rank has
// several of a name at the same time, its second is everybody's second. `keep` holds the names, which a trace
// only points to.
inline void take_trace(word_reader& from, plateau::trace& to, std::set<std::string>& keep) {
  std::vector<const char*> names;
  for (auto left = from.number(); left > 0; --left) names.push_back(keep.insert(from.text()).first->c_str());
  const auto name = [&] { return names.at(from.number<std::size_t>()); };
  std::vector<std::uint32_t> into;
  std::vector<bool> taken(to.streams.size());
  for (auto left = from.number(); left > 0; --left) {
    const std::string stream = from.text();
    std::size_t i = 0;
    while (i < to.streams.size() && (taken[i] || to.streams[i] != stream)) ++i;
    if (i == to.streams.size()) {
      to.streams.push_back(stream);
      taken.push_back(false);
    }
    taken[i] = true;
    into.push_back(static_cast<std::uint32_t>(i));
  }
  for (auto left = from.number(); left > 0; --left) {
    plateau::trace_event e;
    e.name = name();
    e.at.file = name();
    e.at.line = from.number<int>();
    e.rank = from.number<int>();
    e.stream = into.at(from.number<std::size_t>());
    e.kind = from.number<plateau::trace_kind>();
    e.begin = from.real();
    e.end = from.real();
    e.bytes = from.number<std::uint64_t>();
    to.events.push_back(e);
  }
  for (auto left = from.number(); left > 0; --left) {
    plateau::trace_memory m;
    m.rank = from.number<int>();
    m.pool = from.number<plateau::memory_kind>();
    m.tag = from.number<plateau::tag>();
    m.at = from.real();
    m.bytes = from.number<std::size_t>();
    to.memory.push_back(m);
  }
  for (auto left = from.number(); left > 0; --left) {
    plateau::trace_phase p;
    p.rank = from.number<int>();
    p.name = name();
    p.at = from.real();
    to.phases.push_back(p);
  }
}

} // namespace detail

struct rank_share {
  rank_peaks peaks;
  routing_recorder routes;             // empty where nobody wants them
  std::optional<plateau::trace> trace; // of this rank alone

  std::vector<std::int64_t> words() const {
    word_writer to;
    for (const auto* records : {&peaks.peaks, &peaks.totals, &peaks.evaluation}) detail::put(to, *records);
    to.put(routes.entries());
    routes.for_each(
        [&](std::int64_t step, std::int64_t layer, std::int64_t rank, std::span<const std::int64_t> counts) {
          for (const std::int64_t value : {step, layer, rank, static_cast<std::int64_t>(counts.size())})
            to.put(value);
          for (const std::int64_t count : counts) to.put(count);
        });
    to.put(trace.has_value());
    if (trace) detail::put(to, *trace);
    return to.words();
  }
};

// The shares of all ranks, by rank, in the result.
inline void add_to_result(const std::vector<std::vector<std::int64_t>>& shares, run_result& result) {
  routing_recorder routes;
  std::vector<std::int64_t> counts;
  auto names = std::make_shared<std::set<std::string>>();
  for (const std::vector<std::int64_t>& share : shares) {
    word_reader from{share};
    rank_peaks peaks;
    for (auto* records : {&peaks.peaks, &peaks.totals, &peaks.evaluation})
      *records = detail::take_peaks(from);
    add_to_result(peaks, result);
    for (auto left = from.number(); left > 0; --left) {
      const std::int64_t step = from.number(), layer = from.number(), rank = from.number();
      counts.clear();
      for (auto experts = from.number(); experts > 0; --experts) counts.push_back(from.number());
      routes.add(step, layer, rank, counts);
    }
    if (!from.number<bool>()) continue;
    if (!result.trace) result.trace.emplace();
    detail::take_trace(from, *result.trace, *names);
  }
  result.trace_names = std::move(names);
  if (!result.config.record_routing.empty()) result.routing = routes.csv();
}

} // namespace moe
