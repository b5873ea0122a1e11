// SPDX-License-Identifier: Apache-2.0
//
// What one rank's memory comes to in a training step, before anything of it exists: tag by tag, and in all.
// Where a peak is not flattened, what is known of it beforehand is here too, and marked. Plain numbers; they
// are made by step_promise_of.
#pragma once

#include <plateau/tag.hpp>
#include <plateau/working_set.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

#include <fmt/format.h>

namespace moe {

struct tag_promise {
  plateau::reservation most; // that it holds at a time; at least so much where it is not bounded
  plateau::reservation kept; // of these, what it holds all the time; the rest is lent by the workspace
  bool promised = true;      // false: of a peak as everyone has it, which nothing keeps small
  bool bounded = true;       // false: grows with the routing beyond what is known
};

// A part of the step, and what it needs beside what is kept: of the workspace, and what it allocates.
struct phase_need {
  const char* name = "";
  plateau::reservation need;
};

struct step_promise {
  std::array<tag_promise, plateau::tag_count> tags;
  std::array<phase_need, 4> phases; // forward, loss, backward, update
  plateau::reservation total;  // the peak of all tags together; at least so much where one is not bounded
  plateau::reservation least;  // the same without what the unflattened peaks add
  const char* peak_phase = ""; // the part of the step that makes the device's total as large as it is

  const tag_promise& operator[](plateau::tag t) const { return tags[static_cast<std::size_t>(t)]; }
  tag_promise& operator[](plateau::tag t) { return tags[static_cast<std::size_t>(t)]; }
  // Nothing holds more than `most`, and all together no more than `total`.
  bool bounded() const {
    return std::all_of(tags.begin(), tags.end(), [](const tag_promise& t) { return t.bounded; });
  }
  // Every byte is promised: all peaks are flattened.
  bool all_promised() const {
    return std::all_of(tags.begin(), tags.end(), [](const tag_promise& t) { return t.promised; });
  }
};

// Device bytes of each tag of which something is promised, in one line: "parameters 100, dispatch 20". What
// the workspace lends is in the operators' tags, and in its own.
inline std::string promise_text(const step_promise& p) {
  std::string out;
  for (const plateau::tag t : plateau::all_tags)
    if (const std::size_t bytes = p[t].most.device_bytes; bytes != 0 && p[t].promised)
      out += fmt::format("{}{} {}", out.empty() ? "" : ", ", plateau::name_of(t), bytes);
  return out;
}

// Tells a backend's meters what is promised of each tag, so that an error can say who holds more.
template <class Backend> void expect(Backend& backend, const step_promise& p) {
  for (const plateau::tag t : plateau::all_tags) {
    backend.device().meter().expect(t, p[t].most.device_bytes);
    backend.pinned().meter().expect(t, p[t].most.pinned_bytes);
  }
}

} // namespace moe
