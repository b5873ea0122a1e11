// SPDX-License-Identifier: Apache-2.0
//
// The most that a flattened peak holds, whatever the input.
#pragma once

#include <plateau/tag.hpp>
#include <plateau/working_set.hpp>

namespace moe {

struct peak_promise {
  plateau::tag of;
  plateau::reservation most;
};

} // namespace moe
