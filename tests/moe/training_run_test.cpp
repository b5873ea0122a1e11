// SPDX-License-Identifier: Apache-2.0
//
// A run as a whole, in process: what was trained is saved whatever the evaluation does, what moves the state
// is reserved before the first step, skipped steps are told, and every peak says when it was.
#include "host_ranks.hpp"
#include "scratch_folder.hpp"

#include <plateau/host/backend.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

using moe_test::has;
using moe_test::read_file;
using moe_test::scratch_folder;
using moe_test::write_file;

namespace {

// The host backend, in which the losses of an evaluation cannot be fetched: those after the steps' own.
struct evaluation_fails : plateau::host_backend {
  static constexpr int steps = 3;

  using plateau::host_backend::host_backend;

  template <class From, class Into, class... Dry>
  void fetch(const event& ready, From from, Into&& into, const char* label, Dry... dry) {
    if (std::string_view{label} == "loss sums" && ++fetched_ > steps)
      throw plateau::backend_error("injected: no losses");
    plateau::host_backend::fetch(ready, from, std::forward<Into>(into), label, dry...);
  }

 private:
  int fetched_ = 0;
};

struct workplace {
  scratch_folder folder;
  moe::corpus text;
  std::ostringstream out;

  workplace() {
    text.name = "numbers";
    text.vocabulary = 23;
    for (int i = 0; i < 600; ++i) text.tokens.push_back((i * i / 3 + i / 7) % 23);
  }
  moe::options config() const {
    moe::options o;
    o.ranks = 4;
    o.layers = 2;
    o.hidden = 12;
    o.heads = 2;
    o.kv_heads = 1;
    o.experts = 4;
    o.intermediate = 6;
    o.context = 8;
    o.batch = 5;
    o.steps = evaluation_fails::steps;
    o.save = folder.file("state");
    return o;
  }
  template <class Backend = plateau::host_backend>
  moe::run_result train(const moe::options& o, const moe::safetensors_reader* initial = nullptr) {
    moe::training_job job;
    job.config = o;
    job.text = &text;
    job.initial = initial;
    job.out = &out;
    return moe::run_on_host<Backend, float>(job).value();
  }
};

} // namespace

TEST_CASE("what was trained is not lost when the evaluation fails") {
  workplace at;
  const moe::options o = at.config();
  at.train(o);
  const std::string expected = read_file(o.save);
  REQUIRE_FALSE(expected.empty());
  std::filesystem::remove(o.save);
  std::string message;
  try {
    at.train<evaluation_fails>(o);
  } catch (const plateau::error& error) {
    message = error.what();
  }
  CHECK(has(message, "injected: no losses"));
  CHECK(read_file(o.save) == expected);
}

TEST_CASE("peaks: the four always, each with its time, and what moves the state among them from the start") {
  workplace at;
  moe::options o = at.config();
  o.layers = 1;
  o.routing = moe::parse_routing("--routing", "all-to-one");
  const auto of = [](const moe::run_result& r, int rank, const char* tag, const char* space) {
    const auto found = std::find_if(r.peaks.begin(), r.peaks.end(), [&](const moe::peak_record& p) {
      return p.rank == rank && p.tag == tag && p.space == space;
    });
    return found == r.peaks.end() ? moe::peak_record{} : *found;
  };
  constexpr std::uint64_t piece = sizeof(float) << 18;
  const moe::run_result saved = at.train(o);
  for (int rank = 0; rank < o.ranks; ++rank) {
    for (const auto& row : moe::flatten_rows) {
      const auto peak = of(saved, rank, std::string{row.name}.c_str(), "device");
      CHECK(peak.tag == row.name);
      CHECK(peak.held_at_peak.at(peak.tag) == peak.bytes);
    }
    CHECK(of(saved, rank, "other", "host").bytes / piece == (rank == 0 ? 1 : 0));
    CHECK(of(saved, rank, "other", "device").bytes / piece == (rank == 0 ? 1 : 0));
  }
  // Two experts of four, on the even ranks.
  CHECK(of(saved, 1, "dispatch", "device").bytes < of(saved, 0, "dispatch", "device").bytes);
  for (const auto* peaks : {&saved.peaks, &saved.totals})
    for (const moe::peak_record& peak : *peaks) CHECK((peak.bytes == 0 || !peak.phase.empty()));
  CHECK(of(saved, 0, "other", "host").phase == "construction");

  const moe::safetensors_reader state(o.save);
  o.save.clear();
  const moe::run_result begun = at.train(o, &state);
  for (int rank = 0; rank < o.ranks; ++rank) {
    CHECK(of(begun, rank, "other", "host").bytes / piece == 1);
    CHECK(of(begun, rank, "other", "device").bytes / piece == 0);
  }
  const moe::run_result plain = at.train(o);
  for (int rank = 0; rank < o.ranks; ++rank) CHECK(of(plain, rank, "other", "host").bytes / piece == 0);
}

TEST_CASE("skipped steps sound the alarm, once, and are counted") {
  workplace at;
  moe::options o = at.config();
  CHECK(at.train(o).steps_skipped == 0);
  CHECK_FALSE(has(at.out.str(), "skipped"));
  std::string bytes = read_file(o.save);
  const moe::stored_tensor norm = moe::safetensors_reader(o.save).find("model.norm.weight");
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof(header));
  const float bad = std::numeric_limits<float>::infinity();
  std::memcpy(bytes.data() + sizeof(header) + header + norm.begin, &bad, sizeof(bad));
  write_file(at.folder.file("bad"), bytes);
  const moe::safetensors_reader initial(at.folder.file("bad"));
  const moe::run_result result = at.train(o, &initial);
  CHECK(result.steps_skipped == 3);
  const std::string out = at.out.str();
  const auto first = out.find("alarm: step 1 skipped: gradient norm is not finite\n");
  REQUIRE(first != std::string::npos);
  CHECK(out.find("skipped", first + 20) == std::string::npos);
  CHECK(has(out, "loss nan  gradient norm nan"));
  CHECK_FALSE(has(out, "-nan"));
}
