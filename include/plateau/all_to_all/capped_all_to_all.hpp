// SPDX-License-Identifier: Apache-2.0
//
// The dispatch: rows to the ranks of their experts in rounds with a hard cap on both sides, the user's expert
// on each round as it arrives, results back and added up; and the same in backward, where each round's
// forward is computed again. It takes the ids and gates of any router. Everything is exact; only order and
// grain of the work change. docs/dispatch.md says what is promised, what it costs, and when it pays.
//
//   using dispatch = capped_all_to_all<Backend, Communicator, bfloat16>;
//   dispatch exchange(backend, comm, shape, space, expert);   // reserves; then all ranks agree
//   exchange.plan(stream, ids, plan);                         // one host round trip
//   exchange.run(stream, plan, ids, {x}, gates, out, expert, weights);
//   exchange.run_backward(stream, plan, ids, {x}, gates, dout, dx, dgates, expert, weights, gradients);
//
// All calls are collective, in the same order on all ranks, and only enqueue on the caller's stream and one
// of the operator's own, which have joined when a call returns; plan alone waits, for the counts. One thread
// at a time; the operator holds no state between calls but its statistics, so any number of plans may be in
// flight.
#pragma once

#include <plateau/access.hpp>
#include <plateau/all_to_all/dispatch_call.hpp>
#include <plateau/all_to_all/dispatch_engine.hpp>
#include <plateau/all_to_all/dispatch_memory.hpp>
#include <plateau/all_to_all/dispatch_plan.hpp>
#include <plateau/all_to_all/dispatch_shape.hpp>
#include <plateau/all_to_all/dispatch_statistics.hpp>
#include <plateau/all_to_all/expert.hpp>
#include <plateau/all_to_all/plan_exchange.hpp>
#include <plateau/checks.hpp>
#include <plateau/config.hpp>
#include <plateau/digest.hpp>
#include <plateau/error.hpp>
#include <plateau/memory_source.hpp>
#include <plateau/scalar.hpp>
#include <plateau/view.hpp>
#include <plateau/vote.hpp>
#include <plateau/working_set.hpp>
#include <plateau/workspace.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

namespace plateau::inline v0 {

template <class Backend, class Communicator, class... Part> class capped_all_to_all {
  static_assert(check_backend<Backend>());
  static_assert(check_communicator<Communicator, Backend>());
  static_assert(sizeof...(Part) > 0, "plateau: capped_all_to_all needs the element type of its rows");
  static_assert((std::is_trivially_copyable_v<Part> && ...),
                "plateau: capped_all_to_all moves rows by their bytes: parts must be trivially copyable");
  using stream = typename Backend::stream;
  using engine_type = detail::dispatch::dispatch_engine<Backend, Communicator, Part...>;
  template <class Expert> using weight_of = typename Expert::weight_type;

 public:
  using shape = dispatch_shape<sizeof...(Part)>;
  using first_part = std::tuple_element_t<0, std::tuple<Part...>>;
  using result = row_result<first_part>;
  static_assert(summed_in_float<result>, "plateau: results are added in float: row_traits<Part>::result_type "
                                         "must be float, bfloat16 or half");

  // What a pass takes, line by line, on each of `ranks` ranks: exact, and known before anything exists.
  // Throws config_error for a shape that cannot be.
  template <class Expert>
  static working_set working_set_of(const shape& limits, int ranks, const Expert& expert,
                                    dispatch_pass pass) {
    limits.check();
    working_set set(tag::dispatch);
    counting_source source(set);
    if (pass == dispatch_pass::plan)
      detail::dispatch::plan_memory<Backend>(source, limits);
    else
      detail::dispatch::pass_memory<Backend, weight_of<Expert>, Part...>(
          source, limits, ranks, need_of(limits, ranks, expert, pass), pass == dispatch_pass::backward);
    return set;
  }
  // What the workspace must have room for: the passes never overlap. Without backward where the expert or the
  // shape has none.
  template <class Expert>
  static reservation reserve_for(const shape& limits, int ranks, const Expert& expert) {
    const auto set = [&](dispatch_pass p) { return working_set_of(limits, ranks, expert, p); };
    if constexpr (trainable<Expert>)
      if (limits.backward)
        return overlay(set(dispatch_pass::plan), set(dispatch_pass::forward), set(dispatch_pass::backward));
    return overlay(set(dispatch_pass::plan), set(dispatch_pass::forward));
  }

  // Collective: reserves its lists, then all ranks agree on shape, types and the expert's weights. `space`
  // must have room for a pass whenever one is called; backend, comm and space must outlive the operator.
  // Throws collective_error on all ranks when one of them cannot, or was given something else. Where the vote
  // is left to the caller, the constructor only reserves, on this rank, and throws what that throws; put
  // digest_of into the vote.
  template <class Expert>
  capped_all_to_all(Backend& backend, Communicator& comm, const shape& limits, workspace<Backend>& space,
                    const Expert& expert, voting who = voting::now)
      : space_(&space) {
    static_assert(check_expert<Expert, Backend, Part...>());
    if (who == voting::left_to_caller) {
      reserve_lists(backend, comm, limits, expert);
      return;
    }
    std::optional<failure> mine;
    try {
      reserve_lists(backend, comm, limits, expert);
    } catch (...) {
      mine = failure::current();
    }
    vote(comm, digest_of(limits, expert), mine ? &*mine : nullptr, "capped_all_to_all",
         text_of(limits, expert));
  }
  // What all ranks must have been given alike.
  template <class Expert> static digest digest_of(const shape& limits, const Expert& expert) {
    digest d;
    limits.add_to(d);
    (d.add(sizeof(Part)).add(scalar_kind_of<Part>), ...);
    d.add(scalar_kind_of<result>).add(sizeof(weight_of<Expert>)).add(scalar_kind_of<weight_of<Expert>>);
    for (const matrix_extent& m : expert.weight_parts()) d.add(m.rows).add(m.cols);
    return d;
  }

  // Collective. Counts the rows of each expert, fetches them, and plans: which rank computes what. ids
  // (tokens * top_k): experts in [0, experts), the same one more than once if need be, or -1 for no route;
  // any number of tokens up to the limit, on each rank its own. One host round trip, one host exchange.
  // Throws collective_error on all ranks when an id of any is out of range (its rank, token, slot and value)
  // or a rank has too many tokens, config_error on all of them when the placement needs more foreign experts
  // than there are slots: the communicator stays usable.
  void plan(stream& s, view<const std::int32_t> ids, dispatch_plan& into) {
    try {
      auto open = space_->open(plan_set_);
      phase_source<Backend> source(open);
      const detail::dispatch::plan_memory<Backend> memory(source, engine_->shape);
      detail::dispatch::make_room(*engine_, into);
      detail::dispatch::count_routes(*engine_, memory, s, ids);
    } catch (...) {
      fail_all("dispatch plan");
      throw;
    }
    detail::dispatch::plan_exchange(*engine_, ids, into);
  }
  dispatch_plan plan(stream& s, view<const std::int32_t> ids) {
    dispatch_plan p;
    plan(s, ids, p);
    return p;
  }

  // out (tokens, result width) += sum over a token's routes of gate * expert(row). `ids` as plan was given
  // them; rows (tokens, width) part by part; gates (tokens, top_k), adjacent, or empty for 1; weights (local
  // experts x parts), expert by expert. `under(stream)` may enqueue work that is not routed: it runs while
  // the first rows travel. Nothing is read from the device. Throws config_error, and ends the others, when
  // something does not fit.
  template <class Expert, class Under>
  void run(stream& s, const dispatch_plan& p, view<const std::int32_t> ids, const row_parts<Part...>& rows,
           tile<const float> gates, tile<result> out, Expert& expert,
           std::span<const tile<const weight_of<Expert>>> weights, Under&& under) {
    static_assert(check_expert<Expert, Backend, Part...>());
    detail::dispatch::call_arguments<weight_of<Expert>, Part...> a;
    a.ids = ids, a.rows = rows, a.gates = gates, a.weights = weights, a.out = out;
    call<false>(s, p, forward_set_, a, expert, under);
  }
  template <class Expert>
  void run(stream& s, const dispatch_plan& p, view<const std::int32_t> ids, const row_parts<Part...>& rows,
           tile<const float> gates, tile<result> out, Expert& expert,
           std::span<const tile<const weight_of<Expert>>> weights) {
    run(s, p, ids, rows, gates, out, expert, weights, [](stream&) {});
  }

  // From dout (tokens, result width) to drows (tokens, width of the first part), written; dgates (tokens,
  // top_k), adjacent, written, or empty where nobody wants them; and the gradients of the weights, added.
  // plan, ids, rows and gates as run had them, bit for bit. `under` as there; it runs before drows and dgates
  // are written, and must leave them alone. No host round trip.
  template <class Expert, class Under>
  void run_backward(stream& s, const dispatch_plan& p, view<const std::int32_t> ids,
                    const row_parts<Part...>& rows, tile<const float> gates, tile<const result> dout,
                    tile<first_part> drows, tile<float> dgates, Expert& expert,
                    std::span<const tile<const weight_of<Expert>>> weights,
                    std::span<const tile<float>> gradients, Under&& under) {
    static_assert(summed_in_float<first_part>, "plateau: run_backward needs rows of numbers: the first part "
                                               "must be float, bfloat16 or half");
    static_assert(check_trainable_expert<Expert, Backend, Part...>());
    detail::dispatch::call_arguments<weight_of<Expert>, Part...> a;
    a.ids = ids, a.rows = rows, a.gates = gates, a.weights = weights;
    a.upstream = dout, a.drows = drows, a.dgates = dgates, a.gradients = gradients;
    call<true>(s, p, backward_set_, a, expert, under);
  }
  template <class Expert>
  void run_backward(stream& s, const dispatch_plan& p, view<const std::int32_t> ids,
                    const row_parts<Part...>& rows, tile<const float> gates, tile<const result> dout,
                    tile<first_part> drows, tile<float> dgates, Expert& expert,
                    std::span<const tile<const weight_of<Expert>>> weights,
                    std::span<const tile<float>> gradients) {
    run_backward(s, p, ids, rows, gates, dout, drows, dgates, expert, weights, gradients, [](stream&) {});
  }

  // Of the last run or run_backward on this rank.
  dispatch_statistics statistics() const {
    dispatch_statistics s = engine_->statistics;
    s.stall_seconds = engine_->stalls.seconds();
    return s;
  }
  const shape& limits() const { return engine_->shape; }

 private:
  template <class Expert>
  static constexpr bool trainable =
      summed_in_float<first_part>&& trainable_expert_of<Expert, Backend, Part...>;

  template <class Expert>
  static detail::dispatch::expert_need need_of(const shape& limits, int ranks, const Expert& expert,
                                               dispatch_pass pass) {
    const index_t rows = limits.receive_slot_rows(ranks);
    const index_t groups = std::min(rows, engine_type::most_groups_of(limits, ranks));
    detail::dispatch::expert_need need{detail::dispatch::weight_layout::elements_of(expert.weight_parts()),
                                       0};
    if (pass == dispatch_pass::forward) need.scratch_bytes = expert.forward_scratch_bytes(rows, groups);
    if constexpr (trainable<Expert>)
      if (pass == dispatch_pass::backward) need.scratch_bytes = expert.backward_scratch_bytes(rows, groups);
    return need;
  }

  // What digest_of is of, in words.
  template <class Expert> static std::string text_of(const shape& limits, const Expert& expert) {
    std::string all = limits.text() + ", bytes of an element";
    ((all += " " + std::to_string(sizeof(Part))), ...);
    all += ", result " + std::to_string(sizeof(result)) + ", weights";
    for (const matrix_extent& m : expert.weight_parts())
      all += " " + std::to_string(m.rows) + " x " + std::to_string(m.cols);
    return all + " of " + std::to_string(sizeof(weight_of<Expert>)) + " bytes";
  }

  template <class Expert>
  void reserve_lists(Backend& backend, Communicator& comm, const shape& limits, const Expert& expert) {
    const int ranks = comm.size();
    plan_set_ = working_set_of(limits, ranks, expert, dispatch_pass::plan);
    forward_set_ = working_set_of(limits, ranks, expert, dispatch_pass::forward);
    if constexpr (trainable<Expert>)
      if (limits.backward) backward_set_ = working_set_of(limits, ranks, expert, dispatch_pass::backward);
    for (const working_set* set : {&plan_set_, &forward_set_, &backward_set_})
      if (set->device_bytes() > space_->device_bytes() || set->pinned_bytes() > space_->pinned_bytes())
        throw config_error("plateau: rank " + std::to_string(comm.rank()) +
                           ": capped_all_to_all: a pass needs " + std::to_string(set->device_bytes()) +
                           " device and " + std::to_string(set->pinned_bytes()) +
                           " pinned bytes, but the workspace has " + std::to_string(space_->device_bytes()) +
                           " and " + std::to_string(space_->pinned_bytes()) + ": reserve reserve_for(...)");
    const detail::dispatch::weight_layout layout(expert.weight_parts());
    engine_ = std::make_unique<engine_type>(backend, comm, limits, layout);
    lists_ = std::make_unique<detail::dispatch::expert_lists<weight_of<Expert>>>(
        static_cast<std::size_t>(engine_->most_groups() * layout.parts()));
  }

  template <bool Backward, class Expert, class Under>
  void call(stream& s, const dispatch_plan& p, const working_set& set,
            const detail::dispatch::call_arguments<weight_of<Expert>, Part...>& a, Expert& expert,
            Under&& under) {
    using memory_type = detail::dispatch::pass_memory<Backend, weight_of<Expert>, Part...>;
    Communicator& comm = *engine_->comm;
    try {
      auto* lists = dynamic_cast<detail::dispatch::expert_lists<weight_of<Expert>>*>(lists_.get());
      const auto pass = Backward ? dispatch_pass::backward : dispatch_pass::forward;
      if (Backward && !engine_->shape.backward)
        throw config_error("plateau: rank " + std::to_string(comm.rank()) +
                           ": dispatch backward: made with shape.backward = false: make one with it");
      const auto need = need_of(engine_->shape, comm.size(), expert, pass);
      check_expert_fits(lists != nullptr, need, set, expert, pass);
      detail::dispatch::check_arguments<Backward>(*engine_, p, a);
      engine_->build(p);
      auto open = space_->open(set);
      phase_source<Backend> source(open);
      const memory_type memory(source, engine_->shape, comm.size(), need, Backward);
      detail::dispatch::dispatch_call<Backend, Communicator, Expert, Backward, Part...>(*engine_, memory, a,
                                                                                        expert, *lists, s)
          .run(under);
    } catch (...) {
      fail_all(Backward ? "dispatch backward" : "dispatch forward");
      // What has been issued uses the caller's memory: who waits for his stream waits for it.
      try {
        engine_->backend->wait(s, engine_->backend->record(engine_->transfer));
      } catch (...) {
      }
      throw;
    }
  }
  // In a catch block. The others wait for this rank: they end with its cause, whatever its caller does next.
  void fail_all(const char* operation) {
    failure why = failure::current();
    if (why.operation.empty()) why.operation = operation;
    if constexpr (requires { engine_->comm->abort(why); })
      engine_->comm->abort(why);
    else
      engine_->comm->abort(why.text);
  }
  // An expert of other weights or scratch than the one that the operator was made for.
  template <class Expert>
  void check_expert_fits(bool same_type, const detail::dispatch::expert_need& need, const working_set& set,
                         const Expert& expert, dispatch_pass pass) const {
    const std::span<const matrix_extent> parts = expert.weight_parts(), mine = engine_->layout.extents();
    const bool same = same_type && std::equal(parts.begin(), parts.end(), mine.begin(), mine.end());
    if (same && need.scratch_bytes <= scratch_in(set)) return;
    const int rank = plateau::detail::origin_rank(*engine_->comm, engine_->comm->rank());
    throw config_error("plateau: rank " + std::to_string(rank) + ": dispatch " +
                       (pass == dispatch_pass::forward ? "forward" : "backward") + ": the expert " +
                       (same ? "needs " + std::to_string(need.scratch_bytes) + " bytes of scratch, " +
                                   std::to_string(scratch_in(set)) + " are reserved"
                             : std::string("has other weights than the one that the operator was made for")) +
                       ": make an operator for it");
  }
  static std::size_t scratch_in(const working_set& set) {
    for (const memory_line& line : set)
      if (std::string_view(line.what) == "scratch") return line.bytes;
    return 0;
  }

  workspace<Backend>* space_;
  working_set plan_set_{tag::dispatch}, forward_set_{tag::dispatch}, backward_set_{tag::dispatch};
  std::unique_ptr<detail::dispatch::expert_lists_base> lists_;
  std::unique_ptr<engine_type> engine_;
};

} // namespace plateau::inline v0
