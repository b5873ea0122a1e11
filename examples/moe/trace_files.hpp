// SPDX-License-Identifier: Apache-2.0
//
// The traces of a run as files: of a real one what was measured, of a dry one what is predicted, in the same
// form.
#pragma once

#include "atomic_file.hpp"
#include "run_result.hpp"

#include <plateau/trace/chrome_trace.hpp>
#include <plateau/trace/memory_svg.hpp>
#include <plateau/trace/trace.hpp>

#include <cstdint>
#include <optional>
#include <sstream>
#include <string>

#include <fmt/format.h>

namespace moe {

// "predicted, H200, 64 ranks"
inline std::string trace_title(const run_result& result) {
  const std::string ranks =
      fmt::format("{} {}", result.config.ranks, result.config.ranks == 1 ? "rank" : "ranks");
  return result.prediction ? fmt::format("predicted, {}, {}", result.prediction->machine.name, ranks)
                           : fmt::format("measured, {}", ranks);
}

// Chrome's trace JSON. Throws input_error or output_error.
inline void write_trace(const std::string& path, const run_result& result) {
  std::ostringstream text;
  plateau::write_chrome_trace(text, *result.trace);
  write_result_file(path, text.view());
}

// Memory over time of the rank with the highest peak, with the limit that was given or the device's capacity.
inline void write_svg(const std::string& path, const run_result& result) {
  plateau::svg_options options;
  if (result.config.memory_limit_bytes) {
    options.limit_bytes = *result.config.memory_limit_bytes;
  } else if (result.prediction && result.prediction->machine.device_bytes != 0) {
    options.limit_bytes = result.prediction->machine.device_bytes;
    options.limit_name = "the device's memory";
  }
  std::ostringstream text;
  plateau::write_memory_svg(text, *result.trace, options);
  write_result_file(path, text.view());
}

} // namespace moe
