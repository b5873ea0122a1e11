// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of a linear cross-entropy, without memory or ranks: what a token's loss is made of, and what
// its gradient needs from the saved state. One place, so that the loss and its gradient cannot disagree.
//
// With x a token's row, w a row of the weights and b its bias:
//
//   u = logit_scale (x w + b),  z = u, or soft_cap tanh(u / soft_cap)
//   lse = log sum e^z over the whole vocabulary
//   loss = (1 - smoothing) c[target] (lse - z[target])
//          + smoothing / vocabulary * sum over v of c[v] (lse - z[v])  +  z_loss lse^2
//
// times the token's weight. c are the class weights, 1 where there are none. A token whose target is
// ignore_index, or is not in the vocabulary, or whose weight is 0, counts as nothing: it is selected away,
// not multiplied by 0, so that a NaN of its own stays its own.
#pragma once

#include <plateau/config.hpp>
#include <plateau/ring/online_lse.hpp>

#include <cmath>
#include <type_traits>

namespace plateau::inline v0 {

// What the losses of tokens become: nothing is added up, the sum over all ranks, that divided by the sum of
// the weights that count (token weight x class weight of the target), or by a number of the caller's.
enum class reduction : unsigned char { none, sum, mean, denominator };

struct cross_entropy_options {
  std::int64_t ignore_index = -100; // any value
  float smoothing = 0;              // in [0, 1]
  float z_loss = 0;                 // at least 0
  float soft_cap = 0;               // 0: none
  float logit_scale = 1;
  plateau::reduction reduction = plateau::reduction::mean;
  bool nan_when_empty = false; // what a mean over no tokens is: NaN, or 0

  friend bool operator==(const cross_entropy_options&, const cross_entropy_options&) = default;
};

// All that is kept of a token from forward to backward: 16 bytes.
struct token_state {
  float m = lowest<float>(); // the largest logit
  float s = 0;               // sum of e^(z - m)
  float target = 0;          // the target's logit
  float sum = 0;             // of class weight x logit; 0 without smoothing

  PLATEAU_HD online_lse lse() const {
    online_lse out;
    out.m = m;
    out.s = s;
    return out;
  }
  // log of s; NaN for a row without a distribution.
  PLATEAU_HD float log_sum() const { return s == 0.0f ? lse().value() : ::logf(s); }
  // Of two parts of the vocabulary. The target lies in one of them; the other's is 0.
  PLATEAU_HD friend token_state merge(const token_state& a, const token_state& b) {
    const online_lse both = merge(a.lse(), b.lse());
    token_state out;
    out.m = both.m;
    out.s = both.s;
    out.target = a.target + b.target;
    out.sum = a.sum + b.sum;
    return out;
  }
};
static_assert(sizeof(token_state) == 16 && std::is_trivially_copyable_v<token_state>);

// What a logit is made of beyond the product, and the derivative of that.
struct logit_map {
  float scale = 1;
  float cap = 0;

  PLATEAU_HD bool plain() const { return scale == 1.0f && cap == 0.0f; }
  PLATEAU_HD float value(float product) const {
    const float u = scale * product;
    return cap == 0.0f ? u : cap * tanh(u / cap);
  }
  // Of the value z that value() gave.
  PLATEAU_HD float slope(float z) const {
    const float t = cap == 0.0f ? 0.0f : z / cap;
    return scale * (1.0f - t * t);
  }

 private:
  // Within 3e-7 of x near 0, where 1 - 2 / (e^2x + 1) would lose what is small. Additions, products and
  // choices by mask only, so that loops vectorise.
  PLATEAU_HD static float tanh(float x) {
    const float size = bit_cast<float>(bit_cast<std::uint32_t>(x) & 0x7fffffffu), square = x * x;
    float p = -5.70498872745e-3f;
    p = p * square + 2.06390887954e-2f;
    p = p * square - 5.37397155531e-2f;
    p = p * square + 1.33314422036e-1f;
    p = p * square - 3.33332819422e-1f;
    const float near_zero = p * square * x + x;
    const float beyond = 1.0f - 2.0f / (plateau::exp(2.0f * size) + 1.0f);
    const std::uint32_t sign = bit_cast<std::uint32_t>(x) & 0x80000000u;
    return bit_cast<float>(detail::select(size < 0.625f, bit_cast<std::uint32_t>(near_zero),
                                          bit_cast<std::uint32_t>(beyond) | sign));
  }
};

// The constants of a loss, as kernels take them.
struct loss_terms {
  std::int64_t ignore_index = -100;
  index_t vocabulary = 0;
  float smoothing = 0;
  float z_loss = 0;

  // Whether a token counts; checked in 64 bits.
  PLATEAU_HD bool counts(std::int64_t target, float weight) const {
    return target != ignore_index && target >= 0 && target < vocabulary && weight != 0.0f;
  }
  // Of a token that counts, before its weight. class_weight: of its target; class_sum: of all classes.
  PLATEAU_HD float loss(const token_state& t, float class_weight, float class_sum) const {
    // log s + (m - z), not (log s + m) - z, which would lose log s where logits are large.
    const float log_sum = t.log_sum();
    float out = (1.0f - smoothing) * class_weight * (log_sum + (t.m - t.target));
    if (smoothing != 0.0f)
      out += smoothing / static_cast<float>(vocabulary) * (class_sum * log_sum + (class_sum * t.m - t.sum));
    if (z_loss != 0.0f) out += z_loss * (t.m + log_sum) * (t.m + log_sum);
    return out;
  }
};

// What the gradient of a token's logits needs: dz[v] = e^(z - m) scale - class_weight[v] smooth, less `hit`
// where v is the target. A token that counts as nothing has the target -1, and zeros.
struct token_gradient {
  std::int64_t target = -1;
  float m = 0;
  float scale = 0;
  float smooth = 0;
  float hit = 0;

  // `factor` is upstream gradient x token weight / denominator.
  PLATEAU_HD static token_gradient of(const loss_terms& terms, const token_state& t, std::int64_t target,
                                      float factor, float class_weight, float class_sum) {
    token_gradient g;
    g.target = target;
    g.m = t.m;
    g.hit = factor * (1.0f - terms.smoothing) * class_weight;
    g.smooth = factor * terms.smoothing / static_cast<float>(terms.vocabulary);
    float all = g.hit + g.smooth * class_sum;
    if (terms.z_loss != 0.0f) all += factor * 2.0f * terms.z_loss * t.lse().value();
    g.scale = t.s == 0.0f ? t.lse().value() : all / t.s;
    return g;
  }
};
static_assert(sizeof(token_gradient) == 24 && std::is_trivially_copyable_v<token_gradient>);

} // namespace plateau::inline v0
