// SPDX-License-Identifier: Apache-2.0
// expect: plateau: receive_from into a view of const
// control: without const
#include <plateau/exchange.hpp>

namespace pl = plateau;

#ifdef PLATEAU_FAIL_TEST_CONTROL
using element = float;
#else
using element = const float;
#endif

void use(pl::view<element> v) { pl::receive_from(0, v); }
