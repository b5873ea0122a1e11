// SPDX-License-Identifier: Apache-2.0
//
// A first look at the seam: four ranks as threads, each with a backend and a stream; a kernel of one's own;
// rows sent around a ring; a sum over ranks; and where the memory went. What names the host are the two types
// at the top and run_ranks, which starts the threads: what runs on a rank is the same for any backend and
// communicator.
#include <plateau/plateau.hpp>

#include <cstdio>

namespace pl = plateau;
using backend_type = pl::host_backend;
using communicator_type = pl::thread_communicator;

// Kernels are named functors, written once for host and device. This one runs over rows: `team` is a block on
// a GPU, one thread here; reduce adds in a fixed order.
struct row_squares {
  template <class Team>
  PLATEAU_HD void operator()(Team& team, pl::index_t row, pl::tile<const float> x,
                             pl::view<float> sums) const {
    const float* values = x.row(row);
    const float sum =
        team.reduce(x.cols, 0.0F, pl::plus{}, [=](pl::index_t i) { return values[i] * values[i]; });
    team.once([=] { sums[row] = sum; });
  }
};

int main() {
  const pl::index_t rows = 4, cols = 1024;
  pl::run_ranks(4, [&](communicator_type& comm) {
    backend_type backend;
    pl::device_buffer<float, backend_type> x(backend.device(), rows * cols, pl::tag::activations);
    pl::device_buffer<float, backend_type> received(backend.device(), rows * cols, pl::tag::dispatch);
    pl::device_buffer<float, backend_type> sums(backend.device(), rows, pl::tag::other);
    pl::pinned_buffer<float, backend_type> pinned(backend.pinned(), rows, pl::tag::other);
    auto scratch_bytes =
        static_cast<pl::index_t>(pl::reduce_scratch_bytes<float>(comm.size(), {.piece_elements = 64}));
    pl::device_buffer<unsigned char, backend_type> scratch(backend.device(), scratch_bytes, pl::tag::other);
    auto stream = backend.make_stream("main"); // after the buffers: it must have ended before they go

    // Operations only enqueue. What a kernel does to each argument is said where it is launched.
    const float value = static_cast<float>(comm.rank()) / 32;
    backend.launch(stream, pl::elements{x.size()}, pl::fill<float>{value}, pl::out(x.all()));
    const int next = (comm.rank() + 1) % comm.size(),
              previous = (comm.rank() + comm.size() - 1) % comm.size();
    comm.exchange(stream, {pl::send_to(next, x.all())}, {pl::receive_from(previous, received.all())});
    backend.launch(stream, pl::rows{rows}, row_squares{}, pl::in(received.matrix(rows, cols)),
                   pl::out(sums.all()));
    pl::all_reduce(backend, comm, stream, pl::inout(sums.all()), scratch.all(), {.piece_elements = 64});

    // The only way a device value reaches the host: through pinned memory, after an event.
    backend.copy(stream, pl::in(sums.all()), pl::out(pinned.all()));
    float result[4];
    backend.fetch(backend.record(stream), pl::in(pinned.all()), result, "sums");
    pl::close_step(backend, comm, stream); // what failed on any rank, on the stream too, is thrown on all

    if (comm.rank() != 0) return;
    const float sum = result[0] + result[1] + result[2] + result[3];
    std::printf("sum of squares over all ranks: %g\n", static_cast<double>(sum));
    std::printf("device bytes at the peak: %zu\n", backend.device().meter().peak().bytes);
  });
}
