// SPDX-License-Identifier: Apache-2.0
//
// Counts of routed rows in files: one line for each step, layer, rank and expert. As CSV with the header
// "step,layer,rank,expert,rows", or as JSON, an object with those five arrays, all of one length. What a file
// leaves out gets no rows. A run can be recorded into such a file and be repeated from it.
#pragma once

#include "atomic_file.hpp"
#include "input_error.hpp"
#include "input_file.hpp"
#include "json_text.hpp"

#include <plateau/dry_run/scenario.hpp>
#include <plateau/dry_run/scenario_counts.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace moe {

namespace detail {

inline constexpr std::string_view counts_header = "step,layer,rank,expert,rows";
inline constexpr std::array<std::string_view, 5> counts_fields{"step", "layer", "rank", "expert", "rows"};
inline constexpr std::array<std::int64_t, 5> counts_highest{(1 << 20) - 1, (1 << 16) - 1, (1 << 16) - 1,
                                                            (1 << 20) - 1, std::int64_t{1} << 48};
using counts_entry = std::array<std::int64_t, 5>;

// Entries to a table. `where(i)` names entry i for people.
template <class Where>
plateau::counts_table table_of(const std::string& path, const std::vector<counts_entry>& entries,
                               Where where) {
  std::array<std::int64_t, 4> extents{};
  for (const auto& entry : entries)
    for (std::size_t f = 0; f < extents.size(); ++f) extents[f] = std::max(extents[f], entry[f] + 1);
  double size = 1;
  for (const std::int64_t extent : extents) size *= static_cast<double>(extent);
  if (entries.empty()) throw input_error{fmt::format("{}: no counts; expected at least one", shown(path))};
  if (size > 0x1p27)
    throw input_error{
        fmt::format("{}: {} steps x {} layers x {} ranks x {} experts; expected at most {} counts",
                    shown(path), extents[0], extents[1], extents[2], extents[3], 1 << 27)};
  plateau::counts_table table{extents[0], extents[1], extents[2], extents[3], {}};
  table.rows.assign(static_cast<std::size_t>(size), -1);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const auto& [step, layer, rank, expert, rows] = entries[i];
    auto& place = table.rows[static_cast<std::size_t>(
        ((step * table.layers + layer) * table.ranks + rank) * table.experts + expert)];
    if (place >= 0)
      throw input_error{
          fmt::format("{}: {}: step {}, layer {}, rank {}, expert {} for the second time; expected "
                      "it once",
                      shown(path), where(i), step, layer, rank, expert)};
    place = rows;
  }
  std::replace(table.rows.begin(), table.rows.end(), std::int64_t{-1}, std::int64_t{0});
  return table;
}

inline plateau::counts_table counts_of_csv(const std::string& path, std::string_view text) {
  std::vector<counts_entry> entries;
  std::vector<std::size_t> lines; // of the entries
  std::size_t number = 0;
  const auto fail = [&](std::string_view what) {
    throw input_error{fmt::format("{}: line {}: {}", shown(path), number, what)};
  };
  while (!text.empty()) {
    ++number;
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (number == 1) {
      if (line != counts_header)
        fail(fmt::format("expected the header {}, got '{}'", counts_header, shown(line)));
      continue;
    }
    if (line.empty()) continue;
    counts_entry entry{};
    const char *at = line.data(), *const end = at + line.size();
    for (std::size_t f = 0; f < entry.size(); ++f) {
      const char* const stop = std::find(at, end, ',');
      const auto [behind, error] = std::from_chars(at, stop, entry[f]);
      const bool last = f + 1 == entry.size();
      if (error != std::errc{} || behind != stop || entry[f] < 0 || entry[f] > counts_highest[f])
        fail(fmt::format("field '{}': expected a whole number from 0 to {}, got '{}'", counts_fields[f],
                         counts_highest[f], shown({at, static_cast<std::size_t>(stop - at)})));
      if (last != (stop == end))
        fail(fmt::format("{} fields; expected 5: {}", std::count(line.begin(), line.end(), ',') + 1,
                         counts_header));
      at = last ? stop : stop + 1;
    }
    entries.push_back(entry);
    lines.push_back(number);
  }
  if (number == 0)
    throw input_error{fmt::format("{}: line 1: expected the header {}, got ''", shown(path), counts_header)};
  return table_of(path, entries, [&](std::size_t i) { return fmt::format("line {}", lines[i]); });
}

inline plateau::counts_table counts_of_json(const std::string& path, std::string_view text) {
  using nlohmann::json;
  const json document = json_of(path, text);
  std::vector<counts_entry> entries;
  for (std::size_t f = 0; f < counts_fields.size(); ++f) {
    const std::string name{counts_fields[f]};
    const auto found = document.find(name);
    if (found == document.end() || !found->is_array())
      throw input_error{fmt::format("{}: field '{}': {}; expected an array of whole numbers", shown(path),
                                    name, found == document.end() ? "missing" : "not an array")};
    if (f == 0) entries.resize(found->size());
    if (found->size() != entries.size())
      throw input_error{fmt::format("{}: field '{}': {} numbers; expected {}, as many as '{}' has",
                                    shown(path), name, found->size(), entries.size(), counts_fields[0])};
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const json& value = (*found)[i];
      // Beyond 63 bits an unsigned number would come out negative.
      if (!value.is_number_integer() || value.get<std::int64_t>() < 0 ||
          value.get<std::int64_t>() > counts_highest[f])
        throw input_error{fmt::format(
            "{}: field '{}', element {}: expected a whole number from 0 to {}, got '{}'", shown(path), name,
            i, counts_highest[f], shown(value.dump(-1, ' ', false, json::error_handler_t::replace)))};
      entries[i][f] = value.get<std::int64_t>();
    }
  }
  return table_of(path, entries, [](std::size_t i) { return fmt::format("element {}", i); });
}

} // namespace detail

// Throws input_error: one line with the file and the line, or the field of a JSON.
inline plateau::counts_table read_counts(const std::string& path) {
  const input_file file(path, "counts as CSV or JSON");
  std::string text(file.size(), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  const auto first = text.find_first_not_of(" \t\r\n");
  return first != std::string::npos && text[first] == '{' ? detail::counts_of_json(path, text)
                                                          : detail::counts_of_csv(path, text);
}

// `table` with at least as many layers, ranks and experts as `shape`; the new ones get no rows.
inline std::shared_ptr<const plateau::counts_table>
extended(std::shared_ptr<const plateau::counts_table> table, const plateau::routing_shape& shape) {
  const plateau::counts_table& from = *table;
  plateau::counts_table to{from.steps,
                           std::max(from.layers, shape.layers),
                           std::max(from.ranks, shape.ranks),
                           std::max(from.experts, shape.experts),
                           {}};
  if (to.layers == from.layers && to.ranks == from.ranks && to.experts == from.experts) return table;
  to.rows.resize(static_cast<std::size_t>(to.steps * to.layers * to.ranks * to.experts));
  auto next = from.rows.begin();
  for (std::int64_t step = 0; step < from.steps; ++step)
    for (std::int64_t layer = 0; layer < from.layers; ++layer)
      for (std::int64_t rank = 0; rank < from.ranks; ++rank, next += from.experts)
        std::copy_n(next, from.experts,
                    to.rows.begin() + ((step * to.layers + layer) * to.ranks + rank) * to.experts);
  return std::make_shared<const plateau::counts_table>(std::move(to));
}

// What a real run routed. Ranks may add at the same time.
class routing_recorder {
 public:
  // Rows of the rank's tokens to each expert of the layer; several micro-batches of a step add up.
  void add(std::int64_t step, std::int64_t layer, std::int64_t rank, std::span<const std::int64_t> counts) {
    const std::lock_guard lock(mutex_);
    auto& sums = rows_[{step, layer, rank}];
    sums.resize(std::max(sums.size(), counts.size()));
    for (std::size_t e = 0; e < counts.size(); ++e) sums[e] += counts[e];
  }

  // Of (step, layer, rank).
  std::size_t entries() const {
    const std::lock_guard lock(mutex_);
    return rows_.size();
  }
  // f(step, layer, rank, rows of each expert), in this order.
  template <class F> void for_each(F f) const {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, sums] : rows_) f(key[0], key[1], key[2], std::span<const std::int64_t>(sums));
  }

  std::string csv() const {
    const std::lock_guard lock(mutex_);
    std::string text{detail::counts_header};
    text += '\n';
    for (const auto& [key, sums] : rows_)
      for (std::size_t e = 0; e < sums.size(); ++e)
        fmt::format_to(std::back_inserter(text), "{},{},{},{},{}\n", key[0], key[1], key[2], e, sums[e]);
    return text;
  }

  // Throws input_error or output_error.
  void write_csv(const std::string& path) const { write_result_file(path, csv()); }

 private:
  mutable std::mutex mutex_;
  std::map<std::array<std::int64_t, 3>, std::vector<std::int64_t>> rows_; // by step, layer, rank
};

} // namespace moe
