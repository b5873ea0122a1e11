// SPDX-License-Identifier: Apache-2.0
//
// Keeps an eye on routing: which experts are in use, and which one gets far more than its even share of the
// routed rows. An alarm sounds when an expert crosses the limit, not at every step that it stays there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace moe {

// Rows routed to each expert of a layer, over all ranks.
struct expert_load {
  std::int64_t layer = 0;
  std::vector<std::int64_t> rows;
};

// "0-3, 5, 7-8" for increasing numbers.
inline std::string ranges_of(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", numbers[i]);
    if (last > i) text += fmt::format("-{}", numbers[last]);
    i = last + 1;
  }
  return text;
}

// "active experts: layers 0, 2-3: all 8; layer 1: 6 of 8 (0-4, 7)"
inline std::string active_experts_line(std::span<const expert_load> loads) {
  std::vector<std::int64_t> full;
  std::string partial;
  std::size_t experts = 0;
  for (const auto& load : loads) {
    experts = load.rows.size();
    std::vector<std::int64_t> active;
    for (std::size_t e = 0; e < experts; ++e)
      if (load.rows[e] > 0) active.push_back(static_cast<std::int64_t>(e));
    if (active.size() == experts)
      full.push_back(load.layer);
    else
      partial += fmt::format("; layer {}: {} of {}{}", load.layer, active.size(), experts,
                             active.empty() ? "" : fmt::format(" ({})", ranges_of(active)));
  }
  const std::string all = full.empty() ? ""
                                       : fmt::format("; layer{} {}: all {}", full.size() > 1 ? "s" : "",
                                                     ranges_of(full), experts);
  return loads.empty() ? "active experts: none" : "active experts: " + (all + partial).substr(2);
}

class expert_watch {
 public:
  static constexpr double default_limit = 2.8; // even shares; 35% of the rows with eight experts

  explicit expert_watch(double limit = default_limit) : limit_{limit} {}

  // One line for each expert that is over the limit now and was not the last time.
  std::vector<std::string> alarms(std::span<const expert_load> loads) {
    std::vector<std::string> lines;
    for (const auto& load : loads) {
      const std::int64_t total = std::accumulate(load.rows.begin(), load.rows.end(), std::int64_t{0});
      for (std::size_t e = 0; e < load.rows.size(); ++e) {
        const double shares = total == 0
                                  ? 0
                                  : static_cast<double>(load.rows[e]) *
                                        static_cast<double>(load.rows.size()) / static_cast<double>(total);
        const std::pair key{load.layer, e};
        if (!(shares > limit_))
          over_.erase(key);
        else if (over_.insert(key).second)
          lines.push_back(
              fmt::format("expert {} of layer {} gets {:.2f} x its even share: {} of {} routed rows", e,
                          load.layer, shares, load.rows[e], total));
      }
    }
    return lines;
  }

 private:
  double limit_;
  std::set<std::pair<std::int64_t, std::size_t>> over_;
};

} // namespace moe
