// SPDX-License-Identifier: Apache-2.0
//
// What a stream is known to come after: for each stream of a rank, the number of its operations that have
// certainly ended. Two operations are ordered if the clock of the later one has reached the earlier one. Up
// to eight streams need no memory beside the clock.
#pragma once

#include <plateau/config.hpp>

#include <array>
#include <memory>
#include <vector>

namespace plateau::inline v0::dry {

class vector_clock {
 public:
  // A count of operations of one stream, from 1; 0 is before all of them.
  using epoch = std::uint32_t;

  epoch at(std::size_t stream) const {
    if (stream < inline_streams) return near_[stream];
    return stream - inline_streams < far_.size() ? far_[stream - inline_streams] : 0;
  }
  // The stream's next operation.
  epoch advance(std::size_t stream) {
    if (stream < inline_streams) return ++near_[stream];
    if (far_.size() <= stream - inline_streams) far_.resize(stream - inline_streams + 1);
    return ++far_[stream - inline_streams];
  }
  // Comes after all that `other` comes after, too. Whether that was news.
  bool join(const vector_clock& other) {
    bool news = false;
    for (std::size_t i = 0; i < inline_streams; ++i) news |= raise(near_[i], other.near_[i]);
    if (far_.size() < other.far_.size()) far_.resize(other.far_.size());
    for (std::size_t i = 0; i < other.far_.size(); ++i) news |= raise(far_[i], other.far_[i]);
    return news;
  }

 private:
  static constexpr std::size_t inline_streams = 8;

  static bool raise(epoch& mine, epoch theirs) {
    const bool news = theirs > mine;
    mine = news ? theirs : mine;
    return news;
  }

  std::array<epoch, inline_streams> near_{};
  std::vector<epoch> far_;
};

// A clock as it was at some moment: what an event refers to. Empty for a default event, which is always done.
using clock_ref = std::shared_ptr<const vector_clock>;

} // namespace plateau::inline v0::dry
