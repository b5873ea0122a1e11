// SPDX-License-Identifier: Apache-2.0
//
// What a run may start from: every parameter, in its shape and a type that fits, nothing else; and a state
// only for the run that it belongs to.

#include "safetensors_writer.hpp"
#include "scratch_folder.hpp"
#include "state_check.hpp"

#include <doctest/doctest.h>

#include <functional>

using namespace moe;
using moe_test::has;
using moe_test::message_of;
using moe_test::scratch_folder;

namespace {

options tiny() {
  options o;
  o.layers = 1;
  o.hidden = 4;
  o.heads = 2;
  o.kv_heads = 1;
  o.experts = 2;
  o.intermediate = 3;
  o.tied = true;
  o.steps = 3;
  return o;
}

corpus tiny_text() {
  corpus text;
  text.vocabulary = 5;
  text.digest = 0xabc;
  return text;
}

model_config tiny_model() {
  model_config c;
  c.layers = 1;
  c.hidden = 4;
  c.heads = 2;
  c.kv_heads = 1;
  c.experts = 2;
  c.intermediate = 3;
  c.vocabulary = 5;
  c.tied = true;
  return c;
}

std::vector<tensor_layout> layout_of(const model_config& c, bool moments, storage_type type) {
  const parameter_layout whole(c, {1, 1}, 0);
  std::vector<tensor_layout> all;
  for (const char* prefix : state_prefixes) {
    if (*prefix != '\0' && !moments) continue;
    for (const parameter_group* group : {&whole.shared, &whole.expert})
      for (const parameter& p : group->all()) all.push_back({prefix + p.name, type, p.shape()});
  }
  return all;
}

// A file of zeros with this layout.
safetensors_reader file_of(const scratch_folder& folder, const std::vector<tensor_layout>& layout,
                           const state_metadata& metadata = {}) {
  std::vector<tensor_source> sources;
  for (const tensor_layout& tensor : layout)
    sources.push_back({tensor, [](std::int64_t, std::span<std::byte> bytes) {
                         std::fill(bytes.begin(), bytes.end(), std::byte{0});
                       }});
  save_safetensors(folder.file("state"), sources, metadata);
  return safetensors_reader{folder.file("state")};
}

std::string refusal(const std::function<void()>& f) {
  const std::string message = message_of<input_error>(f);
  CHECK_FALSE(has(message, "\n"));
  return message;
}

} // namespace

TEST_CASE("weights may be of any type that widens to float, with moments or without; a state is F32") {
  const scratch_folder folder;
  const model_config c = tiny_model();
  for (const auto type : {storage_type::f32, storage_type::bf16, storage_type::f16, storage_type::f64})
    for (const bool with_moments : {false, true})
      check_state(file_of(folder, layout_of(c, with_moments, type)), c, false);
  check_state(file_of(folder, layout_of(c, true, storage_type::f32)), c, true);
  CHECK(has(refusal([&] { check_state(file_of(folder, layout_of(c, false, storage_type::f32)), c, true); }),
            "holds no tensor 'first_moment.model.embed_tokens.weight'"));
  auto layout = layout_of(c, true, storage_type::f32);
  layout[3].type = storage_type::i32;
  const auto wrong = file_of(folder, layout);
  CHECK(has(refusal([&] { check_state(wrong, c, false); }),
            "tensor '" + layout[3].name + "' is I32; expected F32, BF16, F16 or F64"));
  layout[3].type = storage_type::f16;
  const auto narrow = file_of(folder, layout);
  check_state(narrow, c, false);
  CHECK(has(refusal([&] { check_state(narrow, c, true); }), "is F16; expected F32, as --save writes"));
}

TEST_CASE("a file of a larger model is refused with a tensor that is too many") {
  const scratch_folder folder;
  const model_config c = tiny_model();
  const auto named = [&](const model_config& larger, bool moments, const std::string& tensor) {
    const auto file = file_of(folder, layout_of(larger, moments, storage_type::f32));
    CHECK(has(refusal([&] { check_state(file, c, moments); }), "tensor '" + tensor));
  };
  model_config larger = c;
  larger.tied = false;
  named(larger, false, "lm_head.weight' is none of this model's");
  larger = c;
  larger.layers = 2;
  named(larger, false, "model.layers.1.");
  named(larger, true, "model.layers.1.");
  auto layout = layout_of(c, false, storage_type::f32);
  layout.push_back({"first_moment.lm_head.weight", storage_type::f32, {2}});
  const auto file = file_of(folder, layout);
  CHECK(has(refusal([&] { check_state(file, c, false); }), "'first_moment.lm_head.weight' is none"));
}

TEST_CASE("a state goes on only in the run that it belongs to, and the flag that differs is named") {
  const scratch_folder folder;
  const options o = tiny();
  const corpus text = tiny_text();
  auto metadata = metadata_of(o, text);
  metadata["step"] = "2";
  const auto layout = layout_of(tiny_model(), true, storage_type::f32);
  const auto file = file_of(folder, layout, metadata);
  CHECK(check_resumed(file, o, text) == 2);
  const auto with = [&](const std::function<void(options&)>& change) {
    options other = o;
    change(other);
    return refusal([&] { check_resumed(file, other, text); });
  };
  const std::string state = ": the state in " + folder.file("state");
  CHECK(with([](options& x) { x.steps = 4; }) == "--steps 4" + state + " was saved with 3");
  CHECK(with([](options& x) { x.rope_theta = 1e6; }) ==
        "--rope-theta 1000000" + state + " was saved with 10000");
  CHECK(with([](options& x) { x.tied = false; }) == "--tied false" + state + " was saved with true");
  CHECK(with([](options& x) { x.dtype = compute_type::bf16; }) ==
        "--dtype bf16" + state + " was saved with fp32");
  CHECK(with([](options& x) { x.stop_after = 1; }) == "--stop-after 1" + state + " already has 2 steps");
  CHECK(with([](options& x) { x.stop_after = 2; }).empty());
  CHECK(with([](options& x) { x.ranks = 7; }).empty()); // only orders sums
  corpus other_text = text;
  other_text.digest = 0xabd;
  CHECK(has(refusal([&] { check_resumed(file, o, other_text); }), "--data: the text has the digest"));

  metadata["step"] = "2x";
  const auto no_step = file_of(folder, layout, metadata);
  CHECK(has(refusal([&] { check_resumed(no_step, o, text); }), "'2x' is no step"));
  metadata.erase("seed");
  const auto no_seed = file_of(folder, layout, metadata);
  CHECK(has(refusal([&] { check_resumed(no_seed, o, text); }), "has no 'seed' in its metadata"));
}
