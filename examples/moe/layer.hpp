// SPDX-License-Identifier: Apache-2.0
//
// One transformer layer: attention and mixture of experts, each behind a norm and with a residual. Forward
// keeps nothing but its input, which belongs to the caller; backward computes the forward again and then the
// gradients. The layer is a template over its attention and its dispatch, so that others take their places
// without a change here.
#pragma once

#include "kernels/norm.hpp"
#include "layer_buffers.hpp"
#include "parameters.hpp"
#include "placed_tokens.hpp"
#include "router.hpp"
#include "routing.hpp"

#include <plateau/access.hpp>
#include <plateau/column_sum.hpp>
#include <plateau/kernels.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <cstdint>

namespace moe {

// The rank's part of a micro-batch.
struct batch_part {
  index_t sequences = 0;
  index_t context = 0;  // tokens of each that this rank has
  placed_tokens placed; // where its tokens are in the batch of the step

  index_t tokens() const { return sequences * context; }
};

// Sums over layers and tokens for the load-balancing loss; (experts) each.
struct balance_sums {
  pl::view<float> probability, load;
};

template <class Backend, class Attention, class Dispatch, class T> class layer {
  using stream = typename Backend::stream;
  using plan_type = typename Dispatch::plan_type;

 public:
  using buffers = layer_memory<Backend, T, typename Dispatch::layer_part>;

  // Attention and dispatch must outlive it.
  layer(Backend& backend, Attention& attention, Dispatch& dispatch, const model_config& c,
        const batch_limits& b, const forced_routing* forced)
      : backend_(&backend), attention_(&attention), dispatch_(&dispatch), config_(c),
        router_(backend, c, b, forced) {}

  // out = layer(x); x, out (tokens, hidden), not the same. `plan` becomes what backward needs. `sums` are
  // added to.
  void forward(stream& s, const buffers& buf, const batch_part& part, index_t number,
               const layer_tensors<T>& w, pl::tile<T> x, pl::tile<T> out, const balance_sums& sums,
               plan_type& plan) {
    up_to_routing(s, buf, part, number, w, x, sums.probability);
    dispatch_->plan(s, ids(buf, part), buf.dispatch, buf.scratch, sums.load, plan);
    backend_->copy(s, pl::in(rows_of(buf.residual, part)), pl::out(out));
    dispatch_->forward(s, plan, ids(buf, part), buf.dispatch, rows_of(buf.post_normed, part),
                       gates(buf.gates, part), experts<T>(w), out);
  }

  // out = layer(x) once more, for a backward that needs it: with forward's plan, so that nothing reaches the
  // host. `sink` as in backward.
  void forward_again(stream& s, const buffers& buf, const batch_part& part, index_t number,
                     const layer_tensors<T>& w, pl::tile<T> x, pl::tile<T> out, const plan_type& plan,
                     pl::view<float> sink) {
    up_to_routing(s, buf, part, number, w, x, sink);
    backend_->copy(s, pl::in(rows_of(buf.residual, part)), pl::out(out));
    dispatch_->forward_again(s, plan, ids(buf, part), buf.dispatch, buf.scratch,
                             rows_of(buf.post_normed, part), gates(buf.gates, part), experts<T>(w), out);
  }

  // dx holds the gradient of the output and becomes that of x. Weight gradients are added. `load` and
  // balance_scale: see route_backward; `sink` (experts) takes what forward would add to the probability sums.
  void backward(stream& s, const buffers& buf, const batch_part& part, index_t number,
                const layer_tensors<T>& w, const layer_tensors<float>& g, const plan_type& plan,
                pl::tile<T> x, pl::tile<T> dx, pl::view<float> load, float balance_scale,
                pl::view<float> sink) {
    const index_t n = part.tokens();
    up_to_routing(s, buf, part, number, w, x, sink);
    const auto post_normed = rows_of(buf.post_normed, part), dnormed = rows_of(buf.dnormed, part);
    dispatch_->backward(s, plan, ids(buf, part), buf.dispatch, buf.scratch, post_normed,
                        gates(buf.gates, part), experts<T>(w), dx, dnormed, gates(buf.dgates, part),
                        experts<float>(g));
    router_.backward(s, buf, post_normed, w.router, load, balance_scale, dnormed, g.router);
    norm_backward(s, buf, n, rows_of(buf.residual, part), w.post_norm, dnormed, dx, g.post_norm);

    const auto attended = pl::as_matrix(buf.attended, n, w.output.cols);
    const auto dattended = pl::as_matrix(buf.flat_query, n, w.output.cols);
    product(s, buf, dx, w.output, dattended, 0.0F);
    weight_gradient(s, buf, dx, attended, g.output);
    attention_->backward(s, buf, part.sequences, part.context);
    const auto normed = rows_of(buf.normed, part);
    const auto through = [&](pl::view<T> flat, pl::tile<T> weight, pl::tile<float> gradient, float beta) {
      const auto d = pl::as_matrix(flat, n, weight.rows);
      product(s, buf, d, weight, dnormed, beta);
      weight_gradient(s, buf, d, normed, gradient);
    };
    through(buf.flat_query, w.query, g.query, 0); // the first writes, the others add
    through(buf.flat_key, w.key, g.key, 1);
    through(buf.flat_value, w.value, g.value, 1);
    norm_backward(s, buf, n, x, w.input_norm, dnormed, dx, g.input_norm);
  }

 private:
  // Everything before the experts: residual, post_normed, ids and gates.
  void up_to_routing(stream& s, const buffers& buf, const batch_part& part, index_t number,
                     const layer_tensors<T>& w, pl::tile<T> x, pl::view<float> probability_sum) {
    Backend& be = *backend_;
    const index_t n = part.tokens();
    const auto normed = rows_of(buf.normed, part), residual = rows_of(buf.residual, part);
    const auto post_normed = rows_of(buf.post_normed, part);
    be.launch(s, pl::rows{n}, rms_norm{config_.norm_epsilon}, pl::in(x), pl::in(w.input_norm),
              pl::out(normed));
    const auto project = [&](pl::tile<T> weight, pl::view<T> flat) {
      be.gemm(s, pl::transpose::no, pl::transpose::yes, 1.0F, pl::in(normed), pl::in(weight), 0.0F,
              pl::out(pl::as_matrix(flat, n, weight.rows)), buf.scratch);
    };
    project(w.query, buf.flat_query);
    project(w.key, buf.flat_key);
    project(w.value, buf.flat_value);
    attention_->forward(s, buf, part.sequences, part.context);
    be.copy(s, pl::in(x), pl::out(residual));
    be.gemm(s, pl::transpose::no, pl::transpose::yes, 1.0F,
            pl::in(pl::as_matrix(buf.attended, n, w.output.cols)), pl::in(w.output), 1.0F,
            pl::inout(residual), buf.scratch);
    be.launch(s, pl::rows{n}, rms_norm{config_.norm_epsilon}, pl::in(residual), pl::in(w.post_norm),
              pl::out(post_normed));
    router_.forward(s, buf, post_normed, w.router, number, part.placed, probability_sum);
  }

  // to (n, in) = d (n, out) weight (out, in) + beta to
  void product(stream& s, const buffers& buf, pl::tile<T> d, pl::tile<T> weight, pl::tile<T> to, float beta) {
    backend_->gemm(s, pl::transpose::no, pl::transpose::no, 1.0F, pl::in(d), pl::in(weight), beta,
                   pl::inout(to), buf.scratch);
  }
  // gradient (out, in) += d^T (out, n) x (n, in)
  void weight_gradient(stream& s, const buffers& buf, pl::tile<T> d, pl::tile<T> x,
                       pl::tile<float> gradient) {
    backend_->gemm(s, pl::transpose::yes, pl::transpose::no, 1.0F, pl::in(d), pl::in(x), 1.0F,
                   pl::inout(gradient), buf.scratch);
  }
  void norm_backward(stream& s, const buffers& buf, index_t n, pl::tile<T> x, pl::view<T> gain,
                     pl::tile<T> dy, pl::tile<T> dx, pl::view<float> dgain) {
    const auto terms = pl::as_matrix(buf.gain_terms, n, config_.hidden);
    backend_->launch(s, pl::rows{n}, rms_norm_backward{config_.norm_epsilon}, pl::in(x), pl::in(gain),
                     pl::in(dy), pl::inout(dx), pl::out(terms));
    pl::column_sum(*backend_, s, pl::in(terms), pl::inout(dgain), buf.scratch);
  }

  template <class U> pl::tile<U> rows_of(pl::view<U> memory, const batch_part& part) const {
    return pl::as_matrix(memory, part.tokens(), config_.hidden);
  }
  pl::tile<float> gates(pl::view<float> memory, const batch_part& part) const {
    return pl::as_matrix(memory, part.tokens(), config_.top_k);
  }
  pl::view<std::int32_t> ids(const buffers& buf, const batch_part& part) const {
    return buf.ids.sub(0, part.tokens() * config_.top_k);
  }
  template <class U> static expert_tensors<U> experts(const layer_tensors<U>& t) {
    return {t.gate, t.up, t.down};
  }

  Backend* backend_;
  Attention* attention_;
  Dispatch* dispatch_;
  model_config config_;
  router<Backend, T> router_;
};

} // namespace moe
