// SPDX-License-Identifier: Apache-2.0
//
// A linear cross-entropy on ranks of any kind, with every option, beside the same in float64. Values are
// drawn for all tokens and the whole vocabulary, and dealt to the ranks as a case says.
#pragma once

#include "reference/linear_cross_entropy.hpp"
#include "support/accuracy.hpp"
#include "support/device_values.hpp"
#include "support/rank_fixtures.hpp"
#include "support/tensors.hpp"

#include <plateau/close_step.hpp>
#include <plateau/drain.hpp>
#include <plateau/ring/linear_cross_entropy.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

namespace support {

struct ring_case {
  pl::cross_entropy_shape shape{}; // tokens and vocabulary are taken from the lists below
  std::vector<index_t> tokens;     // by rank
  std::vector<index_t> shards;     // by rank
  bool class_weights = false, token_weights = false;
  bool upstream_each = false; // a random upstream gradient for each token, else one
  bool wide_dx = false;
  bool counts_given = false;
  index_t spare = 0; // elements between rows of x, weights and gradients
  index_t skew = 0;  // elements in front of every array, which moves it away from its alignment
  double denominator = 1;
  float upstream = 0.75F;
  std::uint64_t seed = 1;
  int forwards = 1;         // of the same, with storage of their own; backwards follow, first in first out
  bool last_first = false;  // ... or last in first out
  int backwards = 1;        // of each forward
  bool other_first = false; // a backward with another upstream gradient before, whose results are thrown away
  bool in_place = false;    // with one_pass: what forward makes is kept where backward wants it
  int steps = 1;
  bool fewer_first = false; // steps before the last have fewer tokens, other ones on each rank

  int ranks() const { return static_cast<int>(tokens.size()); }
  index_t all_tokens() const { return std::accumulate(tokens.begin(), tokens.end(), index_t{0}); }
  index_t vocabulary() const { return std::accumulate(shards.begin(), shards.end(), index_t{0}); }
};

// The inputs of all ranks.
template <class T> struct ring_values {
  std::vector<T> x, weight;
  std::vector<std::int64_t> targets;
  std::vector<float> bias, classes, weights, upstream;
};

template <class T> ring_values<T> values_of(const ring_case& c) {
  ring_values<T> v;
  const index_t n = c.all_tokens(), h = c.shape.hidden, vocabulary = c.vocabulary();
  v.x = random_values<T>(n * h, c.seed);
  v.weight = random_values<T>(vocabulary * h, c.seed + 1, 2.0 / std::sqrt(static_cast<double>(h)));
  const auto draw = random_values<float>(n, c.seed + 2, 1000);
  for (index_t i = 0; i < n; ++i) {
    const auto any = static_cast<std::int64_t>(std::fabs(draw[static_cast<std::size_t>(i)]));
    v.targets.push_back(any % 7 == 3 ? c.shape.options.ignore_index : any % vocabulary);
  }
  if (c.shape.bias) v.bias = random_values<float>(vocabulary, c.seed + 3);
  if (c.class_weights) {
    v.classes = random_values<float>(vocabulary, c.seed + 4);
    for (float& w : v.classes) w = std::fabs(w) + 0.25F;
  }
  if (c.token_weights) {
    v.weights = random_values<float>(n, c.seed + 5);
    for (std::size_t i = 0; i < v.weights.size(); ++i)
      v.weights[i] = i % 5 == 1 ? 0 : std::fabs(v.weights[i]);
  }
  v.upstream = c.upstream_each ? random_values<float>(n, c.seed + 6) : std::vector<float>{c.upstream};
  return v;
}

template <class T> reference::linear_loss oracle_of(const ring_case& c, const ring_values<T>& v) {
  reference::linear_loss o;
  o.tokens = c.all_tokens();
  o.hidden = c.shape.hidden;
  o.vocabulary = c.vocabulary();
  o.x = widened(v.x);
  o.weight = widened(v.weight);
  o.targets = v.targets;
  o.bias = widened(v.bias);
  o.class_weights = widened(v.classes);
  o.token_weights = widened(v.weights);
  const pl::cross_entropy_options& p = c.shape.options;
  o.ignore_index = p.ignore_index;
  o.smoothing = static_cast<double>(p.smoothing);
  o.z_loss = static_cast<double>(p.z_loss);
  o.soft_cap = static_cast<double>(p.soft_cap);
  o.scale = static_cast<double>(p.logit_scale);
  return o;
}

// What the ranks give, one after the other.
template <class T> struct ring_result {
  std::vector<float> losses, lses, logs, loss; // loss: of each rank
  std::vector<float> entropies;                // if the shape has them, as what follows
  std::vector<std::int64_t> argmaxes;
  std::vector<unsigned char> correct;
  std::vector<double> accuracy; // two of each rank
  std::vector<T> dx;
  std::vector<float> wide_dx, dweight, dbias;
  std::vector<pl::counters> work, world; // of each rank, of the last step
  std::vector<std::size_t> left;         // bytes held at the end
};

namespace detail {
// What lies between rows and in front of arrays.
template <class T> T beside() {
  if constexpr (std::is_integral_v<T>)
    return T{77};
  else
    return static_cast<T>(static_cast<float>(NAN));
}
// One rank's arrays, and a way to fill them that a backend without data has too.
template <class Backend, bool has_data> struct ring_arrays {
  Backend& backend;
  typename Backend::stream& stream;
  index_t skew = 0;

  template <class T> struct array {
    pl::device_buffer<T, Backend> memory;
    index_t rows = 0, cols = 0, ld = 0, skew = 0;

    pl::tile<T> all() const { return {rows == 0 ? nullptr : memory.data() + skew, rows, cols, ld}; }
    pl::view<T> list() const { return memory.all().sub(skew, rows); }
  };
  template <class T> array<T> make(index_t rows, index_t cols, index_t spare) {
    const index_t n = rows == 0 ? 0 : rows * (cols + spare), before = n == 0 ? 0 : skew;
    return {pl::device_buffer<T, Backend>(backend.device(), before + n, pl::tag::parameters), rows, cols,
            cols + spare, before};
  }
  template <class T, class From>
  array<T> filled(index_t rows, index_t cols, index_t spare, const std::vector<From>& from, index_t first) {
    array<T> a = make<T>(rows, cols, spare);
    const pl::drain<Backend> before_it_goes(backend, stream); // if what comes next fails
    if constexpr (has_data) {
      const auto value_of = [&](index_t i) {
        const index_t r = (i - a.skew) / a.ld, c = (i - a.skew) % a.ld;
        return i >= a.skew && c < cols
                   ? static_cast<T>(from[static_cast<std::size_t>((first + r) * cols + c)])
                   : beside<T>();
      };
      if (a.memory.size() != 0) to_device(backend, stream, a.memory.all(), value_of);
    } else {
      backend.launch(stream, pl::elements{a.memory.size()}, pl::fill<T>{}, pl::out(a.memory.all()));
    }
    return a;
  }
  template <class T> array<T> zero(index_t rows, index_t cols, index_t spare) {
    array<T> a = make<T>(rows, cols, spare);
    const pl::drain<Backend> before_it_goes(backend, stream);
    backend.launch(stream, pl::elements{a.memory.size()}, pl::fill<T>{}, pl::out(a.memory.all()));
    return a;
  }
  template <class T> std::vector<T> values(const array<T>& a) {
    std::vector<T> out;
    if constexpr (has_data) {
      const auto all = from_device(backend, stream, a.memory.all());
      for (index_t r = 0; r < a.rows; ++r)
        for (index_t c = 0; c < a.cols; ++c)
          out.push_back(all[static_cast<std::size_t>(a.skew + r * a.ld + c)]);
    }
    return out;
  }
};
struct nothing {
  template <class... Args> void operator()(const Args&...) const {}
};
} // namespace detail

// What a rank is at, for whoever looks on.
template <class Backend> struct ring_stage {
  int rank;
  Backend& backend;
  pl::workspace<Backend>& space;
  typename Backend::stream& stream;
};

// Runs the case and gives what each rank has; of ranks that are other processes nothing. before_last(stage)
// is called before the last step, after(stage) when that is issued.
template <class T, class Id = std::int32_t, class Ranks, class Before = detail::nothing,
          class After = detail::nothing>
std::vector<ring_result<T>> run_ring_ranks(ring_case c, const ring_values<T>& values, const Ranks& on,
                                           Before before_last = {}, After after = {}) {
  using backend_type = typename Ranks::backend;
  using loss_type = pl::linear_cross_entropy<backend_type, typename Ranks::communicator, T, Id>;
  c.shape.vocabulary = c.vocabulary();
  for (const index_t n : c.tokens) c.shape.tokens = std::max(c.shape.tokens, n);
  std::vector<ring_result<T>> of_rank(c.tokens.size());
  on.run(c.ranks(), [&](typename Ranks::communicator& world, backend_type& backend) {
    const auto me = static_cast<std::size_t>(world.rank());
    ring_result<T>& result = of_rank[me];
    result.work.resize(1);
    result.world.resize(1);
    const auto note = [&] {
      result.left = {backend.device().meter().current() + backend.pinned().meter().current()};
    };
    try {
      const index_t n = c.tokens[me], rows = c.shards[me], h = c.shape.hidden;
      const index_t first_token =
          std::accumulate(c.tokens.begin(), c.tokens.begin() + world.rank(), index_t{0});
      const index_t first_row =
          std::accumulate(c.shards.begin(), c.shards.begin() + world.rank(), index_t{0});
      const bool of_x = !c.shape.frozen_inputs, of_w = !c.shape.frozen_weights;
      auto stream = backend.make_stream("main");
      detail::ring_arrays<backend_type, Ranks::has_data> make{backend, stream, c.skew};
      const auto x = make.template filled<T>(n, h, c.spare, values.x, first_token);
      const auto weight = make.template filled<T>(rows, h, c.spare, values.weight, first_row);
      const auto targets = make.template filled<Id>(n, 1, 0, values.targets, first_token);
      const auto bias =
          make.template filled<float>(values.bias.empty() ? 0 : rows, 1, 0, values.bias, first_row);
      const auto classes =
          make.template filled<float>(static_cast<index_t>(values.classes.size()), 1, 0, values.classes, 0);
      const auto weights =
          make.template filled<float>(values.weights.empty() ? 0 : n, 1, 0, values.weights, first_token);
      const auto upstream = make.template filled<float>(c.upstream_each ? n : 1, 1, 0, values.upstream,
                                                        c.upstream_each ? first_token : 0);
      const auto loss = make.template zero<float>(1, 1, 0), losses = make.template zero<float>(n, 1, 0),
                 lses = make.template zero<float>(n, 1, 0), logs = make.template zero<float>(n, 1, 0);
      const pl::cross_entropy_shape& wants = c.shape;
      const auto entropies = make.template zero<float>(wants.entropy ? n : 0, 1, 0);
      const auto argmaxes = make.template zero<std::int64_t>(wants.argmax ? n : 0, 1, 0);
      const auto correct = make.template zero<unsigned char>(wants.argmax ? n : 0, 1, 0);
      const auto accuracy = make.template zero<double>(wants.accuracy ? 2 : 0, 1, 0);
      const auto dx = make.template zero<T>(of_x && !c.wide_dx ? n : 0, h, c.spare);
      const auto wide_dx = make.template zero<float>(of_x && c.wide_dx ? n : 0, h, c.spare);
      const auto dweight = make.template zero<float>(of_w ? rows : 0, h, c.spare);
      const auto dbias = make.template zero<float>(of_w && c.shape.bias ? rows : 0, 1, 0);
      std::vector<decltype(make.template make<pl::token_state>(0, 1, 0))> states;
      std::vector<decltype(make.template make<double>(0, 1, 0))> sums;
      std::vector<typename loss_type::saved> saved(static_cast<std::size_t>(c.forwards));
      std::vector<decltype(make.template make<float>(0, 1, 0))> kept;
      for (auto& keep : saved) {
        if (c.shape.one_pass) {
          const bool apart = !c.in_place;
          kept.push_back(make.template make<float>(of_x && apart ? n : 0, h, 2));
          keep.dx = kept.back().all();
          kept.push_back(make.template make<float>(of_w && apart ? rows : 0, h, 1));
          keep.dweight = kept.back().all();
          kept.push_back(make.template make<float>(of_w && apart && c.shape.bias ? rows : 0, 1, 0));
          keep.dbias = kept.back().list();
          if constexpr (std::is_same_v<T, float>)
            if (c.in_place) keep.dx = c.wide_dx ? wide_dx.all() : dx.all();
          if (c.in_place) keep.dweight = dweight.all(), keep.dbias = dbias.list();
        }
        states.push_back(make.template make<pl::token_state>(n, 1, 0));
        sums.push_back(make.template make<double>(2, 1, 0));
        keep.rows = states.back().list();
        keep.sums = sums.back().list();
      }
      pl::workspace<backend_type> space(backend, loss_type::working_set(c.shape, world.size()));
      loss_type op(backend, world, c.shape, space, rows);
      const pl::drain<backend_type> before_they_go(backend, stream);
      typename loss_type::inputs in{x.all(), weight.all(), targets.list()};
      in.bias = bias.list();
      in.class_weights = classes.list();
      in.token_weights = weights.list();
      in.denominator = c.denominator;
      if (c.counts_given) in.tokens_of_rank = c.tokens;
      const bool reduced = wants.options.reduction != pl::reduction::none;
      typename loss_type::outputs want{loss.list().sub(0, reduced ? 1 : 0),
                                       losses.list(),
                                       lses.list(),
                                       logs.list(),
                                       entropies.list(),
                                       argmaxes.list(),
                                       correct.list(),
                                       accuracy.list()};
      typename loss_type::gradients to{dx.all(), wide_dx.all(), dweight.all(), dbias.list()};
      pl::counters work, sent;
      for (int step = 0; step < c.steps; ++step) {
        backend.launch(stream, pl::elements{dweight.memory.size()}, pl::fill<float>{},
                       pl::out(dweight.memory.all()));
        backend.launch(stream, pl::elements{dbias.memory.size()}, pl::fill<float>{},
                       pl::out(dbias.memory.all()));
        // Inputs come from what the stream has just done.
        backend.launch(stream, pl::elements{x.memory.size()}, pl::scale{1}, pl::inout(x.memory.all()));
        backend.launch(stream, pl::elements{weight.memory.size()}, pl::scale{1},
                       pl::inout(weight.memory.all()));
        if (step + 1 == c.steps) {
          before_last(ring_stage<backend_type>{world.rank(), backend, space, stream});
          work = backend.counters();
          sent = world.counters();
        }
        if (c.fewer_first && step + 1 != c.steps) {
          const index_t some = n * (step + 1) / (c.steps + 1 + world.rank());
          typename loss_type::inputs fewer = in;
          fewer.x = x.all().row_block(0, some);
          fewer.targets = targets.list().sub(0, some);
          if (in.token_weights.n != 0) fewer.token_weights = weights.list().sub(0, some);
          typename loss_type::outputs less{want.loss, losses.list().sub(0, some)};
          if (wants.argmax) less.argmaxes = argmaxes.list().sub(0, some);
          less.accuracy = accuracy.list();
          op.forward(stream, fewer, saved.front(), less);
          op.backward(stream, fewer, saved.front(), upstream.list().sub(0, c.upstream_each ? some : 1),
                      {dx.all().row_block(0, c.wide_dx ? 0 : some),
                       wide_dx.all().row_block(0, c.wide_dx ? some : 0), dweight.all(), dbias.list()});
          continue;
        }
        for (auto& keep : saved) op.forward(stream, in, keep, want);
        if (c.last_first) std::reverse(saved.begin(), saved.end());
        if (c.other_first) {
          backend.launch(stream, pl::elements{upstream.memory.size()}, pl::scale{-3},
                         pl::inout(upstream.memory.all()));
          op.backward(stream, in, saved.front(), upstream.list(), to);
          backend.launch(stream, pl::elements{upstream.memory.size()}, pl::scale{-1.0F / 3},
                         pl::inout(upstream.memory.all()));
          backend.launch(stream, pl::elements{dweight.memory.size()}, pl::fill<float>{},
                         pl::out(dweight.memory.all()));
          backend.launch(stream, pl::elements{dbias.memory.size()}, pl::fill<float>{},
                         pl::out(dbias.memory.all()));
        }
        for (const auto& keep : saved)
          for (int again = 0; again < c.backwards; ++again)
            op.backward(stream, in, keep, upstream.list(), to);
        if (c.last_first) std::reverse(saved.begin(), saved.end());
        if (step + 1 == c.steps) {
          after(ring_stage<backend_type>{world.rank(), backend, space, stream});
          result.work[0] = backend.counters() - work;
          result.world[0] = world.counters() - sent;
        }
        pl::close_step(backend, world, stream);
      }
      result.loss = make.values(loss);
      result.losses = make.values(losses);
      result.lses = make.values(lses);
      result.logs = make.values(logs);
      result.entropies = make.values(entropies);
      result.argmaxes = make.values(argmaxes);
      result.correct = make.values(correct);
      result.accuracy = make.values(accuracy);
      result.dx = make.values(dx);
      result.wide_dx = make.values(wide_dx);
      result.dweight = make.values(dweight);
      result.dbias = make.values(dbias);
    } catch (...) {
      note(); // what the rank had made is gone by now
      throw;
    }
    note();
  });
  return of_rank;
}
// The same, the ranks' results one after the other.
template <class T, class Id = std::int32_t, class Ranks, class Before = detail::nothing,
          class After = detail::nothing>
ring_result<T> run_ring(const ring_case& c, const ring_values<T>& values, const Ranks& on,
                        Before before_last = {}, After after = {}) {
  const auto of_rank = run_ring_ranks<T, Id>(c, values, on, before_last, after);
  ring_result<T> all;
  const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  for (const ring_result<T>& r : of_rank) {
    append(all.losses, r.losses);
    append(all.lses, r.lses);
    append(all.logs, r.logs);
    append(all.loss, r.loss);
    append(all.entropies, r.entropies);
    append(all.argmaxes, r.argmaxes);
    append(all.correct, r.correct);
    append(all.accuracy, r.accuracy);
    append(all.dx, r.dx);
    append(all.wide_dx, r.wide_dx);
    append(all.dweight, r.dweight);
    append(all.dbias, r.dbias);
    append(all.work, r.work);
    append(all.world, r.world);
    append(all.left, r.left);
  }
  return all;
}

template <class T> bool same_bits(const ring_result<T>& a, const ring_result<T>& b) {
  return same_bits(a.losses, b.losses) && same_bits(a.lses, b.lses) && same_bits(a.logs, b.logs) &&
         same_bits(a.loss, b.loss) && same_bits(a.entropies, b.entropies) &&
         same_bits(a.argmaxes, b.argmaxes) && same_bits(a.correct, b.correct) &&
         same_bits(a.accuracy, b.accuracy) && same_bits(a.dx, b.dx) && same_bits(a.wide_dx, b.wide_dx) &&
         same_bits(a.dweight, b.dweight) && same_bits(a.dbias, b.dbias);
}

// |actual - expected| / |expected|, as vectors; what should be zero must be.
template <class T>
double relative_distance(const std::vector<T>& actual, const std::vector<double>& expected) {
  REQUIRE(actual.size() == expected.size());
  double distance = 0, size = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double d = static_cast<double>(static_cast<float>(actual[i])) - expected[i];
    distance += d * d;
    size += expected[i] * expected[i];
  }
  if (size == 0) return distance == 0 ? 0 : HUGE_VAL;
  return std::sqrt(distance / size);
}

// The rule for gradients: the norm of the difference over the norm. Half a unit of T in each operand of the
// products: the logit gradients, and what is rounded at the end.
template <class T> inline constexpr double gradient_bound = std::is_same_v<T, float> ? 2e-6 : 0x1p-8;

// Everything of a result against float64.
template <class T> void check_ring(const ring_case& c, const ring_values<T>& v, const ring_result<T>& r) {
  const reference::linear_loss oracle = oracle_of(c, v);
  const auto seen = oracle.forward();
  check_accurate(r.losses, seen.losses, 8);
  check_accurate(r.lses, seen.lses, 8);
  check_accurate(r.logs, seen.log_probabilities, 8);
  if (c.shape.entropy) check_accurate(r.entropies, seen.entropies, 8);
  if (c.shape.argmax) {
    double right = 0, all = 0;
    for (index_t i = 0; i < c.all_tokens(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      const bool hit = oracle.counts(i) && seen.argmaxes[at] == v.targets[at];
      CHECK(r.argmaxes[at] == seen.argmaxes[at]);
      CHECK((r.correct[at] != 0) == hit);
      right += hit ? 1 : 0;
      all += oracle.counts(i) ? 1 : 0;
    }
    for (std::size_t i = 0; i < r.accuracy.size(); ++i) CHECK(r.accuracy[i] == (i % 2 == 0 ? right : all));
  }
  using pl::reduction;
  const reduction how = c.shape.options.reduction;
  const double divisor = how == reduction::mean          ? seen.weight()
                         : how == reduction::denominator ? c.denominator
                                                         : 1.0;
  if (how != reduction::none)
    for (const float loss : r.loss) {
      CHECK(loss == r.loss.front());
      if (divisor != 0)
        CHECK(static_cast<double>(loss) == doctest::Approx(seen.sum() / divisor).epsilon(2e-6));
    }
  reference::vec factor;
  for (index_t i = 0; i < c.all_tokens(); ++i)
    factor.push_back(static_cast<double>(v.upstream[c.upstream_each ? static_cast<std::size_t>(i) : 0]) /
                     (divisor == 0 ? 1.0 : divisor));
  auto expected = oracle.backward(factor);
  const double times = static_cast<double>(c.forwards * c.backwards); // what is added is added so often
  for (double& d : expected.weight) d *= times;
  for (double& d : expected.bias) d *= times;
  if (!c.shape.frozen_inputs) {
    if (c.wide_dx)
      CHECK(relative_distance(r.wide_dx, expected.x) <= gradient_bound<T>);
    else
      CHECK(relative_distance(r.dx, expected.x) <= gradient_bound<T>);
  }
  if (!c.shape.frozen_weights) {
    CHECK(relative_distance(r.dweight, expected.weight) <= gradient_bound<T>);
    if (c.shape.bias) CHECK(relative_distance(r.dbias, expected.bias) <= gradient_bound<T>);
  }
}

} // namespace support
