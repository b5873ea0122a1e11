// SPDX-License-Identifier: Apache-2.0
//
// A log-sum-exp and a softmax over columns that are split over ranks, as anyone could write them on
// ring_reduce: nothing travels but the state of a row, which visits every rank's columns; at home it is a
// logarithm, of which all ranks get all; for the softmax each writes the probabilities of its own columns.
#pragma once

#include <plateau/collectives.hpp>
#include <plateau/drain.hpp>
#include <plateau/resource.hpp>
#include <plateau/ring/online_lse.hpp>
#include <plateau/ring/ring_reduce.hpp>
#include <plateau/workspace.hpp>

#include <vector>

namespace example {

namespace pl = plateau;
using pl::index_t, pl::online_lse;

// Over rows{n}: the state of a row of this rank's columns.
struct fold_columns {
  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t r, pl::tile<const float> z, pl::view<online_lse> to) const {
    const float* row = z.row(r);
    const online_lse sum =
        team.reduce(z.cols, online_lse{}, pl::merge_lse{}, [=](index_t c) { return online_lse::of(row[c]); });
    team.once([=] { to[r] = sum; });
  }
};
struct join_columns {
  PLATEAU_HD void operator()(index_t r, pl::view<const online_lse> from, pl::view<online_lse> to) const {
    to[r] = merge(to[r], from[r]);
  }
};
struct take_logarithm {
  PLATEAU_HD void operator()(index_t r, pl::view<const online_lse> from, pl::view<float> to) const {
    to[r] = from[r].value();
  }
};
struct write_probabilities {
  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t r, pl::tile<const float> z, pl::view<const float> lses,
                             pl::tile<float> to) const {
    const float* from = z.row(r);
    float* p = to.row(r);
    const float lse = lses[r];
    team.for_each(z.cols, [=](index_t c) { p[c] = pl::exp(from[c] - lse); });
  }
};

// Row r of all is the business of the rank that owns it in even shards.
template <class Backend> struct softmax_rotation {
  Backend& backend;
  pl::tile<const float> z;
  pl::even_shards owned;
  int me;
  pl::view<float> lses; // of the rows of this rank

  using stream = typename Backend::stream;

  void load(stream&, const pl::ring_step&, const pl::ring_block&) {} // every rank has its columns of all rows
  void compute(stream& s, const pl::ring_step& at, const pl::ring_block&, const pl::ring_block& carry) {
    backend.launch(s, pl::rows{at.rows}, fold_columns{},
                   pl::in(z.row_block(owned.first(at.owner) + at.first, at.rows)),
                   pl::out(carry.template as<online_lse>(0, at.rows)));
  }
  void merge(stream& s, index_t n, const pl::ring_block& arrived, const pl::ring_block& carry) {
    backend.launch(s, pl::elements{n}, join_columns{}, pl::in(arrived.template as<online_lse>(0, n)),
                   pl::inout(carry.template as<online_lse>(0, n)));
  }
  void finish(stream& s, const pl::ring_step& own, const pl::ring_block& carry) {
    backend.launch(s, pl::elements{own.rows}, take_logarithm{},
                   pl::in(carry.template as<online_lse>(0, own.rows)),
                   pl::out(lses.sub(own.first, own.rows)));
  }
};

// lses = log of the sum of e^z over the columns of all ranks, of every row on every rank; z (rows, this
// rank's columns). Waits for the result.
template <class Backend, class Communicator>
void sharded_log_sum_exp(Backend& backend, Communicator& comm, pl::tile<const float> z, pl::view<float> lses,
                         index_t hop_rows) {
  const int ranks = comm.size(), me = comm.rank();
  const pl::even_shards owned{z.rows, ranks};
  std::vector<index_t> of_rank;
  for (int r = 0; r < ranks; ++r) of_rank.push_back(owned.count(r));
  const pl::ring_layout layout{hop_rows, {}, {"states"}, {}, {sizeof(online_lse)}};
  pl::working_set set(pl::tag::other);
  layout.add_to(set, ranks);
  set.template device<float>("logarithms of a rank's rows", owned.count(me));
  pl::workspace<Backend> space(backend, set);
  auto transfer = backend.make_stream("ring"), s = backend.make_stream("main");
  auto open = space.open(set);
  const auto buffers = pl::ring_buffers::take(open, layout, ranks);
  const pl::view<float> mine = open.template device<float>(owned.count(me));
  const pl::drain<Backend> before_they_go(backend, s);
  softmax_rotation<Backend> work{backend, z, owned, me, mine};
  pl::ring_reduce<Backend, Communicator>(backend, comm, transfer)
      .run(s, pl::ring_schedule(of_rank, hop_rows), layout.payload, layout.carry, buffers, work, "softmax");
  pl::all_gather(backend, comm, s, pl::in(mine), pl::out(lses), of_rank);
  backend.wait(backend.record(s));
}

// p = softmax(z) over the columns of all ranks; z and p (rows, this rank's columns). Waits for the result.
template <class Backend, class Communicator>
void sharded_softmax(Backend& backend, Communicator& comm, pl::tile<const float> z, pl::tile<float> p,
                     index_t hop_rows) {
  pl::device_buffer<float, Backend> lses(backend.device(), z.rows, pl::tag::other);
  sharded_log_sum_exp(backend, comm, z, lses.all(), hop_rows);
  auto s = backend.make_stream("main");
  backend.launch(s, pl::rows{z.rows}, write_probabilities{}, pl::in(z), pl::in(lses.all()), pl::out(p));
  backend.wait(backend.record(s));
}

} // namespace example
