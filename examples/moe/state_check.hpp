// SPDX-License-Identifier: Apache-2.0
//
// Whether a safetensors file is what a run can start from: the weights of this model, or the whole state of
// this very run, which is recorded flag by flag in the file's metadata. All of it is decided from headers,
// before any rank exists.
#pragma once

#include "corpus.hpp"
#include "model_config.hpp"
#include "options.hpp"
#include "parameter_layout.hpp"
#include "safetensors.hpp"
#include "storage_type.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

namespace moe {

// Of the names of parameters, first moments and second moments.
inline constexpr std::array<const char*, 3> state_prefixes{"", "first_moment.", "second_moment."};

// What must be the same when a run goes on: flags without their dashes, and the digest of the text.
using state_metadata = std::map<std::string, std::string>;
inline constexpr const char* text_digest_key = "text digest";

// Everything that decides how training goes on. The ranks and --gemm do not: they only regroup sums.
inline state_metadata metadata_of(const options& o, const corpus& text) {
  const auto shortest = [](auto value) { return fmt::format("{}", value); };
  return {{"layers", shortest(o.layers)},
          {"hidden", shortest(o.hidden)},
          {"heads", shortest(o.heads)},
          {"kv-heads", shortest(o.kv_heads)},
          {"experts", shortest(o.experts)},
          {"top-k", shortest(o.top_k)},
          {"intermediate", shortest(o.intermediate)},
          {"vocabulary", shortest(text.vocabulary)},
          {"tied", shortest(o.tied)},
          {"rope-theta", shortest(o.rope_theta)},
          {"norm-epsilon", shortest(o.norm_epsilon)},
          {"context", shortest(o.context)},
          {"batch", shortest(o.batch)},
          {"accumulate", shortest(o.accumulate)},
          {"steps", shortest(o.steps)},
          {"lr", shortest(o.learning_rate)},
          {"warmup", shortest(o.warmup_steps())},
          {"clip", shortest(o.clip)},
          {"balance-weight", shortest(o.balance_weight)},
          {"seed", shortest(o.seed)},
          {"dtype", std::string{name_of(o.dtype)}},
          {"routing", o.routing.text},
          {text_digest_key, fmt::format("{:016x}", text.digest)}};
}

// The step after which the state was saved. Throws input_error when the file is no saved state, or one of
// another run.
inline std::int64_t check_metadata(const safetensors_reader& file, const state_metadata& expected) {
  const std::string path = shown(file.path());
  const auto value = [&](const std::string& key) {
    const auto found = file.metadata().find(key);
    if (found == file.metadata().end())
      throw input_error{
          fmt::format("{}: has no '{}' in its metadata; expected a state written by --save", path, key)};
    return found->second;
  };
  for (const auto& [key, wanted] : expected) {
    const std::string saved = value(key);
    if (saved == wanted) continue;
    if (key == text_digest_key)
      throw input_error{
          fmt::format("--data: the text has the digest {}; the state in {} was saved with one of {}", wanted,
                      path, shown(saved))};
    throw input_error{
        fmt::format("--{} {}: the state in {} was saved with {}", key, wanted, path, shown(saved))};
  }
  const std::string text = value("step");
  std::int64_t step = -1;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), step);
  if (end.ec != std::errc{} || end.ptr != text.data() + text.size() || step < 0)
    throw input_error{fmt::format("{}: '{}' is no step; expected a whole number from 0", path, shown(text))};
  return step;
}

// The same for a run with these options. Throws input_error also when the run would end before that step.
inline std::int64_t check_resumed(const safetensors_reader& file, const options& o, const corpus& text) {
  const std::int64_t step = check_metadata(file, metadata_of(o, text));
  if (step > o.last_step())
    throw input_error{fmt::format("--stop-after {}: the state in {} already has {} steps", o.last_step(),
                                  shown(file.path()), step)};
  return step;
}

// Throws input_error unless the file holds every parameter of the model, in its shape and in a type that
// widens to float, and nothing that the model lacks. With `moments` it must hold both moments too, all in
// F32; without, it may.
inline void check_state(const safetensors_reader& file, const model_config& c, bool moments) {
  const parameter_layout whole = parameter_layout::whole(c);
  std::set<std::string_view> names;
  for (const parameter_group* group : whole.groups())
    for (const parameter& p : group->all()) {
      names.insert(p.name);
      for (const char* prefix : state_prefixes) {
        if (*prefix != '\0' && !moments) continue;
        const stored_tensor& tensor = file.find(prefix + p.name, p.shape());
        if (moments ? tensor.type != storage_type::f32 : !widen(tensor.type, {}, std::span<float>{}))
          throw input_error{fmt::format("{}: tensor '{}' is {}; expected {}", shown(file.path()),
                                        shown(tensor.name), name_of(tensor.type),
                                        moments ? "F32, as --save writes" : "F32, BF16, F16 or F64")};
      }
    }
  for (const stored_tensor& tensor : file.tensors()) {
    const bool known =
        std::any_of(state_prefixes.begin(), state_prefixes.end(), [&](std::string_view prefix) {
          const std::string_view name = tensor.name;
          return name.substr(0, prefix.size()) == prefix && names.count(name.substr(prefix.size())) == 1;
        });
    if (!known)
      throw input_error{
          fmt::format("{}: tensor '{}' is none of this model's; expected the file of a model with the "
                      "same --layers, --experts and --tied",
                      shown(file.path()), shown(tensor.name))};
  }
}

} // namespace moe
