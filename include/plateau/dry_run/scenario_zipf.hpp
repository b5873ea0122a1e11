// SPDX-License-Identifier: Apache-2.0
//
// Zipf's law for routes, without chance: expert e is as popular as (e + 1)^-exponent, but no expert gets more
// than one route of a token. Systematic sampling: the experts' shares of a token, at most 1 each and top-k in
// all, lie end to end on a line; a token picks those under the top-k points u, u + 1, ..., and u runs through
// the golden-ratio sequence from token to token. Any run of tokens comes within the logarithm of their number
// of the law.
#pragma once

#include <plateau/config.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace plateau::inline v0::detail {

// Immutable; any thread may ask. 1 <= top_k <= experts.
class zipf_law {
 public:
  zipf_law(double exponent, std::int64_t experts, std::int64_t top_k)
      : top_k_(top_k), ends_(static_cast<std::size_t>(experts)) {
    place_ends(exponent);
    // Between two neighbouring breaks all points u of tokens pick the same experts.
    breaks_.push_back(0);
    for (const std::uint64_t end : ends_) breaks_.push_back(end & (one - 1));
    std::sort(breaks_.begin(), breaks_.end());
    breaks_.erase(std::unique(breaks_.begin(), breaks_.end()), breaks_.end());
    for (std::uint64_t i = 0; i <= guide_size; ++i)
      guide_.push_back(static_cast<std::uint32_t>(interval_of(std::min(i << guide_shift, one - 1))));
  }

  std::int64_t expert(std::int64_t layer, std::int64_t token, std::int64_t slot) const {
    return under((turns(layer, token) * golden >> 32) + (static_cast<std::uint64_t>(slot) << 32));
  }

  // Adds the routes of tokens [first, first + tokens) to `rows` (experts).
  void add_rows(std::int64_t layer, std::int64_t first, std::int64_t tokens,
                std::span<std::int64_t> rows) const {
    std::vector<std::int64_t> hits(breaks_.size()); // tokens whose u lies in each interval
    std::uint64_t at = turns(layer, first) * golden;
    for (std::int64_t t = 0; t < tokens; ++t, at += golden) {
      const std::uint64_t u = at >> 32;
      std::size_t i = guide_[u >> guide_shift];
      while (i + 1 < breaks_.size() && breaks_[i + 1] <= u) ++i;
      ++hits[i];
    }
    for (std::size_t i = 0; i < hits.size(); ++i)
      for (std::int64_t slot = 0; slot < (hits[i] == 0 ? 0 : top_k_); ++slot)
        rows[static_cast<std::size_t>(under(breaks_[i] + (static_cast<std::uint64_t>(slot) << 32)))] +=
            hits[i];
  }

 private:
  static constexpr std::uint64_t one = std::uint64_t{1} << 32, golden = 0x9e3779b97f4a7c15u;
  static constexpr std::uint64_t guide_size = 4096;
  static constexpr int guide_shift = 20;

  static std::uint64_t turns(std::int64_t layer, std::int64_t token) {
    return static_cast<std::uint64_t>(token) + static_cast<std::uint64_t>(layer) * 7919;
  }
  std::int64_t under(std::uint64_t point) const {
    return std::upper_bound(ends_.begin(), ends_.end(), point) - ends_.begin();
  }
  std::ptrdiff_t interval_of(std::uint64_t u) const {
    return std::upper_bound(breaks_.begin(), breaks_.end(), u) - breaks_.begin() - 1;
  }

  void place_ends(double exponent) {
    // popular[e]: popularity of the experts from e on, summed from the rarest, so that steep laws keep their
    // digits.
    std::vector<double> popular(ends_.size() + 1, 0.0);
    const auto popularity = [&](std::size_t e) { return std::pow(static_cast<double>(e + 1), -exponent); };
    for (std::size_t e = ends_.size(); e-- > 0;) popular[e] = popular[e + 1] + popularity(e);
    auto slots_left = static_cast<double>(top_k_);
    double sum = 0;
    for (std::size_t e = 0; e < ends_.size(); ++e) {
      const double share = std::min(1.0, slots_left * popularity(e) / popular[e]);
      slots_left -= share;
      sum += share;
      const auto end = static_cast<std::uint64_t>(std::llround(sum * 0x1p32));
      const std::uint64_t begin = e == 0 ? 0 : ends_[e - 1];
      ends_[e] = std::clamp(end, begin, begin + one); // rounding must not let one fill two slots
    }
    ends_.back() = static_cast<std::uint64_t>(top_k_) << 32;
  }

  std::int64_t top_k_;
  std::vector<std::uint64_t> ends_;   // running sums of the experts' shares, in units of 2^-32
  std::vector<std::uint64_t> breaks_; // their fractions, ascending, from 0
  std::vector<std::uint32_t> guide_;  // the interval between breaks in which i / guide_size lies
};

} // namespace plateau::inline v0::detail
