// SPDX-License-Identifier: Apache-2.0
//
// One rank's share of a sum, for every rank that could add: the same bits, in place or not, and its own part
// is left alone unless it is the result.
#include <plateau/rank_order_sum.hpp>

#include <doctest/doctest.h>

#include <plateau/host/backend.hpp>

#include <vector>

namespace pl = plateau;

TEST_CASE("a sum in rank order does not depend on who adds") {
  const pl::index_t n = 37;
  pl::host_backend backend;
  auto s = backend.make_stream("sum");
  const auto value = [](int r, pl::index_t i) {
    return static_cast<float>((i * 31 + r * 57) % 101) / 7 + static_cast<float>(r * 1000);
  };
  for (int ranks = 1; ranks <= 7; ++ranks)
    for (int me = 0; me < ranks; ++me)
      for (const bool in_place : {false, true}) {
        CAPTURE(ranks);
        CAPTURE(me);
        CAPTURE(in_place);
        std::vector<float> own(37), apart(37, -1), slots(std::size_t(n * (ranks - 1)));
        for (pl::index_t i = 0; i < n; ++i) {
          own[std::size_t(i)] = value(me, i);
          for (int r = 0; r < ranks; ++r)
            if (r != me) slots[std::size_t((r - (r > me ? 1 : 0)) * n + i)] = value(r, i);
        }
        std::vector<float>& result = in_place ? own : apart;
        pl::detail::sum_in_rank_order(backend, s, me, ranks, pl::view<const float>{own.data(), n},
                                      pl::view<float>{slots.data(), n * (ranks - 1)},
                                      pl::view<float>{result.data(), n});
        backend.wait(backend.record(s));
        for (pl::index_t i = 0; i < n; ++i) {
          float sum = value(0, i);
          for (int r = 1; r < ranks; ++r) sum = sum + value(r, i);
          CHECK(result[std::size_t(i)] == sum);
          if (!in_place) CHECK(own[std::size_t(i)] == value(me, i));
        }
      }
}
