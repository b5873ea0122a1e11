// SPDX-License-Identifier: Apache-2.0
//
// The smallest expert that has everything: y = w * x, element by element, with one row of weights. It adds a
// number to what it is given scratch for, so that a workspace that is too small shows.
#pragma once

#include <plateau/access.hpp>
#include <plateau/all_to_all/expert.hpp>
#include <plateau/kernels.hpp>
#include <plateau/scalar.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <array>
#include <cstddef>
#include <span>

namespace support {

using plateau::index_t;
using plateau::tile;
using plateau::view;

struct toy_forward {
  template <class Team, class T, class S>
  PLATEAU_HD void operator()(Team& team, index_t r, tile<const T, S> x, tile<const T, S> w,
                             tile<T, S> y) const {
    const T *from = x.row(r), *weight = w.row(0);
    T* to = y.row(r);
    team.for_each(x.cols, [=](index_t c) {
      to[c] = plateau::narrow<T>(plateau::widen(weight[c]) * plateau::widen(from[c]));
    });
  }
};
struct toy_backward {
  template <class Team, class T, class S>
  PLATEAU_HD void operator()(Team& team, index_t r, tile<const T, S> x, tile<const T, S> w,
                             view<const float, S> gates, tile<const T, S> dy, tile<T, S> dx,
                             view<float, S> dgates, tile<float, S> terms) const {
    const T *from = x.row(r), *weight = w.row(0), *upstream = dy.row(r);
    T* to = dx.row(r);
    float* term = terms.row(r);
    const float gate = gates[r];
    const float dot = team.reduce(x.cols, 0.0F, plateau::plus{}, [=](index_t c) {
      return plateau::widen(upstream[c]) * plateau::widen(weight[c]) * plateau::widen(from[c]);
    });
    team.once([=] { dgates[r] = dot; });
    team.for_each(x.cols, [=](index_t c) {
      to[c] = plateau::narrow<T>(gate * plateau::widen(upstream[c]) * plateau::widen(weight[c]));
      term[c] = gate * plateau::widen(upstream[c]) * plateau::widen(from[c]);
    });
  }
};
// Over rows{1}: sums down the rows.
struct toy_weight_gradient {
  template <class Team, class S>
  PLATEAU_HD void operator()(Team& team, index_t, tile<const float, S> terms, tile<float, S> dw) const {
    float* to = dw.row(0);
    for (index_t r = 0; r < terms.rows; ++r) {
      const float* from = terms.row(r);
      team.for_each(terms.cols, [=](index_t c) { to[c] += from[c]; });
    }
  }
};

template <class Backend, class T> class toy_expert {
  using stream = typename Backend::stream;

 public:
  using weight_type = T;

  // The backend may be absent while only sizes are asked.
  toy_expert(Backend* backend, index_t width) : backend_(backend), parts_{{{1, width}}} {}

  std::span<const plateau::matrix_extent> weight_parts() const { return parts_; }
  std::size_t forward_scratch_bytes(index_t, index_t) const { return 0; }
  std::size_t backward_scratch_bytes(index_t most_rows, index_t) const {
    return static_cast<std::size_t>(most_rows * parts_[0].cols) * sizeof(float);
  }

  template <class... More>
  void forward(stream& s, const plateau::expert_groups<T>& groups,
               const std::tuple<tile<const T>, More...>& rows, tile<T> results, plateau::scratch_view) {
    for (index_t g = 0; g < groups.size(); ++g)
      backend_->launch(s, plateau::rows{groups.rows(g)}, toy_forward{}, plateau::in(of(groups, g, rows)),
                       plateau::in(groups.weight(g, 0)),
                       plateau::out(results.row_block(groups.first(g), groups.rows(g))));
  }
  template <class... More>
  void backward(stream& s, const plateau::expert_groups<T>& groups,
                const std::tuple<tile<const T>, More...>& rows, view<const float> gates,
                tile<const T> dresults, tile<T> drows, view<float> dgates, plateau::scratch_view scratch) {
    const index_t width = parts_[0].cols;
    for (index_t g = 0; g < groups.size(); ++g) {
      const index_t first = groups.first(g), n = groups.rows(g);
      const tile<float> terms{reinterpret_cast<float*>(scratch.p) + first * width, n, width, width};
      backend_->launch(s, plateau::rows{n}, toy_backward{}, plateau::in(of(groups, g, rows)),
                       plateau::in(groups.weight(g, 0)), plateau::in(gates.sub(first, n)),
                       plateau::in(dresults.row_block(first, n)), plateau::out(drows.row_block(first, n)),
                       plateau::out(dgates.sub(first, n)), plateau::out(terms));
      backend_->launch(s, plateau::rows{1}, toy_weight_gradient{}, plateau::in(terms),
                       plateau::inout(groups.gradient(g, 0)));
    }
  }

 private:
  template <class... More>
  static tile<const T> of(const plateau::expert_groups<T>& groups, index_t g,
                          const std::tuple<tile<const T>, More...>& rows) {
    return std::get<0>(rows).row_block(groups.first(g), groups.rows(g));
  }
  Backend* backend_;
  std::array<plateau::matrix_extent, 1> parts_;
};

} // namespace support
