// SPDX-License-Identifier: Apache-2.0
//
// A few linear cross-entropies and entropies that ranks of any kind must get right: either side rotating,
// ranks without tokens or without a shard, off every tile, every option and every output.
#pragma once

#include "support/ring_cases.hpp"

#include <plateau/ring/entropy.hpp>

#include <doctest/doctest.h>

#include <vector>

namespace support {

// One case for each: plain, all options on two tiles in flight, everything that can be asked for, fixed
// blocks, and on one rank all gradients in one pass.
inline std::vector<ring_case> ring_cases_for(int ranks) {
  std::vector<ring_case> out;
  for (const pl::rotation r : {pl::rotation::activations, pl::rotation::weights})
    for (const int options : {0, 1, 2, 3}) {
      if (options == 3 && ranks != 1) continue;
      ring_case c;
      const std::vector<index_t> tokens{21, 9, 0, 14}, shards{17, 0, 24, 11};
      c.tokens.assign(tokens.begin(), tokens.begin() + ranks);
      c.shards.assign(shards.begin(), shards.begin() + ranks);
      c.shape.hidden = 19;
      c.shape.tile = {8, 7};
      c.shape.hop_rows = 10;
      c.shape.rotate = r;
      c.shape.input_gradient_accumulator = true;
      c.shape.entropy = c.shape.argmax = c.shape.accuracy = true;
      if (options == 2) {
        c.shards = {16, 0, 24, 11};
        c.shards.resize(static_cast<std::size_t>(ranks));
        c.shape.fixed_block = c.shape.hop_rows = 8;
        c.shape.tiles_in_flight = 2;
      }
      if (options == 3) {
        c.shape.one_pass = true;
        c.shape.input_gradient_accumulator = false;
        c.shape.strip_rows = 8;
        c.shape.bias = true;
      }
      if (options == 1) {
        c.shape.tiles_in_flight = 2;
        c.shape.bias = c.class_weights = c.token_weights = c.upstream_each = true;
        c.shape.options.smoothing = 0.125F;
        c.shape.options.z_loss = 0.01F;
        c.shape.options.soft_cap = 6;
        c.shape.options.logit_scale = 0.75F;
        c.shape.options.reduction = pl::reduction::denominator;
        c.denominator = 31;
        c.shape.entropy = c.shape.argmax = c.shape.accuracy = false;
        c.spare = 3;
        c.skew = 1;
        c.forwards = 2;
        c.last_first = true;
      }
      out.push_back(c);
    }
  return out;
}

template <class T, class On> void check_rings(const On& on, int least_ranks, int most_ranks) {
  for (int ranks = least_ranks; ranks <= most_ranks; ++ranks)
    for (const ring_case& c : ring_cases_for(ranks)) {
      CAPTURE(ranks);
      CAPTURE(static_cast<int>(c.shape.rotate));
      const auto values = values_of<T>(c);
      check_ring(c, values, run_ring<T>(c, values, on));
    }
}

// The entropies of a linear_entropy beside those of the loss, which has them as an output.
template <class T, class On> void check_entropies(const On& on, int ranks) {
  ring_case c = ring_cases_for(ranks).front();
  const auto values = values_of<T>(c);
  const auto seen = oracle_of(c, values).forward();
  std::vector<std::vector<float>> found(c.tokens.size());
  on.run(ranks, [&](auto& world, auto& backend) {
    using backend_type = typename On::backend;
    using entropy_type = pl::linear_entropy<backend_type, typename On::communicator, T>;
    const auto me = static_cast<std::size_t>(world.rank());
    const index_t n = c.tokens[me], h = c.shape.hidden;
    pl::entropy_shape shape;
    shape.tokens = 21;
    shape.hidden = h;
    shape.vocabulary = c.vocabulary();
    shape.tile_tokens = 8;
    shape.tile_vocabulary = 7;
    shape.hop_rows = 10;
    auto stream = backend.make_stream("main");
    detail::ring_arrays<backend_type, true> make{backend, stream};
    const auto x = make.template filled<T>(
        n, h, 0, values.x, std::accumulate(c.tokens.begin(), c.tokens.begin() + world.rank(), index_t{0}));
    const auto weight = make.template filled<T>(
        c.shards[me], h, 0, values.weight,
        std::accumulate(c.shards.begin(), c.shards.begin() + world.rank(), index_t{0}));
    const auto entropies = make.template zero<float>(n, 1, 0);
    pl::workspace<backend_type> space(backend, entropy_type::working_set(shape, ranks));
    entropy_type op(backend, world, shape, space, c.shards[me]);
    const pl::drain<backend_type> before_they_go(backend, stream);
    op.forward(stream, {x.all(), weight.all()}, {entropies.list(), {}});
    pl::close_step(backend, world, stream);
    found[me] = make.values(entropies);
  });
  std::vector<float> all;
  for (const auto& of_rank : found) all.insert(all.end(), of_rank.begin(), of_rank.end());
  check_accurate(all, seen.entropies, 8);
}

} // namespace support
