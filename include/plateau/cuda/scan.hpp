// SPDX-License-Identifier: Apache-2.0
//
// The exclusive scan, by CUB, with the total behind it, which CUB does not give.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/cuda/cccl.hpp>
#include <plateau/cuda/check.hpp>
#include <plateau/cuda/launch.hpp>
#include <plateau/cuda/scratch_model.hpp>
#include <plateau/error.hpp>
#include <plateau/scratch.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <cuda_runtime.h>

#include <limits>
#include <string>

#if defined(__CUDACC__)
#include <cub/device/device_scan.cuh>
#endif

namespace plateau::inline v0::cudart {

// Throws backend_error: a library wants more than the model gives. Nothing has been issued.
inline void check_wanted(const char* what, std::size_t wanted, std::size_t given, source_line at) {
  if (wanted > given)
    throw backend_error(std::string("plateau: ") + what + ": this version of CUB wants " +
                        std::to_string(wanted) + " bytes of scratch where cuda_scratch counts " +
                        std::to_string(given) + at.text());
}

// CUB asks for the thread's last error behind its launches: what other code left there is not its own.
inline void forget_last_error() { static_cast<void>(cudaGetLastError()); }

namespace detail {
struct append_total {
  template <class S>
  PLATEAU_HD void operator()(index_t, view<const std::int64_t, S> values, view<std::int64_t, S> sums) const {
    sums[values.n] = values.n == 0 ? 0 : sums[values.n - 1] + values[values.n - 1];
  }
};
} // namespace detail

// sums (n + 1) of values (n). The scratch is that of the model.
template <class S>
void exclusive_scan(cudaStream_t stream, view<const std::int64_t, S> values, view<std::int64_t, S> sums,
                    [[maybe_unused]] scratch_view scratch, source_line at) {
#if defined(__CUDACC__)
  if constexpr (sizeof(scan_count) < sizeof(index_t)) {
    constexpr index_t most = std::numeric_limits<scan_count>::max();
    if (values.n > most)
      throw config_error("plateau: exclusive_scan of " + std::to_string(values.n) +
                         " values: the CCCL of this toolkit scans at most " + std::to_string(most) +
                         at.text());
  }
  if (values.n != 0) {
    forget_last_error();
    const auto count = static_cast<scan_count>(values.n);
    std::size_t wanted = 0, given = scan_bytes(values.n);
    check(cub::DeviceScan::ExclusiveSum(nullptr, wanted, values.p, sums.p, count, stream),
          "cub::DeviceScan::ExclusiveSum", at.file, at.line);
    check_wanted("exclusive_scan", wanted, given, at);
    check(cub::DeviceScan::ExclusiveSum(scratch.p, given, values.p, sums.p, count, stream),
          "cub::DeviceScan::ExclusiveSum", at.file, at.line);
  }
#endif
  launch(stream, elements{1}, at, detail::append_total{}, values, sums);
}

} // namespace plateau::inline v0::cudart
