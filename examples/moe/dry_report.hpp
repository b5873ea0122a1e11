// SPDX-License-Identifier: Apache-2.0
//
// What a dry run says, for people: the step's time and where it goes, whether it fits the device, and what
// the check of stream order has found.
#pragma once

#include "report.hpp"
#include "run_result.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace moe {

namespace detail {

// Three digits and a unit.
inline std::string in_seconds(double seconds) {
  if (seconds >= 1) return fmt::format("{:.3g} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.3g} ms", seconds * 1e3);
  return fmt::format("{:.3g} us", seconds * 1e6);
}
inline std::string share_of_step(double seconds, double step) {
  return fmt::format("{} ({:.1f}%)", in_seconds(seconds), step > 0 ? 100 * seconds / step : 0);
}
inline std::string plural(std::uint64_t n, const char* one, const char* many) {
  return fmt::format("{} {}", n, n == 1 ? one : many);
}

} // namespace detail

namespace detail {

// Which ranks a kind is, and where the time of one of them goes.
inline std::string kind_line(const kind_of_rank& kind, std::string_view what, bool only) {
  const auto& s = kind.step;
  const std::string others = kind.ranks == 1 ? "" : fmt::format(" and {} like it", kind.ranks - 1);
  return fmt::format("  {}: computing {}, transfers {}, exposed {}, host waiting {}\n",
                     only ? std::string("each rank")
                          : fmt::format("rank {}{}, which {}", kind.rank, others, what),
                     share_of_step(s.compute_busy, s.seconds), share_of_step(s.transfer_busy, s.seconds),
                     share_of_step(s.exposed_transfer, s.seconds), share_of_step(s.host_blocked, s.seconds));
}
// Of the kinds that compute most and least.
inline std::string step_lines(const prediction& p) {
  const auto [least, most] =
      std::minmax_element(p.kinds.begin(), p.kinds.end(), [](const kind_of_rank& a, const kind_of_rank& b) {
        return a.step.compute_busy < b.step.compute_busy;
      });
  std::string text = kind_line(*most, "computes most", p.kinds.size() == 1);
  if (least != most) text += kind_line(*least, "computes least", false);
  double flops = 0, sent = 0;
  for (const kind_of_rank& kind : p.kinds) {
    flops += static_cast<double>(kind.ranks) * kind.step.flops;
    sent += static_cast<double>(kind.ranks) * static_cast<double>(kind.step.sent_bytes);
  }
  return text + fmt::format("  all ranks: {:.4g} FLOPs in products, {} sent to one another; each: {}, {}\n",
                            flops, human_bytes(static_cast<std::uint64_t>(sent)),
                            plural(most->step.host_round_trips, "host round trip", "host round trips"),
                            plural(most->step.host_exchanges, "host exchange", "host exchanges"));
}

} // namespace detail

// Some lines, with a newline at the end.
inline std::string prediction_text(const run_result& result) {
  const prediction& p = *result.prediction;
  std::string text =
      fmt::format("dry run: {}, {}, {}, routing {}\n", p.machine.name,
                  detail::plural(static_cast<std::uint64_t>(result.config.ranks), "rank", "ranks"),
                  static_cast<std::int64_t>(p.kinds.size()) == result.config.ranks && p.kinds.size() > 1
                      ? std::string("each for itself")
                      : "of " + detail::plural(p.kinds.size(), "kind", "kinds"),
                  shown(result.config.routing.text));
  if (!p.routing_note.empty()) text += fmt::format("note: {}\n", p.routing_note);
  if (!p.trouble.empty())
    text += fmt::format("no time can be predicted: {}\n", p.trouble);
  else
    text += fmt::format("predicted step: {}, {:.0f} tokens/s\n", detail::in_seconds(p.step_seconds),
                        result.tokens_per_second) +
            detail::step_lines(p);
  if (const auto fits = fits_device(result)) {
    const std::string needed = human_bytes(highest_device_peak(result)),
                      there = human_bytes(p.machine.device_bytes);
    text += *fits ? fmt::format("fits: {} of the device's {}\n", needed, there)
                  : fmt::format("does not fit: {} are needed, the device has {}\n", needed, there);
  }
  if (!result.config.check_order.value_or(true))
    text += "stream order: not checked\n";
  else
    text += fmt::format("stream order: {}, {}\n", detail::plural(p.operations, "operation", "operations"),
                        p.found == 0 ? "nothing found" : detail::plural(p.found, "fault", "faults"));
  for (const std::string& finding : p.findings) text += fmt::format("  {}\n", finding);
  return text;
}

} // namespace moe
