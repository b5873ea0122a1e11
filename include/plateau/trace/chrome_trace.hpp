// SPDX-License-Identifier: Apache-2.0
//
// A trace as Chrome's trace JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing open: a process for
// each rank, in it a thread for its phases, one for the host and one for each stream, and counters of the
// memory that each tag holds. Written event by event, so that a trace of millions needs no memory beside it.
#pragma once

#include <plateau/config.hpp>
#include <plateau/trace/text.hpp>
#include <plateau/trace/trace.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace plateau::inline v0 {

namespace detail {
class chrome_trace_writer {
 public:
  chrome_trace_writer(std::ostream& to, const trace& t) : to_(to), trace_(t) {
    while (static_cast<std::size_t>(stride_) <= t.streams.size()) stride_ *= 10;
  }

  void write() {
    survey();
    line_ = "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"title\":\"";
    append_json(line_, trace_.title);
    line_ += "\"},\"traceEvents\":[";
    flush();
    for (const auto& [rank, seen] : ranks_) describe(rank, seen);
    for (const trace_event& e : trace_.events) event(e);
    phases();
    memory();
    line_ = "\n]}\n";
    flush();
  }

 private:
  using by_pool = std::array<bytes_by_tag, 2>;
  // What there is of a rank.
  struct extent {
    std::vector<bool> streams;
    bool phases = false;
    by_pool most{};
    double end = 0;
  };

  void survey() {
    const auto at = [&](int rank, double end) -> extent& {
      extent& e = ranks_[rank];
      e.end = std::max(e.end, end);
      return e;
    };
    for (const trace_event& e : trace_.events) {
      std::vector<bool>& streams = at(e.rank, e.end).streams;
      if (streams.size() <= e.stream) streams.resize(e.stream + 1);
      streams[e.stream] = true;
    }
    for (const trace_phase& p : trace_.phases) at(p.rank, p.at).phases = true;
    for (const trace_memory& m : trace_.memory) {
      std::size_t& most = of(at(m.rank, m.at).most[static_cast<std::size_t>(m.pool)], m.tag);
      most = std::max(most, m.bytes);
    }
  }

  void describe(int rank, const extent& seen) {
    metadata(rank, -1, "process_name");
    line_ += "\"name\":\"rank ";
    append_number(line_, rank);
    line_ += "\"}}";
    flush();
    metadata(rank, -1, "process_sort_index");
    sort_index(rank);
    if (seen.phases) thread(rank, phase_thread(), "phase", -1);
    for (std::size_t s = 0; s < seen.streams.size(); ++s)
      if (seen.streams[s])
        thread(rank, static_cast<long>(s), s < trace_.streams.size() ? trace_.streams[s] : "stream",
               static_cast<int>(s));
  }
  void thread(int rank, long stream, std::string_view name, int place) {
    metadata(rank, stream, "thread_name");
    line_ += "\"name\":\"";
    append_json(line_, name);
    line_ += "\"}}";
    flush();
    metadata(rank, stream, "thread_sort_index");
    sort_index(place);
  }
  void metadata(int rank, long stream, const char* what) {
    begin('M', rank, stream);
    ((line_ += ",\"name\":\"") += what) += "\",\"args\":{";
  }
  void sort_index(int place) {
    line_ += "\"sort_index\":";
    append_number(line_, place);
    line_ += "}}";
    flush();
  }

  void event(const trace_event& e) {
    complete(e.rank, static_cast<long>(e.stream), e.name, name_of(e.kind), e.begin, e.end);
    line_ += ",\"args\":{";
    if (*e.at.file != '\0') {
      line_ += "\"place\":\"";
      append_json(line_, e.at.file);
      line_ += ':';
      append_number(line_, e.at.line);
      line_ += e.bytes != 0 ? "\"," : "\"";
    }
    if (e.bytes != 0) {
      line_ += "\"bytes\":";
      append_number(line_, e.bytes);
    }
    line_ += "}}";
    flush();
  }
  // A phase lasts until the rank's next one of another name, or to its end.
  void phases() {
    const std::vector<trace_phase>& all = trace_.phases;
    for (std::size_t i = 0, next = 0; i < all.size(); i = next) {
      const std::string_view name = all[i].name;
      while (next < all.size() && all[next].rank == all[i].rank && all[next].name == name) ++next;
      const bool last = next == all.size() || all[next].rank != all[i].rank;
      complete(all[i].rank, phase_thread(), all[i].name, "phase", all[i].at,
               last ? ranks_.at(all[i].rank).end : all[next].at);
      line_ += '}';
      flush();
    }
  }
  void complete(int rank, long stream, const char* name, const char* category, double from, double until) {
    begin('X', rank, stream);
    line_ += ",\"name\":\"";
    append_json(line_, name);
    ((line_ += "\",\"cat\":\"") += category) += '"';
    // Both ends are rounded, not the length: events that touch still do.
    const long long start = nanoseconds(from);
    moment(start);
    line_ += ",\"dur\":";
    microseconds(std::max(0LL, nanoseconds(until) - start));
  }

  // A counter holds all its series; what changes at one moment is one event.
  void memory() {
    by_pool held{};
    for (std::size_t i = 0; i < trace_.memory.size(); ++i) {
      const trace_memory& m = trace_.memory[i];
      if (i == 0 || trace_.memory[i - 1].rank != m.rank) held = {};
      bytes_by_tag& now = held[static_cast<std::size_t>(m.pool)];
      of(now, m.tag) = m.bytes;
      if (i + 1 < trace_.memory.size()) {
        const trace_memory& next = trace_.memory[i + 1];
        if (next.rank == m.rank && next.pool == m.pool && nanoseconds(next.at) == nanoseconds(m.at)) continue;
      }
      counter(m, now, ranks_.at(m.rank).most[static_cast<std::size_t>(m.pool)]);
    }
  }
  void counter(const trace_memory& m, const bytes_by_tag& now, const bytes_by_tag& most) {
    const char* const pool = m.pool == memory_kind::device ? "device memory" : "pinned memory";
    begin('C', m.rank, -1);
    ((line_ += ",\"name\":\"") += pool) += '"';
    moment(nanoseconds(m.at));
    line_ += ",\"args\":{";
    const char* separator = "";
    std::size_t total = 0;
    for (const tag t : all_tags) {
      total += of(now, t);
      if (of(most, t) == 0) continue;
      (((line_ += separator) += '"') += name_of(t)) += "\":";
      append_number(line_, of(now, t));
      separator = ",";
    }
    line_ += "}}";
    flush();
    // By itself, since the series of one counter may be shown on top of each other.
    begin('C', m.rank, -1);
    ((line_ += ",\"name\":\"") += pool) += ", total\"";
    moment(nanoseconds(m.at));
    line_ += ",\"args\":{\"bytes\":";
    append_number(line_, total);
    line_ += "}}";
    flush();
  }

  // Process and thread 0 are the idle ones of an operating system, and a thread that has its process's number
  // is its main one: none of ours is.
  void begin(char kind, int rank, long stream) {
    ((line_ = first_ ? "\n{\"ph\":\"" : ",\n{\"ph\":\"") += kind) += "\",\"pid\":";
    append_number(line_, rank + 1);
    if (stream >= 0) {
      line_ += ",\"tid\":";
      append_number(line_, (rank + 1) * stride_ + stream);
    }
    first_ = false;
  }
  void moment(long long ns) {
    line_ += ",\"ts\":";
    microseconds(ns);
  }
  void microseconds(long long ns) {
    append_number(line_, ns / 1000);
    const int rest = static_cast<int>(ns % 1000);
    if (rest == 0) return;
    const char digits[] = {'.', static_cast<char>('0' + rest / 100), static_cast<char>('0' + rest / 10 % 10),
                           static_cast<char>('0' + rest % 10)};
    line_.append(digits, sizeof digits);
  }
  // Nothing is before the trace's beginning.
  static long long nanoseconds(double seconds) {
    return seconds > 0 ? std::llround(std::min(seconds, 1e9) * 1e9) : 0;
  }
  static std::size_t& of(bytes_by_tag& held, tag t) { return held[static_cast<std::size_t>(t)]; }
  static std::size_t of(const bytes_by_tag& held, tag t) { return held[static_cast<std::size_t>(t)]; }
  long phase_thread() const { return stride_ - 1; }
  void flush() { to_.write(line_.data(), static_cast<std::streamsize>(line_.size())); }

  std::ostream& to_;
  const trace& trace_;
  std::map<int, extent> ranks_;
  std::string line_;
  long stride_ = 100; // between the numbers of two ranks' threads
  bool first_ = true;
};
} // namespace detail

// Writes the trace to the stream, whose state says afterwards whether it could be written. Moments are in
// microseconds with three decimals.
inline void write_chrome_trace(std::ostream& to, const trace& t) {
  detail::chrome_trace_writer(to, t).write();
}

} // namespace plateau::inline v0
