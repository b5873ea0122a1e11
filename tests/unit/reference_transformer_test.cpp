// SPDX-License-Identifier: Apache-2.0
//
// The float64 reference against itself: every backward is the derivative of its forward by central
// differences, piece by piece and for the whole model, and the pieces have the properties that their formulas
// promise.
#include "reference/attention.hpp"
#include "reference/transformer.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <vector>

namespace ref = reference;
using ref::index;
using ref::vec;

namespace {

double dot(const vec& a, const vec& b) {
  REQUIRE(a.size() == b.size());
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// Central differences of `value` by `x`, at some entries or all, against `gradient`. Their own error is
/// about step^2 by truncation and 1e-16 / step by rounding, each times the size of what is differentiated.
void check_gradient(const std::function<double()>& value, vec& x, const vec& gradient,
                    std::size_t samples = 64) {
  REQUIRE(gradient.size() == x.size());
  constexpr double step = 3e-6;
  const std::size_t stride = std::max<std::size_t>(1, x.size() / samples);
  double largest = 0;
  for (const double g : gradient) largest = std::max(largest, std::abs(g));
  for (std::size_t n = 0; n < x.size(); n += stride) {
    const std::size_t i = (n * 7919) % x.size(); // over the whole tensor, not one column of it
    CAPTURE(i);
    const double before = x[i];
    x[i] = before + step;
    const double above = value();
    x[i] = before - step;
    const double below = value();
    x[i] = before;
    CHECK(std::abs((above - below) / (2 * step) - gradient[i]) < 1e-7 * (largest + 0.01));
  }
}

} // namespace

TEST_CASE("linear: backward is the derivative") {
  ref::normal_source normal(1);
  vec x = normal(3 * 5), w = normal(4 * 5), dx = ref::zeros(3 * 5), dw = ref::zeros(4 * 5);
  const vec dy = normal(3 * 4);
  ref::add_linear_backward(dy, x, w, 3, 5, 4, dx, dw);
  const auto value = [&] { return dot(dy, ref::linear(x, w, 3, 5, 4)); };
  check_gradient(value, x, dx);
  check_gradient(value, w, dw);
}

TEST_CASE("rms_norm: backward is the derivative, and rows come out with mean square 1") {
  ref::normal_source normal(2);
  vec x = normal(4 * 6, 2.0), gain = normal(6, 0.5, 1.0);
  const vec dy = normal(4 * 6);
  const ref::rms_norm_gradients g = ref::rms_norm_backward(dy, x, gain, 4, 6, 1e-2);
  const auto value = [&] { return dot(dy, ref::rms_norm(x, gain, 4, 6, 1e-2)); };
  check_gradient(value, x, g.dx);
  check_gradient(value, gain, g.dgain);

  const vec y = ref::rms_norm(x, vec(6, 1.0), 4, 6, 0.0);
  CHECK(dot(y, y) == doctest::Approx(4 * 6));
}

TEST_CASE("rope: keeps lengths, turns back, and makes scores depend on distances alone") {
  ref::normal_source normal(3);
  const vec x = normal(2 * 6), y = normal(2 * 6); // one row of two heads each
  const vec turned = ref::rope(x, {1000}, 2, 6, 1e4);
  CHECK(dot(turned, turned) == doctest::Approx(dot(x, x)));
  const vec back = ref::rope(turned, {1000}, 2, 6, 1e4, ref::turn::back);
  for (std::size_t i = 0; i < x.size(); ++i) CHECK(back[i] == doctest::Approx(x[i]));
  CHECK(dot(ref::rope(x, {9}, 2, 6, 1e4), ref::rope(y, {4}, 2, 6, 1e4)) ==
        doctest::Approx(dot(ref::rope(x, {105}, 2, 6, 1e4), ref::rope(y, {100}, 2, 6, 1e4))));

  // element 0 turns with element head_dim / 2, by one radian a position
  const vec unit = ref::rope({1, 0, 0, 0}, {1}, 1, 4, 1e4);
  CHECK(unit[0] == doctest::Approx(std::cos(1.0)));
  CHECK(unit[2] == doctest::Approx(std::sin(1.0)));
}

TEST_CASE("attention: backward is the derivative, with and without groups") {
  for (const index kv_heads : {1, 2, 4}) {
    CAPTURE(kv_heads);
    const ref::attention_shape s{2, 5, 4, kv_heads, 3};
    ref::normal_source normal(4);
    vec q = normal(s.rows() * 12), k = normal(s.rows() * kv_heads * 3), v = normal(s.rows() * kv_heads * 3);
    const vec dout = normal(s.rows() * 12);
    const ref::attention_gradients g = ref::attention_backward(s, dout, q, k, v);
    const auto value = [&] { return dot(dout, ref::attention(s, q, k, v)); };
    check_gradient(value, q, g.dq);
    check_gradient(value, k, g.dk);
    check_gradient(value, v, g.dv);
  }
}

TEST_CASE("attention: the first row sees itself alone, and no row sees a later one or another sequence") {
  const ref::attention_shape s{2, 4, 2, 1, 3};
  ref::normal_source normal(5);
  const vec q = normal(s.rows() * 6), k = normal(s.rows() * 3);
  vec v = normal(s.rows() * 3);
  const vec out = ref::attention(s, q, k, v);
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(out[i] == doctest::Approx(v[i]));     // head 0 of row 0
    CHECK(out[3 + i] == doctest::Approx(v[i])); // head 1 shares the key-value head
  }
  for (std::size_t i = 3 * 3; i < v.size(); ++i) v[i] = 1e9; // row 3 of sequence 0, and sequence 1
  const vec changed = ref::attention(s, q, k, v);
  for (std::size_t i = 0; i < 3 * 6; ++i) CHECK(changed[i] == out[i]);
}

TEST_CASE("attention over packed documents: backward is the derivative, also of the logarithms") {
  for (const bool causal : {true, false})
    for (const index kv_heads : {1, 2}) {
      CAPTURE(causal);
      CAPTURE(kv_heads);
      ref::packed_attention a{.tokens = 7, .heads = 4, .kv_heads = kv_heads, .head_dim = 3, .causal = causal};
      a.cu_seqlens = {0, 2, 2, 6, 7};
      a.hidden_keys = {0, 0, 1, 0, 0, 0, 1}; // the queries 2 and 6 see nothing if it is causal, 6 never does
      ref::normal_source normal(17);
      a.q = normal(7 * 12), a.k = normal(7 * kv_heads * 3), a.v = normal(7 * kv_heads * 3);
      const vec dout = normal(7 * 12), dlse = normal(7 * 4);
      const auto g = a.backward(dout, dlse);
      const auto value = [&] {
        const auto r = a.forward();
        double sum = dot(dout, r.out);
        for (std::size_t i = 0; i < r.lse.size(); ++i)
          if (std::isfinite(r.lse[i])) sum += dlse[i] * r.lse[i];
        return sum;
      };
      check_gradient(value, a.q, g.dq);
      check_gradient(value, a.k, g.dk);
      check_gradient(value, a.v, g.dv);
      const auto r = a.forward();
      for (std::size_t i = 6 * 12; i < 7 * 12; ++i) CHECK(r.out[i] == 0);
      for (std::size_t i = 6 * 4; i < 7 * 4; ++i) CHECK(r.lse[i] == -HUGE_VAL);
      for (std::size_t i = 6 * 12; i < 7 * 12; ++i) CHECK(g.dq[i] == 0);
    }
}

TEST_CASE("attention over packed documents: each document as if it were alone") {
  const ref::attention_shape s{2, 4, 4, 2, 3};
  ref::normal_source normal(18);
  ref::packed_attention a{.tokens = 8, .heads = 4, .kv_heads = 2, .head_dim = 3};
  a.cu_seqlens = {0, 4, 8};
  a.q = normal(8 * 12), a.k = normal(8 * 6), a.v = normal(8 * 6);
  const vec dout = normal(8 * 12), expected = ref::attention(s, a.q, a.k, a.v), out = a.forward().out;
  const auto apart = [](const vec& x, const vec& y) {
    REQUIRE(x.size() == y.size());
    double most = 0;
    for (std::size_t i = 0; i < x.size(); ++i) most = std::max(most, std::abs(x[i] - y[i]));
    return most;
  };
  CHECK(apart(out, expected) < 1e-14);
  const auto g = a.backward(dout);
  const auto e = ref::attention_backward(s, dout, a.q, a.k, a.v);
  CHECK(apart(g.dq, e.dq) < 1e-13);
  CHECK(apart(g.dk, e.dk) < 1e-13);
  CHECK(apart(g.dv, e.dv) < 1e-13);
}

TEST_CASE("route: most probable first, lower index on a tie, gates sum to 1") {
  const ref::routing r = ref::route({1, 3, 3, 0, /**/ 2, 2, 2, 2}, 2, 4, 3);
  CHECK(r.expert == std::vector<index>{1, 2, 0, /**/ 0, 1, 2});
  for (std::size_t row = 0; row < 2; ++row)
    CHECK(r.gate[3 * row] + r.gate[3 * row + 1] + r.gate[3 * row + 2] == doctest::Approx(1));
  CHECK(r.gate[3] == doctest::Approx(1.0 / 3));
  CHECK(r.gate[0] / r.gate[2] == doctest::Approx(std::exp(2.0))); // as a softmax over the chosen logits
}

TEST_CASE("route: backward is the derivative, through gates and probabilities") {
  ref::normal_source normal(6);
  const index rows = 5, experts = 6;
  for (const index top_k : {1, 2, 6}) {
    CAPTURE(top_k);
    vec logits = normal(rows * experts);
    const vec dgate = normal(rows * top_k), dprobability = normal(rows * experts);
    const ref::routing r = ref::route(logits, rows, experts, top_k);
    check_gradient(
        [&] {
          const ref::routing now = ref::route(logits, rows, experts, top_k);
          return dot(dgate, now.gate) + dot(dprobability, now.probability);
        },
        logits, ref::route_backward(r, dgate, dprobability));
    const vec gates_only = ref::route_backward(r, dgate);
    check_gradient([&] { return dot(dgate, ref::route(logits, rows, experts, top_k).gate); }, logits,
                   gates_only);
  }
}

TEST_CASE(
    "balance_loss: an even load gives top_k, one expert for all gives up to experts, derivative holds") {
  CHECK(ref::balance_loss({ref::route_to(ref::zeros(4 * 4), {0, 1, 1, 2, 2, 3, 3, 0}, 4, 4, 2)}).loss ==
        doctest::Approx(2));
  CHECK(ref::balance_loss({ref::route({50, 0, 0, 0, 50, 0, 0, 0}, 2, 4, 1)}).loss == doctest::Approx(4));

  ref::normal_source normal(7);
  std::vector<vec> logits = {normal(6 * 4), normal(6 * 4)};
  for (const auto form : {ref::balance_form::pooled, ref::balance_form::per_layer}) {
    const auto routes = [&] {
      return std::vector{ref::route(logits[0], 6, 4, 2), ref::route(logits[1], 6, 4, 2)};
    };
    const ref::balance b = ref::balance_loss(routes(), form);
    for (std::size_t layer = 0; layer < 2; ++layer)
      check_gradient([&] { return ref::balance_loss(routes(), form).loss; }, logits[layer],
                     ref::route_backward(routes()[layer], ref::zeros(6 * 2), b.dprobability[layer]));
  }
  const std::vector<ref::routing> one = {ref::route(logits[0], 6, 4, 2)};
  CHECK(ref::balance_loss(one, ref::balance_form::pooled).loss ==
        doctest::Approx(ref::balance_loss(one, ref::balance_form::per_layer).loss));
}

TEST_CASE("swiglu: backward is the derivative") {
  ref::normal_source normal(8);
  vec x = normal(3 * 4), w1 = normal(5 * 4), w2 = normal(4 * 5), w3 = normal(5 * 4);
  const vec dy = normal(3 * 4);
  const ref::swiglu_gradients g = ref::swiglu_backward(dy, x, w1, w2, w3, 3, 4, 5);
  const auto value = [&] { return dot(dy, ref::swiglu(x, w1, w2, w3, 3, 4, 5)); };
  check_gradient(value, x, g.dx);
  check_gradient(value, w1, g.dw1);
  check_gradient(value, w2, g.dw2);
  check_gradient(value, w3, g.dw3);
}

TEST_CASE("cross_entropy: backward is the derivative; large logits are safe; a bad label counts as nothing") {
  ref::normal_source normal(9);
  const std::vector<index> label = {3, -1, 0, 7, 6};
  vec logits = normal(5 * 7, 3.0);
  const vec upstream = normal(5);
  check_gradient([&] { return dot(upstream, ref::cross_entropy(logits, label, 7)); }, logits,
                 ref::cross_entropy_backward(upstream, logits, label, 7));
  const vec loss = ref::cross_entropy(logits, label, 7);
  CHECK(loss[1] == 0);
  CHECK(loss[3] == 0);
  CHECK(ref::cross_entropy({1000, 1000, 0}, {1}, 3)[0] == doctest::Approx(std::log(2.0)));
}

TEST_CASE("adamw: first step by hand, decay without gradient, bias correction from the step") {
  vec w = {1.0, -2.0}, m = {0, 0}, v = {0, 0};
  ref::adamw(w, {0.5, 0.0}, m, v, 1, {0.1, 0.9, 0.99, 1e-8, 0.5});
  CHECK(m[0] == doctest::Approx(0.05));
  CHECK(v[0] == doctest::Approx(0.0025));
  CHECK(w[0] ==
        doctest::Approx(1.0 - 0.1 * (1.0 + 0.5 * 1.0))); // the corrected ratio is the sign of the gradient
  CHECK(w[1] == doctest::Approx(-2.0 * (1 - 0.1 * 0.5)));
  ref::adamw(w, {0.5, 0.0}, m, v, 2, {0.1, 0.9, 0.99, 1e-8, 0.0});
  CHECK(w[0] == doctest::Approx(0.85 - 0.1)); // a constant gradient keeps the ratio at 1
}

TEST_CASE("norm, clipping and schedule") {
  const ref::tensors g = {{"a", {{2}, {3, 0}}}, {"b", {{1}, {-4}}}};
  CHECK(ref::global_norm(g) == doctest::Approx(5));
  CHECK(ref::clip_factor(5, 1) == doctest::Approx(0.2));
  CHECK(ref::clip_factor(0.5, 1) == 1);
  CHECK(ref::clip_factor(5, 0) == 1);
  CHECK(ref::cosine_rate(0, 4, 14, 1.0) == doctest::Approx(0.25));
  CHECK(ref::cosine_rate(3, 4, 14, 1.0) == doctest::Approx(1));
  CHECK(ref::cosine_rate(4, 4, 14, 1.0) == doctest::Approx(1));
  CHECK(ref::cosine_rate(9, 4, 14, 1.0, 0.2) == doctest::Approx(0.6));
  CHECK(ref::cosine_rate(14, 4, 14, 1.0, 0.2) == doctest::Approx(0.2));
}

TEST_CASE("transformer: the gradient of every parameter is the derivative of the loss") {
  struct variant {
    bool tied;
    index kv_heads, top_k;
    double balance_weight;
    ref::balance_form form;
  };
  for (const variant& v : {variant{false, 1, 2, 0.0, ref::balance_form::pooled},
                           variant{true, 2, 1, 0.5, ref::balance_form::pooled},
                           variant{true, 2, 3, 0.5, ref::balance_form::per_layer}}) {
    CAPTURE(v.top_k);
    ref::transformer_config c;
    c.vocabulary = 11, c.hidden = 8, c.layers = 2, c.heads = 2, c.kv_heads = v.kv_heads, c.experts = 3;
    c.top_k = v.top_k, c.intermediate = 5, c.rope_theta = 100;
    c.tied = v.tied, c.balance_weight = v.balance_weight, c.balance = v.form;
    ref::transformer model(c, ref::random_parameters(c, 10));
    ref::batch data = ref::next_token_batch({1, 2, 3, 4, 5, 6, 0, 7, 10, 10, 3, 9}, 2, 5);
    data.labels[3] = -1; // out of the mean

    const ref::transformer_result result = model.forward(data);
    CHECK(result.loss == doctest::Approx(result.cross_entropy + v.balance_weight * result.balance));
    const ref::sampled_rows some = model.losses_of(data, {7, 0, 3});
    CHECK(some.loss == vec{result.row_loss[7], result.row_loss[0], 0});
    CHECK((v.top_k == c.experts) == (some.margin[0] > 1e9));
    CHECK(some.margin[1] > 0);
    const ref::tensors g = model.backward(data, result);
    REQUIRE(g.size() == ref::parameter_shapes(c).size());
    for (auto& entry : model.parameters()) {
      const std::string& name = entry.first;
      CAPTURE(name);
      check_gradient([&] { return model.forward(data).loss; }, entry.second.data, g.at(name).data, 9);
    }
  }
}

TEST_CASE("transformer: a parameter of the wrong shape or name is refused by name") {
  ref::transformer_config c;
  c.vocabulary = 5, c.hidden = 4, c.layers = 1, c.heads = 1, c.kv_heads = 1, c.experts = 2, c.top_k = 1;
  c.intermediate = 3;
  ref::tensors p = ref::random_parameters(c, 11);
  p.at("model.norm.weight").shape = {5};
  CHECK_THROWS_WITH(ref::transformer(c, p),
                    "reference: model.norm.weight has another shape than the configuration says");
  p.erase("model.norm.weight");
  CHECK_THROWS_WITH(ref::transformer(c, p), "reference: no parameter model.norm.weight");
}
