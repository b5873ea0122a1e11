// SPDX-License-Identifier: Apache-2.0
//
// All sixteen combinations of the four peaks as whole runs of the training program: losses, gradients and
// weights beside the float64 reference and the run that flattens nothing; which of them have the same bits;
// states that one combination saves and another goes on from; bytes against what was promised; and all of it
// over sequences that ranks share.
#include "adamw_settings.hpp"
#include "reference_cases.hpp"
#include "token_sampler.hpp"
#include "whole_runs.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using test::combination, test::combinations, test::model_case, test::saved_state, test::whole_runs;

namespace {

constexpr std::size_t none = 0;
constexpr double fp32_ulp = 0x1p-23; // of losses and of gradients, whatever the weights
// Dispatch and loss regroup sums, the first four combinations; parked inputs and streamed state move bits.
constexpr int groupings = 4;
int regrouping(int number) { return number % groupings; }
std::size_t at_place(int number) { return static_cast<std::size_t>(number); }

// Tied or not, in one micro-batch or two, routed by the model or against it.
moe::options case_of(std::uint64_t seed, moe::compute_type dtype) {
  moe::options o = whole_runs::small_run();
  o.seed = seed;
  o.dtype = dtype;
  o.tied = seed % 2 == 0;
  o.accumulate = 1 + static_cast<std::int64_t>(seed / 2 % 2);
  o.balance_weight = o.accumulate == 1 ? 0.1 : 0; // of which each micro-batch has its own
  o.clip = 0;                                     // so that a first moment is a gradient's share
  if (dtype == moe::compute_type::bf16 || seed % 3 == 0)
    o.routing = moe::parse_routing("--routing", seed % 2 == 0 ? "hot:0.75,1" : "zipf:1.2");
  return o;
}
template <class Number> moe::options with(moe::options o, Number number, int ranks = 4) {
  o.flatten = combination(static_cast<int>(number));
  o.ranks = ranks;
  o.expert_parallel = ranks;
  return o;
}

// The float64 model before its first step, its weights rounded to what the run computes with.
model_case exact_case(const moe::options& o, const moe::corpus& text, reference::tensors masters) {
  if (o.dtype == moe::compute_type::bf16)
    for (auto& [name, tensor] : masters)
      for (double& value : tensor.data)
        value = static_cast<double>(
            plateau::widen(plateau::narrow<plateau::bfloat16>(static_cast<float>(value))));
  reference::transformer_config c;
  c.vocabulary = text.vocabulary;
  c.hidden = o.hidden;
  c.layers = o.layers;
  c.heads = o.heads;
  c.kv_heads = o.kv_heads;
  c.experts = o.experts;
  c.top_k = o.top_k;
  c.intermediate = o.intermediate;
  c.rope_theta = o.rope_theta;
  c.rms_epsilon = static_cast<double>(static_cast<float>(o.norm_epsilon));
  c.tied = o.tied;
  c.balance_weight = static_cast<double>(static_cast<float>(o.balance_weight));
  const moe::token_sampler sampler(text, o.context, o.seed);
  std::vector<reference::index> tokens;
  for (std::int64_t i = 0; i < o.batch; ++i)
    for (const std::int32_t token : sampler.sequence(0, i)) tokens.push_back(token);
  return {c, std::move(masters), reference::next_token_batch(tokens, o.batch, o.context)};
}

// Gradients of the first step, from the first moments behind it.
reference::tensors gradients_of(const saved_state& state) {
  const double share = static_cast<double>(1.0F - moe::adamw_settings{}.beta1);
  reference::tensors out = state.first;
  for (auto& [name, tensor] : out)
    for (double& value : tensor.data) value /= share;
  return out;
}

// By tensor, over all seeds: the norm of the differences over the norm. A tensor that is zero but for
// cancellation is held to a thousandth of the whole.
class gradient_errors {
 public:
  void add(const reference::tensors& actual, const reference::tensors& expected) {
    REQUIRE(actual.size() == expected.size());
    const double whole = test::norm_of(expected);
    for (const auto& [name, e] : expected) {
      const reference::tensor& a = actual.at(name);
      REQUIRE(a.shape == e.shape);
      double difference = 0, norm = 0;
      for (std::size_t i = 0; i < e.data.size(); ++i) {
        difference += (a.data[i] - e.data[i]) * (a.data[i] - e.data[i]);
        norm += e.data[i] * e.data[i];
      }
      sums& s = of_[name];
      s.difference += difference;
      s.norm += std::max(norm, 1e-6 * whole * whole);
    }
  }
  double of(const std::string& name) const {
    const sums& s = of_.at(name);
    return std::sqrt(s.difference / s.norm);
  }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& [name, s] : of_) out.push_back(name);
    return out;
  }

 private:
  struct sums {
    double difference = 0, norm = 0;
  };
  std::map<std::string, sums> of_;
};

// Root mean square and largest of differences.
class spread {
 public:
  void add(double difference) {
    squares_ += difference * difference;
    largest_ = std::max(largest_, std::fabs(difference));
    ++count_;
  }
  void add(const std::vector<double>& a, const std::vector<double>& b) {
    REQUIRE(a.size() == b.size());
    for (std::size_t i = 0; i < a.size(); ++i) add(a[i] - b[i]);
  }
  double rms() const { return std::sqrt(squares_ / std::max<double>(1, count_)); }
  double largest() const { return largest_; }

 private:
  double squares_ = 0, largest_ = 0, count_ = 0;
};

// A run's losses and the bytes of the state that it left.
struct course {
  std::vector<double> losses;
  std::string state;
};

// On every rank no tag holds more than was promised of it before anything existed, nor all of them together;
// what is not flattened has no promise, and routing that nobody bounds may exceed what is known of it.
void check_promises(const test::promised_run& r) {
  const moe::flatten_set& flatten = r.config.flatten;
  const auto flat = [&](const std::string& tag) {
    for (const moe::flatten_row& row : moe::flatten_rows)
      if (row.name == tag) return flatten.*row.member;
    return tag == "gradients" && flatten.optimizer;
  };
  for (const moe::peak_record& p : r.peaks) {
    CAPTURE(p.rank);
    CAPTURE(p.tag);
    CAPTURE(p.space);
    CHECK(p.promised.has_value() == flat(p.tag));
    if (p.promised) CHECK(p.bytes <= *p.promised);
    for (const plateau::tag t : plateau::all_tags) {
      const moe::tag_promise& of = r.promises[static_cast<std::size_t>(p.rank)][t];
      if (p.tag == plateau::name_of(t) && of.bounded)
        CHECK(p.bytes <= (p.space == "device" ? of.most.device_bytes : of.most.pinned_bytes));
    }
  }
  CHECK(r.totals.size() == 2 * r.promises.size());
  for (const moe::peak_record& p : r.totals) {
    CAPTURE(p.rank);
    CAPTURE(p.space);
    const moe::step_promise& of = r.promises[static_cast<std::size_t>(p.rank)];
    CHECK(of.bounded() == flatten.dispatch);
    if (of.bounded()) CHECK(p.bytes <= (p.space == "device" ? of.total.device_bytes : of.total.pinned_bytes));
  }
}
test::promised_run checked(const whole_runs& at, const moe::options& o, std::int64_t last,
                           const std::string& to = {}, std::int64_t first = 0, const std::string& from = {}) {
  test::promised_run result = at.run(o, last, to, first, from);
  check_promises(result);
  return result;
}

// Runs of one element type: a few seeds for every way to group sums, and on some of them every combination.
void check_accuracy(moe::compute_type dtype, std::uint64_t seeds, std::uint64_t with_all, std::int64_t steps,
                    double loss_bound, double gradient_bound) {
  const whole_runs at;
  const bool fp32 = dtype == moe::compute_type::fp32;
  std::vector<gradient_errors> gradients(groupings);
  std::vector<spread> first(groupings), later(groupings);
  spread yardstick;
  double some_loss = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    CAPTURE(seed);
    const moe::options o = case_of(seed, dtype);
    at.run(with(o, none, 1), 0, "initial");
    const model_case exact = exact_case(o, at.text(), saved_state(at.file("initial")).masters);
    std::optional<moe::forced_routing> forced;
    if (o.routing.forced()) forced.emplace(o.routing, o.experts, o.top_k, o.layers, o.ranks);
    const auto expected = test::expect(exact, forced ? &*forced : nullptr);
    if (!forced) REQUIRE(expected.margin > 1e-4);
    some_loss = expected.loss;
    std::vector<course> courses(groupings);
    for (int number = 0; number < groupings; ++number) {
      const moe::options mine = with(o, number);
      CAPTURE(test::name_of(mine.flatten));
      const double loss = checked(at, mine, 1, "first").losses.at(0);
      CHECK(std::fabs(loss - expected.loss) <= loss_bound * expected.loss);
      first[at_place(number)].add((loss - expected.loss) / expected.loss);
      gradients[at_place(number)].add(gradients_of(saved_state(at.file("first"))), expected.gradients);
      courses[at_place(number)] = {checked(at, mine, steps, "last", 1, "first").losses, at.bytes_of("last")};
    }
    // The others at one go, which is to the bit what the two halves were.
    for (int number = groupings; seed <= with_all && number < combinations; ++number) {
      const moe::options mine = with(o, number);
      CAPTURE(test::name_of(mine.flatten));
      course whole{checked(at, mine, steps, "last").losses, at.bytes_of("last")};
      whole.losses.erase(whole.losses.begin());
      const course& same = courses[at_place(regrouping(number))];
      CHECK(whole.losses == same.losses);
      CHECK(whole.state == same.state);
    }
    moe::options other = with(o, none, fp32 ? 2 : 4);
    other.dtype = moe::compute_type::fp32;
    std::vector<double> beside = at.run(other, steps).losses;
    beside.erase(beside.begin());
    yardstick.add(beside, courses[none].losses);
    for (int number = 0; number < groupings; ++number)
      later[at_place(number)].add(courses[at_place(number)].losses, fp32 ? courses[none].losses : beside);
  }
  for (int number = 0; number < groupings; ++number) {
    const std::size_t i = at_place(number);
    CAPTURE(test::name_of(combination(number)));
    CHECK(first[i].rms() <= 2 * first[none].rms() + fp32_ulp);
    CHECK(first[i].largest() <= 2 * first[none].largest() + fp32_ulp);
    double worst = 0, ratio = 0;
    for (const std::string& name : gradients[none].names()) {
      CAPTURE(name);
      const double mine = gradients[i].of(name), plain = gradients[none].of(name);
      CHECK(mine <= 2 * plain + fp32_ulp);
      worst = std::max(worst, mine);
      ratio = std::max(ratio, mine / plain);
    }
    CHECK(worst <= gradient_bound);
    CHECK(later[i].rms() <= 2 * yardstick.rms() + fp32_ulp * some_loss);
    MESSAGE(test::name_of(combination(number)), ": first loss ", first[i].rms(), ", gradients ", worst, ", ",
            ratio, " of those of none; later losses ", later[i].rms(), " apart, yardstick ", yardstick.rms());
  }
}

} // namespace

// The yardstick of later losses is the distance between the unflattened model on two and on four ranks. In a
// few steps that and every other distance stay below an ulp of a loss, which is allowed beside it.
TEST_CASE("fp32: every combination is as exact as none, and parking and streaming change no bit") {
  check_accuracy(moe::compute_type::fp32, 5, 2, 6, 1e-6, 1e-5);
}
// In bf16 other ranks regroup nothing that survives a rounding: the yardstick is how far the unflattened
// model has got from itself in fp32, which is exact beside it.
TEST_CASE("bf16: every combination is as exact as none, and parking and streaming change no bit") {
  check_accuracy(moe::compute_type::bf16, 5, 2, 3, 1e-3, 0.06);
}

TEST_CASE("O11: what one combination saved, another goes on from, on any ranks, with shards or without") {
  const whole_runs at;
  moe::options o = case_of(2, moe::compute_type::fp32); // tied, in two micro-batches
  o.clip = 0.5;
  const auto shards = [](moe::options mine, int turn) {
    mine.zero1 = mine.flatten.optimizer && turn % 2 == 0;
    return mine;
  };
  constexpr std::int64_t half = 2, end = 6;
  const auto rest_of = [](std::vector<double> losses) {
    losses.erase(losses.begin(), losses.begin() + half);
    return losses;
  };
  std::vector<std::vector<double>> whole;
  for (int number = 0; number < groupings; ++number)
    whole.push_back(rest_of(checked(at, with(o, number), end).losses));
  spread yardstick, across, elsewhere;
  for (const int ranks : {1, 2, 3})
    yardstick.add(rest_of(at.run(with(o, none, ranks), end).losses), whole[none]);
  for (int saves = 0; saves < combinations; ++saves) {
    // Each once: the opposite one, such as all after none; or what groups sums in the same way, to the bit.
    const bool opposite = regrouping(saves) == 0 || regrouping(saves) == 3;
    const int resumes = saves ^ (opposite ? 15 : 12);
    const moe::options first = shards(with(o, saves), saves / 2), second = shards(with(o, resumes), resumes);
    CAPTURE(test::name_of(first.flatten));
    CAPTURE(test::name_of(second.flatten));
    checked(at, first, half, "half");
    const auto rest = checked(at, second, end, "", half, "half").losses;
    const auto& expected = whole[at_place(regrouping(resumes))];
    if (!opposite) CHECK(rest == expected);
    across.add(rest, expected);
    if (saves % 2 != 0) continue;
    const moe::options other = shards(with(o, resumes, 1 + saves % 3), resumes + 1);
    elsewhere.add(checked(at, other, end, "", half, "half").losses, expected);
  }
  MESSAGE("apart: ", across.rms(), ", on other ranks ", elsewhere.rms(), ", yardstick ", yardstick.rms());
  const double allowed = 2 * yardstick.rms() + fp32_ulp * whole[none][0];
  CHECK(across.rms() <= allowed);
  CHECK(elsewhere.rms() <= allowed);
}

namespace {

// The same run with so many ranks to each sequence, and less of it in flight than there is.
moe::options sharing(moe::options o, std::int64_t sequence_ranks) {
  o.sequence_parallel = sequence_ranks;
  o.attention_queries = 2;
  o.attention_keys = 3;
  if (sequence_ranks > 1) o.key_hop_rows = 2;
  return o;
}

// Nine tokens over two and over four ranks, with nothing flattened, and with each way to group sums.
void check_sharing(moe::compute_type dtype, std::uint64_t seeds, double loss_bound, double gradient_bound) {
  struct form {
    std::int64_t sequence_ranks;
    int number;
  };
  const std::vector<form> forms{{1, 0}, {2, 0}, {4, 0}, {4, 1}, {4, 2}, {4, combinations - 1}};
  const whole_runs at;
  const bool fp32 = dtype == moe::compute_type::fp32;
  std::vector<gradient_errors> gradients(forms.size());
  std::vector<spread> first(forms.size()), later(forms.size());
  spread yardstick;
  double some_loss = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    CAPTURE(seed);
    const moe::options o = case_of(seed, dtype);
    at.run(with(o, none, 1), 0, "initial");
    const model_case exact = exact_case(o, at.text(), saved_state(at.file("initial")).masters);
    std::optional<moe::forced_routing> forced;
    if (o.routing.forced()) forced.emplace(o.routing, o.experts, o.top_k, o.layers, o.ranks);
    const auto expected = test::expect(exact, forced ? &*forced : nullptr);
    some_loss = expected.loss;
    std::vector<double> whole;
    for (std::size_t i = 0; i < forms.size(); ++i) {
      const moe::options mine = sharing(with(o, forms[i].number), forms[i].sequence_ranks);
      CAPTURE(forms[i].sequence_ranks);
      CAPTURE(test::name_of(mine.flatten));
      const double loss = checked(at, mine, 1, "first").losses.at(0);
      CHECK(std::fabs(loss - expected.loss) <= loss_bound * expected.loss);
      first[i].add((loss - expected.loss) / expected.loss);
      gradients[i].add(gradients_of(saved_state(at.file("first"))), expected.gradients);
      const std::vector<double> rest = checked(at, mine, 3, "", 1, "first").losses;
      if (i == 0) whole = rest;
      later[i].add(rest, whole);
    }
    // As for the combinations: on other ranks, or, where that regroups nothing, in fp32.
    for (const int ranks : fp32 ? std::vector<int>{1, 2, 3} : std::vector<int>{4}) {
      moe::options other = with(o, none, ranks);
      other.dtype = moe::compute_type::fp32;
      std::vector<double> beside = at.run(other, 3).losses;
      beside.erase(beside.begin());
      yardstick.add(beside, whole);
    }
  }
  for (std::size_t i = 0; i < forms.size(); ++i) {
    CAPTURE(forms[i].sequence_ranks);
    CAPTURE(forms[i].number);
    CHECK(first[i].rms() <= 2 * first[0].rms() + fp32_ulp);
    CHECK(first[i].largest() <= 2 * first[0].largest() + fp32_ulp);
    CHECK(later[i].rms() <= 2 * yardstick.rms() + fp32_ulp * some_loss);
    double worst = 0, ratio = 0;
    for (const std::string& name : gradients[0].names()) {
      CAPTURE(name);
      const double mine = gradients[i].of(name), plain = gradients[0].of(name);
      CHECK(mine <= 2 * plain + fp32_ulp);
      worst = std::max(worst, mine);
      ratio = std::max(ratio, mine / plain);
    }
    CHECK(worst <= gradient_bound);
    MESSAGE(forms[i].sequence_ranks, " ranks a sequence, ", test::name_of(combination(forms[i].number)),
            ": first loss ", first[i].rms(), ", gradients ", worst, ", ", ratio,
            " of those of whole sequences; later losses ", later[i].rms(), " apart, yardstick ",
            yardstick.rms());
  }
}

} // namespace

TEST_CASE("fp32: sequences that ranks share are as exact as whole ones") {
  check_sharing(moe::compute_type::fp32, 8, 1e-6, 1e-5);
}
// Other tiles round other shares: errors of a loss are as if by chance, and want more seeds.
TEST_CASE("bf16: sequences that ranks share are as exact as whole ones") {
  check_sharing(moe::compute_type::bf16, 16, 1e-3, 0.06);
}

TEST_CASE("each combination over sequences that ranks share: the bits of those that group sums alike") {
  const whole_runs at;
  for (const auto& [seed, sequence_ranks] : {std::pair{2, 2}, {3, 4}}) {
    const moe::options o = case_of(static_cast<std::uint64_t>(seed), moe::compute_type::fp32);
    CAPTURE(sequence_ranks);
    const double plain = at.run(with(o, none), 1).losses.at(0);
    std::vector<course> courses;
    for (int number = 0; number < combinations; ++number) {
      const moe::options mine = sharing(with(o, number), sequence_ranks);
      CAPTURE(test::name_of(mine.flatten));
      const course one{checked(at, mine, 3, "last").losses, at.bytes_of("last")};
      CHECK(std::fabs(one.losses.at(0) - plain) <= 1e-6 * plain);
      courses.push_back(one);
      CHECK(one.losses == courses[at_place(regrouping(number))].losses);
      CHECK(one.state == courses[at_place(regrouping(number))].state);
    }
  }
}

TEST_CASE("O11: a run goes on with other ranks to a sequence; with the same, bit by bit") {
  const whole_runs at;
  constexpr std::int64_t half = 2, end = 5;
  const auto rest_of = [](std::vector<double> losses) {
    losses.erase(losses.begin(), losses.begin() + half);
    return losses;
  };
  spread yardstick, across;
  for (const std::uint64_t seed : {1, 2}) {
    const moe::options o = case_of(seed, moe::compute_type::fp32);
    const std::vector<double> whole = rest_of(at.run(with(o, none), end).losses);
    for (const int ranks : {1, 2, 3}) yardstick.add(rest_of(at.run(with(o, none, ranks), end).losses), whole);
    for (const int number : {0, combinations - 1})
      for (const auto& [saves, resumes] : {std::pair{1, 4}, {4, 2}, {2, 1}, {4, 4}}) {
        CAPTURE(saves);
        CAPTURE(resumes);
        const moe::options first = sharing(with(o, number), saves),
                           second = sharing(with(o, number), resumes);
        checked(at, first, half, "half");
        const std::vector<double> rest = checked(at, second, end, "", half, "half").losses;
        across.add(rest, whole);
        if (saves == resumes) CHECK(rest == rest_of(checked(at, second, end).losses));
      }
  }
  MESSAGE("apart ", across.rms(), ", yardstick ", yardstick.rms());
  CHECK(across.rms() <= 2 * yardstick.rms());
}
