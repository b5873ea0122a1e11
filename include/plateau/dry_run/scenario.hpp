// SPDX-License-Identifier: Apache-2.0
//
// Who sends how many rows to which expert, where no router is asked: for dry runs, which have no data to
// route, and for real runs whose routing is forced, so that both see the same. An expert is a pure function
// of step, layer, token and slot, the same on every rank; shares are exact, not random. `counts` gives the
// sums over runs of tokens without visiting each of them.
#pragma once

#include <plateau/config.hpp>
#include <plateau/dry_run/scenario_counts.hpp>
#include <plateau/dry_run/scenario_shares.hpp>
#include <plateau/dry_run/scenario_zipf.hpp>
#include <plateau/error.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <variant>

namespace plateau::inline v0 {

namespace routing {

// Every expert the same; the experts of a token are neighbours, and move on from token to token.
struct balanced {};
// Expert e as popular as (e + 1)^-exponent, at most one route of a token each. Exponents 0 to 16.
struct zipf {
  double exponent = 1;
};
// The first `experts` experts get the fraction of all routes, evenly, and the others the rest. After any
// number of tokens the hot ones have had the floor of their share. Where a token has more hot routes than
// there are hot experts, its experts repeat.
struct hot {
  std::int64_t fraction_millionths = 1'000'000;
  std::int64_t experts = 1;
};
// Every token to the first top-k experts: one of its routes to each, all on one rank if that holds as many.
struct all_to_one {};
// As hot, but the hot experts move on by their number with every layer and every step.
struct rotating {
  std::int64_t fraction_millionths = 1'000'000;
  std::int64_t experts = 1;
};

} // namespace routing

using route_form = std::variant<routing::balanced, routing::zipf, routing::hot, routing::all_to_one,
                                routing::rotating, routing::recorded_counts>;

// Of rows that belong to no step of training: recorded counts have none for them, and give balanced ones.
inline constexpr std::int64_t evaluation_step = -1;

// A run of tokens of one rank.
struct token_range {
  std::int64_t step = 0;          // from 0, or evaluation_step
  std::int64_t rank = 0;          // in the outermost communicator
  std::int64_t first = 0;         // counted over the whole batch of the step
  std::int64_t first_of_rank = 0; // counted over the rank's own of the step
  std::int64_t tokens = 0;
};

struct routing_shape {
  std::int64_t experts = 1, top_k = 1;
  std::int64_t layers = 0, ranks = 0; // checked against the scenario; 0: whatever it has
};

namespace detail {

struct hot_law {
  static constexpr std::int64_t one = 1'000'000;
  std::int64_t experts, top_k, hot_experts, rate; // rate: hot routes of a token, in millionths

  std::int64_t cold_experts() const { return experts - hot_experts; }
  // floor(tokens x rate).
  std::int64_t hot_routes_before(std::int64_t token) const { return fraction_of(token, rate, one); }

  std::int64_t expert(std::int64_t token, std::int64_t slot) const {
    const std::int64_t before = hot_routes_before(token), here = hot_routes_before(token + 1) - before;
    if (slot < here) return (before + slot) % hot_experts;
    return hot_experts + (token * top_k - before + slot - here) % cold_experts();
  }
  // "7.6 of its 8 routes go to 4 experts", or empty.
  std::string repeats() const {
    const auto sentence = [&](std::int64_t millionths, std::int64_t of) {
      std::string digits = std::to_string(one + millionths % one).substr(1);
      while (!digits.empty() && digits.back() == '0') digits.pop_back();
      return std::to_string(millionths / one) + (digits.empty() ? "" : "." + digits) + " of its " +
             std::to_string(top_k) + " routes go to " + std::to_string(of) +
             (of == 1 ? " expert" : " experts");
    };
    const std::int64_t cold_rate = top_k * one - rate;
    if (rate > hot_experts * one) return sentence(rate, hot_experts);
    if (cold_rate > cold_experts() * one) return sentence(cold_rate, cold_experts());
    return {};
  }
};

// Adds routes [first, last), dealt out in turn, to experts [begin, begin + n); all moved on by `shift`.
inline void add_dealt(std::int64_t first, std::int64_t last, std::int64_t begin, std::int64_t n,
                      std::int64_t shift, std::span<std::int64_t> rows) {
  const auto all = static_cast<std::int64_t>(rows.size());
  for (std::int64_t e = 0; e < n; ++e) {
    // How many i in [first, last) have i % n == e.
    const auto before = [&](std::int64_t end) { return (end - e + n - 1) / n; };
    rows[static_cast<std::size_t>((begin + e + shift) % all)] += before(last) - before(first);
  }
}

} // namespace detail

// Immutable; any thread may ask.
class routing_scenario {
 public:
  // Throws config_error, naming the field, when the scenario cannot be.
  routing_scenario(route_form routes, share_form shares, const routing_shape& shape)
      : routes_(std::move(routes)), shares_(shares), shape_(shape) {
    in_range("top_k", shape.top_k, 1, shape.experts, "the experts of a layer");
    if (shape.ranks > 0) check_shares(shares_, shape.ranks);
    if (const auto* h = std::get_if<routing::hot>(&routes_))
      check_hot("hot", h->fraction_millionths, h->experts);
    if (const auto* r = std::get_if<routing::rotating>(&routes_))
      check_hot("rotating", r->fraction_millionths, r->experts);
    if (const auto* z = std::get_if<routing::zipf>(&routes_)) {
      if (!(z->exponent >= 0 && z->exponent <= 16))
        throw config_error("zipf.exponent: " + std::to_string(z->exponent) + "; expected 0 to 16");
      law_.emplace<detail::zipf_law>(z->exponent, shape.experts, shape.top_k);
    }
    if (const auto* r = std::get_if<routing::recorded_counts>(&routes_)) {
      law_.emplace<detail::recorded_law>(r->table, shape.top_k);
      same("recorded_counts.experts", r->table->experts, shape.experts);
      if (shape.layers > 0) same("recorded_counts.layers", r->table->layers, shape.layers);
      if (shape.ranks > 0) same("recorded_counts.ranks", r->table->ranks, shape.ranks);
    }
  }

  const route_form& routes() const { return routes_; }
  const share_form& shares() const { return shares_; }
  const routing_shape& shape() const { return shape_; }

  // Expert in [0, experts) of slot `slot` in [0, top_k) of the i-th token of `range`.
  std::int64_t expert(std::int64_t layer, const token_range& range, std::int64_t i, std::int64_t slot) const {
    const std::int64_t token = range.first + i;
    if (const auto* law = std::get_if<detail::hot_law>(&law_))
      return (law->expert(token, slot) + shift(range.step, layer)) % shape_.experts;
    if (const auto* law = std::get_if<detail::zipf_law>(&law_)) return law->expert(layer, token, slot);
    if (const auto* law = recorded(range.step))
      return law->expert(range.step, layer, range.rank, range.first_of_rank + i, slot);
    if (std::holds_alternative<routing::all_to_one>(routes_)) return slot;
    return (token * shape_.top_k + slot + layer) % shape_.experts;
  }

  // Writes the rows that the tokens of `range` send to each expert, `rows` (experts): what expert() says,
  // summed.
  void counts(std::int64_t layer, const token_range& range, std::span<std::int64_t> rows) const {
    if (static_cast<std::int64_t>(rows.size()) != shape_.experts)
      throw config_error("routing_scenario.counts: room for " + std::to_string(rows.size()) +
                         " experts; expected " + std::to_string(shape_.experts));
    std::fill(rows.begin(), rows.end(), 0);
    const std::int64_t k = shape_.top_k, first = range.first, last = range.first + range.tokens;
    if (const auto* law = std::get_if<detail::hot_law>(&law_)) {
      const std::int64_t from = law->hot_routes_before(first), to = law->hot_routes_before(last);
      const std::int64_t by = shift(range.step, layer);
      detail::add_dealt(from, to, 0, law->hot_experts, by, rows);
      detail::add_dealt(first * k - from, last * k - to, law->hot_experts, law->cold_experts(), by, rows);
    } else if (const auto* popular = std::get_if<detail::zipf_law>(&law_)) {
      popular->add_rows(layer, first, range.tokens, rows);
    } else if (const auto* counted = recorded(range.step)) {
      counted->add_rows(range.step, layer, range.rank, range.first_of_rank, range.tokens, rows);
    } else if (std::holds_alternative<routing::all_to_one>(routes_)) {
      std::fill_n(rows.begin(), k, range.tokens);
    } else {
      detail::add_dealt(first * k + layer, last * k + layer, 0, shape_.experts, 0, rows);
    }
  }

  // What rank `rank` gets of `total` sequences.
  share_range share(std::int64_t rank, std::int64_t ranks, std::int64_t total) const {
    return share_of(shares_, rank, ranks, total);
  }

  // Throws config_error unless the rank's `tokens` tokens of a step are those that the scenario speaks of;
  // only recorded counts speak of any number.
  void check_tokens(std::int64_t rank, std::int64_t tokens) const {
    if (const auto* law = std::get_if<detail::recorded_law>(&law_)) law->check_tokens(rank, tokens);
  }

  // Whether some token has an expert more than once, and why, for people: empty when none has.
  bool repeats_experts() const { return !repeats().empty(); }
  std::string repeats() const {
    if (const auto* law = std::get_if<detail::hot_law>(&law_)) return law->repeats();
    if (const auto* law = std::get_if<detail::recorded_law>(&law_)) return law->repeats();
    return {};
  }

 private:
  static void in_range(const std::string& field, std::int64_t value, std::int64_t lowest,
                       std::int64_t highest, const std::string& of = {}) {
    if (value < lowest || value > highest)
      throw config_error(field + ": " + std::to_string(value) + "; expected " + std::to_string(lowest) +
                         " to " + std::to_string(highest) + (of.empty() ? "" : ", " + of));
  }
  static void same(const std::string& field, std::int64_t found, std::int64_t expected) {
    if (found != expected)
      throw config_error(field + ": " + std::to_string(found) + "; expected " + std::to_string(expected));
  }
  void check_hot(const std::string& name, std::int64_t fraction_millionths, std::int64_t experts) {
    in_range(name + ".fraction_millionths", fraction_millionths, 0, detail::hot_law::one);
    in_range(name + ".experts", experts, 1, shape_.experts, "the experts of a layer");
    const detail::hot_law law{shape_.experts, shape_.top_k, experts, shape_.top_k * fraction_millionths};
    if (law.cold_experts() == 0 && fraction_millionths != law.one)
      throw config_error(name + ".fraction_millionths: " + std::to_string(fraction_millionths) +
                         "; expected 1000000, since all " + std::to_string(experts) +
                         " experts are hot and none is left for other routes");
    law_ = law;
  }
  std::int64_t shift(std::int64_t step, std::int64_t layer) const {
    const auto* r = std::get_if<routing::rotating>(&routes_);
    return r == nullptr
               ? 0
               : std::max<std::int64_t>(0, step + layer) % shape_.experts * r->experts % shape_.experts;
  }
  const detail::recorded_law* recorded(std::int64_t step) const {
    return step < 0 ? nullptr : std::get_if<detail::recorded_law>(&law_);
  }

  route_form routes_;
  share_form shares_;
  routing_shape shape_;
  std::variant<std::monostate, detail::hot_law, detail::zipf_law, detail::recorded_law> law_;
};

} // namespace plateau::inline v0
