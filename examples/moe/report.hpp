// SPDX-License-Identifier: Apache-2.0
//
// What a run says at its end, for people: the losses beside what no context at all would give, and where
// memory was highest: each peak with its bytes, when it was, and what else was held at that moment. Ranks
// with the same row share it. The exact numbers are in the JSON (result_json.hpp).
#pragma once

#include "expert_watch.hpp"
#include "input_error.hpp"
#include "parse_text.hpp"
#include "run_result.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace moe {

// Two lines, without a newline at the end.
inline std::string corpus_lines(const corpus_summary& text) {
  return fmt::format("text: {}, {} bytes, digest {:016x}\n"
                     "      {} tokens of a vocabulary of {}; unigram entropy {:.3f} nats (ln {} = {:.2f})",
                     shown(text.name), text.bytes, text.digest, text.tokens, text.vocabulary, text.entropy,
                     text.vocabulary, std::log(static_cast<double>(text.vocabulary)));
}

inline std::string summary_line(const run_result& result) {
  const auto last_step = result.first_step + static_cast<std::int64_t>(result.losses.size());
  std::string line = "no step was run";
  if (result.losses.size() == 1)
    line = fmt::format("loss {:.4f} at step {}", plain_nan(result.losses.back()), last_step);
  else if (!result.losses.empty())
    line = fmt::format("loss {:.4f} at step {}, {:.4f} at step {}", plain_nan(result.losses.front()),
                       result.first_step + 1, plain_nan(result.losses.back()), last_step);
  if (result.steps_skipped > 0)
    line += fmt::format(" ({} of {} steps skipped)", result.steps_skipped, result.losses.size());
  if (result.loss_heldout)
    line +=
        fmt::format("; held-out {:.4f}, {} the unigram entropy of {:.4f}", plain_nan(*result.loss_heldout),
                    *result.loss_heldout < result.text.entropy ? "below" : "not below", result.text.entropy);
  return line + fmt::format("; {:.0f} tokens/s", result.tokens_per_second);
}

// One line, with a newline at its end, where the dispatch went by rounds; nothing otherwise.
inline std::string dispatch_line(const run_result& result) {
  if (!result.dispatch) return {};
  const dispatch_settings d = result.config.dispatch();
  const dispatch_summary& did = *result.dispatch;
  const std::string caps = d.send_cap_rows == d.receive_cap_rows
                               ? fmt::format("{} rows", d.send_cap_rows)
                               : fmt::format("{} rows out and {} in", d.send_cap_rows, d.receive_cap_rows);
  std::string line = fmt::format("dispatch: capped at {}, placement {}", caps, name_of(d.placement));
  if (d.placement == expert_placement::least_loaded)
    line += fmt::format(" with {} foreign experts", d.foreign_experts);
  line += fmt::format("; rounds of a layer: {:.2g}, at most {}; the busiest rank had {:.3g} times the mean",
                      did.rounds_per_call(), did.most_rounds, did.skew);
  if (d.placement != expert_placement::native)
    line += fmt::format(", {:.3g} without moving; {} pieces of experts moved", did.native_skew, did.moved);
  return line + '\n';
}

namespace detail {

// The order in which a reader looks for them: the four peaks first; tags that are not listed come last.
inline std::size_t tag_order(std::string_view tag) {
  constexpr std::array<std::string_view, 9> order{"dispatch",    "vocabulary", "checkpoint",
                                                  "optimizer",   "parameters", "gradients",
                                                  "activations", "workspace",  "other"};
  return static_cast<std::size_t>(std::find(order.begin(), order.end(), tag) - order.begin());
}

// One unit for a whole table, so that its numbers compare at a glance: the largest in which the highest peak
// has two digits before the point.
struct byte_unit {
  const char* name;
  double bytes;
};

inline byte_unit unit_for(std::uint64_t highest) {
  byte_unit unit{"B", 1};
  for (const byte_unit larger : {byte_unit{"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}})
    if (static_cast<double>(highest) >= 10 * larger.bytes) unit = larger;
  return unit;
}

inline std::string in_unit(std::uint64_t bytes, const byte_unit& unit) {
  const double value = static_cast<double>(bytes) / unit.bytes;
  if (bytes == 0 || unit.bytes == 1) return fmt::format("{}", bytes);
  if (value < 0.005) return "<0.01";
  return fmt::format("{:.{}f}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

// "parameters 8.00, gradients 8.00, rest 1.20": what was held besides `tag`, the largest first; a total names
// one more, so that the highest of the four peaks is among them.
inline std::string held_besides(const peak_record& peak, std::string_view tag, const byte_unit& unit) {
  const std::size_t named = tag.empty() ? 4 : 3;
  std::vector<std::pair<std::uint64_t, std::string>> held;
  for (const auto& [name, bytes] : peak.held_at_peak)
    if (name != tag && static_cast<double>(bytes) >= 0.005 * unit.bytes) held.emplace_back(bytes, name);
  std::stable_sort(held.begin(), held.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  std::uint64_t rest = 0;
  for (std::size_t i = 0; i < held.size(); ++i) {
    if (i < named)
      text += fmt::format("{}{} {}", i == 0 ? "" : ", ", held[i].second, in_unit(held[i].first, unit));
    else
      rest += held[i].first;
  }
  if (rest > 0) text += fmt::format(", rest {}", in_unit(rest, unit));
  return text.empty() ? "nothing" : text;
}

// "0-3, 9", and "0-3, 9, 11, ... 250 (90 ranks)" where that would make a wide column.
inline std::string ranks_of(const std::vector<std::int64_t>& ranks) {
  constexpr std::size_t widest = 32;
  std::string text = ranges_of(ranks);
  if (text.size() <= widest) return text;
  text.resize(text.rfind(", ", widest / 2) + 2);
  return text + fmt::format("... {} ({} ranks)", ranks.back(), ranks.size());
}

struct table_row {
  std::string peak, ranks, bytes, promised, when, held;
};

// Rows of one space, each peak once for all ranks that share it.
inline std::vector<table_row> rows_of(std::vector<peak_record> peaks, std::string_view total_name,
                                      const byte_unit& unit) {
  std::stable_sort(peaks.begin(), peaks.end(), [](const peak_record& a, const peak_record& b) {
    return std::tuple{tag_order(a.tag), a.tag, a.rank} < std::tuple{tag_order(b.tag), b.tag, b.rank};
  });
  const auto same = [](const peak_record& a, const peak_record& b) {
    return std::tie(a.tag, a.bytes, a.promised, a.held_at_peak, a.phase) ==
           std::tie(b.tag, b.bytes, b.promised, b.held_at_peak, b.phase);
  };
  std::vector<table_row> rows;
  for (std::size_t i = 0; i < peaks.size(); ++i) {
    const auto twin = [&](const peak_record& other) { return same(peaks[i], other); };
    const auto begin = peaks.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::any_of(peaks.begin(), begin, twin)) continue; // shown with the first of its kind
    std::vector<std::int64_t> ranks;
    for (auto peak = begin; peak != peaks.end(); ++peak)
      if (twin(*peak)) ranks.push_back(peak->rank);
    const peak_record& peak = peaks[i];
    const std::string_view own = total_name.empty() ? std::string_view{peak.tag} : std::string_view{};
    rows.push_back({total_name.empty() ? peak.tag : std::string{total_name}, ranks_of(ranks),
                    in_unit(peak.bytes, unit), peak.promised ? in_unit(*peak.promised, unit) : "-",
                    peak.bytes == 0 ? "never" : peak.phase,
                    peak.bytes == 0 ? "" : held_besides(peak, own, unit)});
  }
  return rows;
}

inline std::string rendered(const std::vector<table_row>& rows, bool promises) {
  struct column {
    std::string table_row::*text;
    bool right;
  };
  std::vector<column> columns{
      {&table_row::peak, false}, {&table_row::ranks, false}, {&table_row::bytes, true}};
  if (promises) columns.push_back({&table_row::promised, true});
  columns.insert(columns.end(), {{&table_row::when, false}, {&table_row::held, false}});
  std::vector<std::string> lines(rows.size() + 1); // the second is the rule
  for (const column& c : columns) {
    std::size_t width = 0;
    for (const table_row& row : rows) width = std::max(width, (row.*c.text).size());
    const std::size_t rule =
        c.text == &table_row::held ? (rows.front().*c.text).size() : width; // it may be long
    for (std::size_t r = 0; r < rows.size(); ++r)
      lines[r == 0 ? 0 : r + 1] += c.right ? fmt::format("{:>{}}  ", rows[r].*c.text, width)
                                           : fmt::format("{:<{}}  ", rows[r].*c.text, width);
    lines[1] += fmt::format("{:-<{}}  ", "", c.right ? width : rule);
  }
  std::string text;
  for (std::string& line : lines) {
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

} // namespace detail

// One line for each peak and rank, then the totals, for each space; ends with a newline. The four peaks are
// always there; others of less than a thousandth of the highest total are left out, and their number is told.
inline std::string peak_table(const run_result& result) {
  std::uint64_t highest = 0;
  for (const peak_record& total : result.totals) highest = std::max(highest, total.bytes);
  for (const peak_record& peak : result.peaks) highest = std::max(highest, peak.bytes);
  const detail::byte_unit unit = detail::unit_for(highest);
  const std::uint64_t least = highest / 1000;
  const bool promises = std::any_of(result.peaks.begin(), result.peaks.end(),
                                    [](const peak_record& peak) { return peak.promised.has_value(); });
  std::size_t left_out = 0;
  std::string text;
  for (const std::string_view space : {"device", "host"}) {
    const auto shown_of = [&](const std::vector<peak_record>& all, bool tags) {
      std::vector<peak_record> shown;
      for (const peak_record& peak : all) {
        if (peak.space != space) continue;
        const bool one_of_four =
            tags && space == "device" && detail::tag_order(peak.tag) < flatten_rows.size();
        if (one_of_four || (peak.bytes > 0 && peak.bytes >= least))
          shown.push_back(peak);
        else if (peak.bytes > 0)
          ++left_out;
      }
      return shown;
    };
    std::vector<detail::table_row> rows{
        {fmt::format("{} memory", space), "rank", unit.name, "promised", "when", "held beside it"}};
    for (const auto& part : {detail::rows_of(shown_of(result.peaks, true), "", unit),
                             detail::rows_of(shown_of(result.totals, false), "all together", unit)})
      rows.insert(rows.end(), part.begin(), part.end());
    if (rows.size() > 1) text += (text.empty() ? "" : "\n") + detail::rendered(rows, promises);
  }
  if (left_out > 0)
    text += fmt::format("Not shown: {} smaller than {}, which --json lists.\n",
                        left_out == 1 ? "1 peak" : fmt::format("{} peaks", left_out), human_bytes(least));
  const auto after = std::max_element(result.evaluation.begin(), result.evaluation.end(),
                                      [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
  if (after != result.evaluation.end())
    text += fmt::format("Held in the evaluation after training: {} on rank {}, more than in training.\n",
                        human_bytes(after->bytes), after->rank);
  return text;
}

} // namespace moe
