// SPDX-License-Identifier: Apache-2.0
//
// A function of one expert in the place of an expert of groups: the same bits, with backward and without.
#include "support/dispatch_checks.hpp"

#include <plateau/all_to_all.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/run_ranks.hpp>

#include <doctest/doctest.h>

#include <array>
#include <span>
#include <tuple>
#include <vector>

namespace pl = plateau;
using pl::index_t;
using backend_type = pl::host_backend;
using stream_type = backend_type::stream;

namespace {

struct multiply_rows {
  template <class Team>
  void operator()(Team& team, index_t r, pl::tile<const float> x, pl::tile<const float> w,
                  pl::tile<float> y) const {
    support::toy_forward{}(team, r, x, w, y);
  }
};

// What the toy does, for one expert.
struct one_toy {
  using weight_type = float;
  using rows_type = pl::row_parts<float>;

  backend_type* backend;
  std::array<pl::matrix_extent, 1> parts;

  std::span<const pl::matrix_extent> weight_parts() const { return parts; }
  std::size_t forward_scratch_bytes(index_t) const { return 0; }
  void forward(stream_type& s, std::span<const pl::tile<const float>> w, const rows_type& rows,
               pl::tile<float> results, pl::scratch_view) {
    backend->launch(s, pl::rows{results.rows}, multiply_rows{}, pl::in(std::get<0>(rows)), pl::in(w[0]),
                    pl::out(results));
  }
};
struct one_trainable_toy : one_toy {
  std::size_t backward_scratch_bytes(index_t most_rows) const {
    return static_cast<std::size_t>(most_rows * parts[0].cols) * sizeof(float);
  }
  void backward(stream_type& s, std::span<const pl::tile<const float>> w, const rows_type& rows,
                pl::view<const float> gates, pl::tile<const float> dy, pl::tile<float> dx,
                pl::view<float> dgates, std::span<const pl::tile<float>> dw, pl::scratch_view scratch) {
    const pl::tile<float> terms{reinterpret_cast<float*>(scratch.p), dx.rows, dx.cols, dx.cols};
    backend->launch(s, pl::rows{dx.rows}, support::toy_backward{}, pl::in(std::get<0>(rows)), pl::in(w[0]),
                    pl::in(gates), pl::in(dy), pl::out(dx), pl::out(dgates), pl::out(terms));
    backend->launch(s, pl::rows{1}, support::toy_weight_gradient{}, pl::in(terms), pl::inout(dw[0]));
  }
};

static_assert(pl::expert_of<pl::each_expert<one_toy>, backend_type, float>);
static_assert(!pl::trainable_expert_of<pl::each_expert<one_toy>, backend_type, float>);
static_assert(pl::trainable_expert_of<pl::each_expert<one_trainable_toy>, backend_type, float>);

} // namespace

TEST_CASE("a function of one expert is called for each group, in forward and backward") {
  auto c = support::dispatch_of({20, 0, 33}, 6, 2, "hot rank");
  pl::run_ranks(3, [&](pl::thread_communicator& comm) {
    backend_type backend;
    support::dispatch_rank<float, backend_type, pl::thread_communicator> toy(c, backend, comm);
    pl::dispatch_plan plan;
    toy.plan(plan);
    using expert_type = pl::each_expert<one_trainable_toy>;
    expert_type each(one_trainable_toy{{&backend, {{{1, c.width()}}}}});
    using op = pl::capped_all_to_all<backend_type, pl::thread_communicator, float>;
    pl::workspace<backend_type> space(backend, op::reserve_for(c.limits(), comm.size(), each));
    op exchange(backend, comm, c.limits(), space, each);
    toy.with(exchange, each, plan);
    const auto found = toy.results();
    const auto expected = support::oracle_of<float>(c, comm.rank());
    if (!support::same_as_exact(found.out, expected.out) ||
        !support::same_as_exact(found.drows, expected.drows) ||
        !support::same_as_exact(found.dweights, expected.dweights))
      throw pl::error("the results are not those of float64");
  });
}
TEST_CASE("work that is not routed is called once, under the first transfer, and where no rows move too") {
  for (const char* name : {"spread", "nowhere"}) {
    CAPTURE(name);
    auto c = support::dispatch_of({20, 0, 33}, 6, 2, name);
    pl::run_ranks(3, [&](pl::thread_communicator& comm) {
      backend_type backend;
      support::dispatch_rank<float, backend_type, pl::thread_communicator> toy(c, backend, comm);
      pl::dispatch_plan plan;
      toy.plan(plan);
      int calls = 0;
      toy.forward(plan, [&](stream_type& s) { calls += &s == &toy.stream() ? 1 : 100; });
      if (calls != 1) throw pl::error("called " + std::to_string(calls) + " times");
      if (!support::same_as_exact(toy.results().out, support::oracle_of<float>(c, comm.rank()).out))
        throw pl::error("the results are not those of float64");
    });
  }
}
