// SPDX-License-Identifier: Apache-2.0
// expect: plateau kernel: the functor must be trivially copyable: it travels to the device by value
// control: a kernel of plain values
#include <plateau/kernel.hpp>

#include <string>

namespace pl = plateau;

struct machine;

struct labelled {
#ifdef PLATEAU_FAIL_TEST_CONTROL
  int label;
#else
  std::string label;
#endif
  void operator()(pl::index_t i, pl::view<int> v) const { v[i] = 1; }
};

template <class... Args> void launch(Args...) {
  pl::check_kernel<machine, pl::elements, labelled, Args...>();
}

void issue(pl::view<int> v) { launch(pl::out(v)); }
