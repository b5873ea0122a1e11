// SPDX-License-Identifier: Apache-2.0
//
// The scratch model against the answers of the libraries themselves: those for the GPU at hand and, where
// CUB's tuning tables have the names of CCCL 3.0, while this file is compiled, those for every GPU.
#include <plateau/cuda.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

namespace pl = plateau;
using pl::index_t;
namespace cudart = plateau::cudart;

namespace {

// The sizes of whole tiles and portions, and what lies around them; lengths only, nothing is allocated.
std::vector<index_t> lengths() {
  std::vector<index_t> all;
  for (const index_t base :
       {index_t{1}, index_t{256}, index_t{896}, index_t{2816}, index_t{3072}, index_t{5376}, index_t{1} << 20,
        index_t{1} << 27, index_t{1} << 28, index_t{1} << 30, index_t{1} << 31, index_t{1} << 33})
    for (const index_t around : {base - 1, base, base + 1, 3 * base})
      if (around > 0) all.push_back(around);
  return all;
}

template <class Order> std::size_t sort_wants(index_t n, int bits) {
  std::size_t bytes = 0;
  const std::uint32_t* keys = nullptr;
  const Order* positions = nullptr;
  cudart::check(cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys, static_cast<std::uint32_t*>(nullptr),
                                                positions, static_cast<Order*>(nullptr), n, 0, bits),
                "SortPairs");
  return bytes;
}
std::size_t scan_wants(index_t n) {
  std::size_t bytes = 0;
  const std::int64_t* values = nullptr;
  cudart::check(cub::DeviceScan::ExclusiveSum(nullptr, bytes, values, static_cast<std::int64_t*>(nullptr),
                                              static_cast<cudart::scan_count>(n)),
                "ExclusiveSum");
  return bytes;
}

} // namespace

TEST_CASE("what CUB wants is never more than the model says, and not much less") {
  const pl::cuda_backend backend; // opens the device
  for (const index_t n : lengths()) {
    CAPTURE(n);
    for (const int bits : {1, 7, 8, 9, 16, 17, 25, 32}) {
      CAPTURE(bits);
      CHECK(sort_wants<std::int32_t>(n, bits) <= cudart::radix_sort_bytes(n));
      CHECK(sort_wants<std::int64_t>(n, bits) <= cudart::radix_sort_bytes(n));
    }
    if (n > 1 << 20) CHECK(cudart::radix_sort_bytes(n) <= 1.25 * sort_wants<std::int64_t>(n, 32));
    if (n > std::numeric_limits<cudart::scan_count>::max()) continue;
    CHECK(scan_wants(n) <= cudart::scan_bytes(n));
  }
}

#if CUB_VERSION / 100 == 3000 && defined(__NVCC__)

namespace {
// The model of the sort counts a tile as 1,024 items and a portion as 2^27, that of the scan a tile as 512.
template <class Policy> constexpr bool sorts_in_tiles() {
  using tile = typename Policy::OnesweepPolicy;
  constexpr index_t items = index_t{tile::ITEMS_PER_THREAD} * tile::BLOCK_THREADS;
  return Policy::ONESWEEP && Policy::ONESWEEP_RADIX_BITS == 8 && items >= 1024 &&
         ((index_t{1} << 28) - 1) / items * items >= index_t{1} << 27;
}
template <class Order> constexpr bool sorts_in_tiles_everywhere() {
  using table = cub::detail::radix::policy_hub<std::uint32_t, Order, unsigned long long>;
  return sorts_in_tiles<typename table::Policy600>() && sorts_in_tiles<typename table::Policy610>() &&
         sorts_in_tiles<typename table::Policy620>() && sorts_in_tiles<typename table::Policy700>() &&
         sorts_in_tiles<typename table::Policy800>() && sorts_in_tiles<typename table::Policy900>() &&
         sorts_in_tiles<typename table::Policy1000>() &&
         std::is_same_v<typename table::MaxPolicy, typename table::Policy1000>;
}
static_assert(sorts_in_tiles_everywhere<std::int32_t>() && sorts_in_tiles_everywhere<std::int64_t>());

template <class Policy>
constexpr bool scans_in_tiles =
    index_t{Policy::ScanPolicyT::ITEMS_PER_THREAD} * Policy::ScanPolicyT::BLOCK_THREADS >= 512;
using scan_table = cub::detail::scan::policy_hub<std::int64_t, std::int64_t, std::int64_t, unsigned long long,
                                                 ::cuda::std::plus<>>;
static_assert(scans_in_tiles<scan_table::Policy600> && scans_in_tiles<scan_table::Policy800> &&
              scans_in_tiles<scan_table::Policy860> && scans_in_tiles<scan_table::Policy900> &&
              scans_in_tiles<scan_table::Policy1000>);
static_assert(std::is_same_v<scan_table::MaxPolicy, scan_table::Policy1000>);

// What the sort asks for, without a GPU: the dispatch for one policy.
template <class Policy> std::size_t sort_wants_on(index_t n, int bits) {
  using sort =
      cub::DispatchRadixSort<cub::SortOrder::Ascending, std::uint32_t, std::int64_t, unsigned long long>;
  cub::DoubleBuffer<std::uint32_t> keys;
  cub::DoubleBuffer<std::int64_t> positions;
  std::size_t bytes = 0;
  sort dispatch(nullptr, bytes, keys, positions, static_cast<unsigned long long>(n), 0, bits, false, nullptr,
                0);
  cudart::check(dispatch.template InvokeOnesweep<Policy>(), "InvokeOnesweep");
  return bytes;
}
std::size_t scan_state_on_tiles_of(index_t n, index_t items) {
  std::size_t bytes = 0;
  cudart::check(
      cub::ScanTileState<std::int64_t>{}.AllocationSize(static_cast<int>((n - 1) / items + 1), bytes),
      "AllocationSize");
  return bytes;
}
} // namespace

TEST_CASE("what CUB would want on other GPUs is never more than the model says") {
  using table = cub::detail::radix::policy_hub<std::uint32_t, std::int64_t, unsigned long long>;
  for (const index_t n : lengths()) {
    CAPTURE(n);
    for (const int bits : {1, 8, 9, 32}) {
      CAPTURE(bits);
      CHECK(sort_wants_on<table::Policy600>(n, bits) <= cudart::radix_sort_bytes(n));
      CHECK(sort_wants_on<table::Policy700>(n, bits) <= cudart::radix_sort_bytes(n));
      CHECK(sort_wants_on<table::Policy800>(n, bits) <= cudart::radix_sort_bytes(n));
      CHECK(sort_wants_on<table::Policy900>(n, bits) <= cudart::radix_sort_bytes(n));
      CHECK(sort_wants_on<table::Policy1000>(n, bits) <= cudart::radix_sort_bytes(n));
    }
    // CUB counts the bytes of all tiles in 32 bits.
    if (n < index_t{1} << 32)
      CHECK(cudart::rounded_up(scan_state_on_tiles_of(n, 896), 256) + 255 <= cudart::scan_bytes(n));
  }
}

#endif
