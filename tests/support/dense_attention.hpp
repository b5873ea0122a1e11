// SPDX-License-Identifier: Apache-2.0
//
// Attention of one sequence with all of its scores, as anyone would compute it in a given precision: fp32
// scores and sums, shares and gradients of scores rounded to T as operands of products, results rounded once,
// and backward from the rounded output, which is all that is kept. What a ring attention may be twice as far
// from float64 as.
#pragma once

#include "support/attention_cases.hpp"

#include <plateau/math.hpp>

#include <algorithm>
#include <string>
#include <vector>

namespace support {

template <class T> struct dense_attention {
  const attention_case& of;
  const attention_values<T>& in;

  attention_result<T> compute() const {
    const pl::attention_shape& z = of.shape;
    const index_t n = of.tokens(), d = z.head_size;
    const float scale = z.scale();
    const reference::packed_attention mask = oracle_of(of, in);
    std::vector<float> out(in.q.size()), dq(out), dk(in.k.size()), dv(dk);
    std::vector<float> share(at(n));
    for (index_t t = 0; t < n; ++t)
      for (index_t h = 0; h < z.heads; ++h) {
        const index_t q = (t * z.heads + h) * d;
        const auto key = [&](index_t u) { return (u * z.kv_heads + h / z.group()) * d; };
        std::vector<index_t> seen;
        for (index_t u = 0; u < n; ++u)
          if (mask.sees(t, u)) seen.push_back(u);
        float m = pl::lowest<float>(), sum = 0, dot = 0;
        for (const index_t u : seen) share[at(u)] = scale * product(in.q, q, in.k, key(u), d);
        for (const index_t u : seen) m = std::max(m, share[at(u)]);
        for (const index_t u : seen) sum += share[at(u)] = pl::exp(share[at(u)] - m);
        for (const index_t u : seen) {
          share[at(u)] /= sum;
          for (index_t e = 0; e < d; ++e)
            out[at(q + e)] += rounded(share[at(u)]) * pl::widen(in.v[at(key(u) + e)]);
        }
        for (index_t e = 0; e < d; ++e) dot += rounded(out[at(q + e)]) * pl::widen(in.dout[at(q + e)]);
        for (const index_t u : seen) {
          const float dshare = product(in.dout, q, in.v, key(u), d);
          const float p = rounded(share[at(u)]), g = rounded(share[at(u)] * (dshare - dot));
          for (index_t e = 0; e < d; ++e) {
            dv[at(key(u) + e)] += p * pl::widen(in.dout[at(q + e)]);
            dq[at(q + e)] += g * pl::widen(in.k[at(key(u) + e)]) * scale;
            dk[at(key(u) + e)] += g * pl::widen(in.q[at(q + e)]) * scale;
          }
        }
      }
    attention_result<T> r;
    r.out = narrowed(out), r.dq = narrowed(dq), r.dk = narrowed(dk), r.dv = narrowed(dv);
    return r;
  }

 private:
  static std::size_t at(index_t i) { return static_cast<std::size_t>(i); }
  static float rounded(float x) { return pl::widen(pl::narrow<T>(x)); }
  static std::vector<T> narrowed(const std::vector<float>& from) {
    std::vector<T> to;
    for (const float x : from) to.push_back(pl::narrow<T>(x));
    return to;
  }
  static float product(const std::vector<T>& a, index_t i, const std::vector<T>& b, index_t j, index_t n) {
    float sum = 0;
    for (index_t e = 0; e < n; ++e) sum += pl::widen(a[at(i + e)]) * pl::widen(b[at(j + e)]);
    return sum;
  }
};

// Root mean square and largest error of a tensor, over all that is added.
template <class T> class error_of_tensor {
 public:
  void add(const std::vector<T>& actual, const std::vector<double>& expected) {
    REQUIRE(actual.size() == expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) {
      const double error = std::fabs(static_cast<double>(pl::widen(actual[i])) - expected[i]);
      squares_ += error * error;
      largest_ = error > largest_ || !(error == error) ? error : largest_;
      size_ += expected[i] * expected[i];
    }
    count_ += static_cast<double>(actual.size());
  }
  double rms() const { return std::sqrt(squares_ / count_); }
  double largest() const { return largest_; }
  double unit() const { return unit_in_last_place<T>(std::sqrt(size_ / count_)); }
  // At most twice what the plain computation has, and an ulp of T.
  void check_beside(const error_of_tensor& plain) const {
    CHECK(rms() <= 2 * plain.rms() + unit());
    CHECK(largest() <= 2 * plain.largest() + unit());
  }

 private:
  double squares_ = 0, largest_ = 0, size_ = 0, count_ = 0;
};

// The errors of all four results of some cases that differ in their seed alone.
template <class T> struct attention_errors {
  error_of_tensor<T> out, dq, dk, dv;

  void add(const attention_result<T>& r, const reference::packed_attention::result& seen,
           const reference::packed_attention::gradients& gradients) {
    out.add(r.out, seen.out);
    dq.add(r.dq, gradients.dq);
    dk.add(r.dk, gradients.dk);
    dv.add(r.dv, gradients.dv);
  }
  void check_beside(const attention_errors& plain) const {
    const auto check = [](const std::string& name, const error_of_tensor<T>& mine,
                          const error_of_tensor<T>& its) {
      CAPTURE(name);
      CAPTURE(mine.rms() / its.rms());
      mine.check_beside(its);
    };
    check("out", out, plain.out);
    check("dq", dq, plain.dq);
    check("dk", dk, plain.dk);
    check("dv", dv, plain.dv);
  }
};

} // namespace support
