// SPDX-License-Identifier: Apache-2.0
//
// Field reports of losses over a split vocabulary that are about sizes and types: more than 2^31 elements of
// weights, on ranks without data, and sums in bf16.
#include "support/ring_cases.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace pl = plateau;
using pl::bfloat16, pl::index_t, pl::reduction, pl::rotation;
using support::ring_case, support::values_of, support::run_ring, support::check_ring;

TEST_CASE("V5: 256,000 x 12,288 weights: offsets are 64 bits wide, in the shard and in the ring") {
  for (const rotation r : {rotation::activations, rotation::weights}) {
    ring_case c;
    c.tokens = {700, 1000};
    c.shards = {256000 - 7, 7};
    c.shape.hidden = 12288;
    c.shape.tile = {512, 32768};
    c.shape.hop_rows = 65536;
    c.shape.rotate = r;
    c.shape.frozen_inputs = true;
    // No values: the arrays are only addresses.
    const support::ring_values<bfloat16> none{};
    pl::dry_ranks ran;
    const auto result = run_ring<bfloat16>(c, none, support::without_data<>{{}, &ran});
    REQUIRE_FALSE(ran.cause.has_value());
    for (const std::string& each : ran.findings()) FAIL_CHECK(each);
    std::uint64_t flops = 0;
    for (const pl::counters& w : result.work) flops += w.matrix_flops;
    CHECK(flops == 3 * 2 * std::uint64_t{1700} * 256000 * 12288);
  }
}

TEST_CASE("V10: 8,192 x 128 in bf16, 32 classes: errors do not grow with the number of tiles and hops") {
  ring_case c;
  c.tokens = {4096, 4096};
  c.shards = {16, 16};
  c.shape.hidden = 128;
  c.shape.options.reduction = reduction::sum;
  const auto values = values_of<bfloat16>(c);
  reference::vec factor(8192, 0.75);
  const auto expected = oracle_of(c, values).backward(factor);
  double worst[2] = {};
  int i = 0;
  for (const index_t tile : {4096, 64}) {
    for (const rotation r : {rotation::activations, rotation::weights}) {
      c.shape.rotate = r;
      c.wide_dx = r == rotation::weights;
      c.shape.tile = {tile, tile / 8};
      c.shape.hop_rows = tile;
      const auto result = run_ring<bfloat16>(c, values, support::on_threads<>{});
      worst[i] = std::max(worst[i], support::relative_distance(result.dweight, expected.weight));
      if (c.wide_dx)
        CHECK(support::relative_distance(result.wide_dx, expected.x) < 0x1p-9);
      else
        CHECK(support::relative_distance(result.dx, expected.x) < 0x1p-8);
    }
    ++i;
  }
  CHECK(worst[0] < 0x1p-9); // the rounding of one logit gradient, and less, since they differ in sign
  CHECK(worst[1] < 1.05 * worst[0]);
}

namespace {
// Either side rotating, odd sizes, one rounding of every gradient.
template <class T> void check_rounding() {
  for (const rotation r : {rotation::activations, rotation::weights})
    for (const bool wide : {false, true}) {
      ring_case c;
      c.tokens = {5, 0, 14};
      c.shards = {19, 1, 12};
      c.shape.hidden = 13;
      c.shape.tile = {4, 5};
      c.shape.hop_rows = 6;
      c.shape.rotate = r;
      c.shape.bias = true;
      c.wide_dx = wide;
      c.shape.input_gradient_accumulator = !wide; // matters where weights rotate
      const auto values = values_of<T>(c);
      const auto result = run_ring<T>(c, values, support::on_threads<>{});
      check_ring(c, values, result);
      if (wide) continue;
      c.wide_dx = true;
      c.shape.input_gradient_accumulator = false;
      const auto unrounded = run_ring<T>(c, values, support::on_threads<>{});
      std::vector<T> once;
      for (const float x : unrounded.wide_dx) once.push_back(T(x));
      CHECK(support::same_bits(result.dx, once));
    }
}
} // namespace

TEST_CASE("bf16 and fp16: either side rotating, odd sizes, one rounding of every gradient") {
  check_rounding<bfloat16>();
  check_rounding<pl::half>();
}

TEST_CASE("ranks with other types, shapes or options are told of both, on every rank") {
  pl::cross_entropy_shape shape;
  shape.tokens = 4;
  shape.hidden = 3;
  shape.vocabulary = 10;
  const auto fails = [](auto f) {
    std::string text;
    const auto ends = pl::run_ranks_collecting(2, [&](pl::thread_communicator& comm) {
      pl::host_backend backend;
      pl::workspace<pl::host_backend> space(backend, pl::reservation{1 << 20, 1 << 10});
      f(comm, backend, space);
    });
    for (const auto& end : ends) {
      REQUIRE(end.has_value());
      if (text.empty()) text = end->text;
      CHECK(end->text == text);
    }
    return text;
  };
  const auto make = [](auto type, auto& comm, auto& backend, auto& space, const pl::cross_entropy_shape& s) {
    pl::linear_cross_entropy<pl::host_backend, pl::thread_communicator, decltype(type)> loss(backend, comm, s,
                                                                                             space);
  };
  const auto has = [](const std::string& text, const char* part) {
    CAPTURE(text);
    CHECK(text.find(part) != std::string::npos);
  };
  const auto types = fails([&](auto& comm, auto& backend, auto& space) {
    if (comm.rank() == 0)
      make(0.0F, comm, backend, space, shape);
    else
      make(bfloat16(0.0F), comm, backend, space, shape);
  });
  has(types, "rank 1 has bf16, targets int32, tokens 4");
  has(types, "rank 0 has fp32, targets int32, tokens 4");
  has(fails([&](auto& comm, auto& backend, auto& space) {
        auto s = shape;
        s.hidden += comm.rank();
        make(0.0F, comm, backend, space, s);
      }),
      "rank 1 has fp32, targets int32, tokens 4, hidden 4");
  has(fails([&](auto& comm, auto& backend, auto& space) {
        auto s = shape;
        if (comm.rank() == 1) s.options.smoothing = -0.5F;
        make(0.0F, comm, backend, space, s);
      }),
      "smoothing must be in [0, 1], got -0.5");
  has(fails([&](auto& comm, auto& backend, auto& space) {
        auto s = shape;
        if (comm.rank() == 1) s.hidden = 1 << 20;
        make(0.0F, comm, backend, space, s);
      }),
      "the workspace has");
  // It can be tried again.
  pl::run_ranks(2, [&](pl::thread_communicator& comm) {
    pl::host_backend backend;
    pl::workspace<pl::host_backend> space(backend, pl::reservation{1 << 20, 1 << 10});
    auto s = shape;
    s.hidden += comm.rank();
    CHECK_THROWS_AS(make(0.0F, comm, backend, space, s), pl::collective_error);
    make(0.0F, comm, backend, space, shape);
  });
}
