// SPDX-License-Identifier: Apache-2.0
//
// Which tensors a rank holds and where they lie: pure arithmetic. Parameters form three flat groups, since
// they are reduced over different ranks: `shared` ones are on every rank, `expert` ones on one rank of each
// expert group, and `owned` ones on one rank of all: where the vocabulary is flattened, the head's rows.
// Names are those of the published Mixtral-8x7B files.
#pragma once

#include "model_config.hpp"

#include <plateau/ring/ring_schedule.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace moe {

namespace pl = plateau;

struct parameter {
  std::string name;
  index_t rows = 1, cols = 1; // a vector has one row
  bool vector = false;
  index_t offset = 0;     // elements from the start of its group
  index_t first_row = 0;  // of the whole tensor's, where this is a part of it
  index_t whole_rows = 1; // of the whole tensor

  index_t elements() const { return rows * cols; }
  index_t first_element() const { return first_row * cols; } // of the whole tensor's
  // Of the whole tensor.
  std::vector<std::int64_t> shape() const {
    return vector ? std::vector<std::int64_t>{cols} : std::vector<std::int64_t>{whole_rows, cols};
  }
};

// Over which ranks a group's gradients are summed, and who holds it.
enum class group_kind : unsigned char {
  shared, // every rank
  expert, // one rank of each expert group: its replicas
  owned   // one rank: no other
};
inline constexpr std::array all_group_kinds{group_kind::shared, group_kind::expert, group_kind::owned};

// The tensors of one group, one after the other.
class parameter_group {
 public:
  explicit parameter_group(group_kind kind) : kind_(kind) {}

  group_kind kind() const { return kind_; }
  int add(std::string name, index_t rows, index_t cols, bool vector = false) {
    return add_part(std::move(name), rows, cols, 0, rows, vector);
  }
  // Rows [first, first + rows) of whole_rows.
  int add_part(std::string name, index_t rows, index_t cols, index_t first, index_t whole_rows,
               bool vector = false) {
    all_.push_back({std::move(name), rows, cols, vector, elements_, first, whole_rows});
    elements_ += rows * cols;
    return static_cast<int>(all_.size()) - 1;
  }
  const parameter& operator[](int i) const { return all_[static_cast<std::size_t>(i)]; }
  const std::vector<parameter>& all() const { return all_; }
  index_t elements() const { return elements_; }

 private:
  group_kind kind_;
  std::vector<parameter> all_;
  index_t elements_ = 0;
};

// Positions of a layer's tensors in their groups.
struct layer_parameters {
  int input_norm, query, key, value, output, post_norm, router; // shared
  std::vector<int> gate, up, down;                              // expert: w1, w3, w2 of the local experts
};

struct parameter_layout {
  parameter_group shared{group_kind::shared}, expert{group_kind::expert}, owned{group_kind::owned};
  int embedding = 0, final_norm = 0, head = 0; // in `shared`; an owned head: in `owned`
  std::vector<layer_parameters> layers;
  index_t head_first = 0, head_rows = 0; // the rows of the head that this rank multiplies with
  std::vector<index_t> owned_elements;   // of every rank

  std::array<const parameter_group*, 3> groups() const { return {&shared, &expert, &owned}; }

  // All tensors, whole: what a file of the model holds, however the ranks divide them.
  static parameter_layout whole(model_config c) {
    c.flatten = {};
    return {c, {1, 1}, 0};
  }

  // The tensors of a rank.
  parameter_layout(const model_config& c, const rank_grid& g, int rank) {
    check(c, g);
    const int expert_rank = g.expert_rank(rank);
    const index_t queries = c.heads * c.head_size(), keys = c.kv_heads * c.head_size();
    const index_t local = c.experts / g.expert_parallel;
    embedding = shared.add("model.embed_tokens.weight", c.vocabulary, c.hidden);
    for (index_t l = 0; l < c.layers; ++l) {
      const std::string at = "model.layers." + std::to_string(l) + ".";
      layer_parameters p;
      p.input_norm = shared.add(at + "input_layernorm.weight", 1, c.hidden, true);
      p.query = shared.add(at + "self_attn.q_proj.weight", queries, c.hidden);
      p.key = shared.add(at + "self_attn.k_proj.weight", keys, c.hidden);
      p.value = shared.add(at + "self_attn.v_proj.weight", keys, c.hidden);
      p.output = shared.add(at + "self_attn.o_proj.weight", c.hidden, queries);
      p.post_norm = shared.add(at + "post_attention_layernorm.weight", 1, c.hidden, true);
      p.router = shared.add(at + "block_sparse_moe.gate.weight", c.experts, c.hidden);
      for (index_t e = local * expert_rank; e < local * (expert_rank + 1); ++e) {
        const std::string expert_at = at + "block_sparse_moe.experts." + std::to_string(e) + ".";
        p.gate.push_back(expert.add(expert_at + "w1.weight", c.intermediate, c.hidden));
        p.down.push_back(expert.add(expert_at + "w2.weight", c.hidden, c.intermediate));
        p.up.push_back(expert.add(expert_at + "w3.weight", c.intermediate, c.hidden));
      }
      layers.push_back(std::move(p));
    }
    final_norm = shared.add("model.norm.weight", 1, c.hidden, true);
    const pl::even_shards shards{c.vocabulary, g.ranks};
    const bool split = c.flatten.vocabulary;
    head_first = split ? shards.first(rank) : 0;
    head_rows = split ? shards.count(rank) : c.vocabulary;
    for (int r = 0; r < g.ranks; ++r)
      owned_elements.push_back(split && !c.tied ? shards.count(r) * c.hidden : 0);
    if (c.tied)
      head = embedding;
    else if (split)
      head = owned.add_part("lm_head.weight", head_rows, c.hidden, head_first, c.vocabulary);
    else
      head = shared.add("lm_head.weight", c.vocabulary, c.hidden);
  }
};

} // namespace moe
