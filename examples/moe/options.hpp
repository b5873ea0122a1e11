// SPDX-License-Identifier: Apache-2.0
//
// Everything that a run can be told, with its defaults. The command line (command_line.hpp) is one way to
// fill it; a test fills it directly. option_rules.hpp says which options fit each other.
#pragma once

#include "corpus.hpp"
#include "input_error.hpp"
#include "model_config.hpp"
#include "parse_text.hpp"
#include "routing_scenario.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include <fmt/format.h>

namespace moe {

#if defined(MOE_HAS_BLAS)
inline constexpr bool has_blas = true;
#else
inline constexpr bool has_blas = false;
#endif

#if defined(MOE_HAS_CUDA)
inline constexpr bool has_cuda = true;
#else
inline constexpr bool has_cuda = false;
#endif

enum class communicator_choice { automatic, threads, mpi };
enum class backend_choice { host, cuda };
enum class compute_type { fp32, bf16 };
enum class gemm_choice { builtin, blas };

inline constexpr std::array<communicator_choice, 3> all_communicators{
    communicator_choice::automatic, communicator_choice::threads, communicator_choice::mpi};
constexpr std::string_view name_of(communicator_choice communicator) {
  constexpr std::string_view names[] = {"auto", "threads", "mpi"};
  return names[static_cast<std::size_t>(communicator)];
}
constexpr std::string_view name_of(backend_choice backend) {
  return backend == backend_choice::cuda ? "cuda" : "host";
}
constexpr std::string_view name_of(compute_type type) { return type == compute_type::bf16 ? "bf16" : "fp32"; }
constexpr std::string_view name_of(gemm_choice gemm) {
  return gemm == gemm_choice::blas ? "blas" : "builtin";
}
inline constexpr std::array<expert_placement, 3> all_placements{
    expert_placement::native, expert_placement::least_loaded, expert_placement::published};
constexpr std::string_view name_of(expert_placement placement) {
  constexpr std::string_view names[] = {"native", "least-loaded", "published"};
  return names[static_cast<std::size_t>(placement)];
}

// Where the flattened one of two trainings in lock step starts each step from.
enum class parity_start { own, same };
// Which tensors' gradients are shown of them.
enum class parity_rows { worst, all };
constexpr std::string_view name_of(parity_start start) {
  return start == parity_start::same ? "same" : "own";
}
constexpr std::string_view name_of(parity_rows rows) { return rows == parity_rows::all ? "all" : "worst"; }

inline constexpr std::array<plateau::rotation, 3> all_rotations{
    plateau::rotation::automatic, plateau::rotation::activations, plateau::rotation::weights};
constexpr std::string_view name_of(plateau::update_on where) {
  return where == plateau::update_on::host ? "host" : "device";
}
constexpr std::string_view name_of(plateau::rotation rotate) {
  constexpr std::string_view names[] = {"auto", "activations", "weights"};
  return names[static_cast<std::size_t>(rotate)];
}

struct flatten_row {
  std::string_view name;
  bool flatten_set::*member;
};

inline constexpr std::array<flatten_row, 4> flatten_rows{{{"dispatch", &flatten_set::dispatch},
                                                          {"vocabulary", &flatten_set::vocabulary},
                                                          {"checkpoint", &flatten_set::checkpoint},
                                                          {"optimizer", &flatten_set::optimizer}}};

struct options {
  std::int64_t ranks = 4;   // threads or processes, each of them one rank
  bool ranks_given = false; // else as many as processes, where ranks are processes
  communicator_choice communicator = communicator_choice::automatic; // what joins the ranks
  std::optional<std::int64_t> expert_parallel;                       // ranks that share one set of experts
  std::int64_t sequence_parallel = 1;                                // ranks that share each sequence
  backend_choice backend = backend_choice::host;                     // what computes; ranks may share a GPU
  std::int64_t deadline_seconds = 60; // without progress of any rank, after which the run fails

  std::int64_t layers = 2;
  std::int64_t hidden = 128;
  std::int64_t heads = 4;
  std::int64_t kv_heads = 2;
  std::int64_t experts = 8; // per layer
  std::int64_t top_k = 2;
  std::int64_t intermediate = 256;        // of one expert
  std::optional<std::int64_t> vocabulary; // the corpus decides where it is not given
  bool tied = false;                      // output projection = embedding
  double rope_theta = 1e4;                // base of the rotary angles
  double norm_epsilon = 1e-5;             // added to the mean square by RMSNorm

  std::int64_t context = 128;  // tokens of a sequence
  std::int64_t batch = 16;     // sequences of a step, over all ranks and micro-batches
  std::int64_t accumulate = 1; // micro-batches of a step
  std::int64_t steps = 300;
  std::optional<std::int64_t> stop_after; // steps; the schedule is still that of `steps`
  double learning_rate = 3e-3;            // the highest of the schedule
  std::optional<std::int64_t> warmup;     // steps
  double clip = 1;                        // largest gradient norm; 0: no clipping
  double balance_weight = 0;
  std::uint64_t seed = 1;
  compute_type dtype = compute_type::fp32;
  gemm_choice gemm = gemm_choice::builtin;

  std::int64_t attention_queries = 64, attention_keys = 128; // positions in a tile of attention

  std::optional<std::int64_t>
      key_hop_rows; // of --sequence-parallel; the default is that of sequence_settings

  flatten_set flatten;
  // Of --flatten dispatch; the defaults are those of dispatch_settings.
  std::optional<std::pair<std::int64_t, std::int64_t>>
      dispatch_cap; // rows out of, and into a rank in a round
  std::optional<std::int64_t> dispatch_slots;
  std::optional<expert_placement> placement;
  std::optional<std::int64_t> foreign_experts;
  // Of --flatten vocabulary; the defaults are those of loss_settings.
  std::optional<std::pair<std::int64_t, std::int64_t>> vocabulary_tile; // tokens, vocabulary
  std::optional<std::int64_t> hop_rows;
  std::optional<plateau::rotation> rotate;
  // Of --flatten checkpoint; the defaults are those of checkpoint_settings.
  std::optional<std::uint64_t> host_budget_bytes;
  std::optional<std::int64_t> keep_every;
  // Of --flatten optimizer; the defaults are those of optimizer_settings.
  std::optional<std::uint64_t> bucket_bytes;
  std::optional<std::int64_t> slots;
  std::optional<plateau::update_on> update_on;
  bool zero1 = false;
  routing_scenario routing;
  std::optional<std::uint64_t> memory_limit_bytes; // per rank, device space

  bool compare = false; // train twice, first with nothing flattened, and show both
  bool parity = false;  // both at once, and what they differ in after every step
  std::optional<parity_start> parity_weights;
  std::optional<parity_rows> parity_tensors;

  bool dry_run = false;                // no data: predict peaks and time
  std::optional<std::string> hardware; // of a dry run: h200, this-host, or a file (hardware_name())
  std::int64_t dry_step = 1;           // the step that a dry run is of
  std::optional<bool> check_order;     // of a dry run's streams; on where it is not given
  double perturb = 0;                  // every cost of a dry run times 1 +- this
  std::uint64_t perturb_seed = 0;
  bool growth = false; // a dry run also says what memory grows with

  std::string data, weights, resume, save, json; // paths; empty: not given
  std::string trace, svg, record_routing;        // the same

  std::int64_t expert_ranks() const {
    return expert_parallel.value_or(ranks % 2 == 0 && experts % 2 == 0 ? 2 : 1);
  }
  // What a dry run predicts times for where nothing was said: the machine that it runs on, unless that is
  // asked for what it need not have.
  std::string hardware_name() const {
    return hardware.value_or(backend == backend_choice::cuda ? "h200" : "this-host");
  }
  sequence_settings sequence() const {
    sequence_settings s;
    s.hop_rows = key_hop_rows.value_or(s.hop_rows);
    return s;
  }
  dispatch_settings dispatch() const {
    dispatch_settings d;
    if (dispatch_cap) std::tie(d.send_cap_rows, d.receive_cap_rows) = *dispatch_cap;
    d.slots = static_cast<int>(dispatch_slots.value_or(d.slots));
    d.placement = placement.value_or(d.placement);
    d.foreign_experts = foreign_experts.value_or(d.foreign_experts);
    return d;
  }
  loss_settings loss() const {
    loss_settings l;
    if (vocabulary_tile) std::tie(l.tile_tokens, l.tile_vocabulary) = *vocabulary_tile;
    l.hop_rows = hop_rows.value_or(l.hop_rows);
    l.rotate = rotate.value_or(l.rotate);
    return l;
  }
  checkpoint_settings checkpoint() const {
    checkpoint_settings c;
    if (host_budget_bytes) c.host_budget_bytes = static_cast<index_t>(*host_budget_bytes);
    c.keep_every = keep_every.value_or(c.keep_every);
    return c;
  }
  optimizer_settings optimizer() const {
    optimizer_settings s;
    if (bucket_bytes) s.bucket_bytes = static_cast<std::size_t>(*bucket_bytes);
    s.slots = static_cast<int>(slots.value_or(s.slots));
    s.where = update_on.value_or(s.where);
    s.zero1 = zero1;
    return s;
  }
  parity_start parity_from() const { return parity_weights.value_or(parity_start::own); }
  parity_rows shown_tensors() const { return parity_tensors.value_or(parity_rows::worst); }
  std::int64_t head_size() const { return hidden / heads; }
  std::int64_t last_step() const { return stop_after.value_or(steps); }
  std::int64_t warmup_steps() const { return warmup.value_or(std::min<std::int64_t>(20, steps / 10)); }
};

// As --flatten takes them.
inline std::string flattened_peaks(const options& o) {
  std::string names;
  for (const auto& row : flatten_rows)
    if (o.flatten.*row.member) names += (names.empty() ? "" : ",") + std::string{row.name};
  return names.empty() ? "none" : names;
}

// Parameters of the whole model, experts of all ranks included. Double: an impossible model must not
// overflow.
inline double parameter_count(const options& o, double vocabulary) {
  const auto hidden = static_cast<double>(o.hidden);
  const double kv_rows = static_cast<double>(o.kv_heads) * hidden / static_cast<double>(o.heads);
  const double attention = hidden * (2 * hidden + 2 * kv_rows);
  const double mixture =
      static_cast<double>(o.experts) * hidden * (3 * static_cast<double>(o.intermediate) + 1); // + router
  return static_cast<double>(o.layers) * (attention + mixture + 2 * hidden) + hidden +
         vocabulary * hidden * (o.tied ? 1 : 2);
}

// QUERIESxKEYS, both positive. Throws input_error.
inline void parse_attention_tile(std::string_view flag, std::string_view text, options& o) {
  const std::size_t cross = text.find('x');
  if (cross == std::string_view::npos)
    throw input_error{fmt::format("{}: expected QUERIESxKEYS, such as 64x128, got '{}'", flag, shown(text))};
  o.attention_queries = parse_integer(flag, text.substr(0, cross), 1, 1 << 24);
  o.attention_keys = parse_integer(flag, text.substr(cross + 1), 1, 1 << 24);
}

// ROWS, or ROWSxROWS for rows out of and into a rank, all positive. Throws input_error.
inline void parse_dispatch_cap(std::string_view flag, std::string_view text, options& o) {
  const std::size_t cross = text.find('x');
  const auto rows = [&](std::string_view part) { return parse_integer(flag, part, 1, 1 << 30); };
  const std::int64_t out = rows(text.substr(0, cross));
  o.dispatch_cap = {out, cross == std::string_view::npos ? out : rows(text.substr(cross + 1))};
}

// native, least-loaded or published. Throws input_error.
inline expert_placement parse_placement(std::string_view flag, std::string_view text) {
  for (const expert_placement each : all_placements)
    if (text == name_of(each)) return each;
  throw input_error{
      fmt::format("{}: expected native, least-loaded or published, got '{}'", flag, shown(text))};
}

// TOKENSxVOCABULARY, both positive. Throws input_error.
inline void parse_vocabulary_tile(std::string_view flag, std::string_view text, options& o) {
  const std::size_t cross = text.find('x');
  if (cross == std::string_view::npos)
    throw input_error{
        fmt::format("{}: expected TOKENSxVOCABULARY, such as 1024x2048, got '{}'", flag, shown(text))};
  o.vocabulary_tile = {parse_integer(flag, text.substr(0, cross), 1, 1 << 24),
                       parse_integer(flag, text.substr(cross + 1), 1, 1 << 24)};
}

// auto, activations or weights. Throws input_error.
inline plateau::rotation parse_rotation(std::string_view flag, std::string_view text) {
  for (const plateau::rotation each : all_rotations)
    if (text == name_of(each)) return each;
  throw input_error{fmt::format("{}: expected auto, activations or weights, got '{}'", flag, shown(text))};
}

// device or host. Throws input_error.
inline plateau::update_on parse_update_on(std::string_view flag, std::string_view text) {
  for (const plateau::update_on each : {plateau::update_on::device, plateau::update_on::host})
    if (text == name_of(each)) return each;
  throw input_error{fmt::format("{}: expected device or host, got '{}'", flag, shown(text))};
}

// FRACTION or FRACTION,SEED. Throws input_error.
inline void parse_perturb(std::string_view flag, std::string_view text, options& o) {
  const std::size_t comma = text.find(',');
  o.perturb = parse_real(std::string(flag), text.substr(0, comma), 0, 0.99);
  o.perturb_seed =
      comma == std::string_view::npos
          ? 1
          : static_cast<std::uint64_t>(parse_integer(flag, text.substr(comma + 1), 0, INT64_MAX));
}

// none | all | a comma list of dispatch, vocabulary, checkpoint, optimizer. Throws input_error.
inline flatten_set parse_flatten(std::string_view flag, std::string_view text) {
  flatten_set chosen;
  if (text == "none") return chosen;
  if (text == "all") {
    for (const auto& row : flatten_rows) chosen.*row.member = true;
    return chosen;
  }
  for (std::string_view rest = text;;) {
    const std::string_view name = rest.substr(0, rest.find(','));
    const auto row =
        std::find_if(flatten_rows.begin(), flatten_rows.end(), [&](const auto& r) { return r.name == name; });
    if (row == flatten_rows.end())
      throw input_error{
          fmt::format("{}: expected none, all or a comma list of dispatch, vocabulary, checkpoint, "
                      "optimizer, got '{}'",
                      flag, shown(text))};
    chosen.*row->member = true;
    if (name.size() == rest.size()) return chosen;
    rest.remove_prefix(name.size() + 1);
  }
}

} // namespace moe
