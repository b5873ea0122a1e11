// SPDX-License-Identifier: Apache-2.0
//
// The router, in chunks of tokens: fp32 logits, softmax over all experts, top-k, gates renormalised over the
// k. Only one chunk of logits exists, so that the router's intermediates do not grow with the sequence; the
// gradient is exact. The load-balancing loss is that of Mixtral's published implementation: experts x sum
// over e of f_e P_e, with f_e the routes to e and P_e the mean probability of e, both over all layers and
// tokens.
#pragma once

#include "kernels/dispatch.hpp"
#include "kernels/router.hpp"
#include "layer_buffers.hpp"
#include "placed_tokens.hpp"
#include "routing_scenario.hpp"

#include <plateau/access.hpp>
#include <plateau/column_sum.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <algorithm>

namespace moe {

// Fills ids (n, top_k) of a forced routing; runs on the host, in stream order.
struct force_ids {
  const forced_routing* routing;
  index_t layer;
  placed_tokens tokens; // the rank's micro-batch

  void operator()(pl::tile<std::int32_t, pl::host_space> ids) const {
    index_t t = 0;
    tokens.each_range([&](const pl::token_range& range) {
      for (index_t i = 0; i < range.tokens; ++i, ++t)
        for (index_t k = 0; k < ids.cols; ++k)
          ids(t, k) = static_cast<std::int32_t>(routing->scenario().expert(layer, range, i, k));
    });
  }
};

template <class Backend, class T> class router {
  using stream = typename Backend::stream;

 public:
  router(Backend& backend, const model_config& c, const batch_limits& b, const forced_routing* forced)
      : backend_(&backend), experts_(c.experts), top_k_(c.top_k), forced_(forced) {
    if (forced_ != nullptr)
      forced_ids_ =
          pl::pinned_buffer<std::int32_t, Backend>(backend.pinned(), b.tokens() * top_k_, pl::tag::other);
  }

  // ids and gates of the buffers from rows (n, hidden); adds the rows' probabilities to probability_sum
  // (experts).
  void forward(stream& s, const layer_buffers<Backend, T>& buf, pl::tile<T> rows, pl::tile<T> weight,
               index_t layer, const placed_tokens& tokens, pl::view<float> probability_sum) {
    Backend& be = *backend_;
    const auto ids = pl::as_matrix(buf.ids, rows.rows, top_k_);
    const auto gates = pl::as_matrix(buf.gates, rows.rows, top_k_);
    if (forced_ != nullptr) {
      const auto pinned = forced_ids_.matrix(rows.rows, top_k_);
      be.host_task(s, force_ids{forced_, layer, tokens}, pl::out(pinned));
      be.copy(s, pl::in(pinned), pl::out(ids));
    }
    for_each_chunk(rows.rows, [&](index_t first, index_t n) {
      const auto logits = pl::as_matrix(buf.logits, n, experts_);
      const auto probabilities = pl::as_matrix(buf.router_probabilities, n, experts_);
      be.gemm(s, pl::transpose::no, pl::transpose::yes, 1.0F, pl::in(rows.row_block(first, n)),
              pl::in(weight), 0.0F, pl::out(logits), buf.scratch);
      if (forced_ != nullptr)
        be.launch(s, pl::rows{n}, gates_of_forced{}, pl::in(logits), pl::out(probabilities),
                  pl::in(ids.row_block(first, n)), pl::out(gates.row_block(first, n)));
      else
        be.launch(s, pl::rows{n}, route{static_cast<int>(top_k_)}, pl::in(logits), pl::out(probabilities),
                  pl::out(ids.row_block(first, n)), pl::out(gates.row_block(first, n)));
      pl::column_sum(be, s, pl::in(probabilities), pl::inout(probability_sum), buf.scratch);
    });
  }

  // From dgates of the buffers, and the balance loss, to drows (n, hidden) and dweight (experts, hidden),
  // both added. Comes after forward on the same rows. Without a balance loss the gates say everything; with
  // one the logits are needed, and are computed again if the rows were more than one chunk.
  void backward(stream& s, const layer_buffers<Backend, T>& buf, pl::tile<T> rows, pl::tile<T> weight,
                pl::view<float> load, float balance_scale, pl::tile<T> drows, pl::tile<float> dweight) {
    Backend& be = *backend_;
    const bool logits_again = balance_scale != 0 && rows.rows > router_chunk;
    const auto ids = pl::as_matrix(buf.ids, rows.rows, top_k_);
    const auto gates = pl::as_matrix(buf.gates, rows.rows, top_k_),
               dgates = pl::as_matrix(buf.dgates, rows.rows, top_k_);
    for_each_chunk(rows.rows, [&](index_t first, index_t n) {
      const auto logits = pl::as_matrix(buf.logits, n, experts_);
      const auto dlogits = pl::as_matrix(buf.dlogits, n, experts_);
      const auto chunk = rows.row_block(first, n);
      if (logits_again)
        be.gemm(s, pl::transpose::no, pl::transpose::yes, 1.0F, pl::in(chunk), pl::in(weight), 0.0F,
                pl::out(logits), buf.scratch);
      be.launch(s, pl::rows{n}, route_backward{balance_scale}, pl::in(logits),
                pl::in(ids.row_block(first, n)), pl::in(gates.row_block(first, n)),
                pl::in(dgates.row_block(first, n)), pl::in(load), pl::out(dlogits));
      be.gemm(s, pl::transpose::no, pl::transpose::no, 1.0F, pl::in(dlogits), pl::in(weight), 1.0F,
              pl::inout(drows.row_block(first, n)), buf.scratch);
      be.gemm(s, pl::transpose::yes, pl::transpose::no, 1.0F, pl::in(dlogits), pl::in(chunk), 1.0F,
              pl::inout(dweight), buf.scratch);
    });
  }

 private:
  template <class F> static void for_each_chunk(index_t n, F f) {
    for (index_t first = 0; first < n; first += router_chunk) f(first, std::min(router_chunk, n - first));
  }

  Backend* backend_;
  index_t experts_, top_k_;
  const forced_routing* forced_;
  pl::pinned_buffer<std::int32_t, Backend> forced_ids_;
};

} // namespace moe
