// SPDX-License-Identifier: Apache-2.0
//
// What a communicator's exchange moves: lists of sends and receives. The k-th send from a to b of one
// exchange meets the k-th receive of b from a; sizes must agree. Sends to oneself are legal, and pairs of
// zero bytes are skipped on both sides.
#pragma once

#include <plateau/config.hpp>
#include <plateau/view.hpp>

#include <type_traits>

namespace plateau::inline v0 {

struct send_op {
  const void* p;
  std::size_t bytes;
  int peer;
};
struct receive_op {
  void* p;
  std::size_t bytes;
  int peer;
};

template <class T, class S> send_op send_to(int peer, view<T, S> v) { return {v.p, v.bytes(), peer}; }
template <class T, class S> receive_op receive_from(int peer, view<T, S> v) {
  static_assert(!std::is_const_v<T>, "plateau: receive_from into a view of const");
  return {v.p, v.bytes(), peer};
}
// Whole rows; the tile's rows must be adjacent (config_error otherwise).
template <class T, class S> send_op send_to(int peer, tile<T, S> t) { return send_to(peer, as_row(t)); }
template <class T, class S> receive_op receive_from(int peer, tile<T, S> t) {
  return receive_from(peer, as_row(t));
}

} // namespace plateau::inline v0
