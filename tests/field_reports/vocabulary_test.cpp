// SPDX-License-Identifier: Apache-2.0
//
// What broke in other systems' losses over a split vocabulary, and must not here: each test is named after
// its row of the field reports.
#include "support/ring_cases.hpp"

#include <plateau/tensor_traits.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace pl = plateau;
using pl::index_t, pl::reduction, pl::rotation;
using support::ring_case, support::values_of, support::run_ring, support::check_ring, support::ring_result;

namespace {

using threads = support::on_threads<>;
using loss_type = pl::linear_cross_entropy<pl::host_backend, pl::thread_communicator, float>;
constexpr rotation both[] = {rotation::activations, rotation::weights};
const float nan_value = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

ring_case case_of(std::vector<index_t> tokens, std::vector<index_t> shards, rotation rotate) {
  ring_case c;
  c.tokens = std::move(tokens);
  c.shards = std::move(shards);
  c.shape.hidden = 9;
  c.shape.tile = {4, 3};
  c.shape.hop_rows = 5;
  c.shape.rotate = rotate;
  return c;
}
// A user's array with any strides.
template <std::size_t Rank> struct strided {
  using element_type = float;
  using extents_type = int;
  using layout_type = int;
  using reference = float&;

  float* p;
  index_t extents[2], strides[2];

  float* data_handle() const { return p; }
  index_t extent(std::size_t d) const { return extents[d]; }
  index_t stride(std::size_t d) const { return strides[d]; }
  static constexpr std::size_t rank() { return Rank; }
};
bool all_zero(const std::vector<float>& v) {
  for (const float x : v)
    if (x != 0.0F) return false;
  return true;
}
// Every rank's error must be one and the same collective_error.
template <class F> std::string error_of_all(int ranks, F f) {
  const auto ends = pl::run_ranks_collecting(ranks, [&](pl::thread_communicator& comm) {
    const std::string owner = "rank " + std::to_string(comm.rank());
    pl::host_backend backend(owner.c_str());
    f(comm, backend);
  });
  std::string text;
  for (const auto& end : ends) {
    REQUIRE(end.has_value());
    if (text.empty()) text = end->text;
    CHECK(end->text == text);
  }
  return text;
}
bool has(const std::string& text, const std::string& part) {
  CAPTURE(text);
  CAPTURE(part);
  CHECK(text.find(part) != std::string::npos);
  return true;
}

} // namespace

TEST_CASE("V1: every label ignored: a sum is 0, a mean 0 or NaN by option, and gradients are zero") {
  for (const rotation r : both)
    for (const reduction how : {reduction::sum, reduction::mean, reduction::denominator})
      for (const bool nan_when_empty : {false, true}) {
        ring_case c = case_of({5, 3}, {4, 5}, r);
        c.shape.options.reduction = how;
        c.shape.options.nan_when_empty = nan_when_empty;
        c.shape.options.smoothing = 0.25F;
        auto values = values_of<float>(c);
        for (auto& t : values.targets) t = -100;
        const auto result = run_ring<float>(c, values, threads{});
        for (const float loss : result.loss) {
          if (how == reduction::mean && nan_when_empty)
            CHECK(std::isnan(loss));
          else
            CHECK(loss == 0.0F);
        }
        CHECK(all_zero(result.losses));
        CHECK(all_zero(result.dx));
        CHECK(all_zero(result.dweight));
      }
  // No label of which counts for anything: the mean over a weight of nothing, in either mode.
  for (int mode = 0; mode < 3; ++mode) {
    CAPTURE(mode);
    ring_case c = mode == 2 ? case_of({8}, {9}, rotation::automatic) : case_of({5, 3}, {4, 5}, both[mode]);
    c.shape.one_pass = mode == 2;
    c.class_weights = c.shape.bias = true;
    c.shape.options.smoothing = 0.25F;
    auto values = values_of<float>(c);
    for (const auto t : values.targets)
      if (t >= 0) values.classes[static_cast<std::size_t>(t)] = 0;
    const auto result = run_ring<float>(c, values, threads{});
    for (const float loss : result.loss) CHECK(loss == 0.0F);
    CHECK(all_zero(result.dx));
    CHECK(all_zero(result.dweight));
    CHECK(all_zero(result.dbias));
  }
}

TEST_CASE("V2: a rank without a valid label, or without tokens, leaves the mean as it is") {
  for (const rotation r : both) {
    ring_case c = case_of({6, 4, 0}, {4, 3, 5}, r);
    auto values = values_of<float>(c);
    for (std::size_t i = 6; i < 10; ++i) values.targets[i] = -100; // of rank 1
    const auto result = run_ring<float>(c, values, threads{});
    check_ring(c, values, result);
    for (const float loss : result.loss) CHECK(std::isfinite(loss));
  }
}

TEST_CASE("V3: an upstream gradient that is not 1, or another one for each token") {
  for (const rotation r : both)
    for (const reduction how : {reduction::none, reduction::mean}) {
      ring_case c = case_of({6, 9}, {7, 5}, r);
      c.shape.options.reduction = how;
      c.upstream = -2.5F;
      const auto values = values_of<float>(c);
      check_ring(c, values, run_ring<float>(c, values, threads{}));
      c.upstream_each = true;
      const auto each = values_of<float>(c);
      check_ring(c, each, run_ring<float>(c, each, threads{}));
    }
}

TEST_CASE("V4: rows with a pitch are read right; what repeats an element or is transposed is refused") {
  for (const rotation r : both) {
    ring_case c = case_of({6, 9}, {7, 5}, r);
    const auto values = values_of<float>(c);
    const auto dense = run_ring<float>(c, values, threads{});
    c.spare = 5; // NaN between the rows
    CHECK(same_bits(run_ring<float>(c, values, threads{}), dense));
  }
  std::vector<float> memory(64);
  CHECK_THROWS_AS(pl::as_view(strided<1>{memory.data(), {8, 1}, {0, 1}}),
                  pl::config_error); // one gradient, expanded
  CHECK_THROWS_AS(pl::as_tile(strided<2>{memory.data(), {8, 8}, {1, 8}}), pl::config_error);
  CHECK(pl::as_tile(strided<2>{memory.data(), {6, 8}, {10, 1}}).ld == 10);
  // So is a matrix given as it is whose rows lie over each other: read, or written.
  for (int i = 0; i < 4; ++i) {
    const auto text = error_of_all(1, [&](auto& comm, auto& backend) {
      pl::cross_entropy_shape shape;
      shape.tokens = 4, shape.hidden = 3, shape.vocabulary = 5;
      pl::workspace<pl::host_backend> space(backend, loss_type::working_set(shape, 1));
      loss_type loss(backend, comm, shape, space);
      auto s = backend.make_stream("main");
      std::vector<float> x(12), weight(15), dx(12), dweight(15), one(1);
      std::vector<std::int32_t> targets(4);
      std::vector<pl::token_state> rows(4);
      std::vector<double> sums(2);
      pl::cross_entropy_saved keep{support::all(rows), support::all(sums), {}};
      loss_type::inputs in{
          {x.data(), 4, 3, 3}, {weight.data(), 5, 3, 3}, support::all(std::as_const(targets))};
      loss_type::gradients to{{dx.data(), 4, 3, 3}, {}, {dweight.data(), 5, 3, 3}, {}};
      (i == 0 ? in.x.ld : i == 1 ? in.weight.ld : i == 2 ? to.dx.ld : to.dweight.ld) = i % 3;
      const pl::drain<pl::host_backend> before_they_go(backend, s);
      loss.forward(s, in, keep);
      loss.backward(s, in, keep, support::all(std::as_const(one)), to);
    });
    constexpr const char* expected[] = {"the elements from row to row of x must be at least 3, got 0",
                                        "row of the weights must be at least 3, got 1",
                                        "dx must have its rows at least 3 elements apart, got 2",
                                        "dweight must have its rows at least 3 elements apart, got 0"};
    has(text, expected[i]);
  }
}

TEST_CASE(
    "V6: a target in another shard, at a shard's or a tile's edge, matches its own column and no other") {
  for (const rotation r : both) {
    ring_case c = case_of({13, 7}, {10, 7}, r);
    c.shape.options.reduction = reduction::sum;
    auto values = values_of<float>(c);
    for (std::size_t i = 0; i < values.targets.size(); ++i)
      values.targets[i] = static_cast<std::int64_t>((i * 3 + 9) % 17); // 9, 12, 15, 1, ... 16, 10
    check_ring(c, values, run_ring<float>(c, values, threads{}));
  }
}

TEST_CASE("V7: 6 tokens, 8 classes, 2 shards, label smoothing: the unsharded result") {
  for (const rotation r : both) {
    ring_case c = case_of({6}, {8}, r);
    c.shape.options.smoothing = 0.1F;
    const auto values = values_of<float>(c);
    const auto one = run_ring<float>(c, values, threads{});
    c.tokens = {3, 3};
    c.shards = {4, 4};
    const auto two = run_ring<float>(c, values, threads{});
    check_ring(c, values, one);
    check_ring(c, values, two);
    CHECK(two.loss[0] == doctest::Approx(static_cast<double>(one.loss[0])).epsilon(1e-6));
  }
}

TEST_CASE("V8: all of the weights where a shard belongs is an error on every rank") {
  pl::cross_entropy_shape shape;
  shape.tokens = 4;
  shape.hidden = 3;
  shape.vocabulary = 10;
  const auto make = [&](auto& comm, pl::host_backend& backend, index_t rows, auto f) {
    pl::workspace<pl::host_backend> space(backend, loss_type::working_set(shape, comm.size()));
    loss_type loss(backend, comm, shape, space, rows);
    f(loss);
  };
  const auto text =
      error_of_all(2, [&](auto& comm, auto& backend) { make(comm, backend, 10, [](auto&) {}); });
  has(text, "shards of all ranks must be the vocabulary of 10 rows, but they have 10, 10");
  // Given later: the shard is known.
  const auto late = error_of_all(2, [&](auto& comm, auto& backend) {
    make(comm, backend, -1, [&](auto& loss) {
      auto s = backend.make_stream("main");
      std::vector<float> x(12), weight(30);
      std::vector<std::int32_t> targets(4);
      std::vector<pl::token_state> rows(4);
      std::vector<double> sums(2);
      pl::cross_entropy_saved keep{support::all(rows), support::all(sums), {}};
      const index_t given = comm.rank() == 1 ? 10 : 5;
      loss.forward(
          s, {{x.data(), 4, 3, 3}, {weight.data(), given, 3, 3}, support::all(std::as_const(targets))}, keep);
    });
  });
  has(late, "rank 1: linear_cross_entropy: the rows of the weights, this rank's shard, must be 5, got 10");
}

TEST_CASE("V9: the gradient of x is complete, over all shards") {
  for (const rotation r : both) {
    ring_case c = case_of({8, 7}, {6, 9}, r);
    const auto values = values_of<float>(c);
    const auto two = run_ring<float>(c, values, threads{});
    check_ring(c, values, two);
    c.tokens = {15};
    c.shards = {15};
    const auto one = run_ring<float>(c, values, threads{});
    CHECK(support::relative_distance(two.dx, support::widened(one.dx)) < 1e-6);
  }
}

TEST_CASE(
    "V11: with the caller's denominator, micro-batches of ranks with different counts add up to one mean") {
  for (const rotation r : both) {
    ring_case whole = case_of({11, 10}, {7, 8}, r);
    const auto values = values_of<float>(whole);
    const auto expected = oracle_of(whole, values).forward();
    double sum = 0;
    std::vector<float> dweight(static_cast<std::size_t>(15 * 9));
    for (const auto& [first, n, split] : {std::array<std::size_t, 3>{0, 13, 13}, {13, 8, 2}}) {
      ring_case c = whole;
      c.tokens = {static_cast<index_t>(split), static_cast<index_t>(n - split)};
      c.shape.options.reduction = reduction::denominator;
      c.denominator = expected.weight();
      c.upstream = 1;
      auto part = values;
      part.x.assign(values.x.begin() + static_cast<index_t>(first * 9),
                    values.x.begin() + static_cast<index_t>((first + n) * 9));
      part.targets.assign(values.targets.begin() + static_cast<index_t>(first),
                          values.targets.begin() + static_cast<index_t>(first + n));
      part.upstream = {1};
      const auto result = run_ring<float>(c, part, threads{});
      sum += static_cast<double>(result.loss[0]);
      for (std::size_t i = 0; i < dweight.size(); ++i) dweight[i] += result.dweight[i];
    }
    ring_case c = whole;
    c.shape.options.reduction = reduction::denominator;
    c.denominator = 0;
    CHECK_THROWS_WITH_AS(run_ring<float>(c, values, threads{}),
                         doctest::Contains("the denominator must be a finite number but 0"),
                         pl::collective_error);
    CHECK(sum == doctest::Approx(expected.sum() / expected.weight()).epsilon(1e-6));
    const auto gradient = oracle_of(whole, values).backward(reference::vec(21, 1 / expected.weight())).weight;
    CHECK(support::relative_distance(dweight, gradient) < 2e-6);
  }
}

TEST_CASE("V12: backward is pure: another one before, or the same one again, gives the same bits") {
  for (const rotation r : both) {
    ring_case c = case_of({8, 7}, {6, 9}, r);
    const auto values = values_of<float>(c);
    const auto once = run_ring<float>(c, values, threads{});
    c.other_first = true;
    const auto after_another = run_ring<float>(c, values, threads{});
    CHECK(same_bits(once, after_another));
    c.other_first = false;
    c.backwards = 2;
    const auto twice = run_ring<float>(c, values, threads{});
    CHECK(support::same_bits(twice.dx, once.dx));
    check_ring(c, values, twice);
  }
}

TEST_CASE(
    "V13: a target out of range is an error with rank, token and value, and counts as nothing until then") {
  using wide = pl::linear_cross_entropy<pl::host_backend, pl::thread_communicator, float, std::int64_t>;
  // Each is a good one in 32 bits, or nearly one.
  for (const std::int64_t bad :
       {std::int64_t{8}, std::int64_t{-1}, (std::int64_t{1} << 32) + 1, std::int64_t{-99}})
    for (const rotation r : both) {
      CAPTURE(bad);
      pl::cross_entropy_shape shape;
      shape.tokens = 5;
      shape.hidden = 2;
      shape.vocabulary = 8;
      shape.rotate = r;
      std::vector<float> losses[2];
      float loss[2] = {};
      const auto text = error_of_all(2, [&](auto& comm, auto& backend) {
        auto s = backend.make_stream("main");
        pl::workspace<pl::host_backend> space(backend, wide::working_set(shape, 2));
        wide op(backend, comm, shape, space);
        const int me = comm.rank();
        std::vector<float> x(10, 0.5F), weight(8, 1.0F), dx(10, 1.0F), dweight(8);
        std::vector<std::int64_t> targets{0, 7, 3, 2, 1};
        if (me == 1) targets[2] = targets[4] = bad;
        std::vector<pl::token_state> rows(5);
        std::vector<double> sums(2);
        const std::vector<float> upstream{1};
        losses[me].resize(5);
        pl::cross_entropy_saved keep{support::all(rows), support::all(sums), {}};
        const typename wide::inputs in{
            {x.data(), 5, 2, 2}, {weight.data(), 4, 2, 2}, support::all(std::as_const(targets))};
        const pl::drain<pl::host_backend> before_they_go(backend, s);
        op.forward(s, in, keep, {{&loss[me], 1}, support::all(losses[me])});
        op.backward(s, in, keep, support::all(upstream),
                    {{dx.data(), 5, 2, 2}, {}, {dweight.data(), 4, 2, 2}});
        backend.wait(backend.record(s));
        if (me == 1)
          for (const std::size_t at : {4, 5, 8, 9}) CHECK(dx[at] == 0.0F);
        pl::close_step(backend, comm, s);
      });
      has(text,
          "rank 1: linear_cross_entropy: the target " + std::to_string(bad) + " of token 2 is not in [0, 8)");
      for (const int me : {0, 1}) {
        CHECK(loss[me] == doctest::Approx(std::log(8.0))); // the mean of the eight others
        for (const std::size_t i : {0, 1, 2, 3, 4})
          CHECK(losses[me][i] == doctest::Approx(me == 1 && (i == 2 || i == 4) ? 0.0 : std::log(8.0)));
      }
    }
}

TEST_CASE(
    "V14: -infinity adds nothing, a token of NaN has a NaN loss and gradient, all others are untouched") {
  for (const rotation r : both) {
    ring_case c = case_of({6, 7}, {6, 8}, r);
    c.shape.bias = true;
    c.shape.frozen_weights = true; // whose gradient is a sum over all tokens, NaN or not
    c.shape.options.reduction = reduction::none;
    auto values = values_of<float>(c);
    for (auto& t : values.targets)
      if (t == 4) t = 5;
    values.bias[4] = -infinity;
    check_ring(c, values, run_ring<float>(c, values, threads{}));
    const auto clean = run_ring<float>(c, values, threads{});
    // Smoothing asks for every logit: the loss is infinite then, as over dense logits; the gradient is not.
    ring_case smoothed = c;
    smoothed.shape.options.smoothing = 0.125F;
    const auto of_all = run_ring<float>(smoothed, values, threads{});
    for (std::size_t i = 0; i < 13; ++i)
      CHECK(of_all.losses[i] == (values.targets[i] >= 0 ? infinity : 0.0F));
    for (const float d : of_all.dx) CHECK(std::isfinite(d));
    values.x[3 * 9 + 2] = nan_value; // token 3
    values.targets[3] = 1;
    const auto result = run_ring<float>(c, values, threads{});
    for (std::size_t i = 0; i < 13; ++i) {
      CAPTURE(i);
      CHECK(std::isnan(result.losses[i]) == (i == 3));
      if (i != 3) CHECK(result.losses[i] == clean.losses[i]);
      for (std::size_t h = 0; h < 9; ++h) {
        CHECK(std::isnan(result.dx[9 * i + h]) == (i == 3));
        if (i != 3) CHECK(result.dx[9 * i + h] == clean.dx[9 * i + h]);
      }
    }
    // All logits -infinity: no distribution.
    for (float& b : values.bias) b = -infinity;
    const auto none = run_ring<float>(c, values, threads{});
    for (std::size_t i = 0; i < 13; ++i) {
      CAPTURE(i);
      if (values.targets[i] >= 0)
        CHECK(std::isnan(none.losses[i]));
      else
        CHECK(none.losses[i] == 0.0F);
    }
  }
}

TEST_CASE("V15: class weights are not looked up for a label that is ignored") {
  for (const rotation r : both)
    for (const std::int64_t ignored : {std::int64_t{-100}, std::int64_t{1000000007}}) {
      ring_case c = case_of({8, 7}, {6, 9}, r);
      c.class_weights = true;
      c.shape.options.ignore_index = ignored;
      c.shape.options.smoothing = 0.125F;
      const auto values = values_of<float>(c);
      check_ring(c, values, run_ring<float>(c, values, threads{}));
    }
}

TEST_CASE("V16: a shard that adds nothing at all, and shards whose sums are hundreds apart") {
  for (const rotation r : both)
    for (const float apart : {-infinity, -200.0F, 200.0F}) {
      CAPTURE(apart);
      ring_case c = case_of({8, 7, 4}, {6, 9, 3}, r);
      c.shape.bias = true;
      auto values = values_of<float>(c);
      for (std::size_t v = 6; v < 15; ++v) values.bias[v] = apart; // the shard of rank 1
      for (auto& t : values.targets)
        if (apart == -infinity && t >= 6 && t < 15) t = 2;
      check_ring(c, values, run_ring<float>(c, values, threads{}));
    }
}

TEST_CASE("V17: the loss, and the other gradient, have the same bits when a side is frozen") {
  for (const rotation r : both) {
    ring_case c = case_of({8, 7}, {6, 9}, r);
    const auto values = values_of<float>(c);
    const auto all = run_ring<float>(c, values, threads{});
    for (const int frozen : {1, 2, 3}) {
      c.shape.frozen_inputs = (frozen & 1) != 0;
      c.shape.frozen_weights = (frozen & 2) != 0;
      const auto some = run_ring<float>(c, values, threads{});
      CHECK(some.loss[0] != 0.0F);
      CHECK(support::same_bits(some.loss, all.loss));
      CHECK(support::same_bits(some.losses, all.losses));
      if (!c.shape.frozen_inputs) CHECK(support::same_bits(some.dx, all.dx));
      if (!c.shape.frozen_weights) CHECK(support::same_bits(some.dweight, all.dweight));
    }
  }
}
