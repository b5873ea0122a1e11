// SPDX-License-Identifier: Apache-2.0
//
// What processes of one run must have been given alike. Files may lie elsewhere on each machine, but must
// hold the same; the limit on memory is each machine's own.
#pragma once

#include "process_team.hpp"
#include "safetensors.hpp"
#include "state_check.hpp"
#include "training_job.hpp"

#include <plateau/config.hpp>
#include <plateau/digest.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace moe {

namespace detail {

// Of a file's size and of pieces all over it: another training step changes all of a state.
inline std::uint64_t sampled_digest(const std::string& path) {
  constexpr std::uint64_t piece_bytes = 4096, pieces = 256;
  const input_file file(path, "a safetensors file");
  plateau::digest d;
  d.add(file.size());
  std::string piece;
  const std::uint64_t stride = std::max(piece_bytes, file.size() / pieces);
  for (std::uint64_t at = 0; at < file.size(); at += stride) {
    piece.resize(static_cast<std::size_t>(std::min(piece_bytes, file.size() - at)));
    file.read_at(at, std::as_writable_bytes(std::span{piece.data(), piece.size()}));
    d.add(std::string_view(piece));
  }
  return d.value();
}

} // namespace detail

// Throws input_error when a file cannot be read.
inline std::vector<named_value> must_agree(const training_job& job) {
  const options& o = job.config;
  std::vector<named_value> all{
      {"the version of moe_train", fmt::format("{}.{}.{}, {}", PLATEAU_VERSION_MAJOR, PLATEAU_VERSION_MINOR,
                                               PLATEAU_VERSION_PATCH, __VERSION__)}};
  const auto add = [&](std::string_view flag, const auto& value) {
    all.emplace_back(fmt::format("--{}", flag), fmt::format("{}", value));
  };
  for (const auto& [key, value] : metadata_of(o, *job.text))
    all.emplace_back(key == text_digest_key ? "the text's digest (--data)" : "--" + key, value);
  add("expert-parallel", o.expert_ranks());
  add("sequence-parallel", o.sequence_parallel);
  add("key-hop-rows", o.sequence().hop_rows);
  add("backend", name_of(o.backend));
  add("gemm", name_of(o.gemm));
  add("attention-tile", fmt::format("{}x{}", o.attention_queries, o.attention_keys));
  add("stop-after", o.last_step());
  add("deadline", o.deadline_seconds);
  for (const auto& row : flatten_rows)
    all.emplace_back(fmt::format("--flatten {}", row.name), o.flatten.*row.member ? "on" : "off");
  const dispatch_settings d = o.dispatch();
  add("dispatch-cap", fmt::format("{}x{}", d.send_cap_rows, d.receive_cap_rows));
  add("dispatch-slots", d.slots);
  add("placement", name_of(d.placement));
  add("foreign-experts", d.foreign_experts);
  const loss_settings l = o.loss();
  add("vocabulary-tile", fmt::format("{}x{}", l.tile_tokens, l.tile_vocabulary));
  add("hop-rows", l.hop_rows);
  add("rotate", name_of(l.rotate));
  const optimizer_settings s = o.optimizer();
  add("bucket", s.bucket_bytes);
  add("slots", s.slots);
  add("update-on", name_of(s.where));
  add("zero1", s.zero1);
  add("host-budget", o.checkpoint().host_budget_bytes);
  add("keep-every", o.checkpoint().keep_every);
  add("compare", o.compare);
  add("parity", o.parity);
  add("parity-weights", name_of(o.parity_from()));
  const auto given = [&](std::string_view flag, const std::string& path) {
    add(flag, path.empty() ? "none" : "a file");
  };
  given("weights", o.weights);
  given("resume", o.resume);
  given("save", o.save);
  given("json", o.json);
  given("trace", o.trace);
  given("svg", o.svg);
  given("record-routing", o.record_routing);
  if (job.initial != nullptr)
    all.emplace_back(o.resume.empty() ? "the digest of --weights" : "the digest of --resume",
                     fmt::format("{:016x}", detail::sampled_digest(job.initial->path())));
  return all;
}

} // namespace moe
