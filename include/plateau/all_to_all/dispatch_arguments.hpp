// SPDX-License-Identifier: Apache-2.0
//
// What a call of the dispatch reads and writes, as its caller has it; forward and backward in one list.
#pragma once

#include <plateau/all_to_all/dispatch_memory.hpp>
#include <plateau/all_to_all/expert.hpp>
#include <plateau/config.hpp>
#include <plateau/view.hpp>

#include <cstdint>
#include <span>

namespace plateau::inline v0::detail::dispatch {

template <class Weight, class... Part> struct call_arguments {
  using first_part = typename slot_memory<Part...>::first_part;
  using result = typename slot_memory<Part...>::result;

  view<const std::int32_t> ids;                // (tokens * top_k)
  row_parts<Part...> rows;                     // (tokens, width) each
  tile<const float> gates;                     // (tokens, top_k), or empty: all 1
  std::span<const tile<const Weight>> weights; // (local experts, parts)

  tile<result> out;                       // forward: (tokens, result width), added to
  tile<const result> upstream;            // backward: (tokens, result width)
  tile<first_part> drows;                 // backward: (tokens, width of the first part), written
  tile<float> dgates;                     // backward: (tokens, top_k), written; or empty: not wanted
  std::span<const tile<float>> gradients; // backward: (local experts, parts), added to
};

} // namespace plateau::inline v0::detail::dispatch
