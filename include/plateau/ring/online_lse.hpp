// SPDX-License-Identifier: Apache-2.0
//
// The log of a sum of exponentials, kept as (m, s): the largest logit so far, and the sum of e^(z - m). Parts
// of a row that were summed apart are merged in any order, whoever summed them, and nothing overflows. With a
// payload, a = sum e^(z - m) v travels along: an attention's values, or the logits themselves for an entropy.
// Plain values without allocations, for a kernel of your own as well as for those of the ring.
//
// A logit of -infinity adds nothing. A row of which all logits are -infinity, or which has none, has no
// distribution: its value is NaN. A NaN or +infinity makes the sum of its own row NaN, and no other's.
#pragma once

#include <plateau/config.hpp>
#include <plateau/math.hpp>
#include <plateau/scalar.hpp>

#include <cmath>
#include <type_traits>

namespace plateau::inline v0 {

// What two states with the maxima a and b are multiplied by before they are added: e^(a - m) and e^(b - m).
struct lse_shift {
  float m, first, second;

  PLATEAU_HD lse_shift(float a, float b) : m(a < b ? b : a), first(exp(a - m)), second(exp(b - m)) {}
};

// The state of a row. A new one is the identity: an empty sum. The maximum starts at the lowest finite value,
// since -infinity less itself is NaN.
struct online_lse {
  float m = lowest<float>();
  float s = 0;

  // The state of one logit.
  PLATEAU_HD static online_lse of(float logit) {
    online_lse out;
    out.m = out.m < logit ? logit : out.m; // which leaves a NaN to the sum
    out.s = exp(logit - out.m);
    return out;
  }
  // The state of whoever kept only the logarithm: (lse, 1); the identity for -infinity, as of an empty part.
  PLATEAU_HD static online_lse from_lse(float lse) {
    if (is_nan(lse)) {
      online_lse bad;
      bad.s = lse;
      return bad;
    }
    online_lse out;
    if (lse < out.m) return out;
    out.m = lse;
    out.s = 1;
    return out;
  }
  PLATEAU_HD friend online_lse merge(const online_lse& a, const online_lse& b) {
    const lse_shift by(a.m, b.m);
    online_lse out;
    out.m = by.m;
    out.s = a.s * by.first + b.s * by.second;
    return out;
  }
  // log of the sum of exponentials; NaN for an empty sum.
  PLATEAU_HD float value() const {
    return s == 0.0f ? bit_cast<float>(std::uint32_t{0x7fc00000}) : m + ::logf(s);
  }
};

// The same with a payload: any trivially copyable type with a * float and a + a, whose value-initialised
// value is zero.
template <class Payload> struct online_lse_with {
  static_assert(std::is_trivially_copyable_v<Payload>,
                "plateau: the payload of online_lse_with is trivially copyable");

  float m = lowest<float>();
  float s = 0;
  Payload a{};

  PLATEAU_HD static online_lse_with of(float logit, const Payload& value) {
    return joined(online_lse::of(logit), value, true);
  }
  // What gave (out, lse), an attention kernel for instance: out is the mean of its values, so a = out. Of an
  // empty part, lse = -infinity, the payload is not looked at.
  PLATEAU_HD static online_lse_with from_lse(float lse, const Payload& mean) {
    const online_lse state = online_lse::from_lse(lse);
    return joined(state, mean, state.s != 0.0f);
  }
  PLATEAU_HD friend online_lse_with merge(const online_lse_with& x, const online_lse_with& y) {
    const lse_shift by(x.m, y.m);
    online_lse_with out;
    out.m = by.m;
    out.s = x.s * by.first + y.s * by.second;
    out.a = x.a * by.first + y.a * by.second;
    return out;
  }
  PLATEAU_HD float value() const { return state().value(); }
  // The mean of the values, weighted with e^z; NaN for an empty sum.
  PLATEAU_HD Payload mean() const { return a * (1.0f / (s == 0.0f ? value() : s)); }
  PLATEAU_HD online_lse state() const {
    online_lse out;
    out.m = m;
    out.s = s;
    return out;
  }

 private:
  PLATEAU_HD static online_lse_with joined(const online_lse& state, const Payload& value, bool counts) {
    online_lse_with out;
    out.m = state.m;
    out.s = state.s;
    if (counts) out.a = value * state.s;
    return out;
  }
};

// The operation for a team's reduce, and for anything else that folds states.
struct merge_lse {
  template <class State> PLATEAU_HD State operator()(const State& a, const State& b) const {
    return merge(a, b);
  }
};

static_assert(sizeof(online_lse) == 8 && std::is_trivially_copyable_v<online_lse> &&
              std::is_standard_layout_v<online_lse>);
static_assert(sizeof(online_lse_with<float>) == 12 && std::is_trivially_copyable_v<online_lse_with<float>>);

} // namespace plateau::inline v0
