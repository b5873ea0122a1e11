// SPDX-License-Identifier: Apache-2.0
//
// A kernel of a user's for blocks of a ring attention, a score at a time: (out, lse), and gradients from
// those of all keys.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/kernels.hpp>
#include <plateau/math.hpp>
#include <plateau/ring/attention_tile.hpp>
#include <plateau/ring/online_lse.hpp>
#include <plateau/scalar.hpp>
#include <plateau/scratch.hpp>
#include <plateau/view.hpp>

#include <cstdint>

namespace support {

namespace pl = plateau;
using plateau::index_t;

// What both directions know of a block.
struct score_and_mask {
  pl::attention_tile_mask mask;
  index_t heads, kv_heads, size;
  float scale;

  template <class Row> PLATEAU_HD float score(const Row* q, const Row* k) const {
    float z = 0;
    for (index_t e = 0; e < size; ++e) z += pl::widen(q[e]) * pl::widen(k[e]);
    return z * scale;
  }
  PLATEAU_HD bool sees(index_t i, index_t j, pl::view<const unsigned char> hidden) const {
    const pl::attention_columns seen = mask.seen(i);
    return j >= seen.first && j < seen.end && (hidden.n == 0 || hidden[j] == 0);
  }
  PLATEAU_HD index_t query_at(index_t h) const { return h * size; }
  PLATEAU_HD index_t key_at(index_t h) const { return h / (heads / kv_heads) * size; }
};
// Over elements{queries x heads}.
struct plain_forward {
  score_and_mask of;
  template <class T>
  PLATEAU_HD void operator()(index_t n, pl::tile<const T> q, pl::tile<const T> k, pl::tile<const T> v,
                             pl::view<const unsigned char> hidden, pl::tile<T> out,
                             pl::tile<float> lse) const {
    const index_t i = n / of.heads, h = n % of.heads;
    pl::online_lse state;
    for (index_t j = 0; j < k.rows; ++j)
      if (of.sees(i, j, hidden))
        state =
            merge(state, pl::online_lse::of(of.score(q.row(i) + of.query_at(h), k.row(j) + of.key_at(h))));
    for (index_t e = 0; e < of.size; ++e) {
      float sum = 0;
      for (index_t j = 0; j < k.rows; ++j)
        if (of.sees(i, j, hidden))
          sum += pl::exp(of.score(q.row(i) + of.query_at(h), k.row(j) + of.key_at(h)) - state.m) *
                 pl::widen(v(j, of.key_at(h) + e));
      out(i, of.query_at(h) + e) = pl::narrow<T>(state.s == 0 ? 77.0F : sum / state.s); // not looked at
    }
    lse(h, i) = state.s == 0 ? pl::bit_cast<float>(std::uint32_t{0xff800000}) : state.value(); // -infinity
  }
};
// Over elements{queries x heads} for dq, elements{keys x kv_heads} for dk and dv.
struct plain_backward {
  score_and_mask of;
  bool of_queries;

  template <class T>
  PLATEAU_HD void operator()(index_t n, pl::tile<const T> q, pl::tile<const T> k, pl::tile<const T> v,
                             pl::view<const unsigned char> hidden, pl::tile<const T> out,
                             pl::tile<const float> lse, pl::tile<const T> dout, pl::tile<float> dq,
                             pl::tile<float> dk, pl::tile<float> dv) const {
    const index_t group = of.heads / of.kv_heads;
    const auto pair = [&](index_t i, index_t j, index_t h) {
      if (!of.sees(i, j, hidden)) return;
      const T* d = dout.row(i) + of.query_at(h);
      const float share = pl::exp(of.score(q.row(i) + of.query_at(h), k.row(j) + of.key_at(h)) - lse(h, i));
      float dshare = 0;
      for (index_t e = 0; e < of.size; ++e)
        dshare +=
            pl::widen(d[e]) * (pl::widen(v(j, of.key_at(h) + e)) - pl::widen(out(i, of.query_at(h) + e)));
      for (index_t e = 0; e < of.size; ++e) {
        if (of_queries) {
          dq(i, of.query_at(h) + e) += share * dshare * of.scale * pl::widen(k(j, of.key_at(h) + e));
          continue;
        }
        dk(j, of.key_at(h) + e) += share * dshare * of.scale * pl::widen(q(i, of.query_at(h) + e));
        dv(j, of.key_at(h) + e) += share * pl::widen(d[e]);
      }
    };
    if (of_queries)
      for (index_t j = 0; j < k.rows; ++j) pair(n / of.heads, j, n % of.heads);
    else
      for (index_t i = 0; i < q.rows; ++i)
        for (index_t g = 0; g < group; ++g) pair(i, n / of.kv_heads, n % of.kv_heads * group + g);
  }
};
struct plain_attention {
  static index_t scratch_bytes(const pl::attention_shape& s) { return s.tile.queries; }
  static void check(const pl::attention_shape& s) {
    if (s.head_size > 64) throw pl::config_error("plain_attention: heads of up to 64");
  }
  template <class T> static score_and_mask about(const pl::attention_block<T>& b) {
    return {b.mask, b.heads, b.kv_heads, b.head_size, b.score_scale};
  }
  template <class Backend, class T>
  void forward(Backend& backend, typename Backend::stream& s, const pl::attention_block<T>& b,
               pl::tile<T> out, pl::tile<float> lse, pl::scratch_view scratch) {
    backend.launch(s, pl::elements{scratch.n}, pl::fill<unsigned char>{1}, pl::out(scratch));
    backend.launch(s, pl::elements{b.q.rows * b.heads}, plain_forward{about(b)}, pl::in(b.q), pl::in(b.k),
                   pl::in(b.v), pl::in(b.hidden_keys), pl::out(out), pl::out(lse));
  }
  template <class Backend, class T>
  void backward(Backend& backend, typename Backend::stream& s, const pl::attention_block<T>& b,
                pl::tile<const T> out, pl::tile<const float> lse, pl::tile<const T> dout, pl::tile<float> dq,
                pl::tile<float> dk, pl::tile<float> dv, pl::scratch_view) {
    for (const bool of_queries : {true, false})
      backend.launch(s, pl::elements{of_queries ? b.q.rows * b.heads : b.k.rows * b.kv_heads},
                     plain_backward{about(b), of_queries}, pl::in(b.q), pl::in(b.k), pl::in(b.v),
                     pl::in(b.hidden_keys), pl::in(out), pl::in(lse), pl::in(dout), pl::inout(dq),
                     pl::inout(dk), pl::inout(dv));
  }
};

} // namespace support
