// SPDX-License-Identifier: Apache-2.0
//
// Two runs side by side, one with nothing flattened and one flattened, of the same text, seed and shape: the
// four peaks and all together, what was promised, and how far the losses have come apart.
#pragma once

#include "dry_report.hpp"
#include "report.hpp"
#include "run_result.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace moe {

// Each number is the highest of any rank.
struct peak_pair {
  std::string name; // of the tag, or "all together"
  std::string space;
  std::uint64_t unflattened = 0, flattened = 0;
  std::optional<std::uint64_t> promised;
};

// Where two loss curves are farthest apart.
struct curve_distance {
  double nats = 0;
  std::int64_t step = 0; // from 1
};

// The four peaks, then all together, on the device; then all together in host memory.
inline std::vector<peak_pair> peak_pairs(const run_result& unflattened, const run_result& flattened) {
  std::vector<peak_pair> pairs;
  const auto raise = [](auto& highest, const auto& bytes) { highest = std::max(highest, bytes); };
  const auto add = [&](std::string_view name, std::string_view space, auto records, auto is_one) {
    peak_pair pair{std::string(name), std::string(space), 0, 0, {}};
    for (const peak_record& each : unflattened.*records)
      if (is_one(each)) raise(pair.unflattened, each.bytes);
    for (const peak_record& each : flattened.*records)
      if (is_one(each)) {
        raise(pair.flattened, each.bytes);
        raise(pair.promised, each.promised);
      }
    pairs.push_back(pair);
  };
  for (const auto& row : flatten_rows)
    add(row.name, "device", &run_result::peaks,
        [&](const peak_record& r) { return r.tag == row.name && r.space == "device"; });
  for (const std::string_view space : {"device", "host"})
    add("all together", space, &run_result::totals, [&](const peak_record& r) { return r.space == space; });
  return pairs;
}

// Over the steps that both have; nothing where there are none. A loss that is not a number in one of them
// only makes a distance that is none either.
inline std::optional<curve_distance> curve_distance_of(const run_result& unflattened,
                                                       const run_result& flattened) {
  std::optional<curve_distance> farthest;
  const std::size_t steps = std::min(unflattened.losses.size(), flattened.losses.size());
  for (std::size_t i = 0; i < steps; ++i) {
    const double a = unflattened.losses[i], b = flattened.losses[i];
    const double nats = a == b || (std::isnan(a) && std::isnan(b)) ? 0 : std::fabs(b - a);
    if (!farthest || nats > farthest->nats || (std::isnan(nats) && !std::isnan(farthest->nats)))
      farthest = {nats, flattened.first_step + static_cast<std::int64_t>(i) + 1};
  }
  return farthest;
}

// What a program says before it trains or predicts the first time, and the second.
inline constexpr const char* first_run_line = "first with nothing flattened:\n";
inline std::string second_run_line(const options& o) {
  return fmt::format("now with --flatten {}:\n", flattened_peaks(o));
}

// 0 only where it is 0: two digits otherwise.
inline std::string shown_difference(double difference) {
  return difference == 0 ? "0" : fmt::format("{:.2g}", plain_nan(difference));
}

// A column for each run, and what was promised; ends with a newline. `result` has the run with nothing
// flattened in `unflattened`.
inline std::string comparison_table(const run_result& result) {
  const run_result& before = *result.unflattened;
  const std::vector<peak_pair> pairs = peak_pairs(before, result);
  std::uint64_t highest = 0;
  for (const peak_pair& pair : pairs) highest = std::max({highest, pair.unflattened, pair.flattened});
  const detail::byte_unit unit = detail::unit_for(highest);
  const auto row = [](std::string_view name, std::string_view a, std::string_view b, std::string_view more) {
    return fmt::format("{:<33}  {:>11}  {:>10}  {:>9}\n", name, a, b, more);
  };
  // What is in the last column need not be a number.
  const auto line = [](std::string_view name, std::string_view a, std::string_view b, std::string_view more) {
    return fmt::format("{:<33}  {:>11}  {:>10}{}{}\n", name, a, b, more.empty() ? "" : "  ", more);
  };
  std::string text =
      row(fmt::format("device memory, {}{}", unit.name, result.config.ranks > 1 ? ", highest rank" : ""),
          "unflattened", "flattened", "promised") +
      row(fmt::format("{:-<33}", ""), fmt::format("{:-<11}", ""), fmt::format("{:-<10}", ""),
          fmt::format("{:-<9}", ""));
  for (const peak_pair& pair : pairs) {
    const bool host = pair.space == "host";
    if (host && pair.unflattened == 0 && pair.flattened == 0) continue;
    text += row(host ? fmt::format("pinned host memory, {}", unit.name) : pair.name,
                detail::in_unit(pair.unflattened, unit), detail::in_unit(pair.flattened, unit),
                pair.promised ? detail::in_unit(*pair.promised, unit) : "-");
  }
  if (const auto apart = curve_distance_of(before, result))
    text += line(
        fmt::format("loss at step {}", result.first_step + static_cast<std::int64_t>(result.losses.size())),
        fmt::format("{:.4f}", plain_nan(before.losses.back())),
        fmt::format("{:.4f}", plain_nan(result.losses.back())),
        apart->nats == 0
            ? "the same at every step"
            : fmt::format("at most {} nats apart, at step {}", shown_difference(apart->nats), apart->step));
  if (before.loss_heldout && result.loss_heldout)
    text += line("held-out loss", fmt::format("{:.4f}", plain_nan(*before.loss_heldout)),
                 fmt::format("{:.4f}", plain_nan(*result.loss_heldout)), "");
  if (before.prediction && result.prediction) {
    const auto step = [](const run_result& of) {
      return of.prediction->trouble.empty() ? detail::in_seconds(of.prediction->step_seconds) : "-";
    };
    text += line("predicted step", step(before), step(result), "");
  }
  const auto speed = [](const run_result& of) {
    return of.tokens_per_second > 0 ? fmt::format("{:.0f}", of.tokens_per_second) : "-";
  };
  return text + line("tokens/s", speed(before), speed(result), "");
}

} // namespace moe
