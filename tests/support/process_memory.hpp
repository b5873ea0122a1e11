// SPDX-License-Identifier: Apache-2.0
//
// What the operating system says that this process holds: a witness who knows nothing of meters.
#pragma once

#include <cstddef>
#include <fstream>
#include <string>

namespace support {

// A line of /proc/self/status in bytes; 0 where there is none, and where a sanitizer's own memory is counted.
inline std::size_t bytes_of_process([[maybe_unused]] const std::string& line) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return 0;
#else
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
  return 0;
#endif
#endif
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (std::size_t kib = 0; word == line + ":" && status >> kib) return kib * 1024;
  return 0;
#endif
}

} // namespace support
