// SPDX-License-Identifier: Apache-2.0
//
// Chrome's trace JSON, line by line: what is written where. (tests/moe reads such files with a JSON parser.)
#include <plateau/trace/chrome_trace.hpp>

#include <doctest/doctest.h>

#include <locale>
#include <sstream>
#include <string>

namespace {

namespace pl = plateau;

std::string json_of(const pl::trace& t) {
  std::ostringstream to;
  pl::write_chrome_trace(to, t);
  return to.str();
}
bool has(const std::string& text, const std::string& piece) { return text.find(piece) != std::string::npos; }

struct grouped : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

} // namespace

TEST_CASE("events, phases, counters, and what they are called") {
  pl::trace t;
  t.title = "a \"title\"";
  t.streams = {"host", "main"};
  t.events = {{"gemm", {"model.hpp", 1234}, 2, 1, pl::trace_kind::compute, 1.0, 1.0000015, 0},
              {"copy", {}, 2, 1, pl::trace_kind::copy, 1.0000015, 1.5, 1234567},
              {"wait", {"a.hpp", 1}, 2, 0, pl::trace_kind::waiting, 1.25, 1.5, 8}};
  t.phases = {{2, "forward", 0.5}, {2, "backward", 1.0}};
  t.memory = {{2, pl::memory_kind::device, pl::tag::parameters, 0.25, 1000},
              {2, pl::memory_kind::device, pl::tag::workspace, 0.25, 24},
              {2, pl::memory_kind::device, pl::tag::workspace, 0.75, 0}};
  const std::string json = json_of(t);
  CHECK(has(json, R"("otherData":{"title":"a \"title\""})"));
  CHECK(has(json, R"({"ph":"M","pid":3,"name":"process_name","args":{"name":"rank 2"}})"));
  CHECK(has(json, R"({"ph":"M","pid":3,"tid":300,"name":"thread_name","args":{"name":"host"}})"));
  CHECK(has(json, R"({"ph":"M","pid":3,"tid":301,"name":"thread_name","args":{"name":"main"}})"));
  CHECK(has(json, R"({"ph":"X","pid":3,"tid":301,"name":"gemm","cat":"compute","ts":1000000,"dur":1.500,)"
                  R"("args":{"place":"model.hpp:1234"}})"));
  CHECK(
      has(json, R"("name":"copy","cat":"copy","ts":1000001.500,"dur":499998.500,"args":{"bytes":1234567}})"));
  CHECK(has(json, R"("tid":300,"name":"wait","cat":"waiting","ts":1250000,"dur":250000,)"
                  R"("args":{"place":"a.hpp:1","bytes":8}})"));
  CHECK(has(json, R"("tid":399,"name":"forward","cat":"phase","ts":500000,"dur":500000})"));
  CHECK(has(json, R"("tid":399,"name":"backward","cat":"phase","ts":1000000,"dur":500000})")); // to the end
  // One event a moment, always with all the series of the counter.
  CHECK(has(
      json,
      R"({"ph":"C","pid":3,"name":"device memory","ts":250000,"args":{"parameters":1000,"workspace":24}})"));
  CHECK(has(json, R"("name":"device memory","ts":750000,"args":{"parameters":1000,"workspace":0}})"));
  CHECK(has(json, R"("name":"device memory, total","ts":250000,"args":{"bytes":1024}})"));
  CHECK_FALSE(has(json, R"("args":{"parameters":1000}})"));
  CHECK_FALSE(has(json, "pinned"));
}

TEST_CASE("the same text in every locale, and an empty trace is one too") {
  pl::trace t;
  t.events = {{"long", {"x", 12345}, 0, 1234, pl::trace_kind::host, 0.0001234567, 12345.678, 1234567}};
  const std::string here = json_of(t);
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new grouped));
  CHECK(json_of(t) == here);
  std::locale::global(before);
  CHECK(has(here, R"("ts":123.457)"));
  CHECK(has(here, R"("name":"stream")")); // one without a name
  CHECK(json_of({}) == "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"title\":\"\"},\"traceEvents\":[\n]}\n");
}

TEST_CASE("a phase that is announced again goes on; a rank's phases end with the rank") {
  pl::trace t;
  t.phases = {{0, "a", 0}, {0, "a", 1}, {0, "b", 2}, {0, "a", 3}, {1, "a", 1}};
  t.memory = {{0, pl::memory_kind::device, pl::tag::other, 4.0, 1}};
  const std::string json = json_of(t);
  CHECK(has(json, R"("pid":1,"tid":199,"name":"a","cat":"phase","ts":0,"dur":2000000})"));
  CHECK(has(json, R"("pid":1,"tid":199,"name":"b","cat":"phase","ts":2000000,"dur":1000000})"));
  CHECK(has(json, R"("pid":1,"tid":199,"name":"a","cat":"phase","ts":3000000,"dur":1000000})"));
  CHECK(has(json, R"("pid":2,"tid":299,"name":"a","cat":"phase","ts":1000000,"dur":0})"));
  CHECK_FALSE(has(json, R"("name":"a","cat":"phase","ts":1000000,"dur":1000000)"));
}

TEST_CASE("events that touch still do after rounding") {
  pl::trace t;
  t.streams = {"host", "main"};
  double at = 0.1234567891;
  for (int i = 0; i < 100; ++i, at += 1.2345678e-7)
    t.events.push_back({"e", {}, 0, 1, pl::trace_kind::compute, at, at + 1.2345678e-7, 0});
  std::istringstream lines(json_of(t));
  long long end = -1;
  int seen = 0;
  const auto nanoseconds = [](const std::string& line, const std::string& field) {
    std::string number = line.substr(line.find(field) + field.size());
    number = number.substr(0, number.find_first_of(",}"));
    if (number.find('.') == std::string::npos) number += ".000";
    number.erase(number.find('.'), 1);
    return std::stoll(number);
  };
  for (std::string line; std::getline(lines, line);) {
    if (!has(line, "\"ph\":\"X\"")) continue;
    const long long ts = nanoseconds(line, "\"ts\":");
    if (end >= 0) CHECK(ts == end);
    end = ts + nanoseconds(line, "\"dur\":");
    ++seen;
  }
  CHECK(seen == 100);
}
