// SPDX-License-Identifier: Apache-2.0
//
// Programs of ranks written by hand, as a recorder would have recorded them, and a machine whose figures make
// times that can be worked out by hand.
#pragma once

#include <plateau/dry_run/group_table.hpp>
#include <plateau/dry_run/hardware.hpp>
#include <plateau/dry_run/program.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace plateau_test {

namespace dry = plateau::dry;

// 1 flop or byte of anything takes one second; nothing has a latency; a node has two ranks.
inline plateau::hardware slow_machine() {
  plateau::hardware h;
  h.name = "slow";
  h.fp32_flops = 1;
  h.half_flops = 2;
  h.device_memory_bytes_per_second = 100;
  h.cache_bytes_per_second = 1000;
  h.host_to_device_bytes_per_second = 1;
  h.device_to_host_bytes_per_second = 1;
  h.host_link_bytes_per_second = 2;
  h.ranks_per_node = 2;
  h.host_memory_bytes_per_second = 200;
  h.node_link_bytes_per_second = 10;
  h.network_bytes_per_second = 1;
  return h;
}

class program_writer {
 public:
  explicit program_writer(int rank, int ranks = 1) {
    program_.rank = rank;
    std::vector<int> all;
    for (int r = 0; r < ranks; ++r) all.push_back(r);
    group("", all);
    commands_.push_back(0);
  }
  // A group of these ranks of the outermost communicator; its number.
  std::uint32_t group(const std::string& path, std::vector<int> members) {
    int mine = 0;
    for (std::size_t r = 0; r < members.size(); ++r)
      if (members[r] == program_.rank) mine = static_cast<int>(r);
    program_.groups.push_back({path, std::move(members), mine});
    return static_cast<std::uint32_t>(program_.groups.size() - 1);
  }
  std::uint16_t stream(const std::string& name) {
    commands_.push_back(0);
    const auto number = static_cast<std::uint16_t>(commands_.size() - 1);
    reopen(number, name);
    return number;
  }
  void reopen(std::uint16_t number, const std::string& name) {
    auto& i = add(dry::action::open_stream, number);
    i.name = static_cast<std::uint32_t>(program_.stream_names.size());
    program_.stream_names.push_back(name);
  }
  void close(std::uint16_t s) { add(dry::action::close_stream, s).bytes = commands_[s]; }
  // Returns what an event recorded behind it waits for: so many commands.
  std::uint64_t operation(std::uint16_t s, dry::engine on, double flops, std::uint64_t bytes,
                          const char* name = "operation", int line = 1) {
    auto& i = add(dry::action::operation, s, name, line);
    i.on = on;
    i.flops = flops;
    i.bytes = bytes;
    return ++commands_[s];
  }
  std::uint64_t compute(std::uint16_t s, double flops, const char* name = "kernel", int line = 1) {
    return operation(s, dry::engine::compute, flops, 0, name, line);
  }
  std::uint64_t wait(std::uint16_t s, std::uint16_t other, std::uint64_t count, int line = 1) {
    auto& i = add(dry::action::wait, s, "wait", line);
    i.other = other;
    i.bytes = count;
    return ++commands_[s];
  }
  void host_wait(std::uint16_t other, std::uint64_t count, bool round_trip = false, int line = 1) {
    auto& i = add(dry::action::host_wait, 0, "the host waits", line);
    i.other = other;
    i.bytes = count;
    i.round_trip = round_trip ? 1 : 0;
  }
  std::uint64_t exchange(std::uint16_t s, std::vector<dry::message> sends, std::vector<dry::message> receives,
                         const char* name = "exchange", int line = 1, std::uint32_t group = 0) {
    auto& i = add(dry::action::exchange, s, name, line);
    i.on = dry::engine::network;
    i.index = static_cast<std::uint32_t>(program_.exchanges.size());
    program_.exchanges.push_back({group, exchanges_[group]++, std::move(sends), std::move(receives)});
    return ++commands_[s];
  }
  void host_exchange(const char* name = "host_exchange", std::uint32_t group = 0) {
    add(dry::action::host_exchange, 0, name, 0).index =
        static_cast<std::uint32_t>(program_.host_exchanges.size());
    program_.host_exchanges.push_back({group, host_exchanges_[group]++, 8});
  }
  void mark(const char* name) { add(dry::action::mark, 0, name, 0); }
  void phase(const char* name) { add(dry::action::phase, 0, name, 0); }
  void memory(std::uint16_t pool, std::uint16_t tag, std::uint64_t bytes) {
    auto& i = add(dry::action::memory, tag);
    i.other = pool;
    i.bytes = bytes;
  }

  dry::rank_program& program() { return program_; }
  const dry::rank_program& program() const { return program_; }
  std::uint64_t commands(std::uint16_t s) const { return commands_[s]; }

 private:
  dry::instruction& add(dry::action what, std::uint16_t s) {
    program_.instructions.push_back({});
    program_.instructions.back().what = what;
    program_.instructions.back().stream = s;
    return program_.instructions.back();
  }
  dry::instruction& add(dry::action what, std::uint16_t s, const char* name, int line) {
    auto& i = add(what, s);
    i.name = static_cast<std::uint32_t>(program_.labels.size());
    program_.labels.push_back({name, {line == 0 ? "" : "model.cpp", line}});
    return i;
  }
  dry::rank_program program_;
  std::vector<std::uint64_t> commands_;
  std::map<std::uint32_t, std::uint64_t> exchanges_, host_exchanges_;
};

// The addresses of programs, as solve takes them.
inline std::vector<const dry::rank_program*> addresses(const std::vector<program_writer>& writers) {
  std::vector<const dry::rank_program*> list;
  for (const program_writer& w : writers) list.push_back(&w.program());
  return list;
}

} // namespace plateau_test
