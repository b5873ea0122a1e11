// SPDX-License-Identifier: Apache-2.0
// expect: a raw pointer, an untagged view or another tensor hides an access
// control: the span becomes a view that says what is done to it
#include <plateau/kernel.hpp>
#include <plateau/tensor_traits.hpp>

#include <span>

namespace pl = plateau;

template <> inline constexpr bool pl::accessible_from<struct machine, pl::host_space> = true;

struct clear {
  template <class Elements> void operator()(pl::index_t i, Elements to) const { to[i] = 0; }
};

template <class... Args> void launch(Args...) { pl::check_kernel<machine, pl::elements, clear, Args...>(); }

void issue(std::span<float> to) {
#ifdef PLATEAU_FAIL_TEST_CONTROL
  launch(pl::out(pl::as_view(to)));
#else
  launch(to);
#endif
}
