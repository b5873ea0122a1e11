// SPDX-License-Identifier: Apache-2.0
//
// A reduction over two sides that are both split over ranks: one side stays, the sub-blocks of the other go
// around the ring and meet all of it. With a row travels its payload, which is only read, and its carry, what
// the ranks have made of it so far, which comes home when it has been everywhere. This is the rotation alone:
// what is computed where two blocks meet is the caller's. Cross-entropy is one instance; a softmax over a
// split dimension, an entropy or an attention are others.
//
// Two payload slots: while a rank computes on one, what is in it moves on, and the next arrives in the other.
// The carry goes one step later, since it is made by that step: a rank computes its part of the carry from
// nothing, and adds what arrives meanwhile. So nothing that moves waits for the compute of its own step, and
// the memory is that of a few sub-blocks, however many rows and ranks there are.
#pragma once

#include <plateau/access.hpp>
#include <plateau/checks.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/exchange.hpp>
#include <plateau/ring/ring_schedule.hpp>
#include <plateau/view.hpp>
#include <plateau/working_set.hpp>

#include <array>
#include <string>

namespace plateau::inline v0 {

// The arrays that a row consists of while it travels, in bytes for each row; 0: not there.
inline constexpr std::size_t ring_parts = 3;
using ring_row = std::array<std::size_t, ring_parts>;

constexpr bool any_part(const ring_row& row) { return row[0] != 0 || row[1] != 0 || row[2] != 0; }

// One sub-block: an array for each part.
struct ring_block {
  std::array<view<unsigned char>, ring_parts> parts{};

  // A part as elements, or as a matrix. T must be what its bytes per row are a multiple of.
  template <class T> view<T> as(std::size_t part, index_t n) const {
    return {reinterpret_cast<T*>(parts[part].p), n};
  }
  template <class T> tile<T> as_rows(std::size_t part, index_t rows, index_t cols) const {
    return {reinterpret_cast<T*>(parts[part].p), rows, cols, cols};
  }
};

// What a rotation needs, as large as any of those that share it: bytes of a row, rows of a sub-block.
struct ring_layout {
  index_t hop_rows = 0;
  std::array<const char*, ring_parts> payload_names{}, carry_names{};
  ring_row payload{}, carry{};

  // One rank moves nothing: it needs one slot for what is made of its rows, and a carry.
  static constexpr int payload_slots(int ranks) { return ranks > 1 ? 2 : 1; }
  static constexpr int carry_slots(int ranks) { return ranks > 1 ? 3 : 1; }

  // Adds the lines. The last carry slot is where another rank's arrives.
  constexpr void add_to(working_set& set, int ranks) const {
    for (std::size_t p = 0; p < ring_parts; ++p)
      for (int slot = 0; slot < payload_slots(ranks); ++slot) add(set, payload_names[p], payload[p]);
    for (std::size_t p = 0; p < ring_parts; ++p)
      for (int slot = 0; slot < carry_slots(ranks); ++slot) add(set, carry_names[p], carry[p]);
  }

 private:
  constexpr void add(working_set& set, const char* what, std::size_t row_bytes) const {
    if (row_bytes == 0) return;
    if (hop_rows > static_cast<index_t>(detail::most_bytes / row_bytes))
      throw config_error("plateau: ring: sub-blocks of " + std::to_string(hop_rows) + " rows of " +
                         std::to_string(row_bytes) + " bytes overflow: make hop_rows smaller");
    set.device<unsigned char>(what, hop_rows * static_cast<index_t>(row_bytes));
  }
};

struct ring_buffers {
  std::array<ring_block, 2> payload;
  std::array<ring_block, 3> carry; // the last: arrives

  // Takes the lines of the layout, in their order, from a phase of a workspace.
  template <class Phase> static ring_buffers take(Phase& phase, const ring_layout& layout, int ranks) {
    ring_buffers b;
    const auto part = [&](std::size_t row_bytes) {
      return phase.template device<unsigned char>(layout.hop_rows * static_cast<index_t>(row_bytes));
    };
    for (std::size_t p = 0; p < ring_parts; ++p)
      for (int slot = 0; slot < ring_layout::payload_slots(ranks); ++slot)
        if (layout.payload[p] != 0)
          b.payload[static_cast<std::size_t>(slot)].parts[p] = part(layout.payload[p]);
    for (std::size_t p = 0; p < ring_parts; ++p)
      for (int slot = 0; slot < ring_layout::carry_slots(ranks); ++slot)
        if (layout.carry[p] != 0) b.carry[static_cast<std::size_t>(slot)].parts[p] = part(layout.carry[p]);
    return b;
  }
};

// One rotation. `Work` says what happens to rows; each call only enqueues on the stream that it is given:
//
//   load(stream, own, payload)             on the transfer stream: fills the payload of own.rows own rows
//   compute(stream, step, payload, carry)  writes this rank's part of the carry of step.rows rows, all of it
//   merge(stream, rows, arrived, carry)    carry += arrived
//   finish(stream, own, carry)             the carry of own.rows rows of this rank is complete
//
// None is called for a sub-block without rows.
template <class Backend, class Communicator> class ring_reduce {
  static_assert(check_backend<Backend>());
  static_assert(check_communicator<Communicator, Backend>());
  using stream = typename Backend::stream;
  using event = typename Backend::event;

 public:
  ring_reduce(Backend& backend, Communicator& comm, stream& transfer)
      : backend_(&backend), comm_(&comm), transfer_(&transfer) {}

  // Collective: all ranks give the same counts, hop_rows and bytes of a row. `carry` without parts: nothing
  // comes home. The stream waits for all that moves; `what` names the exchanges, a literal.
  template <class Work>
  void run(stream& s, const ring_schedule& schedule, const ring_row& payload, const ring_row& carry,
           const ring_buffers& buffers, Work& work, const char* what) {
    if (schedule.ranks() == 1) return run_alone(s, schedule, carry, buffers, work);
    const index_t steps = schedule.steps();
    if (steps == 0) return;
    const bool comes_home = any_part(carry);
    const ring_block& arrived = buffers.carry[2];
    const int me = comm_->rank();

    // What the rows are made of, and the memory, is ready where the caller's stream is now.
    backend_->wait(*transfer_, backend_->record(s));
    load(*transfer_, schedule.own(me, 0), buffers.payload[0], work);
    backend_->wait(s, backend_->record(*transfer_));
    event computed;
    for (index_t t = 0; t < steps; ++t) {
      const ring_step here = schedule.at(me, t);
      const bool last = t + 1 == steps, turns = !last && schedule.at(me, t + 1).hop == 0;
      const bool moves = (!last && !turns) || (comes_home && t > 0), moves_or_loads = moves || turns;
      // Into the slot, and out of the carry, of the step before: they are free when it is done.
      if (moves_or_loads && t > 0) backend_->wait(*transfer_, computed);
      if (moves) move(schedule, t, !last && !turns, comes_home && t > 0, payload, carry, buffers, what);
      if (turns) load(*transfer_, schedule.own(me, here.round + 1), slot(buffers.payload, t + 1), work);
      const event moved = moves_or_loads ? backend_->record(*transfer_) : event();

      if (here.rows != 0) work.compute(s, here, slot(buffers.payload, t), slot(buffers.carry, t));
      // The arrival, and the payload of the next step.
      if (moves_or_loads) backend_->wait(s, moved);
      if (comes_home && t > 0) {
        if (here.hop == 0)
          finish(s, schedule.own(me, here.round - 1), arrived, work);
        else if (here.rows != 0)
          work.merge(s, here.rows, arrived, slot(buffers.carry, t));
      }
      if (!last || comes_home) computed = backend_->record(s);
    }
    if (!comes_home) return;
    backend_->wait(*transfer_, computed);
    move(schedule, steps, false, true, payload, carry, buffers, what);
    backend_->wait(s, backend_->record(*transfer_));
    finish(s, schedule.own(me, schedule.rounds() - 1), arrived, work);
  }

 private:
  template <std::size_t N> static const ring_block& slot(const std::array<ring_block, N>& slots, index_t t) {
    return slots[static_cast<std::size_t>(t % 2)];
  }
  template <class Work> static void load(stream& s, const ring_step& own, const ring_block& to, Work& work) {
    if (own.rows != 0) work.load(s, own, to);
  }
  template <class Work>
  static void finish(stream& s, const ring_step& own, const ring_block& carry, Work& work) {
    if (own.rows != 0) work.finish(s, own, carry);
  }

  template <class Work>
  void run_alone(stream& s, const ring_schedule& schedule, const ring_row& carry, const ring_buffers& buffers,
                 Work& work) {
    for (index_t t = 0; t < schedule.steps(); ++t) {
      const ring_step here = schedule.at(0, t);
      work.load(s, here, buffers.payload[0]);
      work.compute(s, here, buffers.payload[0], buffers.carry[0]);
      if (any_part(carry)) work.finish(s, here, buffers.carry[0]);
    }
  }

  // What moves during step t: the payload of that step, and the carry of the one before.
  void move(const ring_schedule& schedule, index_t t, bool with_payload, bool with_carry,
            const ring_row& payload, const ring_row& carry, const ring_buffers& buffers, const char* what) {
    const int me = comm_->rank(), to = schedule.next(me), from = schedule.previous(me);
    std::array<send_op, 2 * ring_parts> sends;
    std::array<receive_op, 2 * ring_parts> receives;
    std::size_t n = 0;
    const auto add = [&](const ring_row& row, const ring_block& out, index_t rows_out, const ring_block& in,
                         index_t rows_in) {
      for (std::size_t p = 0; p < ring_parts; ++p) {
        if (row[p] == 0) continue;
        const auto bytes = static_cast<index_t>(row[p]);
        sends[n] = send_to(to, out.parts[p].sub(0, rows_out * bytes));
        receives[n++] = receive_from(from, in.parts[p].sub(0, rows_in * bytes));
      }
    };
    if (with_payload)
      add(payload, slot(buffers.payload, t), schedule.at(me, t).rows, slot(buffers.payload, t + 1),
          schedule.at(me, t + 1).rows);
    if (with_carry)
      add(carry, slot(buffers.carry, t - 1), schedule.at(me, t - 1).rows, buffers.carry[2],
          schedule.at(from, t - 1).rows);
    comm_->exchange(*transfer_, std::span<const send_op>(sends.data(), n),
                    std::span<const receive_op>(receives.data(), n), what);
  }

  Backend* backend_;
  Communicator* comm_;
  stream* transfer_;
};

} // namespace plateau::inline v0
