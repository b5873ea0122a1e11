// SPDX-License-Identifier: Apache-2.0
//
// A dispatch with the toy expert on any kind of ranks: who has how many tokens, where they go, and the
// float64 results that must come out. Ids are the case's; rows, gates, weights and upstream gradients follow
// from their place alone, so that every rank can make those of all.
#pragma once

#include "support/device_values.hpp"
#include "support/rank_fixtures.hpp"
#include "support/toy_expert.hpp"

#include <plateau/all_to_all/capped_all_to_all.hpp>
#include <plateau/config.hpp>
#include <plateau/resource.hpp>
#include <plateau/workspace.hpp>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace support {

namespace pl = plateau;

struct dispatch_case {
  std::vector<index_t> tokens; // (ranks)
  pl::dispatch_shape<1> shape; // tokens may be left 0: the most of any rank
  std::function<int(int rank, index_t token, index_t slot)> expert_of; // or -1
  bool no_gates = false;
  float gate_scale = 1; // not a power of two: sums are rounded, and their order shows
  bool backward = true;

  int ranks() const { return static_cast<int>(tokens.size()); }
  index_t width() const { return shape.widths[0]; }
  pl::dispatch_shape<1> limits() const {
    pl::dispatch_shape<1> s = shape;
    for (const index_t n : tokens) s.tokens = std::max(s.tokens, n);
    return s;
  }

  // A number in [-1, 1] that looks random: a multiple of 1/8, so that sums of products of three are exact in
  // fp32, in any order, and every result can be asked for its bits.
  static double noise(std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t what) {
    std::uint64_t x =
        (a * 0x9e3779b97f4a7c15u) ^ (b * 0xc2b2ae3d27d4eb4fu) ^ (c * 0x165667b19e3779f9u) ^ (what << 56);
    for (int i = 0; i < 3; ++i) x = (x ^ (x >> 31)) * 0xbf58476d1ce4e5b9u;
    return static_cast<double>(x >> 40 & 15u) / 8.0 - 1.0;
  }
  template <class T> static T value(int rank, index_t i, index_t c, int what) {
    return pl::narrow<T>(
        static_cast<float>(noise(static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(i),
                                 static_cast<std::uint64_t>(c), static_cast<std::uint64_t>(what))));
  }
  template <class T> static T row(int rank, index_t token, index_t c) { return value<T>(rank, token, c, 1); }
  template <class T> static T upstream(int rank, index_t token, index_t c) {
    return value<T>(rank, token, c, 2);
  }
  template <class T> static T before(int rank, index_t token, index_t c) {
    return value<T>(rank, token, c, 3);
  }
  float gate(int rank, index_t token, index_t slot) const {
    return no_gates ? 1.0F : gate_scale * value<float>(rank, token, slot, 4);
  }
  template <class T> static T weight(index_t expert, index_t c) { return value<T>(0, expert, c, 5); }
};

// Of one rank, row by row.
template <class T> struct dispatch_results {
  std::vector<T> out, drows;
  std::vector<float> dgates, dweights; // (tokens, top_k), (local experts, width)
  pl::dispatch_statistics forward, backward;
  pl::counters in_forward, in_backward; // of the backend
  std::vector<index_t> counts;          // of the plan
};

struct dispatch_oracle {
  std::vector<double> out, drows, dgates, dweights;
};

template <class T> dispatch_oracle oracle_of(const dispatch_case& c, int rank) {
  const auto wide = [](auto x) { return static_cast<double>(static_cast<float>(x)); };
  const index_t n = c.tokens[static_cast<std::size_t>(rank)], w = c.width(), k = c.shape.top_k;
  dispatch_oracle o;
  for (index_t t = 0; t < n; ++t)
    for (index_t i = 0; i < w; ++i) {
      double out = wide(c.before<T>(rank, t, i)), d = 0;
      for (index_t j = 0; j < k; ++j) {
        const int e = c.expert_of(rank, t, j);
        if (e < 0) continue;
        // The toy rounds its result to T, and so does its gradient.
        const double y = wide(pl::narrow<T>(pl::widen(c.weight<T>(e, i)) * pl::widen(c.row<T>(rank, t, i))));
        out += static_cast<double>(c.gate(rank, t, j)) * y;
        d += wide(pl::narrow<T>(c.gate(rank, t, j) * pl::widen(c.upstream<T>(rank, t, i)) *
                                pl::widen(c.weight<T>(e, i))));
      }
      o.out.push_back(out);
      o.drows.push_back(d);
    }
  for (index_t t = 0; t < n; ++t)
    for (index_t j = 0; j < k; ++j) {
      const int e = c.expert_of(rank, t, j);
      double dot = 0;
      for (index_t i = 0; e >= 0 && i < w; ++i)
        dot += wide(c.upstream<T>(rank, t, i)) * wide(c.weight<T>(e, i)) * wide(c.row<T>(rank, t, i));
      o.dgates.push_back(dot);
    }
  const pl::expert_homes homes{c.shape.experts, c.ranks()};
  for (index_t e = homes.first(rank); e < homes.first(rank + 1); ++e) {
    std::vector<double> dw(static_cast<std::size_t>(w));
    for (int source = 0; source < c.ranks(); ++source)
      for (index_t t = 0; t < c.tokens[static_cast<std::size_t>(source)]; ++t)
        for (index_t j = 0; j < k; ++j) {
          if (c.expert_of(source, t, j) != e) continue;
          for (index_t i = 0; i < w; ++i)
            dw[static_cast<std::size_t>(i)] += static_cast<double>(c.gate(source, t, j)) *
                                               wide(c.upstream<T>(source, t, i)) *
                                               wide(c.row<T>(source, t, i));
        }
    o.dweights.insert(o.dweights.end(), dw.begin(), dw.end());
  }
  return o;
}

// One rank's part of a case on any backend: inputs, operator, workspace. The same object runs any number of
// forwards and backwards.
template <class T, class Backend, class Communicator> class dispatch_rank {
  using stream_type = typename Backend::stream;

 public:
  using op = pl::capped_all_to_all<Backend, Communicator, T>;
  using expert_type = toy_expert<Backend, T>;

  dispatch_rank(const dispatch_case& c, Backend& backend, Communicator& comm)
      : c_(&c), backend_(&backend), rank_(comm.rank()), expert_(&backend, c.width()),
        space_(backend, op::reserve_for(c.limits(), comm.size(), expert_)), homes_{c.shape.experts,
                                                                                   comm.size()},
        ids_(backend.device(), n() * k(), pl::tag::other), rows_(backend.device(), n() * w(), pl::tag::other),
        out_(backend.device(), n() * w(), pl::tag::other),
        upstream_(backend.device(), n() * w(), pl::tag::other),
        drows_(backend.device(), n() * w(), pl::tag::other),
        weights_(backend.device(), homes_.count(rank_) * w(), pl::tag::other),
        gates_(backend.device(), n() * k(), pl::tag::other),
        dgates_(backend.device(), n() * k(), pl::tag::other),
        dweights_(backend.device(), homes_.count(rank_) * w(), pl::tag::other),
        stream_(backend.make_stream("main")), exchange_(backend, comm, c.limits(), space_, expert_) {
    fill();
    for (index_t e = 0; e < homes_.count(rank_); ++e) {
      weight_tiles_.push_back(pl::as_matrix(weights_.all().sub(e * w(), w()), 1, w()));
      gradient_tiles_.push_back(pl::as_matrix(dweights_.all().sub(e * w(), w()), 1, w()));
    }
  }

  // Weights somewhere else.
  void use_weights(pl::view<const T> w) {
    for (std::size_t e = 0; e < weight_tiles_.size(); ++e)
      weight_tiles_[e] = pl::as_matrix(w.sub(static_cast<index_t>(e) * this->w(), this->w()), 1, this->w());
  }
  stream_type& stream() { return stream_; }
  op& exchange() { return exchange_; }
  pl::workspace<Backend>& space() { return space_; }
  expert_type& expert() { return expert_; }

  // Another case of the same shape with at most as many tokens, and gradients begin at 0 again.
  void turn_to(const dispatch_case& c) {
    c_ = &c;
    fill();
  }
  // Ids of the case, out and gradients as before anything has run.
  void fill() {
    const index_t k = this->k(), w = this->w();
    to_device(*backend_, stream_, ids(),
              [&](index_t i) { return std::int32_t(c_->expert_of(rank_, i / k, i % k)); });
    to_device(*backend_, stream_, all_rows(), [&](index_t i) { return c_->row<T>(rank_, i / w, i % w); });
    to_device(*backend_, stream_, upstream(),
              [&](index_t i) { return c_->upstream<T>(rank_, i / w, i % w); });
    to_device(*backend_, stream_, all_gates(), [&](index_t i) { return c_->gate(rank_, i / k, i % k); });
    to_device(*backend_, stream_, weights_.all(),
              [&](index_t i) { return c_->weight<T>(homes_.first(rank_) + i / w, i % w); });
    reset();
  }
  void reset() {
    const index_t w = this->w();
    to_device(*backend_, stream_, out(), [&](index_t i) { return c_->before<T>(rank_, i / w, i % w); });
    to_device(*backend_, stream_, dweights_.all(), [](index_t) { return 0.0F; });
    to_device(*backend_, stream_, drows(), [](index_t) { return pl::narrow<T>(7.0F); });
    to_device(*backend_, stream_, dgates(), [](index_t) { return 7.0F; });
  }
  void plan(pl::dispatch_plan& p) { plan_with(exchange_, p); }
  template <class Op> void plan_with(Op& exchange, pl::dispatch_plan& p) { exchange.plan(stream_, ids(), p); }
  void forward(const pl::dispatch_plan& p) { forward_with(exchange_, expert_, p); }
  template <class Under> void forward(const pl::dispatch_plan& p, Under under) {
    exchange_.run(stream_, p, ids(), {rows()}, gates(), pl::as_matrix(out(), n(), w()), expert_,
                  weight_tiles_, under);
  }
  void backward(const pl::dispatch_plan& p) { backward_with(exchange_, expert_, p); }
  // Both with another operator and expert.
  template <class Op, class Expert> void with(Op& exchange, Expert& expert, const pl::dispatch_plan& p) {
    forward_with(exchange, expert, p);
    backward_with(exchange, expert, p);
  }
  template <class Op, class Expert>
  void forward_with(Op& exchange, Expert& expert, const pl::dispatch_plan& p) {
    exchange.run(stream_, p, ids(), {rows()}, gates(), pl::as_matrix(out(), n(), w()), expert, weight_tiles_);
  }
  template <class Op, class Expert>
  void backward_with(Op& exchange, Expert& expert, const pl::dispatch_plan& p) {
    exchange.run_backward(stream_, p, ids(), {rows()}, gates(), pl::as_matrix(upstream(), n(), w()),
                          pl::as_matrix(drows(), n(), w()), pl::as_matrix(dgates(), n(), k()), expert,
                          weight_tiles_, gradient_tiles_);
  }
  dispatch_results<T> results() {
    dispatch_results<T> r;
    r.out = from_device(*backend_, stream_, out());
    r.drows = from_device(*backend_, stream_, drows());
    r.dgates = from_device(*backend_, stream_, dgates());
    r.dweights = from_device(*backend_, stream_, dweights_.all());
    return r;
  }

 private:
  index_t n() const { return c_->tokens[static_cast<std::size_t>(rank_)]; }
  index_t k() const { return c_->shape.top_k; }
  index_t w() const { return c_->width(); }
  pl::view<std::int32_t> ids() const { return ids_.all().sub(0, n() * k()); }
  pl::view<T> all_rows() const { return rows_.all().sub(0, n() * w()); }
  pl::view<T> out() const { return out_.all().sub(0, n() * w()); }
  pl::view<T> upstream() const { return upstream_.all().sub(0, n() * w()); }
  pl::view<T> drows() const { return drows_.all().sub(0, n() * w()); }
  pl::view<float> all_gates() const { return gates_.all().sub(0, n() * k()); }
  pl::view<float> dgates() const { return dgates_.all().sub(0, n() * k()); }
  pl::tile<const T> rows() const { return pl::as_matrix(all_rows(), n(), w()); }
  pl::tile<const float> gates() const {
    return c_->no_gates ? pl::tile<const float>{}
                        : pl::tile<const float>(pl::as_matrix(all_gates(), n(), k()));
  }

  const dispatch_case* c_;
  Backend* backend_;
  int rank_;
  expert_type expert_;
  pl::workspace<Backend> space_;
  pl::expert_homes homes_;
  pl::device_buffer<std::int32_t, Backend> ids_;
  pl::device_buffer<T, Backend> rows_, out_, upstream_, drows_, weights_;
  pl::device_buffer<float, Backend> gates_, dgates_, dweights_;
  std::vector<pl::tile<const T>> weight_tiles_;
  std::vector<pl::tile<float>> gradient_tiles_;
  stream_type stream_;
  op exchange_;
};

// Plan, forward and backward of a case, on ranks of any kind.
template <class T, class On>
std::vector<dispatch_results<T>> run_dispatch(const dispatch_case& c, const On& on) {
  std::vector<dispatch_results<T>> all(c.tokens.size());
  on.run(c.ranks(), [&](auto& comm, auto& backend) {
    using backend_type = std::remove_cvref_t<decltype(backend)>;
    using communicator_type = std::remove_cvref_t<decltype(comm)>;
    dispatch_rank<T, backend_type, communicator_type> rank(c, backend, comm);
    pl::dispatch_plan p;
    pl::counters at_begin = backend.counters();
    rank.plan(p);
    rank.forward(p);
    const pl::counters between = backend.counters();
    const auto forward = rank.exchange().statistics();
    if (c.backward) rank.backward(p);
    const pl::counters at_end = backend.counters();
    auto& mine = all[static_cast<std::size_t>(comm.rank())];
    mine = rank.results();
    mine.counts = p.rows;
    mine.forward = forward;
    mine.backward = rank.exchange().statistics();
    mine.in_forward = between - at_begin;
    mine.in_backward = at_end - between;
  });
  return all;
}

// The answer to a dispatch's fetch on a dry run: what the case's ids would give.
inline bool answer_fetch(const dispatch_case& c, const pl::dry_fetch& fetch) {
  if (std::string_view(fetch.label) != "rows of each expert") return false;
  auto* words = reinterpret_cast<std::int64_t*>(fetch.into.data());
  for (index_t e = 0; e < c.shape.experts + 2; ++e) words[e] = 0;
  for (index_t t = 0; t < c.tokens[static_cast<std::size_t>(fetch.rank)]; ++t)
    for (index_t j = 0; j < c.shape.top_k; ++j)
      if (const int e = c.expert_of(fetch.rank, t, j); e >= 0) ++words[e];
  return true;
}

} // namespace support
