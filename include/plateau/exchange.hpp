// SPDX-License-Identifier: Apache-2.0
//
// What a communicator's exchange moves: lists of sends and receives. The k-th send from a to b of one
// exchange meets the k-th receive of b from a; sizes must agree. Sends to oneself are legal, and pairs of
// zero bytes are skipped on both sides.
#pragma once

#include <plateau/config.hpp>
#include <plateau/view.hpp>

#include <concepts>
#include <initializer_list>
#include <span>
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

// The list that an exchange takes: written in braces at the call, or a span, vector or array of the caller's.
// It refers to them; the operations are read before the call returns.
template <class Op> class op_list {
 public:
  constexpr op_list() = default;
  constexpr op_list(std::initializer_list<Op> ops) : op_list(std::span<const Op>(ops.begin(), ops.size())) {}
  constexpr op_list(std::span<const Op> ops) : ops_(ops) {}
  template <class Range>
    requires(!std::same_as<Range, op_list> && std::convertible_to<const Range&, std::span<const Op>>)
  constexpr op_list(const Range& ops) : ops_(ops) {}

  constexpr operator std::span<const Op>() const { return ops_; }
  constexpr const Op* begin() const { return ops_.data(); }
  constexpr const Op* end() const { return ops_.data() + ops_.size(); }
  constexpr std::size_t size() const { return ops_.size(); }
  constexpr const Op& operator[](std::size_t i) const { return ops_[i]; }

 private:
  std::span<const Op> ops_{};
};
using send_list = op_list<send_op>;
using receive_list = op_list<receive_op>;

} // namespace plateau::inline v0
