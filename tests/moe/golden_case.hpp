// SPDX-License-Identifier: Apache-2.0
//
// One folder of tests/golden in memory, widened to float64: configuration, weights, batch, and what
// transformers made of them. tests/golden/README.md says how they came about.
#pragma once

#include "reference/transformer.hpp"
#include "safetensors.hpp"

#include <nlohmann/json.hpp>

#include <fstream>
#include <string>

namespace golden {

inline const std::string case_names[] = {"untied_top2", "tied_top1_balance"};

struct golden_case {
  reference::transformer_config config;
  reference::tensors weights, gradients; // exact in float32
  reference::batch data;
  double loss = 0, cross_entropy = 0, balance = 0; // loss = cross_entropy + config.balance_weight * balance
};

inline std::string path_of(const std::string& name, const std::string& file) {
  return std::string(MOE_GOLDEN_DIR) + "/" + name + "/" + file;
}

inline reference::transformer_config read_config(const std::string& path) {
  const nlohmann::json j = nlohmann::json::parse(std::ifstream(path));
  reference::transformer_config c;
  c.vocabulary = j.at("vocab_size");
  c.hidden = j.at("hidden_size");
  c.layers = j.at("num_hidden_layers");
  c.heads = j.at("num_attention_heads");
  c.kv_heads = j.at("num_key_value_heads");
  c.experts = j.at("num_local_experts");
  c.top_k = j.at("num_experts_per_tok");
  c.intermediate = j.at("intermediate_size");
  c.rope_theta = j.at("rope_theta");
  c.rms_epsilon = j.at("rms_norm_eps");
  c.tied = j.at("tie_word_embeddings");
  c.balance_weight = j.at("router_aux_loss_coef");
  return c;
}

inline reference::tensors read_tensors(const std::string& path) {
  const moe::safetensors_reader file(path);
  reference::tensors out;
  for (const moe::stored_tensor& stored : file.tensors()) {
    std::vector<float> values(static_cast<std::size_t>(stored.elements));
    file.read(stored.name, stored.shape, std::span<float>(values));
    out[stored.name] = {stored.shape, reference::vec(values.begin(), values.end())};
  }
  return out;
}

inline double read_double(const moe::safetensors_reader& file, const char* name) {
  double value = 0;
  file.read_bytes(name, moe::storage_type::f64, {1}, 0, std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

inline golden_case read_case(const std::string& name) {
  golden_case out;
  out.config = read_config(path_of(name, "config.json"));
  out.weights = read_tensors(path_of(name, "weights.safetensors"));
  out.gradients = read_tensors(path_of(name, "gradients.safetensors"));
  const moe::safetensors_reader file(path_of(name, "batch.safetensors"));
  const moe::stored_tensor& stored = file.find("tokens");
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(stored.elements));
  file.read("tokens", stored.shape, std::span<std::int64_t>(tokens));
  out.data = reference::next_token_batch(tokens, stored.shape.at(0), stored.shape.at(1) - 1);
  out.loss = read_double(file, "loss");
  out.cross_entropy = read_double(file, "cross_entropy");
  out.balance = read_double(file, "balance");
  return out;
}

} // namespace golden
