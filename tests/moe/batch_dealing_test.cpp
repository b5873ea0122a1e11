// SPDX-License-Identifier: Apache-2.0
//
// How the sequences of a step are dealt over micro-batches and ranks: everything once; the same step however
// it is dealt; memory for the rank that has most; and runs that follow recorded counts.
#include "batch_dealing.hpp"
#include "placed_tokens.hpp"
#include "routing_scenario.hpp"
#include "scenario_file.hpp"
#include "scratch_folder.hpp"
#include "trainer_on_ranks.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace pl = plateau;
using moe::index_t;
using test::training_case;

namespace {

const std::vector<pl::share_form> forms{pl::routing::even_shares{}, pl::routing::ragged{},
                                        pl::routing::zero_rank{0}, pl::routing::zero_rank{2}};

// One step's rows of each expert by (layer, rank), from every rank's own look.
using rows_by_rank = std::vector<std::vector<std::int64_t>>;

struct steps_taken {
  std::vector<double> losses, norms;
  std::vector<rows_by_rank> rows; // by step
  double held_out = 0;
};

// In one expert group of all ranks, one micro-batch a step.
steps_taken train(const training_case& c, const moe::token_sampler& sampler, std::int64_t steps) {
  steps_taken out;
  std::mutex mutex;
  test::train_on_ranks<float>(c, [&](auto& trainer) {
    for (std::int64_t step = 0; step < steps; ++step) {
      const moe::step_outcome outcome = trainer.run_step(sampler, step);
      if (trainer.world().rank() != 0) continue;
      out.losses.push_back(outcome.loss);
      out.norms.push_back(outcome.gradient_norm);
      rows_by_rank rows;
      for (moe::index_t l = 0; l < c.config.layers; ++l) {
        const moe::routing_counts& layer = trainer.model().routed(l);
        for (std::size_t first = 0; first < layer.size(); first += static_cast<std::size_t>(c.config.experts))
          rows.emplace_back(layer.begin() + static_cast<std::ptrdiff_t>(first),
                            layer.begin() + static_cast<std::ptrdiff_t>(first) + c.config.experts);
      }
      out.rows.push_back(rows);
    }
    const double held_out = trainer.held_out_loss(sampler);
    const std::lock_guard lock(mutex);
    out.held_out = held_out;
  });
  return out;
}

} // namespace

TEST_CASE("every sequence of a step is dealt once, whatever the form") {
  for (const pl::share_form& form : forms)
    for (const index_t batch : {1, 5, 16, 33})
      for (const index_t accumulate : {index_t{1}, index_t{3}, batch})
        for (const index_t ranks : {3, 4, 7}) {
          if (accumulate > batch) continue;
          const moe::batch_dealing dealing{batch, accumulate, form};
          index_t next = 0;
          std::vector<index_t> had(static_cast<std::size_t>(ranks));
          for (index_t micro = 0; micro < accumulate; ++micro)
            for (index_t rank = 0; rank < ranks; ++rank) {
              const pl::share_range own = dealing.own_of(micro, rank, ranks);
              REQUIRE(own.first == next);
              next = own.last;
              REQUIRE(own.size() <= dealing.largest(ranks));
              REQUIRE(dealing.own_before(micro, rank, ranks) == had[static_cast<std::size_t>(rank)]);
              had[static_cast<std::size_t>(rank)] += own.size();
            }
          REQUIRE(next == batch);
          for (index_t rank = 0; rank < ranks; ++rank)
            REQUIRE(dealing.own_before(accumulate, rank, ranks) == had[static_cast<std::size_t>(rank)]);
        }
}

TEST_CASE("groups that share sequences: every token of a step is on one rank, and is found there") {
  for (const pl::share_form& form : forms)
    for (const index_t sequence_ranks : {1, 2, 3})
      for (const index_t context : {7, 12})
        for (const index_t batch : {4, 9}) {
          const index_t ranks = 4 * sequence_ranks;
          const moe::batch_dealing dealing{batch, 2, form, sequence_ranks};
          const pl::sequence_split split = dealing.split(context);
          std::vector<int> seen(static_cast<std::size_t>(batch * context));
          for (index_t rank = 0; rank < ranks; ++rank) {
            index_t of_rank = 0;
            for (index_t micro = 0; micro < 2; ++micro) {
              const pl::share_range own = dealing.own_of(micro, rank, ranks);
              const index_t tokens = own.size() * dealing.rows_of(rank, context);
              REQUIRE(tokens <= dealing.largest_tokens(ranks, context));
              const moe::placed_tokens placed{{0, rank, own.first * context, of_rank, tokens},
                                              split.chunks(static_cast<int>(rank % sequence_ranks)),
                                              context};
              placed.each_range([&](const pl::token_range& range) {
                REQUIRE(range.first_of_rank == of_rank);
                for (index_t i = 0; i < range.tokens; ++i)
                  ++seen.at(static_cast<std::size_t>(range.first + i));
                of_rank += range.tokens;
              });
            }
            REQUIRE(of_rank == dealing.own_before(2, rank, ranks) * dealing.rows_of(rank, context));
          }
          for (const int times : seen) REQUIRE(times == 1);
        }
}

TEST_CASE("a step is the same however its sequences are dealt") {
  training_case c = test::tiny_case({4, 4});
  c.settings.batch = 9;
  const moe::corpus text = test::random_text(c.config.vocabulary, 500, 3);
  const moe::token_sampler sampler(text, c.settings.context, 1);
  const steps_taken even = train(c, sampler, 3);
  for (const index_t accumulate : {1, 2})
    for (const pl::share_form& form : forms) {
      c.settings.shares = form;
      c.settings.accumulate = accumulate;
      const steps_taken other = train(c, sampler, 3);
      for (std::size_t step = 0; step < 3; ++step) {
        CHECK(std::fabs(other.losses[step] - even.losses[step]) < 1e-5);
        CHECK(std::fabs(other.norms[step] - even.norms[step]) < 1e-4 * even.norms[step]);
      }
      CHECK(std::fabs(other.held_out - even.held_out) < 1e-5);
      const auto* zero = std::get_if<pl::routing::zero_rank>(&form);
      if (zero == nullptr) continue;
      const std::vector<std::int64_t> none(static_cast<std::size_t>(c.config.experts));
      for (const rows_by_rank& step : other.rows)
        for (std::size_t i = 0; i < step.size(); ++i)
          CHECK((step[i] == none) == (static_cast<std::int64_t>(i % 4) == zero->rank));
    }
}

TEST_CASE("memory is that of the rank that has most, and the loss's that of each") {
  for (const pl::share_form& form : forms) {
    training_case c = test::tiny_case({4, 2});
    c.settings.batch = 10;
    c.settings.shares = form;
    CHECK(c.settings.limits(4).sequences == (std::holds_alternative<pl::routing::even_shares>(form) ? 3 : 4));
    test::check_memory<float>(c);
  }
}

TEST_CASE("a recorded run is repeated from its file, rank by rank, and its evaluation is balanced") {
  training_case c = test::tiny_case({4, 4});
  c.settings.batch = 7;
  const moe::corpus text = test::random_text(c.config.vocabulary, 500, 4);
  const moe::token_sampler sampler(text, c.settings.context, 1);
  for (const char* name : {"hot:0.95,1+ragged", "rotating:0.5,3", "learned+zero-rank:1", "zipf:1.5"}) {
    CAPTURE(name);
    const moe::routing_scenario scenario = moe::parse_routing("--routing", name);
    std::optional<moe::forced_routing> forced;
    if (scenario.forced()) forced.emplace(scenario, 12, 2, 2, 4);
    c.settings.shares = scenario.shares;
    c.forced = forced ? &*forced : nullptr;
    const steps_taken first = train(c, sampler, 3);

    moe::routing_recorder recorder;
    for (std::size_t step = 0; step < 3; ++step)
      for (std::size_t i = 0; i < first.rows[step].size(); ++i)
        recorder.add(static_cast<std::int64_t>(step), static_cast<std::int64_t>(i / 4),
                     static_cast<std::int64_t>(i % 4), first.rows[step][i]);
    const moe_test::scratch_folder folder;
    recorder.write_csv(folder.file("r.csv"));
    moe::routing_scenario recorded = moe::parse_routing("--routing", "counts:" + folder.file("r.csv"));
    recorded.shares = scenario.shares;
    const moe::forced_routing again(recorded, 12, 2, 2, 4);
    c.forced = &again;
    const steps_taken second = train(c, sampler, 3);
    CHECK(second.rows == first.rows);
    CHECK(std::isfinite(second.held_out));

    // Another number of tokens is refused on every rank.
    c.settings.context = 8;
    test::backends<> on(4);
    for (const auto& end : test::outcomes_of<float>(c, on, [](auto&) {}))
      CHECK(moe_test::has(end.value().text, "the rows sum to "));
    c.settings.context = 9;
  }
}

TEST_CASE("recorded counts of several micro-batches are those of the whole step") {
  training_case c = test::tiny_case({2, 2});
  c.settings.batch = 7;
  c.settings.accumulate = 3;
  c.settings.shares = pl::routing::ragged{};
  const moe::corpus text = test::random_text(c.config.vocabulary, 500, 5);
  const moe::token_sampler sampler(text, c.settings.context, 1);
  const moe::forced_routing hot(moe::parse_routing("--routing", "hot:0.7,3"), 12, 2);
  const auto table = std::make_shared<pl::counts_table>(pl::counts_table{1, 2, 2, 12, {}});
  std::vector<std::int64_t> sums(2 * 12);
  for (std::int64_t layer = 0; layer < 2; ++layer)
    for (std::int64_t rank = 0; rank < 2; ++rank) {
      std::vector<std::int64_t> rows(12);
      const index_t tokens = c.settings.own_tokens_before(3, static_cast<int>(rank), 2);
      hot.scenario().counts(layer, {0, rank, 1000 * rank, 0, tokens}, rows);
      table->rows.insert(table->rows.end(), rows.begin(), rows.end());
      for (std::size_t e = 0; e < 12; ++e) sums[static_cast<std::size_t>(layer) * 12 + e] += rows[e];
    }
  moe::routing_scenario recorded = moe::parse_routing("--routing", "ragged");
  recorded.routes = pl::routing::recorded_counts{table};
  const moe::forced_routing again(recorded, 12, 2, 2, 2);
  c.forced = &again;
  test::train_on_ranks<float>(c, [&](auto& trainer) {
    for (const moe::expert_load& load : trainer.run_step(sampler, 0).loads)
      if (trainer.world().rank() == 0)
        CHECK(std::equal(load.rows.begin(), load.rows.end(), sums.begin() + load.layer * 12));
  });
}
