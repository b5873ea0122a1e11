// SPDX-License-Identifier: Apache-2.0
//
// The tests of the dispatch's kernels, on a GPU: support/run_kernel.hpp launches them there.
#include "../unit/all_to_all_route_kernels_test.cpp"
#include "../unit/all_to_all_row_kernels_test.cpp"
