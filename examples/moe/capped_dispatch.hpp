// SPDX-License-Identifier: Apache-2.0
//
// Expert dispatch by rounds: Plateau's capped all-to-all with the model's expert. Slots hold a cap of rows,
// whatever the routing, so that the peak depends neither on skew nor, but for the index and the sums of
// tokens, on the number of tokens; the workspace lends it all, so that every layer uses the same bytes.
//
// One host round trip per layer in forward, for the counts, and none in backward: the plan that forward has
// made is on the host.
#pragma once

#include "dispatch_summary.hpp"
#include "kernels/dispatch.hpp"
#include "layer_buffers.hpp"
#include "model_config.hpp"
#include "routing.hpp"
#include "swiglu_expert.hpp"

#include <plateau/access.hpp>
#include <plateau/all_to_all/capped_all_to_all.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>
#include <plateau/working_set.hpp>
#include <plateau/workspace.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace moe {

namespace pl = plateau;

template <class Backend, class Communicator, class T> class capped_dispatch {
  using stream = typename Backend::stream;
  using operation_type = pl::capped_all_to_all<Backend, Communicator, T>;
  using shape_type = typename operation_type::shape;
  using expert_type = swiglu_expert<Backend, T>;

 public:
  // What outlives a layer's forward.
  using plan_type = pl::dispatch_plan;
  static const routing_counts& counts_of(const plan_type& p) { return p.rows; }

  // Everything is the operator's own: it wants nothing among the layer's intermediates.
  struct layer_part {
    template <class Source> layer_part(Source&, const model_config&, const batch_limits&) {}
    static std::size_t scratch_bytes(const model_config&, const batch_limits&) { return 0; }
  };

  // What it needs of a workspace beside the layer's own part. Plans are made in the layer's forward.
  static pl::reservation reserve_for(const model_config& c, const rank_grid& g, const batch_limits& b,
                                     layer_pass pass) {
    const auto set = [&](pl::dispatch_pass p) {
      return operation_type::working_set_of(shape_of(c, b), g.expert_parallel, expert_of(c), p);
    };
    if (pass == layer_pass::backward && !runs_again(c)) return pl::reserve(set(pl::dispatch_pass::backward));
    if (pass == layer_pass::backward)
      return pl::overlay(set(pl::dispatch_pass::forward), set(pl::dispatch_pass::backward));
    return pl::overlay(set(pl::dispatch_pass::plan), set(pl::dispatch_pass::forward));
  }
  // The most that it holds, whatever the routing.
  static std::optional<pl::reservation> promised(const model_config& c, const rank_grid& g,
                                                 const batch_limits& b) {
    return operation_type::reserve_for(shape_of(c, b), g.expert_parallel, expert_of(c));
  }

  // What it holds all the time: nothing, the workspace lends it all.
  static pl::reservation held_by(const model_config&) { return {}; }

  // `group` is the expert group; its exchanges run on a stream of the operator's own beside those given
  // below. `space` must have room whenever a function is called. Not a word passes between ranks: whoever
  // makes the model asks all of them.
  capped_dispatch(Backend& backend, Communicator& group, pl::workspace<Backend>& space, const model_config& c,
                  const rank_grid&, const batch_limits& b)
      : backend_(&backend), rank_(group.rank()),
        expert_(backend, c.hidden, c.intermediate, most_groups(shape_of(c, b), group.size())),
        operation_(backend, group, shape_of(c, b), space, expert_, pl::voting::left_to_caller) {
    const auto local = static_cast<std::size_t>(c.experts / group.size());
    weights_.reserve(3 * local);
    gradients_.reserve(3 * local);
  }

  // The layer's host round trip: the counts of the whole expert group, and who computes what. ids (n *
  // top_k); adds the routes of each expert to load (experts).
  void plan(stream& s, pl::view<std::int32_t> ids, const layer_part&, pl::scratch_view, pl::view<float> load,
            plan_type& into) {
    operation_.plan(s, ids, into);
    const auto own = into.rows_of_rank(rank_);
    for (index_t first = 0; first < load.n; first += add_counts::most) {
      const index_t n = std::min(add_counts::most, load.n - first);
      add_counts some;
      for (index_t e = 0; e < n; ++e)
        some.counts[e] = static_cast<float>(own[static_cast<std::size_t>(first + e)]);
      backend_->launch(s, pl::elements{n}, some, pl::inout(load.sub(first, n)));
    }
  }

  // out(token) += sum over its routes of gate * expert(rows(token)). rows (n, hidden), gates (n, top_k), out
  // (n, hidden).
  void forward(stream& s, const plan_type& p, pl::view<std::int32_t> ids, const layer_part&, pl::tile<T> rows,
               pl::tile<float> gates, const expert_tensors<T>& weights, pl::tile<T> out) {
    list(weights, weights_);
    operation_.run(s, p, ids, pl::row_parts<T>(rows), gates, out, expert_, lists(weights_));
    const pl::dispatch_statistics did = operation_.statistics();
    ++summary_.calls;
    summary_.rounds += did.rounds;
    summary_.most_rounds = std::max<std::int64_t>(summary_.most_rounds, did.rounds);
    summary_.moved += did.moved_experts;
    summary_.wire_bytes += did.wire_bytes;
    summary_.native_skew = std::max(summary_.native_skew, did.native_skew());
    summary_.skew = std::max(summary_.skew, did.skew());
  }

  // As forward, for a backward that needs it: a plan outlives its forward.
  void forward_again(stream& s, const plan_type& p, pl::view<std::int32_t> ids, const layer_part& part,
                     pl::scratch_view, pl::tile<T> rows, pl::tile<float> gates,
                     const expert_tensors<T>& weights, pl::tile<T> out) {
    forward(s, p, ids, part, rows, gates, weights, out);
  }

  // From dout (n, hidden) to drows (n, hidden), written, dgates (n, top_k), written, and the weights'
  // gradients, added. Nothing reaches the host.
  void backward(stream& s, const plan_type& p, pl::view<std::int32_t> ids, const layer_part&,
                pl::scratch_view, pl::tile<T> rows, pl::tile<float> gates, const expert_tensors<T>& weights,
                pl::tile<T> dout, pl::tile<T> drows, pl::tile<float> dgates,
                const expert_tensors<float>& gradients) {
    list(weights, weights_);
    list(gradients, gradients_);
    operation_.run_backward(s, p, ids, pl::row_parts<T>(rows), gates, dout, drows, dgates, expert_,
                            lists(weights_), lists(gradients_));
    summary_.wire_bytes += operation_.statistics().wire_bytes;
  }

  // Of all calls so far.
  std::optional<dispatch_summary> summary() const { return summary_; }

 private:
  static shape_type shape_of(const model_config& c, const batch_limits& b) {
    shape_type s;
    s.tokens = b.tokens();
    s.experts = c.experts;
    s.top_k = c.top_k;
    s.widths = {c.hidden};
    s.send_cap_rows = c.dispatch.send_cap_rows;
    s.receive_cap_rows = c.dispatch.receive_cap_rows;
    s.slots = c.dispatch.slots;
    s.placement.policy = policy_of(c.dispatch.placement);
    // As it was published, a placement knows no bound.
    s.placement.foreign_experts =
        c.dispatch.placement == expert_placement::published ? c.experts : c.dispatch.foreign_experts;
    return s;
  }
  // Whether backward computes layers' outputs once more.
  static bool runs_again(const model_config& c) {
    return c.flatten.checkpoint && c.checkpoint.keep_every > 1;
  }
  static pl::placement_policy policy_of(expert_placement p) {
    return p == expert_placement::native         ? pl::placement_policy::native
           : p == expert_placement::least_loaded ? pl::placement_policy::bounded_least_loaded
                                                 : pl::placement_policy::published_least_loaded;
  }
  static expert_type expert_of(const model_config& c) { return expert_type(c.hidden, c.intermediate); }
  static index_t most_groups(const shape_type& s, int ranks) {
    return pl::expert_homes{s.experts, ranks}.most() + s.foreign_slots(ranks);
  }

  // The matrices expert by expert.
  template <class U, class List> static void list(const expert_tensors<U>& of, List& to) {
    to.clear();
    for (std::size_t e = 0; e < of.gate.size(); ++e)
      for (const pl::tile<U>& each : {of.gate[e], of.up[e], of.down[e]}) to.push_back(each);
  }
  template <class Tile> static std::span<const Tile> lists(const std::vector<Tile>& v) { return v; }

  Backend* backend_;
  int rank_;
  expert_type expert_;
  std::vector<pl::tile<const T>> weights_;
  std::vector<pl::tile<float>> gradients_;
  dispatch_summary summary_;
  operation_type operation_;
};

} // namespace moe
