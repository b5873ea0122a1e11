// SPDX-License-Identifier: Apache-2.0
//
// Compares the lists of an exchange between all ranks, over the host channel, before NCCL sees them. First
// how many operations each pair has and a digest of their sizes; when these differ anywhere, all ranks see
// it, and the two of the first such pair tell theirs. All ranks then have the same failure.
#pragma once

#include <plateau/config.hpp>
#include <plateau/digest.hpp>
#include <plateau/error.hpp>
#include <plateau/exchange.hpp>
#include <plateau/host/exchange_call.hpp>
#include <plateau/nccl/host_channel.hpp>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace plateau::inline v0::nccl {

namespace detail {
// The sizes of what goes to one peer, or comes from it, in order; zero bytes are skipped on both sides.
template <class List> std::vector<std::int64_t> sizes_of(const List& ops, int peer) {
  std::vector<std::int64_t> sizes;
  for (const auto& o : ops)
    if (o.peer == peer && o.bytes != 0) sizes.push_back(static_cast<std::int64_t>(o.bytes));
  return sizes;
}

// The first operation at which what is sent is not what is expected; nothing when all agree. `from` and `to`
// as errors call them.
inline std::optional<failure> first_mismatch(const std::vector<std::int64_t>& sent,
                                             const std::vector<std::int64_t>& expected, int from, int to,
                                             const host::exchange_call& call) {
  for (std::size_t k = 0; k < std::max(sent.size(), expected.size()); ++k) {
    const std::int64_t has = k < sent.size() ? sent[k] : 0, wants = k < expected.size() ? expected[k] : 0;
    if (has == wants) continue;
    return failure{failure::kind::collective,
                   "send " + std::to_string(k) + " of rank " + std::to_string(from) + " to rank " +
                       std::to_string(to) + " has " + std::to_string(has) + " bytes, but rank " +
                       std::to_string(to) + " expects " + std::to_string(wants),
                   from, call.what, call.sequence};
  }
  return std::nullopt;
}
} // namespace detail

// What a rank sends to itself and expects of itself: costs nothing to know.
inline std::optional<failure> mismatch_with_itself(const host_channel& channel,
                                                   const host::exchange_call& call, send_list sends,
                                                   receive_list receives) {
  const int me = channel.origin(call.rank);
  std::size_t next = 0;
  bool same = true;
  for (const send_op& s : sends) { // without a list of its own, as long as all is well
    if (s.peer != call.rank || s.bytes == 0) continue;
    while (next < receives.size() && (receives[next].peer != call.rank || receives[next].bytes == 0)) ++next;
    same = same && next < receives.size() && receives[next++].bytes == s.bytes;
  }
  for (; next < receives.size(); ++next)
    same = same && (receives[next].peer != call.rank || receives[next].bytes == 0);
  if (same) return std::nullopt;
  return detail::first_mismatch(detail::sizes_of(sends, call.rank), detail::sizes_of(receives, call.rank), me,
                                me, call);
}

// Collective: one host exchange when all agree, otherwise two. `channel` is there for nothing else: what goes
// over the communicator's own belongs to operations of their own.
inline std::optional<failure> mismatch_anywhere(channel_ranks& channel, const host::exchange_call& call,
                                                send_list sends, receive_list receives) {
  const auto ranks = static_cast<std::size_t>(channel.size());
  struct side {
    std::int64_t count, sizes;
    bool operator==(const side&) const = default;
  };
  const auto describe = [](const std::vector<std::int64_t>& sizes) {
    digest d;
    for (const std::int64_t s : sizes) d.add(s);
    return side{static_cast<std::int64_t>(sizes.size()), static_cast<std::int64_t>(d.value())};
  };
  std::vector<std::int64_t> mine, all(4 * ranks * ranks);
  for (int p = 0; p < channel.size(); ++p)
    for (const side s : {describe(detail::sizes_of(sends, p)), describe(detail::sizes_of(receives, p))})
      mine.insert(mine.end(), {s.count, s.sizes});
  channel.host_exchange(mine, all, call.what);

  // What rank `of` has with rank `with`; incoming: what it expects.
  const auto said = [&](std::size_t of, std::size_t with, bool incoming) {
    const std::size_t at = 4 * (of * ranks + with) + (incoming ? 2 : 0);
    return side{all[at], all[at + 1]};
  };
  for (std::size_t from = 0; from < ranks; ++from)
    for (std::size_t to = 0; to < ranks; ++to) {
      const side sent = said(from, to, false), expected = said(to, from, true);
      if (sent == expected) continue;
      const int a = static_cast<int>(from), b = static_cast<int>(to);
      const auto longest = static_cast<std::size_t>(std::max(sent.count, expected.count));
      std::vector<std::int64_t> lists(2 * longest), everybody(ranks * lists.size());
      const auto put = [&](const std::vector<std::int64_t>& sizes, std::size_t at) {
        std::copy(sizes.begin(), sizes.end(), lists.begin() + static_cast<std::ptrdiff_t>(at));
      };
      if (call.rank == a) put(detail::sizes_of(sends, b), 0);
      if (call.rank == b) put(detail::sizes_of(receives, a), longest);
      channel.host_exchange(lists, everybody, call.what);
      const auto list = [&](std::size_t of, std::size_t at) {
        const auto begin = everybody.begin() + static_cast<std::ptrdiff_t>(of * lists.size() + at);
        return std::vector<std::int64_t>(begin, begin + static_cast<std::ptrdiff_t>(longest));
      };
      return detail::first_mismatch(list(from, 0), list(to, longest), channel.origin_rank(a),
                                    channel.origin_rank(b), call);
    }
  return std::nullopt;
}

} // namespace plateau::inline v0::nccl
