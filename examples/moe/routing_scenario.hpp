// SPDX-License-Identifier: Apache-2.0
//
// Where tokens go when the router is not asked, as the command line says it: scenarios that force the routing
// of a real run, or stand in for the router of a dry one, and how the tokens are dealt over the ranks.
#pragma once

#include "input_error.hpp"
#include "parse_text.hpp"
#include "scenario_file.hpp"

#include <plateau/dry_run/scenario.hpp>
#include <plateau/error.hpp>

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include <fmt/format.h>

namespace moe {

namespace pl = plateau;

struct routing_scenario {
  std::optional<pl::route_form> routes; // empty: the router decides
  pl::share_form shares;
  std::string text = "learned"; // as the user wrote it
  std::string file;             // that counts were read from

  bool forced() const { return routes.has_value(); }
};

namespace detail {

// A form's name and what follows its colon, if there is one.
struct scenario_word {
  std::string_view name, arguments;
  bool plain = true;

  explicit scenario_word(std::string_view text)
      : name(text.substr(0, text.find(':'))), plain(name.size() == text.size()) {
    if (!plain) arguments = text.substr(name.size() + 1);
  }
};

inline std::optional<pl::share_form> parse_shares(std::string_view flag, std::string_view text) {
  const scenario_word word(text);
  if (word.plain && word.name == "ragged") return pl::routing::ragged{};
  if (!word.plain && word.name == "zero-rank")
    return pl::routing::zero_rank{
        parse_integer(fmt::format("{} zero-rank:RANK", flag), word.arguments, 0, 65535)};
  return {};
}

template <class Form>
Form parse_hot(std::string_view flag, const scenario_word& word, std::string_view::size_type comma) {
  const auto where = fmt::format("{} {}:FRACTION,EXPERTS", flag, word.name);
  const double fraction = parse_real(where, word.arguments.substr(0, comma), 0, 1);
  return {std::llround(fraction * 1e6),
          parse_integer(where, word.arguments.substr(comma + 1), 1, std::int64_t{1} << 20)};
}

// f(), whose complaints begin with the flag that they are about.
template <class F> auto with_flag(const std::string& text, F f) {
  try {
    return f();
  } catch (const pl::config_error& error) {
    throw input_error{fmt::format("--routing {}: {}", shown(text), error.what())};
  }
}

} // namespace detail

// learned | balanced | hot:FRACTION,EXPERTS | all-to-one | zipf:S | rotating:FRACTION,EXPERTS | counts:FILE,
// with "+ragged" or "+zero-rank:RANK" behind it or without; these two alone are balanced. Reads the file.
// Throws input_error.
inline routing_scenario parse_routing(std::string_view flag, std::string_view text) {
  routing_scenario scenario;
  scenario.text = text;
  std::string_view routes = text;
  if (const auto shares = detail::parse_shares(flag, text)) {
    scenario.shares = *shares;
    routes = "balanced";
  } else if (const auto plus = text.rfind('+'); plus != std::string_view::npos) {
    if (const auto behind = detail::parse_shares(flag, text.substr(plus + 1))) {
      scenario.shares = *behind;
      routes = text.substr(0, plus);
    }
  }
  const detail::scenario_word word(routes);
  const auto comma = word.arguments.find(',');
  if (word.plain && word.name == "learned") return scenario;
  if (word.plain && word.name == "balanced")
    scenario.routes = pl::routing::balanced{};
  else if (word.plain && word.name == "all-to-one")
    scenario.routes = pl::routing::all_to_one{};
  else if (!word.plain && word.name == "zipf")
    scenario.routes = pl::routing::zipf{parse_real(fmt::format("{} zipf:S", flag), word.arguments, 0, 16)};
  else if (word.name == "hot" && comma != std::string_view::npos)
    scenario.routes = detail::parse_hot<pl::routing::hot>(flag, word, comma);
  else if (word.name == "rotating" && comma != std::string_view::npos)
    scenario.routes = detail::parse_hot<pl::routing::rotating>(flag, word, comma);
  else if (word.name == "counts" && !word.arguments.empty()) {
    scenario.file = word.arguments;
    scenario.routes =
        pl::routing::recorded_counts{std::make_shared<const pl::counts_table>(read_counts(scenario.file))};
  } else
    throw input_error{
        fmt::format("{}: expected learned, balanced, hot:FRACTION,EXPERTS, all-to-one or zipf:S, or "
                    "rotating:FRACTION,EXPERTS or counts:FILE, or ragged or zero-rank:RANK alone or behind "
                    "one of these and a '+', got '{}'",
                    flag, shown(text))};
  return scenario;
}

// Throws input_error when the scenario deals tokens in a way that `ranks` ranks cannot have.
inline void check_shares(const routing_scenario& scenario, std::int64_t ranks) {
  detail::with_flag(scenario.text, [&] { pl::check_shares(scenario.shares, ranks); });
}

// The experts that a scenario forces, for one model. Immutable; any thread may ask.
class forced_routing {
 public:
  // `scenario` is forced. 0 layers or ranks: as many as recorded counts have. Throws input_error when the
  // scenario does not fit.
  forced_routing(const routing_scenario& scenario, std::int64_t experts, std::int64_t top_k,
                 std::int64_t layers = 0, std::int64_t ranks = 0)
      : text_(scenario.text), scenario_(make(scenario, {experts, top_k, layers, ranks})) {}

  const std::string& text() const { return text_; } // as the user wrote it
  const pl::routing_scenario& scenario() const { return scenario_; }

  // Expert of slot `slot` in [0, top_k) of token `token` of the first step, counted over the whole batch. For
  // recorded counts, of the first rank.
  std::int64_t expert(std::int64_t layer, std::int64_t token, std::int64_t slot) const {
    return scenario_.expert(layer, {0, 0, token, token, 1}, 0, slot);
  }

  // Throws input_error unless rank `rank` has as many tokens in a step as the scenario says.
  void check_tokens(std::int64_t rank, std::int64_t tokens) const {
    detail::with_flag(text_, [&] { scenario_.check_tokens(rank, tokens); });
  }

  // What a report must say of it: empty where the experts of every token are distinct, as those of a router
  // are.
  std::string repeats_sentence() const {
    const std::string why = scenario_.repeats();
    return why.empty() ? std::string{}
                       : fmt::format("{} with top-k {} repeats experts within a token: {}", shown(text_),
                                     scenario_.shape().top_k, why);
  }

 private:
  static pl::routing_scenario make(const routing_scenario& from, const pl::routing_shape& shape) {
    const auto* hot = std::get_if<pl::routing::hot>(&*from.routes);
    const auto* rotating = std::get_if<pl::routing::rotating>(&*from.routes);
    if ((hot != nullptr && hot->experts > shape.experts) ||
        (rotating != nullptr && rotating->experts > shape.experts))
      throw input_error{fmt::format("--routing {}: expected at most as many hot experts as --experts ({})",
                                    shown(from.text), shape.experts)};
    return detail::with_flag(
        from.text, [&] { return pl::routing_scenario(fitted(*from.routes, shape), from.shares, shape); });
  }

  // A file may leave out what gets no rows, so the last experts or ranks may seem not to exist.
  static pl::route_form fitted(const pl::route_form& routes, const pl::routing_shape& shape) {
    const auto* recorded = std::get_if<pl::routing::recorded_counts>(&routes);
    if (recorded == nullptr) return routes;
    return pl::routing::recorded_counts{extended(recorded->table, shape)};
  }

  std::string text_;
  pl::routing_scenario scenario_;
};

} // namespace moe
