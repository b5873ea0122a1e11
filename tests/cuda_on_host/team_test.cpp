// SPDX-License-Identifier: Apache-2.0
//
// The teams of the CUDA backend on the stand-in: every member function ends with a barrier, `once` is done by
// one member, and all members get a reduction's result, whatever the order in which threads run.
#include "stand_in_tools.hpp"

#include <plateau/cuda.hpp>

#include <cstdint>
#include <vector>

namespace pl = plateau;
namespace cs = stand_in::cs;
using pl::index_t;
using pl::inout;
using pl::view;

namespace {

// Passes of one row's numbers through the members: each step reads what other members wrote in the last one.
template <int Threads> struct relay {
  static constexpr int team_threads = Threads;

  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t r, pl::tile<std::int64_t> x,
                             view<std::int64_t> count) const {
    std::int64_t* const row = x.row(r);
    const index_t n = x.cols / 2;
    std::int64_t* const other = row + n;
    team.for_each(n, [=](index_t i) { other[i] = row[n - 1 - i] + 1; });
    team.once([=] { count[r] += other[n - 1]; }); // another member's
    const std::int64_t so_far = count[r];         // by one member, seen by all
    team.for_each(n, [=](index_t i) { row[i] = other[n - 1 - i] + so_far; });
    team.for_each_sqrt(
        n, [=](index_t i) { return static_cast<float>(row[n - 1 - i] * row[n - 1 - i]); },
        [=](index_t i, float root) { other[i] = static_cast<std::int64_t>(root); });
    const std::int64_t sum =
        team.reduce(n, std::int64_t{0}, pl::plus{}, [=](index_t i) { return other[n - 1 - i]; });
    const std::int64_t largest =
        team.reduce(n, std::int64_t{0}, pl::maximum{}, [=](index_t i) { return other[i] * (i + 1); });
    team.for_each(n, [=](index_t i) { row[i] = sum + largest; });
    team.once([=] { count[r] += row[n - 1]; });
  }
};

template <int Threads> void check(index_t rows, index_t n) {
  pl::cuda_backend b;
  std::vector<std::int64_t> values(static_cast<std::size_t>(rows * 2 * n)),
      sums(static_cast<std::size_t>(rows), 5);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i * 7 % 23);
  pl::device_buffer<std::int64_t, pl::cuda_backend> x(b.device(), rows * 2 * n, pl::tag::other),
      count(b.device(), rows, pl::tag::other);
  auto s = b.make_stream("main");
  REQUIRE(cudaMemcpyAsync(x.data(), values.data(), x.bytes(), cudaMemcpyDefault, s.handle()) == cudaSuccess);
  REQUIRE(cudaMemcpyAsync(count.data(), sums.data(), count.bytes(), cudaMemcpyDefault, s.handle()) ==
          cudaSuccess);
  b.launch(s, pl::rows{rows}, relay<Threads>{}, inout(x.matrix(rows, 2 * n)), inout(count.all()));
  std::vector<std::int64_t> got_values(values.size()), got_sums(sums.size());
  REQUIRE(cudaMemcpyAsync(got_values.data(), x.data(), x.bytes(), cudaMemcpyDefault, s.handle()) ==
          cudaSuccess);
  REQUIRE(cudaMemcpyAsync(got_sums.data(), count.data(), count.bytes(), cudaMemcpyDefault, s.handle()) ==
          cudaSuccess);
  // The same by one thread.
  pl::serial_team alone;
  for (index_t r = 0; r < rows; ++r)
    relay<Threads>{}(alone, r, pl::tile<std::int64_t>{values.data(), rows, 2 * n, 2 * n},
                     view<std::int64_t>{sums.data(), rows});
  CHECK(got_values == values);
  CHECK(got_sums == sums);
}

} // namespace

TEST_CASE("blocks and warps of every size do what one thread does, in any order of threads") {
  for (const auto order : {cs::thread_order::forward, cs::thread_order::backward, cs::thread_order::shuffled})
    for (const index_t n : {1, 31, 100, 300}) {
      cs::options o;
      o.order = order;
      o.seed = static_cast<std::uint64_t>(n);
      const stand_in::with_settings back(o);
      check<32>(19, n); // three blocks of eight warps, the last one not full
      check<64>(3, n);
      check<256>(3, n);
      check<1024>(2, n);
    }
  CHECK(stand_in::findings().empty());
}
