// SPDX-License-Identifier: Apache-2.0
//
// What the order check objects to, and the sentence that says so. An operation is described by whoever knows
// its name, its stream and its line.
#pragma once

#include <plateau/config.hpp>
#include <plateau/dry_run/access_range.hpp>
#include <plateau/tag.hpp>

#include <optional>
#include <string>

namespace plateau::inline v0::dry {

struct operation_ref {
  // The number of what the caller did before it had memory adopted, whose name means nothing.
  static constexpr std::uint64_t adoption = ~std::uint64_t{0};

  std::uint64_t number = 0;
  std::uint32_t name = 0;   // into the labels of whoever issued it
  std::uint16_t stream = 0; // 0: the host's own thread
};

enum class finding_kind : unsigned char {
  unordered,         // two conflicting accesses to the same bytes, and nothing orders them
  read_before_write, // of bytes that nothing has written, or whose contents are dead
  out_of_bounds,     // past the end of an allocation
  unknown_memory,    // that no resource gave out and nobody adopted
  use_after_free,
  free_in_flight // the host frees memory that an operation may still touch
};

struct finding {
  finding_kind kind = finding_kind::unordered;
  operation_ref operation;              // the later one; means nothing for free_in_flight
  std::optional<operation_ref> earlier; // unordered; free_in_flight: the one that may still run
  touch mode = touch::read, earlier_mode = touch::read;
  std::uint64_t allocation = 0; // counted from 0 as they became known
  std::size_t allocation_bytes = 0;
  tag purpose = tag::other;
  const char* space = "";
  std::size_t first = 0, last = 0; // bytes [first, last) of the allocation; addresses if it is unknown
};

namespace detail {
constexpr const char* verb_of(touch t) {
  constexpr const char* verbs[] = {"reads",          "writes",  "updates",
                                   "writes some of", "adds to", "uses as scratch"};
  return verbs[static_cast<std::size_t>(t)];
}
inline std::string place_of(const finding& f) {
  return std::string(f.space) + " allocation " + std::to_string(f.allocation) + " (" + name_of(f.purpose) +
         ")";
}
inline std::string bytes_of(const finding& f) {
  return "bytes [" + std::to_string(f.first) + ", " + std::to_string(f.last) + ")";
}
} // namespace detail

// `describe(operation_ref)` gives what stands for an operation in a sentence: "'gemm' (operation 12) on
// stream 'compute' at model.cpp:30".
template <class Describe> std::string text_of(const finding& f, const Describe& describe) {
  const auto bytes = detail::bytes_of(f);
  const auto place = detail::place_of(f);
  const std::string verb = detail::verb_of(f.mode);
  const auto name = [&](const operation_ref& o) -> std::string {
    if (o.number != operation_ref::adoption) return describe(o);
    return o.stream == 0 ? "the caller, before the memory was adopted,"
                         : "the caller's work before the memory was adopted in the order of a stream";
  };
  switch (f.kind) {
  case finding_kind::unordered: {
    const std::string waits = f.operation.stream == 0 ? "the host" : "the later one's stream";
    return name(f.operation) + " " + verb + " what " + name(f.earlier.value_or(operation_ref{})) + " " +
           detail::verb_of(f.earlier_mode) + ", and no event orders them: " + bytes + " of " + place +
           "; record an event after the earlier one and let " + waits + " wait for it";
  }
  case finding_kind::read_before_write:
    return name(f.operation) + " " + verb + " " + bytes + " of " + place +
           ", which hold no values: nothing wrote them, or their workspace was handed back or used as "
           "scratch "
           "since; write them first, or pass them by out() or some() if they are not read";
  case finding_kind::out_of_bounds:
    return name(f.operation) + " " + verb + " " + bytes + " of " + place + ", which has only " +
           std::to_string(f.allocation_bytes) + " bytes; check the extents and strides of its views";
  case finding_kind::unknown_memory:
    return name(f.operation) + " " + verb + " " + std::to_string(f.last - f.first) +
           " bytes that no resource of this backend gave out; allocate them from its resources, or adopt() "
           "them";
  case finding_kind::use_after_free:
    return name(f.operation) + " " + verb + " " + bytes + " of " + place +
           ", which was freed before; keep the memory until an event recorded after its last use is done";
  case finding_kind::free_in_flight:
    break;
  }
  return "the host frees " + place + " while " + name(f.earlier.value_or(operation_ref{})) + ", which " +
         detail::verb_of(f.earlier_mode) + " " + bytes +
         " of it, may still run; record an event after that and let the host wait for it before freeing";
}

} // namespace plateau::inline v0::dry
