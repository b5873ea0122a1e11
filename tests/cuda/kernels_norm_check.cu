// SPDX-License-Identifier: Apache-2.0
//
// The tests of these kernels, on a GPU: support/run_kernel.hpp launches them there.
#include "../moe/kernels_norm_test.cpp"
