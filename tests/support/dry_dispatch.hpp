// SPDX-License-Identifier: Apache-2.0
//
// One layer's dispatch without data, in virtual time: plan, forward and backward of the reference model's
// expert on ranks of any number, with the scratch of CUDA. What goes where is a routing scenario's.
#pragma once

#include "swiglu_expert.hpp"

#include <plateau/all_to_all/capped_all_to_all.hpp>
#include <plateau/config.hpp>
#include <plateau/cuda/scratch_model.hpp>
#include <plateau/dry_run/backend.hpp>
#include <plateau/dry_run/predict.hpp>
#include <plateau/dry_run/presets.hpp>
#include <plateau/dry_run/run_dry.hpp>
#include <plateau/dry_run/scenario.hpp>
#include <plateau/error.hpp>
#include <plateau/resource.hpp>
#include <plateau/scalar.hpp>
#include <plateau/workspace.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace support {

namespace pl = plateau;
using pl::index_t;

struct dry_layer {
  int ranks = 8;
  index_t hidden = 2880, intermediate = 2880;
  pl::dispatch_shape<1> shape; // tokens of each rank; widths follow from hidden
  pl::route_form routes = pl::routing::balanced{};
  bool check_order = false;

  // 65,536 tokens a rank, 128 experts, top-8, 8 ranks, 2,880 wide, bf16.
  static dry_layer of_the_paper() {
    dry_layer l;
    l.shape.tokens = 65536;
    l.shape.experts = 128;
    l.shape.top_k = 8;
    return l;
  }
  dry_layer& cap(index_t rows) {
    shape.send_cap_rows = shape.receive_cap_rows = rows;
    return *this;
  }
};

class dry_dispatch {
 public:
  using backend = pl::dry_run<pl::cuda_scratch>;
  using expert = moe::swiglu_expert<backend, pl::bfloat16>;
  using operation = pl::capped_all_to_all<backend, pl::dry_communicator, pl::bfloat16>;
  using shape = operation::shape;

  static shape shape_of(const dry_layer& l) {
    shape s = l.shape;
    s.widths = {l.hidden};
    return s;
  }
  static pl::working_set working_set_of(const dry_layer& l, pl::dispatch_pass pass) {
    backend b;
    return operation::working_set_of(shape_of(l), l.ranks, expert(b, l.hidden, l.intermediate, 0), pass);
  }

  // Records the ranks' programs. Throws what a rank threw.
  explicit dry_dispatch(const dry_layer& layer)
      : statistics_of_forward(static_cast<std::size_t>(layer.ranks)),
        statistics_of_backward(statistics_of_forward), workspace_bytes(statistics_of_forward.size()) {
    const pl::routing_scenario scenario(layer.routes, pl::routing::even_shares{},
                                        {layer.shape.experts, layer.shape.top_k, 1, layer.ranks});
    pl::dry_options options;
    options.check_order = layer.check_order;
    options.scenario = [&](const pl::dry_fetch& f) {
      if (std::string_view(f.label) != "rows of each expert") return false;
      std::vector<std::int64_t> words(static_cast<std::size_t>(layer.shape.experts) + 2);
      scenario.counts(0, {0, f.rank, f.rank * layer.shape.tokens, 0, layer.shape.tokens},
                      std::span<std::int64_t>(words).first(static_cast<std::size_t>(layer.shape.experts)));
      std::copy_n(reinterpret_cast<const std::byte*>(words.data()), f.into.size(), f.into.data());
      return true;
    };
    ran = pl::run_dry(
        layer.ranks, [&](pl::dry_communicator& comm) { one_rank(layer, comm); }, options);
    if (ran.cause) ran.cause->raise();
  }

  // What the rank did that computes longest, between the beginning of plan and the end of backward, or in one
  // of them; all ranks come together before and after each. Others compute less, and wait for this one too.
  struct times {
    double seconds = 0, compute = 0, transfer = 0, exposed = 0, flops = 0;
    double exposed_share() const { return exposed / seconds; }
  };
  struct passes {
    times plan, forward, backward, all;
  };
  passes solve(const pl::hardware& machine, pl::dry::solve_options options = {}) const {
    const pl::dry::timeline t = pl::predict(ran, machine, options);
    if (!t.complete) throw pl::config_error(t.trouble);
    passes busiest;
    for (const pl::dry::rank_times& r : t.ranks) {
      const auto between = [&](std::size_t a, std::size_t b, times& most) {
        const pl::dry::rank_account d = r.marks.at(b).so_far - r.marks.at(a).so_far;
        if (d.compute_busy > most.compute)
          most = {d.seconds, d.compute_busy, d.transfer_busy, d.exposed_transfer, d.flops};
      };
      between(0, 1, busiest.plan);
      between(1, 2, busiest.forward);
      between(2, 3, busiest.backward);
      between(0, 3, busiest.all);
    }
    return busiest;
  }

  pl::dry_ranks ran;
  std::vector<pl::dispatch_statistics> statistics_of_forward, statistics_of_backward; // (ranks)
  std::vector<std::size_t> workspace_bytes;                                           // (ranks)

 private:
  void one_rank(const dry_layer& layer, pl::dry_communicator& comm) {
    backend b(comm);
    const shape limits = shape_of(layer);
    const pl::expert_homes homes{limits.experts, comm.size()};
    const index_t n = limits.tokens, k = limits.top_k, w = layer.hidden, local = homes.count(comm.rank());
    expert one(b, w, layer.intermediate, homes.most() + limits.foreign_slots(comm.size()));
    pl::workspace<backend> space(b, operation::reserve_for(limits, comm.size(), one));
    using pl::tag;
    const buffer<std::int32_t> ids(b.device(), n * k, tag::other);
    const buffer<pl::bfloat16> x(b.device(), n * w, tag::activations), y(b.device(), n * w, tag::activations),
        dy(b.device(), n * w, tag::activations), dx(b.device(), n * w, tag::activations);
    const buffer<float> gates(b.device(), n * k, tag::activations),
        dgates(b.device(), n * k, tag::activations);
    index_t elements = 0;
    for (const pl::matrix_extent& m : one.weight_parts()) elements += m.elements();
    const buffer<pl::bfloat16> weights(b.device(), local * elements, tag::parameters);
    const buffer<float> gradients(b.device(), local * elements, tag::gradients);
    std::vector<pl::tile<const pl::bfloat16>> weight_tiles;
    std::vector<pl::tile<float>> gradient_tiles;
    for (index_t e = 0, at = 0; e < local; ++e)
      for (const pl::matrix_extent& m : one.weight_parts()) {
        weight_tiles.push_back(pl::as_matrix(weights.all().sub(at, m.elements()), m.rows, m.cols));
        gradient_tiles.push_back(pl::as_matrix(gradients.all().sub(at, m.elements()), m.rows, m.cols));
        at += m.elements();
      }
    auto stream = b.make_stream("main");
    for (const auto* rows : {&x, &y, &dy})
      b.launch(stream, pl::elements{n * w}, pl::fill<pl::bfloat16>{pl::bfloat16{}}, pl::out(rows->all()));
    b.launch(stream, pl::elements{n * k}, pl::fill<std::int32_t>{0}, pl::out(ids.all()));
    b.launch(stream, pl::elements{n * k}, pl::fill<float>{0}, pl::out(gates.all()));
    if (local > 0) {
      b.launch(stream, pl::elements{weights.size()}, pl::fill<pl::bfloat16>{pl::bfloat16{}},
               pl::out(weights.all()));
      b.launch(stream, pl::elements{gradients.size()}, pl::fill<float>{0}, pl::out(gradients.all()));
    }
    operation exchange(b, comm, limits, space, one);
    const auto me = static_cast<std::size_t>(comm.rank());
    const auto moment = [&](const char* name) { // of the streams, and of all ranks
      b.wait(b.record(stream));
      comm.close_step();
      b.recorder().mark(name);
    };
    moment("plan begins");
    const pl::dispatch_plan plan = exchange.plan(stream, ids.all());
    b.recorder().mark("forward begins");
    exchange.run(stream, plan, ids.all(), {x.matrix(n, w)}, gates.matrix(n, k), y.matrix(n, w), one,
                 weight_tiles);
    statistics_of_forward[me] = exchange.statistics();
    moment("backward begins");
    exchange.run_backward(stream, plan, ids.all(), {x.matrix(n, w)}, gates.matrix(n, k), dy.matrix(n, w),
                          dx.matrix(n, w), dgates.matrix(n, k), one, weight_tiles, gradient_tiles);
    statistics_of_backward[me] = exchange.statistics();
    moment("backward ends");
    workspace_bytes[me] = space.device_bytes();
  }
  template <class T> using buffer = pl::device_buffer<T, backend>;
};

} // namespace support
