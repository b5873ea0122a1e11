// SPDX-License-Identifier: Apache-2.0
//
// The fused projection and cross-entropy on ranks as threads against float64: either side rotating, shards
// and tokens dealt unevenly or not at all to some ranks, off every tile, every option. And what must not
// matter, or must always hold: the number of ranks, a shift of all logits, which backward comes first; that
// logit gradients add up to nothing.
#include "support/ring_cases.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <random>
#include <vector>

namespace pl = plateau;
using pl::index_t, pl::rotation, pl::reduction;
using support::ring_case, support::values_of, support::run_ring, support::check_ring, support::same_bits;

namespace {

using threads = support::on_threads<>;
constexpr rotation both[] = {rotation::activations, rotation::weights};

// Off every tile and sub-block.
ring_case small_case(std::vector<index_t> tokens, std::vector<index_t> shards, rotation rotate) {
  ring_case c;
  c.tokens = std::move(tokens);
  c.shards = std::move(shards);
  c.shape.hidden = 13;
  c.shape.tile = {4, 5};
  c.shape.hop_rows = 6;
  c.shape.rotate = rotate;
  return c;
}
template <class T> void check(const ring_case& c) {
  CAPTURE(c.ranks());
  CAPTURE(static_cast<int>(c.shape.rotate));
  const auto values = values_of<T>(c);
  check_ring(c, values, run_ring<T>(c, values, threads{}));
}

// n dealt to the ranks at random, some of which may get nothing.
std::vector<index_t> deal(std::mt19937& source, index_t n, int ranks) {
  std::vector<index_t> parts(static_cast<std::size_t>(ranks));
  for (index_t i = 0; i < n; ++i) ++parts[source() % parts.size() * (source() % 3 != 0)];
  return parts;
}
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  return support::relative_distance(a, support::widened(b));
}
double largest(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    most = std::max(most, std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return most;
}

} // namespace

TEST_CASE("V2, V6, V9: 1, 2, 3 and 5 ranks, uneven, some with nothing: all of it agrees with float64") {
  for (const rotation r : both) {
    check<float>(small_case({17}, {23}, r));
    check<float>(small_case({17, 9}, {11, 12}, r));
    check<float>(small_case({5, 14, 7}, {3, 19, 1}, r));
    check<float>(small_case({0, 14, 7}, {23, 0, 8}, r));
    check<float>(small_case({3, 0, 11, 0, 6}, {0, 9, 0, 14, 7}, r));
    check<float>(small_case({0, 0, 4}, {0, 0, 23}, r));
  }
}

TEST_CASE("every option, one by one and together, in both modes, one tile or two in flight") {
  for (int mode = 0; mode < 3; ++mode)
    for (int option = 0; option < 10; ++option) {
      CAPTURE(mode);
      CAPTURE(option);
      ring_case c = small_case({8, 0, 13}, {10, 7, 6}, both[mode % 2]);
      c.shape.tiles_in_flight = 1 + option % 2;
      if (mode == 2) {
        c.tokens = {21}, c.shards = {23};
        c.shape.one_pass = true;
        c.shape.strip_rows = 6;
        c.shape.tiles_in_flight = 1;
        c.in_place = option % 2 == 1;
      }
      const bool all = option == 9;
      c.seed = static_cast<std::uint64_t>(10 * option + 1);
      if (option == 0 || all) c.shape.options.smoothing = 0.125F;
      if (option == 1 || all) c.shape.options.z_loss = 0.01F;
      if (option == 2 || all) c.shape.options.soft_cap = 4;
      if (option == 3 || all) c.shape.options.logit_scale = 0.5F;
      if (option == 4 || all) c.shape.bias = true;
      if (option == 5 || all) c.class_weights = true;
      if (option == 6 || all) c.token_weights = true;
      if (option == 7 || all) {
        c.shape.options.reduction = reduction::none;
        c.upstream_each = mode != 2;
      }
      if (option == 8 || all) c.spare = 3;
      if (option == 3) c.shape.options.reduction = reduction::sum;
      if (option == 4) c.shape.options.reduction = reduction::denominator, c.denominator = 40;
      if (option == 1) c.wide_dx = true, c.counts_given = true, c.shape.options.ignore_index = 3;
      check<float>(c);
    }
}

TEST_CASE("the number of ranks, and how they share, does not matter: any sizes, tiles and sub-blocks") {
  std::mt19937 source(3);
  const auto any = [&](index_t least, index_t most) {
    return least + static_cast<index_t>(source() % static_cast<std::uint64_t>(most - least + 1));
  };
  for (int round = 0; round < 40; ++round) {
    CAPTURE(round);
    ring_case c;
    const index_t tokens = any(1, 40), vocabulary = any(2, 50);
    c.tokens = {tokens};
    c.shards = {vocabulary};
    c.shape.hidden = any(1, 20);
    c.shape.tile = {any(1, 16), any(1, 16)};
    c.shape.hop_rows = any(1, 16);
    c.shape.options.smoothing = round % 3 == 0 ? 0.25F : 0.0F;
    c.shape.tiles_in_flight = 1;
    c.seed = static_cast<std::uint64_t>(round + 1);
    const auto values = values_of<float>(c);
    const auto one = run_ring<float>(c, values, threads{});
    check_ring(c, values, one);
    for (const rotation r : both)
      for (const int ranks : {2, 3, 8}) {
        c.shape.rotate = r;
        c.tokens = deal(source, tokens, ranks);
        c.shards = deal(source, vocabulary, ranks);
        c.shape.tiles_in_flight = 1;
        const auto more = run_ring<float>(c, values, threads{});
        c.shape.tiles_in_flight = 2;
        CHECK(same_bits(run_ring<float>(c, values, threads{}), more));
        CHECK(largest(more.losses, one.losses) < 1e-5);
        CHECK(distance(more.dx, one.dx) < 2e-6);
        CHECK(distance(more.dweight, one.dweight) < 2e-6);
        for (const float loss : more.losses) CHECK(loss >= 0.0F);
      }
  }
}

TEST_CASE("logits shifted by a constant: the loss and every gradient stay") {
  for (const rotation r : both) {
    ring_case c;
    c.tokens = {9, 4, 8};
    c.shards = {8, 11, 3};
    c.shape.hidden = 7;
    c.shape.tile = {4, 4};
    c.shape.hop_rows = 6;
    c.shape.rotate = r;
    c.shape.bias = true;
    c.shape.options.smoothing = 0.125F;
    auto values = values_of<float>(c);
    const auto expected = run_ring<float>(c, values, threads{});
    for (float& b : values.bias) b += 64.0F;
    const auto shifted = run_ring<float>(c, values, threads{});
    CHECK(largest(shifted.losses, expected.losses) < 4e-5); // half a unit of a logit of 64, several times
    CHECK(distance(shifted.dx, expected.dx) < 4e-5);
    CHECK(distance(shifted.dweight, expected.dweight) < 4e-5);
    // The gradients of all logits of a token add up to nothing, and so do those of the bias.
    double sum = 0, size = 0;
    for (const float d : expected.dbias) {
      sum += static_cast<double>(d);
      size += std::fabs(static_cast<double>(d));
    }
    CHECK(std::fabs(sum) < 1e-6 * size);
  }
}

TEST_CASE("F1 F2 B1 B2 and F1 F2 B2 B1: what is kept is the caller's, and each has its own") {
  for (const rotation r : both) {
    ring_case c;
    c.tokens = {9, 0, 8};
    c.shards = {8, 11, 3};
    c.shape.hidden = 7;
    c.shape.tile = {4, 4};
    c.shape.hop_rows = 6;
    c.shape.rotate = r;
    c.forwards = 2;
    c.steps = 2;
    const auto values = values_of<float>(c);
    const auto in_order = run_ring<float>(c, values, threads{});
    check_ring(c, values, in_order);
    c.last_first = true;
    CHECK(same_bits(run_ring<float>(c, values, threads{}), in_order));
  }
}

TEST_CASE("another number of tokens each step: each step is as if it were the only one") {
  for (const rotation r : both) {
    ring_case c = small_case({9, 0, 18}, {10, 8, 5}, r);
    c.token_weights = true;
    const auto values = values_of<float>(c);
    const auto expected = run_ring<float>(c, values, threads{});
    c.steps = 4;
    c.fewer_first = true;
    CHECK(same_bits(run_ring<float>(c, values, threads{}), expected));
  }
}

TEST_CASE("one pass: what recompute mode gives, for any strip, upstream gradient and type, again and again") {
  for (const index_t strip : {1, 5, 17, 400})
    for (const index_t tokens : {0, 1, 17}) {
      CAPTURE(strip);
      CAPTURE(tokens);
      ring_case c = small_case({tokens}, {23}, rotation::activations);
      c.shape.bias = c.token_weights = true;
      c.forwards = c.backwards = 2;
      const auto values = values_of<float>(c);
      const auto twice = run_ring<float>(c, values, threads{});
      c.shape.one_pass = true;
      c.shape.strip_rows = strip;
      const auto once = run_ring<float>(c, values, threads{});
      check_ring(c, values, once);
      CHECK(same_bits(once.losses, twice.losses));
      CHECK(same_bits(once.loss, twice.loss));
      CHECK(distance(once.dx, twice.dx) < 1e-6);
      CHECK(distance(once.dweight, twice.dweight) < 1e-6);
      c.wide_dx = true;
      CHECK(same_bits(run_ring<float>(c, values, threads{}).wide_dx, once.dx));
    }
  ring_case c = small_case({17}, {23}, rotation::weights); // of which one pass makes nothing
  c.shape.one_pass = true;
  c.shape.strip_rows = 4;
  check<pl::bfloat16>(c);
  c.shape.frozen_inputs = true;
  check<pl::bfloat16>(c);
  c.shape.frozen_inputs = false, c.shape.frozen_weights = true;
  check<float>(c);
}

TEST_CASE(
    "fixed blocks: the bits of a loss depend neither on the ranks, nor on the rotation or the sub-blocks") {
  bool differ = false; // without them
  for (const index_t block : {0, 8})
    for (const bool statistics : {false, true}) {
      ring_case c;
      c.tokens = {29};
      c.shards = {67}; // nine blocks, the last of three
      c.shape.hidden = 11;
      c.shape.tile = {5, 3};
      c.shape.hop_rows = 200;
      c.shape.fixed_block = block;
      c.shape.entropy = c.shape.argmax = statistics;
      c.shape.options.smoothing = 0.125F;
      const auto values = values_of<float>(c);
      const auto one = run_ring<float>(c, values, threads{});
      check_ring(c, values, one);
      const std::vector<std::vector<index_t>> shards{
          {67}, {32, 35}, {8, 0, 59}, {0, 16, 24, 24, 3}, {64, 3, 0}};
      std::mt19937 source(5);
      for (const auto& each : shards)
        for (const rotation r : both)
          for (const index_t hop_rows : {8, 24, 200}) {
            c.shards = each;
            c.tokens = deal(source, 29, c.ranks() == 0 ? 1 : static_cast<int>(each.size()));
            c.shape.rotate = r;
            c.shape.hop_rows = hop_rows;
            c.shape.tile.tokens = 1 + hop_rows % 7;
            c.shape.tiles_in_flight = 1 + static_cast<int>(hop_rows / 8 % 2);
            const auto more = run_ring<float>(c, values, threads{});
            const bool same = same_bits(more.losses, one.losses) && same_bits(more.lses, one.lses) &&
                              same_bits(more.entropies, one.entropies) && more.argmaxes == one.argmaxes;
            if (block != 0) CHECK(same);
            differ = differ || (block == 0 && !same);
            CHECK(distance(more.dweight, one.dweight) < 2e-6);
          }
    }
  CHECK(differ);
}
