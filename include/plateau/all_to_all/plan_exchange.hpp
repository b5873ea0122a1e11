// SPDX-License-Identifier: Apache-2.0
//
// How a dispatch learns what all ranks send, and what it refuses before anything moves. A rank that cannot
// take part says so in the exchange of counts, so that all ranks know why, and none waits.
#pragma once

#include <plateau/access.hpp>
#include <plateau/all_to_all/dispatch_call.hpp>
#include <plateau/all_to_all/dispatch_engine.hpp>
#include <plateau/all_to_all/dispatch_memory.hpp>
#include <plateau/all_to_all/dispatch_plan.hpp>
#include <plateau/all_to_all/route_kernels.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>
#include <plateau/vote.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>

namespace plateau::inline v0::detail::dispatch {

// What a rank says beside its counts: 0, or what is wrong and two numbers.
enum class plan_trouble : std::int64_t { none = 0, bad_id = 1, too_many_tokens = 2, odd_ids = 3 };

template <class Engine> std::string text_of(const Engine& e, std::span<const std::int64_t> words) {
  const std::int64_t a = words[1], b = words[2];
  switch (static_cast<plan_trouble>(words[0])) {
  case plan_trouble::bad_id:
    return "token " + std::to_string(a / e.shape.top_k) + ", slot " + std::to_string(a % e.shape.top_k) +
           " goes to expert " + std::to_string(b) + "; expected 0 to " + std::to_string(e.shape.experts - 1) +
           ", or -1 for no route";
  case plan_trouble::too_many_tokens:
    return std::to_string(a) + " tokens, but the dispatch was made for at most " + std::to_string(b) +
           " on any rank: make it with a larger shape.tokens, or give it fewer";
  case plan_trouble::odd_ids:
    return std::to_string(a) + " ids are not a whole number of tokens with " + std::to_string(b) +
           " routes each";
  case plan_trouble::none:
    break;
  }
  return {};
}

// The rank's own counts and trouble into e.own_words; one host round trip, unless the ids cannot be read.
template <class Engine, class Memory, class Stream>
void count_routes(Engine& e, const Memory& m, Stream& s, view<const std::int32_t> ids) {
  auto& be = *e.backend;
  const index_t k = e.shape.top_k, experts = e.shape.experts;
  const std::span<std::int64_t> words = e.own_words;
  std::fill(words.begin(), words.end(), 0);
  const auto trouble = words.subspan(static_cast<std::size_t>(experts), trouble_words);
  if (ids.n % k != 0) {
    trouble[0] = static_cast<std::int64_t>(plan_trouble::odd_ids), trouble[1] = ids.n, trouble[2] = k;
    return;
  }
  if (ids.n / k > e.shape.tokens) {
    trouble[0] = static_cast<std::int64_t>(plan_trouble::too_many_tokens);
    trouble[1] = ids.n / k, trouble[2] = e.shape.tokens;
    return;
  }
  const auto keys = m.index.position.sub(0, ids.n), order = m.index.order.sub(0, ids.n);
  const auto offenders = m.offender.sub(0, offender_blocks(ids.n));
  be.launch(s, elements{ids.n}, route_key{experts}, in(ids), out(keys));
  be.group_by_key(s, in(keys), out(order), out(m.index.offsets), m.scratch);
  be.launch(s, elements{experts}, counts_from_offsets{}, in(m.index.offsets), out(m.answer.sub(0, experts)));
  be.launch(s, rows{offenders.n}, first_offender_blocks{experts}, in(ids), out(offenders));
  be.launch(s, rows{1}, first_offender_of_all{}, in(offenders), in(ids), out(m.answer.sub(experts, 2)));
  be.copy(s, in(m.answer), out(m.pinned));
  be.fetch(be.record(s), in(m.pinned), words.first(static_cast<std::size_t>(experts) + 2),
           "rows of each expert");
  // The fetch's last two words are the route + 1 and its id; here they become one kind of trouble.
  const std::int64_t route = trouble[0] - 1, id = trouble[1];
  trouble[0] = static_cast<std::int64_t>(route < 0 ? plan_trouble::none : plan_trouble::bad_id);
  trouble[1] = route < 0 ? 0 : route;
  trouble[2] = route < 0 ? 0 : id;
}

// All that a plan can need, so that later ones in the same place allocate nothing; before the exchange, since
// a rank that fails here must not leave the others with a plan.
template <class Engine> void make_room(const Engine& e, dispatch_plan& plan) {
  plan.rows.resize(static_cast<std::size_t>(e.comm->size() * e.shape.experts));
  plan.pieces.reserve(static_cast<std::size_t>(e.most_pieces()));
}

// From the counts of all ranks to what all of them will do. What it throws, it throws on all ranks.
template <class Engine> void plan_exchange(Engine& e, view<const std::int32_t> ids, dispatch_plan& into) {
  const int ranks = e.comm->size();
  const auto experts = static_cast<std::size_t>(e.shape.experts), words = experts + trouble_words;
  const std::uint64_t sequence = e.comm->counters().exchanges + e.comm->counters().host_exchanges;
  e.comm->host_exchange(e.own_words, e.all_words, "rows of each expert");
  const auto of = [&](int r) {
    return std::span<const std::int64_t>(e.all_words).subspan(static_cast<std::size_t>(r) * words, words);
  };
  for (int r = 0; r < ranks; ++r)
    if (of(r)[experts] != 0)
      throw collective_error(plateau::detail::origin_rank(*e.comm, r), "dispatch plan", sequence,
                             text_of(e, of(r).subspan(experts)));
  into.ranks = ranks;
  into.experts = e.shape.experts;
  into.tokens = ids.n / e.shape.top_k;
  std::fill(e.expert_rows.begin(), e.expert_rows.end(), 0);
  for (int r = 0; r < ranks; ++r)
    for (std::size_t x = 0; x < experts; ++x) {
      into.rows[static_cast<std::size_t>(r) * experts + x] = of(r)[x];
      e.expert_rows[x] += of(r)[x];
    }
  const auto pieces = e.placement.make(e.expert_rows);
  into.pieces.assign(pieces.begin(), pieces.end());
  into.number = e.next_plan;
  e.next_plan = (e.next_plan + 1) % plan_numbers;
  check_foreign(e, into);
}

// Only a placement that does not mind its bound comes here: all ranks have the same one, so all of them
// throw.
template <class Engine> void check_foreign(const Engine& e, const dispatch_plan& p) {
  for (int r = 0; r < p.ranks; ++r) {
    index_t held = 0;
    for (const moved_piece& piece : p.pieces) held += piece.rank == r ? 1 : 0;
    if (held > e.shape.foreign_slots(p.ranks))
      throw config_error("plateau: dispatch plan: rank " +
                         std::to_string(plateau::detail::origin_rank(*e.comm, r)) + " would hold " +
                         std::to_string(held) + " experts of other ranks, but has room for " +
                         std::to_string(e.shape.foreign_slots(p.ranks)) +
                         ": raise placement.foreign_experts, or choose bounded_least_loaded");
  }
}

// A plan that another dispatch has made may be for more than this one has room for. `fail` throws.
template <class Engine, class Fail> void check_plan(const Engine& e, const dispatch_plan& p, Fail fail) {
  if (p.ranks != e.comm->size() || p.experts != e.shape.experts ||
      p.rows.size() != static_cast<std::size_t>(p.ranks * p.experts))
    fail("a plan of " + std::to_string(p.ranks) + " ranks and " + std::to_string(p.experts) +
         " experts; this one is of " + std::to_string(e.comm->size()) + " and " +
         std::to_string(e.shape.experts));
  const index_t k = e.shape.top_k;
  for (int r = 0; r < p.ranks; ++r) {
    const bool mine = r == e.comm->rank();
    index_t sent = 0;
    for (const index_t n : p.rows_of_rank(r)) sent += n;
    if ((mine && p.tokens > e.shape.tokens) || sent > (mine ? p.tokens * k : e.shape.routes()))
      fail("a plan in which rank " + std::to_string(plateau::detail::origin_rank(*e.comm, r)) + " sends " +
           std::to_string(sent) + " rows of " + (mine ? std::to_string(p.tokens) : std::string("its")) +
           " tokens: not one of this dispatch, of at most " + std::to_string(e.shape.tokens) +
           " tokens with " + std::to_string(k) + " routes each");
  }
  const expert_homes& homes = e.table.homes();
  for (std::size_t i = 0; i < p.pieces.size(); ++i) {
    const moved_piece& piece = p.pieces[i];
    const bool there = piece.expert >= 0 && piece.expert < p.experts && piece.rank >= 0 &&
                       piece.rank < p.ranks && piece.rows > 0 && piece.rank != homes.home(piece.expert);
    const bool in_order = i == 0 || p.pieces[i - 1].expert < piece.expert ||
                          (p.pieces[i - 1].expert == piece.expert && p.pieces[i - 1].rank < piece.rank);
    if (!there || !in_order)
      fail("a plan that moves " + std::to_string(piece.rows) + " rows of expert " +
           std::to_string(piece.expert) + " to rank " + std::to_string(piece.rank) +
           ": expected pieces in the order of experts and ranks, each once, away from home");
  }
  check_foreign(e, p);
}

// Throws config_error for what does not fit the plan or the shape.
template <bool Backward, class Engine, class Arguments>
void check_arguments(const Engine& e, const dispatch_plan& p, const Arguments& a) {
  const int me = e.comm->rank();
  const auto fail = [&](const std::string& what) {
    throw config_error("plateau: rank " + std::to_string(plateau::detail::origin_rank(*e.comm, me)) +
                       ": dispatch " + (Backward ? "backward: " : "forward: ") + what);
  };
  check_plan(e, p, fail);
  const index_t n = p.tokens, k = e.shape.top_k;
  if (a.ids.n != n * k)
    fail(std::to_string(a.ids.n) + " ids; the plan was made from " + std::to_string(n * k));
  const auto fits = [&](const char* what, const auto& t, index_t cols) {
    if (t.rows != n || t.cols != cols)
      fail(std::string(what) + " (" + std::to_string(t.rows) + ", " + std::to_string(t.cols) +
           "); expected (" + std::to_string(n) + ", " + std::to_string(cols) + ")");
  };
  const auto adjacent = [&](const char* what, const auto& t) {
    if (!t.contiguous()) fail(std::string("the rows of ") + what + " must be adjacent");
  };
  std::size_t part = 0;
  std::apply([&](const auto&... t) { (fits("rows", t, e.shape.widths[part++]), ...); }, a.rows);
  if (a.gates.rows != 0 || a.gates.cols != 0) fits("gates", a.gates, k), adjacent("gates", a.gates);
  const auto local = static_cast<std::size_t>(e.table.homes().count(me) * e.layout.parts());
  const auto all_there = [&](const char* what, const auto& list) {
    if (list.size() != local)
      fail(std::to_string(list.size()) + " " + what + "; expected " + std::to_string(local) + ", " +
           std::to_string(e.layout.parts()) + " for each of the rank's experts");
    for (std::size_t i = 0; i < local; ++i) {
      const matrix_extent& m = e.layout.extent(static_cast<index_t>(i) % e.layout.parts());
      if (list[i].rows != m.rows || list[i].cols != m.cols)
        fail(std::string(what) + " " + std::to_string(i) + " has the extents (" +
             std::to_string(list[i].rows) + ", " + std::to_string(list[i].cols) + "); the expert says (" +
             std::to_string(m.rows) + ", " + std::to_string(m.cols) + ")");
    }
  };
  all_there("weights", a.weights);
  // They may travel with any plan: not said of the first one that moves them only.
  if (e.shape.foreign_slots(p.ranks) > 0)
    for (const auto& w : a.weights) adjacent("weights", w);
  if constexpr (Backward) {
    fits("output gradients", a.upstream, e.shape.result_elements());
    fits("row gradients", a.drows, e.shape.widths[0]);
    if (a.dgates.rows != 0 || a.dgates.cols != 0)
      fits("gate gradients", a.dgates, k), adjacent("gate gradients", a.dgates);
    all_there("gradients", a.gradients);
  } else {
    fits("the output", a.out, e.shape.result_elements());
  }
}

} // namespace plateau::inline v0::detail::dispatch
