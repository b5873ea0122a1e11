// SPDX-License-Identifier: Apache-2.0
//
// The two ways in which the outside world fails a run. `input_error` is what the user can mend: a bad file,
// flag or shape; the program prints it as one line and ends with status 2. `output_error` is a disk that
// filled up or a device that failed half way; status 1. Names from files are shown through `shown`, since a
// damaged file may hold anything and the message must stay one line.
#pragma once

#include <cerrno>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

namespace moe {

struct input_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct output_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// `text` on one line and of bounded length: control characters become '?', the middle of a long text is cut.
inline std::string shown(std::string_view text) {
  constexpr std::size_t longest = 200;
  std::string line{text.size() <= longest ? std::string{text}
                                          : std::string{text.substr(0, longest / 2)} + "..." +
                                                std::string{text.substr(text.size() - longest / 2)}};
  for (char& c : line) {
    const auto code = static_cast<unsigned char>(c);
    if (code < 0x20 || code == 0x7f) c = '?';
  }
  return line;
}

// What the last failed system call said. std::strerror is not safe to call from several ranks at once.
inline std::string system_message(int error = errno) { return std::generic_category().message(error); }

} // namespace moe
