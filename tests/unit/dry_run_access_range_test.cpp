// SPDX-License-Identifier: Apache-2.0
#include <plateau/dry_run/access_range.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

namespace dry = plateau::dry;
using dry::touch;

TEST_CASE("access range: of a view, a tile and a batch of tiles") {
  std::vector<float> x(1000);
  const auto base = reinterpret_cast<std::uintptr_t>(x.data());
  const auto line = dry::range_of(plateau::in(plateau::view<float, plateau::device_space>{x.data() + 4, 10}));
  CHECK(line.address == base + 16);
  CHECK(line.bytes() == 40);
  CHECK(line.contiguous());
  CHECK(line.mode == touch::read);

  using tile = plateau::tile<float, plateau::device_space>;
  const auto block = dry::range_of(plateau::inout(tile{x.data(), 5, 8, 20}));
  CHECK(block.rows == 5);
  CHECK(block.width == 32);
  CHECK(block.pitch == 80);
  CHECK(block.bytes() == 160);
  CHECK(block.extent() == 4 * 80 + 32);
  CHECK(block.mode == touch::update);
  CHECK(dry::range_of(tile{x.data(), 5, 20, 20}, touch::write).contiguous());
  CHECK(dry::range_of(tile{x.data(), 1, 8, 20}, touch::write).contiguous());
  CHECK(dry::range_of(tile{x.data(), 0, 8, 20}, touch::write).empty());

  using batch = plateau::tile_batch<float, plateau::device_space>;
  const auto apart = dry::range_of(batch{x.data(), 3, 200, 5, 8, 20}, touch::write);
  CHECK(apart.bytes() == 3 * 160);
  CHECK(apart.extent() == 2 * 800 + 4 * 80 + 32);
  const auto one_below_another = dry::range_of(batch{x.data(), 3, 100, 5, 8, 20}, touch::write);
  CHECK(one_below_another.rows == 15);
  CHECK(one_below_another.count == 1);
  CHECK(dry::range_of(batch{x.data(), 3, 100, 5, 20, 20}, touch::write).contiguous());
}

TEST_CASE("access range: which touches conflict, and which need values") {
  constexpr touch all[] = {touch::read,    touch::write,      touch::update,
                           touch::partial, touch::accumulate, touch::scratch};
  for (const auto a : all)
    for (const auto b : all) {
      const bool free = a == b && (a == touch::read || a == touch::accumulate);
      CHECK(dry::conflict(a, b) == !free);
    }
  CHECK(dry::needs_values(touch::read));
  CHECK(dry::needs_values(touch::update));
  CHECK(dry::needs_values(touch::accumulate));
  CHECK_FALSE(dry::needs_values(touch::write));
  CHECK_FALSE(dry::needs_values(touch::partial));
  CHECK_FALSE(dry::needs_values(touch::scratch));
}
