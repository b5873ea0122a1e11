// SPDX-License-Identifier: Apache-2.0
//
// Cross-entropy over dense logits, as everyone has it: tokens x vocabulary in fp32 exist at once, so that the
// peak grows with both. This is the baseline. The logits are allocated for the loss and freed after it, so
// the host waits for their last use.
#pragma once

#include "kernels/cross_entropy.hpp"
#include "model_config.hpp"
#include "scratch_need.hpp"

#include <plateau/access.hpp>
#include <plateau/drain.hpp>
#include <plateau/gemm.hpp>
#include <plateau/grouped.hpp>
#include <plateau/resource.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>
#include <plateau/working_set.hpp>
#include <plateau/workspace.hpp>

#include <cstdint>
#include <optional>
#include <type_traits>

namespace moe {

namespace pl = plateau;

template <class Backend, class Communicator, class T> class dense_loss {
  using stream = typename Backend::stream;

 public:
  // The part of the loss's memory that does not depend on the number of tokens that come.
  static pl::working_set working_set(const model_config& c, const rank_grid&, const batch_limits& b) {
    return pl::working_set(pl::tag::vocabulary)
        .device<unsigned char>("scratch", static_cast<index_t>(scratch_bytes(c, b)));
  }

  static pl::reservation reserve_for(const model_config& c, const rank_grid& g, const batch_limits& b) {
    return pl::reserve(working_set(c, g, b));
  }
  // Nothing is promised: it grows with the tokens.
  static std::optional<pl::reservation> promised(const model_config&, const rank_grid&, const batch_limits&) {
    return std::nullopt;
  }

  // What a loss allocates beside that, for as many tokens as there may be: logits, and in a 16-bit model
  // their gradient.
  static pl::reservation grows_to(const model_config& c, const rank_grid&, const batch_limits& b) {
    return {static_cast<std::size_t>(b.tokens() * c.vocabulary) *
                (sizeof(float) + (in_place ? 0 : sizeof(T))),
            0};
  }

  // Dense logits need no other rank. `space` must have room for the working set whenever the loss is
  // computed.
  dense_loss(Backend& backend, Communicator&, pl::workspace<Backend>& space, const model_config& c,
             const rank_grid& g, const batch_limits& b)
      : backend_(&backend), space_(&space), set_(working_set(c, g, b)), scratch_bytes_(scratch_bytes(c, b)) {}

  // losses (tokens), for x (tokens, hidden), targets (tokens) and the head's weight (vocabulary, hidden).
  void forward(stream& s, pl::tile<T> x, pl::view<std::int32_t> targets, pl::tile<T> weight,
               pl::view<float> losses) {
    auto open = space_->open(set_);
    const pl::scratch_view scratch =
        open.template device<unsigned char>(static_cast<index_t>(scratch_bytes_));
    pl::device_buffer<float, Backend> memory(backend_->device(), x.rows * weight.rows, pl::tag::vocabulary);
    const pl::drain<Backend> before_it_goes(*backend_, s);
    const auto logits = memory.matrix(x.rows, weight.rows);
    project(s, x, weight, logits, scratch);
    backend_->launch(s, pl::rows{x.rows}, cross_entropy_loss{}, pl::in(logits), pl::in(targets),
                     pl::out(losses));
  }

  // The same, and the gradients of gradient_scale x the sum of the losses: dx (tokens, hidden), written, and
  // dweight (vocabulary, hidden), added.
  void forward_backward(stream& s, pl::tile<T> x, pl::view<std::int32_t> targets, pl::tile<T> weight,
                        float gradient_scale, pl::view<float> losses, pl::tile<T> dx,
                        pl::tile<float> dweight) {
    Backend& be = *backend_;
    auto open = space_->open(set_);
    const pl::scratch_view scratch =
        open.template device<unsigned char>(static_cast<index_t>(scratch_bytes_));
    pl::device_buffer<float, Backend> memory(be.device(), x.rows * weight.rows, pl::tag::vocabulary);
    pl::device_buffer<T, Backend> narrow_memory(be.device(), in_place ? 0 : x.rows * weight.rows,
                                                pl::tag::vocabulary);
    const pl::drain<Backend> before_they_go(be, s);
    const auto logits = memory.matrix(x.rows, weight.rows);
    project(s, x, weight, logits, scratch);
    const auto dlogits = [&] {
      if constexpr (in_place)
        return logits;
      else
        return narrow_memory.matrix(x.rows, weight.rows);
    }();
    be.launch(s, pl::rows{x.rows}, cross_entropy{gradient_scale}, pl::inout(logits), pl::in(targets),
              pl::out(dlogits), pl::out(losses));
    be.gemm(s, pl::transpose::no, pl::transpose::no, 1.0F, pl::in(dlogits), pl::in(weight), 0.0F, pl::out(dx),
            scratch);
    be.gemm(s, pl::transpose::yes, pl::transpose::no, 1.0F, pl::in(dlogits), pl::in(x), 1.0F,
            pl::inout(dweight), scratch);
  }

 private:
  static constexpr bool in_place = std::is_same_v<T, float>; // the gradient takes the logits' place

  void project(stream& s, pl::tile<T> x, pl::tile<T> weight, pl::tile<float> logits,
               pl::scratch_view scratch) {
    backend_->gemm(s, pl::transpose::no, pl::transpose::yes, 1.0F, pl::in(x), pl::in(weight), 0.0F,
                   pl::out(logits), scratch);
  }
  static std::size_t scratch_bytes(const model_config& c, const batch_limits& b) {
    return scratch_need<Backend>().template linear<T>(b.tokens(), c.hidden, c.vocabulary).bytes();
  }

  Backend* backend_;
  pl::workspace<Backend>* space_;
  pl::working_set set_;
  std::size_t scratch_bytes_;
};

} // namespace moe
