// SPDX-License-Identifier: Apache-2.0
//
// Stand-in: stable sorting of pairs by some bits of integer keys. Called without scratch it says how much it
// wants.
#pragma once

#include <cub/version.cuh>
#include <cuda_runtime.h>
#include <cuda_stand_in/library.hpp>

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace cub {

struct DeviceRadixSort {
  template <class Key, class Value, class Count>
  static cudaError_t SortPairs(void* scratch, std::size_t& scratch_bytes, const Key* keys_in, Key* keys_out,
                               const Value* values_in, Value* values_out, Count count, int begin_bit = 0,
                               int end_bit = sizeof(Key) * 8, cudaStream_t stream = nullptr) {
    using namespace cuda_stand_in;
    static_assert(std::is_integral_v<Key> && std::is_trivially_copyable_v<Value>);
    return call("cub::DeviceRadixSort::SortPairs", [&] {
      const auto n = static_cast<std::size_t>(count);
      const std::size_t wanted = n * (sizeof(Key) + sizeof(Value)) + 4096;
      if (scratch == nullptr) {
        scratch_bytes = n == 0 ? 1 : wanted;
        return cudaSuccess;
      }
      if (n == 0) return cudaSuccess;
      if (scratch_bytes < wanted || begin_bit < 0 || end_bit <= begin_bit ||
          end_bit > static_cast<int>(8 * sizeof(Key)))
        return cudaErrorInvalidValue;
      CUstream_st* const s = stream_of(stream);
      if (s == nullptr || s->device != current_device) return cudaErrorInvalidResourceHandle;
      const span_of_bytes work = bytes_at(scratch, wanted), ki = bytes_at(keys_in, n * sizeof(Key)),
                          ko = bytes_at(keys_out, n * sizeof(Key)),
                          vi = bytes_at(values_in, n * sizeof(Value)),
                          vo = bytes_at(values_out, n * sizeof(Value));
      const span_of_bytes all[] = {work, ki, ko, vi, vo};
      for (int i = 0; i < 5; ++i)
        for (int j = 0; j < i; ++j)
          if (all[i].overlaps(all[j])) report("arrays of cub::DeviceRadixSort::SortPairs overlap");
      s->append([=] {
        if (!all_there(s->device, "cub::DeviceRadixSort::SortPairs", {work, ki, ko, vi, vo})) return;
        scribble(work);
        sort(reinterpret_cast<const Key*>(ki.real()), reinterpret_cast<Key*>(ko.real()),
             reinterpret_cast<const Value*>(vi.real()), reinterpret_cast<Value*>(vo.real()), n, begin_bit,
             end_bit);
      });
      return cudaSuccess;
    });
  }

 private:
  template <class Key, class Value>
  static void sort(const Key* ki, Key* ko, const Value* vi, Value* vo, std::size_t n, int begin_bit,
                   int end_bit) {
    using bits = std::make_unsigned_t<Key>;
    struct entry {
      bits part;
      std::size_t at;
      bool operator<(const entry& o) const { return part != o.part ? part < o.part : at < o.at; }
    };
    const cuda_stand_in::plain_array<entry> order(n);
    const int width = end_bit - begin_bit, all = static_cast<int>(8 * sizeof(Key));
    for (std::size_t i = 0; i < n; ++i) {
      auto b = static_cast<std::uint64_t>(static_cast<bits>(ki[i]));
      if (std::is_signed_v<Key>) b ^= std::uint64_t{1} << (all - 1); // negative ones come first
      b >>= begin_bit;
      if (width < 64) b &= (std::uint64_t{1} << width) - 1;
      order[i] = {static_cast<bits>(b), i};
    }
    std::sort(order.data(), order.data() + n);
    for (std::size_t i = 0; i < n; ++i) {
      ko[i] = ki[order[i].at];
      vo[i] = vi[order[i].at];
    }
  }
};

} // namespace cub
