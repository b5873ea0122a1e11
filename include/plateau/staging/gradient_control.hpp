// SPDX-License-Identifier: Apache-2.0
//
// The norm of all gradients of all ranks, whether it is finite, and how much to clip, as three numbers on the
// device that are the same on every rank before the first byte of state changes; no host waits for them. The
// squares are summed in double over fixed blocks of a list, the blocks exactly: neither buckets nor ranks
// nor shards of whole blocks change one bit.
//
//   control.begin(stream, m);
//   control.add(stream, m, view<const float>(gradients), 0, n, true);   // as often as there are pieces
//   control.finish(stream, m, 1.0, norm);                               // collective: one small exchange
//   backend.launch(stream, ..., in(m.control), ...);
#pragma once

#include <plateau/access.hpp>
#include <plateau/checks.hpp>
#include <plateau/collectives.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/kernels.hpp>
#include <plateau/staging/gradient_kernels.hpp>
#include <plateau/view.hpp>

#include <algorithm>
#include <string>
#include <vector>

namespace plateau::inline v0 {

// Its device memory, from a source: ranks x 200 B and 32 KiB.
struct gradient_control_memory {
  static constexpr index_t most_blocks = 4096; // summed at a time

  view<double> partial;    // (most_blocks)
  view<std::int64_t> sums; // (ranks, exact_sum::words)
  view<float> control;     // (2): factor, skip

  template <class Source>
  gradient_control_memory(Source& from, int ranks)
      : partial(from.template device<double>("squares of blocks of gradients", most_blocks)),
        sums(from.template device<std::int64_t>("squares of gradients, of each rank",
                                                ranks * exact_sum::words)),
        control(from.template device<float>("clip and skip", 2)) {}
};

// Used by the rank's host thread; calls only enqueue, on the stream they are given.
template <class Backend, class Communicator> class gradient_control {
  static_assert(check_backend<Backend>());
  static_assert(check_communicator<Communicator, Backend>());
  using stream = typename Backend::stream;

 public:
  // Elements whose squares are summed at a time. Pieces that begin at multiples of it give the same bits
  // however a list is cut.
  static constexpr index_t block_elements = 16384;

  // Both must outlive it.
  gradient_control(Backend& backend, Communicator& comm)
      : backend_(&backend), comm_(&comm), counts_(static_cast<std::size_t>(comm.size()), exact_sum::words) {}

  void begin(stream& s, const gradient_control_memory& m) {
    backend_->launch(s, elements{m.partial.n}, fill<double>{0}, out(m.partial));
    const auto mine = own(m);
    backend_->launch(s, elements{mine.n}, fill<std::int64_t>{0}, out(mine));
  }
  // The elements [first, first + count) of `part`, a piece of a list that begins at a multiple of
  // block_elements. counts: whether they enter the norm on this rank; of what several ranks have alike, one
  // of them counts it, and all of them look whether it is finite. Throws config_error when they do not lie in
  // the piece.
  template <class Gradient>
  void add(stream& s, const gradient_control_memory& m, view<const Gradient> part, index_t first,
           index_t count, bool counts) {
    (void)part.sub(first, count);
    constexpr index_t most = gradient_control_memory::most_blocks * block_elements;
    for (index_t from = first / most * most; from < first + count; from += most) {
      const auto piece = part.sub(from, std::min(most, part.n - from));
      const index_t begin = std::max(first, from), end = std::min(first + count, from + piece.n);
      const block_squares squares{block_elements, begin - from, end - begin};
      const auto partial = m.partial.sub(0, (piece.n + block_elements - 1) / block_elements);
      backend_->launch(s, rows{squares.rows()}, squares, in(piece), inout(partial));
      backend_->launch(s, rows{1}, fold_squares{counts}, inout(partial), inout(own(m)));
    }
  }
  // Collective, one exchange of 200 B: then m.control and `norm` (1), which is that before clipping, are the
  // same on all ranks. limit: the largest norm; 0: no clipping.
  void finish(stream& s, const gradient_control_memory& m, double limit, view<float> norm) {
    all_gather(*backend_, *comm_, s, in(view<const std::int64_t>(own(m))), out(m.sums), counts_,
               "norm of gradients");
    backend_->launch(s, rows{1}, decide_step{static_cast<float>(limit)}, in(view<const std::int64_t>(m.sums)),
                     out(m.control), out(norm));
  }

 private:
  view<std::int64_t> own(const gradient_control_memory& m) const {
    return m.sums.sub(comm_->rank() * exact_sum::words, exact_sum::words);
  }

  Backend* backend_;
  Communicator* comm_;
  std::vector<index_t> counts_;
};

} // namespace plateau::inline v0
