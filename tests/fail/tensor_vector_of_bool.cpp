// SPDX-License-Identifier: Apache-2.0
// expect: plateau: std::vector<bool> has no elements to point at
// control: a vector of bytes
#include <plateau/tensor_traits.hpp>

#ifdef PLATEAU_FAIL_TEST_CONTROL
using flag = unsigned char;
#else
using flag = bool;
#endif

void use(std::vector<flag>& flags) { plateau::as_view(flags); }
