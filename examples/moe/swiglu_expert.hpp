// SPDX-License-Identifier: Apache-2.0
//
// The reference model's expert for a dispatch by rounds (plateau/all_to_all/expert.hpp): down(silu(gate x) *
// up x), one grouped product over a round's groups for each matrix. It keeps nothing between calls but host
// lists with room for the largest round. Backward computes gate and up again, but not their result: what the
// router's gate gets, <dy, y>, is <dh, h>, which costs a row and not a product.
#pragma once

#include "kernels/swiglu.hpp"
#include "model_config.hpp"
#include "scratch_need.hpp"

#include <plateau/access.hpp>
#include <plateau/all_to_all/expert.hpp>
#include <plateau/gemm.hpp>
#include <plateau/grouped.hpp>
#include <plateau/resource.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <array>
#include <cstddef>
#include <span>
#include <tuple>
#include <vector>

namespace moe {

namespace pl = plateau;

template <class Backend, class T> class swiglu_expert {
  using stream = typename Backend::stream;
  using groups = pl::expert_groups<T>;

 public:
  using weight_type = T;
  using rows_type = pl::row_parts<T>;

  // One to be asked, before there is a backend, of its weights and its scratch.
  swiglu_expert(index_t hidden, index_t intermediate)
      : hidden_(hidden), intermediate_(intermediate), parts_{{{intermediate, hidden},
                                                              {intermediate, hidden},
                                                              {hidden, intermediate}}} {}
  // For rounds of up to `most_groups` groups; more are served, but allocate.
  swiglu_expert(Backend& backend, index_t hidden, index_t intermediate, index_t most_groups)
      : swiglu_expert(hidden, intermediate) {
    backend_ = &backend;
    products_.reserve(static_cast<std::size_t>(most_groups));
    gradients_.reserve(static_cast<std::size_t>(most_groups));
  }

  // gate, up, down
  std::span<const pl::matrix_extent> weight_parts() const { return parts_; }

  // Gate, up, and what products need beside them; the hidden rows take the place of the gate's.
  std::size_t forward_scratch_bytes(index_t most_rows, index_t) const {
    using pl::transpose;
    scratch_need<Backend> products;
    products.template gemm<T, T, T>(transpose::no, transpose::yes, most_rows, intermediate_, hidden_)
        .template gemm<T, T, T>(transpose::no, transpose::yes, most_rows, hidden_, intermediate_);
    return 2 * matrix_bytes(most_rows) + products.bytes();
  }
  // Gate, up and the gradient of the hidden rows; each of them is replaced by what follows from it.
  std::size_t backward_scratch_bytes(index_t most_rows, index_t) const {
    using pl::transpose;
    scratch_need<Backend> products;
    products.template gemm<T, T, T>(transpose::no, transpose::yes, most_rows, intermediate_, hidden_)
        .template gemm<T, T, T>(transpose::no, transpose::no, most_rows, intermediate_, hidden_)
        .template gemm<T, T, T>(transpose::no, transpose::no, most_rows, hidden_, intermediate_)
        .template gemm<T, T, float>(transpose::yes, transpose::no, hidden_, intermediate_, most_rows)
        .template gemm<T, T, float>(transpose::yes, transpose::no, intermediate_, hidden_, most_rows);
    return 3 * matrix_bytes(most_rows) + products.bytes();
  }

  // results (rows, hidden), written.
  void forward(stream& s, const groups& g, const rows_type& rows, pl::tile<T> results,
               pl::scratch_view scratch) {
    const pl::tile<const T> x = std::get<0>(rows);
    const auto gate = take(scratch, x.rows), up = take(scratch, x.rows);
    product(s, g, pl::transpose::yes, x, gate_part, 0.0F, gate, scratch);
    product(s, g, pl::transpose::yes, x, up_part, 0.0F, up, scratch);
    backend_->launch(s, pl::elements{x.rows * intermediate_}, swiglu_in_place{}, pl::inout(pl::as_row(gate)),
                     pl::in(pl::as_row(up)));
    product(s, g, pl::transpose::yes, gate, down_part, 0.0F, results, scratch);
  }

  // weights: the router's gates (rows); drows (rows, hidden) and dweights (rows), written.
  void backward(stream& s, const groups& g, const rows_type& rows, pl::view<const float> weights,
                pl::tile<const T> dresults, pl::tile<T> drows, pl::view<float> dweights,
                pl::scratch_view scratch) {
    const pl::tile<const T> x = std::get<0>(rows);
    const auto gate = take(scratch, x.rows), up = take(scratch, x.rows), hidden = take(scratch, x.rows);
    product(s, g, pl::transpose::yes, x, gate_part, 0.0F, gate, scratch);
    product(s, g, pl::transpose::yes, x, up_part, 0.0F, up, scratch);
    product(s, g, pl::transpose::no, dresults, down_part, 0.0F, hidden, scratch);
    backend_->launch(s, pl::rows{x.rows}, weighted_swiglu_backward{}, pl::in(weights), pl::inout(gate),
                     pl::inout(up), pl::inout(hidden), pl::out(dweights));
    weight_gradient(s, g, dresults, hidden, down_part, scratch);
    weight_gradient(s, g, gate, x, gate_part, scratch);
    weight_gradient(s, g, up, x, up_part, scratch);
    product(s, g, pl::transpose::no, gate, gate_part, 0.0F, drows, scratch);
    product(s, g, pl::transpose::no, up, up_part, 1.0F, drows, scratch);
  }

 private:
  // (rows, intermediate), with the padding to where the next may begin.
  std::size_t matrix_bytes(index_t rows) const {
    return pl::aligned_bytes(static_cast<std::size_t>(rows * intermediate_) * sizeof(T));
  }

  static constexpr index_t gate_part = 0, up_part = 1, down_part = 2;

  // The next matrix (rows, intermediate) of the scratch, which becomes shorter.
  pl::tile<T> take(pl::scratch_view& scratch, index_t rows) const {
    const auto bytes = static_cast<index_t>(matrix_bytes(rows));
    pl::check_scratch("swiglu_expert", static_cast<std::size_t>(bytes), scratch);
    const pl::tile<T> matrix{reinterpret_cast<T*>(scratch.p), rows, intermediate_, intermediate_};
    scratch = scratch.sub(bytes, scratch.n - bytes);
    return matrix;
  }

  // to (rows, out) = from (rows, in) op(weight) + beta to, group by group.
  void product(stream& s, const groups& g, pl::transpose op, pl::tile<const T> from, index_t part, float beta,
               pl::tile<T> to, pl::scratch_view scratch) {
    products_.clear();
    for (index_t i = 0; i < g.size(); ++i)
      products_.push_back(
          {from.row_block(g.first(i), g.rows(i)), g.weight(i, part), to.row_block(g.first(i), g.rows(i))});
    backend_->grouped_gemm(s, pl::transpose::no, op, 1.0F, beta,
                           std::span<const pl::gemm_group<T, T, T>>(products_), scratch);
  }
  // gradient (left, right) += a^T b over each group's rows; a (rows, left), b (rows, right).
  void weight_gradient(stream& s, const groups& g, pl::tile<const T> a, pl::tile<const T> b, index_t part,
                       pl::scratch_view scratch) {
    gradients_.clear();
    for (index_t i = 0; i < g.size(); ++i)
      gradients_.push_back(
          {a.row_block(g.first(i), g.rows(i)), b.row_block(g.first(i), g.rows(i)), g.gradient(i, part)});
    backend_->grouped_gemm(s, pl::transpose::yes, pl::transpose::no, 1.0F, 1.0F,
                           std::span<const pl::gemm_group<T, T, float>>(gradients_), scratch);
  }

  Backend* backend_ = nullptr;
  index_t hidden_, intermediate_;
  std::array<pl::matrix_extent, 3> parts_;
  std::vector<pl::gemm_group<T, T, T>> products_;
  std::vector<pl::gemm_group<T, T, float>> gradients_;
};

} // namespace moe
