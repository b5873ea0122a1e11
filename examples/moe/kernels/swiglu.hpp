// SPDX-License-Identifier: Apache-2.0
//
// The gated activation of an expert (Shazeer 2020): hidden = silu(gate) * up, element by element, and its
// backward, which replaces the two inputs by their gradients so that an expert needs no further buffer. The
// last of the kernels does all that a backward needs of rows that the router's gates weigh.
#pragma once

#include "types.hpp"

namespace moe {

// Over elements{rows * intermediate}. `hidden` may be the memory of `gate` or `up`.
struct swiglu {
  template <class T>
  PLATEAU_HD void operator()(index_t i, view<const T> gate, view<const T> up, view<T> hidden) const {
    hidden[i] = narrow<T>(plateau::silu(gate[i]) * widen(up[i]));
  }
};

// The same over the memory of `gate`.
struct swiglu_in_place {
  template <class T> PLATEAU_HD void operator()(index_t i, view<T> gate, view<const T> up) const {
    gate[i] = narrow<T>(plateau::silu(gate[i]) * widen(up[i]));
  }
};

// Over elements{rows * intermediate}: gate and up become dgate and dup.
struct swiglu_backward {
  template <class T>
  PLATEAU_HD void operator()(index_t i, view<T> gate, view<T> up, view<const T> dhidden) const {
    const float a = widen(gate[i]), b = widen(up[i]), d = widen(dhidden[i]);
    const float s = plateau::sigmoid(a);
    gate[i] = narrow<T>(d * b * (s * (1.0f + a * (1.0f - s))));
    up[i] = narrow<T>(d * (a * s));
  }
};

// Over rows{rows} of results that the router's gates weigh: hidden and its gradient are computed once, and
// serve everything. With h = silu(gate) * up and dhidden the gradient of h before the row's gate g multiplies
// it: dweights = <dhidden, h>, the gradient of g; gate and up become their gradients, which g scales; dhidden
// becomes g * h, the operand of the down projection's gradient.
struct weighted_swiglu_backward {
  template <class Team, class T>
  PLATEAU_HD void operator()(Team& team, index_t r,
                             view<const float> weights,                 // (rows), g
                             tile<T> gate, tile<T> up, tile<T> dhidden, // (rows, intermediate), replaced
                             view<float> dweights) const {              // (rows), written
    const float g = weights[r];
    T* a = gate.row(r);
    T* b = up.row(r);
    T* d = dhidden.row(r);
    float* to = dweights.p + r;
    const float dot = team.reduce(gate.cols, 0.0f, plus{}, [=](index_t i) {
      return widen(d[i]) * (plateau::silu(widen(a[i])) * widen(b[i]));
    });
    team.once([=] { *to = dot; });
    team.for_each(gate.cols, [=](index_t i) {
      const float x = widen(a[i]), y = widen(b[i]), dh = g * widen(d[i]);
      const float s = plateau::sigmoid(x);
      d[i] = narrow<T>(g * (x * s * y));
      a[i] = narrow<T>(dh * y * (s * (1.0f + x * (1.0f - s))));
      b[i] = narrow<T>(dh * (x * s));
    });
  }
};

} // namespace moe
