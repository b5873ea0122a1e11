// SPDX-License-Identifier: Apache-2.0
//
// Which rank comes next: a tournament over the ranks' next events. Of equal times the lowest number wins, so
// that the order depends on nothing else.
#pragma once

#include <plateau/config.hpp>

#include <limits>
#include <vector>

namespace plateau::inline v0::dry {

class rank_queue {
 public:
  explicit rank_queue(std::size_t ranks) {
    while (leaves_ < ranks) leaves_ *= 2;
    time_.assign(leaves_, std::numeric_limits<double>::infinity());
    winner_.resize(2 * leaves_);
    for (std::size_t i = 0; i < leaves_; ++i) winner_[leaves_ + i] = i;
    for (std::size_t i = leaves_; i-- > 1;) winner_[i] = winner_[2 * i];
  }
  void set(std::size_t rank, double seconds) {
    time_[rank] = seconds;
    for (std::size_t i = (leaves_ + rank) / 2; i > 0; i /= 2) {
      const std::size_t a = winner_[2 * i], b = winner_[2 * i + 1];
      winner_[i] = time_[b] < time_[a] ? b : a;
    }
  }
  std::size_t first() const { return winner_[1]; }
  double first_time() const { return time_[first()]; }

 private:
  std::size_t leaves_ = 1;
  std::vector<double> time_;        // infinity: nothing will happen by itself
  std::vector<std::size_t> winner_; // of the subtree; leaves in the second half
};

} // namespace plateau::inline v0::dry
