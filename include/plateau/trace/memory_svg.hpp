// SPDX-License-Identifier: Apache-2.0
//
// A picture of what one rank's memory held over time: areas stacked by tag, phases along the bottom, the peak
// with its bytes, moment and phase, and what each tag held then. A file by itself, without scripts or fonts,
// that any browser shows and any text can hold.
#pragma once

#include <plateau/config.hpp>
#include <plateau/trace/memory_steps.hpp>
#include <plateau/trace/svg_scale.hpp>
#include <plateau/trace/text.hpp>
#include <plateau/trace/trace.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

namespace plateau::inline v0 {

struct svg_options {
  int rank = -1;               // -1: the one with the highest peak of device memory
  std::size_t limit_bytes = 0; // of device memory, drawn as a line; 0: none
  const char* limit_name = "limit";
  double width = 1200, height = 500; // pixels; at least 640 and 400
  std::size_t most_steps = 2000;     // of the drawing
};

namespace detail {

// From the bottom of the stack, what stays longest first; the colours are told apart by all kinds of sight.
struct area_style {
  plateau::tag tag;
  const char* colour;
};
inline constexpr std::array<area_style, tag_count> area_styles{{{tag::parameters, "#0072b2"},
                                                                {tag::optimizer, "#56b4e9"},
                                                                {tag::gradients, "#d55e00"},
                                                                {tag::checkpoint, "#009e73"},
                                                                {tag::activations, "#e69f00"},
                                                                {tag::dispatch, "#cc79a7"},
                                                                {tag::vocabulary, "#f0e442"},
                                                                {tag::workspace, "#c4c4c4"},
                                                                {tag::other, "#6b6b6b"}}};

class memory_svg {
 public:
  memory_svg(const trace& t, const svg_options& o)
      : trace_(t), options_(large_enough(o)), rank_(o.rank < 0 ? rank_of_peak(t) : o.rank),
        device_(memory_over_time(t, rank_, memory_kind::device, o.most_steps)),
        pinned_(memory_over_time(t, rank_, memory_kind::pinned_host, o.most_steps)) {
    for (const trace_event& e : t.events)
      if (e.rank == rank_) end_ = std::max(end_, e.end);
    for (const trace_phase& p : t.phases) {
      if (p.rank != rank_) continue;
      end_ = std::max(end_, p.at);
      if (phases_.empty() || std::strcmp(phases_.back()->name, p.name) != 0) phases_.push_back(&p);
    }
    for (const memory_history* h : {&device_, &pinned_})
      if (!h->steps.empty()) end_ = std::max(end_, h->steps.back().at);
  }

  const std::string& draw() {
    const bool pinned = pinned_.peak.total != 0;
    right_ = options_.width - (pinned ? 262 : 192);
    begin();
    const double bottom = options_.height - 66, height = bottom - top;
    const double split = pinned ? top + std::floor(height * 0.7) : bottom;
    panel(device_, "device", top, split, options_.limit_bytes);
    if (pinned) panel(pinned_, "pinned", split + 26, bottom, 0);
    time_axis(bottom);
    phase_strip(bottom + 24);
    if (device_.peak.total != 0) peak_label(split);
    legend(pinned);
    svg_ += "</svg>\n";
    return svg_;
  }

 private:
  static constexpr double left = 84, top = 72, small_size = 11, normal = 12, large = 15;

  static svg_options large_enough(svg_options o) {
    o.width = std::max(o.width, 640.0);
    o.height = std::max(o.height, 400.0);
    return o;
  }
  void begin() {
    svg_ = "<svg xmlns=\"http://www.w3.org/2000/svg\"";
    attribute("width", options_.width);
    attribute("height", options_.height);
    svg_ += " viewBox=\"0 0 ";
    append_decimal(svg_, options_.width, 1);
    svg_ += ' ';
    append_decimal(svg_, options_.height, 1);
    svg_ += "\" font-family=\"system-ui, 'DejaVu Sans', Verdana, sans-serif\" fill=\"#222222\">\n";
    rectangle(0, 0, options_.width, options_.height, "#ffffff");
    std::string title = trace_.title.empty() ? "Memory" : trace_.title;
    title += ", rank ";
    append_number(title, rank_);
    text(left, 26, large, fitting(title, options_.width - left - 20, large), "start", " font-weight=\"600\"");
  }

  // One pool: areas, axis, limit.
  void panel(const memory_history& history, const char* pool, double from, double to, std::size_t limit) {
    const auto peak = static_cast<double>(history.peak.total);
    const auto line = static_cast<double>(limit);
    const bool line_fits = limit != 0 && (peak == 0 || line <= 1.6 * peak);
    const double most = std::max({peak * 1.04, line_fits ? line * 1.08 : 0.0, 1.0});
    const auto y = [&](double bytes) { return to - bytes / most * (to - from); };
    const unit in = unit_of_bytes(most);
    for (const double at : ticks(most, in, (to - from) / 42)) {
      rectangle(left, y(at) - 0.5, right_ - left, 1, at == 0 ? "#888888" : "#e4e4e4");
      std::string label;
      append_decimal(label, at / in.size, 3);
      if (at != 0) (label += ' ') += in.name;
      text(left - 8, y(at) + 4, small_size, label, "end");
    }
    std::vector<std::size_t> below(history.steps.size()); // the tags drawn so far, step by step
    for (const area_style& style : area_styles) area(history, style, below, y);
    rectangle(left - 0.5, from, 1, to - from, "#888888");
    text(left - 8, from - 9, small_size, pool, "end", " fill=\"#555555\"");
    if (&history == &device_) peak_y_ = y(peak);
    if (limit != 0) limit_line(line, line_fits, from, y(line));
  }

  template <class Y>
  void area(const memory_history& history, const area_style& style, std::vector<std::size_t>& below, Y y) {
    const std::vector<memory_step>& steps = history.steps;
    const auto held = [&](std::size_t i) { return steps[i].held[static_cast<std::size_t>(style.tag)]; };
    // A path for each stretch of time in which the tag holds anything: along the top, and back.
    for (std::size_t i = 0; i < steps.size();) {
      if (held(i) == 0) {
        ++i;
        continue;
      }
      std::size_t last = i;
      while (last < steps.size() && held(last) != 0) ++last;
      const double until = last < steps.size() ? x(steps[last].at) : right_;
      const double start = y(static_cast<double>(below[i] + held(i)));
      std::string path = "M";
      point(path, x(steps[i].at), start);
      double drawn = start;
      const auto edge = [&](double at, double height) {
        if (std::abs(height - drawn) < 0.05) return;
        point(path += 'H', at);
        point(path += 'V', height);
        drawn = height;
      };
      for (std::size_t k = i + 1; k < last; ++k)
        edge(x(steps[k].at), y(static_cast<double>(below[k] + held(k))));
      point(path += 'H', until);
      drawn = y(static_cast<double>(below[last - 1]));
      point(path += 'V', drawn);
      for (std::size_t k = last - 1; k > i; --k) edge(x(steps[k].at), y(static_cast<double>(below[k - 1])));
      point(path += 'H', x(steps[i].at));
      svg_ += "<path d=\"" + path + "Z\" fill=\"" + style.colour +
              "\" stroke=\"#ffffff\" stroke-width=\"0.4\"><title>" + name_of(style.tag) + "</title></path>\n";
      i = last;
    }
    for (std::size_t i = 0; i < steps.size(); ++i) below[i] += held(i);
  }

  void limit_line(double bytes, bool fits, double from, double at) {
    const std::string label =
        std::string(options_.limit_name) + " " + text_of_bytes(static_cast<std::size_t>(bytes));
    // On the side that the peak's line does not cross.
    const bool peak_on_left = x(device_.peak.at) < (left + right_) / 2;
    if (fits) {
      svg_ += "<line";
      attribute("x1", left);
      attribute("x2", right_);
      attribute("y1", at);
      attribute("y2", at);
      svg_ += " stroke=\"#b00020\" stroke-width=\"1.5\" stroke-dasharray=\"7 4\"/>\n";
      text(peak_on_left ? right_ - 6 : left + 6, at - 5, small_size, label, peak_on_left ? "end" : "start",
           " fill=\"#b00020\"");
    } else {
      text(peak_on_left ? right_ : left + 6, from - 6, small_size, label + " \xe2\x86\x91", // above
           peak_on_left ? "end" : "start", " fill=\"#b00020\"");
    }
  }

  void peak_label(double bottom) {
    const memory_step& peak = device_.peak;
    const char* phase = "";
    for (const trace_phase* p : phases_)
      if (p->at <= peak.at) phase = p->name;
    std::string label = "peak " + text_of_bytes(peak.total) + " (" + text_with_commas(peak.total) +
                        " bytes) at " + text_of_seconds(peak.at);
    if (*phase != '\0') (label += ", in ") += phase;
    constexpr double bold = 1.1 * normal; // as wide as that
    label = fitting(label, right_ - left - 20, bold);
    const double at = x(peak.at), half = width_of(label, bold) / 2;
    svg_ += "<line";
    attribute("x1", at);
    attribute("x2", at);
    attribute("y1", top - 20);
    attribute("y2", bottom);
    svg_ += " stroke=\"#222222\" stroke-width=\"1\" stroke-dasharray=\"2 3\"/>\n<circle";
    attribute("cx", at);
    attribute("cy", peak_y_);
    svg_ += " r=\"3.5\" fill=\"#ffffff\" stroke=\"#222222\" stroke-width=\"1.5\"/>\n";
    text(std::clamp(at, left + half, std::max(left + half, right_ - half)), top - 25, normal, label, "middle",
         " font-weight=\"600\"");
  }

  void time_axis(double y) {
    const unit in = unit_of_seconds(end_);
    for (const double at : ticks(end_, in, (right_ - left) / 90)) {
      rectangle(x(at) - 0.5, y, 1, 5, "#888888");
      std::string label;
      append_decimal(label, at / in.size, 3);
      text(x(at), y + 17, small_size, at == 0 ? "0" : (label += ' ') += in.name, "middle");
    }
  }

  // The names of narrow phases stand below, while there is room; those of less than a pixel are left out.
  void phase_strip(double y) {
    double drawn = left;
    double written = 0; // how far the names below reach
    bool dark = false;
    if (!phases_.empty()) {
      const double from = x(phases_.front()->at);
      rectangle(from, y, right_ - from, 18, "#d7dee4");
      text(left - 8, y + 13, small_size, "phase", "end", " fill=\"#555555\"");
    }
    for (std::size_t i = 0; i < phases_.size(); ++i) {
      const double from = std::max(drawn, x(phases_[i]->at));
      const double to = i + 1 < phases_.size() ? x(phases_[i + 1]->at) : right_;
      if (to - from < 1) continue;
      rectangle(from, y, to - from, 18, dark ? "#c9d1d9" : "#e6eaee", phases_[i]->name);
      const double middle = (from + to) / 2, width = width_of(phases_[i]->name, small_size);
      if (width + 6 <= to - from) {
        text(middle, y + 13, small_size, phases_[i]->name, "middle");
      } else if (middle - width / 2 >= written) {
        text(middle, y + 30, small_size, phases_[i]->name, "middle", " fill=\"#555555\"");
        written = middle + width / 2 + 4;
      }
      dark = !dark;
      drawn = to;
    }
  }

  // What each tag held when its pool was fullest.
  void legend(bool pinned) {
    const double at = right_ + 18, device_edge = at + 164 - 8, pinned_edge = device_edge + 76;
    double y = top + 4;
    text(at, y, small_size, "at the peak", "start", " fill=\"#555555\"");
    text(device_edge, y, small_size, "device", "end", " fill=\"#555555\"");
    if (pinned) text(pinned_edge, y, small_size, "pinned", "end", " fill=\"#555555\"");
    const auto row = [&](const char* name, std::size_t on_device, std::size_t on_host, const char* weight) {
      text(at + 17, y, small_size, name, "start", weight);
      text(device_edge, y, small_size, on_device == 0 ? "\xe2\x80\x93" : text_of_bytes(on_device), "end",
           weight);
      if (pinned)
        text(pinned_edge, y, small_size, on_host == 0 ? "\xe2\x80\x93" : text_of_bytes(on_host), "end",
             weight);
    };
    for (std::size_t i = tag_count; i-- > 0;) {
      const auto slot = static_cast<std::size_t>(area_styles[i].tag);
      if (!ever_held(slot)) continue;
      y += 20;
      rectangle(at, y - 10, 12, 12, area_styles[i].colour);
      row(name_of(area_styles[i].tag), device_.peak.held[slot], pinned_.peak.held[slot], "");
    }
    rectangle(at, y + 8, (pinned ? pinned_edge : device_edge) - at, 1, "#888888");
    y += 24;
    row("total", device_.peak.total, pinned_.peak.total, " font-weight=\"600\"");
    if (device_.steps.empty() && pinned_.steps.empty())
      text((left + right_) / 2, (top + options_.height) / 2, large, "no memory was recorded", "middle");
  }
  bool ever_held(std::size_t slot) const {
    for (const memory_history* h : {&device_, &pinned_})
      for (const memory_step& s : h->steps)
        if (s.held[slot] != 0) return true;
    return false;
  }

  double x(double at) const {
    return end_ > 0 ? left + std::clamp(at / end_, 0.0, 1.0) * (right_ - left) : left;
  }
  // At most: no common font is wider on average.
  static double width_of(std::string_view text, double size) {
    double characters = 0;
    for_each_character(text, [&](std::string_view c) { characters += c.size() < 3 ? 1 : 1.7; });
    return characters * size * 0.64;
  }
  static std::string fitting(std::string_view text, double width, double size) {
    if (width_of(text, size) <= width) return std::string(text);
    std::string kept;
    for_each_character(text, [&](std::string_view c) {
      if (width_of(kept, size) + 4 * size <= width) kept += c;
    });
    return kept + "\xe2\x80\xa6";
  }

  void attribute(const char* name, double value) {
    ((svg_ += ' ') += name) += "=\"";
    append_decimal(svg_, value, 2);
    svg_ += '"';
  }
  static void point(std::string& path, double value) { append_decimal(path, value, 1); }
  static void point(std::string& path, double at, double height) {
    append_decimal(path, at, 1);
    append_decimal(path += ' ', height, 1);
  }
  void rectangle(double at, double y, double width, double height, const char* colour,
                 std::string_view title = {}) {
    svg_ += "<rect";
    attribute("x", at);
    attribute("y", y);
    attribute("width", width);
    attribute("height", height);
    ((svg_ += " fill=\"") += colour) += '"';
    if (title.empty()) {
      svg_ += "/>\n";
      return;
    }
    svg_ += "><title>";
    append_xml(svg_, title);
    svg_ += "</title></rect>\n";
  }
  void text(double at, double y, double size, std::string_view words, const char* anchor,
            const char* more = "") {
    svg_ += "<text";
    attribute("x", at);
    attribute("y", y);
    attribute("font-size", size);
    (((svg_ += " text-anchor=\"") += anchor) += '"') += more;
    svg_ += '>';
    append_xml(svg_, words);
    svg_ += "</text>\n";
  }

  const trace& trace_;
  svg_options options_;
  int rank_;
  memory_history device_, pinned_;
  std::vector<const trace_phase*> phases_; // where the name changes
  double end_ = 0, right_ = 0, peak_y_ = 0;
  std::string svg_;
};
} // namespace detail

// Writes the picture to the stream, whose state says afterwards whether it could be written.
inline void write_memory_svg(std::ostream& to, const trace& t, const svg_options& options = {}) {
  detail::memory_svg picture(t, options);
  const std::string& svg = picture.draw();
  to.write(svg.data(), static_cast<std::streamsize>(svg.size()));
}

} // namespace plateau::inline v0
