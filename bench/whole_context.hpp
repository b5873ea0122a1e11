// SPDX-License-Identifier: Apache-2.0
//
// How much longer a context, and how much larger a batch, a device trains with all four peaks flattened than
// with none of them: the device is as small as it may be for the unflattened model to train at all. Lengths
// are found from promises and held to the dry run; what was found, and the next length, are then run for
// real.
#pragma once

#include "table.hpp"
#include "whole_reference.hpp"
#include "whole_runs.hpp"

#include <plateau/error.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace bench {

inline spread of_one(double value) { return {value, value, value, value, 0}; }

inline constexpr std::int64_t whole_batch = 4; // sequences of a step of the baseline: one on each rank

// The smallest device that the unflattened model trains `context` on, as the dry run says.
inline std::uint64_t smallest_device(std::int64_t context, std::string* held = nullptr,
                                     double* share = nullptr) {
  const moe::run_result none = predict(whole_shape(flattened::none, context, whole_batch));
  const std::uint64_t bytes = moe::highest_device_peak(none);
  for (const moe::peak_record& total : none.totals) {
    if (total.space != "device" || total.bytes != bytes) continue;
    double of_tokens = 0;
    for (const auto& [tag, n] : total.held_at_peak) {
      const auto held_bytes = static_cast<double>(n);
      if (held != nullptr) *held += fmt::format(" {} {:.1f}", tag, held_bytes / mebibyte);
      // The workspace is that of a layer's activations.
      if (tag == "vocabulary" || tag == "activations" || tag == "checkpoint" || tag == "workspace")
        of_tokens += held_bytes;
    }
    if (share != nullptr) *share = of_tokens / static_cast<double>(bytes);
    break;
  }
  return bytes;
}

// The largest n whose shape(n) fits into `limit` bytes. Promises are at hand sooner than dry runs, which have
// the last word: throws config_error where the two disagree.
inline std::int64_t largest_that_fits(std::uint64_t limit,
                                      const std::function<moe::options(std::int64_t)>& shape) {
  std::int64_t fits = 1, too_many = 2;
  while (promised_bytes(shape(too_many)) <= limit) fits = std::exchange(too_many, 2 * too_many);
  while (too_many - fits > 1) {
    const std::int64_t middle = fits + (too_many - fits) / 2;
    (promised_bytes(shape(middle)) <= limit ? fits : too_many) = middle;
  }
  const auto does = [&](std::int64_t n) {
    moe::options o = shape(n);
    o.memory_limit_bytes = limit;
    try {
      predict(o);
      return true;
    } catch (const plateau::error&) {
      return false;
    }
  };
  if (!does(fits) || does(too_many))
    throw plateau::config_error("the promise of a step and the dry run of it do not agree on what fits");
  return fits;
}
inline std::int64_t times_the_context(std::int64_t context, std::uint64_t limit) {
  return largest_that_fits(
      limit, [&](std::int64_t n) { return whole_shape(flattened::all, n * context, whole_batch); });
}
inline std::int64_t times_the_batch(std::int64_t context, std::uint64_t limit) {
  return largest_that_fits(
      limit, [&](std::int64_t n) { return whole_shape(flattened::all, context, n * whole_batch); });
}

// Runs that shall fit, with the limit set. Says what they held.
inline real_run train_within(std::uint64_t limit, moe::options o, const std::string& name) {
  o.memory_limit_bytes = limit;
  real_run run;
  const double seconds = seconds_of([&] { run = train(o); });
  std::string losses;
  for (const double loss : run.result.losses) losses += fmt::format(" {:.4f}", loss);
  fmt::print("  {}: trained {} step{}, {:.1f} MiB of {:.1f}, losses{}, {:.0f} s, load {}\n", name,
             run.result.losses.size(), run.result.losses.size() == 1 ? "" : "s",
             static_cast<double>(run.peak()) / mebibyte, static_cast<double>(limit) / mebibyte, losses,
             seconds, load_average());
  return run;
}
// And runs that shall not.
inline bool fails_within(std::uint64_t limit, moe::options o, const std::string& name) {
  o.memory_limit_bytes = limit;
  try {
    train(o);
  } catch (const plateau::error& error) {
    fmt::print("  {}: {}\n", name, error.what());
    return true;
  }
  fmt::print("  {}: TRAINED within {} bytes\n", name, limit);
  return false;
}

inline void print_distance(const std::string& name, const loss_distance& d) {
  fmt::print("  {}: losses of 64 tokens against float64: RMS {:.3g}, largest {:.3g}\n", name, d.rms,
             d.largest);
}

// How many of the sampled tokens have a route, in some layer, that an error of a bfloat16's last place in the
// logits of the router could change.
inline std::int64_t near_ties(const sampled_losses& s) {
  return std::count_if(s.margin.begin(), s.margin.end(), [](double m) { return m < 0x1p-7; });
}

// What `context` is made of.
struct context_parts {
  bool sizes = false;   // what fits, by the dry run
  bool losses = false;  // real runs of `none` and `all` at C and of `all` at `times` x C, and their losses
  bool longest = false; // real runs of the longest context and the largest batch, and of the next ones
  std::int64_t times = 32;
  std::int64_t steps_at_longest = 1;
};

class context_bench {
 public:
  context_bench(table& out, const context_parts& parts) : out_(&out), parts_(parts) {
    std::string held;
    double share = 0;
    limit_ = smallest_device(context, &held, &share);
    fmt::print("the limit: {} bytes, what the unflattened model needs for {} sequences of {}; MiB:{}\n",
               limit_, whole_batch, context, held);
    out.row("logits and activations / the unflattened model's peak", of_one(share), goal::at_least(1.0 / 3));
    longest_ = times_the_context(context, limit_);
    out.row("context, all flattened / none", of_one(static_cast<double>(longest_)), goal::at_least(32));
    most_ = times_the_batch(context, limit_);
    out.row("batch at that context, all flattened / none", of_one(static_cast<double>(most_)),
            goal::at_least(24));
  }

  void run() {
    if (parts_.sizes)
      for (const std::int64_t other : {64, 1024})
        out_->row(fmt::format("context, from {} (dry run)", other),
                  of_one(static_cast<double>(times_the_context(other, smallest_device(other)))));
    if (parts_.losses) losses();
    if (parts_.longest) longest();
    if (parts_.losses || parts_.longest)
      out_->row("runs that fitted though they should not", of_one(wrong_), goal::at_most(0));
  }

 private:
  static constexpr std::int64_t context = 256, sampled = 64;
  static moe::options at(flattened how, std::int64_t n) { return whole_shape(how, n * context, whole_batch); }
  static moe::options of_batch(std::int64_t n) {
    return whole_shape(flattened::all, context, n * whole_batch);
  }
  static std::string name(std::int64_t n) { return fmt::format("all, context {} x {}", n, context); }
  void shall_fail(const moe::options& o, const std::string& name) {
    if (!fails_within(limit_, o, name)) ++wrong_;
  }

  void losses() {
    const real_run none = train_within(limit_, at(flattened::none, 1), "none, context 256");
    if (!fails_within(limit_ - 1, at(flattened::none, 1), "none, a byte less")) ++wrong_;
    const real_run all = train_within(limit_, at(flattened::all, 1), "all, context 256");
    double apart = 0;
    for (std::size_t i = 0; i < none.result.losses.size(); ++i)
      apart = std::max(apart, std::abs(none.result.losses[i] - all.result.losses[i]));
    out_->row("largest difference of three losses, all and none (nats)", of_one(apart));

    const reference::tensors weights = first_weights(at(flattened::all, 1));
    const sampled_losses expected = reference_losses(at(flattened::all, 1), weights, sampled);
    print_distance("none, context 256", distance(none, expected, at(flattened::none, 1)));
    print_distance("all, context 256", distance(all, expected, at(flattened::all, 1)));
    const auto learned = [&](flattened how) {
      moe::options o = at(how, 1);
      o.routing = moe::parse_routing("--routing", "learned");
      o.steps = 1;
      return o;
    };
    const sampled_losses routed = reference_losses(learned(flattened::all), weights, sampled);
    for (const flattened how : {flattened::none, flattened::all})
      print_distance(fmt::format("{}, context 256, the router's own routes ({} of the tokens near a tie)",
                                 how == flattened::none ? "none" : "all", near_ties(routed)),
                     distance(train(learned(how)), routed, learned(how)));

    const moe::options far = at(flattened::all, parts_.times);
    const real_run run = train_within(limit_, far, name(parts_.times));
    sampled_losses of_far;
    const double seconds = seconds_of([&] { of_far = reference_losses(far, weights, sampled); });
    print_distance(fmt::format("{} (the reference took {:.0f} s)", name(parts_.times), seconds),
                   distance(run, of_far, far));
  }

  void longest() {
    const auto of = [](std::int64_t n) { return fmt::format("all, {} x {} sequences", n, whole_batch); };
    train_within(limit_, of_batch(most_), of(most_));
    shall_fail(of_batch(most_ + 1), of(most_ + 1));
    moe::options far = at(flattened::all, longest_);
    far.stop_after = parts_.steps_at_longest;
    train_within(limit_, far, name(longest_));
    shall_fail(at(flattened::all, longest_ + 1), name(longest_ + 1));
  }

  table* out_;
  context_parts parts_;
  std::uint64_t limit_ = 0;
  std::int64_t longest_ = 0, most_ = 0;
  int wrong_ = 0;
};

} // namespace bench
