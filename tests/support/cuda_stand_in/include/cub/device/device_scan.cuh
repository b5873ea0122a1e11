// SPDX-License-Identifier: Apache-2.0
//
// Stand-in: the exclusive sum of integers, in place too. Called without scratch it says how much it wants.
#pragma once

#include <cub/version.cuh>
#include <cuda_runtime.h>
#include <cuda_stand_in/library.hpp>

#include <type_traits>

namespace cub {

struct DeviceScan {
  template <class In, class Out, class Count>
  static cudaError_t ExclusiveSum(void* scratch, std::size_t& scratch_bytes, In* in, Out* out, Count count,
                                  cudaStream_t stream = nullptr) {
    using namespace cuda_stand_in;
    using value = std::remove_const_t<In>;
    static_assert(std::is_integral_v<value> && std::is_integral_v<Out>);
    return call("cub::DeviceScan::ExclusiveSum", [&] {
      const auto n = static_cast<std::size_t>(count);
      const std::size_t wanted = n / 64 + 512;
      if (scratch == nullptr) {
        scratch_bytes = n == 0 ? 1 : wanted;
        return cudaSuccess;
      }
      if (n == 0) return cudaSuccess;
      if (scratch_bytes < wanted) return cudaErrorInvalidValue;
      CUstream_st* const s = stream_of(stream);
      if (s == nullptr || s->device != current_device) return cudaErrorInvalidResourceHandle;
      const span_of_bytes work = bytes_at(scratch, wanted), from = bytes_at(in, n * sizeof(In)),
                          to = bytes_at(out, n * sizeof(Out));
      if (work.overlaps(from) || work.overlaps(to) || (from.overlaps(to) && from.real() != to.real()))
        report("arrays of cub::DeviceScan::ExclusiveSum overlap");
      s->append([=] {
        if (!all_there(s->device, "cub::DeviceScan::ExclusiveSum", {work, from, to})) return;
        scribble(work);
        const auto* a = reinterpret_cast<const value*>(from.real());
        auto* b = reinterpret_cast<Out*>(to.real());
        value sum = 0;
        for (std::size_t i = 0; i < n; ++i) {
          const value next = sum + a[i];
          b[i] = static_cast<Out>(sum);
          sum = next;
        }
      });
      return cudaSuccess;
    });
  }
};

} // namespace cub
