// SPDX-License-Identifier: Apache-2.0
//
// The working set of the dispatch is what docs/dispatch.md says, line by line.
#include "support/toy_expert.hpp"

#include <plateau/all_to_all.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/host/thread_communicator.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <string>

namespace pl = plateau;
using pl::index_t;

namespace {

struct label {
  std::int32_t a, b;
};
using op = pl::capped_all_to_all<pl::host_backend, pl::thread_communicator, pl::bfloat16, label>;
using expert_type = support::toy_expert<pl::host_backend, pl::bfloat16>;

std::size_t bytes_of(const pl::working_set& set, const std::string& what,
                     pl::memory_kind kind = pl::memory_kind::device) {
  std::size_t sum = 0;
  for (const pl::memory_line& line : set) sum += line.what == what && line.kind == kind ? line.bytes : 0;
  return sum;
}
std::size_t sum_of_lines(const pl::working_set& set) {
  std::size_t sum = 0;
  for (const pl::memory_line& line : set) sum += pl::aligned_bytes(line.bytes);
  return sum;
}

void check_table(const op::shape& s, int ranks) {
  const index_t w = s.widths[0], v = s.result_elements();
  expert_type expert(nullptr, w);
  const auto set = [&](pl::dispatch_pass p) { return op::working_set_of(s, ranks, expert, p); };
  const pl::working_set plan = set(pl::dispatch_pass::plan), forward = set(pl::dispatch_pass::forward),
                        backward = set(pl::dispatch_pass::backward);
  const auto number = [](index_t n) { return static_cast<std::size_t>(n); };
  const std::size_t R = number(s.tokens * s.top_k), experts = number(s.experts), tokens = number(s.tokens);
  const std::size_t out = std::min(number(s.send_cap_rows), R),
                    in = std::min(number(s.receive_cap_rows), R * number(ranks));
  const std::size_t row = 2, result = 2, weight = 2, n = number(s.slots), W = number(w), V = number(v);
  const std::size_t N = (W + 31) / 32 * 32, F = number(s.foreign_slots(ranks));
  const std::size_t sort = pl::host_backend::group_by_key_scratch_bytes(s.routes(), s.experts + 1);
  for (const pl::working_set* each : {&plan, &forward, &backward}) {
    CHECK(bytes_of(*each, "routes by expert") + bytes_of(*each, "place of each route") == 8 * R);
    CHECK(bytes_of(*each, "first route of each expert") == 8 * (experts + 2));
    CHECK(sum_of_lines(*each) == each->device_bytes() + each->pinned_bytes());
  }
  CHECK(bytes_of(plan, "rows of each expert") == 8 * (experts + 2));
  CHECK(bytes_of(plan, "rows of each expert", pl::memory_kind::pinned_host) == 8 * (experts + 2));
  CHECK(bytes_of(plan, "ids out of range") == 8 * ((R + 4095) / 4096));
  CHECK(bytes_of(plan, "scratch") == sort);
  CHECK(bytes_of(forward, s.ordered ? "result of each route" : "sums of tokens") ==
        (s.ordered ? R * V * result : 4 * tokens * V));
  CHECK(bytes_of(backward, s.ordered ? "gradient of each route" : "sums of tokens") ==
        (s.ordered ? R * W * row : 4 * tokens * W));
  for (const pl::working_set* each : {&forward, &backward}) {
    CHECK(bytes_of(*each, "route of each row") == n * 4 * out);
    CHECK(bytes_of(*each, "rows received") == n * in * (W * row + number(s.widths[1]) * sizeof(label)));
    CHECK(bytes_of(*each, "further parts to send") == n * out * number(s.widths[1]) * sizeof(label));
    CHECK(bytes_of(*each, "foreign weights") == F * N * weight);
  }
  CHECK(bytes_of(forward, "rows to send") == n * out * std::max(W * row, V * result));
  CHECK(bytes_of(forward, "results") == n * in * V * result);
  CHECK(bytes_of(forward, "scratch") == std::max(sort, expert.forward_scratch_bytes(number(1), 1)));
  CHECK(bytes_of(backward, "rows to send") == n * out * W * row);
  CHECK(bytes_of(backward, "output gradients to send") + bytes_of(backward, "output gradients received") ==
        n * (out + in) * V * result);
  CHECK(bytes_of(backward, "gates to send") + bytes_of(backward, "gates received") +
            bytes_of(backward, "gate gradients") ==
        n * 4 * (out + 2 * in));
  CHECK(bytes_of(backward, "row gradients") == n * in * W * row);
  CHECK(bytes_of(backward, "gradients of foreign weights") + bytes_of(backward, "gradient on its way home") ==
        4 * (F > 0 ? F + 1 : 0) * N);
  CHECK(bytes_of(backward, "scratch") ==
        std::max(sort, expert.backward_scratch_bytes(static_cast<index_t>(in), 1)));
  // Nothing that is not in the table.
  CHECK(plan.end() - plan.begin() == 7);
  CHECK(forward.end() - forward.begin() == static_cast<std::ptrdiff_t>(4 + 6 * n + 2));
  CHECK(backward.end() - backward.begin() == static_cast<std::ptrdiff_t>(4 + 11 * n + 4));
}

} // namespace

TEST_CASE("the working set is the table of docs/dispatch.md") {
  op::shape s;
  s.tokens = 5000, s.experts = 16, s.top_k = 3, s.widths = {24, 2};
  s.send_cap_rows = 300, s.receive_cap_rows = 200;
  check_table(s, 4);
  s.ordered = true, s.slots = 3, s.result_width = 40;
  check_table(s, 2);
  s.tokens = 10; // caps above all rows
  s.slots = 1, s.ordered = false, s.result_width = 0;
  check_table(s, 1);
  s.placement.policy = pl::placement_policy::native;
  check_table(s, 4);
}
