// SPDX-License-Identifier: Apache-2.0
//
// Trace files as other programs read them: the JSON parses whatever the names, and holds what was recorded.
#include <plateau/trace/chrome_trace.hpp>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>

namespace {

namespace pl = plateau;
using nlohmann::json;

json parsed(const pl::trace& t) {
  std::ostringstream to;
  pl::write_chrome_trace(to, t);
  return json::parse(to.str());
}

} // namespace

TEST_CASE("a trace of several ranks, read back") {
  pl::trace t;
  t.title = "title";
  t.streams = {"host", "main", "copy in"};
  for (int rank = 0; rank < 3; ++rank)
    for (int i = 0; i < 50; ++i) {
      const double begin = 0.001 * i + 0.0001 * rank;
      t.events.push_back({"gemm",
                          {"model.hpp", i},
                          rank,
                          1 + i % 2u,
                          pl::trace_kind::compute,
                          begin,
                          begin + 0.0005,
                          1024u * static_cast<unsigned>(i)});
      t.memory.push_back({rank, i % 2 == 0 ? pl::memory_kind::device : pl::memory_kind::pinned_host,
                          pl::tag::activations, begin, 1000u + static_cast<unsigned>(i)});
      if (i % 10 == 0) t.phases.push_back({rank, i % 20 == 0 ? "forward" : "backward", begin});
    }
  const json file = parsed(t);
  CHECK(file["otherData"]["title"] == "title");
  std::map<int, std::string> processes;
  std::map<std::pair<int, int>, std::string> threads;
  std::map<std::string, int> of_kind;
  std::set<std::string> counters;
  for (const json& e : file["traceEvents"]) {
    const std::string kind = e["ph"];
    ++of_kind[kind];
    if (e["name"] == "process_name") processes[e["pid"]] = e["args"]["name"];
    if (e["name"] == "thread_name") threads[{e["pid"], e["tid"]}] = e["args"]["name"];
    if (kind == "C") counters.insert(e["name"]);
    if (kind != "X" || e["cat"] == "phase") continue;
    CHECK(e["ts"].is_number());
    CHECK(e["dur"].get<double>() == doctest::Approx(500).epsilon(1e-6));
    CHECK(e["pid"] != e["tid"]);
  }
  CHECK(processes == std::map<int, std::string>{{1, "rank 0"}, {2, "rank 1"}, {3, "rank 2"}});
  CHECK(threads.size() == 3 * 3); // phases and two streams; nothing ran on the host
  CHECK(of_kind["X"] == 3 * (50 + 5));
  CHECK(of_kind["C"] == 3 * 2 * 50); // by tag, and the total
  CHECK(counters.size() == 4);

  const auto event = std::find_if(file["traceEvents"].begin(), file["traceEvents"].end(), [](const json& e) {
    return e["ph"] == "X" && e["pid"] == 2 && e.contains("args") &&
           e["args"].value("place", "") == "model.hpp:7";
  });
  REQUIRE(event != file["traceEvents"].end());
  CHECK(((*event)["ts"].get<double>() == doctest::Approx(7100).epsilon(1e-9)));
  CHECK((*event)["args"]["bytes"] == 7168);
  CHECK(threads[{2, (*event)["tid"]}] == "copy in");
}

TEST_CASE("names that JSON must escape come back as they were; what is not UTF-8 is replaced") {
  pl::trace t;
  const std::string odd = "a \"quoted\" \\ name,\n\ttab \x01 \x7f \xc2\xb5 </script>";
  t.title = odd;
  t.streams = {"host", odd};
  t.events = {{odd.c_str(), {odd.c_str(), 3}, 0, 1, pl::trace_kind::exchange, 0, 1, 5},
              {"bad \xff\xc3", {}, 0, 1, pl::trace_kind::exchange, 1, 2, 5}};
  t.phases = {{0, odd.c_str(), 0}};
  const json file = parsed(t);
  CHECK(file["otherData"]["title"] == odd);
  int found = 0;
  for (const json& e : file["traceEvents"]) {
    if (e["name"] == "thread_name" && e["args"]["name"] == odd) ++found;
    if (e["ph"] == "X" && e["name"] == odd) ++found;
    if (e.contains("args") && e["args"].value("place", "") == odd + ":3") ++found;
    if (e["name"] == "bad \xef\xbf\xbd\xef\xbf\xbd") ++found;
  }
  CHECK(found == 5); // stream, event, phase, place, and the bad one
}
