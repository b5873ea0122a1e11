// SPDX-License-Identifier: Apache-2.0
//
// What backends refuse before they copy, group, scan or fetch: every rule and its sentence.
#include <plateau/operation_checks.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <string>

namespace {

namespace pl = plateau;
using pl::index_t;
using pl::source_line;

constexpr source_line here{"model.cpp", 12};

template <class F> std::string refusal(F f) {
  try {
    f();
  } catch (const pl::config_error& e) {
    return e.what();
  }
  return "";
}
pl::view<float> floats(index_t n) { return {nullptr, n}; }
pl::tile<float> matrix(index_t rows, index_t cols) { return {nullptr, rows, cols, cols + 5}; }
template <class T> pl::view<T> of(index_t n) { return {nullptr, n}; }

} // namespace

TEST_CASE("copies: as many elements, or the same extents") {
  CHECK(refusal([] { pl::check_copy(floats(3), floats(3), "main"); }) == "");
  CHECK(refusal([] { pl::check_copy(floats(0), floats(0), "main"); }) == "");
  CHECK(refusal([] {
          pl::check_copy(pl::view<const float, pl::host_space>{nullptr, 3}, floats(3), "main");
        }) == "");
  CHECK(refusal([] { pl::check_copy(floats(3), floats(4), "main", here, "rank 2"); }) ==
        "plateau: rank 2: copy: 3 against 4 elements, on stream 'main' at model.cpp:12");
  CHECK(refusal([] { pl::check_copy(floats(4), floats(3), "main"); }) ==
        "plateau: copy: 4 against 3 elements, on stream 'main'");
  CHECK(refusal([] { pl::check_copy(matrix(3, 4), matrix(3, 4), "main"); }) == "");
  CHECK(refusal([] { pl::check_copy(matrix(3, 4), matrix(4, 3), "main", here); }) ==
        "plateau: copy: (3, 4) against (4, 3) elements, on stream 'main' at model.cpp:12");
  CHECK(refusal([] { pl::check_copy(matrix(3, 4), matrix(3, 5), "main"); }) != "");
  CHECK(refusal([] { pl::check_copy(matrix(2, 4), matrix(3, 4), "main"); }) != "");
  // D9, V5, O3: beyond 32 bits
  const index_t many = index_t{912'000} * 7168;
  CHECK(refusal([&] { pl::check_copy(floats(many), floats(many), "main"); }) == "");
  CHECK(refusal([&] { pl::check_copy(floats(many), floats(many - (index_t{1} << 32)), "main"); }) != "");
}

TEST_CASE("batches: one tile of each operand") {
  CHECK(refusal([] { pl::check_batch_counts(4, 4, 4, "main"); }) == "");
  CHECK(refusal([] { pl::check_batch_counts(3, 4, 4, "main", here, "rank 0"); }) ==
        "plateau: rank 0: gemm of batches: 3 and 4 against 4 elements, on stream 'main' at model.cpp:12");
  CHECK(refusal([] { pl::check_batch_counts(4, 3, 4, "main"); }) != "");
  CHECK(refusal([] { pl::check_batch_counts(4, 4, 3, "main"); }) != "");
}

TEST_CASE("grouping: an order as long as the ids, offsets for keys + 1, positions that fit") {
  using i32 = std::int32_t;
  using i64 = std::int64_t;
  CHECK(refusal([] { pl::check_group_by_key(of<i32>(7), of<i32>(7), 3, "main"); }) == "");
  CHECK(refusal([] { pl::check_group_by_key(of<i32>(0), of<i64>(0), 1, "main"); }) == "");
  CHECK(refusal([] { pl::check_group_by_key(of<i32>(7), of<i32>(6), 3, "main", here, "rank 1"); }) ==
        "plateau: rank 1: group_by_key: 7 against 6 elements, on stream 'main' at model.cpp:12");
  CHECK(refusal([] { pl::check_group_by_key(of<i32>(7), of<i32>(7), 0, "main", here); }) ==
        "plateau: group_by_key: offsets needs keys + 1 elements, got none at model.cpp:12");
  constexpr index_t most = std::numeric_limits<i32>::max();
  CHECK(refusal([] { pl::check_group_by_key(of<i32>(most + 1), of<i32>(most + 1), 3, "main"); }) == "");
  CHECK(refusal([] { pl::check_group_by_key(of<i32>(most + 2), of<i32>(most + 2), 3, "main", here); }) ==
        "plateau: group_by_key: 2147483649 positions do not fit into an order of 32-bit integers at "
        "model.cpp:12");
  CHECK(refusal([] { pl::check_group_by_key(of<i32>(most + 2), of<i64>(most + 2), 3, "main"); }) == "");
}

TEST_CASE("scans: one sum more than values") {
  CHECK(refusal([] { pl::check_exclusive_scan(5, 6, "main"); }) == "");
  CHECK(refusal([] { pl::check_exclusive_scan(0, 1, "main"); }) == "");
  CHECK(refusal([] { pl::check_exclusive_scan(5, 5, "main", here, "rank 3"); }) ==
        "plateau: rank 3: exclusive_scan (sums needs one more): 5 against 5 elements, on stream 'main' at "
        "model.cpp:12");
  CHECK(refusal([] { pl::check_exclusive_scan(0, 0, "main"); }) != "");
}

TEST_CASE("fetches: storage for each value, and the label in the error") {
  CHECK(refusal([] { pl::check_fetch(3, 3, "counts"); }) == "");
  CHECK(refusal([] { pl::check_fetch(0, 0, "counts"); }) == "");
  CHECK(refusal([] { pl::check_fetch(3, 2, "counts", "rank 4"); }) ==
        "plateau: rank 4: fetch of 'counts': 3 values into storage for 2");
  CHECK(refusal([] { pl::check_fetch(0, 2, "counts"); }) != "");
}
