// SPDX-License-Identifier: Apache-2.0
//
// What memory a ring attention takes, line by line, which follows from its limits. Pure arithmetic on
// integers, the same on every rank.
#pragma once

#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/gemm.hpp>
#include <plateau/ring/attention_shape.hpp>
#include <plateau/ring/attention_tile.hpp>
#include <plateau/ring/online_lse.hpp>
#include <plateau/ring/ring_reduce.hpp>
#include <plateau/ring/ring_schedule.hpp>
#include <plateau/working_set.hpp>

#include <algorithm>
#include <string>
#include <type_traits>

namespace plateau::inline v0 {

namespace detail {

template <class Backend, class T, class Kernel> struct attention_plan {
  static constexpr bool by_gemm = std::is_same_v<Kernel, attention_by_gemm>;
  static constexpr bool wide = std::is_same_v<T, float>; // what is summed stands where it is wanted

  attention_shape shape;
  int ranks = 1;

  attention_plan(const attention_shape& s, int of_ranks) : shape(s), ranks(of_ranks) {
    s.check();
    if constexpr (requires { Kernel::check(s); }) Kernel::check(s);
    const auto check = [](const char* what, index_t n, index_t each) {
      if (too_many_elements(n, each))
        throw config_error("plateau: ring_attention: " + std::string(what) + " of " + std::to_string(n) +
                           " x " + std::to_string(each) + " elements overflows: make one of them smaller");
    };
    check("the queries of a rank", s.tokens, s.query_columns());
    check("a sub-block", hop_rows(), s.key_columns());
    if (!by_gemm) return;
    check("the rows of a tile", s.group() * kv_heads(), queries());
    check("a tile of scores", batch_rows(), keys());
    check("the rows of a tile", batch_rows(), s.head_size);
  }

  bool alone() const { return ranks == 1; }
  bool backward() const { return !shape.forward_only; }
  // Whether gradients of keys and values are summed where the caller wants them.
  bool key_gradients_at_home() const { return alone() && wide; }

  index_t hop_rows() const { return std::min(shape.hop_rows, std::max<index_t>(1, shape.tokens)); }
  // The largest tile that is ever there: positions, keys and key heads; rows of one key head, and of all.
  index_t queries() const { return std::min(shape.tile.queries, std::max<index_t>(1, shape.tokens)); }
  index_t keys() const { return std::min(shape.tile.keys, hop_rows()); }
  index_t kv_heads() const {
    return shape.tile.kv_heads == 0 ? shape.kv_heads : std::min(shape.tile.kv_heads, shape.kv_heads);
  }
  index_t rows() const { return queries() * shape.group(); }
  index_t batch_rows() const { return rows() * kv_heads(); }
  // One query head a key head lies as it is needed.
  bool packs() const { return shape.group() > 1; }

  ring_row payload() const {
    const std::size_t row = static_cast<std::size_t>(shape.key_columns()) * sizeof(T);
    return {row, row, shape.hidden_keys ? std::size_t{1} : std::size_t{0}};
  }
  ring_row backward_carry() const {
    if (key_gradients_at_home()) return {};
    const std::size_t row = static_cast<std::size_t>(shape.key_columns()) * sizeof(float);
    return {row, row};
  }
  ring_layout layout() const {
    return {hop_rows(),
            {"moving keys", "moving values", "moving marks of hidden keys"},
            {"moving key gradients", "moving value gradients"},
            alone() ? ring_row{} : payload(), // used where they are
            backward() ? backward_carry() : ring_row{}};
  }
  index_t scratch_bytes() const {
    if constexpr (by_gemm) {
      const index_t r = rows(), k = keys(), d = shape.head_size;
      const auto product = [](transpose a, transpose b, index_t m, index_t n, index_t terms) {
        return Backend::template gemm_scratch_bytes<T, T, float>(a, b, m, n, terms);
      };
      std::size_t most = std::max(product(transpose::no, transpose::yes, r, k, d),
                                  product(transpose::no, transpose::no, r, d, k));
      if (backward()) most = std::max(most, product(transpose::yes, transpose::no, k, d, r));
      return static_cast<index_t>(most);
    } else {
      return static_cast<index_t>(Kernel::scratch_bytes(shape));
    }
  }

  plateau::working_set working_set() const {
    plateau::working_set set(tag::activations);
    layout().add_to(set, ranks);
    const index_t n = shape.tokens;
    if (!wide) set.template device<float>("sums of queries", n * shape.query_columns());
    if constexpr (by_gemm) {
      if (backward()) set.template device<float>("outputs times their gradients", n * shape.heads);
      const index_t elements = batch_rows() * shape.head_size, scores = batch_rows() * keys();
      if (packs()) set.template device<T>("queries of a tile", elements);
      if (packs() && backward()) set.template device<T>("output gradients of a tile", elements);
      set.template device<online_lse>("states of a tile", batch_rows());
      set.template device<float>("sums of a tile", elements);
      set.template device<float>("tile of scores", scores);
      if (!wide) set.template device<T>("tile of shares", scores);
      if (backward()) set.template device<float>("tile of share gradients", scores);
      if (backward() && !wide) set.template device<T>("tile of score gradients", scores);
    } else {
      set.template device<T>("outputs of a tile", queries() * shape.query_columns());
      set.template device<float>("logarithms of a tile", queries() * shape.heads);
    }
    set.template device<unsigned char>("scratch", scratch_bytes());
    return set;
  }
};

// The parts of a workspace, in the order of the lines.
template <class Backend, class T, class Kernel> struct attention_memory {
  ring_buffers ring;
  view<float> sums, dots;
  view<T> queries, upstream;
  view<online_lse> states;
  view<float> tile_sums, scores;
  view<T> shares;
  view<float> dshares;
  view<T> dscores;
  view<T> results; // of a kernel of the user's, as the next one
  view<float> logarithms;
  scratch_view scratch;

  template <class Phase>
  static attention_memory take(Phase& open, const attention_plan<Backend, T, Kernel>& plan) {
    using plan_type = attention_plan<Backend, T, Kernel>;
    attention_memory m;
    const attention_shape& shape = plan.shape;
    const bool back = plan.backward();
    m.ring = ring_buffers::take(open, plan.layout(), plan.ranks);
    if (!plan_type::wide) m.sums = open.template device<float>(shape.tokens * shape.query_columns());
    if constexpr (plan_type::by_gemm) {
      if (back) m.dots = open.template device<float>(shape.tokens * shape.heads);
      const index_t elements = plan.batch_rows() * shape.head_size, scores = plan.batch_rows() * plan.keys();
      if (plan.packs()) m.queries = open.template device<T>(elements);
      if (plan.packs() && back) m.upstream = open.template device<T>(elements);
      m.states = open.template device<online_lse>(plan.batch_rows());
      m.tile_sums = open.template device<float>(elements);
      m.scores = open.template device<float>(scores);
      if (!plan_type::wide) m.shares = open.template device<T>(scores);
      if (back) m.dshares = open.template device<float>(scores);
      if (back && !plan_type::wide) m.dscores = open.template device<T>(scores);
    } else {
      m.results = open.template device<T>(plan.queries() * shape.query_columns());
      m.logarithms = open.template device<float>(plan.queries() * shape.heads);
    }
    m.scratch = open.template device<unsigned char>(plan.scratch_bytes());
    return m;
  }
};

} // namespace detail

} // namespace plateau::inline v0
