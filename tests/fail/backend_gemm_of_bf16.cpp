// SPDX-License-Identifier: Apache-2.0
// expect: plateau backend: needs gemm(on<stream>, transpose, transpose, alpha, in(a), in(b), beta, out(c) or inout(c), scratch) for tiles of fp32, of bf16 and of bf16 into fp32, static gemm_scratch_bytes<A, B, C>(op_a, op_b, m, n, k) and static bool row_invariant
// control: the archetype; here bf16 does not multiply into bf16
#include <fail/support/near_misses.hpp>

#include <plateau/checks.hpp>

static_assert(plateau::check_backend<near_misses::subject<near_misses::multiplies_narrow_into_wide_only>>());
