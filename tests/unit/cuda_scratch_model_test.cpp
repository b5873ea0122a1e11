// SPDX-License-Identifier: Apache-2.0
//
// The scratch model of the CUDA backend, a header that needs no CUDA: what it promises of any shape, and that
// a dry run takes its sizes from it.
#include <plateau/cuda/scratch_model.hpp>

#include <plateau/checks.hpp>
#include <plateau/dry_run/backend.hpp>
#include <plateau/resource.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <string>

namespace pl = plateau;
using pl::cuda_scratch, pl::index_t, pl::transpose;
using pl::in, pl::inout, pl::out;

static_assert(pl::scratch_model<cuda_scratch>);
static_assert(pl::check_backend<pl::dry_run<cuda_scratch>>());
static_assert(!pl::dry_run<cuda_scratch>::row_invariant);
static_assert(pl::accessible_from<pl::dry_run<cuda_scratch>, pl::device_space> &&
              !pl::accessible_from<pl::dry_run<cuda_scratch>, pl::host_space>);

namespace {
constexpr index_t sizes[] = {1,    2,    255,     256,           257,     1023,
                             1024, 4097, 1 << 20, (1 << 27) - 1, 1 << 27, index_t{1} << 40};

std::size_t of_product(index_t m, index_t n, index_t k) {
  return cuda_scratch::gemm_scratch_bytes<pl::bfloat16, pl::bfloat16, float>(transpose::no, transpose::yes, m,
                                                                             n, k);
}
} // namespace

TEST_CASE("a product that multiplies something needs cuBLAS's workspace wherever its scratch begins") {
  for (const index_t first : sizes)
    for (const index_t second : sizes) {
      // Up to 240 bytes are lost until the next multiple of 256; the table of addresses lies behind the
      // workspace.
      CHECK(of_product(first, second, 1) >= 240 + (std::size_t{32} << 20) + 3 * 64 * 8);
      CHECK(of_product(first, second, 1) == of_product(1, 1, 1));
      CHECK(of_product(0, first, second) == 0);
      CHECK(of_product(first, 0, second) == 0);
      CHECK(of_product(first, second, 0) == 0);
    }
}

TEST_CASE(
    "grouping by key: the parts of the scratch hold what lies in them, and begin where CUDA reads them") {
  for (const index_t n : sizes) {
    CAPTURE(n);
    const pl::cudart::group_by_key_parts parts(n);
    const auto items = static_cast<std::size_t>(n);
    CHECK(parts.sorted_keys >= 4 * items);
    CHECK(parts.positions >= parts.sorted_keys + 4 * items);
    CHECK(parts.sort >= parts.positions + 8 * items);
    CHECK(parts.total >= parts.sort + 12 * items); // the second buffers of keys and positions
    for (const std::size_t at : {parts.sorted_keys, parts.positions, parts.sort}) CHECK(at % 16 == 0);
    CHECK(cuda_scratch::group_by_key_scratch_bytes(n, 1) == parts.total);
    CHECK(cuda_scratch::group_by_key_scratch_bytes(n, index_t{1} << 40) == parts.total);
    // Nothing but the second buffers grows faster than a byte for each id.
    CHECK(parts.total <= 29 * items + items / 1000 + 16384);
  }
  CHECK(cuda_scratch::group_by_key_scratch_bytes(0, 7) == 0);
}

TEST_CASE("scans need a sixteenth of a byte for each value, and almost nothing for few") {
  for (const index_t n : sizes) {
    CAPTURE(n);
    CHECK(cuda_scratch::exclusive_scan_scratch_bytes(n) >= (static_cast<std::size_t>(n) / 896 + 32) * 16);
    CHECK(cuda_scratch::exclusive_scan_scratch_bytes(n) <= static_cast<std::size_t>(n) / 32 + 2048);
  }
  CHECK(cuda_scratch::exclusive_scan_scratch_bytes(0) == 0);
}

TEST_CASE("no operation needs less for a larger shape") {
  for (std::size_t i = 1; i < std::size(sizes); ++i) {
    CAPTURE(sizes[i]);
    CHECK(cuda_scratch::group_by_key_scratch_bytes(sizes[i - 1], 8) <=
          cuda_scratch::group_by_key_scratch_bytes(sizes[i], 8));
    CHECK(cuda_scratch::exclusive_scan_scratch_bytes(sizes[i - 1]) <=
          cuda_scratch::exclusive_scan_scratch_bytes(sizes[i]));
  }
}

TEST_CASE("a dry run refuses less scratch than the CUDA backend would") {
  using backend = pl::dry_run<cuda_scratch>;
  backend b;
  const index_t n = 1000;
  const std::size_t of_grouping = backend::group_by_key_scratch_bytes(n, 8),
                    of_scan = backend::exclusive_scan_scratch_bytes(n);
  pl::device_buffer<unsigned char, backend> scratch(
      b.device(), static_cast<index_t>(std::max({of_grouping, of_scan, of_product(4, 4, 4)})),
      pl::tag::other);
  pl::device_buffer<std::int32_t, backend> ids(b.device(), n, pl::tag::other),
      order(b.device(), n, pl::tag::other);
  pl::device_buffer<std::int64_t, backend> offsets(b.device(), 9, pl::tag::other),
      values(b.device(), n, pl::tag::other), sums(b.device(), n + 1, pl::tag::other);
  pl::device_buffer<float, backend> x(b.device(), 16, pl::tag::other), y(b.device(), 16, pl::tag::other);
  auto s = b.make_stream("main");
  const auto refusal = [&](auto issue, std::size_t needed) {
    issue(scratch.first(static_cast<index_t>(needed)));
    try {
      issue(scratch.first(static_cast<index_t>(needed) - 1));
    } catch (const pl::config_error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const auto says = [](const std::string& text, std::size_t needed) {
    return text.find("needs " + std::to_string(needed) + " bytes of scratch, got " +
                     std::to_string(needed - 1)) != std::string::npos;
  };
  b.launch(
      s, pl::elements{n}, [](index_t, auto...) {}, out(ids.all()), out(values.all()), out(x.all()));
  CHECK(says(refusal(
                 [&](pl::scratch_view w) {
                   b.group_by_key(s, in(ids.all()), out(order.all()), out(offsets.all()), w);
                 },
                 of_grouping),
             of_grouping));
  CHECK(says(refusal([&](pl::scratch_view w) { b.exclusive_scan(s, in(values.all()), out(sums.all()), w); },
                     of_scan),
             of_scan));
  const auto needed = backend::gemm_scratch_bytes<float, float, float>(transpose::no, transpose::no, 4, 4, 4);
  CHECK(says(refusal(
                 [&](pl::scratch_view w) {
                   b.gemm(s, transpose::no, transpose::no, 1.0F, in(x.matrix(4, 4)), in(x.matrix(4, 4)), 0.0F,
                          out(y.matrix(4, 4)), w);
                 },
                 needed),
             needed));
}
