// SPDX-License-Identifier: Apache-2.0
//
// The shape of the reference model and its share on one rank: plain numbers, the same on every rank. The
// model is a decoder-only mixture-of-experts transformer after Mixtral (Jiang et al. 2024).
#pragma once

#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/offload/offload_shape.hpp>
#include <plateau/ring/ring_schedule.hpp>
#include <plateau/staging/adamw_shape.hpp>

#include <string>

namespace moe {

using plateau::index_t;

inline constexpr index_t top_k_limit = 16; // experts of a token that the router's kernel keeps

// Positions of queries and of keys in one tile of attention: large ones keep a GPU busy, small ones fit into
// a CPU's cache. The keys' number is part of the grouping of sums, so of a result's bits.
struct attention_tile_size {
  index_t queries = 64;
  index_t keys = 128;
};

// Which of the four peaks are flattened by Plateau's collectives; none of them is the baseline that everyone
// has.
struct flatten_set {
  bool dispatch = false, vocabulary = false, checkpoint = false, optimizer = false;
};

// Which ranks compute an expert's rows: the one that has its weights, or whoever has fewest rows, as Plateau
// bounds it or as it was published.
enum class expert_placement : unsigned char { native, least_loaded, published };

// How a dispatch by rounds goes about it; the uncapped one does not ask. The caps are the most rows that a
// rank sends, and gets, in one round.
struct dispatch_settings {
  index_t send_cap_rows = 4096;
  index_t receive_cap_rows = 4096;
  int slots = 2; // rounds in flight
  expert_placement placement = expert_placement::least_loaded;
  index_t foreign_experts = 2; // most experts of other ranks on a rank, where the placement is least_loaded
};

// How a loss without logits goes about it; the dense one does not ask. The tile is that of the logits that
// exist at a time.
struct loss_settings {
  index_t tile_tokens = 1024;
  index_t tile_vocabulary = 2048;
  index_t hop_rows = 1024; // of tokens or of the vocabulary, whatever moves
  plateau::rotation rotate = plateau::rotation::automatic;
};

// How inputs of layers are parked; those on the device do not ask.
struct checkpoint_settings {
  index_t host_budget_bytes = plateau::offload_shape::no_limit; // pinned memory of a rank for them
  index_t keep_every = 1; // layers: inputs of the others are computed again in backward
};

// How an optimizer goes about it whose state is in host memory; the one on the device does not ask.
struct optimizer_settings {
  std::size_t bucket_bytes = 0; // of one bucket, all fields that move; 0: 64 MiB, less for a small state
  int slots = 3;
  plateau::update_on where = plateau::update_on::device;
  bool zero1 = false; // each rank keeps its shard of what several ranks hold
};

// How attention over a sequence that several ranks share goes about it; that over whole ones does not ask.
struct sequence_settings {
  index_t hop_rows = 1024; // of keys and values, that move around its ranks at a time
};

struct model_config {
  index_t layers = 2;
  index_t hidden = 128;
  index_t heads = 4;
  index_t kv_heads = 2;
  index_t experts = 8;
  index_t top_k = 2;
  index_t intermediate = 256;
  index_t vocabulary = 65536;
  float norm_epsilon = 1e-5F;
  double rope_theta = 1e4;
  bool tied = false;        // the output projection is the embedding
  float balance_weight = 0; // of the load-balancing loss
  attention_tile_size attention{};
  sequence_settings sequence{};
  flatten_set flatten{}; // for peaks that are chosen at run time (chosen_peaks.hpp)
  dispatch_settings dispatch{};
  loss_settings loss{};
  checkpoint_settings checkpoint{};
  optimizer_settings optimizer{};

  index_t head_size() const { return hidden / heads; }
};

// How the ranks divide the work. Experts lie in blocks over the ranks of an expert group; every other
// parameter is on every rank, but for the head where the vocabulary is flattened, whose rows lie in blocks
// over all ranks.
struct rank_grid {
  int ranks = 1;
  int expert_parallel = 1; // ranks in an expert group; divides `ranks`

  int expert_rank(int rank) const { return rank % expert_parallel; }
};

// What one rank computes at most in one micro-batch.
struct batch_limits {
  index_t sequences = 1; // on the rank that has most
  index_t context = 128; // tokens of each, where ranks share it of the part that is largest
  // Where ranks share each sequence: how many, and the tokens of all of it.
  int sequence_ranks = 1;
  index_t whole_context = 0;

  index_t tokens() const { return sequences * context; }
};

// Throws plateau::config_error, naming the first number that cannot be.
inline void check(const model_config& c, const rank_grid& g) {
  const auto require = [](bool fine, const std::string& what) {
    if (!fine) throw plateau::config_error("model: " + what);
  };
  const auto text = [](index_t n) { return std::to_string(n); };
  require(c.layers >= 0 && c.hidden > 0 && c.heads > 0 && c.kv_heads > 0 && c.experts > 0 &&
              c.intermediate > 0 && c.vocabulary > 0,
          "every extent must be positive");
  require(c.hidden % c.heads == 0 && c.head_size() % 2 == 0, text(c.heads) +
                                                                 " heads do not divide a hidden size of " +
                                                                 text(c.hidden) + " into even head sizes");
  require(c.attention.queries > 0 && c.attention.keys > 0, "an attention tile of " +
                                                               text(c.attention.queries) + " x " +
                                                               text(c.attention.keys) + " positions");
  require(c.heads % c.kv_heads == 0,
          text(c.kv_heads) + " key-value heads do not divide " + text(c.heads) + " heads");
  require(c.top_k >= 1 && c.top_k <= c.experts && c.top_k <= top_k_limit,
          "top-k is " + text(c.top_k) + ", expected 1 to the smaller of " + text(top_k_limit) + " and " +
              text(c.experts) + " experts");
  require(c.rope_theta >= 1 && c.norm_epsilon > 0,
          "expected a rotary base of at least 1 and a norm epsilon above 0");
  require(g.ranks >= 1 && g.expert_parallel >= 1 && g.ranks % g.expert_parallel == 0,
          "expert groups of " + text(g.expert_parallel) + " do not divide " + text(g.ranks) + " ranks");
  require(c.experts % g.expert_parallel == 0,
          text(c.experts) + " experts do not divide over expert groups of " + text(g.expert_parallel));
}

} // namespace moe
