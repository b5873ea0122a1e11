// SPDX-License-Identifier: Apache-2.0
// expect: plateau backend: needs grouped_gemm(on<stream>, transpose, transpose, alpha, beta, span of gemm_group, scratch) for groups of fp32, of bf16 and of bf16 into fp32
// control: the archetype; here no grouped_gemm
#include <fail/support/near_misses.hpp>

#include <plateau/checks.hpp>

static_assert(plateau::check_backend<near_misses::subject<near_misses::no_grouped_gemm>>());
