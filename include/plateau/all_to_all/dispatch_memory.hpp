// SPDX-License-Identifier: Apache-2.0
//
// The memory of a dispatch, as one list for each of its passes: what working_set_of promises and what a pass
// takes are the same lines. What grows with tokens is the routing index (8 bytes a route) and the sums; slots
// do not.
#pragma once

#include <plateau/all_to_all/dispatch_shape.hpp>
#include <plateau/all_to_all/expert.hpp>
#include <plateau/all_to_all/route_kernels.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/scratch.hpp>
#include <plateau/view.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <utility>

namespace plateau::inline v0 {

// Counting the rows of each expert; the experts' forward; their backward, which runs the forward again.
enum class dispatch_pass : unsigned char { plan, forward, backward };

namespace detail::dispatch {

// a x b elements; config_error for what 64 bits do not hold. Neither is negative.
inline index_t times(index_t a, index_t b) {
  if (a > 0 && b > std::numeric_limits<index_t>::max() / a)
    throw config_error("plateau: dispatch: " + std::to_string(a) + " x " + std::to_string(b) +
                       " elements are more than 64 bits can count: make the shape smaller");
  return a * b;
}

// What the expert needs beside the rows.
struct expert_need {
  index_t weight_elements = 0; // of one expert, all parts
  std::size_t scratch_bytes = 0;
};

// Routes grouped by expert, and the place of each in the order in which rows travel.
struct route_index {
  view<std::int32_t> order, position; // (routes)
  view<std::int64_t> offsets;         // (experts + 2): the last group is of routes that go nowhere

  template <class Source, std::size_t Parts>
  route_index(Source& from, const dispatch_shape<Parts>& shape)
      : order(from.template device<std::int32_t>("routes by expert", shape.routes())),
        position(from.template device<std::int32_t>("place of each route", shape.routes())),
        offsets(from.template device<std::int64_t>("first route of each expert", shape.experts + 2)) {}
};

template <class Backend, std::size_t Parts>
std::size_t grouping_scratch_bytes(const dispatch_shape<Parts>& shape) {
  return Backend::group_by_key_scratch_bytes(shape.routes(), shape.experts + 1);
}

// Of dispatch_pass::plan.
template <class Backend> struct plan_memory {
  route_index index;
  view<std::int64_t> answer;   // (experts + 2): counts, and which id is out of range
  view<std::int64_t> offender; // (blocks of ids)
  scratch_view scratch;
  view<std::int64_t, host_space> pinned; // (experts + 2)

  template <class Source, std::size_t Parts>
  plan_memory(Source& from, const dispatch_shape<Parts>& shape)
      : index(from, shape),
        answer(from.template device<std::int64_t>("rows of each expert", shape.experts + 2)),
        offender(from.template device<std::int64_t>("ids out of range",
                                                    (shape.routes() + offender_block - 1) / offender_block)),
        scratch(from.template device<unsigned char>(
            "scratch", static_cast<index_t>(grouping_scratch_bytes<Backend>(shape)))),
        pinned(from.template pinned<std::int64_t>("rows of each expert", shape.experts + 2)) {}
};

// Of one round in flight. Rows of a rank lie in its send slot, and what comes back for them takes their
// place.
template <class... Part> struct slot_memory {
  using first_part = std::tuple_element_t<0, std::tuple<Part...>>;
  using result = row_result<first_part>;

  view<std::int32_t> route;           // (send rows)
  std::tuple<view<Part>...> sent;     // (send rows, width)
  std::tuple<view<Part>...> received; // (receive rows, width)
  view<result> returned;              // (send rows, result width)
  view<result> results;               // (receive rows, result width)
  view<result> sent_upstream,
      upstream;                  // backward: gradients of the results, (send), (receive rows, result width)
  view<float> sent_gates, gates; // backward: (send rows), (receive rows)
  view<first_part> drows;        // backward: (receive rows, width of the first part)
  view<float> dgates;            // backward: (receive rows)
};

// Of dispatch_pass::forward and backward.
template <class Backend, class Weight, class... Part> struct pass_memory {
  using slot = slot_memory<Part...>;
  using first_part = typename slot::first_part;
  using result = typename slot::result;

  route_index index;
  view<float> sums;                // (tokens, width), unless ordered
  view<result> kept;               // ordered forward: (routes, result width)
  view<first_part> kept_gradients; // ordered backward: (routes, width of the first part)
  std::array<slot, 3> slots;
  view<Weight> foreign_weights;  // (foreign experts, weights of one)
  view<float> foreign_gradients; // backward: the same
  view<float> home_gradient;     // backward: (weights of one expert)
  scratch_view scratch;

  template <class Source>
  pass_memory(Source& from, const dispatch_shape<sizeof...(Part)>& shape, int ranks, const expert_need& need,
              bool backward)
      : index(from, shape) {
    const index_t width = backward ? shape.widths[0] : shape.result_elements();
    if (!shape.ordered)
      sums = from.template device<float>("sums of tokens", times(shape.tokens, width));
    else if (backward)
      kept_gradients =
          from.template device<first_part>("gradient of each route", times(shape.routes(), width));
    else
      kept = from.template device<result>("result of each route", times(shape.routes(), width));
    for (int i = 0; i < shape.slots; ++i)
      slots[static_cast<std::size_t>(i)] =
          make_slot(from, shape, ranks, backward, std::index_sequence_for<Part...>());
    const index_t foreign = times(shape.foreign_slots(ranks), need.weight_elements);
    foreign_weights = from.template device<Weight>("foreign weights", foreign);
    if (backward) {
      foreign_gradients = from.template device<float>("gradients of foreign weights", foreign);
      home_gradient = from.template device<float>("gradient on its way home",
                                                  shape.foreign_slots(ranks) > 0 ? need.weight_elements : 0);
    }
    scratch = from.template device<unsigned char>(
        "scratch",
        static_cast<index_t>(std::max(need.scratch_bytes, grouping_scratch_bytes<Backend>(shape))));
  }

 private:
  template <class Source, std::size_t... Index>
  static slot make_slot(Source& from, const dispatch_shape<sizeof...(Part)>& shape, int ranks, bool backward,
                        std::index_sequence<Index...>) {
    const index_t out = shape.send_slot_rows(), in = shape.receive_slot_rows(ranks);
    const index_t width = shape.result_elements();
    slot s;
    s.route = from.template device<std::int32_t>("route of each row", out);
    // What comes back takes the place of the first part, whichever is longer.
    const index_t first_bytes = times(index_t{sizeof(first_part)}, shape.widths[0]);
    const index_t result_bytes = backward ? 0 : times(index_t{sizeof(result)}, width);
    const auto bytes =
        from.template device<unsigned char>("rows to send", times(out, std::max(first_bytes, result_bytes)));
    s.returned = {reinterpret_cast<result*>(bytes.p), backward ? 0 : out * width};
    const auto part = [&](auto number, auto& to) {
      using type = typename std::remove_reference_t<decltype(to)>::element_type;
      constexpr std::size_t i = decltype(number)::value;
      if constexpr (i == 0)
        to = {reinterpret_cast<type*>(bytes.p), out * shape.widths[0]};
      else
        to = from.template device<type>("further parts to send", times(out, shape.widths[i]));
    };
    (part(std::integral_constant<std::size_t, Index>(), std::get<Index>(s.sent)), ...);
    ((std::get<Index>(s.received) =
          from.template device<Part>("rows received", times(in, shape.widths[Index]))),
     ...);
    if (!backward) {
      s.results = from.template device<result>("results", times(in, width));
      return s;
    }
    s.sent_upstream = from.template device<result>("output gradients to send", times(out, width));
    s.sent_gates = from.template device<float>("gates to send", out);
    s.upstream = from.template device<result>("output gradients received", times(in, width));
    s.gates = from.template device<float>("gates received", in);
    s.drows = from.template device<first_part>("row gradients", times(in, shape.widths[0]));
    s.dgates = from.template device<float>("gate gradients", in);
    return s;
  }
};

} // namespace detail::dispatch

} // namespace plateau::inline v0
