// SPDX-License-Identifier: Apache-2.0
//
// Rotary positions: angles against the library's pow, cos and sin; rotation against float64, of whole
// sequences and of those that are split over ranks; and where every element of a head lands in the packed
// layout.

#include "kernels/rotary.hpp"
#include "kernels/split_rotary.hpp"
#include "reference/layers.hpp"
#include "support/accuracy.hpp"
#include "support/run_kernel.hpp"
#include "support/tensors.hpp"

#include <doctest/doctest.h>

using plateau::bfloat16, plateau::index_t;
using namespace support;

TEST_CASE("cosine and sine are those of the exact angle, rounded to float") {
  for (const double theta : {1.0, 1e4, 1e6, 5e8})
    for (const index_t head_size : {2, 64, 128})
      for (const index_t position : {0, 1, 2, 3, 100, 4095, 32767, 131071, 1048575, 8388607}) {
        CAPTURE(theta);
        CAPTURE(head_size);
        CAPTURE(position);
        const auto angles = moe::rotary_angles::at(position, head_size, theta);
        double worst = 0;
        for (index_t e = 0; e < head_size / 2; ++e) {
          const double angle =
              static_cast<double>(position) *
              std::pow(theta, -2.0 * static_cast<double>(e) / static_cast<double>(head_size));
          const moe::rotation by = angles(e);
          worst =
              std::max({worst, std::fabs(by.cosine - std::cos(angle)), std::fabs(by.sine - std::sin(angle))});
        }
        // Half a unit of float below 1, and what double leaves of the angle.
        CHECK(worst <= 0x1p-25 + 1e-12 + 1e-15 * static_cast<double>(position));
      }
}

namespace {

// Element e of a head in the packed layout, from its definition.
index_t packed_at(const moe::head_layout& l, index_t token, index_t head, index_t e, bool keys) {
  const index_t together = keys ? 1 : l.query_heads / l.kv_heads;
  const index_t s = token / l.sequence_length, position = token % l.sequence_length;
  const index_t kv_head = head / together, g = head % together;
  const index_t rows = l.sequence_length * together; // of a batch, which is a sequence and a kv_head
  return ((s * l.kv_heads + kv_head) * rows + position * together + g) * l.head_size + e;
}

} // namespace

TEST_CASE_TEMPLATE("packing turns heads as the reference does, and unpacking turns them back", T, float,
                   bfloat16) {
  const index_t sequences = 2;
  const double theta = 1e4;
  for (const auto level : cpu_levels())
    for (const moe::head_layout l :
         {moe::head_layout{1, 1, 1, 2}, moe::head_layout{3, 6, 2, 6}, moe::head_layout{5, 4, 4, 34},
          moe::head_layout{2, 9, 1, 64}, moe::head_layout{3, 8, 2, 66}})
      for (const bool keys : {false, true})
        for (const bool rotate : {false, true}) {
          const std::string name = plateau::cpu_level_name(level);
          CAPTURE(name);
          CAPTURE(l.head_size);
          CAPTURE(keys);
          CAPTURE(rotate);
          const index_t tokens = sequences * l.sequence_length, heads = keys ? l.kv_heads : l.query_heads;
          const index_t width = heads * l.head_size;
          const auto x = random_values<T>(tokens * width, 7);
          std::vector<index_t> position;
          for (index_t t = 0; t < tokens; ++t) position.push_back(t % l.sequence_length);

          const matrix<T> flat(tokens, width, x);
          std::vector<T> packed(x.size());
          run_rows(level, tokens, moe::rotate_and_pack{l, theta, rotate, keys}, flat.in(), all(packed));
          std::vector<T> unpacked;
          for (index_t t = 0; t < tokens; ++t)
            for (index_t h = 0; h < heads; ++h)
              for (index_t e = 0; e < l.head_size; ++e)
                unpacked.push_back(packed[static_cast<std::size_t>(packed_at(l, t, h, e, keys))]);
          if (rotate)
            check_accurate(unpacked, reference::rope(widened(x), position, heads, l.head_size, theta));
          else
            CHECK(same_bits(unpacked, x));

          // Back from float, as gradients come, and from T.
          matrix<T> back(tokens, width);
          const std::vector<float> wide = rounded<float>(widened(packed));
          run_rows(level, tokens, moe::unpack_and_rotate_back{l, theta, rotate, keys}, all(wide), back.out());
          const std::vector<T> from_float = back.values();
          CHECK(back.spare_untouched());
          if (rotate)
            check_accurate(from_float, reference::rope(widened(unpacked), position, heads, l.head_size, theta,
                                                       reference::turn::back));
          else
            CHECK(same_bits(from_float, x));
          run_rows(level, tokens, moe::unpack_and_rotate_back{l, theta, rotate, keys},
                   all(std::as_const(packed)), back.out());
          CHECK(same_bits(back.values(), from_float));
        }
}

TEST_CASE_TEMPLATE("rows of a split sequence turn by their places in it, as those of a whole one, bit by bit",
                   T, float, bfloat16) {
  const double theta = 1e4;
  for (const auto level : cpu_levels())
    for (const index_t context : {9, 16})
      for (const index_t heads : {1, 6})
        for (const index_t head_size : {2, 66}) {
          const index_t sequences = 2, width = heads * head_size;
          const auto x = random_values<T>(sequences * context * width, 8);
          const moe::head_layout whole{context, heads, heads, head_size};
          std::vector<T> packed(x.size());
          run_rows(level, sequences * context, moe::rotate_and_pack{whole, theta, true, true},
                   matrix<T>(sequences * context, width, x).in(), all(packed));
          for (const int ranks : {1, 2, 3})
            for (int rank = 0; rank < ranks; ++rank) {
              CAPTURE(context);
              CAPTURE(ranks);
              CAPTURE(rank);
              CAPTURE(head_size);
              const auto split = plateau::sequence_split::balanced(context, ranks);
              const index_t tokens = sequences * split.rows(rank);
              std::vector<T> mine, expected;
              for (index_t s = 0; s < sequences; ++s)
                for (const index_t p : split.positions(rank))
                  for (index_t h = 0; h < heads; ++h)
                    for (index_t e = 0; e < head_size; ++e) {
                      mine.push_back(
                          x[static_cast<std::size_t>((s * context + p) * width + h * head_size + e)]);
                      expected.push_back(
                          packed[static_cast<std::size_t>(packed_at(whole, s * context + p, h, e, true))]);
                    }
              moe::rotate_split_rows kernel{moe::positions_of(split, rank), heads, head_size, theta, 1};
              matrix<T> turned(tokens, width), back(tokens, width);
              run_rows(level, tokens, kernel, matrix<T>(tokens, width, mine).in(), turned.out());
              CHECK(same_bits(turned.values(), expected));
              CHECK(turned.spare_untouched());
              // Back, as the inverse that is tested above, given the same.
              matrix<T> whole_back(sequences * context, width);
              run_rows(level, sequences * context, moe::unpack_and_rotate_back{whole, theta, true, true},
                       all(std::as_const(packed)), whole_back.out());
              kernel.direction = -1;
              run_rows(level, tokens, kernel, turned.in(), back.out());
              const auto all_back = whole_back.values(), its_back = back.values();
              index_t row = 0, wrong = 0;
              for (index_t s = 0; s < sequences; ++s)
                for (const index_t p : split.positions(rank)) {
                  for (index_t i = 0; i < width; ++i)
                    wrong += its_back[static_cast<std::size_t>(row * width + i)] !=
                             all_back[static_cast<std::size_t>((s * context + p) * width + i)];
                  ++row;
                }
              CHECK(wrong == 0);
            }
        }
}
