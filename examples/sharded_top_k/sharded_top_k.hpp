// SPDX-License-Identifier: Apache-2.0
//
// The K largest of each row of a matrix whose columns are split over ranks, as anyone could write it on
// ring_reduce: nothing travels but the list of a row, which visits every rank's columns. What is the largest
// does not depend on who looks first: of equal values the lower column comes first, so that the result is
// exact, whatever the shards.
#pragma once

#include <plateau/collectives.hpp>
#include <plateau/drain.hpp>
#include <plateau/ring/ring_reduce.hpp>
#include <plateau/workspace.hpp>

#include <cstdint>
#include <limits>
#include <vector>

namespace example {

namespace pl = plateau;
using pl::index_t;

struct found {
  float value = -std::numeric_limits<float>::infinity();
  std::int64_t column = std::numeric_limits<std::int64_t>::max(); // there is none

  PLATEAU_HD bool before(const found& other) const {
    return value > other.value || (value == other.value && column < other.column);
  }
};

// The state of a row, in order. A new one is the identity. A NaN is never among the largest.
template <int K> struct largest {
  found at[K];

  PLATEAU_HD static largest of(float value, index_t column) {
    largest out;
    if (value == value) out.at[0] = {value, column};
    return out;
  }
};
struct merge_largest {
  template <int K> PLATEAU_HD largest<K> operator()(const largest<K>& a, const largest<K>& b) const {
    largest<K> out;
    int x = 0, y = 0;
    for (int i = 0; i < K; ++i) out.at[i] = a.at[x].before(b.at[y]) ? a.at[x++] : b.at[y++];
    return out;
  }
};

// Over rows{n}: the state of a row of this rank's columns, which begin at `first`.
struct find_largest {
  index_t first;
  template <class Team, int K>
  PLATEAU_HD void operator()(Team& team, index_t r, pl::tile<const float> z, pl::view<largest<K>> to) const {
    const float* row = z.row(r);
    const index_t begin = first;
    const largest<K> all = team.reduce(z.cols, largest<K>{}, merge_largest{},
                                       [=](index_t c) { return largest<K>::of(row[c], begin + c); });
    team.once([=] { to[r] = all; });
  }
};
struct join_largest {
  template <int K>
  PLATEAU_HD void operator()(index_t r, pl::view<const largest<K>> from, pl::view<largest<K>> to) const {
    to[r] = merge_largest{}(to[r], from[r]);
  }
};
// Over elements{rows x K}.
struct write_largest {
  template <int K>
  PLATEAU_HD void operator()(index_t i, pl::view<const largest<K>> from, pl::view<float> values,
                             pl::view<std::int64_t> columns) const {
    const found& one = from[i / K].at[i % K];
    values[i] = one.value;
    columns[i] = one.column;
  }
};

// Row r of all is the business of the rank that owns it in even shards.
template <class Backend, int K> struct largest_rotation {
  Backend& backend;
  pl::tile<const float> z;
  index_t first_column;
  pl::even_shards owned;
  pl::view<largest<K>> mine; // of the rows of this rank

  using stream = typename Backend::stream;

  void load(stream&, const pl::ring_step&, const pl::ring_block&) {} // every rank has its columns of all rows
  void compute(stream& s, const pl::ring_step& at, const pl::ring_block&, const pl::ring_block& carry) {
    backend.launch(s, pl::rows{at.rows}, find_largest{first_column},
                   pl::in(z.row_block(owned.first(at.owner) + at.first, at.rows)),
                   pl::out(carry.template as<largest<K>>(0, at.rows)));
  }
  void merge(stream& s, index_t n, const pl::ring_block& arrived, const pl::ring_block& carry) {
    backend.launch(s, pl::elements{n}, join_largest{}, pl::in(arrived.template as<largest<K>>(0, n)),
                   pl::inout(carry.template as<largest<K>>(0, n)));
  }
  void finish(stream& s, const pl::ring_step& own, const pl::ring_block& carry) {
    backend.copy(s, pl::in(carry.template as<largest<K>>(0, own.rows)),
                 pl::out(mine.sub(own.first, own.rows)));
  }
};

// On every rank the K largest of each row of z (rows, this rank's columns, of which the first is column
// first_column of all): values and columns (rows x K), largest first. Where a row has fewer than K, the rest
// is -infinity and the highest int64. Waits for the result.
template <int K, class Backend, class Communicator>
void sharded_top_k(Backend& backend, Communicator& comm, pl::tile<const float> z, index_t first_column,
                   pl::view<float> values, pl::view<std::int64_t> columns, index_t hop_rows) {
  const int ranks = comm.size(), me = comm.rank();
  const pl::even_shards owned{z.rows, ranks};
  std::vector<index_t> of_rank;
  for (int r = 0; r < ranks; ++r) of_rank.push_back(owned.count(r));
  const pl::ring_layout layout{hop_rows, {}, {"largest"}, {}, {sizeof(largest<K>)}};
  pl::working_set set(pl::tag::other);
  layout.add_to(set, ranks);
  set.template device<largest<K>>("largest of a rank's rows", owned.count(me));
  set.template device<largest<K>>("largest of all rows", z.rows);
  pl::workspace<Backend> space(backend, set);
  auto transfer = backend.make_stream("ring"), s = backend.make_stream("main");
  auto open = space.open(set);
  const auto buffers = pl::ring_buffers::take(open, layout, ranks);
  const auto mine = open.template device<largest<K>>(owned.count(me)),
             all = open.template device<largest<K>>(z.rows);
  const pl::drain<Backend> before_they_go(backend, s);
  largest_rotation<Backend, K> work{backend, z, first_column, owned, mine};
  pl::ring_reduce<Backend, Communicator>(backend, comm, transfer)
      .run(s, pl::ring_schedule(of_rank, hop_rows), layout.payload, layout.carry, buffers, work, "top k");
  pl::all_gather(backend, comm, s, pl::in(mine), pl::out(all), of_rank);
  backend.launch(s, pl::elements{z.rows * K}, write_largest{}, pl::in(all), pl::out(values),
                 pl::out(columns));
  backend.wait(backend.record(s));
}

} // namespace example
