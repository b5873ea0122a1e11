// SPDX-License-Identifier: Apache-2.0
//
// The tests of these kernels, on a GPU: support/run_kernel.hpp launches them there.
#include "../unit/ring_attention_kernels_test.cpp"
