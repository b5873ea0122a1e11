// SPDX-License-Identifier: Apache-2.0
//
// How a run shows that it moves: one bar that is redrawn on a terminal, plain lines everywhere else, at most
// about fifty of them however many steps there are, so that a log stays readable.
#pragma once

#include "parse_text.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace moe {

// Columns of the terminal behind a file descriptor (1: standard output); 0 when it is none.
inline int terminal_width(int descriptor) {
  if (::isatty(descriptor) == 0) return 0;
  winsize size{};
  return ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

struct step_record {
  std::int64_t step = 0; // the first is 1
  double loss = 0;
  double tokens_per_second = 0;
  double gradient_norm = 0; // before clipping
};

// Used by one thread.
class progress {
 public:
  // Steps first_step + 1 to last_step are to come. `width`: terminal_width, 0 for plain lines.
  progress(std::ostream& out, int width, std::int64_t first_step, std::int64_t last_step)
      : out_{out}, width_{width}, first_{first_step}, last_{last_step}, every_{std::max<std::int64_t>(
                                                                            1, (last_step - first_step + 49) /
                                                                                   50)} {}

  progress(const progress&) = delete;
  progress& operator=(const progress&) = delete;
  ~progress() { clear(); }

  void step(const step_record& record) {
    const auto digits = fmt::formatted_size("{}", last_);
    const auto numbers =
        fmt::format("step {:>{}}/{}  loss {:.4f}  gradient norm {:.3g}  {:.0f} tokens/s", record.step, digits,
                    last_, plain_nan(record.loss), plain_nan(record.gradient_norm), record.tokens_per_second);
    if (width_ > 0)
      draw(record.step, numbers);
    else if (record.step == first_ + 1 || record.step == last_ || (record.step - first_) % every_ == 0)
      out_ << numbers << std::endl; // flushed: a log is watched while it grows
  }

  // A line of its own, above the bar; the bar comes back with the next step.
  void line(std::string_view text) {
    clear();
    out_ << text << std::endl;
  }

  // Takes the bar away, for what is printed next.
  void clear() {
    if (drawn_) out_ << "\r\x1b[K" << std::flush;
    drawn_ = false;
  }

 private:
  void draw(std::int64_t step, const std::string& numbers) {
    const double part =
        last_ > first_ ? static_cast<double>(step - first_) / static_cast<double>(last_ - first_) : 1;
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin_;
    const auto rest =
        fmt::format("  {}  {:.0f} s left", numbers, part > 0 ? passed.count() * (1 - part) / part : 0);
    // One column stays free: writing into the last one would wrap the line on some terminals.
    const int cells = std::clamp(width_ - 3 - static_cast<int>(rest.size()), 0, 40);
    const auto full = static_cast<std::size_t>(part * cells);
    std::string text = cells < 5
                           ? numbers
                           : fmt::format("[{}{}]{}", std::string(full, '#'),
                                         std::string(static_cast<std::size_t>(cells) - full, '.'), rest);
    text.resize(std::min(text.size(), static_cast<std::size_t>(width_ - 1)));
    out_ << '\r' << text << "\x1b[K" << std::flush;
    drawn_ = true;
  }

  std::ostream& out_;
  int width_;
  std::int64_t first_, last_, every_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

} // namespace moe
