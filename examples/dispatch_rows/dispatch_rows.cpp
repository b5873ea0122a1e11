// SPDX-License-Identifier: Apache-2.0
//
// Four ranks have readings of sensors. Each reading is to be judged by the expert for its kind, and experts
// live on different ranks. Nearly all readings are of one kind, yet no rank needs room for them all: they
// travel in rounds, and a round brings a rank no more rows than the cap, wherever they come from.
#include <plateau/all_to_all.hpp>
#include <plateau/plateau.hpp>

#include <atomic>
#include <iostream>
#include <span>
#include <vector>

namespace pl = plateau;
using pl::index_t;
using backend_type = pl::host_backend;
using communicator_type = pl::thread_communicator;
template <class T> using device = pl::device_buffer<T, backend_type>;

// What travels can be anything that is copied byte by byte; what comes back for it is added up.
struct reading {
  std::int32_t kind;
  float samples[15];
};
template <> struct plateau::row_traits<reading> { using result_type = float; };

constexpr index_t group = 4, experts = 8, readings = 4096, cap = 256; // of a rank
int kind_of(index_t i) { return static_cast<int>(i % 10 < 9 ? 0 : i % experts); }

// Kernels; `elements` run one call for each i.
struct make_reading {
  void operator()(index_t i, pl::view<reading> rows, pl::view<std::int32_t> ids) const {
    ids[i] = rows[i].kind = kind_of(i);
    for (float& sample : rows[i].samples) sample = static_cast<float>(i % 100);
  }
};
struct weigh {
  void operator()(index_t i, pl::tile<const reading> rows, pl::tile<const float> weight,
                  pl::tile<float> to) const {
    float sum = 0;
    for (index_t c = 0; c < 15; ++c) sum += weight(0, c) * rows(i, 0).samples[c];
    to(i, 0) = sum;
  }
};

// The expert: one row of 15 weights each. It is given the rows of a round, those of one expert side by side.
struct weighing_expert {
  using weight_type = float;
  backend_type* backend;
  pl::matrix_extent part{1, 15};

  std::span<const pl::matrix_extent> weight_parts() const { return {&part, 1}; }
  std::size_t forward_scratch_bytes(index_t, index_t) const { return 0; }
  void forward(backend_type::stream& stream, const pl::expert_groups<float>& groups,
               const pl::row_parts<reading>& rows, pl::tile<float> results, pl::scratch_view) {
    for (index_t g = 0; g < groups.size(); ++g) {
      const index_t first = groups.first(g), n = groups.rows(g);
      backend->launch(stream, pl::elements{n}, weigh{}, pl::in(std::get<0>(rows).row_block(first, n)),
                      pl::in(groups.weight(g, 0)), pl::out(results.row_block(first, n)));
    }
  }
};

int main() {
  using dispatch = pl::capped_all_to_all<backend_type, communicator_type, reading>;
  std::atomic<int> wrong{0};
  pl::run_ranks(group, [&](communicator_type& comm) {
    backend_type backend;
    weighing_expert expert{&backend};
    dispatch::shape shape;
    shape.tokens = readings, shape.experts = experts;
    shape.widths = {1}; // one reading to a row
    shape.send_cap_rows = shape.receive_cap_rows = cap;
    // All memory is known before there is any.
    pl::workspace<backend_type> space(backend, dispatch::reserve_for(shape, comm.size(), expert));
    dispatch exchange(backend, comm, shape, space, expert);
    const pl::expert_homes homes{experts, comm.size()}; // which rank owns which experts
    const index_t first = homes.first(comm.rank()), local = homes.count(comm.rank());
    device<reading> rows(backend.device(), readings, pl::tag::activations);
    device<std::int32_t> ids(backend.device(), readings, pl::tag::other);
    device<float> weights(backend.device(), local * 15, pl::tag::parameters);
    device<float> sums(backend.device(), readings, pl::tag::activations);
    pl::pinned_buffer<float, backend_type> on_host(backend.pinned(), readings, pl::tag::other);
    auto stream = backend.make_stream("main");
    backend.launch(stream, pl::elements{readings}, make_reading{}, pl::out(rows.all()), pl::out(ids.all()));
    backend.launch(stream, pl::elements{readings}, pl::fill<float>{0}, pl::out(sums.all()));
    std::vector<pl::tile<const float>> weight_of; // of this rank's experts
    for (index_t e = 0; e < local; ++e) {
      const auto one = weights.all().sub(e * 15, 15);
      backend.launch(stream, pl::elements{15}, pl::fill<float>{static_cast<float>(first + e + 1)},
                     pl::out(one));
      weight_of.push_back(pl::as_matrix(one, 1, 15));
    }
    // Who sends how much to whom is counted once; then rows go out, are judged, and come back.
    const pl::dispatch_plan plan = exchange.plan(stream, ids.all());
    exchange.run(stream, plan, ids.all(), {rows.matrix(readings, 1)}, {}, sums.matrix(readings, 1), expert,
                 weight_of);
    backend.copy(stream, pl::in(sums.all()), pl::out(on_host.all()));
    std::vector<float> result(readings);
    backend.fetch(backend.record(stream), pl::in(on_host.all()), result, "sums");
    pl::close_step(backend, comm, stream);
    for (index_t i = 0; i < readings; ++i)
      if (result[static_cast<std::size_t>(i)] != static_cast<float>((kind_of(i) + 1) * 15 * (i % 100)))
        ++wrong;
    if (comm.rank() != 0) return;
    dispatch::shape uncapped = shape;
    uncapped.send_cap_rows = uncapped.receive_cap_rows = group * readings;
    const auto bytes = [&](const dispatch::shape& s) {
      return dispatch::working_set_of(s, comm.size(), expert, pl::dispatch_pass::forward).device_bytes();
    };
    const pl::dispatch_statistics done = exchange.statistics();
    std::cout << done.all_rows << " rows in " << done.rounds << " rounds\nthe busiest rank computed "
              << done.skew() << " of the mean; " << done.native_skew() << " if no expert had moved\n"
              << "working set with a cap of " << cap << " rows: " << bytes(shape)
              << " bytes; without: " << bytes(uncapped) << '\n';
  });
  std::cout << "wrong results: " << wrong << '\n';
  return wrong == 0 ? 0 : 1;
}
