// SPDX-License-Identifier: Apache-2.0
//
// This machine as a hardware for the timeline, measured in a second or two with the host backend: what one
// stream reaches, what the memory gives to several, what an operation, an exchange and a launch cost. Ranks
// share cores and memory, and are given even parts: a core is one stream's, whatever the other streams do.
// It is a guide to what a run of the same program will take here, not a promise: neighbours on the machine
// are in the figures of the moment.
#pragma once

#include <plateau/config.hpp>
#include <plateau/dry_run/hardware.hpp>
#include <plateau/error.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/resource.hpp>
#include <plateau/run_ranks.hpp>
#include <plateau/scalar.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace plateau::inline v0 {

namespace detail {

// Seconds of one call of f: the median of some repeats, as many as fit into the budget, at least three.
template <class F> double median_seconds(double budget_seconds, F&& f) {
  using clock = std::chrono::steady_clock;
  std::vector<double> each;
  f(); // touches memory, wakes threads
  for (double spent = 0; each.size() < 3 || (spent < budget_seconds && each.size() < 1000);) {
    const auto begun = clock::now();
    f();
    each.push_back(std::chrono::duration<double>(clock::now() - begun).count());
    spent += each.back();
  }
  std::nth_element(each.begin(), each.begin() + static_cast<std::ptrdiff_t>(each.size() / 2), each.end());
  return std::max(each[each.size() / 2], 1e-9);
}

struct touch_kernel {
  template <class V> PLATEAU_HD void operator()(index_t i, V v) const { v[i] = 0; }
};

class host_measurement {
 public:
  // Of a matrix product by one stream, a second.
  template <class T> double flops() {
    constexpr index_t n = 384;
    device_buffer<T, host_backend> a(backend_.device(), n * n, tag::other),
        b(backend_.device(), n * n, tag::other);
    device_buffer<float, host_backend> c(backend_.device(), n * n, tag::other);
    const auto scratch_bytes =
        host_backend::gemm_scratch_bytes<T, T, float>(transpose::no, transpose::no, n, n, n);
    device_buffer<unsigned char, host_backend> scratch(
        backend_.device(), static_cast<index_t>(std::max<std::size_t>(scratch_bytes, 1)), tag::other);
    std::memset(a.data(), 0, a.bytes());
    std::memset(b.data(), 0, b.bytes());
    auto stream = backend_.make_stream("measure");
    const double seconds = median_seconds(0.15, [&] {
      backend_.gemm(stream, transpose::no, transpose::no, 1.0f, in(a.matrix(n, n)), in(b.matrix(n, n)), 0.0f,
                    out(c.matrix(n, n)), scratch.all());
      backend_.wait(backend_.record(stream));
    });
    return 2.0 * n * n * n / seconds;
  }
  // Of copies by so many streams at a time, each from and to so many bytes of its own: bytes copied a second.
  double copy_rate(std::size_t streams, index_t bytes, int copies) {
    using bytes_buffer = device_buffer<unsigned char, host_backend>;
    std::vector<bytes_buffer> from, to;
    for (std::size_t s = 0; s < streams; ++s)
      for (auto* list : {&from, &to}) {
        list->emplace_back(backend_.device(), bytes, tag::other);
        std::memset(list->back().data(), 0, list->back().bytes());
      }
    std::vector<host_backend::stream> lanes;
    for (std::size_t s = 0; s < streams; ++s) lanes.push_back(backend_.make_stream("measure"));
    const double seconds = median_seconds(0.15, [&] {
      for (int c = 0; c < copies; ++c)
        for (std::size_t s = 0; s < streams; ++s)
          backend_.copy(lanes[s], in(from[s].all()), out(to[s].all()));
      for (auto& lane : lanes) backend_.wait(backend_.record(lane));
    });
    return static_cast<double>(bytes) * static_cast<double>(streams) * copies / seconds;
  }
  // Of one operation that does next to nothing: the host's part, and all of it.
  std::array<double, 2> small_operation() {
    device_buffer<float, host_backend> v(backend_.device(), 1, tag::other);
    auto stream = backend_.make_stream("measure");
    double issued = 0;
    constexpr int operations = 32; // fewer than the stream's ring has room for
    int calls = 0;
    const double all = median_seconds(0.1, [&] {
      const auto begun = std::chrono::steady_clock::now();
      for (int i = 0; i < operations; ++i) backend_.launch(stream, elements{1}, touch_kernel{}, out(v.all()));
      issued += std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
      ++calls;
      backend_.wait(backend_.record(stream));
    });
    return {issued / calls / operations, all / operations};
  }

 private:
  host_backend backend_;
};

struct exchange_figures {
  double bytes_per_second = 0, seconds = 0, host_seconds = 0;
};
// Between two ranks that are threads.
inline exchange_figures measure_exchange() {
  exchange_figures figures;
  run_ranks(2, [&](thread_communicator& comm) {
    constexpr index_t most = index_t{4} << 20;
    host_backend backend;
    device_buffer<unsigned char, host_backend> sent(backend.device(), most, tag::other),
        received(backend.device(), most, tag::other);
    std::memset(sent.data(), 0, sent.bytes());
    std::memset(received.data(), 0, received.bytes());
    auto stream = backend.make_stream("measure");
    const int peer = 1 - comm.rank();
    const auto seconds_of = [&](index_t bytes, int repeats) {
      return median_seconds(0,
                            [&] {
                              for (int i = 0; i < repeats; ++i)
                                comm.exchange(stream, {send_to(peer, sent.first(bytes))},
                                              {receive_from(peer, received.first(bytes))}, "measure");
                              backend.wait(backend.record(stream));
                            }) /
             repeats;
    };
    const double little = seconds_of(8, 64), large = seconds_of(most, 16);
    constexpr int host_exchanges = 64;
    const double host = median_seconds(0,
                                       [&] {
                                         std::array<std::int64_t, 1> mine{};
                                         std::array<std::int64_t, 2> all{};
                                         for (int i = 0; i < host_exchanges; ++i)
                                           comm.host_exchange(mine, all, "measure");
                                       }) /
                        host_exchanges;
    if (comm.rank() == 0)
      figures = {static_cast<double>(most) / std::max(large - little, 0.1 * large), little, host};
  });
  return figures;
}

} // namespace detail

// This machine with `ranks` of a program on it, all of them one node. Takes about a second and 130 MB, and
// wants the machine for itself. Throws config_error for less than one rank, backend_error where threads
// cannot be started.
inline hardware measure_host(int ranks) {
  if (ranks < 1)
    throw config_error("plateau: measure_host: " + std::to_string(ranks) +
                       " ranks; there must be at least 1");
  const double cores = std::max(1u, std::thread::hardware_concurrency());
  const double core_share = std::min(1.0, cores / ranks); // of one core, for each rank
  detail::host_measurement measure;
  hardware h;
  h.name = "this host";
  h.fp32_flops = core_share * measure.flops<float>();
  h.half_flops = core_share * measure.flops<bfloat16>();

  constexpr index_t large = index_t{32} << 20, little = index_t{128} << 10;
  const double one = measure.copy_rate(1, large, 1);
  const double several = cores < 2 ? one : std::max(one, measure.copy_rate(2, large, 1));
  const double each = std::min(one * core_share, several / ranks);
  h.host_to_device_bytes_per_second = h.device_to_host_bytes_per_second = each;
  h.host_link_bytes_per_second = std::min(2 * each, several / ranks);
  h.host_memory_bytes_per_second = several;
  h.device_memory_bytes_per_second = 2 * each; // a copy reads and writes
  h.cache_bytes = 4 * little;
  h.cache_bytes_per_second =
      std::max(2 * core_share * measure.copy_rate(1, little, 64), h.device_memory_bytes_per_second);

  const auto [launch, operation] = measure.small_operation();
  h.launch_seconds = launch / core_share;
  h.operation_seconds = h.copy_seconds = operation / core_share;
  const detail::exchange_figures exchange = detail::measure_exchange();
  h.ranks_per_node = ranks;
  h.node_link_bytes_per_second = h.network_bytes_per_second =
      std::min(1.0, cores / std::max(ranks, 2)) * exchange.bytes_per_second;
  h.node_link_seconds = h.network_seconds = exchange.seconds / core_share;
  h.host_exchange_seconds = exchange.host_seconds / core_share;
  check(h);
  return h;
}

} // namespace plateau::inline v0
