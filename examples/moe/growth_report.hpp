// SPDX-License-Identifier: Apache-2.0
//
// What memory grows with, for people: bytes for each more of everything, tag by tag, under the given
// combination and with nothing flattened; which doubling comes first at the next wall, and what to do then.
#pragma once

#include "growth_table.hpp"
#include "options.hpp"
#include "report.hpp"

#include <plateau/tag.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace moe {

// What to do where this tag is what grows with more of this kind: by a flag that is not set yet, where there
// is one.
inline std::string growth_advice(const options& o, growth_kind kind, std::string_view tag) {
  for (const flatten_row& row : flatten_rows)
    if (!(o.flatten.*row.member) &&
        (tag == row.name || (tag == "gradients" && row.member == &flatten_set::optimizer)))
      return fmt::format("--flatten {} bounds it", row.name);
  if (tag == "dispatch") return "a smaller --dispatch-cap: more rounds, the same sums but for their order";
  if (tag == "vocabulary") return "a smaller --vocabulary-tile or --hop-rows";
  if (tag == "checkpoint")
    return "a larger --host-budget for inputs that are parked, or --keep-every, which computes layers once "
           "more instead";
  if (tag == "optimizer") return "a smaller --bucket, or fewer --slots";
  if (kind == growth_kind::vocabulary_entry && (tag == "parameters" || tag == "gradients"))
    return o.tied ? "a smaller vocabulary or --hidden: each rank has all of the embedding"
                  : fmt::format("one matrix for embedding and head (--tied){}",
                                o.flatten.vocabulary ? ", or more ranks, which divide the head" : "");
  if (tag == "gradients")
    return "experts on more ranks (--expert-parallel): the device has those of two layers, and of embedding "
           "and head";
  if (tag == "parameters")
    return fmt::format("experts on more ranks (--expert-parallel){}",
                       o.dtype == compute_type::fp32 ? ", or weights of half the bytes (--dtype bf16)" : "");
  if (tag == "activations")
    return fmt::format("fewer tokens of a rank at a time: each sequence over {} (--sequence-parallel), more "
                       "micro-batches (--accumulate) or more ranks for the same batch",
                       o.sequence_parallel == 1 ? "several ranks" : "more ranks");
  return "a smaller shape";
}

namespace detail {

// Three digits, where there are as many: "18 B", "1.25 KiB", "-340 B".
inline std::string slope_text(double bytes) {
  if (std::abs(bytes) < 0.005) return "0";
  double value = std::abs(bytes);
  const char* unit = "B";
  for (const char* larger : {"KiB", "MiB", "GiB", "TiB"}) {
    if (value < 1000) break;
    value /= 1024;
    unit = larger;
  }
  // No trailing zeros behind the point: a slope is a whole number of bytes more often than not.
  std::string digits = fmt::format("{:.{}f}", value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
  if (digits.find('.') != std::string::npos) {
    digits.erase(digits.find_last_not_of('0') + 1);
    if (digits.back() == '.') digits.pop_back();
  }
  return fmt::format("{}{} {}", bytes < 0 ? "-" : "", digits, unit);
}

// Columns, the first one to the left, with a rule below the first line.
inline std::string aligned(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::size_t i = 0; i < rows[r].size(); ++i)
      text += i == 0 ? fmt::format("{:<{}}", rows[r][i], widths[i])
                     : fmt::format("  {:>{}}", rows[r][i], widths[i]);
    text += '\n';
    if (r > 0) continue;
    for (std::size_t i = 0; i < widths.size(); ++i)
      text += (i == 0 ? "" : "  ") + std::string(widths[i], '-');
    text += '\n';
  }
  return text;
}

inline std::string slope_rows(const growth_table& table, const std::string& title,
                              growth_pair growth_row::*side) {
  std::vector<std::string> tags;
  for (const plateau::tag t : plateau::all_tags) tags.emplace_back(plateau::name_of(t));
  std::stable_sort(tags.begin(), tags.end(),
                   [](const std::string& a, const std::string& b) { return tag_order(a) < tag_order(b); });
  std::vector<std::vector<std::string>> rows(1, {title});
  for (const growth_row& row : table.rows) rows[0].emplace_back(name_of(row.kind));
  const auto line = [&](const std::string& name, auto value) {
    std::vector<std::string> cells(1, name);
    for (const growth_row& row : table.rows)
      cells.push_back(row.impossible.empty() ? value(row.*side, row.units) : std::string("-"));
    rows.push_back(std::move(cells));
  };
  for (const std::string& tag : tags)
    if (std::any_of(table.rows.begin(), table.rows.end(), [&](const growth_row& row) {
          return row.given.added(tag) != 0 || row.none.added(tag) != 0;
        }))
      line(tag, [&](const growth_pair& p, double units) {
        return slope_text(static_cast<double>(p.added(tag)) / units);
      });
  line("all together",
       [](const growth_pair& p, double units) { return slope_text(static_cast<double>(p.added()) / units); });
  line("grows fastest", [](const growth_pair& p, double) {
    const std::string tag = p.fastest();
    return tag.empty() ? std::string("nothing") : tag;
  });
  return aligned(rows);
}

} // namespace detail

// Two tables and what follows from them; ends with a newline.
inline std::string growth_text(const growth_table& table) {
  std::string text = "Bytes that the peak of a rank's device memory grows by for each more:\n";
  const std::string given = flattened_peaks(table.config);
  const bool all = std::all_of(flatten_rows.begin(), flatten_rows.end(),
                               [&](const flatten_row& row) { return table.config.flatten.*row.member; });
  const std::string title = all ? "all" : given.size() > 12 ? "..." : given;
  text += detail::slope_rows(table, "--flatten " + title, &growth_row::given);
  if (given != "none") text += "\n" + detail::slope_rows(table, "--flatten none", &growth_row::none);
  text += "\nEach from a doubling, on the rank that has most; the highest of every tag, whenever that is, so "
          "that they do not add up.\n";
  for (const growth_row& row : table.rows)
    text += row.impossible.empty()
                ? fmt::format("  {}: one more {} ({})\n", name_of(row.kind), unit_of(row.kind), row.step)
                : fmt::format("  {}: there is no such run: {}\n", name_of(row.kind), shown(row.impossible));
  const growth_row* wall = table.next_wall();
  if (wall == nullptr) return text + "Nothing makes the peak grow.\n";
  const std::string tag = wall->given.fastest();
  text += fmt::format("The next wall: {} adds most to the peak of {}: {}", wall->step,
                      human_bytes(static_cast<std::uint64_t>(wall->given.at.total)),
                      human_bytes(static_cast<std::uint64_t>(wall->given.added())));
  if (!tag.empty())
    text += fmt::format(". The tag that grows fastest then is {}, by {}; what helps: {}", tag,
                        human_bytes(static_cast<std::uint64_t>(wall->given.added(tag))),
                        growth_advice(table.config, wall->kind, tag));
  return text + ".\n";
}

} // namespace moe
