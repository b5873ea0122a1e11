// SPDX-License-Identifier: Apache-2.0
//
// Sums over ranks in an order fixed by the rank numbers, ((x0 + x1) + x2) + ..., on any backend and any
// communicator: each element is summed by one rank, its owner, and copied to the others, so all ranks hold
// the same bits, and the same bits again whatever the size of the pieces. Work goes through a scratch buffer
// piece by piece, so what it takes does not grow with the data. All of these are collective and only enqueue.
// A communicator that has them natively does them itself.
#pragma once

#include <plateau/access.hpp>
#include <plateau/checks.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/exchange.hpp>
#include <plateau/rank_order_sum.hpp>
#include <plateau/scratch.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string>

namespace plateau::inline v0 {

struct collective_options {
  // Elements (of all ranks together) that are summed at a time.
  index_t piece_elements = index_t{1} << 18;
  // Sum in rank order also where the communicator has a sum of its own.
  bool rank_order = false;
};

// What a communicator may have of its own; the functions below then call it. A native sum adds in an order of
// its own: it must give all ranks the same bits, and the same bits each time it is given the same, but they
// need not be those of the sum in rank order. A gather moves bits and has no order.
template <class C, class B, class T, class S = device_space>
concept native_all_reduce = requires(C& c, typename B::stream& s, view<T, S> data) {
  c.all_reduce(s, inout(data), "what");
};
template <class C, class B, class T, class S = device_space>
concept native_reduce_scatter = requires(C& c, typename B::stream& s, view<T, S> v,
                                         std::span<const index_t> counts) {
  c.reduce_scatter(s, in(v), out(v), counts, "what");
};
template <class C, class B, class T, class S = device_space>
concept native_all_gather = requires(C& c, typename B::stream& s, view<T, S> v,
                                     std::span<const index_t> counts) {
  c.all_gather(s, in(v), out(v), counts, "what");
};

namespace detail {
// Two list entries per rank; on the heap only in groups of more than 64.
template <class Op> class peer_list {
 public:
  explicit peer_list(int ranks)
      : heap_(2 * static_cast<std::size_t>(ranks) > here_.size()
                  ? std::make_unique<Op[]>(2 * static_cast<std::size_t>(ranks))
                  : nullptr),
        ops_(heap_ ? heap_.get() : here_.data()) {}
  void push(Op op) { ops_[n_++] = op; }
  std::span<const Op> ops() const { return {ops_, n_}; }

 private:
  std::array<Op, 128> here_;
  std::unique_ptr<Op[]> heap_;
  Op* ops_;
  std::size_t n_ = 0;
};
struct peer_lists {
  explicit peer_lists(int ranks) : sends(ranks), receives(ranks) {}
  peer_list<send_op> sends;
  peer_list<receive_op> receives;
};

// The part of rank r when n elements are dealt to `ranks` as evenly as possible, and where it begins.
constexpr index_t even_count(index_t n, int ranks, int r) { return n / ranks + (r < n % ranks ? 1 : 0); }
constexpr index_t even_first(index_t n, int ranks, int r) {
  return n / ranks * r + std::min<index_t>(r, n % ranks);
}

// What one rank may hold of a piece.
constexpr index_t piece_rows(int ranks, const collective_options& o) {
  return std::max<index_t>(1, o.piece_elements / ranks);
}

inline void check_counts(const char* what, int rank, std::span<const index_t> counts, int ranks, index_t part,
                         index_t whole, source_line at) {
  index_t total = 0;
  for (const index_t c : counts) total += c;
  if (counts.size() == static_cast<std::size_t>(ranks) && total == whole &&
      counts[static_cast<std::size_t>(rank)] == part)
    return;
  throw config_error("plateau: rank " + std::to_string(rank) + ": " + what + ": " +
                     std::to_string(counts.size()) + " counts, " + std::to_string(total) +
                     " elements together, do not fit " + std::to_string(ranks) + " ranks with a part of " +
                     std::to_string(part) + " elements here and a whole of " + std::to_string(whole) +
                     at.text());
}

// Adds to the lists: part r of the data goes to rank r, what the others send to this one goes to its slot.
// part(r), a view, is called once for each rank, in order.
template <class T, class S, class Communicator, class Part>
void list_parts(peer_lists& lists, const Communicator& comm, Part part, view<T, S> slots, index_t mine) {
  for (int r = 0; r < comm.size(); ++r) {
    const view<const T, S> theirs = part(r);
    if (r == comm.rank()) continue;
    lists.sends.push(send_to(r, theirs));
    lists.receives.push(receive_from(r, slot_of(slots, comm.rank(), r, mine)));
  }
}
// Adds to the lists: every rank's part of `whole` reaches the others; parts follow one another. `mine` is
// copied too unless it lies in its place already.
template <class T, class S, class Communicator, class CountOf>
void list_gather(peer_lists& lists, const Communicator& comm, view<const T, S> mine, view<T, S> whole,
                 CountOf count_of) {
  index_t first = 0;
  for (int r = 0; r < comm.size(); ++r) {
    const view<T, S> place = whole.sub(first, count_of(r));
    first += place.n;
    if (r == comm.rank() && place.p == mine.p) continue;
    lists.sends.push(send_to(r, mine));
    lists.receives.push(receive_from(r, place));
  }
}
} // namespace detail

// Every rank's `mine` (counts[rank]), in rank order, into `all` (sum of counts) on every rank; the same
// counts on all ranks. `mine` may be its own place in `all`. Throws config_error when sizes do not fit the
// counts.
template <class T, class S, class Backend, class Communicator>
void all_gather(Backend&, Communicator& comm, on<typename Backend::stream> s,
                arg<view<const T, S>, access_mode::read> mine, arg<view<T, S>, access_mode::write> all,
                std::span<const index_t> counts, const char* what = "all_gather") {
  static_assert(check_backend<Backend>());
  static_assert(check_communicator<Communicator, Backend>());
  detail::check_counts(what, comm.rank(), counts, comm.size(), mine.v.n, all.v.n, s.place());
  if constexpr (native_all_gather<Communicator, Backend, T, S>) {
    comm.all_gather(s, mine, all, counts, what);
  } else {
    detail::peer_lists lists(comm.size());
    const auto count_of = [&](int r) { return counts[static_cast<std::size_t>(r)]; };
    detail::list_gather<T, S>(lists, comm, mine.v, all.v, count_of);
    comm.exchange(s, lists.sends.ops(), lists.receives.ops(), what);
  }
}

// Bytes of scratch for reduce_scatter and all_reduce of T, whatever the length of the data: a part of a piece
// from each of the other ranks.
template <class T> constexpr std::size_t reduce_scratch_bytes(int ranks, collective_options options = {}) {
  return static_cast<std::size_t>((ranks - 1) * detail::piece_rows(ranks, options)) * sizeof(T);
}

// Rank r gets the sum over ranks of the r-th part of `data` (sum of counts) in `result` (counts[r]), which
// may be that part of `data` itself; the same counts on all ranks. T: a number; bfloat16 and half are added
// in fp32 and rounded after the first two ranks (three, if the number of ranks is odd) and after each further
// two. `scratch`: reduce_scratch_bytes<T>; also where the sum is native. Throws config_error when sizes do
// not fit.
template <class T, class S, class Backend, class Communicator>
void reduce_scatter(Backend& backend, Communicator& comm, on<typename Backend::stream> s,
                    arg<view<const T, S>, access_mode::read> data, arg<view<T, S>, access_mode::write> result,
                    std::span<const index_t> counts, scratch_view scratch, collective_options options = {},
                    const char* what = "reduce_scatter") {
  static_assert(check_backend<Backend>());
  static_assert(check_communicator<Communicator, Backend>());
  const int ranks = comm.size(), me = comm.rank();
  detail::check_counts(what, me, counts, ranks, result.v.n, data.v.n, s.place());
  check_scratch(what, reduce_scratch_bytes<T>(ranks, options), scratch, s.place());
  if constexpr (native_reduce_scatter<Communicator, Backend, T, S>)
    if (!options.rank_order) return comm.reduce_scatter(s, data, result, counts, what);
  const index_t step = detail::piece_rows(ranks, options);
  const index_t longest = *std::max_element(counts.begin(), counts.end());
  for (index_t done = 0; done < longest; done += step) {
    index_t first = 0;
    view<const T, S> own;
    const auto part = [&](int r) {
      const index_t count = counts[static_cast<std::size_t>(r)], from = std::min(done, count);
      const view<const T, S> p = data.v.sub(first + from, std::min(step, count - from));
      first += count;
      if (r == me) own = p;
      return p;
    };
    const index_t from = std::min(done, result.v.n);
    const view<T, S> sum = result.v.sub(from, std::min(step, result.v.n - from));
    const auto slots = detail::slots_of<T, S>(scratch);
    detail::peer_lists lists(ranks);
    detail::list_parts<T, S>(lists, comm, part, slots, sum.n);
    comm.exchange(s, lists.sends.ops(), lists.receives.ops(), what);
    detail::sum_in_rank_order(backend, s, me, ranks, own, slots, sum);
  }
}

// data (n, the same on all ranks) becomes its sum over ranks, the same bits on all of them; rounding as for
// reduce_scatter. `scratch`: reduce_scratch_bytes<T>, also where the sum is native; config_error when it is
// smaller. Lengths that differ fail all ranks as sizes of an exchange that differ: the rank that is named
// sent what another did not expect, and may be one of the majority. Lengths that come from data are worth a
// vote before.
template <class T, class S, class Backend, class Communicator>
void all_reduce(Backend& backend, Communicator& comm, on<typename Backend::stream> s,
                arg<view<T, S>, access_mode::update> data, scratch_view scratch,
                collective_options options = {}, const char* what = "all_reduce") {
  static_assert(check_backend<Backend>());
  static_assert(check_communicator<Communicator, Backend>());
  const int ranks = comm.size(), me = comm.rank();
  check_scratch(what, reduce_scratch_bytes<T>(ranks, options), scratch, s.place());
  if constexpr (native_all_reduce<Communicator, Backend, T, S>)
    if (!options.rank_order) return comm.all_reduce(s, data, what);
  if (ranks == 1) return;
  const auto part_of = [&](view<T, S> piece, int r) {
    return piece.sub(detail::even_first(piece.n, ranks, r), detail::even_count(piece.n, ranks, r));
  };
  const auto slots = detail::slots_of<T, S>(scratch);
  // The exchange that gathers the sums of one piece carries the parts of the next.
  const index_t step = ranks * detail::piece_rows(ranks, options);
  view<T, S> before;
  for (index_t done = 0; done < data.v.n || before.n != 0; done += step) {
    const index_t from = std::min(done, data.v.n);
    const view<T, S> piece = data.v.sub(from, std::min(step, data.v.n - from)), mine = part_of(piece, me);
    detail::peer_lists lists(ranks);
    detail::list_gather<T, S>(lists, comm, part_of(before, me), before,
                              [&](int r) { return detail::even_count(before.n, ranks, r); });
    detail::list_parts<T, S>(
        lists, comm, [&](int r) { return view<const T, S>(part_of(piece, r)); }, slots, mine.n);
    comm.exchange(s, lists.sends.ops(), lists.receives.ops(), what);
    detail::sum_in_rank_order<T, S>(backend, s, me, ranks, mine, slots, mine);
    before = piece;
  }
}

} // namespace plateau::inline v0
