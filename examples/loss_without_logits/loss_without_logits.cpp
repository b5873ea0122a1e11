// SPDX-License-Identifier: Apache-2.0
//
// The loss of a language model's head, and its gradients, twice: by one rank from the matrix of all logits,
// and by four ranks that split tokens and vocabulary and never have it. Prints both losses, how far the
// gradients are apart, and the most bytes that a rank held beside its inputs and gradients.
#include <plateau/plateau.hpp>
#include <plateau/ring.hpp>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <numeric>
#include <vector>

namespace pl = plateau;
using pl::index_t, pl::tag, pl::transpose;
using backend_type = pl::host_backend;
using communicator_type = pl::thread_communicator;
template <class T> using device = pl::device_buffer<T, backend_type>;

constexpr index_t group = 4, all_tokens = 1024, hidden = 64, vocabulary = 8192;

// A kernel over elements: values that any rank can make, from element `first` of all on.
struct make_values {
  index_t first;
  void operator()(index_t i, pl::view<float> to) const { to[i] = float((first + i) * 89 % 997) / 997 - 0.5F; }
  void operator()(index_t i, pl::view<int> to) const { to[i] = int((first + i) * 31 % vocabulary); }
};
// A kernel over rows: a token's logits become their gradients, and give its loss.
struct dense_loss {
  template <class Team>
  void operator()(Team& team, index_t row, pl::tile<float> logits, pl::view<const int> targets,
                  pl::view<float> losses) const {
    float* z = logits.row(row);
    const index_t n = logits.cols, target = targets[row];
    const float m = team.reduce(n, pl::lowest<float>(), pl::maximum{}, [=](index_t v) { return z[v]; });
    const float s = team.reduce(n, 0.0F, pl::plus{}, [=](index_t v) { return pl::exp(z[v] - m); });
    team.once([=] { losses[row] = std::log(s) + (m - z[target]); });
    team.for_each(n, [=](index_t v) { z[v] = pl::exp(z[v] - m) / s / all_tokens; });
    team.once([=] { z[target] -= 1.0F / all_tokens; });
  }
};

struct results {
  double loss = 0; // the mean over all tokens
  std::vector<float> dx{std::vector<float>(all_tokens * hidden)};
  std::vector<float> dw{std::vector<float>(vocabulary * hidden)};
  std::size_t bytes = 0; // beside inputs and gradients, of rank 0
};

// A rank with its share of everything, either way. Its part of the results goes into `to`.
void run_rank(communicator_type& comm, bool dense, results& to) {
  backend_type backend;
  auto& memory = backend.device();
  auto stream = backend.make_stream("main");
  const index_t n = all_tokens / comm.size(), rows = vocabulary / comm.size(), me = comm.rank();
  device<float> x(memory, n * hidden, tag::activations), dx(memory, n * hidden, tag::gradients);
  device<float> w(memory, rows * hidden, tag::parameters), dw(memory, rows * hidden, tag::gradients);
  device<int> targets(memory, n, tag::activations);
  const pl::drain<backend_type> before_they_go(backend, stream);
  backend.launch(stream, pl::elements{n * hidden}, make_values{me * n * hidden}, out(x.all()));
  backend.launch(stream, pl::elements{rows * hidden}, make_values{me * rows * hidden}, out(w.all()));
  backend.launch(stream, pl::elements{n}, make_values{me * n}, out(targets.all()));
  backend.launch(stream, pl::elements{rows * hidden}, pl::fill<float>{0}, out(dw.all()));
  const auto x_rows = x.matrix(n, hidden), w_rows = w.matrix(rows, hidden);
  const std::size_t before = memory.meter().current();
  const auto finish = [&](const device<float>& losses) {
    pl::close_step(backend, comm, stream); // what is below is memory of the host, and done now
    std::copy_n(dx.data(), n * hidden, to.dx.data() + me * n * hidden);
    std::copy_n(dw.data(), rows * hidden, to.dw.data() + me * rows * hidden);
    if (me != 0) return; // all have the same loss
    to.loss = std::accumulate(losses.data(), losses.data() + losses.size(), 0.0) / double(losses.size());
    to.bytes = memory.meter().peak().bytes - before;
  };
  if (dense) {
    device<float> all(memory, n * rows, tag::vocabulary), losses(memory, n, tag::other);
    device<unsigned char> scratch(memory, 1 << 20, tag::other); // of products
    const auto logits = all.matrix(n, rows);
    const auto product = [&](transpose a, transpose b, auto left, auto right, pl::tile<float> to_matrix) {
      backend.gemm(stream, a, b, 1.0F, in(left), in(right), 0.0F, out(to_matrix), scratch.all());
    };
    product(transpose::no, transpose::yes, x_rows, w_rows, logits);
    backend.launch(stream, pl::rows{n}, dense_loss{}, inout(logits), in(targets.all()), out(losses.all()));
    product(transpose::no, transpose::no, logits, w_rows, dx.matrix(n, hidden));
    product(transpose::yes, transpose::no, logits, x_rows, dw.matrix(rows, hidden));
    return finish(losses);
  }
  using loss_type = pl::linear_cross_entropy<backend_type, communicator_type, float>;
  const loss_type::shape shape{n, hidden, vocabulary, {64, 512}, 128}; // tiles of logits, rows that travel
  pl::workspace<backend_type> space(backend, loss_type::working_set(shape, comm.size()));
  loss_type op(backend, comm, shape, space);
  device<pl::token_state> states(memory, n, tag::other); // 16 bytes, kept of a token
  device<double> sums(memory, 2, tag::other);
  device<float> loss(memory, 1, tag::other), one(memory, 1, tag::other);
  backend.launch(stream, pl::elements{1}, pl::fill<float>{1}, out(one.all()));
  loss_type::saved saved{states.all(), sums.all(), {}};
  const loss_type::inputs given{x_rows, w_rows, targets.all()};
  op.forward(stream, given, saved, {loss.all()});
  op.backward(stream, given, saved, one.all(), {dx.matrix(n, hidden), {}, dw.matrix(rows, hidden), {}});
  finish(loss);
}

double apart(const std::vector<float>& a, const std::vector<float>& b) { // over the largest of b
  float most = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    most = std::max(most, std::abs(a[i] - b[i])), largest = std::max(largest, std::abs(b[i]));
  return static_cast<double>(most / largest);
}

int main() {
  results dense, ring;
  pl::run_ranks(1, [&](communicator_type& comm) { run_rank(comm, true, dense); });
  pl::run_ranks(group, [&](communicator_type& comm) { run_rank(comm, false, ring); });
  const double dx = apart(ring.dx, dense.dx), dw = apart(ring.dw, dense.dw);
  std::cout << "with logits:    loss " << dense.loss << ", " << dense.bytes << " bytes\n"
            << "without logits: loss " << ring.loss << ", " << ring.bytes << " bytes on each of 4 ranks\n"
            << "gradients apart by " << dx << " and " << dw << " of their largest element\n";
  return std::abs(ring.loss / dense.loss - 1) + dx + dw < 1e-5 && ring.bytes < dense.bytes / 20 ? 0 : 1;
}
