// SPDX-License-Identifier: Apache-2.0
//
// One call of a dispatch, forward or backward, round by round. The transfer stream gathers a round's rows,
// sends them, brings the results back and adds them up; the caller's stream computes. With n slots, n - 1
// rounds are sent ahead of the one that computes:
//
//   transfer   out 0 | out 1 |        back 0, out 2 | back 1, out 3 | ...
//   caller            compute 0      | compute 1     | compute 2     | ...
//
// What keeps a slot whole: its next rows are gathered behind its last results on the transfer stream, which
// had waited for the compute that read and wrote the slot; and that compute had waited for its rows. So two
// waits a round, one each way, order everything.
//
// Gathering and adding are kernels, however, which on a GPU take twice as long beside those of the expert,
// and nothing travels meanwhile. With three slots they are the caller's, behind each compute, and the
// transfer stream does nothing but exchange, under the next one:
//
//   caller     compute 0, gather 2 | compute 1, add 0, gather 3 | compute 2, add 1, gather 4 | ...
//   transfer                       | back 0, out 2              | back 1, out 3              | ...
//
// Weights of foreign experts follow the rows of the first rounds, some at a time, as long as no rank needs
// them; expert-first rounds begin with what ranks compute of their own. Nothing of a round outlives its slot.
#pragma once

#include <plateau/access.hpp>
#include <plateau/all_to_all/dispatch_arguments.hpp>
#include <plateau/all_to_all/dispatch_engine.hpp>
#include <plateau/all_to_all/dispatch_memory.hpp>
#include <plateau/all_to_all/dispatch_plan.hpp>
#include <plateau/all_to_all/expert.hpp>
#include <plateau/all_to_all/route_kernels.hpp>
#include <plateau/all_to_all/row_kernels.hpp>
#include <plateau/all_to_all/weight_transfer.hpp>
#include <plateau/config.hpp>
#include <plateau/exchange.hpp>
#include <plateau/kernels.hpp>
#include <plateau/scalar.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>

namespace plateau::inline v0::detail::dispatch {

inline constexpr std::size_t blocks_at_once = 32; // of a launch

template <class Backend, class Communicator, class Expert, bool Backward, class... Part> class dispatch_call {
  using weight = typename Expert::weight_type;
  using engine_type = dispatch_engine<Backend, Communicator, Part...>;
  using memory_type = pass_memory<Backend, weight, Part...>;
  using slot_type = typename memory_type::slot;
  using arguments = call_arguments<weight, Part...>;
  using stream = typename Backend::stream;
  using event = typename Backend::event;
  using first_part = typename slot_type::first_part;
  using result = typename slot_type::result;
  // What comes back for a row, and what it is added to.
  using returned_type = std::conditional_t<Backward, first_part, result>;

 public:
  dispatch_call(engine_type& e, const memory_type& memory, const arguments& a, Expert& expert,
                expert_lists<weight>& lists, stream& s)
      : e_(&e), m_(&memory), a_(&a), expert_(&expert), lists_(&lists), weights_(e), compute_(&s),
        tokens_(std::get<0>(a.rows).rows) {}

  // `under(stream)` is called once, behind the first round's departure and before its arrival is waited for.
  template <class Under> void run(Under&& under) {
    begin();
    const index_t rounds = e_->rounds.rounds(), ahead = e_->shape.slots - 1;
    if (rounds == 0) under(*compute_);
    for (index_t r = 0; rounds > 0 && r < rounds + ahead; ++r) {
      if (apart() && r >= ahead) compute_and_return(r - ahead);
      if (apart() && r > ahead) add_when_back(r - ahead - 1);
      if (r < rounds) send_out(r);
      if (r == 0) under(*compute_);
      if (apart() || r < ahead) continue;
      compute_and_return(r - ahead);
      add_up(r - ahead);
    }
    if constexpr (Backward) {
      weights_.send_home(transfer(), m_->foreign_gradients, m_->home_gradient, a_->gradients);
      if (weights_.takes_part()) ++moved_;
    }
    if (!apart() || waited_for_ < moved_) wait_for(transfers_so_far());
    if (apart() && rounds > 0) add_up(rounds - 1);
    finish();
  }

 private:
  stream& transfer() { return e_->transfer; }
  // Whether kernels are apart from transfers, and which stream moves rows into slots and out of them.
  bool apart() const { return e_->shape.slots == 3; }
  stream& mover() { return apart() ? *compute_ : e_->transfer; }
  // The transfer stream waits for what the caller's has done, if there is anything new.
  void let_transfers_follow() {
    if (caller_ahead_) join(*compute_, transfer());
    caller_ahead_ = false;
  }
  // What the transfer stream has done so far, and how many of its exchanges have moved anything of this rank.
  struct moment {
    event done;
    index_t moved = 0;
  };
  moment transfers_so_far() { return {backend().record(transfer()), moved_}; }
  void wait_for(const moment& m) {
    e_->stalls.begin(backend(), *compute_);
    backend().wait(*compute_, m.done);
    e_->stalls.end(backend(), *compute_);
    waited_for_ = m.moved;
  }
  void exchange(const char* what) {
    if (!e_->sends.empty() || !e_->receives.empty()) ++moved_;
    e_->exchange(what);
  }
  Backend& backend() { return *e_->backend; }
  void join(stream& from, stream& to) { backend().wait(to, backend().record(from)); }
  index_t width() const { return Backward ? e_->shape.widths[0] : e_->shape.result_elements(); }
  static std::size_t at(index_t i) { return static_cast<std::size_t>(i); }
  const slot_type& slot(index_t r) const { return m_->slots[at(r % e_->shape.slots)]; }
  dispatch_round& round(index_t r) { return e_->in_flight[at(r % e_->shape.slots)]; }
  view<std::int32_t> position() const { return m_->index.position.sub(0, a_->ids.n); }
  tile<float> sums() const { return as_matrix(m_->sums, tokens_, width()); }
  tile<returned_type> kept() const {
    if constexpr (Backward)
      return as_matrix(m_->kept_gradients, a_->ids.n, width());
    else
      return as_matrix(m_->kept, a_->ids.n, width());
  }
  const dispatch_shape<sizeof...(Part)>& shape() const { return e_->shape; }

  // Groups the routes. The transfer stream has to wait for what the caller's has done: the rows exist, and
  // nobody uses the workspace any more.
  void begin() {
    Backend& be = backend();
    stream& s = *compute_;
    e_->stalls.restart(be, s);
    const route_index& index = m_->index;
    const auto order = index.order.sub(0, a_->ids.n);
    // The keys lie where the positions will.
    be.launch(s, elements{a_->ids.n}, route_key{shape().experts}, in(a_->ids), out(position()));
    be.group_by_key(s, in(position()), out(order), out(index.offsets), m_->scratch);
    be.launch(s, elements{a_->ids.n}, fill<std::int32_t>{-1}, out(position()));
    if (!shape().ordered) be.launch(s, elements{tokens_ * width()}, fill<float>{0}, out(as_row(sums())));
    if constexpr (Backward)
      if (a_->dgates.rows != 0) be.launch(s, elements{a_->ids.n}, fill<float>{0}, out(as_row(a_->dgates)));
    if constexpr (Backward) {
      const index_t held = e_->foreign_here() * e_->layout.elements();
      be.launch(s, elements{held}, fill<float>{0}, out(m_->foreign_gradients.sub(0, held)));
    }
    caller_ahead_ = true;
    if (!apart()) let_transfers_follow();
    weights_.begin();
    sent_ = 0;
  }

  // ---- Rows out -------------------------------------------------------------------------------------------

  void send_out(index_t r) {
    e_->rounds.next();
    dispatch_round& now = round(r);
    now.fill(e_->rounds.blocks(), e_->table, e_->comm->rank());
    e_->statistics.groups += now.groups_of_all;
    now.sent_before = sent_;
    sent_ += now.sent_rows;
    place(now, slot(r));
    gather_parts(now, slot(r), std::index_sequence_for<Part...>());
    if constexpr (Backward) {
      const auto routes = routes_of(now, slot(r));
      backend().launch(mover(), rows{now.sent_rows}, gather_rows{top_k()}, in(routes), in(a_->upstream),
                       out(as_matrix(slot(r).sent_upstream, now.sent_rows, shape().result_elements())));
      const auto gates = slot(r).sent_gates.sub(0, now.sent_rows);
      if (a_->gates.rows != 0)
        backend().launch(mover(), elements{now.sent_rows}, gather_gates{}, in(routes), in(as_row(a_->gates)),
                         out(gates));
      else
        backend().launch(mover(), elements{now.sent_rows}, fill<float>{1}, out(gates));
    }
    if (apart() && now.sent_rows > 0) caller_ahead_ = true;
    if (now.sent_rows + now.received_rows > 0) let_transfers_follow();
    if (!weights_.all_sent() && any_foreign()) send_weights(std::numeric_limits<index_t>::max());
    exchange_rows(now, slot(r));
    arrived_[at(r % shape().slots)] = transfers_so_far();
    // Weights travel under the same compute as the next rows, and products take several times as long as
    // their rows are on the way: otherwise rounds hide nothing.
    if (!weights_.all_sent()) send_weights(4 * shape().send_slot_rows() * row_bytes());
  }
  void send_weights(index_t bytes) {
    weights_.list_next(m_->foreign_weights, a_->weights, bytes);
    if (!e_->sends.empty() || !e_->receives.empty()) let_transfers_follow();
    exchange("weights to helpers");
  }
  index_t row_bytes() const { return index_t{sizeof(first_part)} * shape().widths[0]; }
  // Whether any rank computes rows of a foreign expert in this round: all ranks find the same.
  bool any_foreign() const {
    const std::span<const round_block> blocks = e_->rounds.blocks();
    return std::any_of(blocks.begin(), blocks.end(),
                       [&](const round_block& b) { return e_->table.foreign(b.segment); });
  }
  int top_k() const { return static_cast<int>(shape().top_k); }
  view<std::int32_t> routes_of(const dispatch_round& now, const slot_type& s) const {
    return s.route.sub(0, now.sent_rows);
  }

  // Which route each row of the slot is, and where each route's row travels. Blocks go by value, as many as
  // fit into a launch: a table on the device would have to be copied, and kept until it has been read.
  void place(const dispatch_round& now, const slot_type& s) {
    const std::span<const peer_block> sends = now.sends;
    for (std::size_t first = 0; first < sends.size(); first += blocks_at_once) {
      const auto some_of = sends.subspan(first, std::min(blocks_at_once, sends.size() - first));
      slot_blocks<blocks_at_once> blocks;
      const index_t begin = some_of.front().first, end = some_of.back().first + some_of.back().rows;
      blocks.count = static_cast<index_t>(some_of.size());
      for (std::size_t i = 0; i < some_of.size(); ++i) {
        const peer_block& b = some_of[i];
        const index_t expert = e_->table[b.segment].expert;
        index_t& done = e_->done_of_segment[at(b.segment)];
        blocks.block[i] = {e_->first_of_expert[at(expert)],
                           e_->first_of_expert[at(expert) + 1] - e_->first_of_expert[at(expert)],
                           e_->table.first_in_group(b.segment) + done, b.first - begin};
        done += b.rows;
      }
      backend().launch(mover(), elements{end - begin},
                       place_routes<blocks_at_once>{blocks, 0, now.sent_before + begin, stride()},
                       in(m_->index.order.sub(0, a_->ids.n)), out(s.route.sub(begin, end - begin)),
                       some(position()));
    }
  }
  index_t stride() const { return shape().order == row_order::strided ? e_->rounds.rounds() : 1; }

  template <std::size_t... Index>
  void gather_parts(const dispatch_round& now, const slot_type& s, std::index_sequence<Index...>) {
    (backend().launch(mover(), rows{now.sent_rows}, gather_rows{top_k()}, in(routes_of(now, s)),
                      in(std::get<Index>(a_->rows)),
                      out(as_matrix(std::get<Index>(s.sent), now.sent_rows, shape().widths[Index]))),
     ...);
  }

  // f(from, to, width) for each array that travels out, in one order on all ranks.
  template <class F> void each_outward(const slot_type& s, F f) {
    const auto parts = [&]<std::size_t... Index>(std::index_sequence<Index...>) {
      (f(std::get<Index>(s.sent), std::get<Index>(s.received), shape().widths[Index]), ...);
    };
    parts(std::index_sequence_for<Part...>());
    if constexpr (Backward) {
      f(s.sent_upstream, s.upstream, shape().result_elements());
      f(s.sent_gates, s.gates, index_t{1});
    }
  }
  template <class F> void each_homeward(const slot_type& s, F f) {
    if constexpr (Backward) {
      f(s.drows, std::get<0>(s.sent), shape().widths[0]);
      f(s.dgates, s.sent_gates, index_t{1});
    } else {
      f(s.results, s.returned, shape().result_elements());
    }
  }
  void exchange_rows(const dispatch_round& now, const slot_type& s) {
    e_->clear_lists();
    for (const peer_block& b : now.sends)
      each_outward(s, [&](auto from, auto, index_t w) { e_->send(b.peer, block_of(from, b, w)); });
    for (const peer_block& b : now.receives)
      each_outward(s, [&](auto, auto to, index_t w) { e_->receive(b.peer, block_of(to, b, w)); });
    exchange("rows to experts");
  }
  template <class T> static view<T> block_of(view<T> v, const peer_block& b, index_t w) {
    return v.sub(b.first * w, b.rows * w);
  }

  // ---- The expert -----------------------------------------------------------------------------------------

  void compute(index_t r) {
    dispatch_round& now = round(r);
    if (now.received_rows == 0) return; // nothing to wait for, and nothing that waits for it
    wait_for(arrived_[at(r % shape().slots)]);
    list_groups(now);
    call_expert(now, slot(r), std::index_sequence_for<Part...>());
    caller_ahead_ = true;
    let_transfers_follow();
  }

  void list_groups(const dispatch_round& now) {
    const weight_layout& layout = e_->layout;
    const int me = e_->comm->rank();
    const index_t first_local = e_->table.homes().first(me), parts = layout.parts();
    lists_->weights.clear();
    lists_->gradients.clear();
    for (std::size_t g = 0; g < now.segments.size(); ++g) {
      const bool foreign = e_->table.foreign(now.segments[g]);
      const index_t place = foreign ? now.segments[g] - e_->first_foreign() : now.experts[g] - first_local;
      for (index_t p = 0; p < parts; ++p) {
        lists_->weights.push_back(foreign ? tile<const weight>(layout.in_slot(m_->foreign_weights, place, p))
                                          : a_->weights[at(place * parts + p)]);
        if constexpr (Backward)
          lists_->gradients.push_back(foreign ? layout.in_slot(m_->foreign_gradients, place, p)
                                              : a_->gradients[at(place * parts + p)]);
      }
    }
  }
  template <std::size_t Index> auto received_part(const slot_type& s, index_t n) const {
    using type = std::tuple_element_t<Index, std::tuple<Part...>>;
    const tile<const type> part = as_matrix(std::get<Index>(s.received), n, shape().widths[Index]);
    return part;
  }
  template <std::size_t... Index>
  void call_expert(const dispatch_round& now, const slot_type& s, std::index_sequence<Index...>) {
    const index_t n = now.received_rows, w = shape().result_elements();
    const expert_groups<weight> groups{now.experts, now.offsets, lists_->weights, lists_->gradients};
    const row_parts<Part...> parts(received_part<Index>(s, n)...);
    if constexpr (Backward)
      expert_->backward(*compute_, groups, parts, view<const float>(s.gates.sub(0, n)),
                        tile<const result>(as_matrix(s.upstream, n, w)),
                        as_matrix(s.drows, n, shape().widths[0]), s.dgates.sub(0, n), m_->scratch);
    else
      expert_->forward(*compute_, groups, parts, as_matrix(s.results, n, w), m_->scratch);
  }

  // ---- Results back ---------------------------------------------------------------------------------------

  void compute_and_return(index_t r) {
    compute(r);
    const dispatch_round& now = round(r);
    const slot_type& s = slot(r);
    e_->clear_lists();
    for (const peer_block& b : now.receives)
      each_homeward(s, [&](auto from, auto, index_t w) { e_->send(b.peer, block_of(from, b, w)); });
    for (const peer_block& b : now.sends)
      each_homeward(s, [&](auto, auto to, index_t w) { e_->receive(b.peer, block_of(to, b, w)); });
    exchange("rows from experts");
    returned_[at(r % shape().slots)] = transfers_so_far();
  }
  void add_when_back(index_t r) {
    if (round(r).sent_rows == 0) return;
    wait_for(returned_[at(r % shape().slots)]);
    add_up(r);
  }
  void add_up(index_t r) {
    const dispatch_round& now = round(r);
    const slot_type& s = slot(r);
    const auto routes = routes_of(now, s);
    const auto back = [&] {
      if constexpr (Backward)
        return as_matrix(std::get<0>(s.sent), now.sent_rows, width());
      else
        return as_matrix(s.returned, now.sent_rows, width());
    }();
    // Gradients of rows are not weighed here: the expert has multiplied by the gate.
    const tile<const float> gates = Backward ? tile<const float>{} : a_->gates;
    if (shape().ordered)
      backend().launch(mover(), rows{now.sent_rows}, keep_rows{}, in(routes), in(back), some(kept()));
    else
      backend().launch(mover(), rows{now.sent_rows}, scatter_add{top_k(), now.sent_before, now.sent_rows},
                       in(routes), in(position()), in(gates), in(back), inout(sums()));
    if constexpr (Backward)
      if (a_->dgates.rows != 0)
        backend().launch(mover(), elements{now.sent_rows}, scatter_gate_gradients{}, in(routes),
                         in(s.sent_gates.sub(0, now.sent_rows)), some(as_row(a_->dgates)));
  }

  void finish() {
    stream& s = *compute_;
    if constexpr (Backward) {
      if (shape().ordered) return add_kept(tile<const float>{}, a_->drows);
      backend().launch(s, rows{tokens_}, write_sums{}, in(sums()), out(a_->drows));
    } else {
      if (shape().ordered) return add_kept(a_->gates, a_->out);
      backend().launch(s, rows{tokens_}, add_sums{}, in(sums()), inout(a_->out));
    }
  }

  template <class T> void add_kept(tile<const float> gates, tile<T> to) {
    if constexpr (Backward) backend().launch(*compute_, rows{tokens_}, clear_row{}, out(to));
    if (sent_ == 0) return; // nothing was kept, so that there is nothing to read
    backend().launch(*compute_, rows{tokens_}, combine_kept{top_k()}, in(a_->ids), in(gates), in(kept()),
                     inout(to));
  }

  engine_type* e_;
  const memory_type* m_;
  const arguments* a_;
  Expert* expert_;
  expert_lists<weight>* lists_;
  weight_transfer<engine_type, weight> weights_;
  stream* compute_;
  index_t tokens_, sent_ = 0;
  bool caller_ahead_ = false;          // of the transfer stream, by something that it must wait for
  index_t moved_ = 0, waited_for_ = 0; // exchanges
  std::array<moment, 3> arrived_{}, returned_{};
};

} // namespace plateau::inline v0::detail::dispatch
