// SPDX-License-Identifier: Apache-2.0
//
// moe_train as processes of an MPI job: bit for bit what it is on threads, from the losses to the files, and
// one line and one status when something is wrong on any of them.
#include "scratch_folder.hpp"
#include "support/well_formed_xml.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

using moe_test::has;
using moe_test::read_file;
using moe_test::scratch_folder;
using moe_test::write_file;
using nlohmann::json;

namespace {

// MOE_MPIRUN: the launcher with the flag that takes the number of processes, such as "/usr/bin/mpiexec -n".
#if defined(MOE_TRAIN_PATH) && defined(MOE_MPIRUN)
constexpr const char* program_path = MOE_TRAIN_PATH;
constexpr const char* launcher = MOE_MPIRUN;
#else
constexpr const char* program_path = nullptr;
constexpr const char* launcher = nullptr;
#endif

bool program_missing() {
  if (program_path == nullptr) {
    MESSAGE("moe_train with MPI is not part of this build: nothing is tested");
    return true;
  }
  // Open MPI would rather not run as root, nor more processes than there are cores; others know none of
  // these.
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  ::setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
  ::setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
  ::setenv("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe", 1);
  return false;
}

struct ending {
  int status = -1;
  std::string out, err;

  // What the program says of failing; the launcher adds words of its own.
  std::vector<std::string> complaints() const {
    std::vector<std::string> found;
    std::istringstream lines(err);
    for (std::string line; std::getline(lines, line);)
      if (line.rfind("moe_train: ", 0) == 0) found.push_back(line);
    return found;
  }
};

// A folder with a small corpus, and the flags of a small model on it.
struct workplace {
  scratch_folder folder;

  workplace() {
    constexpr int vocabulary = 50, tokens = 2000;
    std::vector<std::int32_t> header(256);
    header[0] = 20240520;
    header[1] = 1;
    header[2] = tokens;
    std::vector<std::uint16_t> body;
    for (int i = 0; i < tokens; ++i)
      body.push_back(static_cast<std::uint16_t>((i * i / 3 + i / 7) % vocabulary));
    std::string bytes(1024 + 2 * body.size(), '\0');
    std::memcpy(bytes.data(), header.data(), 1024);
    std::memcpy(bytes.data() + 1024, body.data(), 2 * body.size());
    write_file(file("tokens"), bytes);
  }
  std::string file(const std::string& name) const { return folder.file(name); }
  std::string flags(const std::string& more) const {
    return "--data " + file("tokens") +
           " --vocabulary 50 --layers 2 --hidden 16 --heads 4 --kv-heads 2 --experts 4 --top-k 2 "
           "--intermediate 12 --context 8 --batch 6 --steps 6 " +
           more;
  }
  ending run(const std::string& command) const {
    const std::string out = file("stdout"), err = file("stderr");
    const int raw = std::system((command + " > '" + out + "' 2> '" + err + "' < /dev/null").c_str());
    const ending end{WIFEXITED(raw) ? WEXITSTATUS(raw) : -1, read_file(out), read_file(err)};
    std::filesystem::remove(out);
    std::filesystem::remove(err);
    return end;
  }
  std::string program(const std::string& flags_of_it) const {
    return "'" + std::string(program_path) + "' " + flags_of_it;
  }
  ending threads(int ranks, const std::string& more) const {
    return run(program(flags(more + " --ranks " + std::to_string(ranks))));
  }
  ending processes(int ranks, const std::string& more) const {
    return run(std::string(launcher) + " " + std::to_string(ranks) + " " + program(flags(more)));
  }
  // Two processes, the second with flags of its own.
  ending unlike(const std::string& first, const std::string& second) const {
    return run(std::string(launcher) + " 1 " + program(flags(first)) + " : " +
               std::string(launcher).substr(std::string(launcher).find(' ')) + " 1 " +
               program(flags(second)));
  }
  json results(const ending& end) const {
    INFO(end.err);
    REQUIRE(end.status == 0);
    json all = json::parse(read_file(file("results")));
    all.erase("tokens_per_second");
    if (all.contains("unflattened")) all["unflattened"].erase("tokens_per_second");
    for (const char* written : {"save", "resume"}) all["config"].erase(written);
    return all;
  }
  json on_threads(int ranks, const std::string& more) const {
    return results(threads(ranks, more + " --json " + file("results")));
  }
  json on_processes(int ranks, const std::string& more) const {
    return results(processes(ranks, more + " --json " + file("results")));
  }
};

// The table of peaks and what follows it.
std::string table_of(const std::string& out) {
  return out.substr(std::min(out.find("device memory"), out.size()));
}

} // namespace

TEST_CASE("mpirun equals threads, bit for bit: losses, peaks, and all else but the time") {
  if (program_missing()) return;
  const workplace at;
  struct run {
    int ranks;
    const char* flags;
  };
  for (const run& each : {run{1, "--accumulate 2"}, run{2, "--tied --dtype bf16 --routing hot:0.75,1"},
                          run{4, "--accumulate 2 --expert-parallel 4 --balance-weight 0.1"},
                          run{4, "--dtype bf16 --routing zipf:1+ragged"},
                          run{3, "--flatten vocabulary --hop-rows 5 --accumulate 2"},
                          run{4, "--flatten vocabulary,dispatch --tied --dtype bf16 --rotate weights"},
                          run{2, "--flatten checkpoint,optimizer --keep-every 2 --accumulate 2"},
                          run{4, "--flatten all --zero1 --expert-parallel 2"},
                          run{4, "--flatten all --sequence-parallel 4 --key-hop-rows 2 --expert-parallel 2"},
                          run{2, "--flatten all --compare"},
                          run{4, "--flatten all --parity --parity-weights same --accumulate 2"}}) {
    CAPTURE(each.flags);
    const json threads = at.on_threads(each.ranks, each.flags);
    CHECK(threads.at("losses").size() == 6);
    CHECK(threads.at("config").at("ranks") == each.ranks);
    CHECK(at.on_processes(each.ranks, each.flags) == threads);
  }
  const ending threads = at.threads(2, ""), processes = at.processes(2, "");
  CHECK(has(table_of(threads.out), "all together"));
  CHECK(table_of(processes.out) == table_of(threads.out));
  CHECK(processes.err.empty());
}

TEST_CASE("so it does with every combination of peaks, to the bytes of the state that it saves") {
  if (program_missing()) return;
  const workplace at;
  for (unsigned combination = 0; combination < 16; ++combination) {
    std::string flags;
    for (unsigned i = 0; i < 4; ++i)
      if ((combination >> i & 1) != 0)
        flags += std::string(flags.empty() ? "" : ",") +
                 std::array{"dispatch", "vocabulary", "checkpoint", "optimizer"}[i];
    flags = "--stop-after 2 --flatten " + (flags.empty() ? "none" : flags);
    if (combination % 2 == 0) flags += " --tied";
    if (combination % 3 == 0) flags += " --accumulate 2";
    if (combination >= 8) flags += " --zero1";
    CAPTURE(flags);
    const json threads = at.on_threads(2, flags + " --save " + at.file("threads"));
    CHECK(at.on_processes(2, flags + " --save " + at.file("processes")) == threads);
    CHECK(read_file(at.file("threads")).size() > 1000);
    CHECK(read_file(at.file("processes")) == read_file(at.file("threads")));
  }
}

TEST_CASE("a state saved by threads is gone on with by processes, and the other way round") {
  if (program_missing()) return;
  const workplace at;
  const json whole = at.on_threads(4, "--save " + at.file("whole"));
  const std::string first = "--stop-after 3 --save ", second = "--resume ";
  const json half = at.on_threads(4, first + at.file("threads"));
  CHECK(at.on_processes(4, first + at.file("processes")) == half);
  CHECK(read_file(at.file("processes")) == read_file(at.file("threads")));
  const std::string end = " --save " + at.file("end");
  for (const bool by_threads : {true, false}) {
    const std::string on = second + at.file(by_threads ? "processes" : "threads") + end;
    const json rest = by_threads ? at.on_threads(4, on) : at.on_processes(4, on);
    CHECK(rest.at("first_step") == 3);
    json joined = half.at("losses");
    for (const json& loss : rest.at("losses")) joined.push_back(loss);
    CHECK(joined == whole.at("losses"));
    CHECK(rest.at("loss_heldout") == whole.at("loss_heldout"));
    CHECK(read_file(at.file("end")) == read_file(at.file("whole")));
    std::filesystem::remove(at.file("end"));
  }
  const std::string weights = "--weights " + at.file("threads") + " --stop-after 1";
  CHECK(at.on_processes(2, weights).at("losses") == at.on_threads(2, weights).at("losses"));
}

TEST_CASE("--trace, --svg and --record-routing hold the same from processes as from threads") {
  if (program_missing()) return;
  const workplace at;
  const auto files = " --stop-after 2 --trace " + at.file("trace") + " --svg " + at.file("svg") +
                     " --record-routing " + at.file("routes");
  struct left {
    std::string title, routes;
    std::map<std::tuple<int, std::string, std::string>, int> events; // by process, name, category
    std::set<std::tuple<int, int, std::string>> lanes;
  };
  const auto left_by = [&](const ending& end) {
    INFO(end.err);
    REQUIRE(end.status == 0);
    left l;
    l.routes = read_file(at.file("routes"));
    const json trace = json::parse(read_file(at.file("trace")));
    l.title = trace.at("otherData").at("title");
    for (const json& e : trace.at("traceEvents")) {
      if (e.at("ph") != "M") CHECK(e.at("ts").get<double>() >= 0);
      ++l.events[{e.at("pid").get<int>(), e.at("name").get<std::string>(), e.value("cat", "")}];
      if (e.at("name") == "thread_name")
        l.lanes.insert(
            {e.at("pid").get<int>(), e.at("tid").get<int>(), e.at("args").at("name").get<std::string>()});
    }
    CHECK(support::xml_error(read_file(at.file("svg"))) == "");
    for (const char* name : {"routes", "trace", "svg"}) std::filesystem::remove(at.file(name));
    return l;
  };
  const left threads = left_by(at.threads(4, files)), processes = left_by(at.processes(4, files));
  CHECK(processes.title == threads.title);
  CHECK(processes.routes == threads.routes);
  CHECK(has(threads.routes, "1,1,3,"));
  CHECK(processes.lanes == threads.lanes);
  CHECK((processes.events == threads.events));
  CHECK(threads.events.size() > 100);
}

TEST_CASE("bad input: status 2, and one line whatever the number of processes; nothing is written") {
  if (program_missing()) return;
  const workplace at;
  const std::size_t before = at.folder.entries();
  const std::string saving = "--save " + at.file("state") + " --json " + at.file("results") + " ";
  const auto check_said = [&](const ending& end, const std::string& part) {
    CAPTURE(part);
    CAPTURE(end.err);
    CHECK(end.status == 2);
    REQUIRE(end.complaints().size() == 1);
    CHECK(has(end.complaints().front(), part));
    CHECK(end.out.empty());
    CHECK(at.folder.entries() == before);
  };
  check_said(at.processes(2, saving + "--ranks 4"), "--ranks 4: 2 processes were started");
  check_said(at.processes(2, saving + "--layers 0"), "--layers: expected");
  check_said(at.processes(2, saving + "--data " + at.file("none")), "moe_train: " + at.file("none"));
  check_said(at.processes(2, "--save /no/such/folder/state"), "moe_train: /no/such/folder/state");
  check_said(at.unlike(saving, saving + "--seed 4"), "--seed: rank 1 has 4, rank 0 has 1");
  check_said(at.unlike(saving, ""), "--save: rank 1 has none, rank 0 has a file");
  check_said(at.unlike(saving, saving + "--no-such-flag"), "rank 1: --no-such-flag: unknown");
  std::string other = read_file(at.file("tokens"));
  other[1024] = static_cast<char>(other[1024] ^ 1);
  scratch_folder elsewhere;
  write_file(elsewhere.file("tokens"), other);
  check_said(at.unlike(saving, saving + "--data " + elsewhere.file("tokens")),
             "the text's digest (--data): rank 1");
}

TEST_CASE("P1: a rank over its limit of memory ends all with the cause, at the start, when it reserves and "
          "in a step") {
  if (program_missing()) return;
  const workplace at;
  std::uint64_t most = 0;
  const json whole = at.on_processes(2, "--stop-after 1");
  for (const json& total : whole.at("peak_bytes_total"))
    if (total.at("rank") == 1 && total.at("space") == "device") most = total.at("bytes").get<std::uint64_t>();
  const auto with_limit = [&](std::uint64_t bytes) {
    return at.unlike("--stop-after 1", "--stop-after 1 --memory-limit " + std::to_string(bytes));
  };
  // Below what is promised, which is known before anything is reserved, the shape is named with the least.
  const ending refused = with_limit(50'000);
  CAPTURE(refused.err);
  CHECK(refused.status == 2);
  REQUIRE(refused.complaints().size() == 1);
  const std::string line = refused.complaints().front(), needs = ": a step needs ";
  CHECK(has(line, "moe_train: rank 1: --memory-limit 50000" + needs));
  CHECK(has(line, ": parameters "));
  REQUIRE(has(line, needs));
  const std::uint64_t least = std::stoull(line.substr(line.find(needs) + needs.size()));
  CHECK(with_limit(least - 1).status == 2);
  for (const std::uint64_t limit : {least, most - 1}) {
    const ending end = with_limit(limit);
    CAPTURE(end.err);
    CHECK(end.status == 1);
    REQUIRE(end.complaints().size() == 1);
    for (const char* part : {"moe_train: rank 1 failed", " asked for ", " bytes of device memory",
                             " of the limit of ", "parameters "})
      CHECK_MESSAGE(has(end.complaints().front(), part), part);
  }
  CHECK(with_limit(most).status == 0); // each machine has its own
}

TEST_CASE("results that cannot be written: status 1, and one line") {
  if (program_missing()) return;
  const workplace at;
  const ending end = at.processes(2, "--stop-after 1 --json /dev/full");
  CHECK(end.status == 1);
  CAPTURE(end.err);
  REQUIRE(end.complaints().size() == 1);
  CHECK(has(end.complaints().front(), "/dev/full"));
}

TEST_CASE("help and dry runs are said once") {
  if (program_missing()) return;
  const workplace at;
  const auto count = [](const std::string& text, const std::string& part) {
    int found = 0;
    for (std::size_t i = text.find(part); i != std::string::npos; i = text.find(part, i + 1)) ++found;
    return found;
  };
  const ending help = at.processes(2, "--help");
  CHECK(help.status == 0);
  CHECK(count(help.out, "--expert-parallel") == 1);
  const ending dry = at.processes(2, "--dry-run --hardware h200 --routing balanced");
  CHECK(dry.status == 0);
  CHECK(count(dry.out, "dry run: H200, 2 ranks") == 1);
}
