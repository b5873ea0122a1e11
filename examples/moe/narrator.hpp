// SPDX-License-Identifier: Apache-2.0
//
// What rank 0 tells the user after each step.
#pragma once

#include "expert_watch.hpp"
#include "progress.hpp"
#include "trainer.hpp"
#include "training_job.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>

#include <fmt/format.h>

namespace moe {

// An update is left out when the norm of its gradients is not finite.
inline bool was_skipped(const step_outcome& outcome) { return !std::isfinite(outcome.gradient_norm); }

class narrator {
 public:
  explicit narrator(const training_job& job)
      : shown_(*job.out, job.terminal_width, job.first_step, job.config.last_step()),
        active_every_(std::max<std::int64_t>(1, (job.config.last_step() - job.first_step) / 5)),
        tokens_per_step_(static_cast<double>(job.config.batch * job.config.context)) {}

  void step(std::int64_t number, const step_outcome& outcome) {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    for (const std::string& alarm : watch_.alarms(outcome.loads)) shown_.line("alarm: " + alarm);
    // Once for each time that it begins: a run that has diverged skips every step from there on.
    const bool skipped = was_skipped(outcome);
    if (skipped && !skipping_)
      shown_.line(fmt::format("alarm: step {} skipped: gradient norm is not finite", number));
    skipping_ = skipped;
    if (const std::string active = active_experts_line(outcome.loads);
        number % active_every_ == 0 && active != active_)
      shown_.line(active_ = active);
    shown_.step({number, outcome.loss, tokens_per_step_ / seconds, outcome.gradient_norm});
  }

 private:
  progress shown_;
  expert_watch watch_;
  std::string active_;
  bool skipping_ = false;
  std::int64_t active_every_; // steps between looks at which experts are in use
  double tokens_per_step_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

} // namespace moe
