// SPDX-License-Identifier: Apache-2.0
//
// The virtual time of one rank. Its host issues instructions in order; each operation and exchange costs the
// host launch_seconds and cannot begin before it was issued. Streams run their commands in order, and beside
// one another: what runs at a time shares the rank's resources (see cost.hpp), so each start and each end
// changes how fast the others go on. A wait of a stream is done when the other one has completed so many of
// its commands, counted over all uses of the stream's number; a wait of the host stops the issuing.
//
// What other ranks decide comes from outside: when an exchange begins, and when the host goes on after a host
// exchange. Until it is known, such a rank must not run past the moment at which it may happen.
#pragma once

#include <plateau/config.hpp>
#include <plateau/dry_run/command_queue.hpp>
#include <plateau/dry_run/cost.hpp>
#include <plateau/dry_run/program.hpp>
#include <plateau/dry_run/rank_trace.hpp>
#include <plateau/dry_run/timeline.hpp>
#include <plateau/error.hpp>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <vector>

namespace plateau::inline v0::dry {

class rank_clock {
 public:
  static constexpr double never = std::numeric_limits<double>::infinity();

  // What a stream is at.
  enum class phase : unsigned char {
    idle,
    held,      // by a wait
    unordered, // an exchange, before an earlier one of the same group has been posted
    posted,    // an exchange whose peers have not all come
    awaiting,  // an exchange whose beginning is known
    running
  };
  struct stream_state {
    phase at = phase::idle;
    std::uint32_t current = 0;   // instruction, if not idle
    std::uint64_t completed = 0; // commands
    std::uint64_t issued = 0;    // commands
    double begun = 0;            // when what runs began, or was posted
    double end = 0;              // of what runs, at its present rate; the beginning of what is awaited
    double left = 0;             // seconds of work at `since`
    double since = 0, rate = 0;  // since when at this rate
    std::uint64_t bytes = 0;     // that it moves
    cost running{};
    command_queue queue; // what was issued after it
  };

  // Keeps the addresses of all; `writer` may be nullptr.
  rank_clock(const rank_program& program, const cost_model& model, perturbation p, rank_trace* writer)
      : program_(&program), model_(&model), perturbation_(p), trace_(writer),
        posted_(program.groups.size(), 0) {
    times_.rank = program.rank;
    schedule_host();
  }

  const rank_program& program() const { return *program_; }
  // The next moment at which something happens by itself; `never` if all has been done or is held.
  double next_event() {
    if (changed_) settle_rates();
    return std::min(host_at_, stream_at_);
  }
  // Runs to the next post, or to the end. While an answer from other ranks is due, not past `horizon`.
  // `meeting` has exchange_posted(record, stream, seconds) and host_exchange_posted(record, seconds), which
  // may answer at once.
  template <class Meeting> void run(double horizon, Meeting&& meeting) {
    has_posted_ = false;
    while (!has_posted_) {
      const double at = next_event();
      if (at == never || (due_ > 0 && at > horizon)) return;
      now_ = at;
      if (stream_at_ <= host_at_)
        stream_event(streams_[next_stream_], meeting);
      else
        issue(meeting);
      while (released_) release(meeting);
    }
  }
  // The exchange that `stream` has posted begins at `at`, costs this, and sends so much to other ranks.
  void begin_exchange(std::uint16_t stream, double at, const cost& c, std::uint64_t sent_bytes) {
    stream_state& s = streams_[stream];
    s.at = phase::awaiting;
    s.end = at;
    s.running = c;
    s.bytes = sent_bytes;
    times_.sent_bytes += sent_bytes;
    active_.push_back(stream);
    changed_ = true;
    --due_;
  }
  // The last host has come to this one's host exchange at `at`, which takes so many seconds.
  void resume_host(double at, double seconds) {
    --due_;
    unblock_host(at + seconds * factor(next_, 0));
  }

  bool finished() const {
    return next_ == program_->instructions.size() &&
           std::all_of(streams_.begin(), streams_.end(),
                       [](const stream_state& s) { return s.at == phase::idle; });
  }
  // After the last event.
  rank_times times() {
    account();
    times_.seconds = std::max(now_, host_);
    return times_;
  }

  // For whoever explains why it does not finish.
  const std::vector<stream_state>& streams() const { return streams_; }
  const instruction* host_held_at() const { return host_blocked_ ? &code(next_) : nullptr; }
  const instruction& code(std::size_t i) const { return program_->instructions[i]; }
  std::uint64_t posted(std::uint32_t group) const { return posted_[group]; }

 private:
  double factor(std::size_t number, unsigned part) const {
    return perturbation_.factor(program_->rank, 2 * number + part);
  }
  stream_state& stream(std::uint16_t number) {
    if (number >= streams_.size())
      throw config_error("plateau: solve: rank " + std::to_string(program_->rank) + " uses stream " +
                         std::to_string(number) + ", which was never opened");
    return streams_[number];
  }
  const label& label_of(const instruction& i) const { return program_->labels[i.name]; }

  // --- the host ---

  void schedule_host() {
    host_at_ = never;
    if (next_ == program_->instructions.size()) return;
    const action what = code(next_).what;
    host_at_ = host_;
    if (what == action::operation || what == action::exchange)
      host_at_ += model_->machine().launch_seconds * factor(next_, 1);
  }
  template <class Meeting> void issue(Meeting& meeting) {
    host_ = host_at_;
    const auto number = static_cast<std::uint32_t>(next_);
    const instruction& i = code(next_);
    switch (i.what) {
    case action::operation:
    case action::exchange:
    case action::wait: {
      stream_state& s = stream(i.stream);
      ++s.issued;
      if (s.at == phase::idle)
        start(s, number, meeting);
      else
        s.queue.push(number);
      break;
    }
    case action::host_wait:
      times_.host_round_trips += i.round_trip;
      if (stream(i.other).completed < i.bytes) return block_host();
      break;
    case action::close_stream:
      if (stream(i.stream).completed < stream(i.stream).issued) return block_host();
      if (trace_ != nullptr) trace_->close_stream(i.stream);
      break;
    case action::host_exchange:
      ++times_.host_exchanges;
      block_host();
      ++due_;
      has_posted_ = true;
      return meeting.host_exchange_posted(i.index, host_);
    case action::open_stream:
      if (i.stream >= streams_.size()) streams_.resize(i.stream + std::size_t{1});
      if (trace_ != nullptr) trace_->open_stream(i.stream, program_->stream_names[i.name]);
      break;
    case action::memory:
      if (trace_ != nullptr) trace_->memory(i, host_);
      break;
    case action::phase:
      if (trace_ != nullptr) trace_->phase(label_of(i).name, host_);
      break;
    case action::mark:
      account();
      times_.marks.push_back({label_of(i).name, times_});
      times_.marks.back().so_far.seconds = host_;
      break;
    }
    ++next_;
    schedule_host();
  }
  void block_host() {
    host_blocked_ = true;
    host_at_ = never;
  }
  void unblock_host(double at) {
    const instruction& i = code(next_);
    times_.host_blocked += at - host_;
    if (trace_ != nullptr) {
      const bool closes = i.what == action::close_stream;
      trace_->host_waited(closes ? label{"close_stream", {}} : label_of(i), host_, at);
      if (closes) trace_->close_stream(i.stream);
    }
    host_blocked_ = false;
    host_ = at;
    ++next_;
    schedule_host();
  }

  // --- streams ---

  template <class Meeting> void start(stream_state& s, std::uint32_t number, Meeting& meeting) {
    const instruction& i = code(number);
    s.current = number;
    switch (i.what) {
    case action::wait:
      if (stream(i.other).completed >= i.bytes) return complete(s);
      s.at = phase::held;
      ++held_;
      break;
    case action::exchange:
      ++times_.exchanges;
      s.at = phase::unordered;
      ++held_;
      post(s, meeting);
      break;
    default:
      ++times_.operations;
      times_.flops += i.flops;
      s.running = model_->operation(i);
      s.bytes = i.bytes;
      active_.push_back(i.stream);
      run_now(s);
    }
  }
  // Exchanges of a group are posted in the order in which the host issued them, whatever their streams.
  template <class Meeting> void post(stream_state& s, Meeting& meeting) {
    const instruction& i = code(s.current);
    const exchange_record& r = program_->exchanges[i.index];
    if (posted_[r.group] != r.index) return;
    ++posted_[r.group];
    --held_;
    account();
    ++awaited_;
    s.at = phase::posted;
    s.begun = now_;
    ++due_;
    released_ = has_posted_ = true; // the next one may have been held by this
    meeting.exchange_posted(i.index, i.stream, now_);
  }
  void run_now(stream_state& s) {
    account();
    s.at = phase::running;
    s.left = s.running.seconds * factor(s.current, 0);
    s.begun = s.since = s.end = now_;
    s.rate = 0;
    count(s, +1);
    changed_ = true;
  }
  // What runs has ended, or what was awaited begins.
  template <class Meeting> void stream_event(stream_state& s, Meeting& meeting) {
    account();
    if (s.at == phase::awaiting) {
      --awaited_;
      if (trace_ != nullptr) trace_->stream_waited(code(s.current), label_of(code(s.current)), s.begun, now_);
      return run_now(s);
    }
    count(s, -1);
    if (trace_ != nullptr) trace_->ran(code(s.current), label_of(code(s.current)), s.begun, now_, s.bytes);
    active_.erase(std::find(active_.begin(), active_.end(), next_stream_));
    changed_ = true;
    complete(s);
    while (s.at == phase::idle && !s.queue.empty()) start(s, s.queue.pop(), meeting);
  }
  void complete(stream_state& s) {
    s.at = phase::idle;
    ++s.completed;
    released_ = true;
  }
  // Lets go on what has waited for something that has just been completed or posted.
  template <class Meeting> void release(Meeting& meeting) {
    released_ = false;
    for (std::size_t k = 0; held_ > 0 && k < streams_.size(); ++k) {
      stream_state& s = streams_[k];
      if (s.at == phase::unordered) {
        post(s, meeting);
      } else if (s.at == phase::held) {
        const instruction& i = code(s.current);
        if (stream(i.other).completed < i.bytes) continue;
        --held_;
        complete(s);
        while (s.at == phase::idle && !s.queue.empty()) start(s, s.queue.pop(), meeting);
      }
    }
    if (!host_blocked_) return;
    const instruction& i = code(next_);
    if ((i.what == action::host_wait && stream(i.other).completed >= i.bytes) ||
        (i.what == action::close_stream && stream(i.stream).completed >= stream(i.stream).issued))
      unblock_host(now_);
  }

  // --- time ---

  // What ran since the last change, into the sums.
  void account() {
    const double passed = now_ - accounted_;
    accounted_ = now_;
    if (computing_ > 0)
      times_.compute_busy += passed;
    else if (transferring_ > 0 || awaited_ > 0)
      times_.exposed_transfer += passed;
    if (transferring_ > 0) times_.transfer_busy += passed;
  }
  void count(const stream_state& s, int change) {
    const instruction& i = code(s.current);
    if (i.what == action::exchange) {
      transferring_ += change;
      return;
    }
    switch (i.on) {
    case engine::compute:
    case engine::device_copy:
      computing_ += change;
      break;
    case engine::host:
      break;
    case engine::host_to_device:
    case engine::device_to_host:
    case engine::network:
      transferring_ += change;
    }
  }
  // Each of what runs goes on at the rate of the resource that is asked for most among its own.
  void settle_rates() {
    changed_ = false;
    stream_at_ = never;
    std::array<double, resource_count> asked{};
    if (active_.size() > 1)
      for (const std::uint16_t k : active_)
        if (streams_[k].at == phase::running)
          for (std::size_t r = 0; r < resource_count; ++r) asked[r] += streams_[k].running.shares[r];
    for (const std::uint16_t k : active_) {
      stream_state& s = streams_[k];
      if (s.at == phase::running) settle_rate(s, asked);
      if (s.end < stream_at_ || (s.end == stream_at_ && k < next_stream_)) {
        stream_at_ = s.end;
        next_stream_ = k;
      }
    }
  }
  void settle_rate(stream_state& s, const std::array<double, resource_count>& asked) {
    double most = 1;
    for (std::size_t r = 0; r < resource_count; ++r)
      if (s.running.shares[r] > 0) most = std::max(most, asked[r]);
    const double rate = most < 1 + 1e-12 ? 1 : 1 / most; // sums of shares are not exact
    if (rate == s.rate) return;
    s.left = std::max(0.0, s.left - (now_ - s.since) * s.rate);
    s.since = now_;
    s.rate = rate;
    s.end = now_ + s.left / rate;
  }

  const rank_program* program_;
  const cost_model* model_;
  perturbation perturbation_;
  rank_trace* trace_;
  rank_times times_;

  std::size_t next_ = 0; // instruction of the host
  double host_ = 0;      // its clock after the last one
  double host_at_ = 0;   // when the next one is issued
  bool host_blocked_ = false;

  std::vector<stream_state> streams_; // by number
  std::vector<std::uint16_t> active_; // running or awaiting
  std::vector<std::uint64_t> posted_; // exchanges, by group
  double stream_at_ = never;          // the next end or beginning, of next_stream_
  std::uint16_t next_stream_ = 0;
  int held_ = 0; // streams that are held or unordered
  int due_ = 0;  // answers that other ranks owe
  bool changed_ = false, released_ = false, has_posted_ = false;

  double now_ = 0, accounted_ = 0;
  int computing_ = 0, transferring_ = 0, awaited_ = 0;
};

} // namespace plateau::inline v0::dry
