// SPDX-License-Identifier: Apache-2.0
//
// The picture of takes_all_four: for each configuration six bars, what the fullest rank held at its peak with
// nothing flattened, with all but one and with all four, taken apart by tag, against the limit. What is not
// flattened lies at the end of its bar, where it passes the limit. A file by itself, without scripts or
// fonts, that can be read on a light page and on a dark one.
#pragma once

#include "run_result.hpp"
#include "takes_all_four.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace moe {

// The peaks of a configuration's runs without a limit.
struct four_peaks {
  peak_record none;
  std::array<peak_record, 4> without;
  peak_record all;
};

namespace detail {

inline std::string mebibytes(std::uint64_t bytes) {
  const double value = static_cast<double>(bytes) / 0x1p20;
  return fmt::format("{:.{}f}", value, value < 9.995 ? 2 : 1);
}

class four_svg {
 public:
  std::string drawn(const std::vector<four_case>& cases, const std::vector<four_outcome>& outcomes,
                    const std::vector<four_peaks>& peaks) {
    const double height = top + static_cast<double>(cases.size()) * panel + 4;
    text_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
        "font-family=\"system-ui, 'DejaVu Sans', Verdana, sans-serif\" font-size=\"12.5\">\n",
        width, height);
    text_ += "<title>Memory of four configurations with none, three and all four peaks flattened</title>\n"
             "<style>\n"
             ".page{fill:#ffffff}.ink{fill:#1f2328}.soft{fill:#59636e}.bad{fill:#b3261e}.good{fill:#116329}\n"
             ".limit{stroke:#b3261e}.rule{fill:#d1d9e0}.over{fill:#b3261e;fill-opacity:0.06}\n"
             ".g1{fill:#8c96a3}.g2{fill:#b3bbc5}.g3{fill:#d5dae0}\n"
             "@media (prefers-color-scheme: dark){\n"
             ".page{fill:#161b22}.ink{fill:#e6edf3}.soft{fill:#9198a1}.bad{fill:#ff8d84}.good{fill:#5fd38d}\n"
             ".limit{stroke:#ff8d84}.rule{fill:#30363d}.over{fill:#ff8d84;fill-opacity:0.08}\n"
             ".g1{fill:#7d8590}.g2{fill:#5f6772}.g3{fill:#444c56}}\n"
             "</style>\n";
    rect(0, 0, width, height, "class=\"page\" rx=\"8\"");
    label(left_margin, 30, "ink", "font-size=\"19\" font-weight=\"650\"", "It takes all four");
    label(left_margin, 51, "soft", "",
          "Device memory of the fullest of four ranks at its peak, in MiB, measured. Under its limit each "
          "configuration is refused with");
    label(left_margin, 68, "soft", "",
          "any three peaks flattened, and trains with all four. What is not flattened lies at the end of its "
          "bar; beside it, what it had asked");
    label(left_margin, 85, "soft", "",
          "for when the run was refused, and what it holds at most when it is flattened.");
    legend();
    for (std::size_t i = 0; i < cases.size(); ++i)
      draw(top + static_cast<double>(i) * panel, cases[i], outcomes[i], peaks[i]);
    return text_ + "</svg>\n";
  }

 private:
  static constexpr double width = 900, top = 125, panel = 176, left_margin = 18, bars_left = 172,
                          bars_width = 384, row = 20, bar = 14;

  struct colour {
    std::string_view tag, name, how;
  };
  static constexpr std::array<colour, 9> colours{{{"parameters", "parameters", "class=\"g1\""},
                                                  {"activations", "activations", "class=\"g2\""},
                                                  {"workspace", "workspace, lent in turn", "class=\"g3\""},
                                                  {"other", "", "class=\"g1\""},
                                                  {"checkpoint", "checkpoint", "fill=\"#009e73\""},
                                                  {"gradients", "gradients", "fill=\"#0072b2\""},
                                                  {"optimizer", "optimizer", "fill=\"#56b4e9\""},
                                                  {"vocabulary", "vocabulary", "fill=\"#e8b400\""},
                                                  {"dispatch", "dispatch", "fill=\"#cc79a7\""}}};

  void rect(double x, double y, double w, double h, std::string_view how, std::string_view title = {}) {
    text_ +=
        fmt::format("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" {}", x, y, w, h, how);
    text_ += title.empty() ? std::string("/>\n") : fmt::format("><title>{}</title></rect>\n", title);
  }
  void label(double x, double y, std::string_view kind, std::string_view how, std::string_view text) {
    text_ +=
        fmt::format("<text x=\"{:.2f}\" y=\"{:.2f}\" class=\"{}\" {}>{}</text>\n", x, y, kind, how, text);
  }

  void legend() {
    double x = left_margin;
    for (const colour& c : colours) {
      if (c.name.empty()) continue;
      rect(x, 97, 12, 12, fmt::format("rx=\"2\" {}", c.how));
      label(x + 17, 107.5, "ink", "font-size=\"11.5\"", c.name);
      x += 42 + 5.7 * static_cast<double>(c.name.size());
    }
  }

  void draw(double y, const four_case& c, const four_outcome& outcome, const four_peaks& peaks) {
    const double scale = bars_width / static_cast<double>(peaks.none.bytes);
    const double limit_at = bars_left + scale * static_cast<double>(outcome.limit);
    rect(left_margin, y, width - 2 * left_margin, 1, "class=\"rule\"");
    const std::string_view led = flatten_rows[c.leader].name;
    label(left_margin, y + 21, "ink", "font-size=\"13.5\" font-weight=\"650\"",
          fmt::format("{}{} leads", static_cast<char>(led[0] - 'a' + 'A'), led.substr(1)));
    label(bars_left, y + 21, "soft", "", fmt::format("{}", c.why));
    const double first = y + 34, bottom = first + 6 * row;
    rect(limit_at, first - 2, bars_left + bars_width - limit_at, bottom - first + 2, "class=\"over\"");
    bars(first, "nothing flattened", peaks.none, scale, c.leader);
    verdict(first, "soft",
            fmt::format("{:.1f} times the limit",
                        static_cast<double>(peaks.none.bytes) / static_cast<double>(outcome.limit)));
    for (std::size_t i = 0; i < peaks.without.size(); ++i) {
      const double at = first + row * static_cast<double>(i + 1);
      bars(at, fmt::format("all but {}", flatten_rows[i].name), peaks.without[i], scale, i);
      const refused_run& run = outcome.without[i];
      const auto tag = run.furthest();
      if (tag)
        verdict(at, "bad",
                fmt::format("\xe2\x9c\x97 refused: {} {}, promised {}", plateau::name_of(*tag),
                            mebibytes(run.facts->wanted(*tag)),
                            mebibytes(run.facts->promised[static_cast<std::size_t>(*tag)])));
    }
    const double last = first + 5 * row;
    bars(last, "all four", peaks.all, scale, c.leader);
    if (outcome.all.trained)
      verdict(last, "good",
              fmt::format("\xe2\x9c\x93 trains: {} steps, loss {:.3f}", outcome.all.trained->losses.size(),
                          outcome.all.trained->losses.back()));
    text_ += fmt::format("<path d=\"M{0:.2f} {1:.2f}V{2:.2f}\" class=\"limit\" stroke-width=\"1.6\"/>\n",
                         limit_at, first - 4, bottom);
    label(limit_at + 4, bottom + 9, "bad", "font-size=\"11\"",
          fmt::format("limit {} MiB", mebibytes(outcome.limit)));
  }

  void bars(double y, std::string_view name, const peak_record& peak, double scale, std::size_t last) {
    label(bars_left - 10, y + 11, "ink", "text-anchor=\"end\"", name);
    double x = bars_left;
    const auto add = [&](const colour& c) {
      const auto held = peak.held_at_peak.find(std::string(c.tag));
      if (held == peak.held_at_peak.end() || held->second == 0) return;
      const double wide = scale * static_cast<double>(held->second);
      rect(x, y, wide, bar, c.how, fmt::format("{} {} MiB", c.tag, mebibytes(held->second)));
      x += wide;
    };
    for (const bool of_last : {false, true})
      for (const colour& c : colours)
        if ((peak_of(c.tag) == last) == of_last) add(c);
    label(bars_left + bars_width + 42, y + 11, "ink", "text-anchor=\"end\"", mebibytes(peak.bytes));
  }
  void verdict(double y, std::string_view kind, const std::string& text) {
    label(bars_left + bars_width + 54, y + 11, kind, "", text);
  }

  std::string text_;
};

} // namespace detail

// SVG. The vectors are of one size.
inline std::string four_picture(const std::vector<four_case>& cases,
                                const std::vector<four_outcome>& outcomes,
                                const std::vector<four_peaks>& peaks) {
  return detail::four_svg().drawn(cases, outcomes, peaks);
}

} // namespace moe
