// SPDX-License-Identifier: Apache-2.0
//
// AdamW with decoupled weight decay (Loshchilov and Hutter 2019), the arithmetic of one step. Every addition
// is an explicit fused multiply-add with one product in it, and root and quotient are correctly rounded, so
// that nothing is left for a compiler to contract: the bits are the same on a GPU and on a CPU, at every
// level of vectors, in the body of a tensor and in its tail. The order of operations is that of PyTorch's
// AdamW: its moments have the same bits, its parameters are within a unit or two in the last place.
//
// What decides about a step stays on the device, as two floats that every row reads: control[0] multiplies
// the gradient, control[1] != 0 skips the step, which then leaves every bit as it was; no host has to wait to
// know.
#pragma once

#include <plateau/config.hpp>
#include <plateau/scalar.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <cmath>
#include <type_traits>

namespace plateau::inline v0 {

// The factors of one step of one tensor, each computed in double and rounded once (adamw_factors_of). By
// default a step that changes nothing but the moments.
struct adamw_factors {
  float beta1 = 0.9f, rest1 = 0.1f; // rest1: 1 - beta1, of the unrounded beta1: 1 - 0.999f is not 0.001f
  float beta2 = 0.999f, rest2 = 0.001f;
  float root_scale = 1.0f; // 1 / sqrt(1 - beta2^step)
  float epsilon = 1e-8f;
  float step_size = 0.0f; // learning rate / (1 - beta1^step)
  float kept = 1.0f;      // 1 - learning rate * weight decay
};

namespace detail::adamw {

// a b + c, rounded once, also where the machine has no such instruction: there the library's function does
// it.
PLATEAU_HD inline float fused(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return ::fmaf(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

} // namespace detail::adamw

// Over rows{rows_of(n)}, each a run of elements; a row so that the roots of many are taken at once. Memory
// spaces of all views agree. Every view has n elements and is updated, but the gradient, which is read, and
// control, of two.
struct adamw_update {
  static constexpr index_t row_elements = 2048;
  static constexpr index_t rows_of(index_t n) { return (n + row_elements - 1) / row_elements; }

  adamw_factors factors{};

  template <class Team, class Gradient, class Space>
  PLATEAU_HD void operator()(Team& team, index_t row, view<const Gradient, Space> gradient,
                             view<const float, Space> control, view<float, Space> master,
                             view<float, Space> first_moment, view<float, Space> second_moment) const {
    update(team, row, gradient, control, master, first_moment, second_moment, [](index_t, float) {});
  }

  // Also writes the master, rounded to the type of the parameter.
  template <class Team, class Gradient, class Space, class Parameter>
  PLATEAU_HD void operator()(Team& team, index_t row, view<const Gradient, Space> gradient,
                             view<const float, Space> control, view<float, Space> master,
                             view<float, Space> first_moment, view<float, Space> second_moment,
                             view<Parameter, Space> parameter) const {
    Parameter* const p = parameter.p + row * row_elements;
    update(team, row, gradient, control, master, first_moment, second_moment,
           [p](index_t i, float value) { p[i] = narrow<Parameter>(value); });
  }

 private:
  template <class Team, class Gradient, class Space, class Publish>
  PLATEAU_HD void update(Team& team, index_t row, view<const Gradient, Space> gradient,
                         view<const float, Space> control, view<float, Space> master,
                         view<float, Space> first_moment, view<float, Space> second_moment,
                         Publish publish) const {
    using detail::adamw::fused;
    if (control[1] != 0.0f) return; // alike for all members of the team
    const index_t first = row * row_elements;
    const index_t rest = gradient.n - first, count = rest < row_elements ? rest : row_elements;
    const Gradient* const g = gradient.p + first;
    float* const w = master.p + first;
    float* const m = first_moment.p + first;
    float* const v = second_moment.p + first;
    const adamw_factors f = factors;
    const float clip = control[0];
    team.for_each_sqrt(
        count,
        [=](index_t i) {
          const float scaled = widen(g[i]) * clip, old_m = m[i], old_v = v[i];
          const float new_m = fused(f.rest1, scaled, f.beta1 * old_m);
          const float new_v = fused(f.rest2 * scaled, scaled, f.beta2 * old_v);
          v[i] = new_v;
          m[i] = new_m;
          return new_v;
        },
        [=](index_t i, float root) {
          const float direction = m[i] / fused(root, f.root_scale, f.epsilon), old = w[i];
          const float value = fused(-f.step_size, direction, f.kept * old);
          w[i] = value;
          publish(i, value);
        });
  }
};

// The same, with the factors from memory: those of a tensor whose steps the device counts.
struct adamw_counted_update {
  static constexpr index_t rows_of(index_t n) { return adamw_update::rows_of(n); }

  template <class Team, class Space, class... Views>
  PLATEAU_HD void operator()(Team& team, index_t row, view<const adamw_factors, Space> factors, // (1)
                             Views... views) const {
    adamw_update{factors[0]}(team, row, views...);
  }
};

} // namespace plateau::inline v0
