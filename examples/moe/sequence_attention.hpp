// SPDX-License-Identifier: Apache-2.0
//
// Attention over sequences that a group of ranks shares: Plateau's ring attention, between rotary positions
// of the whole sequence. Each rank has a balanced part of every sequence of its group; several sequences are
// documents of one. Keys and values go around the group, so that nothing here grows with the sequence but
// with a rank's part of it.
#pragma once

#include "kernels/rotary.hpp"
#include "kernels/split_rotary.hpp"
#include "layer_buffers.hpp"

#include <plateau/access.hpp>
#include <plateau/ring/attention.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>
#include <plateau/working_set.hpp>
#include <plateau/workspace.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace moe {

// What a ring attention is asked for: of a rank's tokens, whichever it is.
inline pl::attention_shape sequence_shape(const model_config& c, const batch_limits& b) {
  pl::attention_shape shape;
  shape.tokens = b.tokens();
  shape.heads = c.heads;
  shape.kv_heads = c.kv_heads;
  shape.head_size = c.head_size();
  shape.hop_rows = c.sequence.hop_rows;
  shape.tile.queries = c.attention.queries;
  shape.tile.keys = c.attention.keys;
  shape.tile.kv_heads = 0; // all, as attention over whole sequences does it
  return shape;
}

template <class Backend, class Communicator, class T> class sequence_attention {
  using stream = typename Backend::stream;
  using operation_type = pl::ring_attention<Backend, Communicator, T>;

 public:
  static pl::reservation reserve_for(const model_config& c, const batch_limits& b) {
    return pl::reserve(operation_type::working_set(sequence_shape(c, b), b.sequence_ranks));
  }

  // `ranks`: those that share each sequence, as many as the limits say; must outlive it, as `space` must,
  // which must have room whenever a function is called. Not a word passes between ranks: whoever makes the
  // model asks all of them.
  sequence_attention(Backend& backend, Communicator* ranks, pl::workspace<Backend>& space,
                     const model_config& c, const batch_limits& b)
      : backend_(&backend), config_(c), context_(b.whole_context),
        split_(pl::sequence_split::balanced(b.whole_context, b.sequence_ranks)),
        positions_(positions_of(split_, known(ranks, b).rank())),
        operation_(backend, *ranks, sequence_shape(c, b), space, pl::voting::left_to_caller) {}

  // As attention's: from flat_query, flat_key and flat_value, `rows` of each sequence, to `attended`; keeps
  // query, key, value and states. Collective, without a host exchange.
  void forward(stream& s, const layer_buffers<Backend, T>& buf, index_t sequences, index_t rows) {
    const index_t n = sequences * rows;
    turn(s, queries(buf.flat_query, n), queries(buf.query, n), config_.heads, 1);
    turn(s, keys(buf.flat_key, n), keys(buf.key, n), config_.kv_heads, 1);
    backend_->copy(s, pl::in(keys(buf.flat_value, n)), pl::out(keys(buf.value, n)));
    saved_.rows = buf.states.sub(0, n * config_.heads);
    operation_.forward(s, inputs(buf, sequences, n), saved_, queries(buf.attended, n));
  }

  // As attention's: from the gradient of `attended` in flat_query to those of the unrotated queries, keys and
  // values, in flat_query, flat_key and flat_value.
  void backward(stream& s, const layer_buffers<Backend, T>& buf, index_t sequences, index_t rows) {
    const index_t n = sequences * rows;
    const auto dquery = queries(buf.turned_dquery, n), dkey = keys(buf.turned_dkey, n);
    operation_.backward(s, inputs(buf, sequences, n), saved_, queries(buf.attended, n),
                        queries(buf.flat_query, n), {dquery, dkey, keys(buf.flat_value, n)});
    turn(s, dquery, queries(buf.flat_query, n), config_.heads, -1);
    turn(s, dkey, keys(buf.flat_key, n), config_.kv_heads, -1);
  }

 private:
  static Communicator& known(Communicator* ranks, const batch_limits& b) {
    if (ranks == nullptr || ranks->size() != b.sequence_ranks)
      throw pl::config_error("model: sequences are shared by " + std::to_string(b.sequence_ranks) +
                             " ranks; expected a communicator of them, got " +
                             (ranks == nullptr ? "none" : "one of " + std::to_string(ranks->size())));
    return *ranks;
  }

  pl::tile<T> queries(pl::view<T> memory, index_t n) const {
    return pl::as_matrix(memory, n, config_.heads * config_.head_size());
  }
  pl::tile<T> keys(pl::view<T> memory, index_t n) const {
    return pl::as_matrix(memory, n, config_.kv_heads * config_.head_size());
  }
  void turn(stream& s, pl::tile<T> from, pl::tile<T> to, index_t heads, float direction) {
    backend_->launch(s, pl::rows{from.rows},
                     rotate_split_rows{positions_, heads, config_.head_size(), config_.rope_theta, direction},
                     pl::in(from), pl::out(to));
  }
  typename operation_type::inputs inputs(const layer_buffers<Backend, T>& buf, index_t sequences, index_t n) {
    lay_out(sequences);
    typename operation_type::inputs in;
    in.q = queries(buf.query, n);
    in.k = keys(buf.key, n);
    in.v = keys(buf.value, n);
    in.split = &*all_;
    in.cu_seqlens = begins_;
    in.agreed = true; // all ranks of a group have the same sequences, and all groups the same split
    return in;
  }
  // Sequences one behind another, each split alike.
  void lay_out(index_t sequences) {
    if (all_ && static_cast<index_t>(begins_.size()) == sequences + 1) return;
    begins_.assign(1, 0);
    std::vector<std::vector<pl::position_range>> chunks(static_cast<std::size_t>(split_.ranks()));
    for (index_t i = 0; i < sequences; ++i) {
      for (int r = 0; r < split_.ranks(); ++r)
        for (const pl::position_range& chunk : split_.chunks(r))
          chunks[static_cast<std::size_t>(r)].push_back({begins_.back() + chunk.first, chunk.rows});
      begins_.push_back(begins_.back() + context_);
    }
    all_ = pl::sequence_split::of(begins_.back(), chunks);
  }

  Backend* backend_;
  model_config config_;
  index_t context_;
  pl::sequence_split split_; // of one sequence
  split_positions positions_;
  std::optional<pl::sequence_split> all_; // of the last micro-batch's
  std::vector<index_t> begins_;
  pl::attention_saved saved_;
  operation_type operation_;
};

} // namespace moe
