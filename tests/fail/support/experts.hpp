// SPDX-License-Identifier: Apache-2.0
//
// An expert of the dispatch, member by member, so that a test can leave one out.
#pragma once

#include <plateau/all_to_all/capped_all_to_all.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/host/thread_communicator.hpp>

#include <cstddef>
#include <span>

namespace experts {

namespace pl = plateau;

using stream = pl::host_backend::stream;
using op = pl::capped_all_to_all<pl::host_backend, pl::thread_communicator, float>;

struct weights {
  using weight_type = float;
  std::span<const pl::matrix_extent> weight_parts() const { return {}; }
};
struct steps {
  std::size_t forward_scratch_bytes(pl::index_t, pl::index_t) const { return 0; }
  void forward(stream&, const pl::expert_groups<float>&, const pl::row_parts<float>&, pl::tile<float>,
               pl::scratch_view) {}
};
struct steps_back {
  std::size_t backward_scratch_bytes(pl::index_t, pl::index_t) const { return 0; }
  void backward(stream&, const pl::expert_groups<float>&, const pl::row_parts<float>&, pl::view<const float>,
                pl::tile<const float>, pl::tile<float>, pl::view<float>, pl::scratch_view) {}
};
struct forward_only : weights, steps {};
struct whole : weights, steps, steps_back {};

template <class Expert> void run(op& exchange, Expert& expert) {
  pl::host_backend backend;
  stream s = backend.make_stream("main");
  exchange.run(s, {}, {}, {}, {}, {}, expert, {});
}
template <class Expert> void run_backward(op& exchange, Expert& expert) {
  pl::host_backend backend;
  stream s = backend.make_stream("main");
  exchange.run_backward(s, {}, {}, {}, {}, {}, {}, {}, expert, {}, {});
}

} // namespace experts
