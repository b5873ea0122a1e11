// SPDX-License-Identifier: Apache-2.0
//
// What every rank has to say, brought to rank 0 over the communicator itself: the same way whether ranks are
// threads or processes. A host exchange gives everything to everybody, so long rows go in pieces, and only
// rank 0 keeps them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace moe {

// Collective. On rank 0 every rank's words, by rank; nothing elsewhere. `what` as in host_exchange.
template <class Communicator>
std::vector<std::vector<std::int64_t>> gather_words(Communicator& comm, std::span<const std::int64_t> mine,
                                                    const char* what) {
  constexpr std::size_t words_at_once = std::size_t{1} << 17; // of all ranks together
  const auto ranks = static_cast<std::size_t>(comm.size());
  const std::int64_t own_length[1] = {static_cast<std::int64_t>(mine.size())};
  std::vector<std::int64_t> lengths(ranks);
  comm.host_exchange(own_length, lengths, what);

  std::vector<std::vector<std::int64_t>> all(comm.rank() == 0 ? ranks : 0);
  const auto longest = static_cast<std::size_t>(*std::max_element(lengths.begin(), lengths.end()));
  const std::size_t piece = std::min(longest, std::max<std::size_t>(1, words_at_once / ranks));
  std::vector<std::int64_t> part(piece), parts(piece * ranks);
  for (std::size_t first = 0; first < longest; first += piece) {
    const auto own = mine.subspan(std::min(first, mine.size()));
    std::copy_n(own.begin(), std::min(piece, own.size()), part.begin());
    comm.host_exchange(part, parts, what);
    for (std::size_t r = 0; r < all.size(); ++r) {
      const auto length = static_cast<std::size_t>(lengths[r]);
      const auto begin = parts.begin() + static_cast<std::ptrdiff_t>(r * piece);
      all[r].insert(all[r].end(), begin,
                    begin + static_cast<std::ptrdiff_t>(std::min(piece, length - std::min(first, length))));
    }
  }
  return all;
}

} // namespace moe
