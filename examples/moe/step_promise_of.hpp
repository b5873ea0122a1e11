// SPDX-License-Identifier: Apache-2.0
//
// The promise of a step from its numbers alone: each part of the model says what it allocates, by the same
// expressions that it allocates by. No backend, no communicator and no memory exists yet.
#pragma once

#include "model.hpp"
#include "peak_promise.hpp"
#include "state_file.hpp"
#include "step_promise.hpp"
#include "trainer.hpp"

#include <plateau/tag.hpp>
#include <plateau/working_set.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace moe {

// What a run has beside its steps.
struct step_extras {
  bool forced_routing = false;
  state_moves moves{false, false}; // to load and to save states
};

// What rank `rank` holds at most. Exact, as the meters count it, where every peak is flattened and every part
// of the step has work to do. Throws config_error for a shape that cannot be.
template <class Backend, class Communicator, class T, class Peaks>
step_promise step_promise_of(const model_config& c, const rank_grid& g, const training_settings& s, int rank,
                             const step_extras& with = {}) {
  using pl::tag;
  using model_type = model<Backend, Communicator, T, Peaks>;
  using dispatch_type = typename Peaks::template dispatch<Backend, Communicator, T>;
  using loss_type = typename Peaks::template loss<Backend, Communicator, T>;
  using boundaries_type = typename Peaks::template boundaries<Backend, T>;
  using gradients_type = typename Peaks::template gradients<Backend>;
  using optimizer_type = typename Peaks::template optimizer<Backend, Communicator, T>;
  using attention_type = typename Peaks::template attention<Backend, Communicator, T>;
  const parameter_layout layout(c, g, rank);
  const batch_limits b = s.limits(g.ranks);

  step_promise p;
  p[tag::parameters].kept = {tensor_set<Backend, T>::bytes_of(layout), 0};
  p[tag::gradients].kept = gradients_type::held_by(layout, c);
  p[tag::activations].kept = model_type::held_by(c, g, b);
  p[tag::dispatch].kept = dispatch_type::held_by(c);
  p[tag::checkpoint].kept = boundaries_type::held_by(c, b);
  p[tag::optimizer].kept = optimizer_type::held_by(layout, c, g, rank);
  p[tag::other].kept = pl::together(trainer<Backend, Communicator, T, Peaks>::held_by(),
                                    moved_through(layout, g, rank, optimizer_type::flattens(c), with.moves));
  if (with.forced_routing)
    p[tag::other].kept.pinned_bytes += static_cast<std::size_t>(b.tokens() * c.top_k) * sizeof(std::int32_t);

  const auto flattened = [](bool has_promise, tag_promise& of) { of.promised = has_promise; };
  flattened(dispatch_type::promised(c, g, b).has_value(), p[tag::dispatch]);
  flattened(loss_type::promised(c, g, b).has_value(), p[tag::vocabulary]);
  flattened(boundaries_type::promised(c, g, b).has_value(), p[tag::checkpoint]);
  flattened(optimizer_type::flattens(c), p[tag::optimizer]);
  p[tag::gradients].promised = p[tag::optimizer].promised;
  p[tag::dispatch].bounded = p[tag::dispatch].promised;

  // What the parts of the step are lent, and what a loss allocates beside that.
  const pl::reservation none;
  const auto if_promised = [&](tag t, pl::reservation r) { return p[t].promised ? r : none; };
  const pl::reservation loss = loss_type::reserve_for(c, g, b), logits = loss_type::grows_to(c, g, b),
                        update = optimizer_type::reserve_for(layout, c, g);
  const auto layer = [&](layer_pass pass) {
    return pl::together(pl::reserve(model_type::buffers::working_set(c, b, pass)),
                        attention_type::reserve_for(c, b));
  };
  const auto beside = [&](layer_pass pass, pl::reservation rows) {
    return model_type::layer_need(c, b, pass, rows);
  };
  const auto rows = [&](layer_pass pass) { return dispatch_type::reserve_for(c, g, b, pass); };
  const auto forward = layer_pass::forward, backward = layer_pass::backward;
  p.phases = {{{"forward", beside(forward, rows(forward))},
               {"loss", pl::together(loss, logits)},
               {"backward", beside(backward, rows(backward))},
               {"update", update}}};
  const pl::reservation lent = model_type::workspace_of(layout, c, g, b);
  p[tag::activations].most = pl::overlay(layer(forward), layer(backward));
  p[tag::dispatch].most = pl::overlay(rows(forward), rows(backward));
  p[tag::vocabulary].most = pl::together(loss, logits);
  p[tag::optimizer].most = update;
  p[tag::workspace].most = lent;

  // What a loss allocates comes on top of the workspace, whoever made that as large as it is.
  const auto widest =
      std::max_element(p.phases.begin(), p.phases.end(), [](const phase_need& x, const phase_need& y) {
        return x.need.device_bytes < y.need.device_bytes;
      });
  p.peak_phase = logits.device_bytes != 0 ? "loss" : widest->name;
  p.total = pl::together(lent, logits);
  p.least = pl::overlay(beside(forward, if_promised(tag::dispatch, rows(forward))),
                        beside(backward, if_promised(tag::dispatch, rows(backward))),
                        if_promised(tag::vocabulary, loss), if_promised(tag::optimizer, update));
  for (const tag t : pl::all_tags) {
    p[t].most = pl::together(p[t].most, p[t].kept);
    p.total = pl::together(p.total, p[t].kept);
    p.least = pl::together(p.least, if_promised(t, p[t].kept));
  }
  return p;
}

// What each tag would hold with every peak flattened: what an unflattened one is measured against.
template <class Backend, class Communicator, class T, class Peaks>
step_promise flattened_promise_of(model_config c, const rank_grid& g, const training_settings& s, int rank,
                                  const step_extras& with = {}) {
  c.flatten = {true, true, true, true};
  return step_promise_of<Backend, Communicator, T, Peaks>(c, g, s, rank, with);
}

} // namespace moe
