// SPDX-License-Identifier: Apache-2.0
//
// What the library writes once for every backend and communicator compiles with the archetypes, that is with
// what the concepts ask for and no more, and runs on memory that the host may not touch.
#include <contract/archetype_backend.hpp>
#include <contract/archetype_communicator.hpp>

#include <plateau/checks.hpp>
#include <plateau/close_step.hpp>
#include <plateau/collectives.hpp>
#include <plateau/column_sum.hpp>
#include <plateau/concepts.hpp>
#include <plateau/drain.hpp>
#include <plateau/kernels.hpp>
#include <plateau/offload/offload_store.hpp>
#include <plateau/resource.hpp>
#include <plateau/ring/linear_cross_entropy.hpp>
#include <plateau/staging/staging_pipeline.hpp>
#include <plateau/vote.hpp>
#include <plateau/working_set.hpp>
#include <plateau/workspace.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstdint>

namespace pl = plateau;
using archetypes::archetype_backend;
using archetypes::archetype_communicator;
using pl::index_t;

static_assert(pl::backend<archetype_backend> && pl::communicator<archetype_communicator, archetype_backend>);

// Every member, not only those that a test happens to call.
template class pl::workspace<archetype_backend>;
template class pl::drain<archetype_backend>;
template class pl::buffer<float, archetype_backend::device_memory>;
template class pl::buffer<pl::bfloat16, archetype_backend::host_memory>;
template class pl::linear_cross_entropy<archetype_backend, archetype_communicator, pl::bfloat16>;

TEST_CASE("memory and its loans") {
  archetype_backend backend;
  pl::working_set set(pl::tag::dispatch);
  set.device<float>("rows", 100).pinned<std::int64_t>("counts", 8);
  {
    pl::workspace<archetype_backend> space(backend, pl::overlay(set, set));
    auto phase = space.open(set);
    CHECK(phase.device<float>(100).n == 100);
    CHECK(phase.pinned<std::int64_t>(8).n == 8);
    CHECK(backend.device().meter().current(pl::tag::dispatch) == set.device_bytes());
  }
  CHECK(backend.device().meter().current() == 0);
}

TEST_CASE("state that passes through slots") {
  using pipeline = pl::staging_pipeline<archetype_backend, pl::staged<float, pl::flow::in>,
                                        pl::staged<double, pl::flow::inout>, pl::staged<float, pl::flow::out>,
                                        pl::staged<float, pl::flow::resident>>;
  archetype_backend backend;
  auto stream = backend.make_stream("main");
  const pl::staging_shape shape{10, 2};
  pl::pinned_buffer<float, archetype_backend> a(backend.pinned(), 25, pl::tag::other),
      c(backend.pinned(), 25, pl::tag::other);
  pl::pinned_buffer<double, archetype_backend> b(backend.pinned(), 25, pl::tag::other);
  pl::device_buffer<float, archetype_backend> d(backend.device(), 25, pl::tag::other);
  pl::workspace<archetype_backend> space(backend, pipeline::working_set_of(shape));
  pipeline stage(backend, space, shape);
  int calls = 0;
  stage.run(stream, pl::bucket_plan::elementwise(25, 10), {a.all(), b.all(), c.all(), d.all()},
            [&](auto& s, const pl::bucket&, auto, auto, auto to, auto) {
              ++calls;
              backend.launch(s, pl::elements{to.n}, pl::fill<float>{1}, pl::out(to));
            });
  CHECK(calls == 3);
}

TEST_CASE("tensors that are parked") {
  using store_type = pl::offload_store<archetype_backend>;
  archetype_backend backend;
  auto stream = backend.make_stream("main");
  auto shape = pl::offload_shape::of_layers(4, 96);
  shape.measure_stalls = true;
  pl::workspace<archetype_backend> space(backend, store_type::working_set_of(shape));
  pl::device_buffer<float, archetype_backend> x(backend.device(), 24, pl::tag::other);
  store_type store(backend, space, shape);
  std::array<pl::offload_handle<pl::tile<float>, archetype_backend>, 4> all;
  for (index_t t = 0; t < 3; ++t)
    all[static_cast<std::size_t>(t)] = store.hold(stream, t, pl::tile<const float>{x.data(), 4, 3, 6});
  all[3] = store.open<pl::tile<float>>(3);
  { const auto w = all[3].write(stream, 2, 12); }
  for (std::size_t t = 4; t-- > 0;) const auto r = all[t].get(stream);
  CHECK(store.statistics().restored == 2);
}

TEST_CASE("sums over rows and over ranks, a vote, and a drain") {
  archetype_backend backend;
  auto stream = backend.make_stream("main");
  archetype_communicator comm(1, 3);
  pl::device_buffer<float, archetype_backend> x(backend.device(), 3000, pl::tag::other);
  pl::device_buffer<unsigned char, archetype_backend> scratch(
      backend.device(), static_cast<index_t>(pl::reduce_scratch_bytes<std::int64_t>(3)), pl::tag::other);
  const pl::drain<archetype_backend> at_end(backend, stream);
  const std::array<index_t, 3> counts{1000, 1500, 500};

  pl::column_sum(backend, stream, pl::in(x.matrix(600, 5)), pl::inout(x.first(5)), scratch.all());
  pl::column_sum(backend, stream, pl::in(pl::as_matrix(pl::view<pl::bfloat16>{}, 0, 5)),
                 pl::inout(x.first(5)), scratch.all());
  pl::all_gather(backend, comm, stream, pl::in(x.first(1500)), pl::out(x.all()), counts);
  pl::reduce_scatter(backend, comm, stream, pl::in(x.all()), pl::out(x.first(1500)), counts, scratch.all());
  pl::all_reduce(backend, comm, stream, pl::inout(x.all()), scratch.all());
  pl::all_reduce(backend, comm, stream, pl::inout(pl::view<std::int64_t>{}), scratch.all());
  backend.launch(stream, pl::elements{5}, pl::fill<float>{1}, pl::out(x.first(5)));
  backend.launch(stream, pl::elements{5}, pl::add{}, pl::in(x.first(5)), pl::inout(x.first(5)));
  pl::all_reduce(backend, comm, stream, pl::inout(pl::view<pl::bfloat16>{}), scratch.all());
  comm.exchange(stream, {pl::send_to(0, x.all())}, {pl::receive_from(2, x.all())});
  pl::vote(comm, 7, nullptr, "archetype");
  pl::close_step(backend, comm, stream);
}
