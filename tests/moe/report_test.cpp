// SPDX-License-Identifier: Apache-2.0
//
// What a run shows and writes: progress, active experts and alarms, the peak table, the JSON.

#include "comparison.hpp"
#include "comparison_json.hpp"
#include "expert_watch.hpp"
#include "growth_report.hpp"
#include "parity.hpp"
#include "parity_report.hpp"
#include "progress.hpp"
#include "report.hpp"
#include "result_json.hpp"
#include "scratch_folder.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <sstream>

using namespace moe;
using moe_test::has;

namespace {

constexpr std::uint64_t mib = 1 << 20;

run_result sample() {
  run_result result;
  result.config.data = "text\xff.bin"; // no UTF-8
  result.text = {"text", 1000, 500, 65536, 0xabcu, 5.65};
  result.losses = {11.09, 1.0 / 3.0, 5.000000000000001};
  result.loss_heldout = 5.2;
  result.tokens_per_second = 12345.6;
  const std::map<std::string, std::uint64_t> held{
      {"dispatch", 12 * mib}, {"parameters", 8 * mib}, {"gradients", 4 * mib}, {"optimizer", 24 * mib},
      {"activations", mib},   {"other", 1024},         {"checkpoint", 0}};
  for (int rank = 3; rank >= 0; --rank) {
    result.peaks.push_back({rank, "parameters", "device", 8 * mib, {}, held, "before step 1"});
    result.peaks.push_back(
        {rank, "dispatch", "device", (rank == 2 ? 13 : 12) * mib, {}, held, "step 2, layer 1 backward"});
    result.peaks.push_back({rank, "checkpoint", "host", 0, {}, {}, ""});
    result.peaks.push_back({rank, "optimizer", "device", 0, {}, {{"optimizer", 0}}, ""});
    result.peaks.push_back(
        {rank, "other", "host", rank == 0 ? mib : 1024, {}, {{"other", rank == 0 ? mib : 1024}}, "saving"});
    result.totals.push_back({rank, "", "device", 49 * mib, {}, held, "step 2, layer 1 backward"});
  }
  return result;
}

} // namespace

TEST_CASE("plain progress: every step of a short run, about fifty lines of a long one, the last one always") {
  const auto lines_of = [](std::int64_t first, std::int64_t last) {
    std::ostringstream out;
    progress bar{out, 0, first, last};
    for (std::int64_t step = first + 1; step <= last; ++step) bar.step({step, 2.5, 1000, 0.123456});
    return out.str();
  };
  const auto few = lines_of(0, 12);
  CHECK(std::count(few.begin(), few.end(), '\n') == 12);
  CHECK(has(few, "step  3/12  loss 2.5000  gradient norm 0.123  1000 tokens/s\n"));
  std::ostringstream out;
  progress{out, 0, 0, 1}.step({1, -std::fabs(NAN), 10, -std::fabs(NAN)});
  CHECK(out.str() == "step 1/1  loss nan  gradient norm nan  10 tokens/s\n");
  CHECK_FALSE(has(few, "\x1b"));
  CHECK_FALSE(has(few, "\r"));
  const auto many = lines_of(5, 10'007);
  const auto count = std::count(many.begin(), many.end(), '\n');
  CHECK((count >= 45 && count <= 53));
  CHECK(has(many, "step     6/10007"));
  CHECK(has(many, "step 10007/10007"));
}

TEST_CASE("on a terminal the bar never exceeds the width and gives way to lines") {
  for (const int width : {1, 20, 60, 80, 100, 300}) {
    std::ostringstream out;
    {
      progress bar{out, width, 0, 10};
      for (std::int64_t step = 1; step <= 10; ++step) bar.step({step, 2.5, 1000, 1});
      bar.line("alarm");
      bar.step({10, 2.5, 1000, 1});
    }
    const std::string text = out.str();
    CHECK(has(text, "\r\x1b[Kalarm\n\r"));
    CHECK(text.substr(text.size() - 4) == "\r\x1b[K"); // nothing of it stays
    std::istringstream drawn{text};
    for (std::string part; std::getline(drawn, part, '\r');) {
      part = part.substr(0, part.find('\x1b'));
      CHECK(part.size() < static_cast<std::size_t>(std::max(width, 7)));
    }
    if (width == 100) CHECK(has(text, "[#"));
  }
  CHECK(terminal_width(-1) == 0);
}

TEST_CASE("active experts") {
  CHECK(active_experts_line(std::vector<expert_load>{}) == "active experts: none");
  CHECK(active_experts_line(std::vector<expert_load>{{0, {1, 2}}, {1, {3, 1}}, {3, {1, 1}}}) ==
        "active experts: layers 0-1, 3: all 2");
  CHECK(active_experts_line(
            std::vector<expert_load>{{0, {1, 1, 1, 1}}, {1, {5, 0, 7, 9}}, {2, {0, 0, 0, 0}}}) ==
        "active experts: layer 0: all 4; layer 1: 3 of 4 (0, 2-3); layer 2: 0 of 4");
  CHECK(active_experts_line(std::vector<expert_load>{{4, {0, 1}}}) == "active experts: layer 4: 1 of 2 (1)");
}

TEST_CASE("the alarm sounds above 2.8 even shares, once until it was quiet") {
  expert_watch watch;
  const std::vector<expert_load> at_limit{{0, {35, 10, 10, 9, 9, 9, 9, 9}}},
      over{{1, {36, 9, 10, 9, 9, 9, 9, 9}}};
  CHECK(watch.alarms(at_limit).empty()); // 35% of eight is 2.8 exactly
  const auto first = watch.alarms(over);
  REQUIRE(first.size() == 1);
  CHECK(first[0] == "expert 0 of layer 1 gets 2.88 x its even share: 36 of 100 routed rows");
  CHECK(watch.alarms(over).empty());
  CHECK(watch.alarms(std::vector<expert_load>{{1, {1, 1, 1, 1, 1, 1, 1, 1}}}).empty());
  CHECK(watch.alarms(over).size() == 1);
  CHECK(watch.alarms(std::vector<expert_load>{{2, {0, 0, 0, 0}}}).empty());
}

TEST_CASE("the table: the four peaks first, equal ranks in one row, what was held beside it") {
  const std::string table = peak_table(sample());
  std::istringstream lines{table};
  std::vector<std::string> rows;
  for (std::string line; std::getline(lines, line);) rows.push_back(line);
  REQUIRE(rows.size() == 12);
  CHECK(rows[0] == "device memory  rank     MiB  when                      held beside it");
  CHECK(rows[1] == "-------------  ------  ----  ------------------------  --------------");
  const auto row = [&](const std::string& begin, const std::string& bytes) {
    return std::count_if(rows.begin(), rows.end(),
                         [&](const std::string& r) { return r.rfind(begin, 0) == 0 && has(r, bytes); });
  };
  CHECK(row("dispatch       0-1, 3", " 12.0  step 2") == 1);
  CHECK(row("dispatch       2 ", " 13.0  step 2") == 1);
  CHECK(row("optimizer      0-3", "     0  never") == 1); // one of the four: it is there even when it is flat
  CHECK(row("parameters", "0-3") == 1);
  CHECK(row("all together", " 49.0  step 2") == 1);
  CHECK(has(table, "step 2, layer 1 backward  optimizer 24.0, parameters 8.00, gradients 4.00, rest 1.00\n"));
  CHECK(has(table,
            " 49.0  step 2, layer 1 backward  optimizer 24.0, dispatch 12.0, parameters 8.00, gradients "
            "4.00, rest 1.00\n"));
  CHECK_FALSE(has(table, "checkpoint"));
  CHECK_FALSE(has(table, "promised"));
  CHECK(has(table, "\nhost memory  "));
  CHECK(row("other", "1.00") == 1);
  CHECK(rows.back() == "Not shown: 3 peaks smaller than 50.2 KiB, which --json lists.");
}

TEST_CASE("many ranks that are no range are told by some of them and their number") {
  run_result result;
  for (int rank = 0; rank < 200; ++rank)
    result.totals.push_back({rank, "", "device", rank % 3 == 0 ? mib : 2 * mib, {}, {}, "loss"});
  const std::string table = peak_table(result);
  CHECK(has(table, "\nall together   0, 3, 6, 9, 12, ... 198 (67 ranks)  1024  loss"));
  CHECK(has(table, "\nall together   1-2, 4-5, 7-8, ... 199 (133 ranks)  2048  loss"));
}

TEST_CASE("what an evaluation held beyond the peaks of training is said beneath them") {
  run_result result = sample();
  CHECK_FALSE(has(peak_table(result), "evaluation"));
  CHECK(result_json(result).at("evaluation_peak_bytes_total").empty());
  result.evaluation = {{0, "total", "device", 50 * mib, {}, {}, "evaluation"},
                       {2, "total", "device", 51 * mib, {}, {}, "evaluation"}};
  CHECK(peak_table(result).ends_with(
      "\nHeld in the evaluation after training: 51.0 MiB on rank 2, more than in training.\n"));
  const auto json = result_json(result).at("evaluation_peak_bytes_total");
  REQUIRE(json.size() == 2);
  CHECK(json.at(1).at("rank") == 2);
  CHECK(json.at(1).at("bytes") == 51 * mib);
}

TEST_CASE("the table shows promises once there are any, and one unit for all") {
  run_result result = sample();
  result.peaks[1].promised = 14 * mib;
  CHECK(has(peak_table(result), "MiB  promised  when"));
  CHECK(has(peak_table(result), " 12.0      14.0  step 2"));
  result = {};
  result.peaks.push_back({0, "dispatch", "device", 700, {}, {{"dispatch", 700}}, "loss"});
  CHECK(peak_table(result) == "device memory  rank    B  when  held beside it\n"
                              "-------------  ----  ---  ----  --------------\n"
                              "dispatch       0     700  loss  nothing\n");
  CHECK(peak_table({}).empty());
  const auto gib = detail::unit_for(std::uint64_t{12} << 30);
  CHECK(detail::in_unit(std::uint64_t{12} << 30, gib) == "12.0");
  CHECK(detail::in_unit(mib, gib) == "<0.01");
  CHECK(detail::in_unit(0, gib) == "0");
  CHECK(std::string_view{detail::unit_for(9 * mib).name} == "KiB");
}

TEST_CASE("the lines beside it") {
  run_result result = sample();
  CHECK(corpus_lines(result.text) ==
        "text: text, 1000 bytes, digest 0000000000000abc\n"
        "      500 tokens of a vocabulary of 65536; unigram entropy 5.650 nats (ln 65536 = 11.09)");
  CHECK(summary_line(result) ==
        "loss 11.0900 at step 1, 5.0000 at step 3; held-out 5.2000, below the unigram entropy of "
        "5.6500; 12346 tokens/s");
  result.loss_heldout = NAN;
  CHECK(has(summary_line(result), "not below"));
  result.losses.back() = -std::fabs(NAN); // whatever its sign bit
  result.loss_heldout = -std::fabs(NAN);
  result.steps_skipped = 2;
  CHECK(has(summary_line(result), ", nan at step 3 (2 of 3 steps skipped); held-out nan, not below"));
  CHECK_FALSE(has(summary_line(result), "-nan"));
  result.losses = {3};
  CHECK(summary_line(result).rfind("loss 3.0000 at step 1 (", 0) == 0);
  result.losses.clear();
  CHECK(has(summary_line(result), "no step was run"));
}

TEST_CASE("what a dispatch by rounds did is one line, and nothing is said of another one") {
  run_result result = sample();
  CHECK(dispatch_line(result).empty());
  result.config.flatten.dispatch = true;
  dispatch_summary did;
  did.calls = 8;
  did.rounds = 12;
  did.most_rounds = 3;
  did.moved = 5;
  did.wire_bytes = 77;
  did.native_skew = 3.75;
  did.skew = 1.0625;
  result.dispatch = did;
  CHECK(
      dispatch_line(result) ==
      "dispatch: capped at 4096 rows, placement least-loaded with 2 foreign experts; rounds of a layer: 1.5, "
      "at most 3; the busiest rank had 1.06 times the mean, 3.75 without moving; 5 pieces of experts "
      "moved\n");
  result.config.dispatch_cap = {64, 32};
  result.config.placement = expert_placement::native;
  CHECK(dispatch_line(result) ==
        "dispatch: capped at 64 rows out and 32 in, placement native; rounds of a layer: 1.5, at most 3; the "
        "busiest rank had 1.06 times the mean\n");
  const auto json = result_json(result);
  CHECK(json.at("dispatch").at("rounds") == 12);
  CHECK(json.at("dispatch").at("moved") == 5);
  CHECK(json.at("dispatch").at("wire_bytes") == 77);
  CHECK(json.at("config").at("flatten") == "dispatch");
  CHECK(json.at("config").at("dispatch").at("cap").at(1) == 32);
  CHECK(json.at("config").at("dispatch").at("foreign_experts").is_null());
  CHECK(json.at("config").at("vocabulary_loss").is_null());
  result.config.flatten.vocabulary = true;
  result.config.vocabulary_tile = {64, 32};
  const auto both = result_json(result);
  CHECK(both.at("config").at("flatten") == "dispatch,vocabulary");
  CHECK(both.at("config").at("vocabulary_loss").at("vocabulary_tile").at(1) == 32);
  CHECK(both.at("config").at("vocabulary_loss").at("hop_rows") == 1024);
  CHECK(both.at("config").at("vocabulary_loss").at("rotate") == "auto");
  result.dispatch->calls = 0; // no layer
  CHECK(has(dispatch_line(result), "rounds of a layer: 0,"));
}

TEST_CASE("two runs side by side: the highest of any rank, what was promised, where the losses part most") {
  run_result flat = sample(), none = sample();
  flat.config.flatten.dispatch = true;
  flat.config.data = none.config.data = "text";
  flat.losses = none.losses = {11.0625, 0.5, 5};
  for (peak_record& each : flat.peaks)
    if (each.tag == "dispatch") {
      each.bytes = each.rank == 1 ? 3 * mib : 2 * mib;
      each.promised = each.rank == 3 ? 4 * mib : 3 * mib;
    }
  for (peak_record& each : flat.totals) {
    each.bytes = (40 + static_cast<std::uint64_t>(each.rank)) * mib;
    each.promised = 50 * mib;
  }
  flat.first_step = none.first_step = 7;
  flat.losses[1] += 0.25;
  flat.losses[2] -= 0.125;
  flat.loss_heldout = 5.3;
  flat.tokens_per_second = 999;
  flat.unflattened = std::make_shared<const run_result>(none);
  CHECK(comparison_table(flat) ==
        "device memory, MiB, highest rank   unflattened   flattened   promised\n"
        "---------------------------------  -----------  ----------  ---------\n"
        "dispatch                                  13.0        3.00       4.00\n"
        "vocabulary                                   0           0          -\n"
        "checkpoint                                   0           0          -\n"
        "optimizer                                    0           0          -\n"
        "all together                              49.0        43.0       50.0\n"
        "loss at step 10                         5.0000      4.8750  at most 0.25 nats apart, at step 9\n"
        "held-out loss                           5.2000      5.3000\n"
        "tokens/s                                 12346         999\n");
  const auto json = result_json(flat);
  CHECK(json.at("comparison").at("peaks").at(0).at("unflattened") == 13 * mib);
  CHECK(json.at("comparison").at("peaks").at(0).at("promised") == 4 * mib);
  CHECK(json.at("comparison").at("peaks").at(1).at("promised").is_null());
  CHECK(json.at("comparison").at("largest_loss_difference") == 0.25);
  CHECK(json.at("comparison").at("at_step") == 9);
  CHECK(json.at("unflattened").at("losses").get<std::vector<double>>() == none.losses);
  CHECK_FALSE(json.at("unflattened").contains("unflattened"));
  CHECK_FALSE(json.contains("parity"));
  flat.losses = none.losses;
  CHECK(has(comparison_table(flat), "5.0000  the same at every step\n"));
  flat.losses[0] = NAN; // in one only: as far apart as can be
  CHECK(has(comparison_table(flat), "at most nan nats apart, at step 8\n"));
  CHECK(nlohmann::json::parse(result_json(flat).dump())
            .at("comparison")
            .at("largest_loss_difference")
            .is_null());
  none.losses[0] = NAN;
  flat.unflattened = std::make_shared<const run_result>(none);
  CHECK(has(comparison_table(flat), "the same at every step\n"));
  flat.losses.clear();
  CHECK_FALSE(has(comparison_table(flat), "loss at step"));
}

TEST_CASE("the next wall: what helps against a larger vocabulary is not what helps against more experts") {
  options o;
  o.flatten = {true, true, true, true};
  for (const char* tag : {"gradients", "parameters"}) {
    CAPTURE(tag);
    CHECK(has(growth_advice(o, growth_kind::expert, tag), "--expert-parallel"));
    o.tied = false;
    for (const bool divided : {true, false}) {
      o.flatten.vocabulary = divided;
      const std::string untied = growth_advice(o, growth_kind::vocabulary_entry, tag);
      CHECK(has(untied, "--tied"));
      CHECK(has(untied, "more ranks") == divided);
      CHECK_FALSE(has(untied, "--expert-parallel"));
    }
    o.tied = true;
    const std::string tied = growth_advice(o, growth_kind::vocabulary_entry, tag);
    CHECK_FALSE(has(tied, "--tied"));
    CHECK_FALSE(has(tied, "--expert-parallel"));
    CHECK(has(tied, "--hidden"));
  }
  o.flatten.optimizer = false;
  CHECK(has(growth_advice(o, growth_kind::vocabulary_entry, "gradients"), "--flatten optimizer"));
}

TEST_CASE("gradients and losses of tokens: the same bits are 0, whatever they are, and nothing else is") {
  const std::vector<float> a{3, 0, -4}, b{3, 0, -4.5F};
  gradient_difference same, apart, zero;
  same.add(a, a);
  CHECK(same.relative_error() == 0);
  CHECK(same.norm_difference() == 0);
  CHECK(same.first_norm() == 5);
  apart.add(a, b);
  CHECK(apart.relative_error() == 0.1);
  CHECK(apart.norm_difference() == doctest::Approx(std::sqrt(29.25) - 5).epsilon(1e-12));
  zero.add(std::vector<float>{0}, std::vector<float>{1e-30F}); // far below what a float's square can be
  CHECK(zero.relative_error() == HUGE_VAL);
  gradient_difference nothing;
  nothing.add(std::vector<float>{0}, std::vector<float>{-0.0F});
  CHECK(nothing.relative_error() == 0);
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  gradient_difference odd, odder;
  odd.add(std::vector<float>{nan, inf}, std::vector<float>{nan, inf});
  CHECK(odd.relative_error() == 0);
  CHECK(odd.norm_difference() == 0);
  odder.add(std::vector<float>{1, inf}, std::vector<float>{1, -inf});
  CHECK_FALSE(odder.relative_error() == 0);
  token_differences tokens, more;
  tokens.add(a, b);
  CHECK(tokens.largest == 0.5);
  more.add(a, a);
  more.add(tokens);
  CHECK(more.tokens == 6);
  CHECK(more.largest == 0.5);
  CHECK(more.rms() == std::sqrt(0.25 / 6));
  more.add(std::vector<float>{1}, std::vector<float>{nan});
  more.add(std::vector<float>{1}, std::vector<float>{3}); // nothing is worse than no number
  CHECK(std::isnan(more.largest));
  CHECK(token_differences{}.rms() == 0);
}

TEST_CASE("what is said of two trainings in lock step: kinds of tensors and their worst, or each") {
  parity_record record;
  record.tensors = {"model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
                    "model.layers.0.self_attn.k_proj.weight", "model.norm.weight", "lm_head.weight"};
  const auto step = [](double other_loss, std::vector<float> errors) {
    parity_step s;
    s.first_loss = 2;
    s.second_loss = other_loss;
    s.tokens.add(std::vector<float>{1, 2}, std::vector<float>{1, 2.5F});
    for (const float e : errors) {
      s.gradients.emplace_back();
      s.gradients.back().add(std::vector<float>{1}, std::vector<float>{1 + e});
    }
    return s;
  };
  record.steps.push_back(step(2.25, {0, 0.5F, 0.25F, 0, 0}));
  record.steps.push_back(step(2, {0, 0.25F, 1, 0, 0}));
  const auto kinds = by_kind(record.tensors, record.steps[1]);
  REQUIRE(kinds.size() == 4);
  CHECK(tensor_kinds[kinds[2].kind] == "attention");
  CHECK(kinds[2].worst == 2);
  CHECK(kinds[2].all.relative_error() == doctest::Approx(std::sqrt((0.0625 + 1) / 2)).epsilon(1e-12));
  CHECK(kind_of_tensor("model.layers.3.block_sparse_moe.gate.weight") == 3);
  CHECK(kind_of_tensor("model.layers.3.block_sparse_moe.experts.1.w1.weight") == 4);
  CHECK(kind_of_tensor("model.layers.3.post_attention_layernorm.weight") == 1);
  const std::string lines = parity_lines(record, record.steps[0], 8, 20, parity_rows::worst);
  CHECK(has(lines, "step  8/20  losses 2.0000 and 2.2500, 0.25 apart; of a token: at most 0.5, rms 0.35\n"));
  CHECK(
      has(lines, "\n  embedding               0          1                0  0 model.embed_tokens.weight\n"));
  CHECK(has(lines, "  0.5 model.layers.0.self_attn.q_proj.weight\n"));
  CHECK_FALSE(has(lines, "k_proj"));
  const std::string all = parity_lines(record, record.steps[0], 8, 20, parity_rows::all);
  CHECK(has(all, "\n  model.layers.0.self_attn.k_proj.weight            0.25          1             0.25\n"));
  CHECK(std::count(all.begin(), all.end(), '\n') == 7);
  CHECK(parity_summary(record, 7) ==
        "farthest apart: losses 0.25 (step 8), of a token 0.5 (step 8), a gradient 1 of its norm (step 9, "
        "model.layers.0.self_attn.k_proj.weight)\n");
  CHECK(parity_summary({}, 0).empty());
  run_result result;
  result.first_step = 7;
  record.steps[1].second_loss = NAN;
  result.parity = record;
  const auto json = nlohmann::json::parse(result_json(result).dump()).at("parity");
  CHECK(json.at("weights") == "own");
  CHECK(json.at("tensors").size() == 5);
  CHECK(json.at("steps").at(0).at("step") == 8);
  CHECK(json.at("steps").at(0).at("relative_error").at(1) == 0.5);
  CHECK(json.at("steps").at(0).at("kinds").at("attention").at("worst") == record.tensors[1]);
  CHECK(json.at("steps").at(1).at("loss_difference").is_null());
  CHECK(has(parity_summary(record, 7), "losses nan (step 9)"));
}

TEST_CASE("the JSON has every field, exactly") {
  const moe_test::scratch_folder folder;
  const run_result result = sample();
  write_json(folder.file("r.json"), result);
  CHECK(folder.entries() == 1);
  const auto json = nlohmann::json::parse(moe_test::read_file(folder.file("r.json")));
  CHECK(json.at("losses").get<std::vector<double>>() == result.losses);
  CHECK(json.at("loss_first") == 11.09);
  CHECK(json.at("loss_last") == 5.000000000000001);
  CHECK(json.at("loss_heldout") == 5.2);
  CHECK(json.at("tokens_per_second") == 12345.6);
  CHECK(json.at("first_step") == 0);
  CHECK(json.at("corpus").at("unigram_entropy") == 5.65);
  CHECK(json.at("config").at("vocabulary") == 65536);
  CHECK(json.at("config").at("flatten") == "none");
  CHECK(json.at("config").at("dispatch").is_null());
  CHECK_FALSE(json.contains("dispatch"));
  CHECK(json.at("config").at("memory_limit").is_null());
  CHECK(json.at("config").at("stop_after") == 300);
  CHECK(json.at("config").at("expert_parallel") == 2);
  CHECK(json.at("config").at("rope_theta") == 1e4);
  CHECK(json.at("config").at("norm_epsilon") == 1e-5);
  CHECK(json.at("config").at("deadline") == 60);
  CHECK(json.at("config").at("parameters").is_number_integer());
  CHECK(json.at("config").at("parameters") == 18'451'072);
  CHECK(json.at("steps_skipped") == 0);
  REQUIRE(json.at("peaks").size() == 20);
  const auto& peak = json.at("peaks").at(0);
  CHECK(peak.size() == 7);
  CHECK(peak.at("rank") == 3);
  CHECK(peak.at("tag") == "parameters");
  CHECK(peak.at("space") == "device");
  CHECK(peak.at("bytes") == 8 * mib);
  CHECK(peak.at("promised").is_null());
  CHECK(peak.at("held_at_peak").at("optimizer") == 24 * mib);
  CHECK(peak.at("phase") == "before step 1");
  REQUIRE(json.at("peak_bytes_total").size() == 4);
  CHECK(json.at("peak_bytes_total").at(0).at("bytes") == 49 * mib);

  run_result empty;
  empty.losses = {NAN};
  const auto none = nlohmann::json::parse(result_json(empty).dump());
  CHECK(none.at("loss_last").is_null());
  CHECK(none.at("loss_heldout").is_null());
  empty.losses.clear();
  CHECK(result_json(empty).at("loss_first").is_null());
  CHECK_THROWS_AS(write_json("/no/such/folder/r", empty), input_error);
  write_json("/dev/null", empty); // a device takes it directly and stays one
  CHECK(std::filesystem::is_character_file("/dev/null"));
  CHECK_THROWS_AS(write_json("/dev/full", empty), output_error);
}
