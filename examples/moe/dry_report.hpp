// SPDX-License-Identifier: Apache-2.0
//
// What a dry run says, for people: the step's time and where it goes, whether it fits the device, and what
// the check of stream order has found.
#pragma once

#include "report.hpp"
#include "run_result.hpp"

#include <algorithm>
#include <cstdint>
#include <string>

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

// Some lines, with a newline at the end.
inline std::string prediction_text(const run_result& result) {
  using detail::in_seconds;
  const prediction& p = *result.prediction;
  const auto& s = p.step;
  std::string text = fmt::format(
      "dry run: {}, {}, {}, routing {}\n", p.machine.name,
      detail::plural(static_cast<std::uint64_t>(result.config.ranks), "rank", "ranks"),
      p.classes == result.config.ranks ? std::string("each for itself")
                                       : fmt::format("of {} kind{}", p.classes, p.classes == 1 ? "" : "s"),
      shown(result.config.routing.text));
  if (!p.routing_note.empty()) text += fmt::format("note: {}\n", p.routing_note);
  if (!p.trouble.empty()) {
    text += fmt::format("no time can be predicted: {}\n", p.trouble);
  } else {
    text +=
        fmt::format("predicted step: {}, {:.0f} tokens/s\n", in_seconds(s.seconds), result.tokens_per_second);
    text += fmt::format("  rank {}, the slowest: computing {}, transfers {}, exposed {}, host waiting {}\n",
                        p.rank, detail::share_of_step(s.compute_busy, s.seconds),
                        detail::share_of_step(s.transfer_busy, s.seconds),
                        detail::share_of_step(s.exposed_transfer, s.seconds),
                        detail::share_of_step(s.host_blocked, s.seconds));
    text += fmt::format("  {:.4g} FLOPs in products, {} sent to other ranks, {}, {}\n", s.flops,
                        human_bytes(s.sent_bytes),
                        detail::plural(s.host_round_trips, "host round trip", "host round trips"),
                        detail::plural(s.host_exchanges, "host exchange", "host exchanges"));
  }
  std::uint64_t highest = 0;
  for (const peak_record& total : result.totals)
    if (total.space == "device") highest = std::max(highest, total.bytes);
  if (p.machine.device_bytes != 0)
    text += highest <= p.machine.device_bytes
                ? fmt::format("fits: {} of the device's {}\n", human_bytes(highest),
                              human_bytes(p.machine.device_bytes))
                : fmt::format("does not fit: {} are needed, the device has {}\n", human_bytes(highest),
                              human_bytes(p.machine.device_bytes));
  if (!result.config.check_order.value_or(true))
    text += "stream order: not checked\n";
  else if (p.found == 0)
    text += fmt::format("stream order: {} operations, nothing found\n", p.operations);
  else
    text += fmt::format("stream order: {} found in {} operations\n",
                        detail::plural(p.found, "fault", "faults"), p.operations);
  for (const std::string& finding : p.findings) text += fmt::format("  {}\n", finding);
  return text;
}

} // namespace moe
