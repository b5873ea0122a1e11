// SPDX-License-Identifier: Apache-2.0
//
// The vote at the end of every constructor: each rank says whether it has reserved what it needs, and a
// digest of what it believes all ranks to have been given. One that failed fails all, with its text; ranks
// that were given something else are named. All ranks throw the same error, so the communicator stays usable
// and a smaller attempt may follow.
#pragma once

#include <plateau/config.hpp>
#include <plateau/digest.hpp>
#include <plateau/error.hpp>
#include <plateau/majority.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace plateau::inline v0 {

// Who asks all ranks: a constructor at its end, or its caller, who makes several parts, goes on to his own
// vote whatever one of them throws, and votes for all. A rank that failed at one part would otherwise be
// missed in the vote of the next, until the deadline.
enum class voting : unsigned char { now, left_to_caller };

namespace detail {
// What a rank says, as integers: the only thing that a host exchange carries. Long texts lose their end.
struct ballot {
  static constexpr std::size_t text_bytes = 1024, words = 3 + text_bytes / sizeof(std::int64_t);

  std::array<std::int64_t, words> value{};

  // Its text is the failure, or what the digest is of.
  ballot(std::uint64_t digest_value, const failure* mine, std::string_view described = {}) {
    value[0] = mine != nullptr ? 1 : 0;
    value[1] = static_cast<std::int64_t>(digest_value);
    const std::string_view text = mine != nullptr ? std::string_view(mine->text) : described;
    const std::size_t n = std::min(text.size(), text_bytes);
    value[2] = static_cast<std::int64_t>(n);
    if (n != 0) std::memcpy(&value[3], text.data(), n);
  }
  static std::string text_of(std::span<const std::int64_t> b) {
    return {reinterpret_cast<const char*>(&b[3]), static_cast<std::size_t>(b[2])};
  }
};

template <class Communicator> int origin_rank(const Communicator& comm, int rank) {
  if constexpr (requires { comm.origin_rank(rank); })
    return comm.origin_rank(rank);
  else
    return rank;
}
} // namespace detail

// Collective; one host exchange. `mine` is this rank's failure, or nullptr; `what` names the operator, the
// same literal on all ranks; `described` says in words what the digest is of ("tokens 4096, hidden 1024"; up
// to 1 KiB), so that both values can be named. Throws collective_error on all ranks when any failed (the
// lowest such rank, its text) or digests differ (the ranks outside the majority; the lowest is the failed
// one).
template <class Communicator>
void vote(Communicator& comm, std::uint64_t digest_value, const failure* mine, const char* what,
          std::string_view described = {}) {
  using detail::ballot;
  const ballot own(digest_value, mine, described);
  std::vector<std::int64_t> all(ballot::words * static_cast<std::size_t>(comm.size()));
  const std::uint64_t sequence = comm.counters().exchanges + comm.counters().host_exchanges;
  comm.host_exchange(own.value, all, what);

  const auto of = [&](int r) {
    return std::span<const std::int64_t>(all).subspan(ballot::words * static_cast<std::size_t>(r),
                                                      ballot::words);
  };
  for (int r = 0; r < comm.size(); ++r)
    if (of(r)[0] != 0)
      throw collective_error(detail::origin_rank(comm, r), what, sequence, ballot::text_of(of(r)));

  const auto digest_of = [&](int r) { return of(r)[1]; };
  const int odd = first_outlier(comm.size(), digest_of);
  if (odd < 0) return;
  const int common = majority_rank(comm.size(), digest_of);
  std::string differ, agree;
  for (int r = 0; r < comm.size(); ++r) {
    std::string& list = digest_of(r) == digest_of(common) ? agree : differ;
    list += (list.empty() ? "" : ", ") + std::to_string(detail::origin_rank(comm, r));
  }
  std::string text =
      "ranks were given different shapes, types or options: rank " + differ + " against rank " + agree;
  const auto has = [&](int r) {
    return "rank " + std::to_string(detail::origin_rank(comm, r)) + " has " + ballot::text_of(of(r));
  };
  if (of(odd)[2] != 0 && of(common)[2] != 0) text += ": " + has(odd) + "; " + has(common);
  throw collective_error(detail::origin_rank(comm, odd), what, sequence, text);
}
template <class Communicator>
void vote(Communicator& comm, const digest& d, const failure* mine, const char* what,
          std::string_view described = {}) {
  vote(comm, d.value(), mine, what, described);
}

} // namespace plateau::inline v0
