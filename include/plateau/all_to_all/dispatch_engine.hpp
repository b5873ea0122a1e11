// SPDX-License-Identifier: Apache-2.0
//
// What a dispatch keeps between calls: its transfer stream, the storage of its plans, and the lists that a
// round fills. All of it is reserved at construction, so that later calls allocate nothing on the host
// either.
#pragma once

#include <plateau/access.hpp>
#include <plateau/all_to_all/dispatch_plan.hpp>
#include <plateau/all_to_all/dispatch_round.hpp>
#include <plateau/all_to_all/dispatch_shape.hpp>
#include <plateau/all_to_all/dispatch_statistics.hpp>
#include <plateau/all_to_all/placement_plan.hpp>
#include <plateau/all_to_all/round_plan.hpp>
#include <plateau/all_to_all/segment_table.hpp>
#include <plateau/all_to_all/weight_moves.hpp>
#include <plateau/config.hpp>
#include <plateau/exchange.hpp>
#include <plateau/stall_clock.hpp>
#include <plateau/view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace plateau::inline v0::detail::dispatch {

// What a rank says beside its counts when a plan is made: what is wrong with its ids, if anything.
inline constexpr std::size_t trouble_words = 3;

// The groups of a round as an expert sees them; typed by its weights.
struct expert_lists_base {
  virtual ~expert_lists_base() = default;
};
template <class Weight> struct expert_lists final : expert_lists_base {
  explicit expert_lists(std::size_t most) {
    weights.reserve(most);
    gradients.reserve(most);
  }
  std::vector<tile<const Weight>> weights;
  std::vector<tile<float>> gradients;
};

template <class Backend, class Communicator, class... Part> struct dispatch_engine {
  using shape_type = dispatch_shape<sizeof...(Part)>;

  dispatch_engine(Backend& be, Communicator& c, const shape_type& limits, const weight_layout& weights)
      : backend(&be), comm(&c), shape(limits), layout(weights),
        placement(c.size(), shape.experts, shape.placement), table(c.size(), shape.experts, most_pieces()),
        moves(c.size(), most_pieces()), rounds(c.size(), most_segments()), stalls(shape.measure_stalls),
        transfer(be.make_stream("dispatch transfers")) {
    const auto ranks = static_cast<std::size_t>(c.size());
    const auto segments = static_cast<std::size_t>(most_segments());
    send_caps.resize(ranks);
    receive_caps.resize(ranks);
    done_of_segment.resize(segments);
    first_of_expert.resize(static_cast<std::size_t>(shape.experts) + 1);
    expert_rows.resize(static_cast<std::size_t>(shape.experts));
    own_words.resize(static_cast<std::size_t>(shape.experts) + trouble_words);
    all_words.resize(own_words.size() * ranks);
    for (int i = 0; i < shape.slots; ++i) in_flight.emplace_back(c.size(), most_segments(), most_groups());
    // Blocks of one side of a round, each in as many arrays as travel.
    const std::size_t blocks = std::max(segments, static_cast<std::size_t>(most_groups()) * ranks);
    const std::size_t rows_both_ways = blocks * (sizeof...(Part) + 2);
    const auto weights_of_all = static_cast<std::size_t>(most_pieces() * layout.parts());
    sends.reserve(std::max(rows_both_ways, weights_of_all));
    receives.reserve(std::max(rows_both_ways, weights_of_all));
  }

  index_t most_pieces() const { return comm->size() * shape.foreign_slots(comm->size()); }
  index_t most_segments() const { return shape.experts + most_pieces(); }
  // Of one rank in one round.
  index_t most_groups() const { return most_groups_of(shape, comm->size()); }
  static index_t most_groups_of(const shape_type& s, int ranks) {
    return expert_homes{s.experts, ranks}.most() + s.foreign_slots(ranks);
  }

  // Everything that follows from a plan, up to the first round.
  void build(const dispatch_plan& plan) {
    const int ranks = comm->size(), me = comm->rank();
    first_exchange_name = detail::dispatch::first_exchange_name(plan);
    table.build(plan, me);
    moves.build(plan, table.homes());
    set_caps(shape.send_cap_rows, shape.receive_cap_rows);
    rounds.begin(table.ranks(), table.rows(), send_caps, receive_caps, shape.rounds);
    if (shape.most_rounds > 0 && rounds.rounds() > shape.most_rounds) {
      soften(plan);
      rounds.begin(table.ranks(), table.rows(), send_caps, receive_caps, shape.rounds);
    }
    std::fill(done_of_segment.begin(), done_of_segment.end(), 0);
    first_of_expert[0] = 0;
    for (index_t e = 0; e < shape.experts; ++e)
      first_of_expert[static_cast<std::size_t>(e) + 1] =
          first_of_expert[static_cast<std::size_t>(e)] + plan.rows_of(me, e);
    count(plan, ranks, me);
  }

  // The lists of the next exchange.
  void clear_lists() {
    sends.clear();
    receives.clear();
  }
  template <class T> void send(int peer, view<T> v) {
    sends.push_back(send_to(peer, v));
    if (peer != comm->rank()) statistics.wire_bytes += v.bytes();
  }
  void exchange(const char* what) {
    comm->exchange(transfer, sends, receives, first_exchange_name != nullptr ? first_exchange_name : what);
    first_exchange_name = nullptr;
  }
  template <class T> void receive(int peer, view<T> v) { receives.push_back(receive_from(peer, v)); }

  // Experts of other ranks that this one computes; their segments come behind those of its own.
  index_t foreign_here() const {
    const auto mine = [me = comm->rank()](const weight_move& m) { return m.helper == me; };
    return static_cast<index_t>(std::count_if(moves.all().begin(), moves.all().end(), mine));
  }
  index_t first_foreign() const { return table.first_of(comm->rank() + 1) - foreign_here(); }

  Backend* backend;
  Communicator* comm;
  shape_type shape;
  weight_layout layout;
  placement_plan placement;
  segment_table table;
  weight_moves moves;
  round_plan rounds;
  std::vector<dispatch_round> in_flight;        // (slots)
  std::vector<index_t> send_caps, receive_caps; // (ranks)
  std::vector<index_t> done_of_segment;         // (segments): rows of this rank that earlier rounds have sent
  std::vector<index_t> first_of_expert;         // (experts + 1): among this rank's routes by expert
  std::vector<index_t> expert_rows;             // (experts): of all ranks
  std::vector<std::int64_t> own_words,
      all_words; // what a plan's exchange carries, (words) and (ranks, words)
  std::vector<send_op> sends;
  std::vector<receive_op> receives;
  int next_plan = 0;                         // its number
  const char* first_exchange_name = nullptr; // of a call, until that exchange is made
  dispatch_statistics statistics;
  stall_clock stalls;
  // Last: it must have ended before what its work uses goes.
  typename Backend::stream transfer;

 private:
  void set_caps(index_t send, index_t receive) {
    std::fill(send_caps.begin(), send_caps.end(), send);
    std::fill(receive_caps.begin(), receive_caps.end(), receive);
    statistics = {};
    statistics.send_cap_rows = send;
    statistics.receive_cap_rows = receive;
  }
  // The smallest caps, not below those asked for, with which the most rounds suffice.
  void soften(const dispatch_plan& plan) {
    index_t out = 0, in = 0;
    for (int r = 0; r < comm->size(); ++r) {
      index_t sent = 0, received = 0;
      for (const index_t n : plan.rows_of_rank(r)) sent += n;
      for (index_t g = table.first_of(r); g < table.first_of(r + 1); ++g)
        for (int source = 0; source < comm->size(); ++source) received += table.rows(g, source);
      out = std::max(out, sent);
      in = std::max(in, received);
    }
    const auto per_round = [&](index_t n) { return (n + shape.most_rounds - 1) / shape.most_rounds; };
    set_caps(std::max(shape.send_cap_rows, per_round(out)), std::max(shape.receive_cap_rows, per_round(in)));
  }
  void count(const dispatch_plan& plan, int ranks, int me) {
    dispatch_statistics& s = statistics;
    s.rounds = rounds.rounds();
    s.ranks = ranks;
    s.segments = table.size();
    s.fewest_group_rows = shape.fewest_group_rows;
    s.moved_experts = static_cast<index_t>(plan.pieces.size());
    for (const index_t n : plan.rows_of_rank(me)) s.rows_sent += n;
    for (int r = 0; r < ranks; ++r) {
      index_t load = 0, native = 0;
      for (index_t g = table.first_of(r); g < table.first_of(r + 1); ++g)
        for (int source = 0; source < ranks; ++source) load += table.rows(g, source);
      for (index_t e = table.homes().first(r); e < table.homes().first(r + 1); ++e)
        for (int source = 0; source < ranks; ++source) native += plan.rows_of(source, e);
      s.largest_load = std::max(s.largest_load, load);
      s.largest_native_load = std::max(s.largest_native_load, native);
      s.all_rows += load;
      if (r == me) s.rows_received = load;
    }
  }
};

} // namespace plateau::inline v0::detail::dispatch
