// SPDX-License-Identifier: Apache-2.0
//
// The state of a log-sum-exp in a kernel of one's own, on a GPU.
#include "../unit/ring_online_lse_test.cpp"
