// SPDX-License-Identifier: Apache-2.0
//
// Rows of several parts, which arrive together: a hidden state, an integer, a struct of the user's own.
// Results of another width than the rows, of another type than the first part; rows of half.
#include "support/dispatch_checks.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace pl = plateau;
using pl::index_t, pl::tile, pl::view;

namespace {

const support::on_threads<> threads;
using backend_type = pl::host_backend;
using communicator = pl::thread_communicator;

constexpr index_t row_width = 5, result_width = 3;

// What a row carries beside its numbers; of an odd size.
struct stamp {
  std::int16_t rank = 0;
  std::int16_t token = 0;
  unsigned char check = 0, more[2] = {0, 0};

  static stamp of(index_t rank, index_t token) {
    stamp s;
    s.rank = static_cast<std::int16_t>(rank);
    s.token = static_cast<std::int16_t>(token);
    s.check = static_cast<unsigned char>(rank * 31 + token * 7);
    return s;
  }
};
// Multiples of 1/8 below 1, so that sums of a few are exact in bfloat16.
float hidden_of(index_t rank, index_t token, index_t c) {
  return static_cast<float>((rank * 5 + token * 3 + c) % 8) / 8;
}
// What an expert makes of a row, if all its parts are of one row, and NaN otherwise.
struct judge {
  template <class H>
  PLATEAU_HD float operator()(const H* hidden, std::int32_t id, const stamp& s, float weight) const {
    bool whole = id == s.rank * 1000 + s.token && s.check == stamp::of(s.rank, s.token).check;
    for (index_t c = 0; c < row_width; ++c)
      whole = whole && pl::widen(hidden[c]) == hidden_of(s.rank, s.token, c);
    return whole ? static_cast<float>(s.token % 8) / 8 + weight : 0.0F / 0.0F;
  }
};
struct judge_rows {
  template <class Team, class H, class R, class S>
  PLATEAU_HD void operator()(Team& team, index_t r, tile<const H, S> hidden, tile<const std::int32_t, S> id,
                             tile<const stamp, S> s, tile<const float, S> weight, tile<R, S> y) const {
    const float found = judge{}(hidden.row(r), id(r, 0), s(r, 0), weight(0, 0));
    R* to = y.row(r);
    team.for_each(y.cols, [=](index_t c) { to[c] = pl::narrow<R>(found + static_cast<float>(c)); });
  }
};
struct judge_back {
  template <class Team, class H, class R, class S>
  PLATEAU_HD void operator()(Team& team, index_t r, tile<const H, S> hidden, tile<const std::int32_t, S> id,
                             tile<const stamp, S> s, tile<const float, S> weight, view<const float, S> gates,
                             tile<const R, S> dy, tile<H, S> dx, view<float, S> dgates) const {
    const float found = judge{}(hidden.row(r), id(r, 0), s(r, 0), weight(0, 0)), gate = gates[r];
    const R* upstream = dy.row(r);
    float dot = 0, sum = 0;
    for (index_t c = 0; c < dy.cols; ++c) {
      dot += pl::widen(upstream[c]) * (found + static_cast<float>(c));
      sum += pl::widen(upstream[c]);
    }
    H* to = dx.row(r);
    team.once([=] { dgates[r] = dot; });
    team.for_each(dx.cols, [=](index_t c) { to[c] = pl::narrow<H>(gate * sum * pl::widen(hidden(r, c))); });
  }
};

template <class H, class R> struct judging_expert {
  using weight_type = float;
  using stream = backend_type::stream;
  using rows = pl::row_parts<H, std::int32_t, stamp>;

  backend_type* backend = nullptr;
  std::array<pl::matrix_extent, 1> parts{{{1, 1}}};

  std::span<const pl::matrix_extent> weight_parts() const { return parts; }
  std::size_t forward_scratch_bytes(index_t, index_t) const { return 0; }
  std::size_t backward_scratch_bytes(index_t, index_t) const { return 0; }
  void forward(stream& s, const pl::expert_groups<float>& groups, const rows& in, tile<R> results,
               pl::scratch_view) {
    for (index_t g = 0; g < groups.size(); ++g) {
      const index_t first = groups.first(g), n = groups.rows(g);
      backend->launch(s, pl::rows{n}, judge_rows{}, pl::in(std::get<0>(in).row_block(first, n)),
                      pl::in(std::get<1>(in).row_block(first, n)),
                      pl::in(std::get<2>(in).row_block(first, n)), pl::in(groups.weight(g, 0)),
                      pl::out(results.row_block(first, n)));
    }
  }
  void backward(stream& s, const pl::expert_groups<float>& groups, const rows& in, view<const float> gates,
                tile<const R> dresults, tile<H> drows, view<float> dgates, pl::scratch_view) {
    for (index_t g = 0; g < groups.size(); ++g) {
      const index_t first = groups.first(g), n = groups.rows(g);
      backend->launch(s, pl::rows{n}, judge_back{}, pl::in(std::get<0>(in).row_block(first, n)),
                      pl::in(std::get<1>(in).row_block(first, n)),
                      pl::in(std::get<2>(in).row_block(first, n)), pl::in(groups.weight(g, 0)),
                      pl::in(gates.sub(first, n)), pl::in(dresults.row_block(first, n)),
                      pl::out(drows.row_block(first, n)), pl::out(dgates.sub(first, n)));
    }
  }
};

float weight_of(index_t expert) { return static_cast<float>(expert % 4) / 4; }

void check_parts(int slots, bool ordered, index_t padding) {
  using hidden = pl::bfloat16;
  using op = pl::capped_all_to_all<backend_type, communicator, hidden, std::int32_t, stamp>;
  const std::vector<index_t> tokens{40, 0, 33};
  const index_t experts = 7, k = 2;
  const auto where = support::workload("hot rank", 3, 7, 2);
  threads.run(3, [&](communicator& comm, backend_type& backend) {
    const int rank = comm.rank();
    const index_t n = tokens[static_cast<std::size_t>(rank)], ld = row_width + padding;
    op::shape shape;
    shape.tokens = 40;
    shape.experts = experts;
    shape.top_k = k;
    shape.widths = {row_width, 1, 1};
    shape.result_width = result_width;
    shape.send_cap_rows = shape.receive_cap_rows = 9;
    shape.slots = slots;
    shape.ordered = ordered;
    shape.placement.least_piece_rows = 1;
    judging_expert<hidden, hidden> expert{&backend};
    pl::workspace<backend_type> space(backend, op::reserve_for(shape, 3, expert));

    const auto at = [](index_t i) { return static_cast<std::size_t>(i); };
    std::vector<hidden> x(at(n * ld)), out(at(n * result_width)), dout(at(n * result_width)), dx(at(n * ld));
    std::vector<std::int32_t> ids, numbers;
    std::vector<stamp> stamps;
    std::vector<float> dgates(at(n * k));
    for (index_t t = 0; t < n; ++t) {
      for (index_t c = 0; c < row_width; ++c) x[at(t * ld + c)] = pl::narrow<hidden>(hidden_of(rank, t, c));
      for (index_t c = 0; c < result_width; ++c) {
        out[at(t * result_width + c)] = pl::narrow<hidden>(0.5F);
        dout[at(t * result_width + c)] = pl::narrow<hidden>(static_cast<float>((t + c) % 4) / 4);
      }
      for (index_t j = 0; j < k; ++j) ids.push_back(where(rank, t, j));
      numbers.push_back(static_cast<std::int32_t>(rank * 1000 + t));
      stamps.push_back(stamp::of(rank, t));
    }
    const pl::expert_homes homes{experts, 3};
    std::vector<float> weight, gradient(at(homes.count(rank)), 2.0F);
    for (index_t e = 0; e < homes.count(rank); ++e) weight.push_back(weight_of(homes.first(rank) + e));
    std::vector<tile<const float>> weights;
    std::vector<tile<float>> gradients;
    for (index_t e = 0; e < homes.count(rank); ++e) {
      weights.push_back({&weight[at(e)], 1, 1, 1});
      gradients.push_back({&gradient[at(e)], 1, 1, 1});
    }
    auto stream = backend.make_stream("main");
    op exchange(backend, comm, shape, space, expert);
    const view<const std::int32_t> routes{ids.data(), n * k};
    const pl::row_parts<hidden, std::int32_t, stamp> rows{tile<const hidden>{x.data(), n, row_width, ld},
                                                          tile<const std::int32_t>{numbers.data(), n, 1, 1},
                                                          tile<const stamp>{stamps.data(), n, 1, 1}};
    const pl::dispatch_plan p = exchange.plan(stream, routes);
    exchange.run(stream, p, routes, rows, {}, {out.data(), n, result_width, result_width}, expert, weights);
    exchange.run_backward(stream, p, routes, rows, {}, {dout.data(), n, result_width, result_width},
                          {dx.data(), n, row_width, ld}, {dgates.data(), n, k, k}, expert, weights,
                          gradients);
    backend.wait(backend.record(stream));
    CHECK(exchange.statistics().rounds > 4);
    CHECK(exchange.statistics().moved_experts > 0);

    for (index_t t = 0; t < n; ++t) {
      float sum = 0.5F, upstream = 0;
      for (index_t c = 0; c < result_width; ++c) upstream += static_cast<float>((t + c) % 4) / 4;
      std::array<float, 2> found{};
      for (index_t j = 0; j < k; ++j)
        sum += found[at(j)] = static_cast<float>(t % 8) / 8 + weight_of(where(rank, t, j));
      for (index_t c = 0; c < result_width; ++c)
        CHECK(pl::widen(out[at(t * result_width + c)]) == sum + 2 * static_cast<float>(c));
      for (index_t c = 0; c < row_width; ++c)
        CHECK(pl::widen(dx[at(t * ld + c)]) ==
              pl::widen(
                  pl::narrow<hidden>(2 * pl::widen(pl::narrow<hidden>(upstream * hidden_of(rank, t, c))))));
      for (index_t j = 0; j < k; ++j) {
        float dot = 0;
        for (index_t c = 0; c < result_width; ++c)
          dot += static_cast<float>((t + c) % 4) / 4 * (found[at(j)] + static_cast<float>(c));
        CHECK(dgates[at(t * k + j)] == dot);
      }
      for (index_t c = row_width; c < ld; ++c) CHECK(pl::widen(dx[at(t * ld + c)]) == 0); // not touched
    }
    CHECK(gradient == std::vector<float>(gradient.size(), 2.0F));
  });
}

} // namespace

// Rows of a struct alone, which come back as numbers.
template <> struct plateau::row_traits<stamp> { using result_type = float; };

TEST_CASE("the parts of a row arrive together, forward and backward") {
  for (const int slots : {1, 2, 3})
    for (const bool ordered : {false, true}) {
      CAPTURE(slots);
      CAPTURE(ordered);
      check_parts(slots, ordered, 0);
      check_parts(slots, ordered, 3);
    }
}

namespace {

struct read_stamps {
  template <class Team, class S>
  PLATEAU_HD void operator()(Team& team, index_t r, tile<const stamp, S> x, tile<float, S> y) const {
    float* to = y.row(r);
    const stamp* from = x.row(r);
    team.for_each(y.cols, [=](index_t c) { to[c] = static_cast<float>(from[c % 2].token); });
  }
};
// Without weights, and without a backward.
struct reading_expert {
  using weight_type = float;
  backend_type* backend = nullptr;

  std::span<const pl::matrix_extent> weight_parts() const { return {}; }
  std::size_t forward_scratch_bytes(index_t, index_t) const { return 0; }
  void forward(backend_type::stream& s, const pl::expert_groups<float>&, const pl::row_parts<stamp>& rows,
               tile<float> results, pl::scratch_view) {
    backend->launch(s, pl::rows{results.rows}, read_stamps{}, pl::in(std::get<0>(rows)), pl::out(results));
  }
};

} // namespace

TEST_CASE("rows of a type of one's own come back as numbers, wider than they went") {
  using op = pl::capped_all_to_all<backend_type, communicator, stamp>;
  threads.run(2, [&](communicator& comm, backend_type& backend) {
    const index_t n = comm.rank() == 0 ? 30 : 7;
    op::shape shape;
    shape.tokens = 30;
    shape.experts = 3;
    shape.widths = {2};
    shape.result_width = 6;
    shape.send_cap_rows = shape.receive_cap_rows = 8;
    shape.placement.least_piece_rows = 1;
    reading_expert expert{&backend};
    pl::workspace<backend_type> space(backend, op::reserve_for(shape, 2, expert));
    std::vector<stamp> x;
    std::vector<std::int32_t> ids(static_cast<std::size_t>(n), 0); // all to one: pieces without weights move
    std::vector<float> out(static_cast<std::size_t>(6 * n), 1.0F);
    for (index_t i = 0; i < 2 * n; ++i) x.push_back(stamp::of(comm.rank(), i));
    auto stream = backend.make_stream("main");
    op exchange(backend, comm, shape, space, expert);
    const view<const std::int32_t> routes{ids.data(), n};
    const pl::dispatch_plan p = exchange.plan(stream, routes);
    CHECK(p.pieces.size() == 1);
    exchange.run(stream, p, routes, {tile<const stamp>{x.data(), n, 2, 2}}, {}, {out.data(), n, 6, 6}, expert,
                 {});
    backend.wait(backend.record(stream));
    for (index_t t = 0; t < n; ++t)
      for (index_t c = 0; c < 6; ++c)
        CHECK(out[static_cast<std::size_t>(6 * t + c)] == static_cast<float>(1 + 2 * t + c % 2));
  });
}

TEST_CASE("rows of half") {
  for (const char* name : {"hot rank", "holes"})
    support::check_dispatch<pl::half>(support::dispatch_of({40, 0, 33}, 6, 2, name), threads);
}

TEST_CASE("D11: ranks whose rows are of other types of the same size do not begin") {
  const auto ends = pl::run_ranks_collecting(3, [&](communicator& comm) {
    backend_type backend;
    const pl::dispatch_shape<1> shape = support::dispatch_of({40, 40, 40}, 6, 2, "spread").limits();
    const auto make = [&](auto zero) {
      using type = decltype(zero);
      using op = pl::capped_all_to_all<backend_type, communicator, type>;
      const support::toy_expert<backend_type, type> expert(&backend, 12);
      pl::workspace<backend_type> space(backend, op::reserve_for(shape, 3, expert));
      const op exchange(backend, comm, shape, space, expert);
    };
    comm.rank() == 1 ? make(pl::half{}) : make(pl::bfloat16{});
  });
  for (const auto& end : ends) {
    REQUIRE(end.has_value());
    CHECK(end->failed_rank == 1);
    CHECK(end->text.find("rank 1 against rank 0, 2") != std::string::npos);
  }
}
