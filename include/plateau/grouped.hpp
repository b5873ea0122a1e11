// SPDX-License-Identifier: Apache-2.0
//
// The operands of a grouped product: matrices of different sizes, one product each, with the same transposes
// and scalars. The offsets that cut a buffer into groups are on the host, so every view here is known when
// the operation is issued. Groups must not overlap in what they write.
#pragma once

#include <plateau/config.hpp>
#include <plateau/scratch.hpp>
#include <plateau/view.hpp>

namespace plateau::inline v0 {

template <class A, class B, class C, class Space = device_space> struct gemm_group {
  tile<const A, Space> a;
  tile<const B, Space> b;
  tile<C, Space> c;
};

} // namespace plateau::inline v0
