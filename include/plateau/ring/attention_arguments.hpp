// SPDX-License-Identifier: Apache-2.0
//
// What a ring attention is given and gives, and whether that fits its shape. What does not fit is found as a
// few integers, so that every rank can say the same about one of them.
#pragma once

#include <plateau/config.hpp>
#include <plateau/digest.hpp>
#include <plateau/error.hpp>
#include <plateau/ring/attention_shape.hpp>
#include <plateau/ring/online_lse.hpp>
#include <plateau/ring/packed_documents.hpp>
#include <plateau/ring/sequence_split.hpp>
#include <plateau/view.hpp>

#include <array>
#include <span>
#include <string>

namespace plateau::inline v0 {

// What is given to forward, and again to backward. Device memory but for split and cu_seqlens; rows may be
// further apart than they are long. A rank's rows are its positions in the order of its chunks; it may have
// none. split and cu_seqlens are those of the whole sequence, the same on all ranks, and read before the call
// returns.
template <class T> struct attention_inputs {
  tile<const T> q;                         // (rows of this rank, heads x head_size), rotated already
  tile<const T> k, v;                      // (rows of this rank, kv_heads x head_size)
  const sequence_split* split = nullptr;   // which positions are on which rank
  std::span<const index_t> cu_seqlens{};   // where documents begin, and the end of the last; none: one
  view<const unsigned char> hidden_keys{}; // (rows), if the shape has them: not 0 where no query sees the key
  bool agreed = false; // all ranks are known to give the same split and cu_seqlens, and what fits
};

// What is kept from forward to backward, in the caller's storage: one for each forward whose backward is
// still to come.
struct attention_saved {
  view<online_lse> rows{}; // (rows x heads) or more: 8 bytes each
  std::uint64_t of = 0;    // filled by forward: of which split and documents
};

// Where backward puts its gradients: all rows are written, rounded once.
template <class T> struct attention_gradients {
  tile<T> dq{};       // as q
  tile<T> dk{}, dv{}; // as k
};

namespace detail {

// Which position is where, and what it sees, on which all ranks must agree; never 0.
inline std::uint64_t attention_digest(const sequence_split& split, std::span<const index_t> cu_seqlens) {
  digest d;
  d.add(split.tokens()).add(split.ranks());
  for (int r = 0; r < split.ranks(); ++r) {
    d.add(split.chunks(r).size());
    for (const position_range& chunk : split.chunks(r)) d.add(chunk.first).add(chunk.rows);
  }
  for (const index_t begin : cu_seqlens) d.add(begin);
  return d.value() | 1u;
}

// What does not fit, by number, and both values; -1: all fits.
struct attention_misfit {
  static constexpr std::int64_t decreases = 4;
  std::int64_t number = -1, got = 0, wanted = 0;

  std::string text(int rank) const {
    constexpr const char* names[] = {"a split must be given: its ranks",
                                     "the rows of this rank's chunks",
                                     "the beginning of cu_seqlens",
                                     "the end of cu_seqlens, the tokens of the sequence,",
                                     "",
                                     "the rows of q",
                                     "the columns of q",
                                     "the rows of k",
                                     "the columns of k",
                                     "the rows of v",
                                     "the columns of v",
                                     "the elements from row to row of q",
                                     "the elements from row to row of k",
                                     "the elements from row to row of v",
                                     "the hidden keys, of a shape with them,",
                                     "the rows of saved, for each row and head one,",
                                     "the rows of out",
                                     "the columns of out",
                                     "the elements from row to row of out"};
    const std::string begin = "plateau: rank " + std::to_string(rank) + ": ring_attention: ";
    if (number == decreases)
      return begin + "cu_seqlens must never decrease, but falls from " + std::to_string(wanted) + " to " +
             std::to_string(got);
    const bool most = number == 1, least = (number >= 11 && number <= 13) || number == 15 || number == 18;
    return begin + names[static_cast<std::size_t>(number)] + " must be " +
           (most    ? "at most "
            : least ? "at least "
                    : "") +
           std::to_string(wanted) + ", got " + std::to_string(got);
  }
};

template <class T>
attention_misfit find_misfit(const attention_shape& limits, int rank, int ranks,
                             const attention_inputs<T>& in, const attention_saved& keep,
                             tile<const T> result) {
  attention_misfit f;
  const auto must = [&](std::int64_t number, index_t got, index_t wanted, bool fits) {
    if (f.number < 0 && !fits) f = {number, got, wanted};
  };
  const auto exactly = [&](std::int64_t number, index_t got, index_t wanted) {
    must(number, got, wanted, got == wanted);
  };
  const int given = in.split == nullptr ? 0 : in.split->ranks();
  exactly(0, given, ranks);
  if (f.number >= 0) return f;
  const index_t n = in.split->rows(rank), heads = limits.query_columns(), keys = limits.key_columns();
  must(1, n, limits.tokens, n <= limits.tokens);
  if (!in.cu_seqlens.empty()) {
    exactly(2, in.cu_seqlens.front(), 0);
    exactly(3, in.cu_seqlens.back(), in.split->tokens());
    for (std::size_t d = 1; d < in.cu_seqlens.size(); ++d)
      must(attention_misfit::decreases, in.cu_seqlens[d], in.cu_seqlens[d - 1],
           in.cu_seqlens[d] >= in.cu_seqlens[d - 1]);
  }
  const auto matrix = [&](std::int64_t number, std::int64_t pitch, const tile<const T>& t, index_t cols) {
    exactly(number, t.rows, n);
    if (n != 0) exactly(number + 1, t.cols, cols);
    if (n > 1) must(pitch, t.ld, cols, t.ld >= cols);
  };
  matrix(5, 11, in.q, heads);
  matrix(7, 12, in.k, keys);
  matrix(9, 13, in.v, keys);
  exactly(14, in.hidden_keys.n, limits.hidden_keys ? n : 0);
  must(15, keep.rows.n, n * limits.heads, keep.rows.n >= n * limits.heads);
  matrix(16, 18, result, heads);
  return f;
}

// What ranks tell each other in forward: what does not fit, and what must be the same on all.
struct attention_report {
  static constexpr std::size_t numbers = 4;
  std::array<std::int64_t, numbers> all{};

  attention_report(const attention_misfit& f, std::uint64_t digest)
      : all{f.number, f.got, f.wanted, static_cast<std::int64_t>(digest)} {}
  // What is wrong with what a rank said; empty: nothing.
  static std::string trouble(int rank, const std::int64_t* its, int first, const std::int64_t* firsts) {
    if (its[0] >= 0) return attention_misfit{its[0], its[1], its[2]}.text(rank);
    if (its[3] == firsts[3]) return {};
    return "plateau: rank " + std::to_string(rank) +
           ": ring_attention: split and cu_seqlens are of the whole sequence and must be the same on all "
           "ranks, but differ from those of rank " +
           std::to_string(first);
  }
};

// Throws config_error, on this rank, for what backward cannot work with.
template <class T>
void check_backward(const attention_shape& limits, int rank, int origin, int ranks,
                    const attention_inputs<T>& in, const attention_saved& keep, tile<const T> result,
                    tile<const T> upstream, const attention_gradients<T>& to) {
  const auto refuse = [&](const std::string& what) {
    throw config_error("plateau: rank " + std::to_string(origin) + ": ring_attention backward: " + what);
  };
  if (limits.forward_only) refuse("the shape is forward_only");
  const attention_misfit f = find_misfit(limits, rank, ranks, in, keep, result);
  if (f.number >= 0) throw config_error(f.text(origin));
  if (keep.of != attention_digest(*in.split, in.cu_seqlens))
    refuse("`saved` is of no forward with this split and these cu_seqlens");
  const index_t n = in.split->rows(rank);
  const auto check = [&](const char* what, const auto& t, index_t cols) {
    if (t.rows != n || (n != 0 && t.cols != cols))
      refuse(std::string(what) + " must be (" + std::to_string(n) + ", " + std::to_string(cols) + "), got (" +
             std::to_string(t.rows) + ", " + std::to_string(t.cols) + ')');
    if (n > 1 && t.ld < cols)
      refuse(std::string(what) + " must have its rows at least " + std::to_string(cols) +
             " elements apart, got " + std::to_string(t.ld));
  };
  check("dout", upstream, limits.query_columns());
  check("dq", to.dq, limits.query_columns());
  check("dk", to.dk, limits.key_columns());
  check("dv", to.dv, limits.key_columns());
}

} // namespace detail

} // namespace plateau::inline v0
