// SPDX-License-Identifier: Apache-2.0
//
// What has gone wrong with optimizers elsewhere, by the rows of the field reports, on a streamed AdamW. O4,
// O5, O12, O13 and O14 are the pipeline's; O1 and O9 have more in unit/adamw_update_test.cpp.

#include "support/adamw_case.hpp"
#include "support/rank_fixtures.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <vector>

namespace pl = plateau;
using pl::bfloat16, pl::device_space, pl::host_space, pl::index_t, pl::update_on;
using support::adamw_case, support::adamw_at_once, support::adamw_result, support::run_adamw,
    support::same_bits;
using threads = support::on_threads<>;

namespace {

constexpr update_on both[] = {update_on::device, update_on::host};

template <class T> std::vector<T> part(const std::vector<T>& v, index_t first, index_t n) {
  return {v.begin() + first, v.begin() + first + n};
}

} // namespace

TEST_CASE("O1: the tail of a tensor is updated as its body is, at its second step too") {
  for (const index_t n : {0, 1, 15, 16, 17, 22, 127, 128, 129, 1025, 1045, 100003})
    for (const update_on where : both) {
      CAPTURE(n);
      adamw_case c;
      c.tensors = {{n}};
      c.shape = {n < 2000 ? 100 : 30000, 3, where};
      c.steps = 2;
      const auto found = run_adamw<float, bfloat16>(c, 1, threads());
      CHECK(found[0].same_state(adamw_at_once<float, bfloat16>(c, 0, found[0].norms)));
    }
}

TEST_CASE("O2: a tensor of 32 x 64 is updated in all of its 2048 elements") {
  adamw_case c;
  c.tensors = {{32 * 64}};
  c.shape.bucket_elements = 500;
  c.steps = 1;
  const auto found = run_adamw<float, float>(c, 1, threads());
  adamw_case none = c;
  none.steps = 0;
  const auto before = run_adamw<float, float>(none, 1, threads());
  for (std::size_t i = 0; i < 2048; ++i)
    if (found[0].master[i] == before[0].master[i] || found[0].m[i] == 0)
      FAIL("element " << i << " is as it was");
}

TEST_CASE("O3: sizes beyond 32 bits") {
  constexpr index_t n = (index_t{1} << 31) + 5, rows = pl::adamw_update::rows_of(n);
  CHECK(rows == (index_t{1} << 20) + 1);
  // The last row of a tensor of 2^31 + 5 elements, whose memory does not exist: views that begin so far
  // before the memory of that row that its elements are there. Addresses are formed as integers.
  constexpr index_t first = (rows - 1) * pl::adamw_update::row_elements;
  std::vector<float> g(5, 0.5f), master(5, 1.0f), m(5), v(5);
  const std::vector<float> control{1, 0};
  const auto of = [](auto& memory) {
    using T = std::remove_reference_t<decltype(memory[0])>;
    const auto at =
        reinterpret_cast<std::uintptr_t>(memory.data()) - static_cast<std::uintptr_t>(first) * sizeof(T);
    return pl::view<T>{reinterpret_cast<T*>(at), n};
  };
  const auto f = pl::adamw_factors_of({}, 1);
  pl::host::run_rows(pl::cpu_level::baseline, rows - 1, rows, pl::adamw_update{f}, of(std::as_const(g)),
                     support::all(control), of(master), of(m), of(v));
  for (std::size_t i = 0; i < 5; ++i) CHECK(m[i] == f.rest1 * 0.5f);
  for (std::size_t i = 0; i < 5; ++i) CHECK(master[i] < 0.9995f);
  const std::vector<index_t> tensors{n, 3};
  const auto plan = pl::bucket_plan::elementwise(tensors, 1 << 20);
  const pl::bucket last = plan.at(plan.buckets() - 1);
  CHECK(plan.buckets() == 2049);
  CHECK(plan.part_of(last, 0).first == index_t{1} << 31);
  CHECK(plan.part_of(last, 1).at == 5);
  // State beyond any budget names its bytes: nothing is updated silently.
  try {
    pl::run_ranks<pl::thread_communicator>(1, [&](pl::thread_communicator& comm) {
      using adamw_type = pl::streamed_adamw<pl::host_backend, pl::thread_communicator, float, bfloat16>;
      pl::host_backend backend;
      backend.pinned().meter().limit(1 << 20);
      pl::workspace<pl::host_backend> space(backend, adamw_type::working_set_of({16, 2}, 1, 1));
      const std::vector<pl::adamw_tensor> large{{n}};
      adamw_type adamw(backend, comm, large, {16, 2}, space);
    });
    FAIL("a state of 24 GiB fits into 1 MiB");
  } catch (const pl::collective_error& e) {
    CHECK(std::string(e.what()).find(std::to_string(n * 4)) != std::string::npos);
  }
}

TEST_CASE("O6: gradient, none, gradient: bits and count of a tensor without one stay, and the stale one is "
          "not used") {
  for (const update_on where : both) {
    adamw_case c;
    c.tensors = {{40}, {50}, {30}};
    c.shape = {16, 2, where};
    c.absent = {{}, {1}, {}};
    // What lies in the absent tensor's place is not even looked at.
    c.bad_rank = 0, c.bad_step = 1, c.bad_element = 60, c.bad_value = std::numeric_limits<float>::quiet_NaN();
    c.steps = 1;
    const auto one = run_adamw<float, bfloat16>(c, 2, threads());
    c.steps = 2;
    const auto two = run_adamw<float, bfloat16>(c, 2, threads());
    c.steps = 3;
    const auto three = run_adamw<float, bfloat16>(c, 2, threads());
    for (std::size_t r = 0; r < 2; ++r) {
      CHECK(two[r].steps == std::vector<std::int64_t>{2, 1, 2});
      CHECK(three[r].steps == std::vector<std::int64_t>{3, 2, 3});
      CHECK(same_bits(part(two[r].master, 40, 50), part(one[r].master, 40, 50)));
      CHECK(same_bits(part(two[r].m, 40, 50), part(one[r].m, 40, 50)));
      CHECK(same_bits(part(two[r].v, 40, 50), part(one[r].v, 40, 50)));
      CHECK(same_bits(part(two[r].parameters, 40, 50), part(one[r].parameters, 40, 50)));
      CHECK_FALSE(same_bits(part(two[r].master, 0, 40), part(one[r].master, 0, 40)));
      CHECK(pl::is_finite(two[r].norms[1]));
      CHECK(three[r].same_state(adamw_at_once<float, bfloat16>(c, static_cast<int>(r), three[r].norms)));
    }
  }
}

namespace {
// One gradient of one rank is `value` in the second of three steps.
void check_skipped(float value) {
  for (const update_on where : both)
    for (const bool same : {false, true}) {
      adamw_case c;
      c.tensors = {{40}, {50}};
      c.shape = {16, 3, where};
      c.same_on_all_ranks = same;
      c.steps = 1;
      const auto before = run_adamw<bfloat16, bfloat16>(c, 3, threads());
      // The last element of the last rank, which counts nothing where all have the same.
      c.bad_rank = 2, c.bad_step = 1, c.bad_element = 89, c.bad_value = value;
      c.steps = 2;
      const auto skipped = run_adamw<bfloat16, bfloat16>(c, 3, threads());
      c.steps = 3;
      const auto after = run_adamw<bfloat16, bfloat16>(c, 3, threads());
      for (std::size_t r = 0; r < 3; ++r) {
        CHECK_FALSE(pl::is_finite(skipped[r].norms[1]));
        CHECK(skipped[r].same_state(before[r]));
        CHECK(skipped[r].steps == std::vector<std::int64_t>{1, 1});
        CHECK(pl::is_finite(after[r].norms[2]));
        CHECK(after[r].norms[2] == after[0].norms[2]);
        CHECK(after[r].steps == std::vector<std::int64_t>{2, 2});
        CHECK(after[r].same_state(adamw_at_once<bfloat16, bfloat16>(c, static_cast<int>(r), after[r].norms)));
      }
    }
}
} // namespace

TEST_CASE("O7: one infinite gradient skips the step on every rank, no bit of the state changes") {
  check_skipped(std::numeric_limits<float>::infinity());
}
TEST_CASE("O8: a norm that is NaN skips the step on every rank, and the next one recovers") {
  check_skipped(std::numeric_limits<float>::quiet_NaN());
}

TEST_CASE("O9: one count a parameter, whatever the types, also beyond 32 bits") {
  adamw_case c;
  c.tensors = {{40}, {50}};
  c.absent = {{0}};
  c.steps = 2;
  const auto narrow = run_adamw<bfloat16, bfloat16>(c, 1, threads());
  const auto wide = run_adamw<float, float>(c, 1, threads());
  CHECK(narrow[0].steps == std::vector<std::int64_t>{1, 2});
  CHECK(wide[0].steps == std::vector<std::int64_t>{1, 2});
  auto late = narrow;
  late[0].steps[1] = (std::int64_t{1} << 40) + 1;
  c.absent = {};
  c.steps = 1;
  CHECK(run_adamw<bfloat16, bfloat16>(c, 1, threads(), &late, 2)[0].steps ==
        std::vector<std::int64_t>{2, (std::int64_t{1} << 40) + 2});
}

TEST_CASE("O10: shards without elements, on one rank or on all") {
  for (const update_on where : both) {
    adamw_case c;
    c.shape = {16, 3, where};
    for (const auto& tensors : {std::vector<pl::adamw_tensor>{}, {{0}}, {{0}, {5}, {0}}}) {
      c.tensors = tensors;
      const auto found = run_adamw<float, bfloat16>(c, 2, threads());
      for (int r = 0; r < 2; ++r)
        CHECK(found[static_cast<std::size_t>(r)].same_state(
            adamw_at_once<float, bfloat16>(c, r, found[static_cast<std::size_t>(r)].norms)));
    }
  }
}

TEST_CASE("O11: state that was saved goes on to the bit, with other buckets, on the other side") {
  adamw_case c;
  c.tensors = {{40}, {0}, {50}, {7}};
  c.absent = {{}, {2}, {}, {0}};
  c.shape = {16, 3};
  c.steps = 4;
  const auto whole = run_adamw<float, bfloat16>(c, 2, threads());
  adamw_case first = c, second = c;
  first.steps = 2;
  const auto saved = run_adamw<float, bfloat16>(first, 2, threads());
  for (const update_on where : both)
    for (const index_t bucket : {1, 33, 1000}) {
      second.steps = 2;
      second.shape = {bucket, 2, where};
      const auto rest = run_adamw<float, bfloat16>(second, 2, threads(), &saved, 2);
      for (std::size_t r = 0; r < 2; ++r) CHECK(rest[r].same_state(whole[r]));
    }
}
