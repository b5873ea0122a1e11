// SPDX-License-Identifier: Apache-2.0
//
// What is parked for a budget, and when it pays: plain arithmetic, held to the formulas of the documentation
// and to what the best of all choices would be.
#include <plateau/dry_run/backend.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/offload/offload_break_even.hpp>
#include <plateau/offload/offload_plan.hpp>
#include <plateau/offload/offload_store.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace pl = plateau;
using pl::index_t, pl::offload_shape, pl::offload_reason;

namespace {

template <class F> std::string refusal(F f) {
  try {
    f();
  } catch (const pl::config_error& e) {
    return e.what();
  }
  return "";
}
bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// The working set as docs/offload.md has it, from the choice of what is parked.
struct documented {
  index_t device = 0, pinned = 0;
};
documented formula(const offload_shape& s, const std::vector<bool>& parked) {
  documented d;
  for (int kind = 0; kind < pl::offload_kinds; ++kind) {
    index_t count = 0, largest = 0;
    for (std::size_t t = 0; t < parked.size(); ++t) {
      const index_t bytes = (s.tensors[t].bytes + 255) / 256 * 256;
      if (s.tensors[t].kind != kind) continue;
      if (parked[t]) {
        count += s.in_flight;
        largest = std::max(largest, bytes);
        d.pinned += s.in_flight * bytes;
      } else {
        d.device += s.in_flight * bytes;
      }
    }
    d.device += std::min<index_t>(count, s.restored_at_once) * largest;
  }
  return d;
}
std::vector<bool> choice_of(const pl::offload_plan& p) {
  std::vector<bool> parked;
  for (std::size_t t = 0; t < p.reason.size(); ++t) parked.push_back(p.is_parked(static_cast<index_t>(t)));
  return parked;
}

} // namespace

TEST_CASE("47 inputs of 69,632 x 2,880 in bf16: as many as the budget has room for, and no byte more") {
  constexpr index_t bytes = 69632 * 2880 * 2, gibibyte = index_t{1} << 30;
  const struct {
    index_t budget, parked;
  } cases[] = {{0, 0}, {8 * gibibyte, 21}, {16 * gibibyte, 42}, {offload_shape::no_limit, 47}};
  for (const auto& each : cases) {
    const index_t budget = each.budget, parked = each.parked;
    CAPTURE(budget);
    const auto shape = offload_shape::of_layers(47, bytes, budget);
    const auto p = pl::plan_offload(shape);
    CHECK(p.parked == parked);
    CHECK(p.pinned_bytes == parked * bytes);
    CHECK(p.device_bytes == (47 - parked + (parked == 0 ? 0 : 2)) * bytes);
    // What is really taken, of a backend that has no bytes and counts them all.
    pl::dry_run<pl::host_backend> be;
    pl::workspace<pl::dry_run<pl::host_backend>> space(
        be, pl::offload_store<pl::dry_run<pl::host_backend>>::working_set_of(shape));
    CHECK(be.pinned().meter().current() == static_cast<std::size_t>(parked * bytes));
    CHECK(be.device().meter().current() == static_cast<std::size_t>(p.device_bytes));
  }
}

TEST_CASE("the peak never rises with the budget, falls once more than two are parked, and is the formula's") {
  std::mt19937_64 random(5);
  const auto below = [&](index_t n) {
    return static_cast<index_t>(random() % static_cast<std::uint64_t>(n));
  };
  for (int i = 0; i < 300; ++i) {
    offload_shape s;
    const index_t n = 1 + below(9);
    const bool equal = below(2) == 0;
    index_t all = 0;
    for (index_t t = 0; t < n; ++t) {
      s.tensors.push_back({equal ? 700 : below(5) * 300, equal ? 0 : static_cast<int>(below(3))});
      all += offload_shape::slot_bytes(s.tensors.back().bytes);
    }
    s.restored_at_once = 1 + static_cast<int>(below(3));
    s.in_flight = 1 + static_cast<int>(below(3));
    all *= s.in_flight;
    index_t last = -1;
    for (index_t budget = 0; budget <= all; budget += 128) {
      s.host_budget_bytes = budget;
      const auto p = pl::plan_offload(s);
      const documented d = formula(s, choice_of(p));
      CHECK(p.device_bytes == d.device);
      CHECK(p.pinned_bytes == d.pinned);
      CHECK(p.pinned_bytes <= budget);
      CHECK((last < 0 || p.device_bytes <= last));
      CHECK(p.parked == std::count(p.reason.begin(), p.reason.end(), offload_reason::parked));
      if (equal) { // as many as fit, the first ones, if that saves anything
        const index_t fit = std::min(n, budget / (768 * s.in_flight));
        CHECK(p.parked == (fit * s.in_flight > s.restored_at_once ? fit : 0));
        for (index_t t = 0; t < n; ++t) CHECK(p.is_parked(t) == (t < p.parked));
        CHECK(p.device_bytes ==
              768 * ((n - p.parked) * s.in_flight + (p.parked == 0 ? 0 : s.restored_at_once)));
      }
      for (index_t t = 0; t < n; ++t) CHECK_FALSE(p.why(s, t).empty());
      last = p.device_bytes;
    }
    // With all the memory that could be wanted, no choice is better than the plan by more than the slots.
    index_t best = last;
    for (std::uint64_t bits = 0; bits < std::uint64_t{1} << n; ++bits) {
      std::vector<bool> parked;
      for (index_t t = 0; t < n; ++t) parked.push_back((bits >> t & 1) != 0);
      best = std::min(best, formula(s, parked).device);
    }
    if (equal) CHECK(last == best);
    CHECK(last >= best);
  }
}

TEST_CASE("why a tensor is where it is") {
  offload_shape s;
  s.tensors = {{1000, 0}, {0, 0}, {1000, 0, 1.0}, {1000, 0, 1e-9}, {1000, 0}, {1000, 0}};
  s.costs.to_host_bytes_per_second = s.costs.to_device_bytes_per_second = 1e9;
  s.host_budget_bytes = 3 * 1024;
  const auto p = pl::plan_offload(s);
  CHECK(p.reason == std::vector<offload_reason>{offload_reason::parked, offload_reason::empty,
                                                offload_reason::parked, offload_reason::budget,
                                                offload_reason::parked, offload_reason::budget});
  CHECK(has(p.why(s, 0), "tensor 0 of 1000 bytes is parked"));
  CHECK(has(p.why(s, 1), "needs no memory"));
  CHECK(has(p.why(s, 5), "the host budget of 3072 bytes has no room for it beside the 3072"));
  s.host_budget_bytes = offload_shape::no_limit;
  const auto wide = pl::plan_offload(s);
  CHECK(has(wide.why(s, 3), "less than the way to the host and back"));
  CHECK(wide.parked == 4);
  s.host_budget_bytes = 2 * 1024;
  CHECK(has(pl::plan_offload(s).why(s, 0), "a slot as large as what it saves"));
  s.host_budget_bytes = 1023; // below one tensor
  const auto none = pl::plan_offload(s);
  CHECK(none.parked == 0);
  CHECK(none.device_bytes == 5 * 1024);
  CHECK(has(none.why(s, 0), "the host budget of 1023 bytes"));
  s.host_budget_bytes = 0;
  CHECK(pl::plan_offload(s).pinned_bytes == 0);
}

TEST_CASE("the break-even: what is hidden, what is exposed, and from which link on it pays") {
  pl::offload_costs c;
  CHECK(has(refusal([&] { pl::break_even_of(1, c); }), "needs both rates"));
  c.to_host_bytes_per_second = c.to_device_bytes_per_second = 50e9;
  c.forward_seconds = 0.01, c.backward_seconds = 0.02, c.recompute_seconds = 0.01;
  const index_t bytes = 400'000'000; // 8 ms each way
  auto e = pl::break_even_of(bytes, c);
  CHECK(e.exposed_seconds == 0);
  CHECK(e.pays());
  CHECK(e.hidden_bytes_per_second == doctest::Approx(40e9));
  CHECK(e.break_even_bytes_per_second == doctest::Approx(400e6 / 0.02));
  CHECK(e.restored_at_once == 2);
  // At the break-even itself, what is exposed is what recomputing takes, on either side of the bend.
  for (const double recompute : {0.004, 0.01, 0.05}) {
    c.recompute_seconds = recompute;
    const double rate = pl::break_even_of(bytes, c).break_even_bytes_per_second;
    auto at = c;
    at.to_host_bytes_per_second = at.to_device_bytes_per_second = rate;
    CHECK(pl::break_even_of(bytes, at).exposed_seconds == doctest::Approx(recompute));
    at.to_host_bytes_per_second = at.to_device_bytes_per_second = 1.01 * rate;
    CHECK(pl::break_even_of(bytes, at).pays());
    at.to_host_bytes_per_second = at.to_device_bytes_per_second = 0.99 * rate;
    CHECK_FALSE(pl::break_even_of(bytes, at).pays());
  }
  c.to_device_bytes_per_second = 8e9; // 50 ms back, under 20 each: three ahead
  CHECK(pl::break_even_of(bytes, c).restored_at_once == 4);
}

TEST_CASE("a shape that cannot be is refused") {
  offload_shape s = offload_shape::of_layers(3, 64);
  const auto text = [](offload_shape bad) { return refusal([&] { pl::plan_offload(bad); }); };
  CHECK(text(s).empty());
  auto bad = s;
  bad.tensors[1].bytes = -1;
  CHECK(has(text(bad), "tensor 1 has -1 bytes"));
  bad = s, bad.tensors[2].kind = 4;
  CHECK(has(text(bad), "kind 4"));
  bad = s, bad.tensors[0].idle_seconds = -1;
  CHECK(has(text(bad), "idle"));
  bad = s, bad.host_budget_bytes = -5;
  CHECK(has(text(bad), "host budget of -5"));
  bad = s, bad.restored_at_once = 0;
  CHECK(has(text(bad), "restored_at_once is 0"));
  bad = s, bad.in_flight = 0;
  CHECK(has(text(bad), "in_flight is 0"));
  bad = s, bad.costs.forward_seconds = -1;
  CHECK(has(text(bad), "cost"));
  bad = s, bad.tensors[0].bytes = offload_shape::no_limit;
  CHECK(has(text(bad), "more bytes than a size can say"));
  bad = s, bad.tensors[0].bytes = bad.tensors[1].bytes = offload_shape::no_limit / 3;
  CHECK(has(text(bad), "more bytes"));
  bad = s, bad.restored_at_once = 3,
  bad.tensors[0].bytes = offload_shape::no_limit / 4; // for one slot, not 3
  CHECK(has(text(bad), "3 slots as large as the largest"));
  CHECK(pl::plan_offload({}).device_bytes == 0);
}
