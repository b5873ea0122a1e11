// SPDX-License-Identifier: Apache-2.0
//
// What an operation costs on a hardware: its seconds when it has the machine to itself, and how much of each
// resource it uses meanwhile. Operations that run at a time slow one another down where they use the same
// resource: each advances at 1 / max(1, sum of shares) of the resource that is asked for most among its own.
// So two kernels take twice as long each, while a copy in and a copy out only meet in what the host link and
// the host's memory can do together.
#pragma once

#include <plateau/config.hpp>
#include <plateau/dry_run/hardware.hpp>
#include <plateau/dry_run/program.hpp>
#include <plateau/scalar.hpp>

#include <algorithm>
#include <array>

namespace plateau::inline v0::dry {

// What the operations of one rank compete for. Host memory is this rank's part of its node's.
enum class resource : unsigned char {
  compute,
  device_memory,
  link_in,  // host to device
  link_out, // device to host
  link,     // both ways together
  host_memory,
  node_out, // to ranks of the same node
  node_in,
  network_out, // to ranks of other nodes
  network_in
};
inline constexpr std::size_t resource_count = 10;

struct cost {
  double seconds = 0;                          // alone
  std::array<double, resource_count> shares{}; // of each resource, at most 1

  double& share(resource r) { return shares[static_cast<std::size_t>(r)]; }
  double share(resource r) const { return shares[static_cast<std::size_t>(r)]; }
};

// The bytes of one exchange that pass a rank, by where they go; its flows end `seconds` after they began.
struct exchange_load {
  double seconds = 0;
  double node_out = 0, node_in = 0, network_out = 0, network_in = 0, self = 0; // bytes
};

// A factor of 1 +- amount that depends on its arguments alone: the same costs again from the same seed.
struct perturbation {
  std::uint64_t seed = 0;
  double amount = 0;

  double factor(int rank, std::uint64_t operation) const {
    if (amount == 0) return 1;
    std::uint64_t h = mix(mix(seed + 0x9e3779b97f4a7c15u) ^ static_cast<std::uint64_t>(rank));
    h = mix(h ^ operation);
    return 1 + amount * (static_cast<double>(h >> 11) * 0x1p-52 - 1);
  }

 private:
  static constexpr std::uint64_t mix(std::uint64_t x) { // splitmix64
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
};

// Seconds and shares of operations on one hardware.
class cost_model {
 public:
  // Throws config_error for an impossible figure.
  explicit cost_model(const hardware& h) : h_(h) {
    check(h);
    host_memory_ = h.host_memory_bytes_per_second / h.ranks_per_node;
  }
  const hardware& machine() const { return h_; }
  bool same_node(int rank, int other) const { return rank / h_.ranks_per_node == other / h_.ranks_per_node; }

  cost operation(const instruction& i) const {
    const auto bytes = static_cast<double>(i.bytes);
    cost c;
    switch (i.on) {
    case engine::compute: {
      const double moving = memory_seconds(bytes);
      c.seconds = std::max(i.flops / flop_rate(i.type), moving) + h_.operation_seconds;
      use(c, resource::compute, c.seconds - std::min(h_.kernel_gap_seconds, h_.operation_seconds));
      if (bytes > static_cast<double>(h_.cache_bytes)) use(c, resource::device_memory, moving);
      break;
    }
    case engine::host_to_device:
      over_link(c, bytes, resource::link_in, bytes / h_.host_to_device_bytes_per_second);
      break;
    case engine::device_to_host:
      over_link(c, bytes, resource::link_out, bytes / h_.device_to_host_bytes_per_second);
      break;
    case engine::device_copy: {
      const double moving = memory_seconds(2 * bytes); // read and written
      c.seconds = moving + h_.operation_seconds;
      if (2 * bytes > static_cast<double>(h_.cache_bytes)) use(c, resource::device_memory, moving);
      break;
    }
    case engine::host:
      c.seconds = bytes / host_memory_;
      use(c, resource::host_memory, c.seconds);
      break;
    case engine::network:
      c.seconds = bytes / h_.network_bytes_per_second + h_.network_seconds;
      use(c, resource::network_out, bytes / h_.network_bytes_per_second);
      break;
    }
    return c;
  }

  // A flow between two ranks takes as long as what the sender sends, or the receiver receives, in the same
  // exchange on links of the same kind, whichever is more, and the latency.
  double node_flow(double sender_out, double receiver_in) const {
    return std::max(sender_out, receiver_in) / h_.node_link_bytes_per_second + h_.node_link_seconds;
  }
  double network_flow(double sender_out, double receiver_in) const {
    return std::max(sender_out, receiver_in) / h_.network_bytes_per_second + h_.network_seconds;
  }
  // What a rank sends to itself is a copy within device memory.
  double self_flow(double bytes) const {
    return bytes == 0 ? 0 : memory_seconds(2 * bytes) + h_.operation_seconds;
  }
  cost exchange(const exchange_load& load) const {
    cost c;
    c.seconds = load.seconds;
    use(c, resource::node_out, load.node_out / h_.node_link_bytes_per_second);
    use(c, resource::node_in, load.node_in / h_.node_link_bytes_per_second);
    use(c, resource::network_out, load.network_out / h_.network_bytes_per_second);
    use(c, resource::network_in, load.network_in / h_.network_bytes_per_second);
    use(c, resource::device_memory,
        (load.node_out + load.node_in + load.network_out + load.network_in + 2 * load.self) /
            h_.device_memory_bytes_per_second);
    return c;
  }
  // Integers between the hosts of a group go round in ceil(log2(members)) steps.
  double host_exchange_seconds(std::size_t members) const {
    int steps = 0;
    for (std::size_t reached = 1; reached < members; reached *= 2) ++steps;
    return h_.host_exchange_seconds * steps;
  }

 private:
  double flop_rate(scalar_kind type) const {
    return type == scalar_kind::bf16 || type == scalar_kind::fp16 ? h_.half_flops : h_.fp32_flops;
  }
  double memory_seconds(double bytes) const {
    return bytes / (bytes > static_cast<double>(h_.cache_bytes) ? h_.device_memory_bytes_per_second
                                                                : h_.cache_bytes_per_second);
  }
  // The slowest of what the bytes pass through sets the time.
  void over_link(cost& c, double bytes, resource way, double way_seconds) const {
    const double link = bytes / h_.host_link_bytes_per_second, host = bytes / host_memory_,
                 device = bytes / h_.device_memory_bytes_per_second;
    c.seconds = std::max({way_seconds, link, host, device}) + h_.copy_seconds;
    use(c, way, way_seconds);
    use(c, resource::link, link);
    use(c, resource::host_memory, host);
    use(c, resource::device_memory, device);
  }
  static void use(cost& c, resource r, double busy_seconds) {
    if (c.seconds > 0) c.share(r) = std::min(1.0, busy_seconds / c.seconds);
  }

  hardware h_;
  double host_memory_ = 0;
};

} // namespace plateau::inline v0::dry
