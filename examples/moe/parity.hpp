// SPDX-License-Identifier: Apache-2.0
//
// How far two trainings in lock step are from each other, step by step: in the loss of each token, and in
// each tensor's gradient. Plain data and sums; the same bits are a difference of 0, whatever they stand for.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moe {

// The difference second - first, in double: exact for all but numbers very far apart.
inline double difference_of(float first, float second) {
  if (std::bit_cast<std::uint32_t>(first) == std::bit_cast<std::uint32_t>(second)) return 0;
  return static_cast<double>(second) - static_cast<double>(first);
}

// Of two distances; what is not a number is the largest.
inline bool is_worse(double a, double b) { return std::isnan(b) ? false : std::isnan(a) || a > b; }
inline double worse_of(double a, double b) { return is_worse(b, a) ? b : a; }

// Two gradients of one tensor, or of several.
class gradient_difference {
 public:
  // Elements of both, of the same number.
  void add(std::span<const float> first, std::span<const float> second) {
    for (std::size_t i = 0; i < first.size(); ++i) {
      const double a = static_cast<double>(first[i]), b = static_cast<double>(second[i]);
      const double d = difference_of(first[i], second[i]);
      first_ += a * a;
      second_ += b * b;
      difference_ += d * d;
    }
  }
  void add(const gradient_difference& other) {
    first_ += other.first_;
    second_ += other.second_;
    difference_ += other.difference_;
  }

  double first_norm() const { return std::sqrt(first_); }
  double second_norm() const { return std::sqrt(second_); }
  // The norm of the difference over that of the first; infinite where the first is zero and the second is
  // not.
  double relative_error() const {
    if (difference_ == 0) return 0;
    return first_ == 0 ? std::numeric_limits<double>::infinity() : std::sqrt(difference_) / first_norm();
  }
  // Of the norms, the second's less the first's.
  double norm_difference() const {
    return difference_ == 0 || first_ == second_ ? 0 : second_norm() - first_norm();
  }

 private:
  double first_ = 0, second_ = 0, difference_ = 0; // sums of squares
};

// The losses of tokens of one step.
struct token_differences {
  double largest = 0, squares = 0;
  std::int64_t tokens = 0;

  void add(std::span<const float> first, std::span<const float> second) {
    for (std::size_t i = 0; i < first.size(); ++i) {
      const double d = difference_of(first[i], second[i]);
      largest = worse_of(largest, std::fabs(d));
      squares += d * d;
    }
    tokens += static_cast<std::int64_t>(first.size());
  }
  void add(const token_differences& other) {
    largest = worse_of(largest, other.largest);
    squares += other.squares;
    tokens += other.tokens;
  }
  double rms() const { return tokens == 0 ? 0 : std::sqrt(squares / static_cast<double>(tokens)); }
};

struct parity_step {
  double first_loss = 0, second_loss = 0;
  token_differences tokens;                   // of all ranks
  std::vector<gradient_difference> gradients; // summed over ranks, as they go into the update; by tensor
};

// Of the means over all tokens.
inline double loss_difference(const parity_step& step) {
  const bool alike =
      std::bit_cast<std::uint64_t>(step.first_loss) == std::bit_cast<std::uint64_t>(step.second_loss);
  return alike ? 0 : std::fabs(step.second_loss - step.first_loss);
}

// "first" is the training with nothing flattened.
struct parity_record {
  std::vector<std::string> tensors;
  std::vector<parity_step> steps;
};

// Kinds of tensors, in the order in which a token meets them.
inline constexpr std::array<std::string_view, 6> tensor_kinds{"embedding", "norms",   "attention",
                                                              "router",    "experts", "head"};

// The position in tensor_kinds of a tensor with a published name.
inline std::size_t kind_of_tensor(std::string_view name) {
  const auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  if (has("embed_tokens")) return 0;
  if (has("norm")) return 1;
  if (has("self_attn")) return 2;
  if (has("block_sparse_moe.gate")) return 3;
  return has(".experts.") ? 4 : 5;
}

// The gradients of one kind: all of them as one, and the tensor with the largest relative error.
struct kind_difference {
  std::size_t kind = 0;
  gradient_difference all;
  std::size_t worst = 0; // its position among the tensors
};

// One for each kind that there is.
inline std::vector<kind_difference> by_kind(const std::vector<std::string>& tensors,
                                            const parity_step& step) {
  std::vector<kind_difference> kinds;
  for (std::size_t kind = 0; kind < tensor_kinds.size(); ++kind) {
    kind_difference sum{kind, {}, tensors.size()};
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (kind_of_tensor(tensors[i]) != kind) continue;
      const double error = step.gradients[i].relative_error();
      sum.all.add(step.gradients[i]);
      if (sum.worst == tensors.size() || is_worse(error, step.gradients[sum.worst].relative_error()))
        sum.worst = i;
    }
    if (sum.worst != tensors.size()) kinds.push_back(sum);
  }
  return kinds;
}

} // namespace moe
