// SPDX-License-Identifier: Apache-2.0
// expect: plateau: a kernel argument must be trivially copyable
// control: plain values
#include <plateau/access.hpp>

#include <vector>

#ifdef PLATEAU_FAIL_TEST_CONTROL
using argument = int;
#else
using argument = std::vector<int>;
#endif

void issue(const argument& a) { plateau::unwrap(a); }
