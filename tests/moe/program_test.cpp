// SPDX-License-Identifier: Apache-2.0
//
// The built moe_train as its user has it: a process with arguments, three ways to end, and files that appear
// whole or not at all.
#include "scratch_folder.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

using moe_test::has;
using moe_test::read_file;
using moe_test::scratch_folder;
using moe_test::write_file;
using nlohmann::json;

namespace {

#if defined(MOE_TRAIN_PATH)
constexpr const char* program_path = MOE_TRAIN_PATH;
#else
constexpr const char* program_path = nullptr;
#endif

bool program_missing() {
  if (program_path != nullptr) return false;
  MESSAGE("moe_train is not part of this build: nothing is tested");
  return true;
}

struct ending {
  int status = -1;
  std::string out, err;
};

// `device`: where standard output goes instead of into the ending.
ending run(const scratch_folder& folder, const std::string& arguments, const std::string& device = {}) {
  const std::string out = folder.file("stdout"), err = folder.file("stderr");
  const std::string command = std::string("'") + program_path + "' " + arguments + " > '" +
                              (device.empty() ? out : device) + "' 2> '" + err + "' < /dev/null";
  const int raw = std::system(command.c_str());
  ending end{WIFEXITED(raw) ? WEXITSTATUS(raw) : -1, device.empty() ? read_file(out) : "", read_file(err)};
  std::filesystem::remove(out);
  std::filesystem::remove(err);
  return end;
}

// A text that repeats itself, as an llm.c file of 16-bit tokens below `vocabulary`.
std::string token_file(int vocabulary, int tokens) {
  std::vector<std::uint16_t> body;
  for (int i = 0; i < tokens; ++i)
    body.push_back(static_cast<std::uint16_t>((i * i / 3 + i / 7) % vocabulary));
  std::vector<std::int32_t> header(256);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = tokens;
  std::string bytes(1024 + 2 * body.size(), '\0');
  std::memcpy(bytes.data(), header.data(), 1024);
  std::memcpy(bytes.data() + 1024, body.data(), 2 * body.size());
  return bytes;
}

// A folder with a small corpus, and the flags of a small model on it.
struct workplace {
  scratch_folder folder;

  workplace() { write_file(folder.file("tokens"), token_file(50, 2000)); }
  std::string file(const std::string& name) const { return folder.file(name); }
  std::string flags(const std::string& more) const {
    return "--data " + file("tokens") +
           " --vocabulary 50 --layers 2 --hidden 16 --heads 4 --kv-heads 2 --experts 4 --top-k 2 "
           "--intermediate 12 --context 8 --batch 6 --ranks 2 --expert-parallel 2 --steps 20 " +
           more;
  }
  ending train(const std::string& more) const { return run(folder, flags(more)); }
  json results(const std::string& more) const {
    const ending end = train(more + " --json " + file("results"));
    INFO(end.err);
    REQUIRE(end.status == 0);
    return json::parse(read_file(file("results")));
  }
};

bool one_line(const std::string& text) { return text.find('\n') == text.size() - 1; }

} // namespace

TEST_CASE("help, and a line that is no command") {
  if (program_missing()) return;
  const scratch_folder folder;
  const ending help = run(folder, "--help");
  CHECK(help.status == 0);
  CHECK(help.err.empty());
  CHECK(has(help.out, "--expert-parallel"));
  const ending wrong = run(folder, "--layer 3");
  CHECK(wrong.status == 2);
  CHECK(wrong.out.empty());
  CHECK(has(wrong.err, "--layer"));
  CHECK(one_line(wrong.err));
}

TEST_CASE("a run says what it did, and its JSON holds every field") {
  if (program_missing()) return;
  const workplace at;
  const ending end = at.train("--json " + at.file("results") + " --save " + at.file("state"));
  INFO(end.err);
  REQUIRE(end.status == 0);
  CHECK(has(end.out, "unigram entropy"));
  CHECK(has(end.out, "held-out"));
  CHECK(has(end.out, "vocabulary"));
  const json r = json::parse(read_file(at.file("results")));
  CHECK(r.at("config").at("hidden") == 16);
  CHECK(r.at("config").at("vocabulary") == 50);
  CHECK(r.at("config").at("flatten") == "none");
  REQUIRE(r.at("losses").size() == 20);
  for (const json& loss : r.at("losses")) CHECK(std::isfinite(loss.get<double>()));
  CHECK(r.at("loss_first") == r.at("losses").front());
  CHECK(r.at("loss_last") == r.at("losses").back());
  CHECK(r.at("losses").front().get<double>() == doctest::Approx(std::log(50.0)).epsilon(0.1));
  CHECK(r.at("loss_last").get<double>() < r.at("loss_first").get<double>());
  CHECK(std::isfinite(r.at("loss_heldout").get<double>()));
  CHECK(r.at("tokens_per_second").get<double>() > 0);
  std::set<std::string> tags;
  for (const json& peak : r.at("peaks")) {
    CHECK((peak.at("rank") == 0 || peak.at("rank") == 1));
    CHECK((peak.at("space") == "device" || peak.at("space") == "host"));
    CHECK(peak.at("bytes").get<std::uint64_t>() > 0);
    CHECK(peak.at("promised").is_null());
    CHECK(peak.at("held_at_peak").at(peak.at("tag").get<std::string>()) == peak.at("bytes"));
    CHECK(peak.at("phase").is_string());
    if (peak.at("space") == "device") tags.insert(peak.at("tag").get<std::string>());
  }
  for (const char* tag :
       {"parameters", "gradients", "activations", "dispatch", "vocabulary", "checkpoint", "optimizer"})
    CHECK_MESSAGE(tags.count(tag) == 1, tag);
  REQUIRE(r.at("peak_bytes_total").size() == 4); // two ranks, two spaces
  for (const json& total : r.at("peak_bytes_total")) {
    std::uint64_t sum = 0;
    for (const auto& [tag, bytes] : total.at("held_at_peak").items()) sum += bytes.get<std::uint64_t>();
    CHECK(sum == total.at("bytes").get<std::uint64_t>());
  }
}

TEST_CASE("--json -: the results alone on standard output, what is for people on the other") {
  if (program_missing()) return;
  const workplace at;
  const ending end = at.train("--steps 2 --json -");
  CHECK(end.status == 0);
  CHECK(json::parse(end.out).at("losses").size() == 2);
  CHECK(has(end.err, "unigram entropy"));
}

TEST_CASE("a run whose output could not be written has failed") {
  if (program_missing()) return;
  const workplace at;
  const ending end = run(at.folder, at.flags("--steps 1"), "/dev/full");
  CHECK(end.status == 1);
  CHECK(one_line(end.err));
}

TEST_CASE("20 steps are 10, saved, and 10 resumed, to the last digit and the last byte") {
  if (program_missing()) return;
  const workplace at;
  for (const std::string& kind : {std::string("--dtype fp32"), std::string("--dtype bf16 --accumulate 2")}) {
    CAPTURE(kind);
    const json whole = at.results(kind + " --save " + at.file("whole"));
    const json half = at.results(kind + " --stop-after 10 --save " + at.file("half"));
    const json rest = at.results(kind + " --resume " + at.file("half") + " --save " + at.file("resumed"));
    CHECK(rest.at("first_step") == 10);
    json joined = half.at("losses");
    for (const json& loss : rest.at("losses")) joined.push_back(loss);
    CHECK(joined == whole.at("losses"));
    CHECK(rest.at("loss_heldout") == whole.at("loss_heldout"));
    CHECK(read_file(at.file("whole")) == read_file(at.file("resumed")));
    CHECK(whole.at("losses") == at.results(kind).at("losses")); // and again
  }
  // Other ranks may go on with it; another run may not.
  const json others = at.results("--stop-after 11 --ranks 3 --expert-parallel 1 --resume " + at.file("half") +
                                 " --dtype bf16 --accumulate 2");
  CHECK(others.at("losses").size() == 1);
  const ending other = at.train("--seed 2 --dtype bf16 --accumulate 2 --resume " + at.file("half"));
  CHECK(other.status == 2);
  CHECK(has(other.err, at.file("half")));
  CHECK(one_line(other.err));
}

TEST_CASE("any number of ranks starts from the same weights") {
  if (program_missing()) return;
  const workplace at;
  const double one =
      at.results("--ranks 1 --expert-parallel 1 --stop-after 2 --save " + at.file("state")).at("loss_first");
  for (const char* ranks : {"--ranks 2", "--ranks 3 --expert-parallel 1", "--ranks 4 --expert-parallel 4"})
    CHECK(at.results(std::string(ranks) + " --stop-after 1").at("loss_first").get<double>() ==
          doctest::Approx(one).epsilon(1e-6));
  const json begun = at.results("--ranks 4 --expert-parallel 4 --stop-after 1 --weights " + at.file("state"));
  CHECK(begun.at("first_step") == 0);
  CHECK(begun.at("loss_first").get<double>() < one);
}

TEST_CASE("forced routing shows in the dispatch peaks, and sets off the alarm") {
  if (program_missing()) return;
  const workplace at;
  const auto dispatch_of = [&](const std::string& scenario, int rank) -> std::uint64_t {
    const json result = at.results("--stop-after 2 --routing " + scenario);
    for (const json& peak : result.at("peaks"))
      if (peak.at("rank") == rank && peak.at("tag") == "dispatch" && peak.at("space") == "device")
        return peak.at("bytes");
    return 0;
  };
  CHECK(dispatch_of("all-to-one", 0) > dispatch_of("balanced", 0));
  CHECK(dispatch_of("all-to-one", 1) < dispatch_of("balanced", 1));
  CHECK(dispatch_of("hot:0.75,2", 0) > dispatch_of("hot:0.5,2", 0));
  CHECK(has(at.train("--stop-after 1 --top-k 1 --routing all-to-one").out, "alarm"));
}

TEST_CASE("--memory-limit: status 1, one line with rank, tag, bytes asked and held; nothing is saved") {
  if (program_missing()) return;
  const workplace at;
  const std::size_t before = at.folder.entries();
  std::uint64_t most = 0;
  const json r = at.results("--stop-after 1");
  for (const json& total : r.at("peak_bytes_total"))
    if (total.at("space") == "device") most = std::max(most, total.at("bytes").get<std::uint64_t>());
  std::filesystem::remove(at.file("results"));
  for (const std::uint64_t limit : {std::uint64_t{100'000}, most - 1}) {
    const ending end = at.train("--stop-after 1 --memory-limit " + std::to_string(limit) + " --save " +
                                at.file("state") + " --json " + at.file("results"));
    CHECK(end.status == 1);
    CAPTURE(end.err);
    for (const char* part :
         {"moe_train: rank ", " asked for ", " bytes of device memory", " of the limit of ", "parameters "})
      CHECK_MESSAGE(has(end.err, part), part);
    CHECK(one_line(end.err));
    CHECK(at.folder.entries() == before);
  }
  CHECK(at.train("--stop-after 1 --memory-limit " + std::to_string(most)).status == 0);
}

TEST_CASE("bad input: status 2, one line that names the file or the flag, nothing written") {
  if (program_missing()) return;
  const workplace at;
  REQUIRE(at.train("--stop-after 1 --save " + at.file("state")).status == 0);
  const std::string state = read_file(at.file("state")), tokens = read_file(at.file("tokens"));
  std::string version = tokens, beyond = tokens, out_of_file = state;
  version[4] = 9;
  beyond[1024 + 200] = 50;
  write_file(at.file("empty"), "");
  write_file(at.file("cut"), tokens.substr(0, tokens.size() - 1));
  write_file(at.file("version"), version);
  write_file(at.file("beyond"), beyond);
  write_file(at.file("short"), token_file(50, 17));
  write_file(at.file("plain"), "plain text, and no tokens");
  write_file(at.file("state cut"), state.substr(0, state.size() / 2));
  write_file(at.file("state header"), std::string(8, '\x7f') + state.substr(8));
  if (const auto found = out_of_file.find("data_offsets\":["); found != std::string::npos)
    out_of_file.replace(out_of_file.find('[', found) + 1, 1, "9");
  write_file(at.file("state offsets"), out_of_file);
  const std::size_t before = at.folder.entries();

  struct wrong {
    std::string flags, named;
  };
  const std::vector<wrong> cases{
      {"--data '" + at.file("no such file") + "'", "no such file"},
      {"--data " + at.file("."), "moe_test_"},
      {"--data " + at.file("empty") + " --vocabulary 65536", "empty"},
      {"--data " + at.file("cut"), "cut"},
      {"--data " + at.file("version"), "version"},
      {"--data " + at.file("beyond"), "token 50"},
      {"--data " + at.file("short"), "short"},
      {"--data " + at.file("plain"), "plain"},
      {"--weights '" + at.file("no such file") + "'", "no such file"},
      {"--weights " + at.file("empty"), "empty"},
      {"--weights " + at.file("tokens"), "tokens"},
      {"--weights '" + at.file("state cut") + "'", "state cut"},
      {"--weights '" + at.file("state header") + "'", "state header"},
      {"--weights '" + at.file("state offsets") + "'", "state offsets"},
      {"--weights " + at.file("state") + " --hidden 32", "shape"},
      {"--weights " + at.file("state") + " --layers 3", "model.layers.2"},
      {"--weights " + at.file("state") + " --layers 1", "model.layers.1"},
      {"--weights " + at.file("state") + " --tied", "lm_head.weight"},
      {"--weights " + at.file("state") + " --save " + at.file("./state"), "--save and --weights"},
      {"--json " + at.file("tokens"), "--json and --data"},
      {"--resume " + at.file("state") + " --context 9", "--context 9"},
      {"--resume " + at.file("tokens"), "tokens"},
      {"--save -", "--save -"},
      {"--vocabulary 16777216 --hidden 1048576 --heads 4", "--vocabulary"},
      {"--heads 3", "--heads"},
      {"--top-k 5", "--top-k"},
      {"--top-k 17 --experts 32", "--top-k"},
      {"--context 16777216 --batch 16777216", "activations"},
      {"--experts 3", "--expert"},
      {"--batch 1 --accumulate 2", "--accumulate"},
      {"--dtype fp8", "--dtype"},
      {"--routing sideways", "--routing"},
      {"--flatten sideways", "--flatten"},
      {"--memory-limit lots", "--memory-limit"},
      {"--save /no/such/folder/state", "/no/such/folder/state"},
      {"--json /no/such/folder/results", "/no/such/folder/results"},
      {"--no-such-flag", "--no-such-flag"},
      {"--steps", "--steps"},
  };
  for (const wrong& each : cases) {
    CAPTURE(each.flags);
    const std::string saving =
        " --save '" + at.file("new state") + "' --json '" + at.file("new results") + "' ";
    const ending end = at.train(saving + each.flags);
    CAPTURE(end.err);
    CHECK(end.status == 2);
    CHECK(end.out.empty());
    CHECK(end.err.rfind("moe_train: ", 0) == 0);
    CHECK(has(end.err, each.named));
    CHECK(one_line(end.err));
    CHECK(at.folder.entries() == before);
  }
}
