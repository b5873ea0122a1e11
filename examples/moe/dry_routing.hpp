// SPDX-License-Identifier: Apache-2.0
//
// What a dry run of the model needs to know of its routing: the counts that each rank would have fetched, in
// the order in which it fetches them, and which ranks are alike.
#pragma once

#include "model_config.hpp"
#include "routing_scenario.hpp"
#include "trainer.hpp"

#include <plateau/digest.hpp>
#include <plateau/dry_run/options.hpp>
#include <plateau/dry_run/scenario.hpp>

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace moe {

// The routing of one step, for all ranks. Immutable; any thread may ask.
class dry_routing {
 public:
  dry_routing(const forced_routing& forced, const model_config& c, const rank_grid& g,
              const training_settings& s, std::int64_t step)
      : forced_(&forced), config_(c), grid_(g), settings_(s), step_(step) {}

  // The scenario of a dry run that trains for the step: a layer's fetch is answered with the first route of
  // each expert, experts + 1 numbers.
  bool answer(const plateau::dry_fetch& fetch) const {
    if (std::string_view(fetch.label) != "routes of each expert") return false;
    const auto layers = static_cast<std::uint64_t>(config_.layers);
    const auto micro =
        static_cast<index_t>(fetch.number / layers % static_cast<std::uint64_t>(settings_.accumulate));
    const auto layer = static_cast<index_t>(fetch.number % layers);
    const std::vector<std::int64_t> rows = counts(fetch.rank, micro, layer);
    std::vector<std::int64_t> offsets{0};
    for (const std::int64_t n : rows) offsets.push_back(offsets.back() + n);
    std::memcpy(fetch.into.data(), offsets.data(), fetch.into.size());
    return true;
  }

  // Ranks with equal keys train alike: they have as many sequences, send as many rows to each expert, and
  // receive as many from each rank.
  std::uint64_t key(int rank) const {
    plateau::digest d;
    const index_t local = config_.experts / grid_.expert_parallel;
    const int group = rank - grid_.expert_rank(rank);
    const index_t first_local = grid_.expert_rank(rank) * local;
    for (index_t micro = 0; micro < settings_.accumulate; ++micro) {
      d.add(settings_.own_sequences_of(micro, rank, grid_.ranks).size());
      for (index_t layer = 0; layer < config_.layers; ++layer) {
        for (const std::int64_t n : counts(rank, micro, layer)) d.add(n);
        for (int source = group; source < group + grid_.expert_parallel; ++source) {
          const std::vector<std::int64_t> rows = counts(source, micro, layer);
          for (index_t e = first_local; e < first_local + local; ++e)
            d.add(rows[static_cast<std::size_t>(e)]);
        }
      }
    }
    return d.value();
  }

 private:
  // Rows that the rank's tokens of a micro-batch send to each expert. (experts)
  std::vector<std::int64_t> counts(int rank, index_t micro, index_t layer) const {
    std::vector<std::int64_t> rows(static_cast<std::size_t>(config_.experts));
    const plateau::share_range own = settings_.own_sequences_of(micro, rank, grid_.ranks);
    const plateau::token_range range{step_, rank, own.first * settings_.context,
                                     settings_.own_tokens_before(micro, rank, grid_.ranks),
                                     own.size() * settings_.context};
    forced_->scenario().counts(layer, range, rows);
    return rows;
  }

  const forced_routing* forced_;
  model_config config_;
  rank_grid grid_;
  training_settings settings_;
  std::int64_t step_;
};

} // namespace moe
