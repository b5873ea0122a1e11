// SPDX-License-Identifier: Apache-2.0
//
// The model's expert on a round: forward and backward against float64, where the error may be twice that of
// the plain computation at the same precision, which is written out here; for one row, many groups, wide
// teams and the audited backend; its scratch to the byte, its weights read in groups only, and no
// allocation.
#include "support/accuracy.hpp"
#include "support/counted_new.hpp"
#include "support/device_values.hpp"
#include "support/rank_fixtures.hpp"
#include "support/tensors.hpp"
#include "swiglu_expert.hpp"

#include "reference/layers.hpp"

#include <plateau/host/backend.hpp>
#include <plateau/host/wide_team.hpp>
#include <plateau/testing/audited_backend.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

namespace pl = plateau;
using pl::bfloat16, pl::index_t;
using namespace support;

namespace {

using wide_backend = pl::basic_host_backend<pl::block_gemm, pl::host::wide_runner>;

static_assert(
    pl::check_trainable_expert<moe::swiglu_expert<pl::host_backend, float>, pl::host_backend, float>());
static_assert(
    pl::check_trainable_expert<moe::swiglu_expert<pl::host_backend, bfloat16>, pl::host_backend, bfloat16>());

// A round: the experts that have rows, and how many.
struct round_case {
  std::vector<index_t> experts, rows;
  index_t hidden = 0, intermediate = 0, all_experts = 0;

  index_t all_rows() const { return std::accumulate(rows.begin(), rows.end(), index_t{0}); }
  index_t matrix() const { return hidden * intermediate; }
};

template <class T> struct round_values {
  std::vector<T> x, weights, dy;   // weights: (experts, parts)
  std::vector<float> gates, begin; // begin: what the gradients hold before

  round_values(const round_case& c, std::uint64_t seed) {
    const double scale = 1 / std::sqrt(static_cast<double>(c.hidden));
    x = random_values<T>(c.all_rows() * c.hidden, seed);
    weights = random_values<T>(c.all_experts * 3 * c.matrix(), seed + 1, scale);
    dy = random_values<T>(c.all_rows() * c.hidden, seed + 2);
    gates = random_values<float>(c.all_rows(), seed + 3);
    begin = random_values<float>(c.all_experts * 3 * c.matrix(), seed + 4);
    // What no group has must not be read.
    for (index_t e = 0; e < c.all_experts; ++e)
      if (std::find(c.experts.begin(), c.experts.end(), e) == c.experts.end())
        std::fill_n(weights.begin() + e * 3 * c.matrix(), 3 * c.matrix(),
                    static_cast<T>(std::numeric_limits<float>::quiet_NaN()));
  }
};

template <class T> struct round_results {
  std::vector<T> y, dx;
  std::vector<float> dgates, gradients;
};

// The expert on a backend; `spare` bytes of scratch more than it asks for.
template <class T, class Backend>
round_results<T> run_expert(Backend& be, const round_case& c, const round_values<T>& v, index_t spare = 0) {
  auto s = be.make_stream("main");
  const index_t n = c.all_rows(), h = c.hidden, i = c.intermediate;
  const auto groups_count = static_cast<index_t>(c.experts.size());
  moe::swiglu_expert<Backend, T> expert(be, h, i, groups_count);
  const auto device = [&](const auto& values) {
    using U = std::decay_t<decltype(values[0])>;
    pl::device_buffer<U, Backend> b(be.device(), static_cast<index_t>(values.size()), pl::tag::other);
    to_device(be, s, b.all(), [&](index_t at) { return values[static_cast<std::size_t>(at)]; });
    return b;
  };
  const auto x = device(v.x), weights = device(v.weights), dy = device(v.dy);
  const auto gates = device(v.gates), gradients = device(v.begin);
  const pl::device_buffer<T, Backend> y(be.device(), n * h, pl::tag::other),
      dx(be.device(), n * h, pl::tag::other);
  const pl::device_buffer<float, Backend> dgates(be.device(), n, pl::tag::other);

  std::vector<index_t> offsets{0};
  std::vector<pl::tile<const T>> of_groups;
  std::vector<pl::tile<float>> gradients_of_groups;
  for (std::size_t g = 0; g < c.experts.size(); ++g) {
    offsets.push_back(offsets.back() + c.rows[g]);
    for (index_t part = 0; part < 3; ++part) {
      const index_t at = (c.experts[g] * 3 + part) * c.matrix();
      const index_t rows = expert.weight_parts()[static_cast<std::size_t>(part)].rows;
      of_groups.push_back(pl::as_matrix(weights.all().sub(at, c.matrix()), rows, c.matrix() / rows));
      gradients_of_groups.push_back(
          pl::as_matrix(gradients.all().sub(at, c.matrix()), rows, c.matrix() / rows));
    }
  }
  const pl::expert_groups<T> forward{c.experts, offsets, of_groups, {}},
      backward{c.experts, offsets, of_groups, gradients_of_groups};
  const pl::row_parts<T> rows{x.matrix(n, h)};
  const auto scratch_of = [&](std::size_t bytes) {
    return pl::device_buffer<unsigned char, Backend>(be.device(), static_cast<index_t>(bytes) + spare,
                                                     pl::tag::other);
  };
  const auto one = scratch_of(expert.forward_scratch_bytes(n, groups_count));
  const auto two = scratch_of(expert.backward_scratch_bytes(n, groups_count));
  expert.forward(s, forward, rows, y.matrix(n, h), one.all());
  expert.backward(s, backward, rows, gates.all(), dy.matrix(n, h), dx.matrix(n, h), dgates.all(), two.all());
  return {from_device(be, s, y.all()), from_device(be, s, dx.all()), from_device(be, s, dgates.all()),
          from_device(be, s, gradients.all())};
}

template <class T, class Backend = pl::host_backend>
round_results<T> on_host(const round_case& c, const round_values<T>& v, index_t spare = 0) {
  Backend be;
  return run_expert<T>(be, c, v, spare);
}

// What everyone computes, in double or with T's roundings wherever a matrix is stored: the result of the
// down projection is kept, and the gate's gradient is its product with the upstream gradient.
template <class Store, class Sum>
void plain_expert(const round_case& c, const std::vector<double>& x, const std::vector<double>& w,
                  const std::vector<double>& dy, const std::vector<double>& gates, std::vector<double>& y,
                  std::vector<double>& dx, std::vector<double>& dgates, std::vector<double>& gradients) {
  const auto store = [](double value) {
    return static_cast<double>(static_cast<float>(Store(static_cast<Sum>(value))));
  };
  const index_t h = c.hidden, i = c.intermediate;
  y.assign(x.size(), 0), dx.assign(x.size(), 0), dgates.assign(gates.size(), 0);
  std::vector<double> u(static_cast<std::size_t>(i)), da(u), db(u), dh(u), a(u), b(u),
      sdy(static_cast<std::size_t>(h));
  index_t r = 0;
  for (std::size_t g = 0; g < c.experts.size(); ++g) {
    const index_t at = c.experts[g] * 3 * c.matrix();
    const double *gate = w.data() + at, *up = gate + c.matrix(), *down = up + c.matrix();
    double *dgate = gradients.data() + at, *dup = dgate + c.matrix(), *ddown = dup + c.matrix();
    for (index_t row = 0; row < c.rows[g]; ++row, ++r) {
      const double* in = x.data() + r * h;
      for (index_t j = 0; j < i; ++j) {
        Sum p = 0, q = 0;
        for (index_t k = 0; k < h; ++k)
          p += static_cast<Sum>(gate[j * h + k] * in[k]), q += static_cast<Sum>(up[j * h + k] * in[k]);
        a[j] = store(p), b[j] = store(q);
        u[j] = store(a[j] / (1 + std::exp(-a[j])) * b[j]);
      }
      Sum dot = 0;
      for (index_t k = 0; k < h; ++k) {
        Sum p = 0;
        for (index_t j = 0; j < i; ++j) p += static_cast<Sum>(down[k * i + j] * u[j]);
        y[r * h + k] = store(p);
        dot += static_cast<Sum>(y[r * h + k] * dy[r * h + k]);
        sdy[k] = store(gates[r] * dy[r * h + k]);
      }
      dgates[r] = static_cast<double>(dot);
      for (index_t j = 0; j < i; ++j) {
        Sum p = 0;
        for (index_t k = 0; k < h; ++k) p += static_cast<Sum>(sdy[k] * down[k * i + j]);
        dh[j] = store(p);
        const double s = 1 / (1 + std::exp(-a[j]));
        da[j] = store(dh[j] * b[j] * s * (1 + a[j] * (1 - s)));
        db[j] = store(dh[j] * a[j] * s);
      }
      for (index_t k = 0; k < h; ++k) {
        Sum p = 0, q = 0;
        for (index_t j = 0; j < i; ++j)
          p += static_cast<Sum>(da[j] * gate[j * h + k]), q += static_cast<Sum>(db[j] * up[j * h + k]);
        dx[r * h + k] = store(store(p) + q);
        for (index_t j = 0; j < i; ++j) {
          dgate[j * h + k] = static_cast<double>(static_cast<Sum>(dgate[j * h + k] + da[j] * in[k]));
          dup[j * h + k] = static_cast<double>(static_cast<Sum>(dup[j * h + k] + db[j] * in[k]));
          ddown[k * i + j] = static_cast<double>(static_cast<Sum>(ddown[k * i + j] + sdy[k] * u[j]));
        }
      }
    }
  }
}

// Promise 2 for one tensor over all seeds: root mean square and largest error at most twice those of the
// plain computation, plus one unit in the last place of U at the tensor's size.
template <class U> struct pooled {
  std::vector<double> actual, exact, plain;

  void add(const std::vector<U>& a, const std::vector<double>& e, const std::vector<double>& p) {
    REQUIRE(a.size() == e.size());
    for (const U value : a) actual.push_back(static_cast<double>(static_cast<float>(value)));
    exact.insert(exact.end(), e.begin(), e.end());
    plain.insert(plain.end(), p.begin(), p.end());
  }
  void check() const {
    const auto found = deviation_of(exact, [&](std::size_t i) { return actual[i]; });
    const auto theirs = deviation_of(exact, [&](std::size_t i) { return plain[i]; });
    const double unit = unit_in_last_place<U>(deviation_of(exact, [](std::size_t) { return 0.0; }).rms);
    CHECK(found.rms <= 2 * theirs.rms + unit);
    CHECK(found.largest <= 2 * theirs.largest + unit);
  }
};

template <class T, class Backend> void check_accuracy(const round_case& c) {
  struct whole {
    std::vector<double> y, dx, dgates, gradients;
  };
  pooled<T> y, dx;
  pooled<float> dgates, gradients;
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    const round_values<T> v(c, 10 * seed);
    const auto actual = on_host<T, Backend>(c, v);
    whole exact, plain;
    exact.gradients = plain.gradients = widened(v.begin);
    plain_expert<double, double>(c, widened(v.x), widened(v.weights), widened(v.dy), widened(v.gates),
                                 exact.y, exact.dx, exact.dgates, exact.gradients);
    plain_expert<T, float>(c, widened(v.x), widened(v.weights), widened(v.dy), widened(v.gates), plain.y,
                           plain.dx, plain.dgates, plain.gradients);
    y.add(actual.y, exact.y, plain.y);
    dx.add(actual.dx, exact.dx, plain.dx);
    dgates.add(actual.dgates, exact.dgates, plain.dgates);
    gradients.add(actual.gradients, exact.gradients, plain.gradients);
    for (index_t e = 0; e < c.all_experts; ++e) // of those without rows, the bits of before
      if (std::find(c.experts.begin(), c.experts.end(), e) == c.experts.end())
        for (index_t j = e * 3 * c.matrix(); j < (e + 1) * 3 * c.matrix(); ++j)
          REQUIRE(actual.gradients[static_cast<std::size_t>(j)] == v.begin[static_cast<std::size_t>(j)]);
  }
  y.check();
  dx.check();
  dgates.check();
  gradients.check();
}

const round_case several{{0, 2, 3, 5}, {7, 1, 40, 3}, 24, 40, 6};
const round_case one_row{{1}, {1}, 24, 40, 2};
const round_case narrow{{0, 1}, {5, 9}, 33, 7, 3};

} // namespace

TEST_CASE_TEMPLATE("D16: forward and backward are as accurate as the plain computation, and read no weights "
                   "that have no rows",
                   T, float, bfloat16) {
  for (const round_case* c : {&several, &one_row, &narrow}) check_accuracy<T, pl::host_backend>(*c);
}

// One of the two is the reference of the other: the plain computation in double is that of the layers that
// the golden tests trust.
TEST_CASE("the plain computation is the reference's") {
  const round_case c{{0}, {6}, 8, 5, 1};
  round_values<float> v(c, 3);
  std::fill(v.gates.begin(), v.gates.end(), 1.0f);
  std::fill(v.begin.begin(), v.begin.end(), 0.0f);
  std::vector<double> y, dx, dgates, gradients = widened(v.begin);
  plain_expert<double, double>(c, widened(v.x), widened(v.weights), widened(v.dy), widened(v.gates), y, dx,
                               dgates, gradients);
  const auto w = widened(v.weights);
  const auto part = [&](index_t p) {
    return reference::vec(w.begin() + p * c.matrix(), w.begin() + (p + 1) * c.matrix());
  };
  const auto yr = reference::swiglu(widened(v.x), part(0), part(2), part(1), 6, 8, 5);
  const auto d = reference::swiglu_backward(widened(v.dy), widened(v.x), part(0), part(2), part(1), 6, 8, 5);
  // Through a float, as whatever is stored is.
  for (std::size_t j = 0; j < y.size(); ++j) {
    CHECK(y[j] == doctest::Approx(yr[j]).epsilon(1e-5));
    CHECK(dx[j] == doctest::Approx(d.dx[j]).epsilon(1e-4));
  }
  for (index_t j = 0; j < c.matrix(); ++j) {
    CHECK(gradients[j] == doctest::Approx(d.dw1[j]).epsilon(1e-4));
    CHECK(gradients[c.matrix() + j] == doctest::Approx(d.dw3[j]).epsilon(1e-4));
    CHECK(gradients[2 * c.matrix() + j] == doctest::Approx(d.dw2[j]).epsilon(1e-4));
  }
}

TEST_CASE_TEMPLATE("an expert by wide teams", T, float, bfloat16) {
  check_accuracy<T, wide_backend>(one_row);
  check_accuracy<T, wide_backend>(narrow);
}

TEST_CASE_TEMPLATE("an expert whose every operation is audited", T, float, bfloat16) {
  const round_values<T> v(several, 1);
  const auto expected = on_host<T>(several, v);
  in_turns<pl::audited_backend>{{1, nullptr}}.run(1, [&](auto&, auto& be) {
    const auto actual = run_expert<T>(be, several, v);
    CHECK(same_bits(actual.y, expected.y));
    CHECK(same_bits(actual.dx, expected.dx));
    CHECK(same_bits(actual.dgates, expected.dgates));
    CHECK(same_bits(actual.gradients, expected.gradients));
  });
}

TEST_CASE_TEMPLATE("the scratch is what is asked for, and no byte less will do", T, float, bfloat16) {
  const round_values<T> v(several, 2);
  CHECK_THROWS_AS(on_host<T>(several, v, -1), pl::config_error);
  const auto exact = on_host<T>(several, v), more = on_host<T>(several, v, 4096);
  CHECK(same_bits(exact.y, more.y));
  CHECK(same_bits(exact.gradients, more.gradients));
}

TEST_CASE("a call allocates nothing but the first") {
  pl::host_backend be;
  auto s = be.make_stream("main");
  const index_t h = 8, i = 4, n = 6;
  moe::swiglu_expert<pl::host_backend, float> expert(be, h, i, 2);
  const auto room = [&](index_t count) {
    pl::device_buffer<float, pl::host_backend> b(be.device(), count, pl::tag::other);
    std::fill_n(b.data(), count, 0.5f);
    return b;
  };
  const auto x = room(n * h), w = room(2 * 3 * h * i), g = room(2 * 3 * h * i), dy = room(n * h),
             y = room(n * h), dx = room(n * h), gates = room(n), dgates = room(n);
  const pl::device_buffer<unsigned char, pl::host_backend> scratch(
      be.device(), static_cast<index_t>(expert.backward_scratch_bytes(n, 2)), pl::tag::other);
  const std::vector<index_t> experts{0, 1}, offsets{0, 2, n};
  std::vector<pl::tile<const float>> weights;
  std::vector<pl::tile<float>> gradients;
  for (index_t at = 0; at < 6; ++at) {
    const pl::matrix_extent e = expert.weight_parts()[static_cast<std::size_t>(at % 3)];
    weights.push_back(pl::as_matrix(w.all().sub(at * h * i, h * i), e.rows, e.cols));
    gradients.push_back(pl::as_matrix(g.all().sub(at * h * i, h * i), e.rows, e.cols));
  }
  const pl::expert_groups<float> forward{experts, offsets, weights, {}},
      backward{experts, offsets, weights, gradients};
  const auto call = [&] {
    const pl::row_parts<float> rows{x.matrix(n, h)};
    expert.forward(s, forward, rows, y.matrix(n, h), scratch.all());
    expert.backward(s, backward, rows, gates.all(), dy.matrix(n, h), dx.matrix(n, h), dgates.all(),
                    scratch.all());
    be.wait(be.record(s));
  };
  call();
  const auto before = counted_new::calls.load();
  for (int again = 0; again < 3; ++again) call();
  CHECK(counted_new::calls.load() == before);
}
