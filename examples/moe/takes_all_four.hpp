// SPDX-License-Identifier: Apache-2.0
//
// Four configurations of the reference model, each led by another of the four peaks, and one limit on memory
// for each of them: with three peaks flattened, whichever, training is refused, and with all four it runs.
// The limits are not chosen but found: between what all four flattened hold and what the least of the triples
// does, by dry runs.
#pragma once

#include "dry_runs.hpp"
#include "options.hpp"
#include "run_result.hpp"
#include "training_job.hpp"

#include <plateau/budget_facts.hpp>
#include <plateau/dry_run/presets.hpp>
#include <plateau/error.hpp>
#include <plateau/tag.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <ostream>
#include <stdexcept>
#include <streambuf>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace moe {

// Which of the four a tag is of; nothing for what none of them holds. Gradients wait for the update, so they
// are of the optimizer's peak, and --flatten optimizer bounds them.
inline std::optional<std::size_t> peak_of(std::string_view tag) {
  if (tag == "gradients") tag = "optimizer";
  for (std::size_t i = 0; i < flatten_rows.size(); ++i)
    if (flatten_rows[i].name == tag) return i;
  return std::nullopt;
}

inline flatten_set all_flattened() { return {true, true, true, true}; }
inline flatten_set all_but(std::size_t peak) {
  flatten_set f = all_flattened();
  f.*flatten_rows[peak].member = false;
  return f;
}

struct four_case {
  std::size_t leader = 0; // of flatten_rows
  std::string why;        // that peak is highest in it
  options config;         // with the settings of all collectives
};

// On four ranks, small enough that the 20 runs take half a minute of one core.
inline std::array<four_case, 4> four_cases() {
  options o;
  o.ranks = 4;
  o.expert_parallel = 4;
  o.hidden = 32;
  o.kv_heads = 1;
  o.tied = true;
  o.attention_queries = 16;
  o.attention_keys = 64;
  o.dtype = compute_type::bf16;
  o.steps = 2;
  o.routing = parse_routing("--routing", "all-to-one"); // the first top-k experts, which are rank 0's
  o.dispatch_cap = {256, 256};
  o.foreign_experts = 0;
  o.vocabulary_tile = {128, 512};
  o.hop_rows = 128;
  o.bucket_bytes = 64 << 10;

  options dispatch = o;
  dispatch.layers = 16;
  dispatch.experts = 16;
  dispatch.intermediate = 32;
  dispatch.top_k = 4;
  dispatch.vocabulary = 512;
  dispatch.context = 64;
  dispatch.batch = 64;

  options vocabulary = o;
  vocabulary.layers = 20;
  vocabulary.experts = 8;
  vocabulary.intermediate = 32;
  vocabulary.vocabulary = 2048;
  vocabulary.context = 64;
  vocabulary.batch = 32;

  options checkpoint = o;
  checkpoint.layers = 48;
  checkpoint.experts = 4;
  checkpoint.intermediate = 8;
  checkpoint.top_k = 1;
  checkpoint.vocabulary = 256;
  checkpoint.context = 256;
  checkpoint.batch = 16;

  options optimizer = o;
  optimizer.layers = 24;
  optimizer.hidden = 64;
  optimizer.experts = 16;
  optimizer.intermediate = 32;
  optimizer.top_k = 4;
  optimizer.vocabulary = 512;
  optimizer.context = 64;
  optimizer.batch = 16;

  return {{{0, "every token takes the same four experts, all on one rank", dispatch},
           {1, "a vocabulary of 2,048 for a width of 32", vocabulary},
           {2, "48 layers over sequences of 256 tokens", checkpoint},
           {3, "16 experts a layer for 256 tokens of a rank", optimizer}}};
}

// A text that repeats itself at no fixed distance.
inline corpus text_for(const options& o) {
  corpus text;
  text.name = "numbers";
  text.vocabulary = o.vocabulary.value();
  constexpr std::int64_t tokens = 12'000;
  for (std::int64_t i = 0; i < tokens; ++i)
    text.tokens.push_back(static_cast<std::int32_t>((i * i / 3 + i / 7) % text.vocabulary));
  return text;
}

namespace detail {

// What runs say while they run, for nobody.
struct silence : std::streambuf {
  int overflow(int c) override { return c == EOF ? 0 : c; }
};

inline training_job job_of(const options& o, const corpus& text, std::ostream& out) {
  training_job job;
  job.config = o;
  job.text = &text;
  job.machine = plateau::h200(); // of dry runs; bytes do not depend on it
  job.out = &out;
  return job;
}

} // namespace detail

// The highest point of the rank that holds most device memory.
inline peak_record highest_total(const run_result& result) {
  peak_record highest;
  for (const peak_record& total : result.totals)
    if (total.space == "device" && total.bytes > highest.bytes) highest = total;
  return highest;
}

// One real run, on threads. Throws what training throws.
inline run_result train_case(const options& o) {
  const corpus text = text_for(o);
  detail::silence nobody;
  std::ostream out(&nobody);
  return train_builtin_bf16(detail::job_of(o, text, out)).value();
}

inline run_result predict_case(options o) {
  o.dry_run = true;
  o.check_order = false;
  corpus text;
  text.vocabulary = o.vocabulary.value();
  detail::silence nobody;
  std::ostream out(&nobody);
  return dry_run_builtin_bf16(detail::job_of(o, text, out));
}

// What dry runs say of a case.
struct four_prediction {
  std::array<std::uint64_t, 4> unflattened{}; // each peak's own bytes with nothing flattened
  std::uint64_t none = 0, all = 0;            // device bytes of the rank that holds most
  std::array<std::uint64_t, 4> without{};     // the same with all but one flattened

  std::size_t leader() const {
    return static_cast<std::size_t>(std::max_element(unflattened.begin(), unflattened.end()) -
                                    unflattened.begin());
  }
  std::uint64_t least_triple() const { return *std::min_element(without.begin(), without.end()); }
  // Half way between what must pass and what must not, in whole KiB.
  std::uint64_t limit() const {
    if (least_triple() <= all + 2048)
      throw std::logic_error("takes_all_four: three flattened peaks hold no more than four");
    return (all + (least_triple() - all) / 2) / 1024 * 1024;
  }
};

inline four_prediction predict_four(const four_case& c) {
  four_prediction p;
  options o = c.config;
  o.flatten = {};
  const run_result none = predict_case(o);
  p.none = highest_device_peak(none);
  for (const peak_record& peak : none.peaks)
    for (std::size_t i = 0; i < flatten_rows.size(); ++i)
      if (peak.space == "device" && peak.tag == flatten_rows[i].name)
        p.unflattened[i] = std::max(p.unflattened[i], peak.bytes);
  o.flatten = all_flattened();
  p.all = highest_device_peak(predict_case(o));
  for (std::size_t i = 0; i < flatten_rows.size(); ++i) {
    o.flatten = all_but(i);
    p.without[i] = highest_device_peak(predict_case(o));
  }
  return p;
}

// How a run with three peaks flattened ended under the limit.
struct refused_run {
  std::optional<run_result> trained; // it was not refused
  std::string error;
  int rank = -1;
  std::optional<plateau::budget_facts> facts;

  // The tag that is furthest over its flattened promise.
  std::optional<plateau::tag> furthest() const {
    return facts ? facts->furthest_over() : std::optional<plateau::tag>{};
  }
};

struct four_outcome {
  four_prediction predicted;
  std::uint64_t limit = 0;
  std::array<refused_run, 4> without; // by what is not flattened
  refused_run all;
};

inline refused_run train_under(options o, const flatten_set& flatten, std::uint64_t limit) {
  o.flatten = flatten;
  o.memory_limit_bytes = limit;
  refused_run ended;
  try {
    ended.trained = train_case(o);
  } catch (const plateau::collective_error& e) {
    ended.error = e.what();
    ended.rank = e.failed_rank;
    ended.facts = e.budget();
  } catch (const plateau::budget_exceeded& e) {
    ended.error = e.what();
    ended.facts = e.facts;
  }
  return ended;
}

inline four_outcome run_four(const four_case& c) {
  four_outcome out;
  out.predicted = predict_four(c);
  out.limit = out.predicted.limit();
  for (std::size_t i = 0; i < flatten_rows.size(); ++i)
    out.without[i] = train_under(c.config, all_but(i), out.limit);
  out.all = train_under(c.config, all_flattened(), out.limit);
  return out;
}

// What is not as it should be, a sentence each; empty where it takes all four.
inline std::vector<std::string> complaints(const four_case& c, const four_outcome& o) {
  std::vector<std::string> all;
  const std::string_view led = flatten_rows[c.leader].name;
  const auto complain = [&](std::string what) {
    all.push_back(fmt::format("the configuration that {} leads: {}", led, what));
  };
  if (o.predicted.leader() != c.leader)
    complain(fmt::format("{} is higher", flatten_rows[o.predicted.leader()].name));
  for (std::size_t i = 0; i < flatten_rows.size(); ++i) {
    const refused_run& run = o.without[i];
    const std::string_view missing = flatten_rows[i].name;
    if (run.trained) {
      complain(fmt::format("it trains under {} bytes with all but {} flattened", o.limit, missing));
    } else if (!run.facts) {
      complain(fmt::format("without {} it ends for another reason: {}", missing, run.error));
    } else if (const auto tag = run.furthest(); !tag || peak_of(plateau::name_of(*tag)) != i) {
      complain(fmt::format("without {} another tag is furthest over its promise: {}", missing, run.error));
    }
  }
  if (!o.all.trained) {
    complain(fmt::format("it is refused with all four flattened: {}", o.all.error));
    return all;
  }
  const run_result& trained = *o.all.trained;
  if (static_cast<std::int64_t>(trained.losses.size()) != c.config.steps ||
      !std::all_of(trained.losses.begin(), trained.losses.end(), [](double x) { return std::isfinite(x); }))
    complain("it does not train as many steps as it was told to, or to a loss that is no number");
  if (highest_device_peak(trained) != o.predicted.all)
    complain(fmt::format("it holds {} bytes with all four flattened, and {} were predicted",
                         highest_device_peak(trained), o.predicted.all));
  return all;
}

} // namespace moe
