// SPDX-License-Identifier: Apache-2.0
//
// A mixture-of-experts transformer with Mixtral's architecture in float64: loss and the gradient of every
// parameter, written with the plain loops of the headers it includes. It is the oracle for the reference
// model of examples/moe, and is itself held to Mixtral by tests/golden and to its own loss by finite
// differences. Parameters and gradients go by the names of the published Mixtral-8x7B files.
#pragma once

#include "layers.hpp"
#include "optimizer.hpp"
#include "router.hpp"
#include "tensor.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

namespace reference {

struct transformer_config {
  index vocabulary = 0, hidden = 0, layers = 0, heads = 0, kv_heads = 0, experts = 0, top_k = 0,
        intermediate = 0;
  double rope_theta = 1e6, rms_epsilon = 1e-5;
  bool tied = false; // the output projection is the embedding, and there is no lm_head.weight
  double balance_weight = 0;
  balance_form balance = balance_form::pooled;

  index head_dim() const { return hidden / heads; }
  index kv_hidden() const { return kv_heads * head_dim(); }
};

inline std::string layer_name(index layer, const std::string& rest) {
  return "model.layers." + std::to_string(layer) + "." + rest;
}

inline std::string expert_name(index layer, index expert, const std::string& rest) {
  return layer_name(layer, "block_sparse_moe.experts." + std::to_string(expert) + "." + rest);
}

inline std::map<std::string, std::vector<index>> parameter_shapes(const transformer_config& c) {
  std::map<std::string, std::vector<index>> out;
  out["model.embed_tokens.weight"] = {c.vocabulary, c.hidden};
  for (index l = 0; l < c.layers; ++l) {
    out[layer_name(l, "input_layernorm.weight")] = {c.hidden};
    out[layer_name(l, "self_attn.q_proj.weight")] = {c.hidden, c.hidden};
    out[layer_name(l, "self_attn.k_proj.weight")] = {c.kv_hidden(), c.hidden};
    out[layer_name(l, "self_attn.v_proj.weight")] = {c.kv_hidden(), c.hidden};
    out[layer_name(l, "self_attn.o_proj.weight")] = {c.hidden, c.hidden};
    out[layer_name(l, "post_attention_layernorm.weight")] = {c.hidden};
    out[layer_name(l, "block_sparse_moe.gate.weight")] = {c.experts, c.hidden};
    for (index e = 0; e < c.experts; ++e) {
      out[expert_name(l, e, "w1.weight")] = {c.intermediate, c.hidden};
      out[expert_name(l, e, "w2.weight")] = {c.hidden, c.intermediate};
      out[expert_name(l, e, "w3.weight")] = {c.intermediate, c.hidden};
    }
  }
  out["model.norm.weight"] = {c.hidden};
  if (!c.tied) out["lm_head.weight"] = {c.vocabulary, c.hidden};
  return out;
}

/// Weights of a size at which no part of the model is degenerate: norms 1 +- 0.1, others of deviation
/// `scale`.
inline tensors random_parameters(const transformer_config& c, std::uint64_t seed, double scale = 0.3) {
  normal_source normal(seed);
  tensors out;
  for (const auto& [name, shape] : parameter_shapes(c)) {
    const bool norm = name.find("norm") != std::string::npos;
    out[name] = {shape, norm ? normal(element_count(shape), 0.1, 1.0) : normal(element_count(shape), scale)};
  }
  return out;
}

/// inputs and labels (sequences * length), sequence by sequence; positions count from 0 in each.
struct batch {
  index sequences = 0, length = 0;
  std::vector<index> inputs, labels;

  index rows() const { return sequences * length; }
};

/// tokens (sequences, length + 1): every token is the label of the one before it.
inline batch next_token_batch(const std::vector<index>& tokens, index sequences, index length) {
  require(static_cast<index>(tokens.size()) == sequences * (length + 1),
          "tokens must be (sequences, length + 1)");
  batch out{sequences, length, {}, {}};
  for (index b = 0; b < sequences; ++b)
    for (index t = 0; t < length; ++t) {
      out.inputs.push_back(tokens[b * (length + 1) + t]);
      out.labels.push_back(tokens[b * (length + 1) + t + 1]);
    }
  return out;
}

struct layer_state {
  vec x;         // (rows, hidden), what enters the layer
  vec normed;    // (rows, hidden)
  vec q, k, v;   // (rows, hidden), (rows, kv_hidden) twice, q and k rotated
  vec attended;  // (rows, hidden), before the output projection
  vec middle;    // (rows, hidden), x and attention
  vec moe_input; // (rows, hidden)
  routing routes;
};

struct transformer_result {
  double loss = 0;          // cross_entropy + balance_weight * balance
  double cross_entropy = 0; // the mean over all rows whose label counts
  double balance = 0;
  vec row_loss; // (rows)
  std::vector<layer_state> layers;
  vec last;   // (rows, hidden), before the last norm
  vec normed; // (rows, hidden)
  vec logits; // (rows, vocabulary)
};

/// What is known of some rows alone.
struct sampled_rows {
  vec loss;   // (sampled), in their order
  vec margin; // (sampled): log of the last chosen expert's probability over the next one's, smallest of
              // layers
};

class transformer {
 public:
  transformer(transformer_config config, tensors parameters)
      : c_(config), parameters_(std::move(parameters)) {
    require(c_.hidden % c_.heads == 0 && c_.heads % c_.kv_heads == 0,
            "heads must divide hidden, kv_heads heads");
    for (const auto& [name, shape] : parameter_shapes(c_)) {
      require(parameters_.count(name) == 1, "no parameter " + name);
      require(parameters_.at(name).shape == shape, name + " has another shape than the configuration says");
      require_size(parameters_.at(name).data, element_count(shape), name.c_str());
    }
    require(parameters_.size() == parameter_shapes(c_).size(),
            "there are parameters with names of no Mixtral");
  }

  /// From now on expert(layer, row, slot) chooses, not the router.
  void force(std::function<index(index, index, index)> expert) { forced_ = std::move(expert); }

  const transformer_config& config() const { return c_; }
  tensors& parameters() { return parameters_; }

  transformer_result forward(const batch& data) const {
    transformer_result out;
    const index rows = data.rows();
    vec x = embedded(data);
    std::vector<routing> all_routes;
    for (index l = 0; l < c_.layers; ++l) {
      x = forward_layer(l, x, data, out.layers.emplace_back());
      all_routes.push_back(out.layers.back().routes);
    }
    out.last = x;
    out.normed = rms_norm(x, weight("model.norm.weight"), rows, c_.hidden, c_.rms_epsilon);
    out.logits = linear(out.normed, head(), rows, c_.hidden, c_.vocabulary);
    out.row_loss = cross_entropy(out.logits, data.labels, c_.vocabulary);
    for (const double loss : out.row_loss) out.cross_entropy += loss / counting_rows(data);
    out.balance = balance_loss(all_routes, c_.balance).loss;
    out.loss = out.cross_entropy + c_.balance_weight * out.balance;
    return out;
  }

  /// The losses of `rows` alone: every hidden state is computed, one layer at a time, but logits for these
  /// only, and nothing is kept for a backward. For long sequences and large vocabularies.
  sampled_rows losses_of(const batch& data, const std::vector<index>& rows) const {
    vec x = embedded(data);
    sampled_rows out{{}, vec(rows.size(), std::numeric_limits<double>::infinity())};
    for (index l = 0; l < c_.layers; ++l) {
      layer_state state;
      x = forward_layer(l, x, data, state);
      for (std::size_t i = 0; i < rows.size() && c_.top_k < c_.experts; ++i) {
        const auto first = state.routes.probability.begin() + rows[i] * c_.experts;
        vec p(first, first + c_.experts);
        std::sort(p.rbegin(), p.rend());
        out.margin[i] = std::min(out.margin[i], std::log(p[c_.top_k - 1] / p[c_.top_k]));
      }
    }
    const index n = static_cast<index>(rows.size());
    vec last;
    std::vector<index> labels;
    for (const index row : rows) {
      last.insert(last.end(), x.begin() + row * c_.hidden, x.begin() + (row + 1) * c_.hidden);
      labels.push_back(data.labels[row]);
    }
    const vec normed = rms_norm(last, weight("model.norm.weight"), n, c_.hidden, c_.rms_epsilon);
    out.loss = cross_entropy(linear(normed, head(), n, c_.hidden, c_.vocabulary), labels, c_.vocabulary);
    return out;
  }

  /// The gradient of `loss` by every parameter, under the parameter's name.
  tensors backward(const batch& data, const transformer_result& saved) const {
    tensors g = zeros_like(parameters_);
    const index rows = data.rows();
    const vec upstream(static_cast<std::size_t>(rows), 1.0 / counting_rows(data));
    const vec dlogits = cross_entropy_backward(upstream, saved.logits, data.labels, c_.vocabulary);
    vec dnormed = zeros(rows * c_.hidden);
    add_linear_backward(dlogits, saved.normed, head(), rows, c_.hidden, c_.vocabulary, dnormed,
                        g.at(c_.tied ? "model.embed_tokens.weight" : "lm_head.weight").data);
    vec dx = norm_backward("model.norm.weight", dnormed, saved.last, rows, g);

    std::vector<routing> all_routes;
    for (const layer_state& layer : saved.layers) all_routes.push_back(layer.routes);
    const reference::balance balanced = balance_loss(all_routes, c_.balance);
    for (index l = c_.layers - 1; l >= 0; --l) {
      vec dprobability = balanced.dprobability[l];
      for (double& value : dprobability) value *= c_.balance_weight;
      dx = backward_layer(l, dx, data, saved.layers[l], dprobability, g);
    }
    vec& dembedding = g.at("model.embed_tokens.weight").data;
    for (index r = 0; r < rows; ++r)
      for (index i = 0; i < c_.hidden; ++i)
        dembedding[data.inputs[r] * c_.hidden + i] += dx[r * c_.hidden + i];
    return g;
  }

 private:
  const vec& weight(const std::string& name) const { return parameters_.at(name).data; }
  const vec& embedding() const { return weight("model.embed_tokens.weight"); }
  const vec& head() const { return c_.tied ? embedding() : weight("lm_head.weight"); }

  vec embedded(const batch& data) const {
    vec x = zeros(data.rows() * c_.hidden);
    for (index r = 0; r < data.rows(); ++r)
      for (index i = 0; i < c_.hidden; ++i)
        x[r * c_.hidden + i] = embedding()[data.inputs[r] * c_.hidden + i];
    return x; // (rows, hidden)
  }

  double counting_rows(const batch& data) const {
    index n = 0;
    for (const index label : data.labels) n += counts(label, c_.vocabulary) ? 1 : 0;
    return static_cast<double>(std::max<index>(n, 1));
  }

  attention_shape attention_of(const batch& data) const {
    return {data.sequences, data.length, c_.heads, c_.kv_heads, c_.head_dim()};
  }

  static std::vector<index> positions(const batch& data) {
    std::vector<index> out;
    for (index r = 0; r < data.rows(); ++r) out.push_back(r % data.length);
    return out;
  }

  /// The rows of one expert's input, and where among all routes (row * top_k + slot) they belong.
  struct share {
    std::vector<index> route;
    vec x; // (routes, hidden)

    index rows() const { return static_cast<index>(route.size()); }
  };

  share share_of(index expert, const layer_state& s) const {
    share out;
    for (index route = 0; route < static_cast<index>(s.routes.expert.size()); ++route) {
      if (s.routes.expert[route] != expert) continue;
      out.route.push_back(route);
      const auto row = s.moe_input.begin() + route / c_.top_k * c_.hidden;
      out.x.insert(out.x.end(), row, row + c_.hidden);
    }
    return out;
  }

  vec expert_forward(index l, index e, const share& in) const {
    return swiglu(in.x, weight(expert_name(l, e, "w1.weight")), weight(expert_name(l, e, "w2.weight")),
                  weight(expert_name(l, e, "w3.weight")), in.rows(), c_.hidden, c_.intermediate);
  }

  vec forward_layer(index l, const vec& x, const batch& data, layer_state& s) const {
    const index rows = data.rows(), hidden = c_.hidden;
    const auto project = [&](const vec& in, const char* name, index to) {
      return linear(in, weight(layer_name(l, name)), rows, hidden, to);
    };
    s.x = x;
    s.normed = rms_norm(x, weight(layer_name(l, "input_layernorm.weight")), rows, hidden, c_.rms_epsilon);
    const std::vector<index> at = positions(data);
    s.q = rope(project(s.normed, "self_attn.q_proj.weight", hidden), at, c_.heads, c_.head_dim(),
               c_.rope_theta);
    s.k = rope(project(s.normed, "self_attn.k_proj.weight", c_.kv_hidden()), at, c_.kv_heads, c_.head_dim(),
               c_.rope_theta);
    s.v = project(s.normed, "self_attn.v_proj.weight", c_.kv_hidden());
    s.attended = attention(attention_of(data), s.q, s.k, s.v);
    s.middle = sum_of(x, project(s.attended, "self_attn.o_proj.weight", hidden));

    s.moe_input = rms_norm(s.middle, weight(layer_name(l, "post_attention_layernorm.weight")), rows, hidden,
                           c_.rms_epsilon);
    const vec logits = project(s.moe_input, "block_sparse_moe.gate.weight", c_.experts);
    if (forced_) {
      std::vector<index> chosen;
      for (index r = 0; r < rows; ++r)
        for (index slot = 0; slot < c_.top_k; ++slot) chosen.push_back(forced_(l, r, slot));
      s.routes = route_to(logits, std::move(chosen), rows, c_.experts, c_.top_k);
    } else {
      s.routes = route(logits, rows, c_.experts, c_.top_k);
    }
    vec out = s.middle;
    for (index e = 0; e < c_.experts; ++e) {
      const share in = share_of(e, s);
      const vec y = expert_forward(l, e, in);
      for (index n = 0; n < in.rows(); ++n)
        for (index i = 0; i < hidden; ++i)
          out[in.route[n] / c_.top_k * hidden + i] += s.routes.gate[in.route[n]] * y[n * hidden + i];
    }
    return out; // (rows, hidden)
  }

  vec norm_backward(const std::string& name, const vec& dy, const vec& x, index rows, tensors& g) const {
    rms_norm_gradients d = rms_norm_backward(dy, x, weight(name), rows, c_.hidden, c_.rms_epsilon);
    add_to(g.at(name).data, d.dgain);
    return std::move(d.dx);
  }

  vec backward_layer(index l, const vec& dout, const batch& data, const layer_state& s,
                     const vec& dprobability, tensors& g) const {
    const index rows = data.rows(), hidden = c_.hidden;
    const auto add_projection = [&](const vec& dy, const vec& in, const char* name, index to, vec& dx) {
      const std::string full = layer_name(l, name);
      add_linear_backward(dy, in, weight(full), rows, hidden, to, dx, g.at(full).data);
    };

    // experts and router: what reaches the input of the mixture
    vec dmoe = zeros(rows * hidden), dgate = zeros(rows * c_.top_k);
    for (index e = 0; e < c_.experts; ++e) {
      const share in = share_of(e, s);
      const vec y = expert_forward(l, e, in);
      vec dy = zeros(in.rows() * hidden);
      for (index n = 0; n < in.rows(); ++n)
        for (index i = 0; i < hidden; ++i) {
          const double d = dout[in.route[n] / c_.top_k * hidden + i];
          dgate[in.route[n]] += d * y[n * hidden + i];
          dy[n * hidden + i] = d * s.routes.gate[in.route[n]];
        }
      const std::string w1 = expert_name(l, e, "w1.weight"), w2 = expert_name(l, e, "w2.weight"),
                        w3 = expert_name(l, e, "w3.weight");
      const swiglu_gradients d =
          swiglu_backward(dy, in.x, weight(w1), weight(w2), weight(w3), in.rows(), hidden, c_.intermediate);
      add_to(g.at(w1).data, d.dw1);
      add_to(g.at(w2).data, d.dw2);
      add_to(g.at(w3).data, d.dw3);
      for (index n = 0; n < in.rows(); ++n)
        for (index i = 0; i < hidden; ++i) dmoe[in.route[n] / c_.top_k * hidden + i] += d.dx[n * hidden + i];
    }
    add_projection(route_backward(s.routes, dgate, dprobability), s.moe_input, "block_sparse_moe.gate.weight",
                   c_.experts, dmoe);
    const vec dmiddle = sum_of(
        dout, norm_backward(layer_name(l, "post_attention_layernorm.weight"), dmoe, s.middle, rows, g));

    // attention
    vec dattended = zeros(rows * hidden), dnormed = zeros(rows * hidden);
    add_projection(dmiddle, s.attended, "self_attn.o_proj.weight", hidden, dattended);
    attention_gradients d = attention_backward(attention_of(data), dattended, s.q, s.k, s.v);
    const std::vector<index> at = positions(data);
    d.dq = rope(std::move(d.dq), at, c_.heads, c_.head_dim(), c_.rope_theta, turn::back);
    d.dk = rope(std::move(d.dk), at, c_.kv_heads, c_.head_dim(), c_.rope_theta, turn::back);
    add_projection(d.dq, s.normed, "self_attn.q_proj.weight", hidden, dnormed);
    add_projection(d.dk, s.normed, "self_attn.k_proj.weight", c_.kv_hidden(), dnormed);
    add_projection(d.dv, s.normed, "self_attn.v_proj.weight", c_.kv_hidden(), dnormed);
    return sum_of(dmiddle, norm_backward(layer_name(l, "input_layernorm.weight"), dnormed, s.x, rows, g));
  }

  transformer_config c_;
  tensors parameters_;
  std::function<index(index, index, index)> forced_;
};

} // namespace reference
