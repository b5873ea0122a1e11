// SPDX-License-Identifier: Apache-2.0
//
// The processes that carry out one run together. Each reads files and flags for itself, and any of them may
// find a fault in those: all learn of it, the first one says it, and all end alike. A program that has all
// the ranks itself is a team of one, in which nothing is different from calling the functions.
#pragma once

#include "training_job.hpp"
#include "trouble.hpp"
#include "words.hpp"

#include <plateau/digest.hpp>
#include <plateau/error.hpp>
#include <plateau/majority.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace moe {

// Thrown on all processes of a team for the same reason: nobody waits for anybody.
struct agreed_trouble : std::runtime_error {
  explicit agreed_trouble(const trouble& t) : std::runtime_error(t.text), status(t.status) {}
  int status;
};

// A flag and its value, or another thing that must not differ.
using named_value = std::pair<std::string, std::string>;

class process_team {
 public:
  process_team() = default; // of one
  explicit process_team(process_communicator& world) : world_(&world) {}

  int rank() const { return world_ == nullptr ? 0 : world_->rank(); }
  int size() const { return world_ == nullptr ? 1 : world_->size(); }
  bool first() const { return rank() == 0; }
  process_communicator* world() const { return world_; }

  // Collective: f() on each. What it throws on any is an agreed_trouble on all, that of the lowest rank; in a
  // team of one it passes through. f must not use the communicator.
  template <class F> void together(F&& f) {
    if (world_ == nullptr) return std::forward<F>(f)();
    const auto mine = trouble_of(std::forward<F>(f));
    if (const auto first = first_trouble(mine)) throw agreed_trouble(*first);
  }
  // The same, of what only the first has to do.
  template <class F> void on_first(F&& f) {
    together([&] {
      if (first()) f();
    });
  }

  // Collective. Throws agreed_trouble with the first thing that is not the same on all, with both values.
  void agree_on(const std::vector<named_value>& values) {
    if (world_ == nullptr) return;
    plateau::digest d;
    for (const auto& [name, value] : values) d.add(name).add(value);
    const std::int64_t mine[1] = {static_cast<std::int64_t>(d.value())};
    std::vector<std::int64_t> all(static_cast<std::size_t>(size()));
    world_->host_exchange(mine, all, "digest of the options");
    if (std::adjacent_find(all.begin(), all.end(), std::not_equal_to<>()) == all.end()) return;
    word_writer words;
    for (const auto& [name, value] : values) {
      words.put(name);
      words.put(value);
    }
    throw agreed_trouble({2, difference_in(everybodys(words.words()))});
  }

 private:
  // Everybody's words, by rank.
  std::vector<std::vector<std::int64_t>> everybodys(const std::vector<std::int64_t>& mine) {
    const auto ranks = static_cast<std::size_t>(size());
    const std::int64_t length[1] = {static_cast<std::int64_t>(mine.size())};
    std::vector<std::int64_t> lengths(ranks);
    world_->host_exchange(length, lengths, "lengths");
    const auto longest = static_cast<std::size_t>(*std::max_element(lengths.begin(), lengths.end()));
    std::vector<std::int64_t> padded(mine), all(longest * ranks);
    padded.resize(longest);
    world_->host_exchange(padded, all, "words");
    std::vector<std::vector<std::int64_t>> each;
    for (std::size_t r = 0; r < ranks; ++r) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(r * longest);
      each.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(lengths[r]));
    }
    return each;
  }

  // The trouble of the lowest rank that has one, which is named if it is not the first and not everybody's.
  std::optional<trouble> first_trouble(const std::optional<trouble>& mine) {
    word_writer words;
    words.put(mine ? mine->status : 0);
    if (mine) words.put(std::string_view(mine->text).substr(0, longest_text));
    const auto all = everybodys(words.words());
    const auto found = std::find_if(all.begin(), all.end(), [](const auto& each) { return each[0] != 0; });
    if (found == all.end()) return std::nullopt;
    word_reader from(*found);
    trouble first;
    first.status = from.number<int>();
    first.text = from.text();
    const bool shared = std::all_of(all.begin(), all.end(), [&](const auto& each) { return each == *found; });
    if (!shared && found != all.begin())
      first.text = fmt::format("rank {}: {}", found - all.begin(), first.text);
    return first;
  }

  static std::string difference_in(const std::vector<std::vector<std::int64_t>>& all) {
    std::vector<word_reader> from(all.begin(), all.end());
    std::vector<std::string> texts(all.size());
    const auto text_of = [&](int r) -> const std::string& { return texts[static_cast<std::size_t>(r)]; };
    const auto odd = [&] {
      for (std::size_t r = 0; r < all.size(); ++r) texts[r] = from[r].empty() ? "" : from[r].text();
      return plateau::first_outlier(static_cast<int>(all.size()), text_of);
    };
    while (std::none_of(from.begin(), from.end(), [](const word_reader& f) { return f.empty(); })) {
      if (odd() >= 0) break; // lists of other versions of this program
      const std::string name = text_of(0);
      const int rank = odd();
      if (rank < 0) continue;
      const int others = plateau::majority_rank(static_cast<int>(all.size()), text_of);
      return fmt::format("{}: rank {} has {}, rank {} has {}; expected the same on all ranks", name, rank,
                         shown(text_of(rank)), others, shown(text_of(others)));
    }
    return "ranks run different versions of this program; expected the same on all of them";
  }

  static constexpr std::size_t longest_text = 4096;

  process_communicator* world_ = nullptr;
};

} // namespace moe
