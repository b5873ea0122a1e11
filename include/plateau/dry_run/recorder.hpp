// SPDX-License-Identifier: Apache-2.0
//
// One rank of a dry run: everything that its backend and its communicators are asked goes through here, into
// the program that a timeline is made from, and past the order check. One host thread at a time.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/dry_run/access_range.hpp>
#include <plateau/dry_run/finding.hpp>
#include <plateau/dry_run/label_table.hpp>
#include <plateau/dry_run/memory_peaks.hpp>
#include <plateau/dry_run/options.hpp>
#include <plateau/dry_run/order_check.hpp>
#include <plateau/dry_run/program.hpp>
#include <plateau/dry_run/virtual_memory.hpp>
#include <plateau/error.hpp>
#include <plateau/exchange.hpp>
#include <plateau/meter.hpp>
#include <plateau/working_set.hpp>

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace plateau::inline v0::dry {

// What an operation costs, whatever the machine.
struct demand {
  engine on = engine::compute;
  double flops = 0; // of matrix products, whose operands are of this type
  scalar_kind type = scalar_kind::none;
  std::uint64_t bytes = 0; // read and written
};

// Everything issued to a stream up to some point; a default one is done.
struct event {
  static constexpr std::uint16_t nothing = 0; // the host's own thread is no stream that one waits for

  std::uint16_t stream = nothing;
  std::uint64_t commands = 0;
  clock_ref clock{};
};

class recorder final : public memory_listener {
 public:
  // `owner` names the rank in errors ("rank 2"); it must outlive the recorder.
  explicit recorder(const char* owner = "", int rank = 0, dry_options options = {})
      : owner_(owner), options_(std::move(options)), labels_(program_.labels) {
    program_.rank = rank;
    if (options_.only_rank >= 0 && options_.only_rank != rank)
      options_.drop_wait = options_.throw_at = dry_options::never;
    commands_.push_back(0);
    for (const memory_kind pool : {memory_kind::device, memory_kind::pinned_host})
      observers_[static_cast<std::size_t>(pool)] = {*this, pool};
  }
  recorder(const recorder&) = delete;
  recorder& operator=(const recorder&) = delete;

  const char* owner() const { return owner_; }
  int rank() const { return program_.rank; }
  const rank_program& program() const { return program_; }
  const dry_options& options() const { return options_; }
  meter_observer& observer(memory_kind pool) { return observers_[static_cast<std::size_t>(pool)]; }

  // --- streams and events ---

  std::uint16_t open_stream(const char* name) {
    const std::uint16_t s = number_for(name);
    if (options_.check_order) order_.opened(s);
    if (options_.record_program) {
      instruction& i = add(action::open_stream, s);
      i.name = static_cast<std::uint32_t>(program_.stream_names.size());
      program_.stream_names.emplace_back(name);
    }
    return s;
  }
  // The host waits for all that was issued.
  void close_stream(std::uint16_t s) {
    if (options_.check_order) order_.closed(s);
    if (options_.record_program) add(action::close_stream, s).bytes = commands_[at(s)];
    closed_.push_back(s);
  }
  const std::string& name_of(std::uint16_t s) const { return s == 0 ? host_ : names_[at(s) - 1]; }

  event record(std::uint16_t s) {
    return {s, commands_[at(s)], options_.check_order ? order_.record(s) : clock_ref{}};
  }
  // `waiter` goes on when the event is done; the host, where waiter is 0. Waits that cannot matter, for
  // nothing or for the waiter itself, are not counted.
  void wait(std::uint16_t waiter, const event& e, source_line place, bool round_trip = false) {
    if (e.stream == event::nothing || e.stream == waiter) return;
    if (waits_++ == options_.drop_wait) {
      dropped_ = place;
      return;
    }
    if (options_.check_order) order_.wait(waiter, e.clock);
    if (waiter != 0) ++commands_[at(waiter)];
    if (!options_.record_program) return;
    instruction& i = add(waiter == 0 ? action::host_wait : action::wait, waiter);
    i.other = e.stream;
    i.bytes = e.commands;
    i.name = labels_.number_of(waiter == 0 ? "the host waits" : "wait", place);
    i.round_trip = round_trip ? 1 : 0;
  }
  // So many waits were asked for that may matter, and where the one was that was dropped.
  std::uint64_t waits() const { return waits_; }
  std::optional<source_line> dropped() const { return dropped_; }

  // --- operations ---

  // On stream `s`, or by the host itself at once (0). `name` lives for the whole program.
  void issue(std::uint16_t s, source_line place, const char* name, const demand& d,
             std::span<const access_range> touched) {
    const std::uint32_t label_number = begin(s, place, name, touched);
    if (s == 0) return;
    ++commands_[at(s)];
    if (!options_.record_program) return;
    instruction& i = add(action::operation, s);
    i.name = label_number;
    i.on = d.on;
    i.type = d.type;
    i.flops = d.flops;
    i.bytes = d.bytes;
  }
  // So many operations were issued, exchanges among them.
  std::uint64_t operations() const { return operations_; }

  // --- communicators ---

  // Number of a communicator of this rank, for what follows.
  std::uint32_t add_group(group_record g) {
    program_.groups.push_back(std::move(g));
    return static_cast<std::uint32_t>(program_.groups.size() - 1);
  }
  // `index` among the exchanges of the group.
  void exchange(std::uint16_t s, source_line place, const char* what, std::uint32_t group,
                std::uint64_t index, send_list sends, receive_list receives) {
    touched_.clear();
    for (const send_op& o : sends)
      touched_.push_back({detail::address_of(o.p), o.bytes, 1, 0, 1, 0, touch::read});
    for (const receive_op& o : receives)
      touched_.push_back({detail::address_of(o.p), o.bytes, 1, 0, 1, 0, touch::write});
    const std::uint32_t label_number = begin(s, place, what, touched_);
    ++commands_[at(s)];
    if (!options_.record_program) return;
    instruction& i = add(action::exchange, s);
    i.on = engine::network;
    i.name = label_number;
    i.index = static_cast<std::uint32_t>(program_.exchanges.size());
    exchange_record& record = program_.exchanges.emplace_back();
    record.group = group;
    record.index = index;
    for (const send_op& o : sends)
      if (o.bytes != 0) record.sends.push_back({o.peer, o.bytes});
    for (const receive_op& o : receives)
      if (o.bytes != 0) record.receives.push_back({o.peer, o.bytes});
  }
  // Call it before the ranks' threads meet, so that a rank whose peers never come has it as its last word.
  void host_exchange(const char* what, std::uint32_t group, std::uint64_t index, std::size_t bytes) {
    if (!options_.record_program) return;
    instruction& i = add(action::host_exchange, 0);
    i.name = labels_.number_of(what, {});
    i.index = static_cast<std::uint32_t>(program_.host_exchanges.size());
    program_.host_exchanges.push_back({group, index, bytes});
  }
  void ended_by(failure why) { program_.ended_by = std::move(why); }

  // A moment of the host's clock that the program wants to know; `name` lives for the whole program.
  void mark(const char* name) {
    if (options_.record_program) add(action::mark, 0).name = labels_.number_of(name, {});
  }

  // --- memory ---

  void allocated(std::uintptr_t address, std::size_t bytes, const char* space, tag t) override {
    if (options_.check_order) order_.allocated(address, bytes, space, t);
  }
  void freed(std::uintptr_t address) noexcept override {
    if (options_.check_order) order_.freed(address);
  }
  void retired(std::uintptr_t address, std::size_t bytes) noexcept override {
    if (options_.check_order) order_.retired(address, bytes);
  }
  void adopted(const void* p, std::size_t bytes, std::uint16_t s) {
    if (options_.check_order && bytes != 0) order_.adopted(detail::address_of(p), bytes, s);
  }

  // What a backend's meter has seen, kept beyond the backend's life. Of the last backend, if a rank had
  // several.
  void keep_peaks(memory_kind pool, const meter& m) {
    peaks_[static_cast<std::size_t>(pool)] = memory_peaks::of(m);
  }
  const memory_peaks& peaks(memory_kind pool) const { return peaks_[static_cast<std::size_t>(pool)]; }

  // --- what was found ---

  const std::vector<finding>& findings() const { return order_.findings(); }
  // How many there are; more than findings() keeps, perhaps.
  std::uint64_t found() const { return order_.found(); }
  // The sentence of a finding.
  std::string text_of(const finding& f) const {
    return error_prefix(owner_) + dry::text_of(f, [this](const operation_ref& o) { return describe(o); });
  }

 private:
  struct pool_observer final : meter_observer {
    pool_observer() = default;
    pool_observer(recorder& r, memory_kind k) : of(&r), pool(k) {}
    void held(tag t, std::size_t bytes) noexcept override {
      if (!of->options_.record_program) return;
      instruction& i = of->add(action::memory, static_cast<std::uint16_t>(t));
      i.other = static_cast<std::uint16_t>(pool);
      i.bytes = bytes;
    }
    void phase(const char* name) noexcept override {
      if (of->options_.record_program && pool == memory_kind::device)
        of->add(action::phase, 0).name = of->labels_.number_of(name, {});
    }
    recorder* of = nullptr;
    memory_kind pool = memory_kind::device;
  };

  static std::size_t at(std::uint16_t s) { return s; }
  // A number is used again for the same name only, so that findings name streams that have gone.
  std::uint16_t number_for(const char* name) {
    const auto again =
        std::find_if(closed_.begin(), closed_.end(), [&](std::uint16_t s) { return name_of(s) == name; });
    if (again != closed_.end()) {
      const std::uint16_t s = *again;
      closed_.erase(again);
      return s;
    }
    if (commands_.size() > std::numeric_limits<std::uint16_t>::max())
      throw backend_error(error_prefix(owner_) + "make_stream('" + name + "'): a dry run has at most " +
                          std::to_string(commands_.size() - 1) + " streams");
    commands_.push_back(0);
    names_.emplace_back(name);
    return static_cast<std::uint16_t>(commands_.size() - 1);
  }
  instruction& add(action what, std::uint16_t s) {
    instruction& i = program_.instructions.emplace_back();
    i.what = what;
    i.stream = s;
    return i;
  }
  // Counts the operation, fails if it is the one that shall, and checks what it touches.
  std::uint32_t begin(std::uint16_t s, source_line place, const char* name,
                      std::span<const access_range> touched) {
    const std::uint64_t number = operations_++;
    if (number == options_.throw_at)
      throw backend_error(error_prefix(owner_) + "'" + name + "' " + place_of(s) + place.text() +
                          ": operation " + std::to_string(number) + " fails, as the dry run was told");
    if (!options_.check_order && !options_.record_program) return 0;
    const std::uint32_t label_number = labels_.number_of(name, place);
    if (options_.check_order) order_.operation({number, label_number, s}, touched);
    return label_number;
  }
  std::string describe(const operation_ref& o) const {
    const label& l = program_.labels[o.name];
    return "'" + std::string(l.name) + "' (operation " + std::to_string(o.number) + ") " +
           place_of(o.stream) + l.at.text();
  }
  std::string place_of(std::uint16_t s) const {
    return s == 0 ? std::string("of the host") : "on stream '" + name_of(s) + "'";
  }

  const char* owner_;
  dry_options options_;
  rank_program program_;
  label_table labels_;
  order_check order_;
  const std::string host_ = "the host";
  std::vector<std::string> names_;      // of streams, from number 1 on
  std::vector<std::uint64_t> commands_; // of each stream
  std::vector<std::uint16_t> closed_;   // numbers that may be used again
  std::vector<access_range> touched_;
  std::uint64_t operations_ = 0, waits_ = 0;
  std::optional<source_line> dropped_;
  pool_observer observers_[2];
  memory_peaks peaks_[2];
};

} // namespace plateau::inline v0::dry
