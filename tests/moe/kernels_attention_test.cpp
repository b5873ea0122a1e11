// SPDX-License-Identifier: Apache-2.0
//
// The row passes of tiled attention. Around plain matrix products they must add up to the reference's causal
// attention and its gradients, whatever the tiles; alone, each is held to its formula, to exact zeros where
// masked, and to leaving the state of a row that sees nothing.

#include "kernels/attention.hpp"
#include "reference/layers.hpp"
#include "support/accuracy.hpp"
#include "support/run_kernel.hpp"
#include "support/tensors.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

using plateau::bfloat16, plateau::index_t;
using namespace support;

namespace {

// c = a b^T (or a b), c += if `add`: in double, rounded to float, so that what the test sees is the kernels'
// error.
template <class A, class B>
void product(plateau::tile<const A> a, plateau::tile<const B> b, bool transpose_b, plateau::tile<float> c,
             bool add) {
  for (index_t i = 0; i < c.rows; ++i)
    for (index_t j = 0; j < c.cols; ++j) {
      double sum = add ? static_cast<double>(c(i, j)) : 0.0;
      for (index_t k = 0; k < a.cols; ++k)
        sum += static_cast<double>(static_cast<float>(a(i, k))) *
               static_cast<double>(static_cast<float>(transpose_b ? b(j, k) : b(k, j)));
      c(i, j) = static_cast<float>(sum);
    }
}
// c += a^T b
template <class A, class B>
void add_transposed_product(plateau::tile<const A> a, plateau::tile<const B> b, plateau::tile<float> c) {
  for (index_t i = 0; i < c.rows; ++i)
    for (index_t j = 0; j < c.cols; ++j) {
      double sum = c(i, j);
      for (index_t k = 0; k < a.rows; ++k)
        sum += static_cast<double>(static_cast<float>(a(k, i))) *
               static_cast<double>(static_cast<float>(b(k, j)));
      c(i, j) = static_cast<float>(sum);
    }
}

// A batch of matrices with room behind every row and every matrix.
template <class T> struct matrices {
  index_t count, rows, cols, ld, stride;
  std::vector<T> data;

  matrices(index_t count_, index_t rows_, index_t cols_)
      : count(count_), rows(rows_), cols(cols_), ld(cols_ + 1), stride(rows_ * (cols_ + 1) + 2),
        data(static_cast<std::size_t>(count_ * stride)) {}
  plateau::tile_batch<T> out() { return {data.data(), count, stride, rows, cols, ld}; }
  plateau::tile_batch<const T> in() const { return {data.data(), count, stride, rows, cols, ld}; }
};

// Attention on packed tensors, tile by tile.
template <class T> struct tiled_attention {
  plateau::cpu_level level;
  moe::head_layout layout;
  index_t sequences, tile_rows, tile_keys;
  std::vector<T> q, k, v; // packed
  std::vector<float> maximum, sum;
  matrix<T> output; // flat

  index_t batches() const { return sequences * layout.kv_heads; }
  index_t packed_rows() const { return layout.packed_query_rows(); }
  float scale() const { return static_cast<float>(1 / std::sqrt(static_cast<double>(layout.head_size))); }
  plateau::tile<const T> part(const std::vector<T>& x, index_t rows, index_t batch, index_t first,
                              index_t n) const {
    const index_t d = layout.head_size;
    return {x.data() + (batch * rows + first) * d, n, d, d};
  }

  // f(where, rows, keys) for every tile that is not wholly masked.
  template <class F> void for_each_key_tile(index_t q0, index_t rows, F f) {
    const index_t last_position = (q0 + rows - 1) / layout.group();
    for (index_t k0 = 0; k0 <= last_position; k0 += tile_keys)
      f(moe::attention_tile{q0, k0, layout.group(), packed_rows()},
        std::min(tile_keys, layout.sequence_length - k0));
  }

  void forward() {
    const index_t d = layout.head_size;
    maximum.assign(static_cast<std::size_t>(batches() * packed_rows()), plateau::lowest<float>());
    sum.assign(maximum.size(), 0.0f);
    for (index_t q0 = 0; q0 < packed_rows(); q0 += tile_rows) {
      const index_t rows = std::min(tile_rows, packed_rows() - q0);
      matrices<float> accumulator(batches(), rows, d);
      for_each_key_tile(q0, rows, [&](moe::attention_tile where, index_t keys) {
        matrices<float> scores(batches(), rows, keys);
        matrices<T> probabilities(batches(), rows, keys);
        for (index_t b = 0; b < batches(); ++b)
          product(part(q, packed_rows(), b, q0, rows),
                  part(k, layout.sequence_length, b, where.first_key, keys), true, scores.out()[b], false);
        run_rows(level, batches() * rows, moe::attention_softmax_tile{where, scale()}, scores.in(),
                 probabilities.out(), all(maximum), all(sum), accumulator.out());
        for (index_t b = 0; b < batches(); ++b)
          product(probabilities.in()[b], part(v, layout.sequence_length, b, where.first_key, keys), false,
                  accumulator.out()[b], true);
      });
      const moe::attention_tile where{q0, 0, layout.group(), packed_rows()};
      run_rows(level, batches() * rows, moe::attention_finish{where, layout}, accumulator.in(),
               all(std::as_const(sum)), output.out());
    }
  }

  struct gradients {
    std::vector<float> dq, dk, dv; // packed
  };
  gradients backward(const std::vector<T>& packed_output, const std::vector<T>& packed_doutput) {
    const index_t d = layout.head_size, length = layout.sequence_length;
    gradients g{std::vector<float>(q.size()), std::vector<float>(k.size()), std::vector<float>(v.size())};
    std::vector<float> dots(maximum.size());
    run_rows(level, batches() * packed_rows(), moe::attention_row_dots{}, all(packed_output),
             all(packed_doutput), d, all(dots));
    for (index_t q0 = 0; q0 < packed_rows(); q0 += tile_rows) {
      const index_t rows = std::min(tile_rows, packed_rows() - q0);
      for_each_key_tile(q0, rows, [&](moe::attention_tile where, index_t keys) {
        const index_t k0 = where.first_key;
        matrices<float> scores(batches(), rows, keys), dprobabilities(batches(), rows, keys);
        matrices<T> probabilities(batches(), rows, keys), dscores(batches(), rows, keys);
        for (index_t b = 0; b < batches(); ++b) {
          product(part(q, packed_rows(), b, q0, rows), part(k, length, b, k0, keys), true, scores.out()[b],
                  false);
          product(part(packed_doutput, packed_rows(), b, q0, rows), part(v, length, b, k0, keys), true,
                  dprobabilities.out()[b], false);
        }
        run_rows(level, batches() * rows, moe::attention_backward_tile{where, scale()}, scores.in(),
                 dprobabilities.in(), all(std::as_const(maximum)), all(std::as_const(sum)),
                 all(std::as_const(dots)), probabilities.out(), dscores.out());
        for (index_t b = 0; b < batches(); ++b) {
          const plateau::tile<float> dq{g.dq.data() + (b * packed_rows() + q0) * d, rows, d, d};
          const plateau::tile<float> dk{g.dk.data() + (b * length + k0) * d, keys, d, d};
          const plateau::tile<float> dv{g.dv.data() + (b * length + k0) * d, keys, d, d};
          product(dscores.in()[b], part(k, length, b, k0, keys), false, dq, true);
          add_transposed_product(dscores.in()[b], part(q, packed_rows(), b, q0, rows), dk);
          add_transposed_product(probabilities.in()[b], part(packed_doutput, packed_rows(), b, q0, rows), dv);
        }
      });
    }
    return g;
  }
};

template <class T> std::vector<T> pack(const std::vector<T>& flat, const moe::head_layout& l, bool keys) {
  const index_t width = (keys ? l.kv_heads : l.query_heads) * l.head_size;
  const plateau::tile<const T> from{flat.data(), static_cast<index_t>(flat.size()) / width, width, width};
  std::vector<T> out(flat.size());
  plateau::host::run_rows(plateau::cpu_level::baseline, 0, from.rows,
                          moe::rotate_and_pack{l, 1.0, false, keys}, from, all(out));
  return out;
}

// |a - b| / |b|
double relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return size == 0 ? std::sqrt(difference) : std::sqrt(difference / size);
}

} // namespace

TEST_CASE_TEMPLATE("tiles of any size add up to causal attention and its gradients", T, float, bfloat16) {
  // Rounding the probabilities to T is part of the method: the error of a weighted mean, in units of T.
  const double allowed = std::is_same_v<T, float> ? 1e-6 : 0x1p-8;
  struct size {
    index_t length, query_heads, kv_heads, head_size, tile_rows, tile_keys;
  };
  for (const auto level : cpu_levels())
    for (const size& s : {size{1, 1, 1, 2, 4, 4}, size{2, 2, 1, 4, 1, 1}, size{7, 4, 2, 6, 3, 4},
                          size{7, 6, 2, 10, 21, 7}, size{37, 2, 2, 34, 16, 33}, size{40, 3, 1, 8, 50, 16}}) {
      const std::string name = plateau::cpu_level_name(level);
      CAPTURE(name);
      CAPTURE(s.length);
      CAPTURE(s.tile_rows);
      CAPTURE(s.tile_keys);
      const index_t sequences = 2, tokens = sequences * s.length;
      const moe::head_layout layout{s.length, s.query_heads, s.kv_heads, s.head_size};
      const reference::attention_shape shape{sequences, s.length, s.query_heads, s.kv_heads, s.head_size};
      const index_t width = s.query_heads * s.head_size, kv_width = s.kv_heads * s.head_size;
      const auto q = random_values<T>(tokens * width, 1, 1.5), doutput = random_values<T>(tokens * width, 2);
      const auto k = random_values<T>(tokens * kv_width, 3), v = random_values<T>(tokens * kv_width, 4);

      tiled_attention<T> tiled{level,
                               layout,
                               sequences,
                               s.tile_rows,
                               s.tile_keys,
                               pack(q, layout, false),
                               pack(k, layout, true),
                               pack(v, layout, true),
                               {},
                               {},
                               matrix<T>(tokens, width)};
      tiled.forward();
      CHECK(tiled.output.spare_untouched());
      const std::vector<T> output = tiled.output.values();
      const auto expected = reference::attention(shape, widened(q), widened(k), widened(v));
      CHECK(relative_difference(widened(output), expected) <= allowed);

      const auto g = tiled.backward(pack(output, layout, false), pack(doutput, layout, false));
      const auto exact =
          reference::attention_backward(shape, widened(doutput), widened(q), widened(k), widened(v));
      const auto packed = [&](const reference::vec& x, bool keys) {
        return widened(pack(rounded<float>(x), layout, keys));
      };
      const double in_gradients =
          std::is_same_v<T, float> ? allowed : 4 * allowed; // they are differences of what is rounded
      CHECK(relative_difference(widened(g.dv), packed(exact.dv, true)) <= in_gradients);
      if (s.length > 1) { // with one key the exact gradient of a score is zero
        CHECK(relative_difference(widened(g.dq), packed(exact.dq, false)) <= in_gradients);
        CHECK(relative_difference(widened(g.dk), packed(exact.dk, true)) <= in_gradients);
      }
    }
}

TEST_CASE("each pass alone is its formula, with exact zeros behind the mask") {
  const index_t batches = 2, rows = 9, keys = 70, head_size = 35, packed_rows = 24;
  const moe::attention_tile where{12, 40, 2,
                                  packed_rows}; // positions 6 to 10 against keys from 40: nothing visible
  const moe::attention_tile seen{12, 3, 2, packed_rows}; // 4 to 8 keys visible
  const float scale = 0.3f;
  for (const auto level : cpu_levels()) {
    matrices<float> scores(batches, rows, keys), accumulator(batches, rows, head_size);
    scores.data = random_values<float>(static_cast<index_t>(scores.data.size()), 1, 4);
    accumulator.data = random_values<float>(static_cast<index_t>(accumulator.data.size()), 2);
    auto maximum = random_values<float>(batches * packed_rows, 3),
         sum = random_values<float>(batches * packed_rows, 4);
    for (float& x : sum) x = std::fabs(x) + 1;
    const auto maximum_before = maximum, sum_before = sum;
    const auto accumulator_before = accumulator.data;
    matrices<bfloat16> probabilities(batches, rows, keys);

    run_rows(level, batches * rows, moe::attention_softmax_tile{where, scale}, scores.in(),
             probabilities.out(), all(maximum), all(sum), accumulator.out());
    CHECK(same_bits(maximum, maximum_before));
    CHECK(same_bits(sum, sum_before));
    CHECK(same_bits(accumulator.data, accumulator_before));
    for (index_t b = 0; b < batches; ++b)
      for (index_t i = 0; i < rows; ++i)
        for (index_t j = 0; j < keys; ++j) REQUIRE(probabilities.out()[b](i, j).bits == 0);

    run_rows(level, batches * rows, moe::attention_softmax_tile{seen, scale}, scores.in(),
             probabilities.out(), all(maximum), all(sum), accumulator.out());
    std::vector<bfloat16> found;
    std::vector<float> found_sum, found_accumulator;
    std::vector<double> expected, expected_sum, expected_accumulator;
    for (index_t b = 0; b < batches; ++b)
      for (index_t i = 0; i < rows; ++i) {
        const auto at = static_cast<std::size_t>(b * packed_rows + 12 + i);
        const index_t visible = (12 + i) / 2 - 3 + 1;
        double largest = maximum_before[at];
        for (index_t j = 0; j < visible; ++j)
          largest = std::max(largest, static_cast<double>(scores.out()[b](i, j) * scale));
        CHECK(static_cast<double>(maximum[at]) == doctest::Approx(largest).epsilon(1e-6));
        const double factor = std::exp(static_cast<double>(maximum_before[at]) - largest);
        double total = sum_before[at] * factor;
        for (index_t j = 0; j < keys; ++j) {
          const double p =
              j < visible ? std::exp(static_cast<double>(scores.out()[b](i, j)) * static_cast<double>(scale) -
                                     largest)
                          : 0;
          total += p;
          expected.push_back(p);
          found.push_back(probabilities.out()[b](i, j));
          if (j >= visible) REQUIRE(found.back().bits == 0);
        }
        expected_sum.push_back(total);
        found_sum.push_back(sum[at]);
        for (index_t e = 0; e < head_size; ++e) {
          const auto element =
              static_cast<std::size_t>(&accumulator.out()[b](i, e) - accumulator.data.data());
          expected_accumulator.push_back(static_cast<double>(accumulator_before[element]) * factor);
          found_accumulator.push_back(accumulator.data[element]);
        }
      }
    check_accurate(found, expected);
    check_accurate(found_sum, expected_sum,
                   4); // scores of 10 are off by 1e-6 before the exponential sees them
    check_accurate(found_accumulator, expected_accumulator, 4);
    // Everything between and behind the rows is as it was.
    for (index_t row = 0; row < batches * packed_rows; ++row)
      if (row % packed_rows < 12 || row % packed_rows >= 12 + rows) {
        REQUIRE(maximum[static_cast<std::size_t>(row)] == maximum_before[static_cast<std::size_t>(row)]);
        REQUIRE(sum[static_cast<std::size_t>(row)] == sum_before[static_cast<std::size_t>(row)]);
      }
  }
}

TEST_CASE("one visible key has probability 1, and scores of any size stay finite") {
  for (const auto level : cpu_levels())
    for (const float size : {0.0f, 1.0f, 1e4f, 1e30f, 1e38f}) {
      CAPTURE(size);
      const index_t keys = 33;
      matrices<float> scores(1, 2, keys), accumulator(1, 2, 4);
      for (index_t j = 0; j < keys; ++j)
        for (index_t i = 0; i < 2; ++i) scores.out()[0](i, j) = (j % 2 == 0 ? -size : size);
      std::vector<float> maximum(33, plateau::lowest<float>()), sum(33, 0.0f);
      matrices<float> probabilities(1, 2, keys);
      const moe::attention_tile first{0, 0, 1, 33}; // rows 0 and 1 see 1 and 2 keys
      run_rows(level, 2, moe::attention_softmax_tile{first, 1.0f}, scores.in(), probabilities.out(),
               all(maximum), all(sum), accumulator.out());
      CHECK(probabilities.out()[0](0, 0) == 1.0f);
      CHECK(sum[0] == 1.0f);
      CHECK(maximum[0] == -size);
      CHECK(probabilities.out()[0](1, 1) == 1.0f);
      CHECK(maximum[1] == size);
      CHECK(sum[1] == (size == 0.0f ? 2.0f : doctest::Approx(1 + std::exp(-2.0 * size))));

      // The largest score may come first or last: what was summed before shrinks to what it is worth.
      const moe::attention_tile last{31, 0, 1, 33}; // rows 31 and 32 see all but one, and all
      run_rows(level, 2, moe::attention_softmax_tile{last, 1.0f}, scores.in(), probabilities.out(),
               all(maximum), all(sum), accumulator.out());
      CHECK(sum[31] == doctest::Approx(16 + 16 * std::exp(-2.0 * size)));
      CHECK(sum[32] == doctest::Approx(16 + 17 * std::exp(-2.0 * size)));
    }
}
