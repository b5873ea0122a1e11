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

inline std::string corpus_line(const corpus_summary& text) {
  return fmt::format(
      "text: {}, {} bytes, {} tokens of a vocabulary of {}, digest {:016x}; unigram entropy {:.3f} nats "
      "(ln {} = {:.2f})",
      shown(text.name), text.bytes, text.tokens, text.vocabulary, text.digest, text.entropy, text.vocabulary,
      std::log(static_cast<double>(text.vocabulary)));
}

inline std::string summary_line(const run_result& result) {
  std::string line = result.losses.empty()
                         ? std::string{"no step was run"}
                         : fmt::format("loss {:.4f} at step {}, {:.4f} at step {}", result.losses.front(),
                                       result.first_step + 1, result.losses.back(),
                                       result.first_step + std::int64_t(result.losses.size()));
  if (result.loss_heldout)
    line +=
        fmt::format("; held-out {:.4f}, {} the unigram entropy of {:.4f}", *result.loss_heldout,
                    *result.loss_heldout < result.text.entropy ? "below" : "not below", result.text.entropy);
  return line + fmt::format("; {:.0f} tokens/s", result.tokens_per_second);
}

namespace detail {

// The order in which a reader looks for them: the four peaks first; tags that are not listed come last.
inline std::size_t tag_order(std::string_view tag) {
  constexpr std::array<std::string_view, 9> order{"dispatch",    "vocabulary", "checkpoint",
                                                  "optimizer",   "parameters", "gradients",
                                                  "activations", "workspace",  "other"};
  return static_cast<std::size_t>(std::find(order.begin(), order.end(), tag) - order.begin());
}

// "parameters 8.00 MiB, gradients 8.00 MiB, 1.20 MiB more": what was held besides `tag`, the largest first.
inline std::string held_besides(const peak_record& peak, std::string_view tag) {
  constexpr std::size_t named = 4;
  std::vector<std::pair<std::uint64_t, std::string>> held;
  for (const auto& [name, bytes] : peak.held_at_peak)
    if (name != tag && bytes > 0) held.emplace_back(bytes, name);
  std::stable_sort(held.begin(), held.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string text;
  std::uint64_t rest = 0;
  for (std::size_t i = 0; i < held.size(); ++i) {
    if (i < named)
      text += fmt::format("{}{} {}", i == 0 ? "" : ", ", held[i].second, human_bytes(held[i].first));
    else
      rest += held[i].first;
  }
  if (rest > 0) text += fmt::format(", {} more", human_bytes(rest));
  return text.empty() ? "nothing" : text;
}

using table_row = std::array<std::string, 7>; // peak, ranks, space, bytes, promised, when, held

inline void add_rows(std::vector<peak_record> peaks, std::string_view total_name,
                     std::vector<table_row>& rows) {
  std::erase_if(peaks, [](const peak_record& peak) { return peak.bytes == 0; });
  std::stable_sort(peaks.begin(), peaks.end(), [](const peak_record& a, const peak_record& b) {
    return std::tuple{tag_order(a.tag), a.tag, a.space, a.rank} <
           std::tuple{tag_order(b.tag), b.tag, b.space, b.rank};
  });
  const auto same = [](const peak_record& a, const peak_record& b) {
    return std::tie(a.tag, a.space, a.bytes, a.promised, a.held_at_peak, a.phase) ==
           std::tie(b.tag, b.space, b.bytes, b.promised, b.held_at_peak, b.phase);
  };
  for (std::size_t i = 0; i < peaks.size(); ++i) {
    const auto twin = [&](const peak_record& other) { return same(peaks[i], other); };
    const auto begin = peaks.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::any_of(peaks.begin(), begin, twin)) continue; // shown with the first of its kind
    std::vector<std::int64_t> ranks;
    for (auto peak = begin; peak != peaks.end(); ++peak)
      if (twin(*peak)) ranks.push_back(peak->rank);
    const peak_record& peak = peaks[i];
    rows.push_back({total_name.empty() ? peak.tag : std::string{total_name}, ranges_of(ranks), peak.space,
                    human_bytes(peak.bytes), peak.promised ? human_bytes(*peak.promised) : "-", peak.phase,
                    held_besides(peak, total_name.empty() ? peak.tag : std::string{})});
  }
}

} // namespace detail

// One line for each peak and rank, then the totals; ends with a newline. Peaks of no bytes are left out.
inline std::string peak_table(const run_result& result) {
  std::vector<detail::table_row> rows{
      {"peak", "rank", "space", "bytes", "promised", "when", "held beside it"}};
  detail::add_rows(result.peaks, "", rows);
  detail::add_rows(result.totals, "all together", rows);
  detail::table_row rule;
  std::array<std::size_t, std::tuple_size_v<detail::table_row>> widths{};
  for (const auto& row : rows)
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  std::string text;
  const auto add = [&](const detail::table_row& row) {
    constexpr std::size_t bytes = 3, promised = 4;
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c)
      line += c == bytes || c == promised ? fmt::format("{:>{}}  ", row[c], widths[c])
                                          : fmt::format("{:<{}}  ", row[c], widths[c]);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  };
  add(rows.front());
  for (std::size_t c = 0; c < rule.size(); ++c) rule[c] = std::string(widths[c], '-');
  rule.back() = std::string(rows.front().back().size(), '-'); // the last column may be long
  add(rule);
  for (std::size_t i = 1; i < rows.size(); ++i) add(rows[i]);
  return text;
}

} // namespace moe
