// SPDX-License-Identifier: Apache-2.0
//
// The picture of memory: well-formed whatever the names, with the peak's numbers, of the right rank, and
// no larger than it must be however long the trace.
#include <plateau/trace/memory_svg.hpp>

#include <support/well_formed_xml.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <sstream>
#include <string>

namespace {

namespace pl = plateau;
using pl::memory_kind;
using pl::tag;

std::string svg_of(const pl::trace& t, const pl::svg_options& o = {}) {
  std::ostringstream to;
  pl::write_memory_svg(to, t, o);
  return to.str();
}
bool has(const std::string& text, const std::string& piece) { return text.find(piece) != std::string::npos; }
int count(const std::string& text, const std::string& piece) {
  int n = 0;
  for (std::size_t at = text.find(piece); at != std::string::npos; at = text.find(piece, at + 1)) ++n;
  return n;
}

constexpr std::size_t mib = std::size_t{1} << 20;

// Two ranks, the second of which holds more.
pl::trace small_trace() {
  pl::trace t;
  t.title = "two ranks, <x> & \"y\"";
  for (int rank = 0; rank < 2; ++rank) {
    t.memory.push_back({rank, memory_kind::device, tag::parameters, 0.0, 100 * mib});
    t.memory.push_back(
        {rank, memory_kind::device, tag::vocabulary, 0.010, (11 + static_cast<std::size_t>(rank)) * mib});
    t.memory.push_back({rank, memory_kind::device, tag::vocabulary, 0.011, 0});
    t.events.push_back({"gemm", {}, rank, 1, pl::trace_kind::compute, 0.0, 0.02, 0});
    t.phases.push_back({rank, "forward", 0.0});
    t.phases.push_back({rank, "loss & more", 0.009});
    t.phases.push_back({rank, "backward", 0.012});
  }
  return t;
}

} // namespace

TEST_CASE("the checker of the test refuses what is not XML") {
  CHECK(support::xml_error("<a b=\"c\"><d/>text &amp; more</a>\n") == "");
  for (const char* wrong :
       {"", "text", "<a>", "<a></b>", "<a/><b/>", "<a b=\"1\" b=\"2\"/>", "<a b=c/>", "<a>&</a>",
        "<a b=\"<\"/>", "<a>\x01</a>", "<a>\xff</a>", "</a>", "<a", "<a b=\"1\"c=\"2\"/>"})
    CHECK_MESSAGE(support::xml_error(wrong) != "", wrong);
}

TEST_CASE("the peak: its bytes, moment and phase, of the rank that has the highest") {
  const std::string svg = svg_of(small_trace());
  CHECK(support::xml_error(svg) == "");
  CHECK(has(svg, "rank 1"));
  CHECK(has(svg, "peak 112 MiB (117,440,512 bytes) at 10 ms, in loss &amp; more"));
  CHECK(has(svg, "two ranks, &lt;x&gt; &amp; &quot;y&quot;"));
  CHECK(has(svg, ">parameters<"));
  CHECK(has(svg, ">100 MiB<")); // in the legend
  CHECK(has(svg, ">12 MiB<"));
  CHECK_FALSE(has(svg, "optimizer")); // never held
  CHECK_FALSE(has(svg, "pinned"));
  CHECK_FALSE(has(svg, "script"));
  CHECK_FALSE(has(svg, "limit"));

  pl::svg_options of_rank_0;
  of_rank_0.rank = 0;
  CHECK(has(svg_of(small_trace(), of_rank_0), "peak 111 MiB (116,391,936 bytes)"));
}

TEST_CASE("a second panel where memory is pinned, and a limit as a line, or as a note when it is far away") {
  pl::trace t = small_trace();
  t.memory.push_back({1, memory_kind::pinned_host, tag::optimizer, 0.001, 3000});
  pl::svg_options options;
  options.limit_bytes = 128 * mib;
  options.limit_name = "capacity";
  std::string svg = svg_of(t, options);
  CHECK(support::xml_error(svg) == "");
  CHECK(has(svg, ">pinned<"));
  CHECK(has(svg, "2.93 KiB"));
  CHECK(has(svg, ">capacity 128 MiB<"));
  CHECK(has(svg, "stroke=\"#b00020\""));
  options.limit_bytes = 4096 * mib;
  svg = svg_of(t, options);
  CHECK(has(svg, ">capacity 4 GiB \xe2\x86\x91<"));
  CHECK_FALSE(has(svg, "stroke=\"#b00020\""));
}

TEST_CASE("traces of next to nothing") {
  pl::trace t;
  CHECK(support::xml_error(svg_of(t)) == "");
  CHECK(has(svg_of(t), "no memory was recorded"));
  t.memory.push_back({0, memory_kind::device, tag::other, 0.0, 1}); // one moment, no time
  CHECK(support::xml_error(svg_of(t)) == "");
  CHECK(has(svg_of(t), "peak 1 B (1 bytes) at 0 s"));
  pl::trace pinned;
  pinned.memory.push_back({2, memory_kind::pinned_host, tag::other, 0.5, 17});
  CHECK(support::xml_error(svg_of(pinned)) == "");
  CHECK(has(svg_of(pinned), "rank 2"));
}

TEST_CASE("odd names and a long title stay well-formed, and within the picture") {
  pl::trace t = small_trace();
  t.title = std::string(5000, 'w') + "\x01\xff]]>";
  t.phases.push_back({1, "<\xff\x02 & a phase with a name that no strip is wide enough for>", 0.0195});
  const std::string svg = svg_of(t);
  CHECK(support::xml_error(svg) == "");
  CHECK_FALSE(has(svg, std::string(200, 'w')));
  CHECK(has(svg, "\xe2\x80\xa6"));
}

TEST_CASE("a long trace is drawn in few steps, with its peak") {
  pl::trace t;
  for (int i = 0; i < 200'000; ++i) {
    const double at = 1e-5 * i;
    t.memory.push_back(
        {0, memory_kind::device, tag::activations, at, i == 123'456 ? 7'654'321 : 1000u * (i % 997u)});
    if (i % 50 == 0) t.phases.push_back({0, i % 100 == 0 ? "forward" : "backward", at});
  }
  const std::string svg = svg_of(t);
  CHECK(support::xml_error(svg) == "");
  CHECK(has(svg, "peak 7.3 MiB (7,654,321 bytes)"));
  CHECK(has(svg, "in backward"));
  CHECK(svg.size() < 400'000);
  CHECK(count(svg, "<rect") < 1500); // of thousands of phases, those that one could see
}
