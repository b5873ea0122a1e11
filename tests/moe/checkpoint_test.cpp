// SPDX-License-Identifier: Apache-2.0
//
// The model whose inputs of layers are parked: loss and gradients have the bits that they have with all of
// them on the device, whatever the host budget; the device holds two of them at any depth, and what was
// promised; nothing is computed more often, and with every k-th input kept, what that says; and a pass that
// an exception ends leaves nothing behind.
#include "chosen_boundaries.hpp"
#include "chosen_dispatch.hpp"
#include "model_cases.hpp"
#include "support/faulty_backend.hpp"
#include "unflattened.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

using moe::index_t;
using test::model_case, test::step_setup;

namespace {

struct maybe_parked : moe::unflattened {
  template <class Backend, class T> using boundaries = moe::chosen_boundaries<Backend, T>;
  template <class Backend, class Communicator, class T>
  using dispatch = moe::chosen_dispatch<Backend, Communicator, T>;
};

reference::transformer_config config_of(index_t layers, index_t hidden = 12) {
  reference::transformer_config c;
  c.vocabulary = 17;
  c.hidden = hidden;
  c.layers = layers;
  c.heads = 2;
  c.kv_heads = 1;
  c.experts = 4;
  c.top_k = 2;
  c.intermediate = 5;
  c.rope_theta = 1e4;
  c.balance_weight = 0.25;
  return c;
}
template <class T>
test::step_result run(step_setup setup, const model_case& c, bool parked,
                      index_t budget = plateau::offload_shape::no_limit, index_t keep_every = 1) {
  setup.flatten.checkpoint = parked;
  setup.checkpoint = {budget, keep_every};
  return test::run_model_of<maybe_parked, T>(setup, c.config, c.weights, c.tokens());
}
template <class T> void check_bits() {
  const auto c = model_case::make<T>(config_of(5), 3, 4, 7);
  for (const moe::rank_grid grid : {moe::rank_grid{1, 1}, {3, 1}, {4, 2}})
    for (const index_t micro : {1, 2}) {
      step_setup setup{grid.ranks, grid.expert_parallel, micro, nullptr, true};
      const auto expected = run<T>(setup, c, false);
      for (const index_t budget : {index_t{0}, index_t{3000}, plateau::offload_shape::no_limit}) {
        CAPTURE(grid.ranks);
        CAPTURE(micro);
        CAPTURE(budget);
        CHECK(test::same_bits(run<T>(setup, c, true, budget), expected));
        for (const index_t every : {2, 9}) {
          CAPTURE(every);
          CHECK(test::same_bits(run<T>(setup, c, true, budget, every), expected));
        }
      }
      setup.flatten.dispatch = true;
      setup.dispatch = {7, 5, 2, moe::expert_placement::least_loaded, 1};
      const auto by_rounds = run<T>(setup, c, false);
      for (const index_t every : {1, 2, 5})
        CHECK(test::same_bits(run<T>(setup, c, true, 3000, every), by_rounds));
    }
}

} // namespace

TEST_CASE("loss and gradients have the bits that they have with every boundary on the device") {
  check_bits<float>();
  check_bits<plateau::bfloat16>();
}

TEST_CASE(
    "two boundaries on the device at any depth, what was promised, and nothing is computed more often") {
  for (const index_t layers : {4, 24}) {
    CAPTURE(layers);
    const auto c = model_case::make<float>(config_of(layers, 64), 3, 2, 4);
    const step_setup setup{1, 1, 1, nullptr, true};
    const auto plain = run<float>(setup, c, false);
    const std::size_t boundary = 8 * 64 * sizeof(float);
    std::size_t last = std::numeric_limits<std::size_t>::max();
    for (index_t fit = 0; fit <= layers + 1; ++fit) {
      if (layers > 4 && fit % 8 != 1) continue;
      const auto parked = run<float>(setup, c, true, fit * static_cast<index_t>(boundary));
      const auto& a = parked.accounts.front();
      const auto kept = static_cast<std::size_t>(fit > 2 ? layers + 1 - fit + 2 : layers + 1);
      CHECK(a.checkpoint.bytes == kept * boundary);
      CHECK((fit > 2 && layers == 4 ? a.checkpoint.bytes < last : a.checkpoint.bytes <= last));
      last = a.checkpoint.bytes;
      CHECK(a.parked.bytes == (fit > 2 ? static_cast<std::size_t>(fit) * boundary : 0));
      CHECK(a.work.matrix_products == plain.accounts.front().work.matrix_products);
      CHECK(a.work.matrix_flops == plain.accounts.front().work.matrix_flops);
      CHECK(a.work.host_round_trips == plain.accounts.front().work.host_round_trips);
      bool promised = false;
      for (const moe::peak_promise& p : a.promises)
        if (p.of == plateau::tag::checkpoint) {
          promised = true;
          CHECK(p.most.device_bytes == a.checkpoint.bytes);
          CHECK(p.most.pinned_bytes == a.parked.bytes);
        }
      CHECK(promised);
    }
    CHECK(last == 2 * boundary);
  }
}

TEST_CASE("with every k-th input kept, the device holds k - 1 more, and the host a k-th part") {
  const index_t layers = 7;
  const auto c = model_case::make<float>(config_of(layers, 64), 3, 2, 4);
  const step_setup setup{1, 1, 1, nullptr, true};
  const std::size_t boundary = 8 * 64 * sizeof(float);
  const auto losses = run<float>({1, 1, 1, nullptr, false}, c, false).accounts.front().work;
  const auto every_one = run<float>(setup, c, true).accounts.front().work;
  const std::uint64_t head = 2 * 8 * 64 * 17, layer = (losses.matrix_flops - head) / layers;
  for (const index_t every : {1, 2, 3, 4, 7, 20}) {
    CAPTURE(every);
    const auto kept = static_cast<std::size_t>((layers + every - 1) / every + 1); // and the last output
    const auto inner = static_cast<std::size_t>(std::min(every, layers) - 1);
    for (const bool parked : {false, true}) {
      CAPTURE(parked);
      const auto a =
          run<float>(setup, c, true, parked ? plateau::offload_shape::no_limit : 0, every).accounts.front();
      const bool some = parked && kept > 2;
      CHECK(a.checkpoint.bytes == ((some ? 2 : kept) + inner) * boundary);
      CHECK(a.parked.bytes == (some ? kept * boundary : 0));
      CHECK(a.work.host_round_trips == every_one.host_round_trips);
      // All but the last layer of each segment once more.
      CHECK(a.work.matrix_flops == every_one.matrix_flops + (layers - (kept - 1)) * layer);
      for (const moe::peak_promise& p : a.promises)
        if (p.of == plateau::tag::checkpoint) {
          CHECK(p.most.device_bytes == a.checkpoint.bytes);
          CHECK(p.most.pinned_bytes == a.parked.bytes);
        }
    }
  }
}

TEST_CASE("with every input kept, no product but attention's scores goes forward more than twice") {
  const index_t layers = 4;
  const auto c = model_case::make<float>(config_of(layers, 64), 3, 2, 4);
  // Two sequences, two heads of 32, four positions in one tile.
  const std::uint64_t head = 2 * 8 * 64 * 17, scores = layers * (2 * 2 * 2 * 4 * 4 * 32);
  for (const bool by_rounds : {false, true}) {
    CAPTURE(by_rounds);
    step_setup setup{1, 1, 1, nullptr, false};
    setup.flatten.dispatch = by_rounds;
    setup.dispatch = {7, 7, 2, moe::expert_placement::native, 0};
    const std::uint64_t forward = run<float>(setup, c, true).accounts.front().work.matrix_flops;
    setup.backward = true;
    const std::uint64_t both = run<float>(setup, c, true).accounts.front().work.matrix_flops;
    // A product's two gradients take as much as it does forward, each.
    const std::uint64_t again = both - forward - 2 * forward;
    CHECK(again <= forward - head + scores);
    if (!by_rounds) CHECK(again == forward - head + scores); // by rounds an expert's last one is not needed
  }
}

// Scopes of boundaries are open while a layer goes forward or back; the stream that they were opened for may
// go before the model does.
TEST_CASE("a pass that an exception ends leaves nothing open, and the next one has its bits") {
  const auto c = model_case::make<float>(config_of(3), 3, 2, 4);
  moe::model_config config = test::config_of(c.config);
  config.flatten.checkpoint = true;
  config.checkpoint.keep_every = 2;
  const auto tokens = c.tokens();
  using backend = support::faulty_backend;
  using communicator = plateau::thread_communicator;
  // Calls body(pass) where operation `fails` of the first pass does; how many there were.
  const auto with = [&](std::int64_t fails, auto body) {
    std::int64_t operations = 0;
    const auto ends = plateau::run_ranks_collecting<communicator>(1, [&](communicator& world) {
      backend be;
      moe::model<backend, communicator, float, maybe_parked> model(be, world, world, config, {1, 1}, {2, 4});
      auto stream = be.make_stream("main");
      for (const moe::parameter_group* g : model.layout().groups())
        for (const moe::parameter& p : g->all())
          support::to_device(be, stream, model.weights().of(*g, p), [&](index_t i) {
            return static_cast<float>(c.weights.at(p.name).data[static_cast<std::size_t>(i)]);
          });
      const auto first = static_cast<std::int64_t>(be.plan().seen.size());
      if (fails >= 0) be.plan().at = first + fails;
      body([&] {
        moe::micro_batch batch;
        for (const auto& each : tokens) batch.sequences.push_back(each);
        batch.context = 4;
        batch.group_tokens = batch.step_tokens = 8;
        model.begin_step(stream);
        model.forward_backward(stream, std::move(batch));
        return support::from_device(be, stream, model.gradients().shared());
      });
      operations = static_cast<std::int64_t>(be.plan().seen.size()) - first;
      CHECK(be.plan().seen.size() > 100);
    });
    if (ends.front()) CHECK(ends.front()->text.find("injected fault") != std::string::npos);
    return operations;
  };
  std::vector<float> expected;
  const std::int64_t operations = with(-1, [&](auto pass) { expected = pass(); });
  int tried = 0, whole = 0;
  for (std::int64_t k = 0; k < operations; k += 7, ++tried) {
    CAPTURE(k);
    with(k, [&](auto pass) {
      CHECK_THROWS_AS(pass(), plateau::error);
      try {
        const auto found = pass();
        CHECK(found == expected);
        ++whole;
      } catch (const plateau::error& e) { // the stream is lost, or the store
        CHECK(std::string(e.what()).find("injected fault") != std::string::npos);
      }
    });
    with(k, [&](auto pass) { CHECK_THROWS_AS(pass(), plateau::error); }); // and all of it goes
  }
  CHECK(whole > tried / 2);
}
