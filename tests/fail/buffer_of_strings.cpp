// SPDX-License-Identifier: Apache-2.0
// expect: plateau: a buffer holds trivially copyable elements
// control: plain numbers
#include <plateau/resource.hpp>

#include <string>

namespace pl = plateau;

#ifdef PLATEAU_FAIL_TEST_CONTROL
using element = double;
#else
using element = std::string;
#endif

using resource = pl::metered<pl::ram_resource<pl::host_space>>;

void use(resource& r) { pl::buffer<element, resource> b(r, 1, pl::tag::other); }
