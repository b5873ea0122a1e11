// SPDX-License-Identifier: Apache-2.0
//
// The trace of one rank while its clock runs, and how those of several ranks become one.
#pragma once

#include <plateau/config.hpp>
#include <plateau/dry_run/program.hpp>
#include <plateau/tag.hpp>
#include <plateau/trace/trace.hpp>

#include <algorithm>
#include <string>
#include <vector>

namespace plateau::inline v0::dry {

class rank_trace {
 public:
  explicit rank_trace(int rank) : rank_(rank) { lanes_.push_back({"host", true}); }

  // Streams of one name that are never open together share a line of the trace.
  void open_stream(std::uint16_t number, const std::string& name) {
    const auto free =
        std::find_if(lanes_.begin(), lanes_.end(), [&](const lane& l) { return !l.open && l.name == name; });
    const auto at = static_cast<std::size_t>(free - lanes_.begin());
    if (free == lanes_.end()) lanes_.push_back({name, false});
    lanes_[at].open = true;
    if (number >= lane_of_.size()) lane_of_.resize(number + std::size_t{1});
    lane_of_[number] = static_cast<std::uint32_t>(at);
  }
  void close_stream(std::uint16_t number) { lanes_[lane_of_[number]].open = false; }

  void ran(const instruction& i, const label& l, double begin, double end, std::uint64_t bytes) {
    add(l, lane_of_[i.stream], kind_of(i), begin, end, bytes);
  }
  void stream_waited(const instruction& i, const label& l, double begin, double end) {
    if (end > begin) add(l, lane_of_[i.stream], trace_kind::waiting, begin, end, 0);
  }
  void host_waited(const label& l, double begin, double end) {
    if (end > begin) add(l, 0, trace_kind::waiting, begin, end, 0);
  }
  void memory(const instruction& i, double at) {
    memory_.push_back({rank_, static_cast<memory_kind>(i.other), static_cast<plateau::tag>(i.stream), at,
                       static_cast<std::size_t>(i.bytes)});
  }
  void phase(const char* name, double at) { phases_.push_back({rank_, name, at}); }

  // Appends what this rank has to a trace of all, events in the order in which they began.
  void append_to(trace& all) {
    std::vector<std::uint32_t> number(lanes_.size(), 0);
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      const auto nth = std::count_if(lanes_.begin(), lanes_.begin() + static_cast<std::ptrdiff_t>(i),
                                     [&](const lane& l) { return l.name == lanes_[i].name; });
      number[i] = stream_number(all, lanes_[i].name, nth);
    }
    std::stable_sort(events_.begin(), events_.end(),
                     [](const trace_event& a, const trace_event& b) { return a.begin < b.begin; });
    for (trace_event& e : events_) e.stream = number[e.stream];
    all.events.insert(all.events.end(), events_.begin(), events_.end());
    all.memory.insert(all.memory.end(), memory_.begin(), memory_.end());
    all.phases.insert(all.phases.end(), phases_.begin(), phases_.end());
  }

 private:
  struct lane {
    std::string name;
    bool open;
  };
  static trace_kind kind_of(const instruction& i) {
    if (i.what == action::exchange || i.on == engine::network) return trace_kind::exchange;
    if (i.on == engine::compute) return trace_kind::compute;
    return i.on == engine::host ? trace_kind::host : trace_kind::copy;
  }
  // Of the stream that is the nth of its name, made if there is none.
  static std::uint32_t stream_number(trace& all, const std::string& name, std::ptrdiff_t nth) {
    std::size_t i = 0;
    for (; i < all.streams.size(); ++i)
      if (all.streams[i] == name && nth-- == 0) return static_cast<std::uint32_t>(i);
    all.streams.push_back(name);
    return static_cast<std::uint32_t>(i);
  }
  void add(const label& l, std::uint32_t stream, trace_kind kind, double begin, double end,
           std::uint64_t bytes) {
    events_.push_back({l.name, l.at, rank_, stream, kind, begin, end, bytes});
  }

  int rank_;
  std::vector<lane> lanes_;            // 0 is the host's
  std::vector<std::uint32_t> lane_of_; // by stream number
  std::vector<trace_event> events_;
  std::vector<trace_memory> memory_;
  std::vector<trace_phase> phases_;
};

} // namespace plateau::inline v0::dry
