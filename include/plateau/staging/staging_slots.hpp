// SPDX-License-Identifier: Apache-2.0
//
// The device memory of a staging pipeline, as one list: for each slot, a bucket of every streamed field.
#pragma once

#include <plateau/config.hpp>
#include <plateau/staging/staging_fields.hpp>
#include <plateau/staging/staging_shape.hpp>
#include <plateau/view.hpp>

#include <array>
#include <cstddef>
#include <tuple>
#include <type_traits>

namespace plateau::inline v0::detail {

// A bucket of one field in a slot; nothing of a resident one.
template <class Field> struct slot_part {
  view<std::remove_const_t<typename Field::element_type>> memory;

  template <class Source> static slot_part take(Source& from, const staging_shape& shape) {
    constexpr const char* names[] = {"slot, in", "slot, out", "slot, in and out"};
    if constexpr (is_streamed(Field::direction))
      return {from.template device<typename Field::element_type>(
          names[static_cast<std::size_t>(Field::direction)], shape.bucket_elements)};
    else
      return {};
  }
};

template <class... Field> struct staging_slots {
  using slot = std::tuple<slot_part<Field>...>;
  std::array<slot, staging_shape::most_slots> slots{};

  // From a source of memory, in the order of the lines: slot by slot, field by field.
  template <class Source> staging_slots(Source& from, const staging_shape& shape) {
    for (int i = 0; i < shape.slots; ++i)
      slots[static_cast<std::size_t>(i)] = slot{slot_part<Field>::take(from, shape)...};
  }
};

} // namespace plateau::inline v0::detail
