// SPDX-License-Identifier: Apache-2.0
//
// Costs alone and shares, worked out by hand on a machine of round figures.
#include <plateau/dry_run/cost.hpp>

#include "support/rank_programs.hpp"

#include <doctest/doctest.h>

#include <cmath>

namespace {

namespace pl = plateau;
namespace dry = plateau::dry;
using dry::resource;
using plateau_test::slow_machine;

dry::instruction op(dry::engine on, double flops, std::uint64_t bytes,
                    pl::scalar_kind type = pl::scalar_kind::fp32) {
  dry::instruction i;
  i.on = on;
  i.flops = flops;
  i.bytes = bytes;
  i.type = type;
  return i;
}

TEST_CASE("a kernel takes what its products or its bytes take, whichever is more, and the least time") {
  pl::hardware h = slow_machine();
  h.operation_seconds = 0.5;
  h.cache_bytes = 1000;
  const dry::cost_model m(h);
  CHECK(m.operation(op(dry::engine::compute, 4, 0)).seconds == 4.5);
  CHECK(m.operation(op(dry::engine::compute, 4, 0, pl::scalar_kind::bf16)).seconds == 2.5);
  CHECK(m.operation(op(dry::engine::compute, 4, 0, pl::scalar_kind::fp16)).seconds == 2.5);
  CHECK(m.operation(op(dry::engine::compute, 4, 0, pl::scalar_kind::fp64)).seconds == 4.5);
  // 100 bytes a second from memory, 1000 from the cache.
  CHECK(m.operation(op(dry::engine::compute, 0, 2000)).seconds == 20.5);
  CHECK(m.operation(op(dry::engine::compute, 0, 1000)).seconds == 1.5);
  const dry::cost c = m.operation(op(dry::engine::compute, 40, 2000));
  CHECK(c.seconds == 40.5);
  CHECK(c.share(resource::compute) == 1);
  CHECK(c.share(resource::device_memory) == doctest::Approx(20 / 40.5));
  CHECK(m.operation(op(dry::engine::compute, 4, 1000)).share(resource::device_memory) == 0);
  h.kernel_gap_seconds = 0.25; // which another stream's kernel can use
  CHECK(dry::cost_model(h).operation(op(dry::engine::compute, 4, 0)).seconds == 4.5);
  CHECK(dry::cost_model(h).operation(op(dry::engine::compute, 4, 0)).share(resource::compute) ==
        doctest::Approx(4.25 / 4.5));
}

TEST_CASE("a copy takes what the slowest thing takes that it passes through") {
  pl::hardware h =
      slow_machine(); // 1 byte a second each way, 2 together, host memory 100 for each of 2 ranks
  h.copy_seconds = 1;
  dry::cost in = dry::cost_model(h).operation(op(dry::engine::host_to_device, 0, 9));
  CHECK(in.seconds == 10);
  CHECK(in.share(resource::link_in) == doctest::Approx(0.9));
  CHECK(in.share(resource::link) == doctest::Approx(0.45));
  CHECK(in.share(resource::host_memory) == doctest::Approx(0.009));
  CHECK(in.share(resource::link_out) == 0);
  CHECK(in.share(resource::compute) == 0);
  dry::cost out = dry::cost_model(h).operation(op(dry::engine::device_to_host, 0, 9));
  CHECK(out.seconds == 10);
  CHECK(out.share(resource::link_out) == doctest::Approx(0.9));
  CHECK(out.share(resource::link_in) == 0);
  h.host_memory_bytes_per_second = 1; // half a byte a second for each rank
  in = dry::cost_model(h).operation(op(dry::engine::host_to_device, 0, 9));
  CHECK(in.seconds == 19);
  CHECK(in.share(resource::host_memory) == doctest::Approx(18.0 / 19));
}

TEST_CASE("a copy on the device reads and writes; host code has its share of the host's memory") {
  const dry::cost_model m(slow_machine());
  const dry::cost copy = m.operation(op(dry::engine::device_copy, 0, 50));
  CHECK(copy.seconds == 1);
  CHECK(copy.share(resource::device_memory) == 1);
  CHECK(copy.share(resource::compute) == 0);
  pl::hardware h = slow_machine();
  h.cache_bytes = 100;
  const dry::cost cached = dry::cost_model(h).operation(op(dry::engine::device_copy, 0, 50));
  CHECK(cached.seconds == 0.1);
  CHECK(cached.share(resource::device_memory) == 0);
  const dry::cost host = m.operation(op(dry::engine::host, 0, 300));
  CHECK(host.seconds == 3);
  CHECK(host.share(resource::host_memory) == 1);
}

TEST_CASE("exchanges: flows, what they use, and steps between hosts") {
  pl::hardware h = slow_machine();
  h.node_link_seconds = 0.25;
  h.network_seconds = 0.5;
  h.host_exchange_seconds = 2;
  const dry::cost_model m(h);
  CHECK(m.node_flow(20, 10) == 2.25);
  CHECK(m.node_flow(10, 30) == 3.25);
  CHECK(m.network_flow(2, 1) == 2.5);
  CHECK(m.self_flow(0) == 0);
  CHECK(m.self_flow(100) == 2);
  CHECK(m.host_exchange_seconds(1) == 0);
  CHECK(m.host_exchange_seconds(2) == 2);
  CHECK(m.host_exchange_seconds(3) == 4);
  CHECK(m.host_exchange_seconds(4) == 4);
  CHECK(m.host_exchange_seconds(5) == 6);
  CHECK(m.same_node(0, 1));
  CHECK(!m.same_node(1, 2));
  dry::exchange_load load;
  load.seconds = 4;
  load.node_out = 20;
  load.network_in = 1;
  const dry::cost c = m.exchange(load);
  CHECK(c.seconds == 4);
  CHECK(c.share(resource::node_out) == 0.5);
  CHECK(c.share(resource::network_in) == 0.25);
  CHECK(c.share(resource::node_in) == 0);
  CHECK(c.share(resource::device_memory) == doctest::Approx(21.0 / 100 / 4));
}

TEST_CASE("a perturbation is the same for the same arguments, within its bounds, and spread evenly") {
  const dry::perturbation p{7, 0.25};
  double sum = 0, least = 2, most = 0;
  for (std::uint64_t i = 0; i < 10000; ++i) {
    const double f = p.factor(3, i);
    CHECK(f == dry::perturbation{7, 0.25}.factor(3, i));
    sum += f;
    least = std::min(least, f);
    most = std::max(most, f);
  }
  CHECK(least >= 0.75);
  CHECK(most <= 1.25);
  CHECK(least < 0.76);
  CHECK(most > 1.24);
  CHECK(std::abs(sum / 10000 - 1) < 0.01);
  CHECK(p.factor(3, 5) != p.factor(4, 5));
  CHECK(p.factor(3, 5) != dry::perturbation{8, 0.25}.factor(3, 5));
  CHECK(dry::perturbation{}.factor(3, 5) == 1);
}

TEST_CASE("an impossible machine has no costs") {
  pl::hardware h = slow_machine();
  h.fp32_flops = 0;
  CHECK_THROWS_AS(dry::cost_model{h}, pl::config_error);
}

} // namespace
