// SPDX-License-Identifier: Apache-2.0
//
// A forward makes one tensor a layer, and backward wants them again, the last one first. Meanwhile they are
// only in the way: here each waits in host memory, and the device holds two of them, however many there are.
// A tensor is parked when the scope in which it was written ends, so nobody can forget to.
#include <plateau/offload.hpp>
#include <plateau/plateau.hpp>

#include <iostream>
#include <string>
#include <vector>

namespace pl = plateau;
using pl::index_t;
using backend_type = pl::host_backend;
using matrix = pl::tile<float>;

constexpr index_t layers = 24, tokens = 512, hidden = 256;

// A tensor type of your own: a window into a larger matrix, whose rows are apart.
struct window {
  float* first;
  index_t pitch;
};
template <> struct plateau::tensor_traits<window> {
  using element_type = float;
  using space = device_space;
  static constexpr int rank = 2;
  static float* data(const window& w) { return w.first; }
  static index_t extent(const window&, int d) { return d == 0 ? tokens : hidden; }
  static index_t stride(const window& w, int d) { return d == 0 ? w.pitch : 1; }
};

// Kernels: a "layer" adds its number to what it gets; backward adds up what it sees.
struct next_layer {
  float number;
  template <class Team> void operator()(Team& team, index_t r, pl::tile<const float> x, matrix y) const {
    team.for_each(x.cols, [=, this](index_t c) { y(r, c) = x(r, c) + number; });
  }
};
struct add_up {
  template <class Team> void operator()(Team& team, index_t r, pl::tile<const float> x, matrix sum) const {
    team.for_each(x.cols, [=](index_t c) { sum(r, c) += x(r, c); });
  }
};

int main() {
  backend_type backend;
  // One tensor a layer, and so much pinned memory for them; without a budget, as much as it takes.
  const auto shape = pl::offload_shape::of_layers(layers, tokens * hidden * 4);
  // All memory is known before there is any.
  const pl::working_set set = pl::offload_store<backend_type>::working_set_of(shape);
  pl::workspace<backend_type> space(backend, set);
  pl::device_buffer<float, backend_type> large(backend.device(), tokens * 1000, pl::tag::other);
  pl::device_buffer<float, backend_type> sums(backend.device(), tokens * hidden, pl::tag::other);
  pl::pinned_buffer<float, backend_type> on_host(backend.pinned(), tokens * hidden, pl::tag::other);
  auto stream = backend.make_stream("main");
  pl::offload_store<backend_type> store(backend, space, shape);
  backend.launch(stream, pl::elements{large.size()}, pl::fill<float>{1}, pl::out(large.all()));
  backend.launch(stream, pl::elements{sums.size()}, pl::fill<float>{0}, pl::out(sums.all()));

  // Forward. The first tensor is the caller's, who has it back at once; the others are written where they
  // will be parked from.
  std::vector<pl::offload_handle<matrix, backend_type>> inputs;
  inputs.push_back(store.hold(stream, 0, window{large.data() + 100, 1000}));
  for (index_t l = 1; l < layers; ++l) {
    inputs.push_back(store.open<matrix>(l));
    auto x = inputs[static_cast<std::size_t>(l - 1)].get(stream);
    auto y = inputs.back().write(stream, tokens, hidden);
    backend.launch(stream, pl::rows{tokens}, next_layer{static_cast<float>(l)}, pl::in(x.view()),
                   pl::out(y.view()));
  } // y is parked, and x may go

  // Backward: each is there, or on its way, when it is asked for.
  for (index_t l = layers - 1; l >= 0; --l) {
    auto x = inputs[static_cast<std::size_t>(l)].get(stream);
    backend.launch(stream, pl::rows{tokens}, add_up{}, pl::in(x.view()),
                   pl::inout(sums.matrix(tokens, hidden)));
  }
  backend.copy(stream, pl::in(sums.all()), pl::out(on_host.all()));
  std::vector<float> result(static_cast<std::size_t>(sums.size()));
  backend.fetch(backend.record(stream), pl::in(on_host.all()), result, "sums");

  float expected = 0;
  for (index_t l = 0, value = 1; l < layers; ++l, value += l) expected += static_cast<float>(value);
  int wrong = 0;
  for (const float found : result) wrong += found != expected;
  const auto done = store.statistics();
  std::cout << layers << " tensors of " << tokens * hidden * 4 << " bytes: " << set.device_bytes()
            << " bytes on the device, " << set.pinned_bytes() << " pinned\n"
            << done.parked << " parked, " << done.restored << " restored, of which " << done.late
            << " had not been begun in time\nwrong results: " << wrong << '\n';
  return wrong == 0 && done.late == 0 ? 0 : 1;
}
