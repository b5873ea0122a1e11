// SPDX-License-Identifier: Apache-2.0
//
// Grouping by key on a GPU: CUB sorts the positions by their keys, which is stable, and a binary search in
// the sorted keys finds where each group begins. Keys outside [0, keys) all become one key behind the others,
// and only as many bits are sorted as that one has.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/cuda/cccl.hpp>
#include <plateau/cuda/check.hpp>
#include <plateau/cuda/launch.hpp>
#include <plateau/cuda/scan.hpp>
#include <plateau/cuda/scratch_model.hpp>
#include <plateau/scratch.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>

#if defined(__CUDACC__)
#include <cub/device/device_radix_sort.cuh>
#endif

namespace plateau::inline v0::cudart {

namespace detail {
struct number_keys {
  std::uint32_t outside;
  template <class Order, class S>
  PLATEAU_HD void operator()(index_t i, view<const std::int32_t, S> ids, view<std::uint32_t> keys,
                             view<Order> positions) const {
    const std::int32_t id = ids[i];
    keys[i] = id >= 0 && static_cast<std::uint32_t>(id) < outside ? static_cast<std::uint32_t>(id) : outside;
    positions[i] = static_cast<Order>(i);
  }
};
// offsets[k]: how many keys are less than k.
struct find_offsets {
  std::uint32_t outside;
  template <class S>
  PLATEAU_HD void operator()(index_t k, view<const std::uint32_t> sorted,
                             view<std::int64_t, S> offsets) const {
    // More keys than an id can name: groups behind the last possible id are empty.
    const std::uint32_t key = k < static_cast<index_t>(outside) ? static_cast<std::uint32_t>(k) : outside;
    index_t first = 0, count = sorted.n;
    while (count > 0) {
      const index_t step = count / 2;
      if (sorted[first + step] < key) {
        first += step + 1;
        count -= step + 1;
      } else {
        count = step;
      }
    }
    offsets[k] = first;
  }
};
} // namespace detail

// See host::group_by_key for what it computes. The scratch is that of the model.
template <class Order, class S>
void group_by_key(cudaStream_t stream, view<const std::int32_t, S> ids, [[maybe_unused]] view<Order, S> order,
                  view<std::int64_t, S> offsets, scratch_view scratch, source_line at) {
  const index_t keys = offsets.n - 1;
  const auto outside = static_cast<std::uint32_t>(std::min(keys, index_t{1} << 31)); // ids end below 2^31
  const group_by_key_parts parts(ids.n);
  const view<std::uint32_t> sorted{reinterpret_cast<std::uint32_t*>(scratch.p + parts.sorted_keys), ids.n};
  if (ids.n != 0) {
    const view<std::uint32_t> numbered{reinterpret_cast<std::uint32_t*>(scratch.p), ids.n};
    const view<Order> positions{reinterpret_cast<Order*>(scratch.p + parts.positions), ids.n};
    launch(stream, elements{ids.n}, at, detail::number_keys{outside}, ids, numbered, positions);
#if defined(__CUDACC__)
    forget_last_error();
    const int bits = std::max(1, static_cast<int>(std::bit_width(outside)));
    std::size_t wanted = 0, given = parts.total - parts.sort;
    check(cub::DeviceRadixSort::SortPairs(nullptr, wanted, numbered.p, sorted.p, positions.p, order.p, ids.n,
                                          0, bits, stream),
          "cub::DeviceRadixSort::SortPairs", at.file, at.line);
    check_wanted("group_by_key", wanted, given, at);
    check(cub::DeviceRadixSort::SortPairs(scratch.p + parts.sort, given, numbered.p, sorted.p, positions.p,
                                          order.p, ids.n, 0, bits, stream),
          "cub::DeviceRadixSort::SortPairs", at.file, at.line);
#endif
  }
  launch(stream, elements{offsets.n}, at, detail::find_offsets{outside}, view<const std::uint32_t>(sorted),
         offsets);
}

} // namespace plateau::inline v0::cudart
