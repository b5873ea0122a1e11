// SPDX-License-Identifier: Apache-2.0
//
// Two runs side by side for other programs (comparison.hpp, parity.hpp): exact numbers. What is infinite or
// not a number is null.
#pragma once

#include "comparison.hpp"
#include "parity.hpp"
#include "parity_report.hpp"

#include <cmath>
#include <cstdint>
#include <optional>

#include <nlohmann/json.hpp>

namespace moe {

// The rows of comparison_table.
inline nlohmann::ordered_json comparison_json(const run_result& result) {
  using json = nlohmann::ordered_json;
  const run_result& before = *result.unflattened;
  json peaks = json::array();
  for (const peak_pair& pair : peak_pairs(before, result))
    peaks.push_back({{"peak", pair.name},
                     {"space", pair.space},
                     {"unflattened", pair.unflattened},
                     {"flattened", pair.flattened},
                     {"promised", pair.promised ? json(*pair.promised) : json(nullptr)}});
  json all = {{"peaks", std::move(peaks)}, {"largest_loss_difference", nullptr}, {"at_step", nullptr}};
  if (const auto apart = curve_distance_of(before, result)) {
    all["largest_loss_difference"] = apart->nats;
    all["at_step"] = apart->step;
  }
  return all;
}

// Of each step the losses and, in the order of "tensors", what the gradients differ in.
inline nlohmann::ordered_json parity_json(const run_result& result) {
  using json = nlohmann::ordered_json;
  const parity_record& record = *result.parity;
  json steps = json::array();
  std::int64_t number = result.first_step;
  for (const parity_step& step : record.steps) {
    json kinds = json::object(), errors = json::array(), norms = json::array(), differences = json::array();
    for (const kind_difference& kind : by_kind(record.tensors, step))
      kinds[std::string(tensor_kinds[kind.kind])] = {{"relative_error", kind.all.relative_error()},
                                                     {"norm", kind.all.first_norm()},
                                                     {"norm_difference", kind.all.norm_difference()},
                                                     {"worst", record.tensors[kind.worst]}};
    for (const gradient_difference& gradient : step.gradients) {
      errors.push_back(gradient.relative_error());
      norms.push_back(gradient.first_norm());
      differences.push_back(gradient.norm_difference());
    }
    steps.push_back({{"step", ++number},
                     {"loss_unflattened", step.first_loss},
                     {"loss", step.second_loss},
                     {"loss_difference", loss_difference(step)},
                     {"token_loss_largest", step.tokens.largest},
                     {"token_loss_rms", step.tokens.rms()},
                     {"tokens", step.tokens.tokens},
                     {"kinds", std::move(kinds)},
                     {"relative_error", std::move(errors)},
                     {"norm", std::move(norms)},
                     {"norm_difference", std::move(differences)}});
  }
  return {{"weights", name_of(result.config.parity_from())},
          {"tensors", record.tensors},
          {"steps", std::move(steps)}};
}

} // namespace moe
