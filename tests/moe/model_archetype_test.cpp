// SPDX-License-Identifier: Apache-2.0
//
// The closure table's proof: the whole training step compiles against an archetype that has the seam's
// members and nothing more, and runs through it without touching device memory, whose addresses no host could
// read.
#include "chosen_peaks.hpp"
#include "trainer.hpp"

#include <contract/archetype_backend.hpp>
#include <contract/archetype_communicator.hpp>

#include <doctest/doctest.h>

namespace pl = plateau;
using archetypes::archetype_backend;
using archetypes::archetype_communicator;

template class moe::trainer<archetype_backend, archetype_communicator, float>;
template class moe::trainer<archetype_backend, archetype_communicator, pl::bfloat16>;
template class moe::trainer<archetype_backend, archetype_communicator, pl::half>;
template class moe::trainer<archetype_backend, archetype_communicator, pl::bfloat16, moe::chosen_peaks>;

namespace {

template <class T, class Peaks = moe::unflattened> void run_steps(const moe::flatten_set& flatten = {}) {
  moe::corpus text;
  text.vocabulary = 64;
  for (int i = 0; i < 400; ++i) text.tokens.push_back(i * 7 % 64);
  moe::model_config c;
  c.hidden = 16;
  c.heads = 4;
  c.intermediate = 8;
  c.experts = 4;
  c.vocabulary = 64;
  c.balance_weight = 0.1F;
  c.flatten = flatten;
  moe::training_settings settings;
  settings.context = 16;
  settings.batch = 3;
  settings.accumulate = 2;
  const moe::token_sampler sampler(text, settings.context, 1);
  archetype_backend backend;
  archetype_communicator world(0, 1);
  {
    moe::trainer<archetype_backend, archetype_communicator, T, Peaks> trainer(backend, world, c, {1, 1},
                                                                              settings);
    trainer.initialise(1);
    const std::size_t before = backend.device().meter().current();
    trainer.run_step(sampler, 0);
    trainer.held_out_loss(sampler);
    CHECK(backend.device().meter().current() == before); // what a step allocates, it frees
  }
  CHECK(backend.device().meter().current() == 0);
  CHECK(backend.pinned().meter().current() == 0);
}

} // namespace

TEST_CASE("a training step needs nothing of a backend but what the concept asks for") {
  run_steps<float>();
  run_steps<pl::bfloat16>();
  run_steps<pl::half>();
}
TEST_CASE("nor does one with the dispatch by rounds, nor one without logits") {
  run_steps<pl::bfloat16, moe::chosen_peaks>({.dispatch = true});
  run_steps<pl::bfloat16, moe::chosen_peaks>({.dispatch = true, .vocabulary = true});
}
