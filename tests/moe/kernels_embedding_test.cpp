// SPDX-License-Identifier: Apache-2.0
//
// Embedding: rows bit for bit, zeros for tokens that do not exist, and a gradient that touches the rows of
// tokens that occur and no others.

#include "kernels/embedding.hpp"
#include "support/accuracy.hpp"
#include "support/run_kernel.hpp"
#include "support/tensors.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <string>

using plateau::bfloat16, plateau::index_t;
using namespace support;

TEST_CASE_TEMPLATE("a token's row is copied, bit for bit; a token that is not in the table gives zeros", T,
                   float, bfloat16) {
  const std::vector<std::int32_t> tokens{2, 0, -1, 2, 3, 2147483647};
  for (const auto level : cpu_levels())
    for (const index_t hidden : {1, 2, 33, 64, 101}) {
      const matrix<T> table(3, hidden, random_values<T>(3 * hidden, 1));
      matrix<T> x(6, hidden);
      run_rows(level, 6, moe::embed{}, all(tokens), table.in(), x.out());
      CHECK(x.spare_untouched());
      for (index_t r = 0; r < 6; ++r)
        for (index_t c = 0; c < hidden; ++c) {
          const index_t token = tokens[static_cast<std::size_t>(r)];
          const T expected = token >= 0 && token < 3 ? table.in()(token, c) : static_cast<T>(0.0f);
          REQUIRE(std::memcmp(&x.at(r, c), &expected, sizeof(T)) == 0);
        }
    }
}

TEST_CASE_TEMPLATE("the gradient adds the rows of each token in order", T, float, bfloat16) {
  // Groups of 0 to 9 rows: whole blocks of four, and every remainder.
  const index_t vocabulary = 10;
  std::vector<std::int64_t> offsets{0};
  for (index_t v = 0; v < vocabulary; ++v) offsets.push_back(offsets.back() + v);
  const index_t n = offsets.back();
  std::vector<std::int32_t> order;
  for (index_t i = 0; i < n; ++i)
    order.push_back(static_cast<std::int32_t>((i * 7) % n)); // 45 and 7: a permutation
  for (const auto level : cpu_levels())
    for (const index_t hidden : {1, 2, 33, 64, 101}) {
      const std::string name = plateau::cpu_level_name(level);
      CAPTURE(name);
      CAPTURE(hidden);
      const auto dx = random_values<T>(n * hidden, 1);
      const auto before = random_values<float>(vocabulary * hidden, 2);
      const matrix<T> rows(n, hidden, dx);
      matrix<float> dtable(vocabulary, hidden, before);
      run_rows(level, vocabulary, moe::embed_backward{}, all(order), all(offsets), rows.in(), dtable.out());
      CHECK(dtable.spare_untouched());

      std::vector<float> in_order = before; // the same additions one by one: the same bits
      for (index_t v = 0; v < vocabulary; ++v)
        for (index_t i = offsets[v]; i < offsets[v + 1]; ++i)
          for (index_t c = 0; c < hidden; ++c)
            in_order[v * hidden + c] += static_cast<float>(dx[order[i] * hidden + c]);
      CHECK(same_bits(dtable.values(), in_order));
    }
}

TEST_CASE("rows of tokens that do not occur are not even read") {
  const std::vector<std::int32_t> order{0};
  const std::vector<std::int64_t> offsets{0, 0, 1, 1};
  const float nan = std::numeric_limits<float>::signaling_NaN();
  matrix<float> dtable(3, 5, std::vector<float>(15, nan));
  const auto before = dtable.values();
  const matrix<float> dx(1, 5, std::vector<float>(5, 1.0f));
  run_rows(plateau::cpu_level::baseline, 3, moe::embed_backward{}, all(order), all(offsets), dx.in(),
           dtable.out());
  for (const index_t v : {0, 2})
    CHECK(std::memcmp(&dtable.at(v, 0), before.data() + v * 5, 5 * sizeof(float)) == 0);
}
