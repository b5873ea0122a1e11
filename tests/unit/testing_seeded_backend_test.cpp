// SPDX-License-Identifier: Apache-2.0
//
// What the seeded backend is for: a program that orders its streams gives the same bits under every seed, one
// that forgets any single wait does not, and a seed tells the same story twice.
#include "support/pipeline.hpp"

#include <plateau/host/backend.hpp>
#include <plateau/testing/seeded_backend.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace pl = plateau;
using pl::index_t;
using numbers = std::vector<std::uint32_t>;

namespace {

constexpr index_t count = 50, bucket = 8;

template <class Backend> numbers changed(Backend& backend, int drop_wait = -1, int* waits = nullptr) {
  pl::pinned_buffer<std::uint32_t, Backend> x(backend.pinned(), count, pl::tag::other);
  for (index_t i = 0; i < count; ++i) x.data()[i] = static_cast<std::uint32_t>(i * 2654435761);
  support::pipeline<Backend> stages(backend, bucket);
  const int n = stages.apply(x.all(), drop_wait);
  if (waits != nullptr) *waits = n;
  return {x.data(), x.data() + count};
}
numbers under_seed(std::uint64_t seed, int drop_wait = -1, std::vector<pl::testing::step>* order = nullptr) {
  pl::seeded_backend backend(pl::seeded_options{seed, order});
  return changed(backend, drop_wait);
}

} // namespace

TEST_CASE("P2: seeded_backend: a pipeline of three streams gives the same bits under 1,000 seeds") {
  pl::host_backend reference;
  const numbers expected = changed(reference);
  int different = 0;
  std::set<std::vector<std::string>> orders;
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    std::vector<pl::testing::step> order;
    different += under_seed(seed, -1, &order) == expected ? 0 : 1;
    std::vector<std::string> names;
    for (const auto& s : order) names.push_back(s.stream);
    orders.insert(std::move(names));
  }
  CHECK(different == 0);
  CHECK(orders.size() > 700); // and they are different orders
}

TEST_CASE("seeded_backend: each wait that is left out shows in the bits under some seeds") {
  pl::host_backend reference;
  int waits = 0;
  const numbers expected = changed(reference, -1, &waits);
  REQUIRE(waits == 4 + 2 * 7 + 1);
  for (int drop = 0; drop < waits; ++drop) {
    CAPTURE(drop);
    int different = 0;
    for (std::uint64_t seed = 0; seed < 200; ++seed) different += under_seed(seed, drop) == expected ? 0 : 1;
    CHECK(different > 5);
  }
}

TEST_CASE("seeded_backend: a seed takes the same course again, with a race in it too") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<pl::testing::step> first, second;
    const numbers one = under_seed(seed, 9, &first), two = under_seed(seed, 9, &second);
    CHECK(one == two);
    CHECK(first == second);
    CHECK(first.size() > 20);
  }
}
