// SPDX-License-Identifier: Apache-2.0
//
// Where tokens go when the router is not asked: scenarios that force the routing of a real run, to see what a
// skew costs. A forced expert is a pure function of layer, token and slot, the same on every rank, and the
// experts of one token are distinct, as those of a top-k are. Shares are exact, not random: after any number
// of tokens each expert has received its share to within a row or two (zipf: to within the logarithm of their
// number).
#pragma once

#include "input_error.hpp"
#include "parse_text.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace moe {

struct routing_scenario {
  enum class kind { learned, balanced, hot, all_to_one, zipf };
  kind form = kind::learned;
  std::string text = "learned";         // as the user wrote it
  std::int64_t fraction_millionths = 0; // hot: share of routes that go to the hot experts
  std::int64_t hot_experts = 0;         // hot: how many those are; the lowest numbers
  double exponent = 0;                  // zipf: expert e is as popular as (e + 1)^-exponent

  bool forced() const { return form != kind::learned; }
};

// learned | balanced | hot:FRACTION,EXPERTS | all-to-one | zipf:S. Throws input_error.
inline routing_scenario parse_routing(std::string_view flag, std::string_view text) {
  using kind = routing_scenario::kind;
  routing_scenario scenario;
  scenario.text = text;
  const std::string_view name = text.substr(0, text.find(':'));
  const std::string_view arguments =
      name.size() < text.size() ? text.substr(name.size() + 1) : std::string_view{};
  const bool plain = name.size() == text.size();
  if (plain && name == "learned") return scenario;
  if (plain && name == "balanced")
    scenario.form = kind::balanced;
  else if (plain && name == "all-to-one")
    scenario.form = kind::all_to_one;
  else if (!plain && name == "zipf") {
    scenario.form = kind::zipf;
    scenario.exponent = parse_real(fmt::format("{} zipf:S", flag), arguments, 0, 16);
  } else if (const auto comma = arguments.find(','); name == "hot" && comma != std::string_view::npos) {
    scenario.form = kind::hot;
    const auto where = fmt::format("{} hot:FRACTION,EXPERTS", flag);
    const double fraction = parse_real(where, arguments.substr(0, comma), 0, 1);
    scenario.fraction_millionths = std::llround(fraction * 1e6);
    scenario.hot_experts = parse_integer(where, arguments.substr(comma + 1), 1, 1 << 20);
  } else
    throw input_error{
        fmt::format("{}: expected learned, balanced, hot:FRACTION,EXPERTS, all-to-one or zipf:S, got "
                    "'{}'",
                    flag, shown(text))};
  return scenario;
}

// The experts that a scenario forces, for one number of experts and one top-k. Immutable; any thread may ask.
class forced_routing {
 public:
  // Throws input_error when no choice of distinct experts has the scenario's shares.
  forced_routing(routing_scenario scenario, std::int64_t experts, std::int64_t top_k)
      : scenario_{std::move(scenario)}, experts_{experts}, top_k_{top_k} {
    if (scenario_.form == routing_scenario::kind::hot) check_hot();
    if (scenario_.form == routing_scenario::kind::zipf) fill_zipf();
  }

  const routing_scenario& scenario() const { return scenario_; }

  // Expert of slot `slot` in [0, top_k) of token `token`, counted over the whole batch of the step.
  std::int64_t expert(std::int64_t layer, std::int64_t token, std::int64_t slot) const {
    switch (scenario_.form) {
    case routing_scenario::kind::hot:
      return hot(token, slot);
    case routing_scenario::kind::zipf:
      return zipf(layer, token, slot);
    case routing_scenario::kind::all_to_one:
      return slot; // the first top-k experts: all on one rank if it holds that many
    case routing_scenario::kind::balanced:
    case routing_scenario::kind::learned:
      break;
    }
    return (token * top_k_ + slot + layer) % experts_;
  }

 private:
  static constexpr std::int64_t one = 1'000'000;

  // floor(tokens x top-k x fraction), without leaving 64 bits.
  std::int64_t hot_routes_before(std::int64_t token) const {
    const std::int64_t rate = top_k_ * scenario_.fraction_millionths;
    return token / one * rate + token % one * rate / one;
  }

  void check_hot() const {
    const std::int64_t rate = top_k_ * scenario_.fraction_millionths;
    const std::int64_t most_hot = (rate + one - 1) / one, most_cold = top_k_ - rate / one;
    const std::int64_t cold_experts = experts_ - scenario_.hot_experts;
    if (cold_experts < 0)
      throw input_error{fmt::format("--routing {}: expected at most as many hot experts as --experts ({})",
                                    shown(scenario_.text), experts_)};
    if (most_hot > scenario_.hot_experts || most_cold > cold_experts)
      throw input_error{
          fmt::format("--routing {}: the {} experts of a token are distinct; expected a fraction from {:.4g} "
                      "to {:.4g} for {} of "
                      "{} experts",
                      shown(scenario_.text), top_k_,
                      std::max(0.0, static_cast<double>(top_k_ - cold_experts) / static_cast<double>(top_k_)),
                      std::min(1.0, static_cast<double>(scenario_.hot_experts) / static_cast<double>(top_k_)),
                      scenario_.hot_experts, experts_)};
  }

  std::int64_t hot(std::int64_t token, std::int64_t slot) const {
    const std::int64_t before = hot_routes_before(token), here = hot_routes_before(token + 1) - before;
    if (slot < here) return (before + slot) % scenario_.hot_experts;
    const std::int64_t cold_before = token * top_k_ - before;
    return scenario_.hot_experts + (cold_before + slot - here) % (experts_ - scenario_.hot_experts);
  }

  // Systematic sampling: the experts' shares of a token, at most 1 each and top-k in all, laid end to end; a
  // token picks those under the top-k points u, u + 1, ..., and u runs through the golden-ratio sequence.
  void fill_zipf() {
    // popular[e]: popularity of the experts from e on, summed from the rarest, so that steep laws keep their
    // digits.
    std::vector<double> popular(static_cast<std::size_t>(experts_) + 1, 0.0);
    const auto popularity = [&](std::size_t e) {
      return std::pow(static_cast<double>(e + 1), -scenario_.exponent);
    };
    for (std::size_t e = popular.size() - 1; e-- > 0;) popular[e] = popular[e + 1] + popularity(e);
    ends_.resize(static_cast<std::size_t>(experts_));
    auto slots_left = static_cast<double>(top_k_);
    double sum = 0;
    for (std::size_t e = 0; e < ends_.size(); ++e) {
      const double share = std::min(1.0, slots_left * popularity(e) / popular[e]);
      slots_left -= share;
      sum += share;
      const auto end = static_cast<std::uint64_t>(std::llround(sum * 0x1p32));
      const std::uint64_t begin = e == 0 ? 0 : ends_[e - 1];
      ends_[e] = std::clamp(end, begin,
                            begin + (std::uint64_t{1} << 32)); // rounding must not let one fill two slots
    }
    ends_.back() = static_cast<std::uint64_t>(top_k_) << 32;
  }

  std::int64_t zipf(std::int64_t layer, std::int64_t token, std::int64_t slot) const {
    const std::uint64_t turns = static_cast<std::uint64_t>(token) + static_cast<std::uint64_t>(layer) * 7919;
    const std::uint64_t point =
        (turns * 0x9e3779b97f4a7c15u >> 32) + (static_cast<std::uint64_t>(slot) << 32);
    return std::upper_bound(ends_.begin(), ends_.end(), point) - ends_.begin();
  }

  routing_scenario scenario_;
  std::int64_t experts_, top_k_;
  std::vector<std::uint64_t> ends_; // zipf: running sums of the experts' shares, in units of 2^-32
};

} // namespace moe
