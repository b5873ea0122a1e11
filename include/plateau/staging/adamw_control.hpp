// SPDX-License-Identifier: Apache-2.0
//
// The control block of an AdamW step, whoever has the state: what decides on clipping and skipping, and the
// factors of each tensor. It is as long as there are tensors and ranks, not as there are parameters.
#pragma once

#include <plateau/config.hpp>
#include <plateau/memory_source.hpp>
#include <plateau/staging/adamw_kernel.hpp>
#include <plateau/staging/gradient_control.hpp>
#include <plateau/tag.hpp>
#include <plateau/view.hpp>
#include <plateau/working_set.hpp>

namespace plateau::inline v0::detail::adamw {

struct control_memory {
  gradient_control_memory decision;
  view<adamw_factors> factors; // (tensors)

  template <class Source>
  control_memory(Source& from, index_t tensors, int ranks)
      : decision(from, ranks),
        factors(from.template device<adamw_factors>("factors of each tensor", tensors)) {}
};

inline working_set control_set(index_t tensors, int ranks) {
  working_set set(tag::optimizer);
  counting_source source(set);
  control_memory(source, tensors, ranks);
  return set;
}

} // namespace plateau::inline v0::detail::adamw
