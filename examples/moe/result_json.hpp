// SPDX-License-Identifier: Apache-2.0
//
// The results of a run for other programs. Losses have their full precision (the shortest text that reads
// back to the same double); a number that is not finite becomes null, since JSON has no other word for it.
#pragma once

#include "atomic_file.hpp"
#include "comparison_json.hpp"
#include "run_result.hpp"

#include <cstdint>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace moe {

namespace detail {

template <class T> nlohmann::ordered_json or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

// A count that was formed in double; as an integer where it still is one.
inline nlohmann::ordered_json whole(double count) {
  return count <= 0x1p53 ? nlohmann::ordered_json(static_cast<std::int64_t>(count))
                         : nlohmann::ordered_json(count);
}

inline nlohmann::ordered_json path_or_null(const std::string& path) {
  return path.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(path);
}

} // namespace detail

// How the dispatch goes by rounds; null where it does not.
inline nlohmann::ordered_json dispatch_json(const options& o) {
  if (!o.flatten.dispatch) return nullptr;
  const dispatch_settings d = o.dispatch();
  const bool bounded = d.placement == expert_placement::least_loaded;
  return {{"cap", {d.send_cap_rows, d.receive_cap_rows}},
          {"slots", d.slots},
          {"placement", name_of(d.placement)},
          {"foreign_experts",
           bounded ? nlohmann::ordered_json(d.foreign_experts) : nlohmann::ordered_json(nullptr)}};
}

// How the loss goes without logits; null where it does not.
inline nlohmann::ordered_json loss_json(const options& o) {
  if (!o.flatten.vocabulary) return nullptr;
  const loss_settings l = o.loss();
  return {{"vocabulary_tile", {l.tile_tokens, l.tile_vocabulary}},
          {"hop_rows", l.hop_rows},
          {"rotate", name_of(l.rotate)}};
}

// How the optimizer goes with its state in host memory; null where it does not.
inline nlohmann::ordered_json optimizer_json(const options& o) {
  if (!o.flatten.optimizer) return nullptr;
  const optimizer_settings s = o.optimizer();
  return {{"bucket", detail::or_null(o.bucket_bytes)},
          {"slots", s.slots},
          {"update_on", name_of(s.where)},
          {"zero1", s.zero1}};
}

// The names of the flags with underscores; what was left to the program is shown as it was decided.
inline nlohmann::ordered_json config_json(const options& o, std::int64_t vocabulary) {
  return {{"ranks", o.ranks},
          {"expert_parallel", o.expert_ranks()},
          {"sequence_parallel", o.sequence_parallel},
          {"backend", name_of(o.backend)},
          {"deadline", o.deadline_seconds},
          {"layers", o.layers},
          {"hidden", o.hidden},
          {"heads", o.heads},
          {"kv_heads", o.kv_heads},
          {"experts", o.experts},
          {"top_k", o.top_k},
          {"intermediate", o.intermediate},
          {"vocabulary", vocabulary},
          {"tied", o.tied},
          {"rope_theta", o.rope_theta},
          {"norm_epsilon", o.norm_epsilon},
          {"parameters", detail::whole(parameter_count(o, static_cast<double>(vocabulary)))},
          {"context", o.context},
          {"batch", o.batch},
          {"accumulate", o.accumulate},
          {"steps", o.steps},
          {"stop_after", o.last_step()},
          {"lr", o.learning_rate},
          {"warmup", o.warmup_steps()},
          {"clip", o.clip},
          {"balance_weight", o.balance_weight},
          {"seed", o.seed},
          {"dtype", name_of(o.dtype)},
          {"attention_tile", {o.attention_queries, o.attention_keys}},
          {"key_hop_rows", o.sequence().hop_rows},
          {"gemm", name_of(o.gemm)},
          {"flatten", flattened_peaks(o)},
          {"dispatch", dispatch_json(o)},
          {"vocabulary_loss", loss_json(o)},
          {"optimizer", optimizer_json(o)},
          {"host_budget", detail::or_null(o.host_budget_bytes)},
          {"keep_every", o.checkpoint().keep_every},
          {"routing", o.routing.text},
          {"memory_limit", detail::or_null(o.memory_limit_bytes)},
          {"compare", o.compare},
          {"parity", o.parity},
          {"data", detail::path_or_null(o.data)},
          {"weights", detail::path_or_null(o.weights)},
          {"resume", detail::path_or_null(o.resume)},
          {"save", detail::path_or_null(o.save)}};
}

inline nlohmann::ordered_json prediction_json(const run_result& result) {
  const prediction& p = *result.prediction;
  auto kinds = nlohmann::ordered_json::array();
  for (const kind_of_rank& kind : p.kinds)
    kinds.push_back({{"rank", kind.rank},
                     {"ranks", kind.ranks},
                     {"seconds", kind.step.seconds},
                     {"compute_seconds", kind.step.compute_busy},
                     {"transfer_seconds", kind.step.transfer_busy},
                     {"exposed_transfer_seconds", kind.step.exposed_transfer},
                     {"host_waiting_seconds", kind.step.host_blocked},
                     {"operations", kind.step.operations},
                     {"exchanges", kind.step.exchanges},
                     {"host_exchanges", kind.step.host_exchanges},
                     {"host_round_trips", kind.step.host_round_trips},
                     {"matrix_flops", kind.step.flops},
                     {"sent_bytes", kind.step.sent_bytes}});
  return {
      {"hardware", p.machine.name},
      {"device_bytes", p.machine.device_bytes},
      {"fits", detail::or_null(fits_device(result))},
      {"step", result.config.dry_step},
      {"trouble", p.trouble.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(p.trouble)},
      {"routing_note",
       p.routing_note.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(p.routing_note)},
      {"step_seconds", p.step_seconds},
      {"kinds_of_ranks", std::move(kinds)},
      {"order_checked", result.config.check_order.value_or(true)},
      {"order_found", p.found},
      {"order_findings", p.findings},
      {"operations_recorded", p.operations},
      {"perturb", result.config.perturb},
      {"perturb_seed", result.config.perturb_seed}};
}

// Bytes that doubling one thing adds to the peaks; null where there is no such run, and then why.
inline nlohmann::ordered_json growth_json(const growth_table& table) {
  auto rows = nlohmann::ordered_json::array();
  for (const growth_row& row : table.rows) {
    const auto side = [&](const growth_pair& p) -> nlohmann::ordered_json {
      if (!row.impossible.empty()) return nullptr;
      nlohmann::ordered_json tags = nlohmann::ordered_json::object();
      for (const auto& [tag, bytes] : p.doubled.tags) tags[tag] = p.added(tag);
      return {{"total", p.added()}, {"tags", std::move(tags)}};
    };
    rows.push_back({{"kind", name_of(row.kind)},
                    {"step", row.step},
                    {"units", detail::whole(row.units)},
                    {"added", side(row.given)},
                    {"added_with_none", side(row.none)},
                    {"impossible", row.impossible.empty() ? nlohmann::ordered_json(nullptr)
                                                          : nlohmann::ordered_json(row.impossible)}});
  }
  return rows;
}

inline nlohmann::ordered_json result_json(const run_result& result) {
  using json = nlohmann::ordered_json;
  json peaks = json::array();
  for (const auto& peak : result.peaks)
    peaks.push_back({{"rank", peak.rank},
                     {"tag", peak.tag},
                     {"space", peak.space},
                     {"bytes", peak.bytes},
                     {"promised", detail::or_null(peak.promised)},
                     {"held_at_peak", peak.held_at_peak},
                     {"phase", peak.phase}});
  const auto totals_json = [](const std::vector<peak_record>& all) {
    json totals = json::array();
    for (const auto& peak : all)
      totals.push_back({{"rank", peak.rank},
                        {"space", peak.space},
                        {"bytes", peak.bytes},
                        {"held_at_peak", peak.held_at_peak},
                        {"phase", peak.phase}});
    return totals;
  };
  const auto edge = [&](bool last) {
    return result.losses.empty() ? json(nullptr) : json(last ? result.losses.back() : result.losses.front());
  };
  json all = {{"config", config_json(result.config, result.text.vocabulary)},
              {"corpus",
               {{"name", result.text.name},
                {"bytes", result.text.bytes},
                {"tokens", result.text.tokens},
                {"digest", fmt::format("{:016x}", result.text.digest)},
                {"unigram_entropy", result.text.entropy}}},
              {"first_step", result.first_step},
              {"loss_first", edge(false)},
              {"loss_last", edge(true)},
              {"loss_heldout", detail::or_null(result.loss_heldout)},
              {"losses", result.losses},
              {"steps_skipped", result.steps_skipped},
              {"tokens_per_second", result.tokens_per_second},
              {"peaks", std::move(peaks)},
              {"peak_bytes_total", totals_json(result.totals)},
              {"evaluation_peak_bytes_total", totals_json(result.evaluation)}};
  if (const auto& d = result.dispatch)
    all["dispatch"] = {{"calls", d->calls}, {"rounds", d->rounds},         {"most_rounds", d->most_rounds},
                       {"moved", d->moved}, {"wire_bytes", d->wire_bytes}, {"native_skew", d->native_skew},
                       {"skew", d->skew}};
  if (result.gpus)
    all["gpus"] = {{"name", result.gpus->name},
                   {"count", result.gpus->count},
                   {"bytes", result.gpus->bytes},
                   {"driver", result.gpus->driver},
                   {"runtime", result.gpus->runtime}};
  if (result.prediction) all["dry_run"] = prediction_json(result);
  if (result.growth) all["growth"] = growth_json(*result.growth);
  if (result.unflattened) {
    all["comparison"] = comparison_json(result);
    all["unflattened"] = result_json(*result.unflattened);
  }
  if (result.parity) all["parity"] = parity_json(result);
  return all;
}

// To the file, whole or not at all; "-" is standard output. Throws input_error or output_error.
inline void write_json(const std::string& path, const run_result& result) {
  // A path need not be valid UTF-8; JSON must.
  const std::string text =
      result_json(result).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + '\n';
  if (path != "-") return write_result_file(path, text);
  std::cout << text << std::flush;
  if (!std::cout) throw output_error{"standard output: writing the results failed"};
}

} // namespace moe
