// SPDX-License-Identifier: Apache-2.0
//
// Muon, an optimizer of matrices, with its state in host memory: gradients, momentum and weights pass through
// three slots of the device, whole matrices at a time, since an update needs all of one. While the matrix
// products of one bucket run, the next comes in and the last goes out. The weights are those of the same
// updates without a pipeline, to the bit.
#include <plateau/plateau.hpp>
#include <plateau/staging.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <vector>

namespace pl = plateau;
using pl::index_t, pl::flow, pl::staged, pl::transpose;
using backend_type = pl::host_backend;
using stream_type = backend_type::stream;
using pipeline = pl::staging_pipeline<backend_type, staged<float, flow::in>, staged<float, flow::inout>,
                                      staged<float, flow::inout>>;

struct matrix {
  index_t rows, cols;
};
const std::vector<matrix> matrices{{48, 96}, {96, 48},  {32, 32}, {1, 64},
                                   {80, 40}, {24, 120}, {64, 1}}; // of a layer
constexpr std::size_t layers = 10;
constexpr float momentum = 0.95F, learning_rate = 0.02F;
constexpr int steps = 4, iterations = 5;

struct add_gradient { // a kernel; one call for each i
  void operator()(index_t i, pl::view<const float> g, pl::view<float> m, pl::view<float> x) const {
    m[i] = momentum * m[i] + g[i];
    x[i] = g[i] + momentum * m[i];
  }
};
struct norm_of {
  template <class Team>
  void operator()(Team& team, index_t, pl::view<const float> x, pl::view<float> norm) const {
    const float sum = team.reduce(x.n, 0.0F, pl::plus{}, [=](index_t i) { return x[i] * x[i]; });
    team.once([=] { norm[0] = std::sqrt(sum) + 1e-7F; });
  }
};
struct divide_by {
  void operator()(index_t i, pl::view<const float> norm, pl::view<float> x) const { x[i] /= norm[0]; }
};
struct take_step {
  float rate;
  void operator()(index_t i, pl::view<const float> x, pl::view<float> w) const { w[i] -= rate * x[i]; }
};

// What the updates need beside the slots: as much as the largest matrix, and its smaller side squared.
struct muon {
  backend_type& backend;
  pl::view<float> x, y, a, b, norm;
  pl::scratch_view scratch;

  template <class Source> muon(backend_type& be, Source&& from) : backend(be) {
    index_t most = 0, side = 0;
    std::size_t bytes = 0;
    for (const auto& [r, c] : matrices) {
      most = std::max(most, r * c), side = std::max(side, std::min(r, c));
      const index_t longest = std::max(r, c);
      for (const auto t : {transpose::no, transpose::yes})
        bytes = std::max(bytes, be.gemm_scratch_bytes<float, float, float>(t, t, longest, longest, longest));
    }
    x = from.template device<float>("orthogonal factor", most);
    y = from.template device<float>("next one", most);
    a = from.template device<float>("its square", side * side);
    b = from.template device<float>("polynomial of that", side * side);
    norm = from.template device<float>("norm", 1);
    scratch = from.template device<unsigned char>("scratch", static_cast<index_t>(bytes));
  }

  // One matrix: momentum, then Newton-Schulz steps X <- (p + q S + r S S) X with S = X X^T, or the same from
  // the right where X is tall.
  void update(stream_type& s, const matrix& shape, pl::view<const float> gradient, pl::view<float> m,
              pl::view<float> weight) {
    const index_t n = gradient.n, side = std::min(shape.rows, shape.cols);
    const bool tall = shape.rows > shape.cols;
    const auto no = transpose::no, yes = transpose::yes;
    pl::view<float> from = x.sub(0, n), to = y.sub(0, n);
    backend.launch(s, pl::elements{n}, add_gradient{}, pl::in(gradient), pl::inout(m), pl::out(from));
    backend.launch(s, pl::rows{1}, norm_of{}, pl::in(from), pl::out(norm));
    backend.launch(s, pl::elements{n}, divide_by{}, pl::in(norm), pl::inout(from));
    const auto square = pl::as_matrix(a, side, side), both = pl::as_matrix(b, side, side);
    for (int k = 0; k < iterations; ++k, std::swap(from, to)) {
      const auto now = as_matrix(from, shape.rows, shape.cols), next = as_matrix(to, shape.rows, shape.cols);
      const auto left = tall ? yes : no, right = tall ? no : yes;
      backend.gemm(s, left, right, 1.0F, pl::in(now), pl::in(now), 0.0F, pl::out(square), scratch);
      backend.copy(s, pl::in(square), pl::out(both));
      backend.gemm(s, no, no, 2.0315F, pl::in(square), pl::in(square), -4.775F, pl::inout(both), scratch);
      backend.copy(s, pl::in(now), pl::out(next));
      backend.gemm(s, no, no, 1.0F, pl::in(tall ? now : both), pl::in(tall ? both : now), 3.4445F,
                   pl::inout(next), scratch);
    }
    backend.launch(s, pl::elements{n}, take_step{learning_rate}, pl::in(from), pl::inout(weight));
  }
};

// A few steps; gradients depend on the weights. Streamed through slots, or all of it at once on the device.
std::vector<float> train(bool streamed) {
  std::vector<index_t> sizes;
  for (std::size_t layer = 0; layer < layers; ++layer)
    for (const matrix& each : matrices) sizes.push_back(each.rows * each.cols);
  const pl::bucket_plan plan = pl::bucket_plan::whole_tensors(sizes, 6000);
  const pl::staging_shape slots{plan.largest(), 3};
  backend_type backend;
  pl::working_set beside(pl::tag::optimizer);
  muon(backend, pl::counting_source(beside));
  pl::workspace<backend_type> space(backend, pl::together(pipeline::working_set_of(slots), beside));
  auto open = space.open(beside);
  muon optimizer(backend, pl::phase_source<backend_type>(open));
  const index_t n = plan.elements();
  pl::pinned_buffer<float, backend_type> g(backend.pinned(), n, pl::tag::gradients),
      m(backend.pinned(), n, pl::tag::optimizer), w(backend.pinned(), n, pl::tag::optimizer);
  const auto device = [&](const auto& all) { return pl::view<float>{all.data(), n}; };
  auto stream = backend.make_stream("main");
  pipeline stage(backend, space, slots);
  for (index_t i = 0; i < n; ++i) m.data()[i] = 0, w.data()[i] = std::sin(static_cast<float>(i % 997 * i));
  for (int step = 0; step < steps; ++step) {
    for (index_t i = 0; i < n; ++i) g.data()[i] = w.data()[i] * std::cos(0.1F * static_cast<float>(i));
    const auto update = [&](stream_type& s, const pl::bucket& b, auto grad, auto mean, auto weight) {
      for (index_t t = b.first_tensor; t < b.last_tensor; ++t) {
        const pl::tensor_part p = plan.part_of(b, t);
        const auto here = [&](auto all) { return all.sub(p.at, p.elements); };
        const matrix& shape = matrices[static_cast<std::size_t>(t) % matrices.size()];
        optimizer.update(s, shape, here(grad), here(mean), here(weight));
      }
    };
    if (streamed)
      stage.run(stream, plan, {g.all(), m.all(), w.all()}, update);
    else // the host backend's kernels reach the same memory
      update(stream, {0, 0, n, 0, plan.tensors()}, device(g), device(m), device(w));
    backend.wait(backend.record(stream));
  }
  if (streamed)
    std::cout << plan.tensors() << " matrices of " << 12 * n << " bytes in " << plan.buckets() << " buckets, "
              << pipeline::working_set_of(slots).device_bytes() << " bytes of slots\n";
  return {w.data(), w.data() + n};
}

int main() {
  const std::vector<float> streamed = train(true), at_once = train(false);
  const bool same = std::memcmp(streamed.data(), at_once.data(), 4 * streamed.size()) == 0;
  std::cout << "bits of the weights: " << (same ? "equal" : "DIFFERENT") << '\n';
  return same ? 0 : 1;
}
