// SPDX-License-Identifier: Apache-2.0
//
// The sums themselves are in the communicators' contract suite; here: scratch and what does not fit.
#include <plateau/collectives.hpp>

#include <doctest/doctest.h>

#include <plateau/host/backend.hpp>
#include <plateau/run_ranks.hpp>

namespace pl = plateau;

TEST_CASE("collectives: scratch does not grow with the data") {
  CHECK(pl::reduce_scratch_bytes<float>(4) == 4u << 18);
  CHECK(pl::reduce_scratch_bytes<float>(3, {100}) == 99 * 4);
  CHECK(pl::reduce_scratch_bytes<std::int64_t>(8, {1}) == 64);
}

TEST_CASE("collectives: what does not fit is refused before anything is enqueued") {
  pl::run_ranks(1, [](auto& comm) {
    pl::host_backend backend;
    auto s = backend.make_stream("s");
    std::vector<float> a(10), b(10);
    std::vector<unsigned char> bytes(4096);
    const pl::view<float> x{a.data(), 10}, y{b.data(), 10};
    const pl::scratch_view small{bytes.data(), 39}, enough{bytes.data(), 40};
    const pl::collective_options options{10};
    const std::vector<pl::index_t> ten{10}, nine{9}, two{5, 5};
    CHECK_THROWS_AS(pl::all_reduce(backend, comm, s, inout(x), small, options), pl::config_error);
    CHECK_THROWS_AS(pl::reduce_scatter(backend, comm, s, in(x), out(y), ten, small, options),
                    pl::config_error);
    CHECK_THROWS_AS(pl::reduce_scatter(backend, comm, s, in(x), out(y), nine, enough, options),
                    pl::config_error);
    CHECK_THROWS_AS(pl::reduce_scatter(backend, comm, s, in(x), out(y), two, enough, options),
                    pl::config_error);
    CHECK_THROWS_AS(pl::all_gather(backend, comm, s, in(x), out(y.sub(0, 9)), ten), pl::config_error);
    CHECK(comm.counters().exchanges == 0);
    pl::reduce_scatter(backend, comm, s, in(x), out(y), ten, enough, options);
    backend.wait(backend.record(s));
  });
}

TEST_CASE("collectives: bytes sent are those of a reduce-scatter and an all-gather") {
  pl::run_ranks(4, [](auto& comm) {
    pl::host_backend backend;
    std::vector<float> a(1000, 1.0F);
    std::vector<unsigned char> scratch(pl::reduce_scratch_bytes<float>(4));
    auto s = backend.make_stream("s");
    pl::all_reduce(backend, comm, s, inout(pl::view<float>{a.data(), 1000}),
                   pl::scratch_view{scratch.data(), pl::index_t(scratch.size())});
    backend.wait(backend.record(s));
    CHECK(comm.counters().sent_bytes == 2 * 3 * 250 * 4);
    CHECK(comm.counters().exchanges == 2);
  });
}
