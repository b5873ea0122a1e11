// SPDX-License-Identifier: Apache-2.0
//
// What two trainings in lock step say to people: of a step how far apart the losses and the gradients are, by
// kind of tensor or tensor by tensor; at the end the farthest of all.
#pragma once

#include "comparison.hpp"
#include "parity.hpp"
#include "training_job.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace moe {

namespace detail {

inline std::string gradient_line(std::string_view name, std::size_t width, const gradient_difference& of,
                                 std::string_view worst) {
  std::string line =
      fmt::format("  {:<{}}  {:>14}  {:>9}  {:>15}", name, width, shown_difference(of.relative_error()),
                  fmt::format("{:.3g}", plain_nan(of.first_norm())), shown_difference(of.norm_difference()));
  if (!worst.empty()) line += fmt::format("  {}", worst);
  return line + '\n';
}

} // namespace detail

// Ends with a newline. `number` counts from 1.
inline std::string parity_lines(const parity_record& record, const parity_step& step, std::int64_t number,
                                std::int64_t last, parity_rows rows) {
  std::string text =
      fmt::format("step {:>{}}/{}  losses {:.4f} and {:.4f}, {} apart; of a token: at most {}, rms {}\n",
                  number, fmt::formatted_size("{}", last), last, plain_nan(step.first_loss),
                  plain_nan(step.second_loss), shown_difference(loss_difference(step)),
                  shown_difference(step.tokens.largest), shown_difference(step.tokens.rms()));
  std::size_t width = 9;
  if (rows == parity_rows::all)
    for (const std::string& name : record.tensors) width = std::max(width, name.size());
  text += fmt::format("  {:<{}}  {:>14}  {:>9}  {:>15}{}\n", "gradients", width, "relative error", "norm",
                      "norm difference", rows == parity_rows::all ? "" : "  worst tensor");
  if (rows == parity_rows::all) {
    for (std::size_t i = 0; i < record.tensors.size(); ++i)
      text += detail::gradient_line(record.tensors[i], width, step.gradients[i], "");
    return text;
  }
  for (const kind_difference& kind : by_kind(record.tensors, step))
    text += detail::gradient_line(tensor_kinds[kind.kind], width, kind.all,
                                  fmt::format("{} {}",
                                              shown_difference(step.gradients[kind.worst].relative_error()),
                                              record.tensors[kind.worst]));
  return text;
}

// One line, with a newline; nothing where no step was run. `first_step` is the number before the first one.
inline std::string parity_summary(const parity_record& record, std::int64_t first_step) {
  if (record.steps.empty()) return {};
  std::size_t loss = 0, token = 0, gradient = 0, tensor = 0;
  for (std::size_t s = 0; s < record.steps.size(); ++s) {
    const parity_step& step = record.steps[s];
    if (is_worse(loss_difference(step), loss_difference(record.steps[loss]))) loss = s;
    if (is_worse(step.tokens.largest, record.steps[token].tokens.largest)) token = s;
    for (std::size_t i = 0; i < step.gradients.size(); ++i)
      if (is_worse(step.gradients[i].relative_error(),
                   record.steps[gradient].gradients[tensor].relative_error())) {
        gradient = s;
        tensor = i;
      }
  }
  const auto at = [&](std::size_t s) { return first_step + static_cast<std::int64_t>(s) + 1; };
  return fmt::format(
      "farthest apart: losses {} (step {}), of a token {} (step {}), a gradient {} of its norm "
      "(step {}, {})\n",
      shown_difference(loss_difference(record.steps[loss])), at(loss),
      shown_difference(record.steps[token].tokens.largest), at(token),
      shown_difference(record.steps[gradient].gradients[tensor].relative_error()), at(gradient),
      record.tensors[tensor]);
}

// Tells of about fifty steps at most, the first and the last among them. Used by one thread.
class parity_narrator {
 public:
  explicit parity_narrator(const training_job& job)
      : out_(job.out), rows_(job.config.shown_tensors()), first_(job.first_step),
        last_(job.config.last_step()), every_(std::max<std::int64_t>(1, (last_ - first_ + 49) / 50)) {}

  // Step `number` (from 1) is the last of the record.
  void step(const parity_record& record, std::int64_t number) {
    if (number != first_ + 1 && number != last_ && (number - first_) % every_ != 0) return;
    *out_ << parity_lines(record, record.steps.back(), number, last_, rows_) << std::flush;
  }

 private:
  std::ostream* out_;
  parity_rows rows_;
  std::int64_t first_, last_, every_;
};

} // namespace moe
