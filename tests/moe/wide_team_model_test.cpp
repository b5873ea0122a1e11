// SPDX-License-Identifier: Apache-2.0
//
// The model where every launch runs wide: each row by eight threads with real barriers, each element launch
// spread over them. Lanes are summed in the order of one thread, so a step has the bits of the host backend
// where both are at the baseline level of vectors; wider levels fuse multiplications and additions and differ
// in the last place. Under the thread sanitizer this is where a kernel of the model that forgets a barrier
// shows.
#include "model_cases.hpp"

#include <plateau/host/backend.hpp>
#include <plateau/host/cpu_dispatch.hpp>
#include <plateau/host/wide_team.hpp>

#include <doctest/doctest.h>

namespace pl = plateau;
using test::model_case;

namespace {

// Products at the baseline level as well.
struct wide_runner : pl::host::wide_runner {
  pl::cpu_level level = pl::cpu_level::baseline;
};
using wide_backend = pl::basic_host_backend<pl::block_gemm, wide_runner>;

struct baseline_runner : pl::host::cpu_runner {
  baseline_runner() : cpu_runner{pl::cpu_level::baseline} {}
};
using baseline_backend = pl::basic_host_backend<pl::block_gemm, baseline_runner>;

reference::transformer_config tiny_config() {
  reference::transformer_config c;
  c.vocabulary = 37; // more than one lane each
  c.hidden = 12;
  c.layers = 1;
  c.heads = 3;
  c.kv_heads = 1;
  c.experts = 4;
  c.top_k = 2;
  c.intermediate = 5;
  c.rope_theta = 1e4;
  c.balance_weight = 0.25;
  return c;
}

} // namespace

TEST_CASE("a step by wide teams has the bits of one by single threads") {
  const auto c = model_case::make<float>(tiny_config(), 1, 2, 5);
  const auto expected = test::expect(c);
  for (const test::step_setup& setup :
       {test::step_setup{1, 1, 1, nullptr, true}, test::step_setup{2, 2, 1, nullptr, true}}) {
    CAPTURE(setup.ranks);
    const auto wide =
        test::run_model<float>(setup, c.config, c.weights, c.tokens(), support::on_threads<wide_backend>{});
    CHECK(test::same_bits(wide, test::run_model<float>(setup, c.config, c.weights, c.tokens(),
                                                       support::on_threads<baseline_backend>{})));
    test::check_step(wide, expected.loss, expected.gradients, 1e-6, 1e-5);
  }
}
