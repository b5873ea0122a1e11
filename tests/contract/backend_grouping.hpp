// SPDX-License-Identifier: Apache-2.0
//
// The backend contract: grouping by key is stable and keeps what has no group at the end, scans and column
// sums are exact, the latter in an order that the shape alone fixes.
#pragma once

#include "backend_rig.hpp"

#include <plateau/column_sum.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace backend_contract {

template <class Order, class Backend>
void check_grouping(rig<Backend>& r, const std::vector<std::int32_t>& ids, index_t keys) {
  CAPTURE(ids.size());
  CAPTURE(keys);
  const auto n = static_cast<index_t>(ids.size());
  std::vector<Order> order;
  std::vector<std::int64_t> offsets;
  const auto is_key = [&](std::int32_t id) { return id >= 0 && id < keys; };
  for (index_t k = 0; k <= keys; ++k) {
    offsets.push_back(static_cast<std::int64_t>(order.size()));
    for (index_t i = 0; i < n; ++i) {
      const std::int32_t id = ids[static_cast<std::size_t>(i)];
      if (is_key(id) ? id == k : k == keys) order.push_back(static_cast<Order>(i));
    }
  }
  auto device_ids = r.upload(ids);
  auto device_order = r.upload(std::vector<Order>(static_cast<std::size_t>(n + 1), Order{-7}));
  auto device_offsets = r.upload(std::vector<std::int64_t>(static_cast<std::size_t>(keys + 2), -7));
  auto scratch =
      r.template device<unsigned char>(static_cast<index_t>(Backend::group_by_key_scratch_bytes(n, keys)));
  r.b.group_by_key(r.s, in(device_ids.all()), out(device_order.first(n)), out(device_offsets.first(keys + 1)),
                   scratch.all());
  order.push_back(-7); // nobody's
  offsets.push_back(-7);
  CHECK(r.download(device_order.all()) == order);
  CHECK(r.download(device_offsets.all()) == offsets);
}

template <class Backend> void grouping(const subject<Backend>& under_test) {
  rig<Backend> r(under_test);
  constexpr std::int32_t least = std::numeric_limits<std::int32_t>::min(),
                         most = std::numeric_limits<std::int32_t>::max();
  std::vector<std::int32_t> many(1000);
  std::uint32_t state = 1;
  for (auto& id : many) {
    state = state * 1664525u + 1013904223u;
    id = static_cast<std::int32_t>(state >> 20) % 330 - 10; // some below, some above
  }
  for (const index_t keys : {0, 1, 3, 300}) {
    check_grouping<std::int32_t>(r, {}, keys);
    check_grouping<std::int64_t>(r, {0}, keys);
    check_grouping<std::int32_t>(r, {2, 0, least, 2, most, 1, -1, 0, 2, 3}, keys);
    check_grouping<std::int64_t>(r, {2, 0, least, 2, most, 1, -1, 0, 2, 3}, keys);
    check_grouping<std::int32_t>(r, many, keys);
    check_grouping<std::int64_t>(r, many, keys);
  }
}

template <class Backend> void refusals_of_grouping(const subject<Backend>& under_test) {
  rig<Backend> r(under_test);
  auto ids = r.template device<std::int32_t>(7);
  auto order = r.template device<std::int64_t>(8);
  const std::size_t needed = Backend::group_by_key_scratch_bytes(7, 2);
  auto scratch = r.template device<unsigned char>(static_cast<index_t>(needed));
  int first = __LINE__;
  std::string text = refusal(
      [&] { r.b.group_by_key(r.s, in(ids.all()), out(order.first(6)), out(order.first(3)), scratch.all()); });
  CHECK(has(text, "7 against 6"));
  CHECK(names_line(text, "backend_grouping.hpp", first, __LINE__));
  text = refusal([&] {
    r.b.group_by_key(r.s, in(ids.all()), out(order.first(7)), out(view<std::int64_t>{}), scratch.all());
  });
  CHECK(has(text, "keys + 1"));
  if (needed > 0) {
    text = refusal([&] {
      r.b.group_by_key(r.s, in(ids.all()), out(order.first(7)), out(order.first(3)),
                       scratch.first(static_cast<index_t>(needed) - 1));
    });
    CHECK(has(text, std::to_string(needed)));
  }
  // Refused before anything is read.
  const index_t long_list = index_t{std::numeric_limits<std::int32_t>::max()} + 2;
  text = refusal([&] {
    r.b.group_by_key(r.s, in(view<std::int32_t>{nullptr, long_list}),
                     out(view<std::int32_t>{nullptr, long_list}), out(order.first(3)), scratch.all());
  });
  CHECK(has(text, std::to_string(long_list)));
}

template <class Backend> void scans(const subject<Backend>& under_test) {
  rig<Backend> r(under_test);
  for (const index_t n : {1, 2, 33, 1000}) {
    CAPTURE(n);
    std::vector<std::int64_t> values(static_cast<std::size_t>(n)), expected;
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = (std::int64_t{1} << 40) * static_cast<std::int64_t>(i % 7) - 3;
      expected.push_back(sum);
      sum += values[i];
    }
    expected.push_back(sum);
    auto x = r.upload(values);
    auto y = r.template device<std::int64_t>(n + 1);
    auto scratch =
        r.template device<unsigned char>(static_cast<index_t>(Backend::exclusive_scan_scratch_bytes(n)));
    r.b.exclusive_scan(r.s, in(x.all()), out(y.all()), scratch.all());
    CHECK(r.download(y.all()) == expected);
  }
}
template <class Backend> void refusals_of_scans(const subject<Backend>& under_test) {
  rig<Backend> r(under_test);
  for (const index_t n : {1, 2, 33}) {
    auto x = r.template device<std::int64_t>(n), y = r.template device<std::int64_t>(n + 1);
    auto scratch =
        r.template device<unsigned char>(static_cast<index_t>(Backend::exclusive_scan_scratch_bytes(n)));
    int first = __LINE__;
    const std::string text =
        refusal([&] { r.b.exclusive_scan(r.s, in(x.all()), out(y.first(n)), scratch.all()); });
    CHECK(has(text, "needs one more"));
    CHECK(has(text, std::to_string(n)));
    CHECK(names_line(text, "backend_grouping.hpp", first, __LINE__));
  }
}

// In float, in the documented order: blocks of 256 rows from the top down, then the blocks.
template <class T>
std::vector<float> sums_in_order(const std::vector<T>& x, index_t row_count, index_t columns, index_t ld,
                                 std::vector<float> sums) {
  for (index_t c = 0; c < columns; ++c)
    for (index_t block = 0; block < row_count; block += 256) {
      volatile float partial = 0;
      for (index_t r = block; r < std::min(block + 256, row_count); ++r)
        partial = partial + float(x[static_cast<std::size_t>(r * ld + c)]);
      sums[static_cast<std::size_t>(c)] += partial;
    }
  return sums;
}

template <class Backend> void column_sums(const subject<Backend>& under_test) {
  rig<Backend> r(under_test);
  struct extents {
    index_t rows, columns;
  };
  const auto check = [&]<class T>(T, extents e, index_t padding) {
    CAPTURE(e.rows);
    CAPTURE(e.columns);
    const index_t ld = e.columns + padding;
    const auto values = numbers<T>(e.rows * ld, 3);
    const auto start = numbers<float>(e.columns + 1, 4);
    auto x = r.upload(values);
    auto sums = r.upload(start);
    auto scratch = r.template device<unsigned char>(
        static_cast<index_t>(pl::column_sum_scratch_bytes(e.rows, e.columns)));
    pl::column_sum(r.b, r.s, in(tile<T>{x.data(), e.rows, e.columns, ld}), inout(sums.first(e.columns)),
                   scratch.all());
    const auto got = r.download(sums.all());
    CHECK(same_bits(got, sums_in_order(values, e.rows, e.columns, ld, start)));
    for (index_t c = 0; c < e.columns; ++c) { // and in double
      double sum = start[static_cast<std::size_t>(c)], size = 1;
      for (index_t q = 0; q < e.rows; ++q) {
        const double v = float(values[static_cast<std::size_t>(q * ld + c)]);
        sum += v;
        size += v * v;
      }
      if (std::abs(got[static_cast<std::size_t>(c)] - sum) > 0x1p-18 * size)
        CHECK(got[static_cast<std::size_t>(c)] == sum);
    }
  };
  for (const extents e : {extents{1, 1}, {3, 7}, {255, 5}, {256, 256}, {257, 257}, {700, 33}, {513, 300}}) {
    check(0.0F, e, 0);
    check(0.0F, e, 5);
    check(pl::bfloat16(0.0F), e, 3);
  }
}

} // namespace backend_contract
