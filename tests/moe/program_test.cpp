// SPDX-License-Identifier: Apache-2.0
//
// The built moe_train as its user has it: a process with arguments, three ways to end, and files that appear
// whole or not at all.
#include "scratch_folder.hpp"
#include "support/well_formed_xml.hpp"

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

TEST_CASE(
    "--flatten vocabulary: the losses of the logits that it does not have, and a promise that is kept") {
  if (program_missing()) return;
  const workplace at;
  const auto losses_of = [&](const std::string& flags) {
    const ending end = at.train("--json " + at.file("results") + " " + flags);
    INFO(end.err);
    REQUIRE(end.status == 0);
    const json r = json::parse(read_file(at.file("results")));
    for (const json& peak : r.at("peaks"))
      if (peak.at("tag") == "vocabulary" && has(flags, "vocabulary"))
        CHECK(peak.at("promised") == peak.at("bytes"));
    return r.at("losses").get<std::vector<double>>();
  };
  const auto dense = losses_of("");
  for (const char* flags :
       {"", " --rotate weights --hop-rows 5 --vocabulary-tile 7x11", " --rotate activations --hop-rows 9",
        " --tied", ",dispatch --placement native"}) {
    CAPTURE(flags);
    const std::string tied = has(flags, "--tied") ? "--tied" : "";
    const auto expected = tied.empty() ? dense : losses_of(tied);
    const auto flat = losses_of(std::string("--flatten vocabulary") + flags);
    REQUIRE(flat.size() == expected.size());
    for (std::size_t i = 0; i < flat.size(); ++i)
      CHECK(std::fabs(flat[i] - expected[i]) <= 1e-4 * expected[i]);
  }
  const ending dry = at.train("--flatten vocabulary --routing balanced --dry-run --hardware h200");
  INFO(dry.err);
  CHECK(dry.status == 0);
}

TEST_CASE("--flatten dispatch: what it did, and a promise that is kept to the byte") {
  if (program_missing()) return;
  const workplace at;
  for (const char* flags : {"", " --dispatch-cap 16x8 --dispatch-slots 3 --foreign-experts 1 --dtype bf16",
                            " --placement native --routing all-to-one --dry-run --hardware h200"}) {
    CAPTURE(flags);
    const ending end = at.train("--flatten dispatch --json " + at.file("results") + flags);
    INFO(end.err);
    REQUIRE(end.status == 0);
    CHECK(has(end.out, "dispatch: capped at "));
    CHECK(has(end.out, "promised"));
    const json r = json::parse(read_file(at.file("results")));
    CHECK(r.at("config").at("flatten") == "dispatch");
    CHECK(r.at("dispatch").at("rounds").get<int>() >= r.at("dispatch").at("calls").get<int>());
    int promises = 0;
    for (const json& peak : r.at("peaks")) {
      const bool of_dispatch = peak.at("tag") == "dispatch";
      CHECK(peak.at("promised").is_null() != of_dispatch);
      if (of_dispatch) CHECK(peak.at("promised") == peak.at("bytes"));
      promises += of_dispatch ? 1 : 0;
    }
    CHECK(promises == 4); // of two ranks, on the device and pinned
  }
  const ending refused = at.train("--dispatch-cap 16");
  CHECK(refused.status == 2);
  CHECK(has(refused.err, "--dispatch-cap: expected only with --flatten dispatch"));
}

TEST_CASE(
    "--flatten checkpoint and optimizer: the losses of a plain run to the bit, and promises that are kept") {
  if (program_missing()) return;
  const workplace at;
  const auto run = [&](const std::string& flags) {
    const ending end = at.train("--json " + at.file("results") + " " + flags);
    INFO(end.err);
    REQUIRE(end.status == 0);
    return json::parse(read_file(at.file("results")));
  };
  const json plain = run("--accumulate 2");
  for (const char* flags :
       {"checkpoint --host-budget 0", "checkpoint --keep-every 2", "optimizer --bucket 64KiB --slots 1",
        "optimizer --update-on host --zero1", "checkpoint,optimizer --zero1 --host-budget 1MiB"}) {
    CAPTURE(flags);
    const json flat = run(std::string("--accumulate 2 --flatten ") + flags);
    CHECK(flat.at("losses") == plain.at("losses"));
    int promises = 0;
    for (const json& peak : flat.at("peaks"))
      if (!peak.at("promised").is_null()) {
        ++promises;
        CHECK(peak.at("bytes").get<std::uint64_t>() <= peak.at("promised").get<std::uint64_t>());
      }
    CHECK(promises > 0);
  }
  CHECK(run("--accumulate 2 --flatten all --zero1").at("config").at("flatten") ==
        "dispatch,vocabulary,checkpoint,optimizer");
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

TEST_CASE("--memory-limit: status 1, one line with rank, tag, bytes asked and held; nothing is written") {
  if (program_missing()) return;
  const workplace at;
  const std::size_t before = at.folder.entries();
  std::uint64_t most = 0;
  const json r = at.results("--stop-after 1");
  for (const json& total : r.at("peak_bytes_total"))
    if (total.at("space") == "device") most = std::max(most, total.at("bytes").get<std::uint64_t>());
  std::filesystem::remove(at.file("results"));
  const auto under = [&](std::uint64_t limit, const std::string& more) {
    return at.train("--stop-after 1 --memory-limit " + std::to_string(limit) + " --json " +
                    at.file("results") + more);
  };
  const ending end = under(most - 1, "");
  CHECK(end.status == 1);
  CAPTURE(end.err);
  for (const char* part : {"moe_train: rank ", " asked for ", " bytes of device memory", " of the limit of ",
                           "parameters ", " promised", " is furthest over its promise, by "})
    CHECK_MESSAGE(has(end.err, part), part);
  CHECK(one_line(end.err));
  CHECK(at.folder.entries() == before);
  // What no peak would make larger is not there either: refused before anything is made.
  const ending refused = under(20'000, " --save " + at.file("state"));
  CHECK(refused.status == 2);
  CAPTURE(refused.err);
  for (const char* part : {"--memory-limit 20000: a step needs ",
                           " before the peaks that are not flattened add ", ": parameters ", ", activations ",
                           "expected more than ", " with what these add, or --flatten all, for which "})
    CHECK_MESSAGE(has(refused.err, part), part);
  CHECK(!has(refused.err, "vocabulary "));
  CHECK(one_line(refused.err));
  CHECK(at.folder.entries() == before);
  CHECK(at.train("--stop-after 1 --memory-limit " + std::to_string(most)).status == 0);
}

TEST_CASE(
    "--memory-limit with --flatten all: the smallest that does is named, does, and a byte less does not") {
  if (program_missing()) return;
  const workplace at;
  const std::size_t before = at.folder.entries();
  const auto smallest = [&](const std::string& more) {
    const ending end = at.train("--flatten all --stop-after 1 --memory-limit 1 " + more);
    CAPTURE(end.err);
    CHECK(end.status == 2);
    CHECK(one_line(end.err));
    for (const char* part : {"--memory-limit 1: a step needs ", ", most of all in its ", ": parameters ",
                             ", gradients ", ", dispatch ", ", vocabulary ", ", checkpoint ", ", optimizer "})
      CHECK_MESSAGE(has(end.err, part), part);
    const std::string expected = "expected at least ";
    REQUIRE(has(end.err, expected));
    return std::stoull(end.err.substr(end.err.find(expected) + expected.size()));
  };
  const auto under = [&](std::uint64_t limit, const std::string& more) {
    return at.train("--flatten all --stop-after 1 --memory-limit " + std::to_string(limit) + " " + more)
        .status;
  };
  // A run, one that saves, which takes a buffer more, and dry runs of what may be set beside all four.
  const std::string dry = "--dry-run --hardware h200 --routing hot:0.9,1 ";
  std::uint64_t plain = 0;
  for (const std::string& more :
       {std::string{}, dry, "--save " + at.file("state"), dry + "--zero1 --accumulate 2 --tied",
        dry + "--update-on host --keep-every 2 --rotate weights --vocabulary-tile 7x9 --hop-rows 3",
        dry + "--host-budget 0 --slots 1 --dispatch-slots 1",
        dry + "--ranks 52 --expert-parallel 4 --batch 104 --placement native"}) { // more than the vocabulary
    CAPTURE(more);
    const std::uint64_t limit = smallest(more);
    CHECK(at.folder.entries() == before);
    CHECK(under(limit - 1, more) == 2);
    CHECK(at.folder.entries() == before);
    CHECK(under(limit, more) == 0);
    std::filesystem::remove(at.file("state"));
    if (plain == 0) plain = limit;
    if (more == dry) CHECK(limit == plain);
  }
}

TEST_CASE("--memory-limit with peaks that are not flattened: what is named counts what they add, and does") {
  if (program_missing()) return;
  const workplace at;
  const auto under = [&](std::uint64_t limit, const std::string& peaks) {
    return at.train("--stop-after 1 --flatten " + peaks + " --memory-limit " + std::to_string(limit));
  };
  for (const std::string peaks : {"dispatch", "dispatch,vocabulary,optimizer"}) {
    CAPTURE(peaks);
    const ending end = under(1, peaks);
    CAPTURE(end.err);
    CHECK(end.status == 2);
    const std::string expected = "expected at least ";
    REQUIRE(has(end.err, expected));
    const std::uint64_t limit = std::stoull(end.err.substr(end.err.find(expected) + expected.size()));
    CHECK(under(limit, peaks).status == 0);
    CHECK(under(limit - 1, peaks).status == 2);
    CHECK(has(under(limit - 1, peaks + " --compare").err, expected + std::to_string(limit)));
  }
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

TEST_CASE("exact bytes: --dry-run has the peaks of a real run, per rank, tag and space") {
  if (program_missing()) return;
  const workplace at;
  for (const char* shape :
       {"--routing hot:0.75,1+ragged --ranks 4 --expert-parallel 2 --accumulate 2 --balance-weight 0.1",
        "--routing zero-rank:1 --ranks 3 --expert-parallel 1 --dtype bf16 --tied --context 67 --layers 1"}) {
    CAPTURE(shape);
    const std::string flags = std::string(shape) + " --stop-after 1";
    const json real = at.results(flags), dry = at.results(flags + " --dry-run --hardware h200");
    CHECK(real.at("peaks").size() > 20);
    CHECK(dry.at("peaks") == real.at("peaks"));
    CHECK(dry.at("peak_bytes_total") == real.at("peak_bytes_total"));
    CHECK(dry.at("losses").empty());
    CHECK(dry.at("dry_run").at("step_seconds").get<double>() > 0);
    CHECK(dry.at("dry_run").at("order_found") == 0);
    CHECK_FALSE(real.contains("dry_run"));
    CHECK(dry.at("tokens_per_second").get<double>() > 0);
  }
}

TEST_CASE("exact bytes: --growth has the differences of real runs, tag by tag, for tokens and for layers") {
  if (program_missing()) return;
  const workplace at;
  const std::string shape = "--routing hot:0.75,1 --dtype bf16 --stop-after 1 ",
                    flat =
                        "--flatten all --dispatch-cap 8 --vocabulary-tile 8x16 --hop-rows 8 --bucket 1KiB ";
  const json growth = at.results(shape + flat + "--dry-run --hardware h200 --growth").at("growth");
  // Of the rank that holds most: of a tag, or of all together.
  const auto highest = [](const json& run, const std::string& tag) {
    std::int64_t most = 0;
    for (const json& peak : run.at(tag.empty() ? "peak_bytes_total" : "peaks"))
      if (peak.at("space") == "device" && (tag.empty() || peak.at("tag") == tag))
        most = std::max(most, peak.at("bytes").get<std::int64_t>());
    return most;
  };
  const json real[] = {at.results(shape + flat), at.results(shape)};
  const char* sides[] = {"added", "added_with_none"};
  struct doubling {
    const char *kind, *flags;
    int units;
  };
  for (const doubling& each : {doubling{"token", "--context 16 ", 24}, doubling{"layer", "--layers 4 ", 2}}) {
    CAPTURE(each.kind);
    const auto row =
        std::find_if(growth.begin(), growth.end(), [&](const json& r) { return r.at("kind") == each.kind; });
    REQUIRE(row != growth.end());
    CHECK(row->at("units") == each.units);
    const json twice[] = {at.results(shape + flat + each.flags), at.results(shape + each.flags)};
    for (int side = 0; side < 2; ++side) {
      CAPTURE(sides[side]);
      const json& added = row->at(sides[side]);
      CHECK(added.at("total").get<std::int64_t>() == highest(twice[side], "") - highest(real[side], ""));
      CHECK(added.at("tags").size() > 6);
      for (const auto& item : added.at("tags").items()) { // a binding could not be captured
        const std::string& tag = item.key();
        const json& bytes = item.value();
        CAPTURE(tag);
        CHECK(bytes.get<std::int64_t>() == highest(twice[side], tag) - highest(real[side], tag));
      }
    }
    CHECK(row->at("added").at("total") < row->at("added_with_none").at("total"));
  }
  // What there is no run of is said, and the rest is shown.
  const std::string counts = at.file("counts");
  REQUIRE(at.train(shape + "--record-routing " + counts).status == 0);
  const ending end =
      at.train("--routing counts:" + counts + " --stop-after 1 --dry-run --hardware h200 --growth --json " +
               at.file("results"));
  CAPTURE(end.err);
  REQUIRE(end.status == 0);
  CHECK(has(end.out, "  layer: there is no such run: "));
  for (const json& row : json::parse(read_file(at.file("results"))).at("growth")) {
    CAPTURE(row.dump());
    CHECK(row.at("impossible").is_string() == row.at("added").is_null());
    if (row.at("kind") == "layer") CHECK(has(end.out, row.at("impossible").get<std::string>()));
  }
  CHECK(has(end.out, "The next wall: "));
}

TEST_CASE("--backend cuda: a run on a GPU, or one line that says what is missing, and nothing written") {
  if (program_missing()) return;
  const workplace at;
  const std::size_t before = at.folder.entries();
  const ending end =
      at.train("--backend cuda --stop-after 2 --save " + at.file("state") + " --json " + at.file("results"));
  CAPTURE(end.err);
  if (end.status == 0) {
    const json r = json::parse(read_file(at.file("results")));
    CHECK(r.at("config").at("backend") == "cuda");
    CHECK(r.at("gpus").at("count").get<int>() > 0);
    CHECK(r.at("losses").front().get<double>() == doctest::Approx(std::log(50.0)).epsilon(0.1));
    return;
  }
  CHECK(one_line(end.err));
  CHECK(end.out.empty());
  CHECK(has(end.err, end.status == 2 ? "moe_train: --backend cuda: this program was built without CUDA"
                                     : "moe_train: --backend cuda: no CUDA device: "));
  CHECK((end.status == 2 || end.status == 1));
  CHECK(at.folder.entries() == before);
}

TEST_CASE("--dry-run --backend cuda needs no CUDA: cuBLAS's workspace is among the peaks") {
  if (program_missing()) return;
  const workplace at;
  const std::string flags = "--stop-after 1 --routing balanced --dry-run ";
  const json cuda = at.results(flags + "--backend cuda"), host = at.results(flags + "--hardware h200");
  CHECK(cuda.at("config").at("backend") == "cuda");
  CHECK(host.at("config").at("backend") == "host");
  CHECK(cuda.at("dry_run").at("hardware") == host.at("dry_run").at("hardware"));
  const auto workspace = [](const json& r) -> std::uint64_t {
    for (const json& peak : r.at("peaks"))
      if (peak.at("rank") == 0 && peak.at("tag") == "workspace" && peak.at("space") == "device")
        return peak.at("bytes");
    return 0;
  };
  CHECK(workspace(cuda) > workspace(host) + (std::uint64_t{32} << 20));
}

TEST_CASE("a dry run has the peaks of the run whose routing was recorded") {
  if (program_missing()) return;
  const workplace at;
  for (const bool parts : {false, true}) {
    CAPTURE(parts);
    const std::string flags =
        std::string("--ranks 4 --expert-parallel 4 --stop-after 1 --accumulate ") + (parts ? "2 " : "1 ");
    const json learned = at.results(flags + "--record-routing " + at.file("counts"));
    const std::string again = "--routing counts:" + at.file("counts"), dry_run = " --dry-run --hardware h200";
    const json forced = at.results(flags + again), dry = at.results(flags + again + dry_run);
    CHECK(dry.at("peaks") == forced.at("peaks"));
    CHECK(dry.at("peak_bytes_total") == forced.at("peak_bytes_total"));
    CHECK_FALSE(dry.at("peaks") == at.results(flags + "--routing balanced" + dry_run).at("peaks"));
    // The counts of a step do not say which of its micro-batches a row was in. And on the host, routing that
    // is forced needs room for its expert ids, which the router does without.
    if (parts) continue;
    REQUIRE(dry.at("peaks").size() == learned.at("peaks").size());
    for (std::size_t i = 0; i < dry.at("peaks").size(); ++i)
      if (dry.at("peaks")[i].at("space") == "device") CHECK(dry.at("peaks")[i] == learned.at("peaks")[i]);
  }
}

TEST_CASE("where routing differs from step to step, a run's peaks are the highest of its steps' dry runs") {
  if (program_missing()) return;
  const workplace at;
  const std::string flags = "--routing rotating:0.75,1 ";
  const json real = at.results(flags + "--stop-after 3");
  std::vector<json> steps;
  for (const char* step : {"1", "2", "3"})
    steps.push_back(at.results(flags + "--dry-run --hardware h200 --dry-step " + step));
  CHECK_FALSE(steps[0].at("peaks") == steps[1].at("peaks"));
  for (std::size_t i = 0; i < real.at("peaks").size(); ++i) {
    std::uint64_t most = 0;
    for (const json& each : steps) {
      CHECK(each.at("peaks")[i].at("tag") == real.at("peaks")[i].at("tag"));
      most = std::max(most, each.at("peaks")[i].at("bytes").get<std::uint64_t>());
    }
    CHECK(real.at("peaks")[i].at("bytes") == most);
  }
}

TEST_CASE("a dry run needs no corpus, says its time, and has the same output every time") {
  if (program_missing()) return;
  const scratch_folder folder;
  const std::string flags = "--dry-run --hardware h200 --ranks 64 --expert-parallel 8 --routing hot:0.95,1 "
                            "--perturb 0.1,7 --json - --batch 64 --context 1024 --hidden 1024 --dtype bf16";
  const ending first = run(folder, flags), again = run(folder, flags);
  CAPTURE(first.err);
  CHECK(first.status == 0);
  CHECK(has(first.err, "dry run: H200, 64 ranks"));
  CHECK(has(first.err, "predicted step: "));
  CHECK(has(first.err, "nothing found"));
  CHECK(has(first.err, "repeats experts within a token"));
  CHECK(first.out == again.out);
  const json r = json::parse(first.out);
  const ending unchecked = run(folder, flags + " --check-order off");
  CHECK(has(unchecked.err, "stream order: not checked"));
  CHECK(json::parse(unchecked.out).at("peaks") == r.at("peaks"));
}

TEST_CASE("--trace and --svg: both kinds of run leave files that others can read") {
  if (program_missing()) return;
  const workplace at;
  for (const std::string& kind :
       {std::string(" --stop-after 2"), std::string(" --dry-run --hardware h200")}) {
    CAPTURE(kind);
    const bool dry = kind.find("dry") != std::string::npos;
    const ending end =
        at.train("--routing balanced --trace " + at.file("trace") + " --svg " + at.file("memory.svg") + kind);
    CAPTURE(end.err);
    REQUIRE(end.status == 0);
    const json trace = json::parse(read_file(at.file("trace")));
    CHECK(has(trace.at("otherData").at("title").get<std::string>(), dry ? "predicted, H200" : "measured"));
    std::set<std::string> processes, kinds;
    bool product = false;
    for (const json& e : trace.at("traceEvents")) {
      kinds.insert(e.at("ph").get<std::string>());
      if (e.at("name") == "process_name") processes.insert(e.at("args").at("name").get<std::string>());
      product = product || e.at("name") == "grouped_gemm";
    }
    CHECK(processes.count("rank 0") == 1);
    CHECK(processes.count("rank 1") == (dry ? 0 : 1)); // balanced ranks are alike: one stands for both
    CHECK(kinds.count("X") == 1);
    CHECK(kinds.count("C") == 1);
    CHECK(product);
    const std::string svg = read_file(at.file("memory.svg"));
    CHECK(support::xml_error(svg) == "");
    CHECK(has(svg, dry ? "predicted, H200" : "measured"));
  }
}

TEST_CASE("a hardware of one's own: figures beside those of a preset change the time, not the peaks") {
  if (program_missing()) return;
  const workplace at;
  write_file(at.file("slow.json"), R"({"from": "h200", "name": "slow", "launch_seconds": 3e-4})");
  const std::string flags = "--dry-run --routing balanced --hardware ";
  const json fast = at.results(flags + "h200"), slow = at.results(flags + at.file("slow.json"));
  CHECK(slow.at("peaks") == fast.at("peaks"));
  CHECK(slow.at("tokens_per_second").get<double>() < 0.1 * fast.at("tokens_per_second").get<double>());
}

TEST_CASE("bad input of a dry run: status 2, one line that names the flag, or the file and its field") {
  if (program_missing()) return;
  const workplace at;
  write_file(at.file("no json"), "{\n\"from\": \"h200\",\n oops}");
  write_file(at.file("array"), "[1, 2]");
  write_file(at.file("field"), R"({"from": "h200", "warp_drives": 2})");
  write_file(at.file("figure"), R"({"from": "h200", "fp32_flops": -1})");
  write_file(at.file("missing"), R"({"name": "half", "fp32_flops": 1e12})");
  write_file(at.file("text"), R"({"from": "h200", "launch_seconds": "short"})");
  write_file(at.file("node"), R"({"from": "h200", "ranks_per_node": 0.5})");
  write_file(at.file("preset"), R"({"from": "abacus"})");
  write_file(at.file("counts"), "step,layer,rank,expert,rows\n0,0,0,0,-1\n");
  const std::size_t before = at.folder.entries();
  const std::string dry = "--dry-run --routing balanced ", on = dry + "--hardware '";
  struct wrong {
    std::string flags;
    std::vector<std::string> named;
  };
  const std::vector<wrong> cases{
      {"--dry-run", {"--dry-run", "--routing"}},
      {"--dry-run --routing learned", {"--dry-run", "--routing"}},
      {"--growth", {"--growth", "--dry-run"}},
      {on + at.file("no such file") + "'", {"no such file"}},
      {on + at.file("no json") + "'", {"no json: line 3"}},
      {on + at.file("array") + "'", {"array", "object"}},
      {on + at.file("field") + "'", {"field", "'warp_drives'"}},
      {on + at.file("figure") + "'", {"figure", "fp32_flops", "-1"}},
      {on + at.file("missing") + "'", {"missing", "half_flops"}},
      {on + at.file("text") + "'", {"text", "'launch_seconds'", "short"}},
      {on + at.file("node") + "'", {"node", "'ranks_per_node'", "0.5"}},
      {on + at.file("preset") + "'", {"preset", "'from'", "h200"}},
      {on + at.file(".") + "'", {"moe_test_"}},
      {dry + "--check-order maybe", {"--check-order", "maybe"}},
      {dry + "--perturb 2", {"--perturb", "'2'"}},
      {dry + "--perturb 0.5,x", {"--perturb", "'x'"}},
      {dry + "--perturb nan", {"--perturb", "nan"}},
      {dry + "--save " + at.file("new"), {"--save", "--dry-run"}},
      {dry + "--record-routing " + at.file("new"), {"--record-routing", "--dry-run"}},
      {dry + "--weights " + at.file("tokens"), {"--weights", "--dry-run"}},
      {dry + "--resume " + at.file("tokens"), {"--resume", "--dry-run"}},
      {dry + "--dry-step 0", {"--dry-step", "'0'"}},
      {"--dry-step 2", {"--dry-step", "--dry-run"}},
      {"--hardware h200", {"--hardware", "--dry-run"}},
      {"--check-order off", {"--check-order", "--dry-run"}},
      {"--perturb 0.1", {"--perturb", "--dry-run"}},
      {"--attention-tile 0x5", {"--attention-tile", "'0'"}},
      {"--attention-tile 64", {"--attention-tile", "QUERIESxKEYS"}},
      {"--attention-tile 4x-1", {"--attention-tile", "'-1'"}},
      {"--trace /no/such/folder/trace", {"/no/such/folder/trace"}},
      {"--svg /no/such/folder/svg", {"/no/such/folder/svg"}},
      {"--record-routing /no/such/folder/counts", {"/no/such/folder/counts"}},
      {"--trace " + at.file("new") + " --svg " + at.file("new"), {"--trace and --svg"}},
      {dry + "--trace " + at.file("tokens"), {"--trace and --data"}},
      {"--dry-run --routing zero-rank:2", {"zero-rank:2"}},
      {"--dry-run --routing hot:0.5,9", {"hot:0.5,9", "--experts"}},
      {"--dry-run --routing hot:0.5,4", {"hot:0.5,4", "fraction"}},
      {"--dry-run --routing 'counts:" + at.file("no such file") + "'", {"no such file"}},
      {"--dry-run --routing counts:" + at.file("counts"), {"counts", "-1"}},
      {"--dry-run --routing counts:" + at.file("tokens"), {"tokens"}},
  };
  for (const wrong& each : cases) {
    CAPTURE(each.flags);
    const ending end = at.train(each.flags);
    CAPTURE(end.err);
    CHECK(end.status == 2);
    CHECK(end.out.empty());
    CHECK(end.err.rfind("moe_train: ", 0) == 0);
    for (const std::string& part : each.named) CHECK_MESSAGE(has(end.err, part), part);
    CHECK(one_line(end.err));
    CHECK(at.folder.entries() == before);
  }
}

TEST_CASE("--compare: two runs by themselves, side by side") {
  if (program_missing()) return;
  const workplace at;
  const std::string flat = "--flatten all --dispatch-cap 16 --steps 5 ";
  json none = at.results("--steps 5"), all = at.results(flat), both = at.results(flat + "--compare");
  const json rows = both.at("comparison").at("peaks");
  REQUIRE(rows.size() == 6);
  for (const json& row : rows) {
    const auto highest = [&](const json& r, const char* field) {
      std::uint64_t most = 0;
      const bool total = row.at("peak") == "all together";
      for (const json& peak : r.at(total ? "peak_bytes_total" : "peaks"))
        if (peak.at("space") == row.at("space") && (total || peak.at("tag") == row.at("peak")))
          most = std::max(most, peak.at(field).get<std::uint64_t>());
      return most;
    };
    CAPTURE(row.dump());
    CHECK(row.at("unflattened") == highest(none, "bytes"));
    CHECK(row.at("flattened") == highest(all, "bytes"));
    CHECK(row.at("promised") == row.at("flattened")); // nothing that is not used
    if (row.at("peak") != "all together") CHECK(row.at("promised") == highest(all, "promised"));
  }
  double apart = 0;
  for (std::size_t i = 0; i < 5; ++i)
    apart =
        std::max(apart, std::fabs(all.at("losses")[i].get<double>() - none.at("losses")[i].get<double>()));
  CHECK(both.at("comparison").at("largest_loss_difference") == apart);
  CHECK(apart > 0);
  CHECK(apart < 1e-3);
  json first = both.at("unflattened");
  for (const char* other : {"comparison", "unflattened"}) both.erase(other);
  for (json* each : {&none, &all, &both, &first}) {
    each->erase("tokens_per_second");
    for (const char* asked : {"compare", "stop_after", "steps"}) each->at("config").erase(asked);
  }
  CHECK(first == none);
  CHECK(both == all);

  const ending end = at.train(flat + "--compare --save " + at.file("both"));
  CHECK(end.status == 0);
  CHECK(at.train(flat + "--save " + at.file("alone")).status == 0);
  CHECK(read_file(at.file("both")) == read_file(at.file("alone"))); // the flattened run's
  const std::string table = end.out.substr(end.out.rfind("device memory"));
  CHECK(std::count(table.begin(), table.end(), '\n') == 11);
  CHECK(has(table, "unflattened   flattened   promised\n"));
  CHECK(has(table, "tokens/s"));

  const ending dry = at.train(flat + "--compare --dry-run --routing balanced --hardware h200");
  CHECK(dry.status == 0);
  CHECK(has(dry.out, "\npredicted step "));
}

TEST_CASE("--parity: what a peak regroups differs by roundings, and what it only moves by nothing") {
  if (program_missing()) return;
  const workplace at;
  struct farthest {
    double token = 0, gradient = 0, last_gradient = 0;
  };
  const auto of = [&](const std::string& flags) {
    const json parity = at.results("--steps 4 --parity --flatten " + flags).at("parity");
    farthest f;
    REQUIRE(parity.at("steps").size() == 4);
    for (const json& step : parity.at("steps")) {
      CHECK(step.at("tokens") == 48);
      REQUIRE(step.at("relative_error").size() == parity.at("tensors").size());
      f.token = std::max(f.token, step.at("token_loss_largest").get<double>());
      f.last_gradient = 0;
      for (const json& error : step.at("relative_error"))
        f.last_gradient = std::max(f.last_gradient, error.get<double>());
      f.gradient = std::max(f.gradient, f.last_gradient);
      for (const json& norm : step.at("norm")) CHECK(norm.get<double>() > 0);
    }
    return f;
  };
  // Both are within 1e-5 of the exact loss and 1e-4 of each exact gradient, so twice that from each other.
  for (const char* flags : {"all", "vocabulary --tied --accumulate 2", "all --zero1 --ranks 4"}) {
    CAPTURE(flags);
    const farthest same = of(std::string(flags) + " --parity-weights same");
    CHECK(same.token > 0);
    CHECK(same.token <= 2e-5 * std::log(50.0));
    CHECK(same.gradient > 0);
    CHECK(same.gradient <= 2e-4);
    const farthest own = of(flags); // roundings grow
    CHECK(own.last_gradient > same.last_gradient);
  }
  const farthest moved = of("checkpoint,optimizer --keep-every 2");
  CHECK(moved.token == 0);
  CHECK(moved.gradient == 0);

  const ending told = at.train("--steps 3 --flatten all --parity --parity-tensors all");
  CHECK(told.status == 0);
  CHECK(has(told.out, "step 3/3  losses "));
  CHECK(has(told.out, "\n  model.layers.1.block_sparse_moe.experts.3.w2.weight "));
  CHECK(has(told.out, "\nfarthest apart: losses "));
  CHECK(has(told.out, "unflattened   flattened   promised\n"));
}
