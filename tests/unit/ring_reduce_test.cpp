// SPDX-License-Identifier: Apache-2.0
//
// The rotation alone, with a reduction of its own: for each x of any rank, the log of the sum of e^(x y) over
// the y of all ranks, with the mean of y under that as a payload: a softmax over a dimension that is split.
// It knows nothing of logits, targets or losses.
#include "support/device_values.hpp"
#include "support/rank_fixtures.hpp"
#include "support/tensors.hpp"

#include <plateau/drain.hpp>
#include <plateau/ring/online_lse.hpp>
#include <plateau/ring/ring_reduce.hpp>
#include <plateau/workspace.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <numeric>
#include <vector>

namespace pl = plateau;
using pl::index_t;
using state = pl::online_lse_with<float>;

namespace {

struct fold_values {
  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t i, pl::view<const float> x, pl::view<const float> y,
                             pl::view<state> to) const {
    const float factor = x[i];
    const state sum =
        team.reduce(y.n, state{}, pl::merge_lse{}, [=](index_t j) { return state::of(factor * y[j], y[j]); });
    team.once([=] { to[i] = sum; });
  }
};
struct merge_values {
  PLATEAU_HD void operator()(index_t i, pl::view<const state> from, pl::view<state> to) const {
    to[i] = merge(to[i], from[i]);
  }
};

struct softmax_work {
  pl::host_backend& backend;
  pl::view<const float> x, y;
  pl::view<state> result;
  int calls = 0; // for rows of this rank

  using stream = pl::host_backend::stream;

  void load(stream& s, const pl::ring_step& own, const pl::ring_block& payload) {
    backend.copy(s, pl::in(x.sub(own.first, own.rows)), pl::out(payload.as<float>(0, own.rows)));
    ++calls;
  }
  void compute(stream& s, const pl::ring_step& at, const pl::ring_block& payload,
               const pl::ring_block& carry) {
    REQUIRE(at.rows > 0);
    backend.launch(s, pl::rows{at.rows}, fold_values{}, pl::in(payload.as<float>(0, at.rows)), pl::in(y),
                   pl::out(carry.as<state>(1, at.rows)));
  }
  void merge(stream& s, index_t n, const pl::ring_block& arrived, const pl::ring_block& carry) {
    backend.launch(s, pl::elements{n}, merge_values{}, pl::in(arrived.as<state>(1, n)),
                   pl::inout(carry.as<state>(1, n)));
  }
  void finish(stream& s, const pl::ring_step& own, const pl::ring_block& carry) {
    backend.copy(s, pl::in(carry.as<state>(1, own.rows)), pl::out(result.sub(own.first, own.rows)));
    ++calls;
  }
};

} // namespace

TEST_CASE("a softmax over a split dimension: any counts on both sides, the rows at home in their places") {
  const std::vector<std::vector<index_t>> deals{{7},        {0},       {7, 4},         {0, 9},
                                                {3, 0, 10}, {0, 0, 0}, {1, 2, 3, 4, 5}};
  for (const auto& rows : deals)
    for (const index_t hop_rows : {1, 3, 100}) {
      const int ranks = static_cast<int>(rows.size());
      CAPTURE(ranks);
      CAPTURE(hop_rows);
      const index_t all_rows = std::accumulate(rows.begin(), rows.end(), index_t{0});
      const auto x = support::random_values<float>(all_rows, 1, 20),
                 y = support::random_values<float>(2 * ranks, 2, 5);
      std::vector<state> result(x.size());
      support::on_threads<>{}.run(ranks, [&](pl::thread_communicator& comm, pl::host_backend& backend) {
        const int me = comm.rank();
        const index_t first = std::accumulate(rows.begin(), rows.begin() + me, index_t{0}),
                      n = rows[static_cast<std::size_t>(me)];
        // The last rank has nothing of y, the first twice as much.
        const index_t begin = me == 0 ? 0 : 2 * me + 2, end = std::min<index_t>(2 * me + 4, 2 * ranks);
        const pl::ring_layout layout{
            hop_rows, {"x", ""}, {"", "state"}, {sizeof(float), 0}, {0, sizeof(state)}};
        pl::working_set set(pl::tag::other);
        layout.add_to(set, ranks);
        pl::workspace<pl::host_backend> space(backend, set);
        auto transfer = backend.make_stream("ring"), s = backend.make_stream("main");
        auto open = space.open(set);
        const auto buffers = pl::ring_buffers::take(open, layout, ranks);
        softmax_work work{backend, support::all(x).sub(first, n),
                          support::all(y).sub(std::min(begin, end), std::max<index_t>(0, end - begin)),
                          support::all(result).sub(first, n)};
        const pl::drain<pl::host_backend> before_they_go(backend, s);
        const pl::ring_schedule schedule(rows, hop_rows);
        for (int again = 0; again < 2; ++again)
          pl::ring_reduce<pl::host_backend, pl::thread_communicator>(backend, comm, transfer)
              .run(s, schedule, layout.payload, layout.carry, buffers, work, "softmax");
        const index_t blocks = (n + hop_rows - 1) / hop_rows;
        CHECK(work.calls == 2 * 2 * blocks);
        CHECK(open.device_high_water() == set.device_bytes());
      });
      for (std::size_t i = 0; i < x.size(); ++i) {
        double largest = -INFINITY, sum = 0, weighted = 0;
        for (const float v : y)
          largest = std::max(largest, static_cast<double>(x[i]) * static_cast<double>(v));
        for (const float v : y) {
          const double e = std::exp(static_cast<double>(x[i]) * static_cast<double>(v) - largest);
          sum += e;
          weighted += e * static_cast<double>(v);
        }
        CHECK(static_cast<double>(result[i].value()) ==
              doctest::Approx(largest + std::log(sum)).epsilon(1e-5));
        CHECK(static_cast<double>(result[i].mean()) == doctest::Approx(weighted / sum).epsilon(1e-4));
      }
    }
}

TEST_CASE("a layout that overflows is refused with its numbers") {
  const pl::ring_layout layout{index_t{1} << 60, {"x", ""}, {"", ""}, {1024, 0}, {0, 0}};
  pl::working_set set(pl::tag::other);
  CHECK_THROWS_AS(layout.add_to(set, 2), pl::config_error);
}
