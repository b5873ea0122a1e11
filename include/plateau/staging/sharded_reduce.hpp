// SPDX-License-Identifier: Apache-2.0
//
// Sums over ranks of gradients that lie in pinned host memory, piece by piece through the device: each rank
// gets the sums of its shard (ZeRO-1), or every rank gets all of them. While one piece is exchanged, the next
// comes in and the last goes out; what it takes of the device is a few pieces, whatever the number of
// elements. Sums are made in rank order, so that their bits depend neither on pieces nor on who owns what:
// they are those of all_reduce in rank order.
//
//   sharded_reduce<Backend, Communicator> reduce(backend, comm, space, {.piece_elements = 1 << 20});
//   reduce.run(stream, shards, active, gradients, [&](auto& s, index_t first, view<const float> sums) {
//     backend.launch(s, ...);                                        // such as their squares
//   });
#pragma once

#include <plateau/access.hpp>
#include <plateau/checks.hpp>
#include <plateau/collectives.hpp>
#include <plateau/config.hpp>
#include <plateau/digest.hpp>
#include <plateau/error.hpp>
#include <plateau/exchange.hpp>
#include <plateau/memory_source.hpp>
#include <plateau/rank_order_sum.hpp>
#include <plateau/staging/shard_plan.hpp>
#include <plateau/staging/sharded_shape.hpp>
#include <plateau/staging/tensor_activity.hpp>
#include <plateau/view.hpp>
#include <plateau/vote.hpp>
#include <plateau/working_set.hpp>
#include <plateau/workspace.hpp>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace plateau::inline v0 {

// Calls are collective, in the same order on all ranks of `comm`, and only enqueue, on the caller's stream
// and three of the operator's own that have joined it when a call returns. One thread at a time. Backend,
// communicator and workspace must outlive it; the workspace must have room whenever it is called.
template <class Backend, class Communicator> class sharded_reduce {
  static_assert(check_backend<Backend>());
  static_assert(check_communicator<Communicator, Backend>());
  using stream = typename Backend::stream;
  using event = typename Backend::event;

 public:
  using shape = sharded_shape;

  // All that it takes from a workspace; no pinned memory. Throws config_error for a shape that cannot work.
  static working_set working_set_of(const shape& limits, int ranks, tag purpose = tag::optimizer) {
    limits.check("sharded_reduce");
    working_set set(purpose);
    counting_source source(set);
    slots_memory(source, limits, ranks);
    return set;
  }

  // Collective: all ranks agree on the shape; collective_error on all of them when one of them cannot. Where
  // the vote is left to the caller it throws on this rank alone, and the shape belongs into that vote.
  sharded_reduce(Backend& backend, Communicator& comm, workspace<Backend>& space, const shape& limits,
                 tag purpose = tag::optimizer, voting who = voting::now)
      : backend_(&backend), comm_(&comm), space_(&space), shape_(limits), set_(purpose) {
    std::optional<failure> mine;
    try {
      set_ = working_set_of(limits, comm.size(), purpose);
      if (set_.device_bytes() > space.device_bytes())
        throw config_error("plateau: sharded_reduce: " + limits.text() + " on " +
                           std::to_string(comm.size()) + " ranks need " +
                           std::to_string(set_.device_bytes()) + " device bytes, but the workspace has " +
                           std::to_string(space.device_bytes()) + ": reserve working_set_of(shape, ranks)");
      in_.emplace(backend.make_stream("gradients in"));
      transfer_.emplace(backend.make_stream("gradient exchange"));
      out_.emplace(backend.make_stream("gradients out"));
    } catch (...) {
      if (who == voting::left_to_caller) throw;
      mine = failure::current();
    }
    if (who == voting::left_to_caller) return;
    digest d;
    limits.add_to(d);
    vote(comm, d, mine ? &*mine : nullptr, "sharded_reduce", limits.text());
  }
  sharded_reduce(const sharded_reduce&) = delete;
  sharded_reduce& operator=(const sharded_reduce&) = delete;

  // `gradients` (plan.elements()): on return of the stream, this rank's shard is the sum over ranks; the rest
  // is as it was. Of tensors that are not active nothing is exchanged: they must be zeros on all ranks, and
  // stay so. each(stream, first, sums) enqueues work that reads a piece of this rank's shard, all elements of
  // which come once and in order. The same plan and activity on all ranks. Throws config_error when sizes do
  // not fit, and what `each` throws, when all that was enqueued has ended; the other ranks end with it.
  template <class Each>
  void run(stream& s, const shard_plan& plan, const tensor_activity& activity,
           view<float, host_space> gradients, Each&& each) {
    const auto me = comm_->rank();
    const auto part = [&](int r, index_t i) { return plan.piece(r, i, shape_.piece_elements); };
    const auto load = [&](index_t i, const slot& m) { copy_parts_in(activity, i, m, gradients, part); };
    const auto move = [&](index_t i, const slot& m) { exchange_parts(activity, i, m, part); };
    const auto finish = [&](index_t i, const slot& m) {
      const element_range own = part(me, i);
      const auto sums = m.place(me, own.elements);
      add_parts(s, activity, own, m);
      if (own.elements != 0) each(s, own.first, view<const float>(sums));
      return outgoing{own, sums};
    };
    guarded(s, "sharded_reduce", [&] {
      check(gradients.n, plan.elements(), plan.ranks(), activity);
      issue(s, plan.pieces(shape_.piece_elements), gradients, load, move, finish);
    });
  }

  // The same, but all of `gradients` is the sum over ranks on every rank, and each() sees all of it.
  template <class Each>
  void run_whole(stream& s, const tensor_activity& activity, view<float, host_space> gradients, Each&& each) {
    const index_t step = comm_->size() * shape_.piece_elements;
    const auto part = [&](index_t i) {
      return element_range{i * step, std::min(step, gradients.n - i * step)};
    };
    const auto load = [&](index_t i, const slot& m) {
      copy_in(gradients, part(i), m.whole(part(i).elements));
    };
    const auto move = [&](index_t i, const slot& m) {
      const element_range p = part(i);
      const auto all = m.whole(p.elements);
      activity.for_each_run(p.first, p.elements, [&](index_t first, index_t n) {
        const scratch_view scratch{reinterpret_cast<unsigned char*>(m.received.p),
                                   static_cast<index_t>(m.received.bytes())};
        all_reduce(*backend_, *comm_, *transfer_, inout(all.sub(first - p.first, n)), scratch,
                   {comm_->size() * shape_.piece_elements, true}, "sum of gradients");
      });
    };
    const auto finish = [&](index_t i, const slot& m) {
      const element_range p = part(i);
      each(s, p.first, view<const float>(m.whole(p.elements)));
      return outgoing{p, m.whole(p.elements)};
    };
    guarded(s, "sharded_reduce", [&] {
      check(gradients.n, gradients.n, comm_->size(), activity);
      issue(s, gradients.n / step + (gradients.n % step != 0 ? 1 : 0), gradients, load, move, finish);
    });
  }

  const shape& limits() const { return shape_; }

 private:
  // One piece: a part for each rank, this one's among them, and what the others have of this rank's part.
  struct slot {
    view<float> parts;    // (ranks x piece_elements)
    view<float> received; // (ranks - 1, piece_elements)
    index_t piece_elements = 0;

    view<float> place(int r, index_t n) const { return parts.sub(r * piece_elements, n); }
    view<float> whole(index_t n) const { return parts.sub(0, n); }
  };
  struct slots_memory {
    std::array<slot, sharded_shape::most_slots> slots;

    template <class Source> slots_memory(Source& from, const shape& limits, int ranks) {
      for (int i = 0; i < limits.slots; ++i) {
        slot& m = slots[static_cast<std::size_t>(i)];
        m.piece_elements = limits.piece_elements;
        m.parts = from.template device<float>("gradients to be summed", limits.of_ranks(ranks));
        m.received = from.template device<float>("gradients received", limits.of_ranks(ranks - 1));
      }
    }
  };
  // What goes back to host memory.
  struct outgoing {
    element_range range;
    view<const float> from;
  };

  void check(index_t gradients, index_t planned, int ranks, const tensor_activity& activity) const {
    const auto refuse = [&](const std::string& why) {
      throw config_error("plateau: rank " + std::to_string(comm_->rank()) + ": sharded_reduce: " + why);
    };
    if (ranks != comm_->size())
      refuse("the plan is for " + std::to_string(ranks) + " ranks, the communicator has " +
             std::to_string(comm_->size()));
    if (gradients != planned)
      refuse(std::to_string(gradients) + " gradients, but the plan is of " + std::to_string(planned) +
             " elements");
    if (activity.knows_tensors() && activity.elements() != planned)
      refuse("the tensors that may be active have " + std::to_string(activity.elements()) +
             " elements together, but the plan is of " + std::to_string(planned));
  }

  void copy_in(view<const float, host_space> from, const element_range& r, view<float> to) {
    if (r.elements != 0) backend_->copy(*in_, in(from.sub(r.first, r.elements)), out(to));
  }

  // A part for each rank that has something in it. Parts of one length at one distance are one copy: a copy
  // takes time of its own beside its bytes, and there are as many as ranks.
  template <class Part>
  void copy_parts_in(const tensor_activity& activity, index_t i, const slot& m,
                     view<const float, host_space> from, Part part) {
    const int ranks = comm_->size();
    const auto wanted = [&](int r) {
      const element_range p = part(r, i);
      return p.elements != 0 && (r == comm_->rank() || activity.any_in(p.first, p.elements));
    };
    for (int r = 0, next = 0; r < ranks; r = next) {
      next = r + 1;
      if (!wanted(r)) continue;
      const element_range first = part(r, i);
      const auto distance = [&](int to) { return part(to, i).first - part(to - 1, i).first; };
      while (next < ranks && wanted(next) && part(next, i).elements == first.elements &&
             distance(next) == distance(r + 1))
        ++next;
      if (next == r + 1) {
        copy_in(from, first, m.place(r, first.elements));
        continue;
      }
      const index_t n = first.elements;
      backend_->copy(*in_,
                     in(tile<const float, host_space>{from.p + first.first, next - r, n, distance(r + 1)}),
                     out(tile<float>{m.place(r, n).p, next - r, n, m.piece_elements}));
    }
  }

  // To each rank its part, run by run; from each rank what it has of this one's.
  template <class Part>
  void exchange_parts(const tensor_activity& activity, index_t i, const slot& m, Part part) {
    const int ranks = comm_->size(), me = comm_->rank();
    sends_.clear();
    receives_.clear();
    bool any = false; // on any rank: all of them exchange, or none
    for (int r = 0; r < ranks; ++r) {
      const element_range p = part(r, i);
      activity.for_each_run(p.first, p.elements, [&](index_t first, index_t n) {
        any = true;
        if (r != me) sends_.push_back(send_to(r, m.place(r, p.elements).sub(first - p.first, n)));
      });
    }
    const element_range own = part(me, i);
    index_t before = 0;
    activity.for_each_run(own.first, own.elements, [&](index_t, index_t n) {
      const auto run = m.received.sub(before, (ranks - 1) * n);
      for (int r = 0; r < ranks; ++r)
        if (r != me) receives_.push_back(receive_from(r, detail::slot_of(run, me, r, n)));
      before += run.n;
    });
    if (any) comm_->exchange(*transfer_, sends_, receives_, "gradients to their owners");
  }
  void add_parts(stream& s, const tensor_activity& activity, const element_range& own, const slot& m) {
    const int ranks = comm_->size(), me = comm_->rank();
    if (ranks == 1) return;
    const auto mine = m.place(me, own.elements);
    index_t before = 0;
    activity.for_each_run(own.first, own.elements, [&](index_t first, index_t n) {
      const auto run = mine.sub(first - own.first, n);
      detail::sum_in_rank_order<float, device_space>(*backend_, s, me, ranks, run,
                                                     m.received.sub(before, (ranks - 1) * n), run);
      before += (ranks - 1) * n;
    });
  }

  // Three streams and the caller's: in, exchange, sums (the caller's), out. A slot's next piece waits for
  // the end of its own last one: its way out, or where nothing goes out the exchange or the caller's work.
  template <class Load, class Move, class Finish>
  void issue(stream& s, index_t pieces, view<float, host_space> gradients, Load load, Move move,
             Finish finish) {
    if (pieces == 0) return;
    auto open = space_->open(set_);
    phase_source<Backend> source(open);
    const slots_memory memory(source, shape_, comm_->size());
    Backend& be = *backend_;
    const bool alone = comm_->size() == 1;
    std::array<event, sharded_shape::most_slots> unused{};
    bool went_out = false;
    // What the caller and earlier calls have made of gradients and workspace is there before the first piece
    // comes in; the other streams wait for that one.
    be.wait(*in_, be.record(s));
    for (index_t i = 0; i < pieces; ++i) {
      const auto number = static_cast<std::size_t>(i % shape_.slots);
      const slot& m = memory.slots[number];
      if (i >= shape_.slots) be.wait(*in_, unused[number]);
      load(i, m);
      if (alone) {
        be.wait(s, be.record(*in_));
        finish(i, m);
        unused[number] = be.record(s);
        continue;
      }
      be.wait(*transfer_, be.record(*in_));
      move(i, m);
      event moved = be.record(*transfer_);
      be.wait(s, moved);
      const outgoing what = finish(i, m);
      if (what.range.elements == 0) {
        unused[number] = std::move(moved);
        continue;
      }
      be.wait(*out_, be.record(s));
      be.copy(*out_, in(what.from), out(gradients.sub(what.range.first, what.range.elements)));
      unused[number] = be.record(*out_);
      went_out = true;
    }
    if (went_out) be.wait(s, be.record(*out_));
  }

  // The other ranks wait for this one: they end with its cause, whatever its caller does next. What has been
  // enqueued uses the caller's memory, so it ends before the caller learns of it.
  template <class F> void guarded(stream& s, const char* operation, F f) {
    try {
      f();
    } catch (...) {
      failure why = failure::current();
      if (why.operation.empty()) why.operation = operation;
      if constexpr (requires { comm_->abort(why); })
        comm_->abort(why);
      else
        comm_->abort(why.text);
      for (stream* each : {&s, &*in_, &*transfer_, &*out_}) {
        try {
          backend_->wait(backend_->record(*each));
        } catch (...) {
        }
      }
      throw;
    }
  }

  Backend* backend_;
  Communicator* comm_;
  workspace<Backend>* space_;
  shape shape_;
  working_set set_;
  std::vector<send_op> sends_; // keep their capacity
  std::vector<receive_op> receives_;
  std::optional<stream> in_, transfer_, out_;
};

} // namespace plateau::inline v0
