// SPDX-License-Identifier: Apache-2.0
//
// What a linear cross-entropy is given and gives, and whether that fits its shape. What does not fit is found
// as a few integers, so that every rank can say the same about one of them.
#pragma once

#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/math.hpp>
#include <plateau/ring/cross_entropy_shape.hpp>
#include <plateau/ring/cross_entropy_terms.hpp>
#include <plateau/view.hpp>

#include <array>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace plateau::inline v0 {

// What is given to forward, and again to backward. All of device memory; rows may be further apart than they
// are long. A rank may come with no tokens, or with no part of the vocabulary.
template <class T, class Id> struct cross_entropy_inputs {
  tile<const T> x;                           // (tokens, hidden)
  tile<const T> weight;                      // (rows of this rank's shard, hidden)
  view<const Id> targets;                    // (tokens), in [0, vocabulary) of all ranks, or ignore_index
  view<const float> bias{};                  // (rows of the shard), if the shape has a bias
  view<const float> class_weights{};         // (vocabulary), the same on every rank, or empty on every rank
  view<const float> token_weights{};         // (tokens), or empty
  double denominator = 1;                    // for reduction::denominator; the same on all ranks
  std::span<const index_t> tokens_of_rank{}; // by rank, if the caller knows: saves forward a host exchange
};

// Where backward puts its gradients; those of a frozen side stay empty. In dx all rows are written. Weight
// gradients are added to what is there, in fp32: start them at zero, or go on.
template <class T> struct cross_entropy_gradients {
  tile<T> dx{};          // (tokens, hidden), rounded once, or instead:
  tile<float> wide_dx{}; // (tokens, hidden)
  tile<float> dweight{}; // (rows of the shard, hidden)
  view<float> dbias{};   // (rows of the shard)
};

// What is kept from forward to backward, in the caller's storage: one for each forward whose backward is
// still to come.
struct cross_entropy_saved {
  view<token_state> rows{};      // (tokens) or more: 16 bytes each
  view<double> sums{};           // (2): of the losses of all ranks, and of their weights
  std::vector<index_t> tokens{}; // by rank; filled by forward
  // For a shape with one_pass: the gradients of the sum of the losses, made by forward, until backward has
  // multiplied them. They may be the very arrays that backward gets: then it does so once, in place, and
  // nothing is added to what was there before. Empty for a frozen side, and in recompute mode.
  tile<float> dx{};      // (tokens, hidden)
  tile<float> dweight{}; // (vocabulary, hidden)
  view<float> dbias{};   // (vocabulary)
};

// What forward gives on request; empty where nobody wants it. Device memory.
struct cross_entropy_outputs {
  view<float> loss{};   // (1): reduced over all ranks, the same bits on each; not for reduction::none
  view<float> losses{}; // (tokens), weighted; 0 for those that count as nothing
  view<float> lses{};   // (tokens): log of the sum of exponentials
  view<float> log_probabilities{}; // (tokens): of the target; 0 for those that count as nothing
  // Of a shape that says so. A row whose lse is NaN has the entropy NaN and the argmax -1.
  view<float> entropies{};       // (tokens), in nats, of the softmax of the logits
  view<std::int64_t> argmaxes{}; // (tokens): the largest logit's id, the lowest of equal ones
  view<unsigned char> correct{}; // (tokens): 1 where that is the target; 0 elsewhere, or if it does not count
  view<double> accuracy{};       // (2): of all ranks, the tokens that are correct, and those that count
};

namespace detail {

// What does not fit, by number, and both values; -1: all fits.
struct cross_entropy_misfit {
  static constexpr std::int64_t denominator = 100; // no lengths
  std::int64_t number = -1, got = 0, wanted = 0;

  std::string text(int rank) const {
    if (number == denominator)
      return "plateau: rank " + std::to_string(rank) +
             ": linear_cross_entropy: the denominator must be a finite number but 0";
    constexpr const char* names[] = {"the tokens of x",
                                     "the columns of x",
                                     "the rows of the weights, this rank's shard,",
                                     "the columns of the weights",
                                     "the number of targets",
                                     "the elements of the bias",
                                     "the class weights, of the whole vocabulary or none,",
                                     "the token weights, one for each token or none,",
                                     "the rows of saved",
                                     "the sums of saved",
                                     "the losses, one for each token or none,",
                                     "the lses, one for each token or none,",
                                     "the log-probabilities, one for each token or none,",
                                     "the entropies, one for each token of a shape with entropy, or none,",
                                     "the argmaxes, of a shape with argmax, also for the accuracy,",
                                     "the correct, one for each token whose argmax is given, or none,",
                                     "the accuracy, of a shape with it,",
                                     "the loss, which reduction none does not have,",
                                     "the elements from row to row of x",
                                     "the elements from row to row of the weights"};
    return "plateau: rank " + std::to_string(rank) +
           ": linear_cross_entropy: " + names[static_cast<std::size_t>(number)] + " must be " +
           (number == 0    ? "at most "
            : number >= 18 ? "at least "
                           : "") +
           std::to_string(wanted) + ", got " + std::to_string(got);
  }
};

// What ranks tell each other in forward: their tokens, what does not fit, and what must be the same on all.
struct cross_entropy_report {
  static constexpr std::size_t numbers = 6;
  std::array<std::int64_t, numbers> all{};

  template <class T, class Id>
  cross_entropy_report(const cross_entropy_shape& limits, const cross_entropy_inputs<T, Id>& in,
                       const cross_entropy_misfit& f)
      : all{in.x.rows, f.number, f.got, f.wanted, 0, in.class_weights.n} {
    if (limits.options.reduction == reduction::denominator) all[4] = bit_cast<std::int64_t>(in.denominator);
  }
  // What a rank has that differs from what the first one has; empty: nothing.
  static std::string difference(int rank, const std::int64_t* its, int first, const std::int64_t* firsts) {
    const auto text = [&](const char* what, const std::string& here, const std::string& there) {
      return "plateau: rank " + std::to_string(rank) + ": linear_cross_entropy: " + what +
             " must be the same on all ranks, but there are " + here + " here and " + there + " on rank " +
             std::to_string(first);
    };
    if (its[4] != firsts[4])
      return text("the denominator", std::to_string(bit_cast<double>(its[4])),
                  std::to_string(bit_cast<double>(firsts[4])));
    if (its[5] != firsts[5])
      return text("the class weights", std::to_string(its[5]), std::to_string(firsts[5]));
    return {};
  }
};

template <class T, class Id>
cross_entropy_misfit find_misfit(const cross_entropy_shape& limits, index_t shard_rows,
                                 const cross_entropy_inputs<T, Id>& in, const cross_entropy_saved& keep,
                                 const cross_entropy_outputs* want) {
  const index_t n = in.x.rows;
  cross_entropy_misfit f;
  const auto exactly = [&](int number, index_t got, index_t wanted) {
    if (f.number < 0 && got != wanted) f = {number, got, wanted};
  };
  const auto none_or = [&](int number, index_t got, index_t wanted) {
    if (got != 0) exactly(number, got, wanted);
  };
  const auto enough = [&](int number, index_t got, index_t wanted) {
    if (got < wanted) exactly(number, got, wanted);
  };
  if (n > limits.tokens) f = {0, n, limits.tokens};
  if (n != 0) exactly(1, in.x.cols, limits.hidden);
  exactly(2, in.weight.rows, shard_rows);
  if (in.weight.rows != 0) exactly(3, in.weight.cols, limits.hidden);
  if (n > 1) enough(18, in.x.ld, limits.hidden);
  if (in.weight.rows > 1) enough(19, in.weight.ld, limits.hidden);
  exactly(4, in.targets.n, n);
  exactly(5, in.bias.n, limits.bias ? in.weight.rows : 0);
  none_or(6, in.class_weights.n, limits.vocabulary);
  none_or(7, in.token_weights.n, n);
  enough(8, keep.rows.n, n);
  enough(9, keep.sums.n, 2);
  if (want != nullptr) {
    none_or(10, want->losses.n, n);
    none_or(11, want->lses.n, n);
    none_or(12, want->log_probabilities.n, n);
    none_or(13, want->entropies.n, limits.entropy ? n : 0);
    if (limits.accuracy)
      exactly(14, want->argmaxes.n, n);
    else
      none_or(14, want->argmaxes.n, limits.argmax ? n : 0);
    none_or(15, want->correct.n, want->argmaxes.n);
    exactly(16, want->accuracy.n, limits.accuracy ? 2 : 0);
    if (limits.options.reduction == reduction::none) exactly(17, want->loss.n, 0);
  }
  if (f.number < 0 && limits.options.reduction == reduction::denominator &&
      (!is_finite(in.denominator) || in.denominator == 0))
    f.number = cross_entropy_misfit::denominator;
  return f;
}

// Throws config_error, on this rank, for what backward cannot work with. `wide_only`: the gradient of x must
// be given in fp32; `rounded_only`: it cannot.
template <class T, class Id>
void check_backward(int rank, const cross_entropy_shape& limits, index_t shard_rows,
                    const cross_entropy_inputs<T, Id>& in, const cross_entropy_saved& keep,
                    index_t saved_tokens, index_t upstream, const cross_entropy_gradients<T>& to,
                    bool wide_only, bool rounded_only) {
  const index_t n = in.x.rows;
  const auto refuse = [&](const std::string& what) {
    throw config_error("plateau: rank " + std::to_string(rank) + ": linear_cross_entropy backward: " + what);
  };
  const cross_entropy_misfit f =
      find_misfit(limits, shard_rows, in, keep, static_cast<const cross_entropy_outputs*>(nullptr));
  if (f.number >= 0) throw config_error(f.text(rank));
  if (saved_tokens != n)
    refuse("`saved` is not of a forward with " + std::to_string(n) + " tokens on this rank");
  if (upstream != 1 && upstream != n)
    refuse("the upstream gradient has 1 element, or one for each of " + std::to_string(n) + " tokens, not " +
           std::to_string(upstream));
  const auto check = [&](const char* what, const auto& t, index_t rows, bool frozen) {
    if (frozen ? t.rows != 0 : (t.rows != rows || (rows != 0 && t.cols != limits.hidden)))
      refuse(std::string(what) + " must be (" + std::to_string(frozen ? 0 : rows) + ", " +
             std::to_string(limits.hidden) + "), got (" + std::to_string(t.rows) + ", " +
             std::to_string(t.cols) + ')');
    if (t.rows > 1 && t.ld < t.cols)
      refuse(std::string(what) + " must have its rows at least " + std::to_string(t.cols) +
             " elements apart, got " + std::to_string(t.ld));
  };
  check("dweight", to.dweight, shard_rows, limits.frozen_weights);
  const index_t bias = limits.bias && !limits.frozen_weights ? shard_rows : 0;
  if (to.dbias.n != bias)
    refuse("dbias must have " + std::to_string(bias) + " elements, got " + std::to_string(to.dbias.n));
  if (to.wide_dx.rows != 0 && to.dx.rows != 0) refuse("dx and wide_dx are both given: one of them is enough");
  if (to.wide_dx.rows != 0 && rounded_only)
    refuse("with input_gradient_accumulator the gradient of x is rounded: give dx");
  if (to.wide_dx.rows != 0) return check("wide_dx", to.wide_dx, n, limits.frozen_inputs);
  if (wide_only && n != 0)
    refuse("weights rotate, so the gradient of x is summed in fp32: give wide_dx, or set "
           "input_gradient_accumulator");
  check("dx", to.dx, n, limits.frozen_inputs);
}

} // namespace detail

} // namespace plateau::inline v0
