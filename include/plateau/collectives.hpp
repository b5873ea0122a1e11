// SPDX-License-Identifier: Apache-2.0
//
// Sums over ranks in an order fixed by the rank numbers, ((x0 + x1) + x2) + ..., on any backend and any
// communicator: each element is summed by one rank, its owner, and copied to the others, so all ranks hold
// the same bits, and the same bits again whatever the size of the pieces. Work goes through a scratch buffer
// piece by piece, so what it takes does not grow with the data. All of these are collective and only enqueue.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/exchange.hpp>
#include <plateau/grouped.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string>

namespace plateau::inline v0 {

struct collective_options {
  // Elements (of all ranks together) that are in the scratch buffer at a time.
  index_t piece_elements = index_t{1} << 18;
};

// to[i] = a[i] + b[i]
struct sum_two {
  template <class T, class S>
  PLATEAU_HD void operator()(index_t i, view<const T, S> a, view<const T, S> b, view<T, S> to) const {
    to[i] = a[i] + b[i];
  }
};
// to[i] = (to[i] + a[i]) + b[i]
struct add_two {
  template <class T, class S>
  PLATEAU_HD void operator()(index_t i, view<const T, S> a, view<const T, S> b, view<T, S> to) const {
    to[i] = (to[i] + a[i]) + b[i];
  }
};
// to[i] = to[i] + a[i]
struct add_one {
  template <class T, class S> PLATEAU_HD void operator()(index_t i, view<const T, S> a, view<T, S> to) const {
    to[i] = to[i] + a[i];
  }
};

namespace detail {
// One list entry per rank; on the heap only in groups of more than 64.
template <class Op> class peer_list {
 public:
  explicit peer_list(int ranks)
      : heap_(static_cast<std::size_t>(ranks) > here_.size()
                  ? std::make_unique<Op[]>(static_cast<std::size_t>(ranks))
                  : nullptr),
        ops_(heap_ ? heap_.get() : here_.data()) {}
  void push(Op op) { ops_[n_++] = op; }
  std::span<const Op> ops() const { return {ops_, n_}; }

 private:
  std::array<Op, 64> here_{};
  std::unique_ptr<Op[]> heap_;
  Op* ops_;
  std::size_t n_ = 0;
};

// The part of rank r when n elements are dealt to `ranks` as evenly as possible.
constexpr index_t even_count(index_t n, int ranks, int r) { return n / ranks + (r < n % ranks ? 1 : 0); }

// What one rank may hold of a piece.
constexpr index_t piece_rows(int ranks, const collective_options& o) {
  return std::max<index_t>(1, o.piece_elements / ranks);
}

template <class T> view<T> scratch_of(const char* what, scratch_view scratch, std::size_t needed) {
  if (scratch.bytes() < needed)
    throw config_error("plateau: " + std::string(what) + " needs " + std::to_string(needed) +
                       " bytes of scratch but was given " + std::to_string(scratch.bytes()));
  return {reinterpret_cast<T*>(scratch.p), static_cast<index_t>(needed / sizeof(T))};
}

// Sends part r of the data to rank r, which sums what it gets in rank order into `result`. part(r), a view,
// is called once for each rank, in order.
template <class T, class Backend, class Communicator, class Part>
void reduce_piece(Backend& backend, Communicator& comm, on<typename Backend::stream> s, Part part,
                  view<T> result, view<T> scratch, const char* what) {
  const int ranks = comm.size();
  const index_t n = result.n;
  peer_list<send_op> sends(ranks);
  peer_list<receive_op> receives(ranks);
  for (int r = 0; r < ranks; ++r) {
    sends.push(send_to(r, part(r)));
    receives.push(receive_from(r, scratch.sub(r * n, n)));
  }
  comm.exchange(s, sends.ops(), receives.ops(), what);
  const auto from = [&](int r) { return in(scratch.sub(r * n, n)); };
  if (ranks == 1) {
    backend.copy(s, from(0), out(result));
    return;
  }
  backend.launch(s, elements{n}, sum_two{}, from(0), from(1), out(result));
  int r = 2;
  for (; r + 1 < ranks; r += 2)
    backend.launch(s, elements{n}, add_two{}, from(r), from(r + 1), inout(result));
  if (r < ranks) backend.launch(s, elements{n}, add_one{}, from(r), inout(result));
}

inline void check_counts(const char* what, int rank, int ranks, std::span<const index_t> counts, index_t part,
                         index_t whole) {
  index_t total = 0;
  for (const index_t c : counts) total += c;
  if (counts.size() == static_cast<std::size_t>(ranks) && total == whole &&
      counts[static_cast<std::size_t>(rank)] == part)
    return;
  throw config_error("plateau: " + std::string(what) + " on rank " + std::to_string(rank) + ": " +
                     std::to_string(counts.size()) + " counts, " + std::to_string(total) +
                     " elements together, do not fit " + std::to_string(ranks) + " ranks with a part of " +
                     std::to_string(part) + " elements here and a whole of " + std::to_string(whole));
}

// Every rank's part of `whole` reaches the others; parts follow one another. `mine` is copied too unless it
// lies in its place already.
template <class T, class Communicator, class Stream, class CountOf>
void gather_parts(Communicator& comm, on<Stream> s, view<const T> mine, view<T> whole, CountOf count_of,
                  const char* what) {
  const int ranks = comm.size();
  peer_list<send_op> sends(ranks);
  peer_list<receive_op> receives(ranks);
  index_t first = 0;
  for (int r = 0; r < ranks; ++r) {
    const view<T> place = whole.sub(first, count_of(r));
    first += place.n;
    if (r == comm.rank() && place.p == mine.p) continue;
    sends.push(send_to(r, mine));
    receives.push(receive_from(r, place));
  }
  comm.exchange(s, sends.ops(), receives.ops(), what);
}
} // namespace detail

// Every rank's `mine` (counts[rank]), in rank order, into `all` (sum of counts) on every rank. `mine` may be
// its own place in `all`. Throws config_error when sizes do not fit the counts.
template <class T, class Backend, class Communicator>
void all_gather(Backend&, Communicator& comm, on<typename Backend::stream> s,
                arg<view<const T>, access_mode::read> mine, arg<view<T>, access_mode::write> all,
                std::span<const index_t> counts, const char* what = "all_gather") {
  detail::check_counts(what, comm.rank(), comm.size(), counts, mine.v.n, all.v.n);
  detail::gather_parts<T>(
      comm, s, mine.v, all.v, [&](int r) { return counts[static_cast<std::size_t>(r)]; }, what);
}

// Bytes of scratch for reduce_scatter and all_reduce of T, whatever the length of the data.
template <class T> constexpr std::size_t reduce_scratch_bytes(int ranks, collective_options options = {}) {
  return static_cast<std::size_t>(ranks * detail::piece_rows(ranks, options)) * sizeof(T);
}

// Rank r gets the sum over ranks of the r-th part of `data` (sum of counts) in `result` (counts[r]), which
// may be that part of `data` itself. `scratch`: reduce_scratch_bytes<T>, aligned for T. Throws config_error
// when sizes do not fit.
template <class T, class Backend, class Communicator>
void reduce_scatter(Backend& backend, Communicator& comm, on<typename Backend::stream> s,
                    arg<view<const T>, access_mode::read> data, arg<view<T>, access_mode::write> result,
                    std::span<const index_t> counts, scratch_view scratch, collective_options options = {},
                    const char* what = "reduce_scatter") {
  const int ranks = comm.size();
  detail::check_counts(what, comm.rank(), ranks, counts, result.v.n, data.v.n);
  const view<T> space = detail::scratch_of<T>(what, scratch, reduce_scratch_bytes<T>(ranks, options));
  const index_t step = detail::piece_rows(ranks, options);
  index_t longest = 0;
  for (const index_t c : counts) longest = std::max(longest, c);
  for (index_t done = 0; done < longest; done += step) {
    index_t first = 0;
    const auto part = [&](int r) {
      const index_t count = counts[static_cast<std::size_t>(r)], from = std::min(done, count);
      const view<const T> p = data.v.sub(first + from, std::min(step, count - from));
      first += count;
      return p;
    };
    const index_t from = std::min(done, result.v.n);
    detail::reduce_piece<T>(backend, comm, s, part, result.v.sub(from, std::min(step, result.v.n - from)),
                            space, what);
  }
}

// data (n, the same on all ranks) becomes its sum over ranks, the same bits on all of them. `scratch`:
// reduce_scratch_bytes<T>, aligned for T; config_error when it is smaller.
template <class T, class Backend, class Communicator>
void all_reduce(Backend& backend, Communicator& comm, on<typename Backend::stream> s,
                arg<view<T>, access_mode::update> data, scratch_view scratch, collective_options options = {},
                const char* what = "all_reduce") {
  const int ranks = comm.size();
  const view<T> space = detail::scratch_of<T>(what, scratch, reduce_scratch_bytes<T>(ranks, options));
  if (ranks == 1) return;
  const index_t step = ranks * detail::piece_rows(ranks, options);
  for (index_t done = 0; done < data.v.n; done += step) {
    const view<T> piece = data.v.sub(done, std::min(step, data.v.n - done));
    const auto count_of = [&](int r) { return detail::even_count(piece.n, ranks, r); };
    index_t first = 0;
    for (int r = 0; r < comm.rank(); ++r) first += count_of(r);
    const view<T> mine = piece.sub(first, count_of(comm.rank()));
    first = 0;
    const auto part = [&](int r) {
      const view<const T> p = piece.sub(first, count_of(r));
      first += p.n;
      return p;
    };
    detail::reduce_piece<T>(backend, comm, s, part, mine, space, what);
    detail::gather_parts<T>(comm, s, mine, piece, count_of, what);
  }
}

} // namespace plateau::inline v0
