// SPDX-License-Identifier: Apache-2.0
//
// The dispatch where the order of everything that may happen in any order is drawn from a seed: the bits do
// not change. On the audited backend, where every operation must keep the word of its tags; and by teams of
// eight threads, where under the thread sanitizer a kernel that forgets a barrier shows.
#include "support/dispatch_checks.hpp"

#include <plateau/host/cpu_dispatch.hpp>
#include <plateau/host/wide_team.hpp>
#include <plateau/testing/audited_backend.hpp>
#include <plateau/testing/run_seeded.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <vector>

namespace pl = plateau;
using pl::index_t;
using support::dispatch_case;
using support::dispatch_of;

namespace {

struct wide_runner : pl::host::wide_runner {
  pl::cpu_level level = pl::cpu_level::baseline;
};
using wide_backend = pl::basic_host_backend<pl::block_gemm, wide_runner>;

bool same_bits(const std::vector<support::dispatch_results<float>>& a,
               const std::vector<support::dispatch_results<float>>& b) {
  const auto equal = [](const std::vector<float>& x, const std::vector<float>& y) {
    return x.size() == y.size() &&
           (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0);
  };
  bool same = a.size() == b.size();
  for (std::size_t r = 0; same && r < a.size(); ++r)
    same = equal(a[r].out, b[r].out) && equal(a[r].drows, b[r].drows) && equal(a[r].dgates, b[r].dgates) &&
           equal(a[r].dweights, b[r].dweights);
  return same;
}

// Few rows, so that a seed soon runs through: several rounds, moved experts, a rank without tokens.
std::vector<dispatch_case> few_rows() {
  std::vector<dispatch_case> all;
  for (const int slots : {1, 2, 3})
    for (const bool ordered : {false, true}) {
      dispatch_case c = dispatch_of({7, 0, 9}, 6, 3, "hot rank");
      c.shape.widths = {5};
      c.shape.send_cap_rows = c.shape.receive_cap_rows = 5;
      c.shape.slots = slots;
      c.shape.ordered = ordered;
      c.gate_scale = 0.1F; // so that every sum is rounded, and an order shows
      all.push_back(c);
    }
  all.push_back(dispatch_of({6, 8}, 5, 2, "holes"));
  return all;
}

} // namespace

TEST_CASE("D12: a dispatch has the same bits under any order of its operations") {
  for (const dispatch_case& c : few_rows()) {
    CAPTURE(c.shape.slots);
    CAPTURE(c.shape.ordered);
    const auto expected = support::run_dispatch<float>(c, support::in_turns<>{{0, nullptr}});
    std::set<std::string> orders;
    for (std::uint64_t seed = 1; seed <= 60; ++seed) {
      CAPTURE(seed);
      std::vector<pl::testing::step> order;
      CHECK(same_bits(support::run_dispatch<float>(c, support::in_turns<>{{seed, &order}}), expected));
      std::string ranks;
      for (const pl::testing::step& each : order) ranks += static_cast<char>('0' + each.rank);
      orders.insert(ranks);
    }
    CHECK(orders.size() == 60);
  }
}

TEST_CASE("every operation of a dispatch keeps the word of its tags") {
  for (std::uint64_t seed = 1; seed <= 2; ++seed)
    for (const dispatch_case& c : few_rows()) {
      CAPTURE(seed);
      const support::in_turns<pl::audited_backend> audited{{seed, nullptr}};
      dispatch_case exact = c;
      exact.gate_scale = 1;
      support::check_dispatch<float>(exact, audited);
      exact.shape.order = pl::row_order::strided;
      exact.no_gates = true;
      support::check_dispatch<float>(exact, audited);
    }
}

TEST_CASE("teams of many threads have the bits of one") {
  for (dispatch_case c : few_rows()) {
    c.gate_scale = 1;
    c.shape.widths = {37}; // more than one lane each
    support::check_dispatch<float>(c, support::on_threads<wide_backend>{});
  }
}
