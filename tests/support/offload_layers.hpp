// SPDX-License-Identifier: Apache-2.0
//
// Layers for tests of a checkpointed sequence: y = s / (1 + |s|) with s = x W^T, with weights of their own,
// in the ways in which a layer may compute forward again, and one that keeps a factor of each row beside its
// input. The same layers, run with every input kept in memory of its own, are what a sequence is held to.
#pragma once

#include "support/device_values.hpp"

#include <plateau/drain.hpp>
#include <plateau/kernels.hpp>
#include <plateau/offload/checkpointed.hpp>
#include <plateau/scalar.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace support {

namespace pl = plateau;
using pl::index_t;

// Small values that look random, the same on every machine; of multiples of 1/64, so that any type has them.
struct soft_noise {
  std::uint64_t seed = 0;
  template <class T, class S> PLATEAU_HD void operator()(index_t i, pl::view<T, S> to) const {
    std::uint64_t z = (static_cast<std::uint64_t>(i) + 1) * 0x9e3779b97f4a7c15u + seed * 0xd1342543de82ef95u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    to[i] = pl::narrow<T>(static_cast<float>(static_cast<int>(z >> 58) - 32) / 64);
  }
};
struct soften {
  template <class Team, class T>
  PLATEAU_HD void operator()(Team& team, index_t r, pl::tile<const T> s, pl::tile<T> y) const {
    team.for_each(s.cols, [=](index_t c) {
      const float v = pl::widen(s(r, c));
      y(r, c) = pl::narrow<T>(v / (1 + (v < 0 ? -v : v)));
    });
  }
};
struct soften_backward { // s becomes its gradient
  template <class Team, class T>
  PLATEAU_HD void operator()(Team& team, index_t r, pl::tile<const T> dy, pl::tile<T> s) const {
    team.for_each(s.cols, [=](index_t c) {
      const float v = pl::widen(s(r, c)), d = 1 + (v < 0 ? -v : v);
      s(r, c) = pl::narrow<T>(pl::widen(dy(r, c)) / (d * d));
    });
  }
};
struct factor_of_row { // 1 / (1 + |x_0|)
  template <class Team, class T>
  PLATEAU_HD void operator()(Team& team, index_t r, pl::tile<const T> x, pl::view<float> factor) const {
    team.once([=] {
      const float v = x.cols == 0 ? 0 : pl::widen(x(r, 0));
      factor[r] = 1 / (1 + (v < 0 ? -v : v));
    });
  }
};
struct scale_rows {
  template <class Team, class T>
  PLATEAU_HD void operator()(Team& team, index_t r, pl::view<const float> factor, pl::tile<T> y) const {
    team.for_each(y.cols, [=](index_t c) { y(r, c) = pl::narrow<T>(pl::widen(y(r, c)) * factor[r]); });
  }
};

// How a layer gets s again before backward.
enum class again : unsigned char { recompute, in_backward, forward, kept };

template <class Backend, class T> class soft_layer_base {
 public:
  using stream = typename Backend::stream;

  soft_layer_base(Backend& be, stream& s, index_t rows, index_t from, index_t to, std::uint64_t seed)
      : be_(&be), from_(from), to_(to), weight_(be.device(), from * to, pl::tag::parameters),
        gradient_(be.device(), from * to, pl::tag::gradients),
        s_(be.device(), rows * to, pl::tag::activations),
        scratch_(be.device(), scratch_bytes(rows, from, to), pl::tag::activations) {
    const pl::drain<Backend> if_it_fails(be, s);
    be.launch(s, pl::elements{from * to}, soft_noise{seed}, pl::out(weight_.all()));
    be.launch(s, pl::elements{from * to}, pl::fill<float>{}, pl::out(gradient_.all()));
  }
  index_t input_columns() const { return from_; }
  index_t output_columns() const { return to_; }
  pl::view<float> gradient() const { return gradient_.all(); }

 protected:
  void sums(stream& s, pl::tile<const T> x) {
    be_->gemm(s, pl::transpose::no, pl::transpose::yes, 1.0F, pl::in(x), pl::in(weight()), 0.0F,
              pl::out(sums_of(x.rows)), scratch_.all());
  }
  void soft(stream& s, pl::tile<T> y) {
    be_->launch(s, pl::rows{y.rows}, soften{}, pl::in(sums_of(y.rows)), pl::out(y));
  }
  void back(stream& s, pl::tile<const T> x, pl::tile<const T> dy, pl::tile<T> dx) {
    const auto ds = sums_of(x.rows);
    be_->launch(s, pl::rows{x.rows}, soften_backward{}, pl::in(dy), pl::inout(ds));
    be_->gemm(s, pl::transpose::yes, pl::transpose::no, 1.0F, pl::in(ds), pl::in(x), 1.0F,
              pl::inout(gradient_.matrix(to_, from_)), scratch_.all());
    be_->gemm(s, pl::transpose::no, pl::transpose::no, 1.0F, pl::in(ds), pl::in(weight()), 0.0F, pl::out(dx),
              scratch_.all());
  }
  Backend* be_;

 private:
  static index_t scratch_bytes(index_t n, index_t from, index_t to) {
    using pl::transpose;
    return static_cast<index_t>(std::max(
        {Backend::template gemm_scratch_bytes<T, T, T>(transpose::no, transpose::yes, n, to, from),
         Backend::template gemm_scratch_bytes<T, T, float>(transpose::yes, transpose::no, to, from, n),
         Backend::template gemm_scratch_bytes<T, T, T>(transpose::no, transpose::no, n, from, to)}));
  }
  pl::tile<T> weight() const { return weight_.matrix(to_, from_); }
  pl::tile<T> sums_of(index_t rows) const { return s_.matrix(rows, to_); }

  index_t from_, to_;
  pl::device_buffer<T, Backend> weight_;
  pl::device_buffer<float, Backend> gradient_;
  pl::device_buffer<T, Backend> s_;
  pl::device_buffer<unsigned char, Backend> scratch_;
};

template <class Backend, class T, again How> class soft_layer : public soft_layer_base<Backend, T> {
  using base = soft_layer_base<Backend, T>;

 public:
  using stream = typename Backend::stream;
  static constexpr bool backward_recomputes = How == again::in_backward;
  using base::base;

  void forward(stream& s, pl::tile<const T> x, pl::tile<T> y) {
    this->sums(s, x);
    this->soft(s, y);
  }
  void recompute(stream& s, pl::tile<const T> x) requires(How == again::recompute) { this->sums(s, x); }
  void backward(stream& s, pl::tile<const T> x, pl::tile<const T> dy, pl::tile<T> dx) {
    if (backward_recomputes) this->sums(s, x);
    this->back(s, x, dy, dx);
  }
};
// Keeps a factor of each row, which multiplies what goes forward and what comes back.
template <class Backend, class T>
class soft_layer<Backend, T, again::kept> : public soft_layer_base<Backend, T> {
  using base = soft_layer_base<Backend, T>;

 public:
  using stream = typename Backend::stream;
  static constexpr int kept_tensors = 1;
  using base::base;

  index_t kept_bytes(int, index_t rows) const { return 4 * rows; }
  void forward(stream& s, pl::tile<const T> x, pl::tile<T> y,
               const std::array<pl::view<unsigned char>, 1>& kept) {
    const pl::view<float> factor{reinterpret_cast<float*>(kept[0].p), x.rows};
    this->be_->launch(s, pl::rows{x.rows}, factor_of_row{}, pl::in(x), pl::out(factor));
    this->sums(s, x);
    this->soft(s, y);
    this->be_->launch(s, pl::rows{x.rows}, scale_rows{}, pl::in(factor), pl::inout(y));
  }
  void forward_again(stream& s, pl::tile<const T> x, pl::tile<T> y,
                     const std::array<pl::view<const unsigned char>, 1>& kept) {
    this->sums(s, x);
    this->soft(s, y);
    this->be_->launch(s, pl::rows{x.rows}, scale_rows{}, pl::in(factor_in(kept, x.rows)), pl::inout(y));
  }
  void recompute(stream& s, pl::tile<const T> x, const std::array<pl::view<const unsigned char>, 1>&) {
    this->sums(s, x);
  }
  void backward(stream& s, pl::tile<const T> x, pl::tile<const T> dy, pl::tile<T> dx,
                const std::array<pl::view<const unsigned char>, 1>& kept) {
    this->back(s, x, dy, dx);
    this->be_->launch(s, pl::rows{x.rows}, scale_rows{}, pl::in(factor_in(kept, x.rows)), pl::inout(dx));
  }

 private:
  static pl::view<const float> factor_in(const std::array<pl::view<const unsigned char>, 1>& kept,
                                         index_t rows) {
    return {reinterpret_cast<const float*>(kept[0].p), rows};
  }
};

// Passes through `layers` layers, their backwards in any order, and all gradients at the end.
struct offload_net {
  index_t rows = 6, layers = 5, hidden = 8;
  bool unequal = false; // layers of different widths
  int keep_every = 1, restored_at_once = 2;
  index_t budget = pl::offload_shape::no_limit;
  int passes = 1;               // forwards before the first backward
  std::vector<int> backward{0}; // which passes, in which order
  int steps = 1;

  index_t columns(index_t l) const { return unequal ? hidden + 5 * (l % 3) : hidden; }
  index_t rows_of(int p) const { return std::max<index_t>(rows - p, 0); }

  template <class T> struct result {
    std::vector<T> y, dx;
    std::vector<float> dw;
    pl::counters work;
    std::size_t promised = 0, left = 0;
    pl::offload_statistics statistics;
  };

  // After: called with the backend and the stream when all has been issued.
  template <again How, class T, class Backend, class After>
  result<T> run(Backend& be, bool with_store, After after) const {
    using layer_type = soft_layer<Backend, T, How>;
    using layers_type = std::vector<layer_type>;
    using net_type = pl::checkpointed<Backend, T, layers_type>;
    result<T> out;
    {
      auto s = be.make_stream("main");
      layers_type all;
      const pl::drain<Backend> if_making_fails(be, s);
      for (index_t l = 0; l < layers; ++l)
        all.emplace_back(be, s, rows, columns(l), columns(l + 1), static_cast<std::uint64_t>(l + 1));
      pl::checkpointed_shape shape;
      shape.rows = rows;
      shape.keep_every = keep_every;
      shape.restored_at_once = restored_at_once;
      shape.host_budget_bytes = budget;
      shape.in_flight = passes;
      const index_t first = columns(0), last = columns(layers);
      const index_t spare = 3; // between the rows of x
      using buffer = pl::device_buffer<T, Backend>;
      buffer x(be.device(), passes * rows * (first + spare), pl::tag::other);
      buffer dx(be.device(), passes * rows * first, pl::tag::other);
      buffer y(be.device(), passes * rows * last, pl::tag::other),
          dy(be.device(), rows * last, pl::tag::other);
      const auto of = [&](const buffer& b, int p, index_t cols, index_t ld) {
        return pl::tile<T>{b.data() + p * rows * ld, rows_of(p), cols, ld};
      };
      // Without the store every input of every pass has memory of its own.
      std::vector<buffer> inputs;
      std::vector<pl::device_buffer<unsigned char, Backend>> kept;
      std::unique_ptr<pl::workspace<Backend>> space;
      std::unique_ptr<net_type> net;
      if (with_store) {
        const pl::working_set set = net_type::working_set_of(shape, all);
        out.promised = set.device_bytes();
        space = std::make_unique<pl::workspace<Backend>>(be, set);
        net = std::make_unique<net_type>(be, *space, shape, all);
      } else {
        for (index_t i = 0; i < passes * (layers + 1); ++i)
          inputs.emplace_back(be.device(), rows * (hidden + 10), pl::tag::checkpoint);
        for (index_t i = 0; i < passes * layers; ++i)
          kept.emplace_back(be.device(), 4 * rows, pl::tag::checkpoint);
      }
      const pl::drain<Backend> before_it_goes(be, s);
      be.launch(s, pl::elements{x.size()}, soft_noise{100}, pl::out(x.all()));
      be.launch(s, pl::elements{y.size()}, pl::fill<T>{}, pl::out(y.all()));
      be.launch(s, pl::elements{dx.size()}, pl::fill<T>{}, pl::out(dx.all()));
      be.launch(s, pl::elements{dy.size()}, soft_noise{200}, pl::out(dy.all()));
      const auto input = [&](int p, index_t l) {
        return inputs[static_cast<std::size_t>(p * (layers + 1) + l)].matrix(rows_of(p), columns(l));
      };
      const auto kept_of = [&](int p, index_t l) {
        return kept[static_cast<std::size_t>(p * layers + l)].all().sub(0, 4 * rows_of(p));
      };
      const pl::counters before = be.counters();
      for (int step = 0; step < steps; ++step) {
        std::vector<std::unique_ptr<typename net_type::pass>> live;
        for (int p = 0; p < passes; ++p) {
          if (with_store) {
            live.push_back(std::make_unique<typename net_type::pass>(
                net->forward(s, of(x, p, first, first + spare), of(y, p, last, last))));
            continue;
          }
          be.copy(s, pl::in(of(x, p, first, first + spare)), pl::out(input(p, 0)));
          for (index_t l = 0; l < layers; ++l) {
            auto& layer = all[static_cast<std::size_t>(l)];
            const auto to = l + 1 == layers ? of(y, p, last, last) : input(p, l + 1);
            if constexpr (How == again::kept)
              layer.forward(s, input(p, l), to, {kept_of(p, l)});
            else
              layer.forward(s, input(p, l), to);
          }
        }
        for (const int p : backward) {
          const auto upstream = dy.matrix(rows_of(p), last);
          if (with_store) {
            net->backward(s, *live[static_cast<std::size_t>(p)], upstream, of(dx, p, first, first));
            continue;
          }
          buffer one(be.device(), rows * (hidden + 10), pl::tag::other),
              two(be.device(), rows * (hidden + 10), pl::tag::other);
          const pl::drain<Backend> before_they_go(be, s);
          for (index_t l = layers - 1; l >= 0; --l) {
            auto& layer = all[static_cast<std::size_t>(l)];
            const auto from =
                l + 1 == layers ? upstream : (l % 2 == 0 ? one : two).matrix(rows_of(p), columns(l + 1));
            const auto to =
                l == 0 ? of(dx, p, first, first) : (l % 2 == 0 ? two : one).matrix(rows_of(p), columns(l));
            if constexpr (How == again::kept) {
              layer.recompute(s, input(p, l), {kept_of(p, l)});
              layer.backward(s, input(p, l), from, to, {kept_of(p, l)});
            } else {
              if constexpr (How == again::recompute) layer.recompute(s, input(p, l));
              if constexpr (How == again::forward)
                layer.forward(s, input(p, l),
                              inputs[static_cast<std::size_t>(layers)].matrix(rows_of(p), columns(l + 1)));
              layer.backward(s, input(p, l), from, to);
            }
          }
        }
        if (step + 1 == steps) {
          out.work = be.counters() - before;
          if (net) out.statistics = net->store().statistics();
          after(be, s);
        }
      }
      out.y = from_device(be, s, y.all());
      out.dx = from_device(be, s, dx.all());
      for (const auto& layer : all) {
        const auto g = from_device(be, s, layer.gradient());
        out.dw.insert(out.dw.end(), g.begin(), g.end());
      }
    }
    return out;
  }
  template <again How, class T, class Backend> result<T> run(Backend& be, bool with_store = true) const {
    return run<How, T>(be, with_store, [](auto&, auto&) {});
  }
};

} // namespace support
