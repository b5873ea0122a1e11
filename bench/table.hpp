// SPDX-License-Identifier: Apache-2.0
//
// What a benchmark prints: one line for each figure, with its spread, the goal if there is one, and whether
// the median reaches it: "cpu" where only the time of the processor does, as beside busy neighbours. The
// lines also go to the end of the file that PLATEAU_BENCH_ROWS names, so that several programs make one
// table.
#pragma once

#include "machine.hpp"
#include "measure.hpp"

#include <fmt/core.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace bench {

struct goal {
  double limit = 0;
  enum class direction { none, at_least, at_most } is = direction::none;

  static goal at_least(double x) { return {x, direction::at_least}; }
  static goal at_most(double x) { return {x, direction::at_most}; }
};

// One program's table; the machine's state is printed before the first line and after the last one.
class table {
 public:
  explicit table(char** argv) {
    if (const char* file = std::getenv("PLATEAU_BENCH_ROWS")) rows_ = std::fopen(file, "a");
    prepare_machine(argv);
    fmt::print("{}", heading());
  }
  table(const table&) = delete;
  table& operator=(const table&) = delete;
  ~table() {
    print_state("after");
    if (rows_ != nullptr) std::fclose(rows_);
  }

  static std::string heading() {
    return fmt::format("{:<66} {:>8} {:>16} {:>8} {:>8} {:>7}  {}\n", "what", "median", "10% .. 90%",
                       "minima", "cpu", "goal", "reached");
  }
  void row(const std::string& what, const spread& s, goal g = {}) {
    std::string limit, reached;
    if (g.is != goal::direction::none) {
      const bool least = g.is == goal::direction::at_least;
      const auto reaches = [&](double x) { return least ? x >= g.limit : x <= g.limit; };
      limit = fmt::format("{} {:.4g}", least ? ">=" : "<=", g.limit);
      reached = reaches(s.median) ? "yes" : s.processor > 0 && reaches(s.processor) ? "cpu" : "NO";
    }
    line(fmt::format("{:<66} {:>8} {:>16} {:>8} {:>8} {:>7}  {}", what, figure(s.median),
                     figure(s.p10) + " .. " + figure(s.p90), figure(s.minimum),
                     s.processor > 0 ? figure(s.processor) : "", limit, reached));
  }

 private:
  static std::string figure(double x) { return fmt::format("{:.{}f}", x, x < 10 ? 3 : x < 100 ? 1 : 0); }
  void line(std::string text) {
    while (!text.empty() && text.back() == ' ') text.pop_back();
    text += '\n';
    fmt::print("{}", text);
    if (rows_ != nullptr) std::fputs(text.c_str(), rows_);
  }

  std::FILE* rows_ = nullptr;
};

} // namespace bench
