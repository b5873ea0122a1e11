// SPDX-License-Identifier: Apache-2.0
//
// Cross-entropy without logits: Plateau's linear cross-entropy. Every rank multiplies with its own rows of
// the head; activations or those rows go around the ring of all ranks, and of the logits a tile exists at a
// time. The peak does not depend on the vocabulary, and on the number of tokens only by 16 bytes of each (and
// by the fp32 gradient of its row in a 16-bit model whose weights rotate). All of it is lent by the
// workspace.
#pragma once

#include "model_config.hpp"

#include <plateau/access.hpp>
#include <plateau/kernels.hpp>
#include <plateau/ring/linear_cross_entropy.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>
#include <plateau/working_set.hpp>
#include <plateau/workspace.hpp>

#include <cstdint>
#include <optional>
#include <type_traits>

namespace moe {

namespace pl = plateau;

template <class Backend, class Communicator, class T> class ring_loss {
  using stream = typename Backend::stream;
  using operation_type = pl::linear_cross_entropy<Backend, Communicator, T>;
  using shape_type = typename operation_type::shape;

 public:
  static pl::reservation reserve_for(const model_config& c, const rank_grid& g, const batch_limits& b) {
    return pl::together(operation_type::working_set(shape_of(c, b), g.ranks), own_set(b));
  }
  // The most that it holds, whatever the input.
  static std::optional<pl::reservation> promised(const model_config& c, const rank_grid& g,
                                                 const batch_limits& b) {
    return reserve_for(c, g, b);
  }

  // A loss allocates nothing beside that.
  static pl::reservation grows_to(const model_config&, const rank_grid&, const batch_limits&) { return {}; }

  // `world`: all ranks, each of which owns a part of the head; its exchanges run on a stream of the
  // operator's own. `space` must have room whenever a loss is computed. Not a word passes between ranks:
  // whoever makes the model asks all of them.
  ring_loss(Backend& backend, Communicator& world, pl::workspace<Backend>& space, const model_config& c,
            const rank_grid&, const batch_limits& b)
      : backend_(&backend), space_(&space), set_(own_set(b)), most_tokens_(b.tokens()),
        operation_(backend, world, shape_of(c, b), space, pl::voting::left_to_caller) {}

  // losses (tokens), for x (tokens, hidden), targets (tokens) and this rank's rows of the head. Collective;
  // one host exchange, of the numbers of tokens.
  void forward(stream& s, pl::tile<T> x, pl::view<std::int32_t> targets, pl::tile<T> weight,
               pl::view<float> losses) {
    auto open = space_->open(set_);
    run(s, open, x, targets, weight, losses);
  }

  // The same, and the gradients of gradient_scale x the sum of the losses: dx (tokens, hidden), written, and
  // dweight (this rank's rows, hidden), added, over the tokens of all ranks.
  void forward_backward(stream& s, pl::tile<T> x, pl::view<std::int32_t> targets, pl::tile<T> weight,
                        float gradient_scale, pl::view<float> losses, pl::tile<T> dx,
                        pl::tile<float> dweight) {
    auto open = space_->open(set_);
    const auto kept = run(s, open, x, targets, weight, losses);
    backend_->launch(s, pl::elements{1}, pl::fill<float>{gradient_scale}, pl::out(kept.upstream));
    operation_.backward(s, {x, weight, targets}, saved_, kept.upstream, {.dx = dx, .dweight = dweight});
  }

 private:
  struct memory {
    pl::view<pl::token_state> states;
    pl::view<double> sums;
    pl::view<float> upstream;
  };

  // What lies between forward and backward.
  static pl::working_set own_set(const batch_limits& b) {
    return pl::working_set(pl::tag::vocabulary)
        .device<pl::token_state>("states of tokens", b.tokens())
        .device<double>("sums of losses", 2)
        .device<float>("upstream gradient", 1);
  }
  template <class Phase>
  memory run(stream& s, Phase& open, pl::tile<T> x, pl::view<std::int32_t> targets, pl::tile<T> weight,
             pl::view<float> losses) {
    memory m;
    m.states = open.template device<pl::token_state>(most_tokens_);
    m.sums = open.template device<double>(2);
    m.upstream = open.template device<float>(1);
    saved_.rows = m.states;
    saved_.sums = m.sums;
    operation_.forward(s, {x, weight, targets}, saved_, {.losses = losses});
    return m;
  }

  static shape_type shape_of(const model_config& c, const batch_limits& b) {
    shape_type s;
    s.tokens = b.tokens();
    s.hidden = c.hidden;
    s.vocabulary = c.vocabulary;
    s.tile.tokens = c.loss.tile_tokens;
    s.tile.vocabulary = c.loss.tile_vocabulary;
    s.hop_rows = c.loss.hop_rows;
    s.rotate = c.loss.rotate;
    // The model has no fp32 gradient of x; an fp32 one is summed in place.
    s.input_gradient_accumulator = !std::is_same_v<T, float>;
    s.options.reduction = pl::reduction::none;
    return s;
  }

  Backend* backend_;
  pl::workspace<Backend>* space_;
  pl::working_set set_;
  index_t most_tokens_;
  pl::cross_entropy_saved saved_;
  operation_type operation_;
};

} // namespace moe
