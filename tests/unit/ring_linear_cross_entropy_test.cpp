// SPDX-License-Identifier: Apache-2.0
//
// The fused projection and cross-entropy on ranks as threads against float64: either side rotating, shards
// and tokens dealt unevenly or not at all to some ranks, off every tile, every option.
#include "support/ring_cases.hpp"

#include <doctest/doctest.h>

#include <vector>

namespace pl = plateau;
using pl::index_t, pl::rotation, pl::reduction;
using support::ring_case, support::values_of, support::run_ring, support::check_ring;
using threads = support::on_threads<>;

namespace {

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

} // namespace

TEST_CASE("V2, V6, V9: 1, 2, 3 and 5 ranks, uneven, some with nothing: all of it agrees with float64") {
  for (const rotation r : {rotation::activations, rotation::weights}) {
    check<float>(small_case({17}, {23}, r));
    check<float>(small_case({17, 9}, {11, 12}, r));
    check<float>(small_case({5, 14, 7}, {3, 19, 1}, r));
    check<float>(small_case({0, 14, 7}, {23, 0, 8}, r));
    check<float>(small_case({3, 0, 11, 0, 6}, {0, 9, 0, 14, 7}, r));
    check<float>(small_case({0, 0, 4}, {0, 0, 23}, r));
  }
}

TEST_CASE("every option, one by one and together") {
  for (const rotation r : {rotation::activations, rotation::weights})
    for (int option = 0; option < 10; ++option) {
      CAPTURE(option);
      ring_case c = small_case({8, 0, 13}, {10, 7, 6}, r);
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
        c.upstream_each = true;
      }
      if (option == 8 || all) c.spare = 3;
      if (option == 3) c.shape.options.reduction = reduction::sum;
      if (option == 4) c.shape.options.reduction = reduction::denominator, c.denominator = 40;
      if (option == 1) c.wide_dx = true, c.counts_given = true, c.shape.options.ignore_index = 3;
      check<float>(c);
    }
}
