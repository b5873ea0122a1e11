// SPDX-License-Identifier: Apache-2.0
//
// What the optimizer is told, whichever it is: AdamW (Loshchilov & Hutter 2019), with clipping.
#pragma once

#include <plateau/staging/adamw_settings.hpp>

namespace moe {

struct adamw_settings {
  float beta1 = 0.9F, beta2 = 0.95F, epsilon = 1e-8F;
  float weight_decay = 0.1F; // of matrices; gains do not decay
  float clip = 1;            // largest global gradient norm; 0: none

  plateau::adamw_group group(double learning_rate) const {
    return {learning_rate, static_cast<double>(beta1), static_cast<double>(beta2),
            static_cast<double>(epsilon), static_cast<double>(weight_decay)};
  }
};

} // namespace moe
