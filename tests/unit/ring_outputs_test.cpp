// SPDX-License-Identifier: Apache-2.0
//
// What a linear cross-entropy tells of each token when it is asked to: entropy, the id of the largest logit,
// and how many of those are the target. On ranks as threads against float64, with ties, rows without a
// distribution and rows that count as nothing; and that asking costs the bytes it says and changes no bit of
// anything else. Beside that, what holds of a loss whatever its inputs are.
#include "support/ring_cases.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace pl = plateau;
using pl::bfloat16, pl::index_t, pl::reduction, pl::rotation;
using support::ring_case, support::values_of, support::run_ring, support::check_ring;

namespace {

using threads = support::on_threads<>;
constexpr rotation both[] = {rotation::activations, rotation::weights};
constexpr float infinity = std::numeric_limits<float>::infinity();

// Off every tile and sub-block.
ring_case case_of(std::vector<index_t> tokens, std::vector<index_t> shards, rotation rotate) {
  ring_case c;
  c.tokens = std::move(tokens);
  c.shards = std::move(shards);
  c.shape.hidden = 11;
  c.shape.tile = {4, 5};
  c.shape.hop_rows = 6;
  c.shape.rotate = rotate;
  return c;
}
ring_case all_asked(ring_case c) {
  c.shape.entropy = c.shape.argmax = c.shape.accuracy = true;
  return c;
}
// Weights of which rows are the same: their logits are, bit by bit, wherever they are computed.
template <class T> void repeat_row(support::ring_values<T>& v, index_t hidden, index_t from, index_t to) {
  std::copy_n(v.weight.begin() + from * hidden, hidden, v.weight.begin() + to * hidden);
}

} // namespace

TEST_CASE("entropy, argmax and accuracy on 1, 2, 3 and 8 ranks, uneven, some with nothing, as in float64") {
  const std::vector<std::pair<std::vector<index_t>, std::vector<index_t>>> deals{
      {{29}, {37}},
      {{20, 9}, {17, 20}},
      {{5, 24, 0}, {30, 0, 7}},
      {{0, 4, 1, 9, 2, 0, 7, 6}, {3, 0, 11, 1, 6, 9, 0, 7}}};
  for (const rotation r : both)
    for (const auto& deal : deals)
      for (const bool options : {false, true}) {
        CAPTURE(deal.first.size());
        ring_case c = all_asked(case_of(deal.first, deal.second, r));
        if (options) {
          c.shape.bias = c.token_weights = c.class_weights = true;
          c.shape.options.soft_cap = 3;
          c.shape.options.smoothing = 0.125F;
          c.shape.options.reduction = reduction::none;
        }
        auto values = values_of<float>(c);
        // Targets of which some are right.
        const auto seen = oracle_of(c, values).forward();
        for (std::size_t i = 0; i < values.targets.size(); i += 2)
          if (i % 3 != 0) values.targets[i] = seen.argmaxes[i];
        const auto result = run_ring<float>(c, values, threads{});
        check_ring(c, values, result);
        CHECK(result.accuracy[0] > 5);
        CHECK(result.accuracy[0] < result.accuracy[1]);
        for (const float h : result.entropies) CHECK(h >= 0.0F);
      }
}

TEST_CASE("of equal logits the lowest id is the argmax, whatever rank, tile or hop they are met at") {
  for (const rotation r : both)
    for (const auto& shards : {std::vector<index_t>{40}, {13, 27}, {1, 0, 39}, {5, 5, 5, 5, 5, 5, 5, 5}}) {
      ring_case c = all_asked(case_of({}, shards, r));
      c.tokens.assign(shards.size(), 40 / static_cast<index_t>(shards.size()));
      auto values = values_of<float>(c);
      // Every row of the weights is there four times, so that every largest logit is.
      for (index_t v = 10; v < 40; ++v) repeat_row(values, c.shape.hidden, v % 10, v);
      for (std::size_t i = 0; i < values.targets.size(); ++i)
        values.targets[i] = static_cast<std::int64_t>(i % 40);
      const auto result = run_ring<float>(c, values, threads{});
      for (const std::int64_t id : result.argmaxes) CHECK(id < 10);
      check_ring(c, values, result);
    }
  // All logits alike: the first id, and the entropy of a uniform distribution.
  for (const rotation r : both) {
    ring_case c = all_asked(case_of({5, 0, 9}, {7, 20, 13}, r));
    auto values = values_of<float>(c);
    std::fill(values.x.begin(), values.x.end(), 0.0F);
    const auto result = run_ring<float>(c, values, threads{});
    for (const std::int64_t id : result.argmaxes) CHECK(id == 0);
    for (const float h : result.entropies)
      CHECK(static_cast<double>(h) == doctest::Approx(std::log(40.0)).epsilon(1e-6));
  }
}

TEST_CASE(
    "V14: -infinity is never the largest and adds no entropy; a row without a distribution has neither") {
  for (const rotation r : both) {
    ring_case c = all_asked(case_of({6, 7}, {6, 8}, r));
    c.shape.bias = c.shape.frozen_weights = true;
    auto values = values_of<float>(c);
    for (std::size_t i = 0; i < 13; ++i) values.targets[i] = i == 5 ? -100 : 2;
    for (std::size_t v = 0; v < 14; ++v)
      if (v != 2 && v != 9) values.bias[v] = -infinity;
    const auto clean = run_ring<float>(c, values, threads{});
    check_ring(c, values, clean);
    // A NaN, or a logit of +infinity, of token 3 alone.
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), infinity}) {
      values.x[3 * 11 + 2] = bad;
      const auto result = run_ring<float>(c, values, threads{});
      for (std::size_t i = 0; i < 13; ++i) {
        CAPTURE(i);
        CHECK(std::isnan(result.entropies[i]) == (i == 3));
        if (i == 3) {
          CHECK(result.argmaxes[i] == -1);
          CHECK(result.correct[i] == 0);
          continue;
        }
        CHECK(result.entropies[i] == clean.entropies[i]);
        CHECK(result.argmaxes[i] == clean.argmaxes[i]);
      }
      CHECK(result.accuracy[1] == 12);
    }
    for (float& b : values.bias) b = -infinity;
    const auto none = run_ring<float>(c, values, threads{});
    for (std::size_t i = 0; i < 13; ++i) {
      CHECK(std::isnan(none.entropies[i]));
      CHECK(none.argmaxes[i] == -1);
    }
    CHECK(none.accuracy[0] == 0);
  }
}

TEST_CASE("logits shifted by a constant: entropy and log-probability lose no more than the logits do") {
  for (const rotation r : both) {
    ring_case c = all_asked(case_of({9, 4, 8}, {8, 11, 3}, r));
    c.shape.bias = true;
    auto values = values_of<float>(c);
    const auto expected = run_ring<float>(c, values, threads{});
    for (float& b : values.bias) b += 1024.0F;
    const auto shifted = run_ring<float>(c, values, threads{});
    CHECK(shifted.argmaxes == expected.argmaxes);
    // Nor does a log-probability: without options a loss is that with the other sign.
    for (std::size_t i = 0; i < shifted.logs.size(); ++i) CHECK(shifted.logs[i] == -shifted.losses[i]);
    for (std::size_t i = 0; i < expected.entropies.size(); ++i)
      CHECK(std::fabs(shifted.entropies[i] - expected.entropies[i]) < 5e-4F); // a unit of 1,024, a few times
  }
}

TEST_CASE("asking changes no bit of anything else, and costs the bytes that travel with a token") {
  using loss = pl::linear_cross_entropy<pl::host_backend, pl::thread_communicator, float>;
  for (const rotation r : both)
    for (const int ranks : {1, 3})
      for (int asked = 1; asked < 8; ++asked) {
        ring_case c = case_of({9, 0, 14}, {8, 11, 3}, r);
        if (ranks == 1) c.tokens = {23}, c.shards = {22};
        const auto values = values_of<float>(c);
        const auto plain = run_ring<float>(c, values, threads{});
        ring_case with = c;
        with.shape.entropy = (asked & 1) != 0;
        with.shape.argmax = (asked & 2) != 0;
        with.shape.accuracy = (asked & 4) != 0;
        if (with.shape.accuracy && !with.shape.argmax) {
          CHECK_THROWS_AS(run_ring<float>(with, values, threads{}), pl::collective_error);
          continue;
        }
        auto result = run_ring<float>(with, values, threads{});
        check_ring(with, values, result);
        std::uint64_t sent[2] = {};
        for (const auto& w : plain.world) sent[0] += w.sent_bytes;
        for (const auto& w : result.world) sent[1] += w.sent_bytes;
        const bool moves = r == rotation::activations && ranks > 1;
        const index_t more = (with.shape.entropy ? 4 : 0) + (with.shape.argmax ? 8 : 0);
        const index_t counts = with.shape.accuracy ? 32 * (ranks - 1) : 0;
        CHECK(sent[1] - sent[0] == static_cast<std::uint64_t>((moves ? 23 * ranks * more : 0) + counts));
        // 3 sub-blocks of what comes home, of 6 rows, each rounded up to 256 bytes.
        c.shape.vocabulary = with.shape.vocabulary = 22;
        c.shape.tokens = with.shape.tokens = 23;
        const index_t lines = (with.shape.entropy ? 1 : 0) + (with.shape.argmax ? 1 : 0);
        const index_t slots = moves ? 3 : 0;
        CHECK(loss::working_set(with.shape, ranks).device_bytes() -
                  loss::working_set(c.shape, ranks).device_bytes() ==
              static_cast<std::size_t>(256 * lines * slots));
        result.entropies = {};
        result.argmaxes = {};
        result.correct = {};
        result.accuracy = {};
        CHECK(same_bits(result, plain));
      }
}

TEST_CASE("what the shape does not ask for, or comes in another number, is refused on every rank") {
  const auto refused = [](auto change) {
    std::string text;
    const auto ends = pl::run_ranks_collecting(2, [&](pl::thread_communicator& comm) {
      using loss = pl::linear_cross_entropy<pl::host_backend, pl::thread_communicator, float>;
      pl::host_backend backend;
      pl::cross_entropy_shape shape;
      shape.tokens = 4;
      shape.hidden = 3;
      shape.vocabulary = 10;
      std::vector<float> x(12), weight(15), floats(5), classes(10, 1);
      std::vector<std::int32_t> targets(4);
      std::vector<pl::token_state> rows(4);
      std::vector<double> sums(2), counts(2);
      std::vector<std::int64_t> ids(4);
      std::vector<unsigned char> correct(4);
      loss::outputs want{};
      want.entropies = support::all(floats).sub(0, 4);
      want.argmaxes = support::all(ids);
      want.correct = support::all(correct);
      want.accuracy = support::all(counts);
      shape.entropy = shape.argmax = shape.accuracy = true;
      loss::inputs in{{x.data(), 4, 3, 3}, {weight.data(), 5, 3, 3}, support::all(std::as_const(targets))};
      in.class_weights = support::all(std::as_const(classes));
      change(comm.rank(), shape, want, in);
      pl::workspace<pl::host_backend> space(backend, loss::working_set(shape, 2));
      loss op(backend, comm, shape, space);
      auto s = backend.make_stream("main");
      pl::cross_entropy_saved keep{support::all(rows), support::all(sums), {}};
      const pl::drain<pl::host_backend> before_they_go(backend, s);
      op.forward(s, in, keep, want);
    });
    for (const auto& end : ends) {
      if (!end) return std::string("nobody");
      if (text.empty()) text = end->text;
      CHECK(end->text == text);
    }
    return text;
  };
  const auto has = [](const std::string& text, const char* part) {
    CAPTURE(text);
    CHECK(text.find(part) != std::string::npos);
  };
  CHECK(refused([](int, auto&, auto&, auto&) {}) == "nobody");
  has(refused([](int, auto& shape, auto&, auto&) { shape.entropy = false; }),
      "the entropies, one for each token of a shape with entropy, or none, must be 0, got 4");
  has(refused([](int rank, auto&, auto& want, auto&) {
        if (rank == 1) want.argmaxes = {}, want.correct = {};
      }),
      "rank 1: linear_cross_entropy: the argmaxes, of a shape with argmax, also for the accuracy, must be 4, "
      "got 0");
  has(refused([](int rank, auto&, auto& want, auto&) {
        if (rank == 1) want.correct.n = 3;
      }),
      "the correct, one for each token whose argmax is given, or none, must be 4, got 3");
  has(refused([](int rank, auto&, auto& want, auto&) {
        if (rank == 0) want.accuracy = {};
      }),
      "rank 0: linear_cross_entropy: the accuracy, of a shape with it, must be 2, got 0");
  has(refused([](int rank, auto& shape, auto& want, auto&) {
        if (rank == 1) shape.entropy = false, want.entropies = {};
      }),
      "entropy 0");
  has(refused([](int, auto& shape, auto& want, auto&) {
        shape.options.reduction = reduction::none, want.loss = want.entropies.sub(0, 1);
      }),
      "the loss, which reduction none does not have, must be 0, got 1");
  // What all ranks must give alike.
  has(refused([](int rank, auto& shape, auto&, auto& in) {
        shape.options.reduction = reduction::denominator, in.denominator = rank + 2;
      }),
      "rank 1: linear_cross_entropy: the denominator must be the same on all ranks, but there are 3.000000 "
      "here and 2.000000 on rank 0");
  has(refused([](int rank, auto&, auto&, auto& in) {
        if (rank == 1) in.class_weights = {};
      }),
      "the class weights must be the same on all ranks, but there are 0 here and 10 on rank 0");
}

TEST_CASE("arrays that begin at any element, and rows at any pitch: the same bits") {
  for (const rotation r : both) {
    ring_case c = all_asked(case_of({7, 0, 12}, {8, 11, 3}, r));
    c.shape.bias = c.class_weights = c.token_weights = c.upstream_each = true;
    const auto values = values_of<float>(c);
    const auto narrow = values_of<bfloat16>(c);
    c.shape.input_gradient_accumulator = true;
    const auto expected = run_ring<float>(c, values, threads{});
    const auto wide = run_ring<float, std::int64_t>(c, values, threads{});
    const auto rounded = run_ring<bfloat16>(c, narrow, threads{});
    CHECK(same_bits(wide, expected));
    for (const index_t skew : {1, 3})
      for (const index_t spare : {0, 1, 2}) {
        c.skew = skew;
        c.spare = spare;
        CHECK(same_bits(run_ring<float>(c, values, threads{}), expected));
        CHECK(same_bits(run_ring<float, std::int64_t>(c, values, threads{}), expected));
        CHECK(same_bits(run_ring<bfloat16>(c, narrow, threads{}), rounded));
      }
  }
}

TEST_CASE("the gradients of a token's logits add up to nothing, over the vocabulary of all ranks") {
  for (const rotation r : both)
    for (const auto& shards : {std::vector<index_t>{23}, {11, 12}, {3, 20, 0}, {1, 2, 3, 4, 5, 6, 2, 0}})
      for (const bool smooth : {false, true}) {
        ring_case c = case_of({}, shards, r);
        c.tokens.assign(shards.size(), 5);
        c.tokens.back() = 0;
        if (shards.size() == 1) c.tokens = {31};
        c.upstream_each = c.token_weights = true;
        if (smooth) c.shape.options.smoothing = 0.25F;
        auto values = values_of<float>(c);
        // The gradient of x is the logit gradients times the weights: where those are 1, their sum.
        for (std::size_t i = 0; i < values.weight.size(); i += 11) values.weight[i] = 1;
        const auto result = run_ring<float>(c, values, threads{});
        check_ring(c, values, result);
        for (std::size_t i = 0; i < result.dx.size(); i += 11) {
          float size = 0;
          for (std::size_t h = 0; h < 11; ++h) size = std::max(size, std::fabs(result.dx[i + h]));
          CHECK(std::fabs(result.dx[i]) <= 2e-6F * size);
        }
        for (const float loss : result.losses) CHECK(loss >= 0.0F);
      }
}

TEST_CASE("in every mode: two tiles in flight, blocks that stand apart, gradients made in forward") {
  for (const rotation r : both) {
    ring_case c = all_asked(case_of({9, 0, 14}, {10, 15, 5}, r));
    c.shape.hop_rows = 10;
    c.shape.bias = c.token_weights = true;
    auto values = values_of<float>(c);
    for (index_t v = 20; v < 30; ++v) { // equal logits on two ranks
      repeat_row(values, c.shape.hidden, v - 20, v);
      values.bias[static_cast<std::size_t>(v)] = values.bias[static_cast<std::size_t>(v - 20)];
    }
    const auto one_tile = run_ring<float>(c, values, threads{});
    check_ring(c, values, one_tile);
    c.shape.tiles_in_flight = 2;
    CHECK(same_bits(run_ring<float>(c, values, threads{}), one_tile));
    // Blocks of the vocabulary are put together in its order: no bit of it depends on the ranks.
    c.shape.fixed_block = 5;
    const auto apart = run_ring<float>(c, values, threads{});
    check_ring(c, values, apart);
    for (const auto& shards : {std::vector<index_t>{30}, {15, 15}, {0, 25, 5}}) {
      ring_case other = c;
      other.shards = shards;
      other.tokens.assign(shards.size(), 0);
      other.tokens.front() = 20;
      other.tokens.back() += 3;
      const auto same = run_ring<float>(other, values, threads{});
      CHECK(support::same_bits(same.entropies, apart.entropies));
      CHECK(support::same_bits(same.lses, apart.lses));
      CHECK(same.argmaxes == apart.argmaxes);
    }
  }
  ring_case c = all_asked(case_of({23}, {30}, rotation::automatic));
  c.shape.one_pass = c.shape.bias = c.token_weights = true;
  c.shape.strip_rows = 6;
  c.shape.options.soft_cap = 3;
  const auto values = values_of<float>(c);
  check_ring(c, values, run_ring<float>(c, values, threads{}));
}
