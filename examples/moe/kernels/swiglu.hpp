// SPDX-License-Identifier: Apache-2.0
//
// The gated activation of an expert (Shazeer 2020): hidden = silu(gate) * up, element by element, and its
// backward, which replaces the two inputs by their gradients so that an expert needs no further buffer.
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

} // namespace moe
