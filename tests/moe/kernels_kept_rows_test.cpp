// SPDX-License-Identifier: Apache-2.0
//
// The dispatch with kept rows and the model's own combine: two kernels that must not differ by a bit, so that
// a model may change from one to the other.

#include "kernels/dispatch.hpp"
#include "support/run_kernel.hpp"
#include "support/tensors.hpp"

#include <plateau/all_to_all/row_kernels.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

using plateau::bfloat16, plateau::index_t;
using namespace support;

TEST_CASE_TEMPLATE("kept rows are combined to the bits of the model's combine", T, float, bfloat16) {
  const index_t tokens = 3, hidden = 101;
  for (const auto level : cpu_levels())
    for (index_t k = 1; k <= 9; ++k) {
      const std::string name = plateau::cpu_level_name(level);
      CAPTURE(name);
      CAPTURE(k);
      const auto base = random_values<T>(tokens * hidden, 1), back = random_values<T>(tokens * k * hidden, 2);
      const matrix<T> kept(tokens * k, hidden, back);
      const matrix<float> gates(tokens, k, random_values<float>(tokens * k, 3));
      std::vector<std::int32_t> ids, in_place;
      for (index_t r = 0; r < tokens * k; ++r) {
        ids.push_back(static_cast<std::int32_t>(r % 4));
        in_place.push_back(static_cast<std::int32_t>(r));
      }
      matrix<T> out(tokens, hidden, base), by_model(tokens, hidden, base);
      run_rows(level, tokens, plateau::detail::dispatch::combine_kept{static_cast<int>(k)},
               all(std::as_const(ids)), gates.in(), kept.in(), out.out());
      run_rows(level, tokens, moe::combine{}, all(std::as_const(in_place)), gates.in(), kept.in(),
               by_model.out());
      CHECK(same_bits(out.values(), by_model.values()));
    }
}
