// SPDX-License-Identifier: Apache-2.0
//
// Parked layer inputs without data, in virtual time on the H200 preset: layers of two products, as much work
// a token as eight experts of 2,880 x 2,880, or less. What is on the device at any depth; what a step costs
// with everything parked against everything kept; from which amount of work on it pays; and how many of 47
// inputs a host budget parks, with the bytes that are really pinned. Nothing of it is measured. What is, at
// the end, is what a tensor costs the host of the host backend.
#include "table.hpp"

#include <plateau/drain.hpp>
#include <plateau/dry_run.hpp>
#include <plateau/dry_run/presets.hpp>
#include <plateau/offload.hpp>
#include <plateau/plateau.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace pl = plateau;
using pl::bfloat16;
using pl::index_t;
using backend = pl::dry_run<pl::host_backend>;

constexpr double gibibyte = 1024.0 * 1024 * 1024;
constexpr index_t tokens = 69632, hidden = 2880;
constexpr index_t input_bytes = tokens * hidden * 2;

bench::spread one(double x) { return {x, x, x, x, 0}; }

// (rows, hidden) to (rows, middle) and back: 4 x hidden x middle flops a token forward.
class two_products {
 public:
  two_products(backend& be, backend::stream& s, index_t middle)
      : be_(&be), middle_(middle), weights_(be.device(), 2 * hidden * middle, pl::tag::parameters),
        gradients_(be.device(), 2 * hidden * middle, pl::tag::gradients),
        rows_(be.device(), 2 * tokens * middle, pl::tag::activations),
        scratch_(be.device(), index_t{1} << 33, pl::tag::activations) {
    be.launch(s, pl::elements{weights_.size()}, pl::fill<bfloat16>{}, pl::out(weights_.all()));
    be.launch(s, pl::elements{gradients_.size()}, pl::fill<float>{}, pl::out(gradients_.all()));
  }
  index_t input_columns() const { return hidden; }
  index_t output_columns() const { return hidden; }
  double flops() const { return 4.0 * static_cast<double>(tokens * hidden) * static_cast<double>(middle_); }

  void forward(backend::stream& s, pl::tile<const bfloat16> x, pl::tile<bfloat16> y) {
    recompute(s, x);
    product<false, true>(s, pl::tile<const bfloat16>(rows(0, x.rows)), second(), y);
  }
  void recompute(backend::stream& s, pl::tile<const bfloat16> x) {
    product<false, true>(s, x, first(), rows(0, x.rows));
  }
  void backward(backend::stream& s, pl::tile<const bfloat16> x, pl::tile<const bfloat16> dy,
                pl::tile<bfloat16> dx) {
    product<false, false>(s, dy, second(), rows(1, x.rows));
    add<true, false>(s, dy, rows(0, x.rows), gradients_.all().sub(hidden * middle_, hidden * middle_), hidden,
                     middle_);
    product<false, false>(s, pl::tile<const bfloat16>(rows(1, x.rows)), first(), dx);
    add<true, false>(s, pl::tile<const bfloat16>(rows(1, x.rows)), x, gradients_.first(hidden * middle_),
                     middle_, hidden);
  }

 private:
  template <bool A, bool B>
  void product(backend::stream& s, pl::tile<const bfloat16> a, pl::tile<const bfloat16> b,
               pl::tile<bfloat16> c) {
    be_->gemm(s, A ? pl::transpose::yes : pl::transpose::no, B ? pl::transpose::yes : pl::transpose::no, 1.0F,
              pl::in(a), pl::in(b), 0.0F, pl::out(c), scratch_.all());
  }
  template <bool A, bool B>
  void add(backend::stream& s, pl::tile<const bfloat16> a, pl::tile<const bfloat16> b, pl::view<float> c,
           index_t m, index_t n) {
    be_->gemm(s, A ? pl::transpose::yes : pl::transpose::no, B ? pl::transpose::yes : pl::transpose::no, 1.0F,
              pl::in(a), pl::in(b), 1.0F, pl::inout(pl::as_matrix(c, m, n)), scratch_.all());
  }
  pl::tile<bfloat16> first() const {
    return pl::as_matrix(weights_.first(hidden * middle_), middle_, hidden);
  }
  pl::tile<bfloat16> second() const {
    return pl::as_matrix(weights_.all().sub(hidden * middle_, hidden * middle_), hidden, middle_);
  }
  pl::tile<bfloat16> rows(index_t half, index_t n) const {
    return pl::as_matrix(rows_.all().sub(half * tokens * middle_, tokens * middle_), n, middle_);
  }

  backend* be_;
  index_t middle_;
  pl::device_buffer<bfloat16, backend> weights_;
  pl::device_buffer<float, backend> gradients_;
  pl::device_buffer<bfloat16, backend> rows_;
  pl::device_buffer<unsigned char, backend> scratch_;
};
// One object is every layer: what is measured is the same.
struct depth {
  two_products* layer;
  index_t n;
  std::size_t size() const { return static_cast<std::size_t>(n); }
  two_products& operator[](std::size_t) const { return *layer; }
};
using net_type = pl::checkpointed<backend, bfloat16, depth>;

struct run {
  double seconds = 0; // of one step
  std::size_t device = 0, pinned = 0;
  index_t parked = 0;
  pl::offload_statistics statistics;
};
run run_net(index_t layers, index_t middle, const pl::hardware& machine, pl::checkpointed_shape shape = {}) {
  run out;
  const auto seconds_of = [&](int steps) {
    pl::dry_options options;
    options.check_order = layers < 100 && steps == 1;
    const pl::dry_ranks ran = pl::run_dry(
        1,
        [&](pl::dry_communicator& comm) {
          backend be(comm);
          auto s = be.make_stream("main");
          two_products layer(be, s, middle);
          depth all{&layer, layers};
          shape.rows = tokens;
          pl::workspace<backend> space(be, net_type::working_set_of(shape, all));
          net_type net(be, space, shape, all);
          pl::device_buffer<bfloat16, backend> x(be.device(), tokens * hidden, pl::tag::other),
              y(be.device(), tokens * hidden, pl::tag::other);
          const pl::drain<backend> end(be, s);
          be.launch(s, pl::elements{x.size()}, pl::fill<bfloat16>{}, pl::out(x.all()));
          for (int i = 0; i < steps; ++i) {
            const auto pass = net.forward(s, x.matrix(tokens, hidden), y.matrix(tokens, hidden));
            net.backward(s, pass, y.matrix(tokens, hidden), x.matrix(tokens, hidden));
          }
          out.device =
              be.device().meter().peak(pl::tag::checkpoint).bytes - 2 * static_cast<std::size_t>(input_bytes);
          out.pinned = be.pinned().meter().peak(pl::tag::checkpoint).bytes;
          out.parked = net.store().plan().parked;
          out.statistics = net.store().statistics();
        },
        options);
    if (ran.cause) ran.cause->raise();
    if (!ran.findings().empty()) throw pl::error(ran.findings().front());
    return pl::predict(ran, machine).seconds;
  };
  const double once = seconds_of(1);
  out.seconds = (seconds_of(3) - once) / 2;
  return out;
}

pl::offload_costs costs_of(const pl::hardware& h, index_t middle) {
  pl::offload_costs c;
  c.to_host_bytes_per_second = h.device_to_host_bytes_per_second;
  c.to_device_bytes_per_second = h.host_to_device_bytes_per_second;
  const double flops = 4.0 * static_cast<double>(tokens * hidden) * static_cast<double>(middle);
  c.forward_seconds = c.recompute_seconds = flops / h.half_flops;
  c.backward_seconds = 2.5 * c.forward_seconds; // half of forward again, and four products
  return c;
}

void depths(bench::table& table, const pl::hardware& machine) {
  for (const index_t layers : {8, 32, 128, 512, 1024}) {
    pl::checkpointed_shape kept;
    kept.host_budget_bytes = 0;
    const run with = run_net(layers, 12 * hidden, machine),
              without = run_net(layers, 12 * hidden, machine, kept);
    table.row(fmt::format("{} layers, inputs on the device / the largest input", layers),
              one(static_cast<double>(with.device) / input_bytes), bench::goal::at_most(2));
    table.row("  the same with all of them kept", one(static_cast<double>(without.device) / input_bytes));
    table.row("  step with parking / without", one(with.seconds / without.seconds),
              bench::goal::at_most(1.02));
    table.row("  restored too late", one(static_cast<double>(with.statistics.late)), bench::goal::at_most(0));
  }
}

void break_even(bench::table& table, const pl::hardware& machine) {
  for (const index_t times : {1, 2, 3, 4, 8, 12, 24}) {
    const auto even = pl::break_even_of(input_bytes, costs_of(machine, times * hidden));
    pl::checkpointed_shape kept, half;
    kept.host_budget_bytes = 0;
    half.keep_every = 2;
    const double without = run_net(32, times * hidden, machine, kept).seconds;
    table.row(fmt::format("{} x hidden^2 x 4 flops a token: step with parking / without", times),
              one(run_net(32, times * hidden, machine).seconds / without));
    table.row("  every second input, its layer computed again / without",
              one(run_net(32, times * hidden, machine, half).seconds / without));
    table.row("  of the link, GB/s: hides all from", one(even.hidden_bytes_per_second / 1e9));
    table.row("  faster than computing anew from", one(even.break_even_bytes_per_second / 1e9));
  }
}

void budgets(bench::table& table, const pl::hardware& machine) {
  const struct {
    const char* name;
    double bytes;
    double parked, pinned;
  } cases[] = {{"0", 0, 0, 0},
               {"8 GiB", 8 * gibibyte, 21, 7.845},
               {"16 GiB", 16 * gibibyte, 42, 15.69},
               {"full", 1e15, 47, 17.56}};
  for (const auto& c : cases) {
    pl::checkpointed_shape shape;
    shape.host_budget_bytes = static_cast<index_t>(c.bytes);
    const run r = run_net(47, 12 * hidden, machine, shape);
    const auto parked = static_cast<double>(r.parked);
    table.row(fmt::format("47 inputs of 0.3735 GiB, host budget {}: parked", c.name), one(parked),
              bench::goal::at_least(c.parked));
    table.row("  pinned, GiB", one(static_cast<double>(r.pinned) / gibibyte), bench::goal::at_most(c.pinned));
    table.row("  pinned / bytes of what is parked",
              one(parked == 0 ? 1 : static_cast<double>(r.pinned) / (parked * input_bytes)),
              bench::goal::at_most(1));
    table.row("  on the device, GiB", one(static_cast<double>(r.device) / gibibyte));
    table.row("  ms of a step", one(1e3 * r.seconds));
  }
}

// Small tensors, so that only the host's part shows: a write, a park, and a get that restores.
void host_cost(bench::table& table) {
  pl::host_backend be;
  constexpr index_t n = 512;
  const auto shape = pl::offload_shape::of_layers(n, 256);
  pl::workspace<pl::host_backend> space(be, pl::offload_store<pl::host_backend>::working_set_of(shape));
  auto s = be.make_stream("main");
  pl::offload_store<pl::host_backend> store(be, space, shape);
  std::vector<pl::offload_handle<pl::view<float>, pl::host_backend>> h(n);
  bench::series step;
  for (int i = 0; i < 60; ++i) {
    step.time([&] {
      for (index_t t = 0; t < n; ++t) {
        h[static_cast<std::size_t>(t)] = store.open<pl::view<float>>(t);
        const auto w = h[static_cast<std::size_t>(t)].write(s, 64);
      }
      for (auto it = h.rbegin(); it != h.rend(); ++it) const auto r = it->get(s);
      for (auto& each : h) each = {};
      be.wait(be.record(s));
    });
  }
  table.row("host backend: us of a small tensor, out and back", step.in(1e-6 * n));
}

} // namespace

int main(int, char** argv) {
  bench::table table(argv);
  const pl::hardware machine = pl::h200();
  depths(table, machine);
  break_even(table, machine);
  budgets(table, machine);
  host_cost(table);
}
