// SPDX-License-Identifier: Apache-2.0
// expect: plateau backend: needs gemm(on<stream>, transpose, transpose, alpha, in(a), in(b), beta, out(c) or inout(c), scratch) for tile_batch of fp32, of bf16 and of bf16 into fp32
// control: the archetype; here batches of bf16 do not multiply into fp32
#include <fail/support/near_misses.hpp>

#include <plateau/checks.hpp>

static_assert(plateau::check_backend<near_misses::subject<near_misses::batches_of_one_type>>());
