// SPDX-License-Identifier: Apache-2.0
//
// The backend contract: launches visit every index once and in stream order, copies reach every byte they
// name and no other, and what does not fit is refused with both sizes and the line.
#pragma once

#include "backend_rig.hpp"

#include <plateau/column_sum.hpp>
#include <plateau/kernels.hpp>

#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <vector>

namespace backend_contract {

inline bool same_work(const pl::counters& a, const pl::counters& b) {
  return a.launches == b.launches && a.copied_bytes == b.copied_bytes &&
         a.matrix_products == b.matrix_products && a.matrix_flops == b.matrix_flops &&
         a.host_round_trips == b.host_round_trips;
}

// Sizes of 0 are legal everywhere, with null pointers, and are not counted.
template <class Backend, class Kept> void issue_nothing(rig<Backend>& r, const Kept& kept) {
  const view<float> null{};
  const view<float, pl::host_space> null_host{};
  const tile<float> no_rows{nullptr, 0, 4, 4}, no_columns{nullptr, 4, 0, 0};
  const pl::tile_batch<float> no_tiles{nullptr, 0, 0, 2, 2, 2};
  const pl::counters before = r.b.counters();

  r.b.copy(r.s, in(null), out(null));
  r.b.copy(r.s, in(null_host), out(null));
  r.b.copy(r.s, in(null), out(null_host));
  r.b.copy(r.s, in(no_rows), out(no_rows));
  r.b.copy(r.s, in(no_columns), out(no_columns));
  r.b.launch(r.s, elements{0}, pl::fill<float>{7}, out(null));
  r.b.launch(r.s, elements{0}, pl::fill<float>{7}, some(kept.all()));
  r.b.launch(r.s, rows{0}, affine_row{2, 1}, inout(tile<std::uint32_t>{}));
  r.b.gemm(r.s, transpose::no, transpose::no, 1, in(no_rows), in(kept.matrix(4, 1)), 0,
           out(tile<float>{nullptr, 0, 1, 1}), {});
  r.b.gemm(r.s, transpose::no, transpose::no, 1, in(kept.matrix(1, 4)), in(no_columns), 1,
           inout(tile<float>{nullptr, 1, 0, 0}), {});
  r.b.gemm(r.s, transpose::no, transpose::no, 1, in(no_tiles), in(no_tiles), 0, out(no_tiles), {});
  r.b.grouped_gemm(r.s, transpose::no, transpose::no, 1, 1,
                   std::span<const pl::gemm_group<float, float, float>>(), {});
  const pl::gemm_group<float, float, float> empty_group{no_rows, kept.matrix(4, 1), {nullptr, 0, 1, 1}};
  r.b.grouped_gemm(r.s, transpose::no, transpose::no, 1, 0, std::span(&empty_group, 1), {});
  pl::column_sum(r.b, r.s, in(no_rows), inout(kept.all()), {});
  pl::column_sum(r.b, r.s, in(no_columns), inout(null), {});
  r.b.fetch(typename Backend::event{}, in(null_host), std::span<float>(), "nothing", 0.0F);
  r.b.wait(typename Backend::event{}); // done
  r.b.wait(r.s, typename Backend::event{});
  r.finish();
  CHECK(same_work(before, r.b.counters()));
}
template <class Backend> void nothing_is_counted(const subject<Backend>& under_test) {
  rig<Backend> r(under_test);
  issue_nothing(r, r.template device<float>(4));
}
// They do nothing either.
template <class Backend> void nothing_is_done(const subject<Backend>& under_test) {
  rig<Backend> r(under_test);
  auto scratch = r.template device<unsigned char>(4096);
  auto kept = r.template upload<float>({1, 2, 3, 4});
  issue_nothing(r, kept);
  CHECK(r.download(kept.all()) == std::vector<float>{1, 2, 3, 4});

  // Outputs that are never empty are written for empty inputs too.
  auto offsets = r.template upload<std::int64_t>({9, 9, 9, 9});
  r.b.group_by_key(r.s, in(view<std::int32_t>{}), out(view<std::int64_t>{}), out(offsets.all()),
                   scratch.all());
  CHECK(r.download(offsets.all()) == std::vector<std::int64_t>{0, 0, 0, 0});
  auto total = r.template upload<std::int64_t>({9});
  r.b.exclusive_scan(r.s, in(view<std::int64_t>{}), out(total.all()), scratch.all());
  CHECK(r.download(total.all()) == std::vector<std::int64_t>{0});
}

template <class Backend> void launches(const subject<Backend>& under_test) {
  rig<Backend> r(under_test);
  // Every index once, whatever the blocks of the machine; neighbours of the range untouched.
  for (const index_t n : {1, 7, 31, 32, 33, 64, 255, 257, 1000}) {
    CAPTURE(n);
    auto visits = r.upload(std::vector<std::int32_t>(static_cast<std::size_t>(n + 2), 5));
    r.b.launch(r.s, elements{n}, count_visit{}, inout(visits.all().sub(1, n)));
    auto expected = std::vector<std::int32_t>(static_cast<std::size_t>(n + 2), 6);
    expected.front() = expected.back() = 5;
    CHECK(r.download(visits.all()) == expected);
  }
  // In the order of issue: element and row launches, and copies between them.
  const index_t row_count = 5, columns = 37, n = row_count * columns;
  std::vector<std::uint32_t> expected(static_cast<std::size_t>(n));
  std::iota(expected.begin(), expected.end(), 0u);
  auto x = r.upload(expected);
  auto y = r.template device<std::uint32_t>(n);
  const pl::counters before = r.b.counters();
  for (std::uint32_t step = 0; step < 20; ++step) {
    r.b.launch(r.s, elements{n}, affine{2 * step + 1, step}, inout(x.all()));
    r.b.copy(r.s, in(x.all()), out(y.all()));
    r.b.launch(r.s, rows{row_count}, affine_row{3, step}, inout(y.matrix(row_count, columns)));
    r.b.copy(r.s, in(y.matrix(row_count, columns)), out(x.matrix(row_count, columns)));
    for (auto& v : expected) v = (v * (2 * step + 1) + step) * 3 + step;
  }
  CHECK(r.download(x.all()) == expected);
  const pl::counters spent = r.b.counters() - before;
  CHECK(spent.launches == 40);
  CHECK(spent.copied_bytes == 41 * static_cast<std::uint64_t>(n) * 4); // the download too
}

// Reductions, barriers and `once` of row kernels, over strided rows.
template <class Backend> void row_kernels(const subject<Backend>& under_test) {
  rig<Backend> r(under_test);
  for (const index_t n : {1, 5, 32, 33, 64, 100, 300}) {
    CAPTURE(n);
    const index_t row_count = 4, ld = n + 3;
    std::vector<std::int64_t> host(static_cast<std::size_t>(row_count * ld)), sums(4);
    for (std::size_t i = 0; i < host.size(); ++i) host[i] = static_cast<std::int64_t>(i * i % 1009);
    auto x = r.upload(host), y = r.upload(host), s = r.upload(sums);
    r.b.launch(r.s, rows{row_count}, fold_row{}, in(tile<std::int64_t>{x.data(), row_count, n, ld}),
               inout(tile<std::int64_t>{y.data(), row_count, n, ld}), out(s.all()));
    std::vector<std::int64_t> expected = host;
    for (index_t q = 0; q < row_count; ++q) {
      const std::int64_t* from = host.data() + q * ld;
      const std::int64_t sum = std::accumulate(from, from + n, std::int64_t{0});
      sums[static_cast<std::size_t>(q)] = sum;
      for (index_t i = 0; i < n; ++i) expected[static_cast<std::size_t>(q * ld + i)] = sum - from[n - 1 - i];
    }
    CHECK(r.download(s.all()) == sums);
    CHECK(r.download(y.all()) == expected);
  }
}

template <class Backend> void copies(const subject<Backend>& under_test) {
  rig<Backend> r(under_test);
  const auto values = numbers<float>(100, 1);
  const std::vector<float> marks(100, -7.0F);
  auto a = r.template pinned<float>(100), b = r.template pinned<float>(100);
  auto da = r.template device<float>(100), db = r.upload(marks);
  std::copy(values.begin(), values.end(), a.data());
  std::copy(marks.begin(), marks.end(), b.data());
  // Host to device to device to host to host, shifted each time; what lies around stays.
  r.b.copy(r.s, in(a.all()), out(da.all()));
  r.b.copy(r.s, in(da.all().sub(10, 50)), out(db.all().sub(20, 50)));
  r.b.copy(r.s, in(db.all().sub(15, 60)), out(b.all().sub(30, 60)));
  r.b.copy(r.s, in(b.all().sub(40, 10)), out(b.all().sub(0, 10)));
  r.finish();
  std::vector<float> expected = marks;
  std::copy_n(values.begin() + 10, 50, expected.begin() + 35);
  std::copy_n(expected.begin() + 40, 10, expected.begin());
  CHECK(std::vector<float>(b.data(), b.data() + 100) == expected);

  // Tiles with other pitches on both sides, in every direction, of an element of two bytes too.
  const auto tiles = [&]<class T>(T mark) {
    const auto stored = numbers<T>(6 * 11, 2);
    const std::vector<T> clean(7 * 13, mark);
    auto h = r.template pinned<T>(6 * 11), back = r.template pinned<T>(7 * 13);
    std::copy(stored.begin(), stored.end(), h.data());
    std::copy(clean.begin(), clean.end(), back.data());
    auto d1 = r.upload(clean), d2 = r.upload(clean);
    const tile<T, pl::host_space> from{h.data() + 1, 5, 8, 11}, to{back.data() + 3, 5, 8, 13};
    const tile<T> first{d1.data() + 2, 5, 8, 9}, second{d2.data() + 4, 5, 8, 12};
    r.b.copy(r.s, in(from), out(first));
    r.b.copy(r.s, in(first), out(second));
    r.b.copy(r.s, in(second), out(to));
    std::vector<T> want = clean;
    for (index_t i = 0; i < 5; ++i)
      for (index_t j = 0; j < 8; ++j)
        want[static_cast<std::size_t>(3 + i * 13 + j)] = stored[static_cast<std::size_t>(1 + i * 11 + j)];
    r.finish();
    CHECK(same_bits(std::vector<T>(back.data(), back.data() + back.size()), want));
    want = clean;
    for (index_t i = 0; i < 5; ++i)
      for (index_t j = 0; j < 8; ++j)
        want[static_cast<std::size_t>(4 + i * 12 + j)] = stored[static_cast<std::size_t>(1 + i * 11 + j)];
    CHECK(same_bits(r.download(d2.all()), want));
  };
  tiles(-7.0F);
  tiles(pl::bfloat16(-7.0F));
}

template <class Backend> void refusals_of_moves(const subject<Backend>& under_test) {
  rig<Backend> r(under_test);
  auto x = r.template device<float>(1000);
  const pl::counters before = r.b.counters();
  int first = __LINE__;
  std::string text = refusal([&] { r.b.copy(r.s, in(x.first(17)), out(x.all().sub(100, 23))); });
  CHECK(has(text, "17"));
  CHECK(has(text, "23"));
  CHECK(names_line(text, "backend_moves.hpp", first, __LINE__));
  first = __LINE__;
  text =
      refusal([&] { r.b.copy(r.s, in(x.matrix(3, 17)), out(pl::as_matrix(x.all().sub(100, 51), 17, 3))); });
  CHECK(has(text, "(3, 17)"));
  CHECK(has(text, "(17, 3)"));
  CHECK(names_line(text, "backend_moves.hpp", first, __LINE__));
  first = __LINE__;
  text = refusal([&] { pl::column_sum(r.b, r.s, in(x.matrix(3, 17)), inout(x.all().sub(100, 16)), {}); });
  CHECK(has(text, "17"));
  CHECK(has(text, "16"));
  CHECK(names_line(text, "backend_moves.hpp", first, __LINE__));
  first = __LINE__;
  text = refusal([&] { pl::column_sum(r.b, r.s, in(x.matrix(3, 17)), inout(x.all().sub(100, 17)), {}); });
  CHECK(has(text, "68 bytes of scratch, got 0"));
  CHECK(names_line(text, "backend_moves.hpp", first, __LINE__));
  auto scratch = r.template device<unsigned char>(256);
  first = __LINE__;
  text = refusal([&] {
    pl::column_sum(r.b, r.s, in(x.matrix(3, 17)), inout(x.all().sub(100, 17)), scratch.all().sub(8, 248));
  });
  CHECK(has(text, "8 bytes behind a multiple of 16"));
  CHECK(names_line(text, "backend_moves.hpp", first, __LINE__));
  first = __LINE__;
  text = refusal([&] { r.b.launch(r.s, elements{-5}, pl::fill<float>{1}, out(x.all())); });
  CHECK(has(text, "-5 elements"));
  CHECK(names_line(text, "backend_moves.hpp", first, __LINE__));
  text = refusal([&] { r.b.launch(r.s, rows{-1}, affine_row{2, 1}, inout(tile<std::uint32_t>{})); });
  CHECK(has(text, "-1 rows"));
  auto h = r.template pinned<float>(3);
  float two[2];
  text =
      refusal([&] { r.b.fetch(typename Backend::event{}, in(h.all()), std::span(two), "the pair", 0.0F); });
  CHECK(has(text, "'the pair'"));
  CHECK(has(text, "3 values"));
  CHECK(has(text, "2"));
  CHECK(same_work(before, r.b.counters()));
}

} // namespace backend_contract
