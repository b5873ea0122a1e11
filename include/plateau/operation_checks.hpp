// SPDX-License-Identifier: Apache-2.0
//
// What every backend checks before it copies, groups, scans or fetches: one place, so that the same mistake
// gives the same sentence on every machine. Products have theirs in gemm_check.hpp, launches in kernel.hpp.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/gemm_check.hpp>
#include <plateau/view.hpp>

#include <limits>
#include <string>
#include <type_traits>

namespace plateau::inline v0 {

namespace detail {
[[noreturn]] inline void unequal(const char* what, const std::string& a, const std::string& b,
                                 const std::string& stream, source_line at, const char* owner) {
  throw config_error(error_prefix(owner) + what + ": " + a + " against " + b + " elements, on stream '" +
                     stream + "'" + at.text());
}
} // namespace detail

// `stream` names the stream, `at` the place of the call, `owner` the rank. Each throws config_error.
template <class T, class S, class U, class R>
void check_copy(const view<T, S>& from, const view<U, R>& to, const std::string& stream, source_line at = {},
                const char* owner = "") {
  static_assert(std::is_same_v<std::remove_const_t<T>, U>,
                "plateau: copy: source and destination differ in element type");
  if (from.n != to.n)
    detail::unequal("copy", std::to_string(from.n), std::to_string(to.n), stream, at, owner);
}
template <class T, class S, class U, class R>
void check_copy(const tile<T, S>& from, const tile<U, R>& to, const std::string& stream, source_line at = {},
                const char* owner = "") {
  static_assert(std::is_same_v<std::remove_const_t<T>, U>,
                "plateau: copy: source and destination differ in element type");
  if (from.rows != to.rows || from.cols != to.cols)
    detail::unequal("copy", detail::extents(from), detail::extents(to), stream, at, owner);
}
// Batches of a product: as many tiles of each operand.
inline void check_batch_counts(index_t a, index_t b, index_t c, const std::string& stream,
                               source_line at = {}, const char* owner = "") {
  if (a != c || b != c)
    detail::unequal("gemm of batches", std::to_string(a) + " and " + std::to_string(b), std::to_string(c),
                    stream, at, owner);
}
// ids (n), order (n), offsets (keys + 1).
template <class Ids, class Order, class S>
void check_group_by_key(const view<Ids, S>& ids, const view<Order, S>& order, index_t offsets,
                        const std::string& stream, source_line at = {}, const char* owner = "") {
  static_assert(std::is_same_v<Order, std::int32_t> || std::is_same_v<Order, std::int64_t>,
                "plateau: group_by_key: order holds 32- or 64-bit integers");
  if (ids.n != order.n)
    detail::unequal("group_by_key", std::to_string(ids.n), std::to_string(order.n), stream, at, owner);
  if (offsets < 1)
    throw config_error(error_prefix(owner) + "group_by_key: offsets needs keys + 1 elements, got none" +
                       at.text());
  if (ids.n - 1 > std::numeric_limits<Order>::max())
    throw config_error(error_prefix(owner) + "group_by_key: " + std::to_string(ids.n) +
                       " positions do not fit into an order of 32-bit integers" + at.text());
}
// `sums` has one more than `values`.
inline void check_exclusive_scan(index_t values, index_t sums, const std::string& stream, source_line at = {},
                                 const char* owner = "") {
  if (sums != values + 1)
    detail::unequal("exclusive_scan (sums needs one more)", std::to_string(values), std::to_string(sums),
                    stream, at, owner);
}
inline void check_fetch(index_t values, std::size_t storage, const char* label, const char* owner = "") {
  if (static_cast<std::size_t>(values) != storage)
    throw config_error(error_prefix(owner) + "fetch of '" + label + "': " + std::to_string(values) +
                       " values into storage for " + std::to_string(storage));
}

} // namespace plateau::inline v0
