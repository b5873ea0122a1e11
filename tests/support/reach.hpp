// SPDX-License-Identifier: Apache-2.0
//
// How many elements lie between the first and the last of a view, both included: padding between rows counts,
// padding behind the last does not.
#pragma once

#include <plateau/view.hpp>

namespace support {

using plateau::index_t;

template <class T, class S> index_t reach(plateau::view<T, S> v) { return v.n; }
template <class T, class S> index_t reach(plateau::tile<T, S> v) {
  return v.rows == 0 ? 0 : (v.rows - 1) * v.ld + v.cols;
}
template <class T, class S> index_t reach(plateau::tile_batch<T, S> v) {
  return v.count == 0 || v.rows == 0 ? 0 : (v.count - 1) * v.stride + (v.rows - 1) * v.ld + v.cols;
}

} // namespace support
