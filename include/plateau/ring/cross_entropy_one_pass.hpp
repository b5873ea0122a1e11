// SPDX-License-Identifier: Apache-2.0
//
// A linear cross-entropy on one rank whose gradients are made in forward: three products instead of four. The
// logits of a strip of tokens are kept until the whole vocabulary has been seen; then they become gradients,
// of the sum of the losses, in the caller's storage. Backward multiplies them by one number.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/kernels.hpp>
#include <plateau/ring/cross_entropy_arguments.hpp>
#include <plateau/ring/cross_entropy_rows.hpp>
#include <plateau/ring/cross_entropy_shape.hpp>
#include <plateau/ring/cross_entropy_step.hpp>
#include <plateau/ring/cross_entropy_steps.hpp>
#include <plateau/scalar.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <algorithm>
#include <string>
#include <type_traits>

namespace plateau::inline v0 {

// What the gradients of the sum are multiplied by: the upstream gradient over the divisor; 0 where no token
// counts, and the gradients are 0.
struct gradient_factor {
  loss_divisor by;

  PLATEAU_HD float of(view<const float> upstream, view<const double> sums) const {
    return by.empty(sums) ? 0.0f : static_cast<float>(static_cast<double>(upstream[0]) / by.of(sums));
  }
};
// Over rows: to = factor from, rounded once.
struct scaled_rows {
  gradient_factor factor;

  template <class Team, class T>
  PLATEAU_HD void operator()(Team& team, index_t row, view<const float> upstream, view<const double> sums,
                             tile<const float> from, tile<T> to) const {
    const float f = factor.of(upstream, sums);
    const float* source = from.row(row);
    T* target = to.row(row);
    team.for_each(from.cols, [=](index_t c) { target[c] = narrow<T>(f * source[c]); });
  }
};
// Over rows: to += factor from.
struct added_rows {
  gradient_factor factor;

  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t row, view<const float> upstream, view<const double> sums,
                             tile<const float> from, tile<float> to) const {
    const float f = factor.of(upstream, sums);
    const float* source = from.row(row);
    float* target = to.row(row);
    team.for_each(from.cols, [=](index_t c) { target[c] += f * source[c]; });
  }
};
// Over rows: multiplied where they are.
struct rescaled_rows {
  gradient_factor factor;

  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t row, view<const float> upstream, view<const double> sums,
                             tile<float> values) const {
    const float f = factor.of(upstream, sums);
    float* at = values.row(row);
    team.for_each(values.cols, [=](index_t c) { at[c] *= f; });
  }
};
// Over rows: nothing.
struct cleared_rows {
  template <class Team> PLATEAU_HD void operator()(Team& team, index_t row, tile<float> values) const {
    float* at = values.row(row);
    team.for_each(values.cols, [=](index_t c) { at[c] = 0.0f; });
  }
};

namespace detail {

template <class Backend, class T, class Id> struct cross_entropy_one_pass {
  using stream = typename Backend::stream;

  cross_entropy_forward<Backend, T, Id>& fold;
  cross_entropy_backward<Backend, T, Id>& back; // its gradients are those of `saved`
  view<float> strip;                            // (tokens of a strip) x vocabulary

  void run(stream& s) {
    const cross_entropy_plan<Backend, T>& plan = fold.plan;
    const ring_meeting<T> m{fold.in.x, fold.in.weight, fold.in.bias, 0};
    const auto& to = back.to;
    const auto sums = fold.wanted(0, m.x.rows);
    if (!plan.shape.frozen_weights && m.x.rows == 0)
      back.backend.launch(s, rows{to.dweight.rows}, cleared_rows{}, out(to.dweight));
    if (to.dbias.n != 0) back.backend.launch(s, elements{to.dbias.n}, fill<float>{}, out(to.dbias));
    for (index_t i = 0; i < m.x.rows; i += plan.shape.strip_rows) {
      const index_t n = std::min(plan.shape.strip_rows, m.x.rows - i);
      const view<std::int64_t> targets = fold.targets_of_tile(0).sub(0, n);
      fold.load_targets(s, i, n, targets);
      each_column(m, i, n, [&](const logit_tile& t, tile<float> logits) {
        fold.make_logits(s, m, t, logits);
        fold.fold(s, m, t, logits, targets, sums);
      });
      const view<token_gradient> tokens = back.tile_tokens[0].sub(0, n);
      back.load_gradients(s, i, tokens);
      each_column(m, i, n, [&](const logit_tile& t, tile<float> logits) {
        tile<T> d;
        if constexpr (std::is_same_v<T, float>)
          d = logits;
        else
          d = t.in(back.gradient_tiles);
        back.turn_into_gradients(s, m, t, logits, true, tokens, d);
        back.multiply(s, m, t, d, {to.wide_dx, to.dweight, to.dbias}, t.column == 0, i == 0);
      });
    }
  }

 private:
  // The tiles of a strip, each in one piece.
  template <class F> void each_column(const ring_meeting<T>& m, index_t i, index_t n, F f) {
    for (index_t j = 0, columns = 0; j < m.weight.rows; j += columns) {
      columns = fold.columns_at(m, j);
      f(logit_tile{i, j, n, columns, 0}, as_matrix(strip.sub(n * j, n * columns), n, columns));
    }
  }
};

// The gradients of `saved` times a number, into those that are wanted; where they are the same array, there.
template <class Backend, class T>
void scale_gradients(Backend& backend, typename Backend::stream& s, const cross_entropy_saved& keep,
                     index_t n, loss_divisor by, view<const float> upstream,
                     const cross_entropy_gradients<T>& to) {
  const gradient_factor factor{by};
  const auto up = in(upstream.sub(0, 1));
  const auto sums = in(view<const double>(keep.sums.sub(0, 2)));
  const auto rescale = [&](tile<float> t) {
    backend.launch(s, rows{t.rows}, rescaled_rows{factor}, up, sums, inout(t));
  };
  const auto add_to = [&](tile<float> from, tile<float> into) {
    if (from.p == into.p)
      rescale(from);
    else
      backend.launch(s, rows{from.rows}, added_rows{factor}, up, sums, in(from), inout(into));
  };
  const auto put = [&](tile<float> from, auto into) {
    if constexpr (std::is_same_v<decltype(into), tile<float>>)
      if (from.p == into.p) return rescale(from);
    backend.launch(s, rows{from.rows}, scaled_rows{factor}, up, sums, in(from), out(into));
  };
  if (to.wide_dx.rows != 0) put(keep.dx.row_block(0, n), to.wide_dx);
  if (to.dx.rows != 0) put(keep.dx.row_block(0, n), to.dx);
  if (to.dweight.rows != 0) add_to(keep.dweight, to.dweight);
  if (to.dbias.n != 0) add_to(as_matrix(keep.dbias, 1, to.dbias.n), as_matrix(to.dbias, 1, to.dbias.n));
}

// Throws config_error, on this rank, the only one, for storage that one_pass cannot work with.
inline void check_one_pass(const cross_entropy_shape& limits, index_t tokens,
                           const cross_entropy_saved& keep) {
  const auto check = [&](const char* what, index_t rows, index_t cols, index_t least, index_t most,
                         bool frozen) {
    if (frozen ? rows == 0 : (rows >= least && rows <= most && (rows == 0 || cols == limits.hidden))) return;
    throw config_error("plateau: linear_cross_entropy with one_pass: saved." + std::string(what) +
                       ", which keeps what forward makes, must be (" + std::to_string(frozen ? 0 : least) +
                       ", " + std::to_string(limits.hidden) + "), got (" + std::to_string(rows) + ", " +
                       std::to_string(cols) + ')');
  };
  check("dx", keep.dx.rows, keep.dx.cols, tokens, std::max(tokens, limits.tokens), limits.frozen_inputs);
  check("dweight", keep.dweight.rows, keep.dweight.cols, limits.vocabulary, limits.vocabulary,
        limits.frozen_weights);
  const index_t bias = limits.bias && !limits.frozen_weights ? limits.vocabulary : 0;
  if (keep.dbias.n != bias)
    throw config_error("plateau: linear_cross_entropy with one_pass: saved.dbias must have " +
                       std::to_string(bias) + " elements, got " + std::to_string(keep.dbias.n));
}
inline void check_one_upstream(index_t upstream) {
  if (upstream == 1) return;
  throw config_error("plateau: linear_cross_entropy backward with one_pass: the gradients were made in "
                     "forward, so the upstream gradient is one value, got " +
                     std::to_string(upstream) +
                     ": give weights of tokens to forward, or use the recompute mode, one_pass = false");
}

} // namespace detail

} // namespace plateau::inline v0
