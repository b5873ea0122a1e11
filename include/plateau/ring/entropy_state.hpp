// SPDX-License-Identifier: Apache-2.0
//
// An entropy beside the log of a sum of exponentials: of each row (m, s, a) with m the largest logit, s the
// sum of e^(z - m), and a the sum of e^(z - m) (m - z), how far the logits lie below the largest. The entropy
// of the softmax is log s + a / s: two numbers that are not negative, so that nothing cancels, whatever is
// added to all logits. Merged in any order, as online_lse, and as that for a kernel of your own too.
#pragma once

#include <plateau/config.hpp>
#include <plateau/ring/online_lse.hpp>
#include <plateau/scalar.hpp>

#include <type_traits>

namespace plateau::inline v0 {

// A new one is the identity. -infinity adds nothing; a NaN or +infinity makes its own row NaN, as there.
struct entropy_state {
  float m = lowest<float>();
  float s = 0;
  float a = 0;

  // The state of one logit.
  PLATEAU_HD static entropy_state of(float logit) { return of(online_lse::of(logit), 0.0f); }
  PLATEAU_HD static entropy_state of(const online_lse& lse, float a) {
    entropy_state out;
    out.m = lse.m;
    out.s = lse.s;
    out.a = a;
    return out;
  }
  // What a logit z with e^(z - m) = power adds to a: nothing for -infinity, which is infinitely far below.
  PLATEAU_HD static float term(float power, float m, float z) {
    const std::uint32_t far_below = detail::mask(power == 0.0f);
    return bit_cast<float>(bit_cast<std::uint32_t>(power * (m - z)) & ~far_below);
  }
  PLATEAU_HD friend entropy_state merge(const entropy_state& x, const entropy_state& y) {
    const lse_shift by(x.m, y.m);
    // What lies lower is lowered by the difference of the maxima.
    const float first = by.first == 0.0f ? 0.0f : by.first * (x.a + (by.m - x.m) * x.s);
    const float second = by.second == 0.0f ? 0.0f : by.second * (y.a + (by.m - y.m) * y.s);
    return of(merge(x.lse(), y.lse()), first + second);
  }
  PLATEAU_HD online_lse lse() const {
    online_lse out;
    out.m = m;
    out.s = s;
    return out;
  }
  // In nats; NaN where lse().value() is.
  PLATEAU_HD float entropy() const { return s == 0.0f ? lse().value() : ::logf(s) + a / s; }
};
static_assert(sizeof(entropy_state) == 12 && std::is_trivially_copyable_v<entropy_state>);

} // namespace plateau::inline v0
