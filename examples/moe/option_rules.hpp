// SPDX-License-Identifier: Apache-2.0
//
// The rules that make a set of options possible. Each broken rule is an input_error of one line that names
// the flags that do not fit each other.
#pragma once

#include "batch_dealing.hpp"
#include "input_error.hpp"
#include "options.hpp"
#include "unflattened_options.hpp"

#include <plateau/ring/attention_shape.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

namespace moe {

// How a run's sequences are dealt.
inline batch_dealing dealing_of(const options& o) {
  return {o.batch, o.accumulate, o.routing.shares, o.sequence_parallel};
}

namespace detail {

// The largest array of activations on a rank: its elements, and the flags that they are the product of. In
// double, since the flags allow more than 64 bits hold.
inline std::pair<double, std::string_view> largest_activation(const options& o) {
  const auto d = [](std::int64_t n) { return static_cast<double>(n); };
  const batch_dealing dealing = dealing_of(o);
  const double sequences = d(dealing.largest(o.ranks)), rows = d(dealing.split(o.context).most_rows());
  const double tokens = sequences * rows;
  const double routes = tokens * d(o.top_k) * d(o.expert_ranks()); // where one rank gets all of its group
  const double scores = sequences * d(o.heads) * d(std::min(o.context, o.attention_queries)) *
                        d(std::min(o.context, o.attention_keys));
  return std::max({std::pair<double, std::string_view>{d(o.layers + 1) * tokens * d(o.hidden),
                                                       "--layers, --batch, --context, --hidden"},
                   {o.flatten.vocabulary ? 0 : tokens * d(o.vocabulary.value_or(byte_pair_vocabulary)),
                    "--batch, --context, --vocabulary"},
                   {tokens * d(o.experts), "--batch, --context, --experts"},
                   {o.flatten.dispatch ? 0 : routes * d(std::max(o.hidden, o.intermediate)),
                    "--batch, --context, --top-k, --expert-parallel, --hidden, --intermediate"},
                   {scores, "--batch, --context, --heads, --attention-tile"}});
}

// A forced routing must fit the model, the ranks, and what each of these gets of a step.
inline void check_routing(const options& o) {
  if (!o.routing.forced()) return;
  const forced_routing forced(o.routing, o.experts, o.top_k, o.layers, o.ranks);
  if (o.routing.file.empty()) return;
  const batch_dealing dealing = dealing_of(o);
  for (std::int64_t rank = 0; rank < o.ranks; ++rank)
    forced.check_tokens(rank,
                        dealing.own_before(o.accumulate, rank, o.ranks) * dealing.rows_of(rank, o.context));
}

// What is written must not be what is read, nor be written twice.
inline void check_paths(const options& o) {
  if (o.save == "-")
    throw input_error{"--save -: a state cannot go to standard output; expected the name of a file"};
  struct named_path {
    std::string_view flag;
    std::string path;
    bool written;
  };
  const std::array<named_path, 9> all{{{"--save", o.save, true},
                                       {"--json", o.json == "-" ? std::string{} : o.json, true},
                                       {"--trace", o.trace, true},
                                       {"--svg", o.svg, true},
                                       {"--record-routing", o.record_routing, true},
                                       {"--data", o.data, false},
                                       {"--weights", o.weights, false},
                                       {"--resume", o.resume, false},
                                       {"--routing counts:", o.routing.file, false}}};
  const auto place = [](const std::string& path) {
    std::error_code unresolved;
    const auto resolved =
        std::filesystem::weakly_canonical(std::filesystem::absolute(path, unresolved), unresolved);
    return unresolved ? std::filesystem::path{path} : resolved;
  };
  for (std::size_t i = 0; i < all.size(); ++i)
    for (std::size_t j = i + 1; j < all.size(); ++j) {
      const named_path &a = all[i], &b = all[j];
      if (!a.written || a.path.empty() || b.path.empty()) continue;
      if (a.flag == "--save" && b.flag == "--resume") continue; // a run may go on in its own file
      if (place(a.path) == place(b.path))
        throw input_error{
            fmt::format("{} and {}: expected two files, got {} twice", a.flag, b.flag, shown(b.path))};
    }
}

} // namespace detail

// What goes with a dry run, and what goes only with one.
inline void check_dry_run(const options& o) {
  const auto refuse = [](bool given, std::string_view flag, std::string_view why) {
    if (given) throw input_error{fmt::format("{}: {}", flag, why)};
  };
  if (!o.dry_run) {
    constexpr std::string_view only = "expected only with --dry-run";
    refuse(o.hardware.has_value(), "--hardware", only);
    refuse(o.check_order.has_value(), "--check-order", only);
    refuse(o.perturb != 0, "--perturb", only);
    refuse(o.dry_step != 1, "--dry-step", only);
    refuse(o.growth, "--growth", only);
    return;
  }
  if (!o.routing.forced())
    throw input_error{"--dry-run: there is no data to route; expected --routing with a scenario, such as "
                      "balanced"};
  constexpr std::string_view no_data = "expected without --dry-run, which has no data";
  refuse(!o.save.empty(), "--save", no_data);
  refuse(!o.resume.empty(), "--resume", no_data);
  refuse(!o.weights.empty(), "--weights", no_data);
  refuse(!o.record_routing.empty(), "--record-routing", no_data);
}

// A sequence that ranks share.
inline void check_sequence(const options& o) {
  const std::int64_t s = o.sequence_parallel;
  if (o.ranks % s != 0)
    throw input_error{fmt::format("--sequence-parallel {}: expected a divisor of --ranks {}", s, o.ranks)};
  if (s > 1 && o.context < 2 * s)
    throw input_error{
        fmt::format("--context {}: expected at least {}, twice --sequence-parallel {}: a rank has "
                    "one part of the front and one of the back of each sequence",
                    o.context, 2 * s, s)};
  if (s > 1 && o.head_size() > plateau::attention_shape::most_head_size)
    throw input_error{fmt::format("--heads {}: makes heads of {} (--hidden {}); expected at most {} with "
                                  "--sequence-parallel",
                                  o.heads, o.head_size(), o.hidden,
                                  plateau::attention_shape::most_head_size)};
  if (s == 1 && o.key_hop_rows)
    throw input_error{"--key-hop-rows: expected only with --sequence-parallel above 1"};
}

// What goes only with a dispatch by rounds.
inline void check_dispatch(const options& o) {
  const auto refuse = [](bool given, std::string_view flag, std::string_view only) {
    if (given) throw input_error{fmt::format("{}: expected only with {}", flag, only)};
  };
  if (!o.flatten.dispatch) {
    constexpr std::string_view only = "--flatten dispatch";
    refuse(o.dispatch_cap.has_value(), "--dispatch-cap", only);
    refuse(o.dispatch_slots.has_value(), "--dispatch-slots", only);
    refuse(o.placement.has_value(), "--placement", only);
    refuse(o.foreign_experts.has_value(), "--foreign-experts", only);
  }
  refuse(o.foreign_experts.has_value() && o.dispatch().placement != expert_placement::least_loaded,
         "--foreign-experts", "--placement least-loaded, which alone bounds them");
}

// What goes only with a loss without logits.
inline void check_vocabulary(const options& o) {
  if (o.flatten.vocabulary) return;
  const auto refuse = [](bool given, std::string_view flag) {
    if (given) throw input_error{fmt::format("{}: expected only with --flatten vocabulary", flag)};
  };
  refuse(o.vocabulary_tile.has_value(), "--vocabulary-tile");
  refuse(o.hop_rows.has_value(), "--hop-rows");
  refuse(o.rotate.has_value(), "--rotate");
}

// What goes only with an optimizer whose state is in host memory.
inline void check_optimizer(const options& o) {
  const auto refuse = [](bool given, std::string_view flag) {
    if (given) throw input_error{fmt::format("{}: expected only with --flatten optimizer", flag)};
  };
  if (!o.flatten.optimizer) {
    refuse(o.bucket_bytes.has_value(), "--bucket");
    refuse(o.slots.has_value(), "--slots");
    refuse(o.update_on.has_value(), "--update-on");
    refuse(o.zero1, "--zero1");
  }
  constexpr std::uint64_t least = 16; // a gradient, a master and two moments
  if (o.bucket_bytes && *o.bucket_bytes < least)
    throw input_error{fmt::format("--bucket {}: expected at least {}, the bytes of one parameter's gradient, "
                                  "master and moments",
                                  *o.bucket_bytes, least)};
}

// What goes with a training that is done twice.
inline void check_both(const options& o) {
  const auto refuse = [](bool given, std::string_view flag, std::string_view why) {
    if (given) throw input_error{fmt::format("{}: {}", flag, why)};
  };
  if (!o.parity) {
    refuse(o.parity_weights.has_value(), "--parity-weights", "expected only with --parity");
    refuse(o.parity_tensors.has_value(), "--parity-tensors", "expected only with --parity");
  }
  const bool flat = std::any_of(flatten_rows.begin(), flatten_rows.end(),
                                [&](const auto& row) { return o.flatten.*row.member; });
  for (const auto& [given, flag] : {std::pair{o.parity, "--parity"}, {o.compare, "--compare"}})
    refuse(
        given && !flat, flag,
        "nothing is flattened that could be held against what is not; expected with --flatten all, or some "
        "of it");
  if (!o.parity) return;
  refuse(o.dry_run, "--parity",
         "expected without --dry-run, which computes no numbers; --compare has its "
         "peaks side by side");
  constexpr std::string_view alone = "expected without --parity, whose steps are not those of one run alone; "
                                     "--compare writes the flattened run's";
  refuse(!o.save.empty(), "--save", alone);
  refuse(!o.trace.empty(), "--trace", alone);
  refuse(!o.svg.empty(), "--svg", alone);
  refuse(!o.record_routing.empty(), "--record-routing", alone);
}

// Throws input_error unless the options fit each other. The vocabulary of the corpus is checked where that is
// read.
inline void check(const options& o) {
  const auto require = [](bool holds, const std::string& message) {
    if (!holds) throw input_error{message};
  };
  const auto divides = [&](std::string_view part, std::int64_t a, std::string_view whole, std::int64_t b) {
    require(b % a == 0, fmt::format("{} {}: expected a divisor of {} {}", part, a, whole, b));
  };
  const auto at_most = [&](std::string_view small, std::int64_t a, std::string_view large, std::int64_t b) {
    require(a <= b, fmt::format("{} {}: expected at most {} {}", small, a, large, b));
  };
  check_sequence(o);
  try {
    check_shares(o.routing, o.ranks / o.sequence_parallel);
  } catch (const input_error& error) {
    if (o.sequence_parallel == 1) throw;
    throw input_error{
        fmt::format("{}; with --sequence-parallel {} these are groups", error.what(), o.sequence_parallel)};
  }
  divides("--expert-parallel", o.expert_ranks(), "--ranks", o.ranks);
  divides("--expert-parallel", o.expert_ranks(), "--experts", o.experts);
  divides("--heads", o.heads, "--hidden", o.hidden);
  divides("--kv-heads", o.kv_heads, "--heads", o.heads);
  require(
      o.head_size() % 2 == 0,
      fmt::format(
          "--heads {}: makes heads of {} (--hidden {}); expected an even size, which rotary embedding needs",
          o.heads, o.head_size(), o.hidden));
  at_most("--top-k", o.top_k, "--experts", o.experts);
  at_most("--accumulate", o.accumulate, "--batch", o.batch);
  at_most("--stop-after", o.last_step(), "--steps", o.steps);
  at_most("--warmup", o.warmup_steps(), "--steps", o.steps);
  const double parameters =
      parameter_count(o, static_cast<double>(o.vocabulary.value_or(byte_pair_vocabulary)));
  require(
      parameters <= 0x1p42,
      fmt::format(
          "--layers, --hidden, --experts, --intermediate, --vocabulary: make {:.3g} parameters; expected at "
          "most {:.3g}",
          parameters, 0x1p42));
  const auto [elements, flags] = detail::largest_activation(o);
  require(elements <= 0x1p48,
          fmt::format("{}: make an array of {:.3g} activations on a rank; expected at most {:.3g}", flags,
                      elements, 0x1p48));
  check_dispatch(o);
  check_vocabulary(o);
  check_optimizer(o);
  require(o.flatten.checkpoint || !o.host_budget_bytes,
          "--host-budget: expected only with --flatten checkpoint");
  require(o.flatten.checkpoint || !o.keep_every, "--keep-every: expected only with --flatten checkpoint");
  detail::check_routing(o);
  require(o.backend == backend_choice::host || o.gemm == gemm_choice::builtin,
          "--gemm blas and --backend cuda: expected one of them; on a GPU matrix products are cuBLAS's");
  require(o.backend == backend_choice::host || has_cuda || o.dry_run,
          "--backend cuda: this program was built without CUDA; use --backend host, or build it with nvcc "
          "installed (cmake --preset cuda)");
  require(o.gemm == gemm_choice::builtin || has_blas,
          "--gemm blas: this program was built without BLAS; use --gemm builtin");
  require(o.weights.empty() || o.resume.empty(),
          "--weights and --resume: expected one of them (a saved state holds its weights)");
  detail::check_paths(o);
  check_dry_run(o);
  check_both(o);
  if (!o.compare && !o.parity) return;
  try {
    check(unflattened_of(o));
  } catch (const input_error& error) {
    throw input_error{
        fmt::format("{}: with nothing flattened, {}", o.parity ? "--parity" : "--compare", error.what())};
  }
}

} // namespace moe
