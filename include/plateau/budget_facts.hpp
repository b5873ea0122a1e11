// SPDX-License-Identifier: Apache-2.0
//
// Why a request for memory was refused, as numbers: who asked for how much, and what every purpose held then
// against what was promised of it. The text of the error holds all of them, in one line, and they can be read
// from it again: so they come through whatever carries only text, as a vote or a message between processes.
#pragma once

#include <plateau/config.hpp>
#include <plateau/tag.hpp>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace plateau::inline v0 {

struct budget_facts {
  static constexpr std::size_t no_promise = std::numeric_limits<std::size_t>::max();

  tag asked_by = tag::other;
  std::size_t asked = 0; // bytes, all of them
  std::size_t taken = 0; // of the limit
  std::size_t limit = 0;
  bytes_by_tag held{};
  bytes_by_tag promised = filled(no_promise); // or no_promise

  // What the tag would have held with what was asked for.
  std::size_t wanted(tag t) const {
    const std::size_t before = held[slot(t)];
    return t != asked_by ? before
                         : before + std::min(asked, std::numeric_limits<std::size_t>::max() - before);
  }
  // By how much that passes the tag's promise; 0 where there is none.
  std::size_t over(tag t) const {
    const std::size_t most = promised[slot(t)];
    return most == no_promise || wanted(t) <= most ? 0 : wanted(t) - most;
  }
  // The tag that passes its promise by most; none where none does.
  std::optional<tag> furthest_over() const {
    const auto most =
        std::max_element(all_tags.begin(), all_tags.end(), [&](tag a, tag b) { return over(a) < over(b); });
    return over(*most) == 0 ? std::nullopt : std::optional(*most);
  }

  // "dispatch asked for 9 bytes of `space` memory, but ... promised." `phase` may be empty.
  std::string text(const char* space, const char* phase) const {
    std::string out = std::string(name_of(asked_by)) + asked_for + std::to_string(asked) + " bytes of " +
                      space + " memory, but " + std::to_string(taken) + of_the_limit + std::to_string(limit) +
                      are_held;
    if (*phase != '\0') out += std::string(in_phase) + phase + ")";
    const char* separator = ": ";
    for (const tag t : all_tags) {
      const std::size_t most = promised[slot(t)];
      if (held[slot(t)] == 0 && (most == no_promise || most == 0)) continue;
      out += separator + std::string(name_of(t)) + " " + std::to_string(held[slot(t)]);
      if (most != no_promise) out += " of " + std::to_string(most) + is_promised;
      separator = ", ";
    }
    if (const auto t = furthest_over())
      out += std::string(with_this) + name_of(*t) + " is furthest over its promise, by " +
             std::to_string(over(*t));
    return out + ".";
  }
  // The facts in a text that holds all of such a sentence, whatever stands before and behind, and whatever
  // the phase is called; nothing where it was cut, or was never there.
  static std::optional<budget_facts> in(std::string_view text) {
    for (std::size_t at = text.find(asked_for); at != std::string_view::npos;
         at = text.find(asked_for, at + 1))
      if (const auto facts = at_place(text, at)) return facts;
    return std::nullopt;
  }

 private:
  static constexpr char asked_for[] = " asked for ", of_the_limit[] = " of the limit of ",
                        are_held[] = " are held", in_phase[] = " (in ", is_promised[] = " promised",
                        with_this[] = "; with this ";

  struct reader {
    std::string_view rest;

    bool next(std::string_view what) {
      if (rest.substr(0, what.size()) != what) return false;
      rest.remove_prefix(what.size());
      return true;
    }
    bool past(std::string_view what) {
      const std::size_t at = rest.find(what);
      if (at == std::string_view::npos) return false;
      rest.remove_prefix(at + what.size());
      return true;
    }
    bool number(std::size_t& to) {
      const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), to);
      if (error != std::errc{}) return false;
      rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
      return true;
    }
  };
  // The sentence in which " asked for " is at `asks`.
  static std::optional<budget_facts> at_place(std::string_view text, std::size_t asks) {
    budget_facts f;
    const std::string_view before = text.substr(0, asks);
    const auto who = tag_named(before.substr(before.find_last_of(' ') + 1)); // npos + 1 is 0
    reader from{text.substr(asks + sizeof(asked_for) - 1)};
    if (!who || !from.number(f.asked) || !from.past(" memory, but ") || !from.number(f.taken) ||
        !from.next(of_the_limit) || !from.number(f.limit) || !from.next(are_held))
      return std::nullopt;
    f.asked_by = *who;
    if (!from.next(in_phase)) return f.list(from) ? std::optional(f) : std::nullopt;
    while (from.past(")")) // a phase may have some of its own
      if (budget_facts whole = f; whole.list(from)) return whole;
    return std::nullopt;
  }
  // What is held, to the end of the sentence.
  bool list(reader from) {
    for (bool more = from.next(": "); more; more = from.next(", ")) {
      const std::size_t space = from.rest.find(' ');
      const auto t = tag_named(from.rest.substr(0, space));
      if (!t) return false;
      from.rest.remove_prefix(space + 1);
      if (!from.number(held[slot(*t)])) return false;
      if (from.next(" of ") && !(from.number(promised[slot(*t)]) && from.next(is_promised))) return false;
    }
    if (std::size_t by = 0; from.next(with_this) && !(from.past(", by ") && from.number(by))) return false;
    return from.next(".");
  }

  static constexpr std::size_t slot(tag t) { return static_cast<std::size_t>(t); }
  static constexpr bytes_by_tag filled(std::size_t n) {
    bytes_by_tag all{};
    for (std::size_t& each : all) each = n;
    return all;
  }
  static std::optional<tag> tag_named(std::string_view name) {
    for (const tag t : all_tags)
      if (name == name_of(t)) return t;
    return std::nullopt;
  }
};

} // namespace plateau::inline v0
