// SPDX-License-Identifier: Apache-2.0
//
// What a dry run of the model needs to know of its routing: the counts that each rank would have fetched, in
// the order in which it fetches them, and which ranks are alike.
#pragma once

#include "model_config.hpp"
#include "parameter_layout.hpp"
#include "placed_tokens.hpp"
#include "routing_scenario.hpp"
#include "trainer.hpp"

#include <plateau/digest.hpp>
#include <plateau/dry_run/options.hpp>
#include <plateau/dry_run/scenario.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <set>
#include <span>
#include <string_view>
#include <vector>

namespace moe {

// The routing of one step, for all ranks. Immutable; any thread may ask.
class dry_routing {
 public:
  // Ranks r and r + 1 are on the same node unless r + 1 divides by `ranks_per_node`. `by_rounds`: the
  // dispatch is; which rows then go in which round depends on all counts of the expert group, and on the
  // place in it.
  dry_routing(const forced_routing& forced, const model_config& c, const rank_grid& g,
              const training_settings& s, std::int64_t step,
              int ranks_per_node = std::numeric_limits<int>::max(), bool by_rounds = false)
      : forced_(&forced), config_(c), grid_(g), settings_(s), step_(step), ranks_per_node_(ranks_per_node),
        by_rounds_(by_rounds) {
    find_keys();
  }

  // The scenario of a dry run that trains for the step. A layer's fetch is answered with the first route of
  // each expert, experts + 1 numbers, or, where the dispatch is by rounds, with the rows of each and two
  // zeros: no id is out of range.
  bool answer(const plateau::dry_fetch& fetch) const {
    const bool rows_alone = std::string_view(fetch.label) == "rows of each expert";
    if (!rows_alone && std::string_view(fetch.label) != "routes of each expert") return false;
    const auto layers = static_cast<std::uint64_t>(config_.layers);
    const auto micro =
        static_cast<index_t>(fetch.number / layers % static_cast<std::uint64_t>(settings_.accumulate));
    const auto layer = static_cast<index_t>(fetch.number % layers);
    const std::vector<std::int64_t> rows = counts(fetch.rank, micro, layer);
    std::vector<std::int64_t> words;
    if (rows_alone) {
      words = rows;
      words.insert(words.end(), {0, 0});
    } else {
      words.push_back(0);
      for (const std::int64_t n : rows) words.push_back(words.back() + n);
    }
    if (fetch.into.size() != words.size() * sizeof(std::int64_t)) return false;
    std::memcpy(fetch.into.data(), words.data(), fetch.into.size());
    return true;
  }

  // Ranks with equal keys train alike: they have as many sequences, send as many rows to each expert, receive
  // as many from each rank, add up as many gradients, and so do those that they meet.
  std::uint64_t key(int rank) const { return keys_[static_cast<std::size_t>(rank)]; }

 private:
  // What each rank does by itself, then, again and again, with whom: until that tells no more ranks apart. In
  // which order a rank's peers come makes no difference to it.
  void find_keys() {
    const auto ranks = static_cast<std::size_t>(grid_.ranks);
    const auto distinct = [&] { return std::set<std::uint64_t>(keys_.begin(), keys_.end()).size(); };
    keys_ = own_keys();
    for (std::size_t before = 0; before < distinct();) {
      before = distinct();
      std::vector<std::uint64_t> finer(ranks);
      for (int rank = 0; rank < grid_.ranks; ++rank) {
        const int place = grid_.expert_rank(rank), group = rank - place, node = rank / ranks_per_node_;
        std::vector<std::array<std::uint64_t, 3>> met; // by the experts, by sums of gradients, on the node
        for (int peer = 0; peer < grid_.ranks; ++peer) {
          const std::uint64_t near = peer / ranks_per_node_ == node ? 1 : 0;
          if (peer - grid_.expert_rank(peer) == group)
            met.push_back({key(peer), 2 + near, exchanged_[at(rank, grid_.expert_rank(peer))]});
          if (grid_.expert_rank(peer) == place) met.push_back({key(peer), 4 + near, 0});
          if (near != 0) met.push_back({key(peer), 6, 0});
        }
        // Around the ring of the vocabulary: who is before and after, so at last who comes hop after hop.
        const auto beside = [&](int peer, std::uint64_t side) {
          met.push_back({key(peer), side + (peer / ranks_per_node_ == node ? 1 : 0), 0});
        };
        if (config_.flatten.vocabulary) {
          beside((rank + 1) % grid_.ranks, 8);
          beside((rank + grid_.ranks - 1) % grid_.ranks, 10);
        }
        // So around those that share sequences.
        if (const int s = settings_.sequence_parallel; s > 1) {
          const int first = rank - rank % s;
          beside(first + (rank + 1) % s, 12);
          beside(first + (rank + s - 1) % s, 14);
        }
        std::sort(met.begin(), met.end());
        plateau::digest d;
        d.add(key(rank));
        for (const auto& each : met) d.add(each[0]).add(each[1]).add(each[2]);
        finer[static_cast<std::size_t>(rank)] = d.value();
      }
      keys_ = std::move(finer);
    }
  }
  std::size_t at(int rank, int place) const {
    return static_cast<std::size_t>(rank) * static_cast<std::size_t>(grid_.expert_parallel) +
           static_cast<std::size_t>(place);
  }
  // Sequences, rows out and in, and the parts of sums that do not divide by the ranks.
  std::vector<std::uint64_t> own_keys() {
    exchanged_.assign(at(grid_.ranks, 0), plateau::digest{}.value());
    std::vector<plateau::digest> own(static_cast<std::size_t>(grid_.ranks));
    const parameter_layout layout(config_, grid_, 0);
    const index_t local = config_.experts / grid_.expert_parallel;
    const plateau::even_shards shards{config_.vocabulary, grid_.ranks};
    for (int rank = 0; rank < grid_.ranks; ++rank)
      own[static_cast<std::size_t>(rank)]
          .add(config_.flatten.vocabulary ? shards.count(rank) : 0)
          .add(rank < layout.shared.elements() % grid_.ranks)
          .add(rank / grid_.expert_parallel <
               layout.expert.elements() % (grid_.ranks / grid_.expert_parallel))
          .add(config_.balance_weight != 0 && rank < 2 * config_.experts % grid_.ranks);
    // Of ranks that share a sequence no two do the same: the front of each sees one part more than that of
    // the rank before it. Their totals are alike, what they do at each step of the ring is not.
    if (const int s = settings_.sequence_parallel; s > 1)
      for (int rank = 0; rank < grid_.ranks; ++rank) own[static_cast<std::size_t>(rank)].add(rank % s);
    for (index_t micro = 0; micro < settings_.accumulate; ++micro) {
      for (int rank = 0; rank < grid_.ranks; ++rank)
        own[static_cast<std::size_t>(rank)].add(settings_.own_sequences_of(micro, rank, grid_.ranks).size());
      for (index_t layer = 0; layer < config_.layers; ++layer) {
        std::vector<std::vector<std::int64_t>> all;
        for (int rank = 0; rank < grid_.ranks; ++rank) all.push_back(counts(rank, micro, layer));
        const std::vector<std::uint64_t> whole = by_rounds_ ? groups_of(all) : std::vector<std::uint64_t>{};
        for (int rank = 0; rank < grid_.ranks; ++rank) {
          plateau::digest& d = own[static_cast<std::size_t>(rank)];
          for (const std::int64_t n : all[static_cast<std::size_t>(rank)]) d.add(n);
          const int place = grid_.expert_rank(rank), group = rank - place;
          if (by_rounds_) d.add(place).add(whole[static_cast<std::size_t>(group / grid_.expert_parallel)]);
          for (int source = group; source < group + grid_.expert_parallel; ++source) {
            plateau::digest pair;
            pair.add(exchanged_[at(rank, source - group)]);
            for (index_t e = 0; e < local; ++e) {
              const std::int64_t received =
                  all[static_cast<std::size_t>(source)][static_cast<std::size_t>(place * local + e)];
              d.add(received);
              pair.add(received).add(all[static_cast<std::size_t>(rank)]
                                        [static_cast<std::size_t>((source - group) * local + e)]);
            }
            exchanged_[at(rank, source - group)] = pair.value();
          }
        }
      }
    }
    std::vector<std::uint64_t> keys;
    for (const plateau::digest& d : own) keys.push_back(d.value());
    return keys;
  }

  // A number for each expert group, of all rows that its ranks send: its rounds follow from them.
  std::vector<std::uint64_t> groups_of(const std::vector<std::vector<std::int64_t>>& all) const {
    std::vector<std::uint64_t> numbers;
    for (int group = 0; group < grid_.ranks; group += grid_.expert_parallel) {
      plateau::digest d;
      for (int source = group; source < group + grid_.expert_parallel; ++source)
        for (const std::int64_t n : all[static_cast<std::size_t>(source)]) d.add(n);
      numbers.push_back(d.value());
    }
    return numbers;
  }
  // Rows that the rank's tokens of a micro-batch send to each expert. (experts)
  std::vector<std::int64_t> counts(int rank, index_t micro, index_t layer) const {
    std::vector<std::int64_t> rows(static_cast<std::size_t>(config_.experts));
    const plateau::share_range own = settings_.own_sequences_of(micro, rank, grid_.ranks);
    const plateau::sequence_split split = settings_.dealing().split(settings_.context);
    const int place = rank % split.ranks();
    std::vector<std::int64_t> part(rows.size());
    placed_tokens{{step_, rank, own.first * settings_.context,
                   settings_.own_tokens_before(micro, rank, grid_.ranks), own.size() * split.rows(place)},
                  split.ranks() > 1 ? split.chunks(place) : std::span<const plateau::position_range>{},
                  settings_.context}
        .each_range([&](const plateau::token_range& range) {
          forced_->scenario().counts(layer, range, part);
          for (std::size_t e = 0; e < rows.size(); ++e) rows[e] += part[e];
        });
    return rows;
  }

  const forced_routing* forced_;
  model_config config_;
  rank_grid grid_;
  training_settings settings_;
  std::int64_t step_;
  int ranks_per_node_;
  bool by_rounds_;
  std::vector<std::uint64_t> keys_;      // by rank
  std::vector<std::uint64_t> exchanged_; // (ranks, expert_parallel): what goes there and back
};

} // namespace moe
