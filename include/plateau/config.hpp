// SPDX-License-Identifier: Apache-2.0
//
// What every header stands on: the version, the inline namespace that keeps two versions apart in one
// program, and the one macro that marks functions for host and device. Flags under which the library would
// be silently wrong are refused where the compiler tells of them.
#pragma once

#include <cstddef>
#include <cstdint>

#define PLATEAU_VERSION_MAJOR 0
#define PLATEAU_VERSION_MINOR 1
#define PLATEAU_VERSION_PATCH 0

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "plateau: -ffast-math and -ffinite-math-only make isnan and isfinite constant; compile without them"
#endif

// GCC tells of it, clang does not: there math.hpp forbids it function by function.
#if defined(__ASSOCIATIVE_MATH__)
#error "plateau: -fassociative-math (part of -funsafe-math-optimizations) makes exp wrong; compile without it"
#endif

#if !defined(__CUDACC__) && __cplusplus < 202002L
#error "plateau: needs C++20 (g++ >= 12, clang >= 14, nvcc >= 12.4)"
#endif

// A function that kernels call: compiled for the host, and by nvcc for the device too.
#if defined(__CUDACC__)
#define PLATEAU_HD __host__ __device__
#else
#define PLATEAU_HD
#endif

namespace plateau::inline v0 {

// All extents, offsets and row numbers. Signed, so that differences are safe; 64 bits, so that products of
// rows and columns are.
using index_t = std::int64_t;

} // namespace plateau::inline v0
