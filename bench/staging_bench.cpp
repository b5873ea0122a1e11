// SPDX-License-Identifier: Apache-2.0
//
// A staging pipeline on the host backend, where all memory is RAM and streams are threads: one to four slots
// beside the bound of the same run. The three stages are timed alone, each bucket through the same slots; the
// bound is the slowest of them, all three over the cores, or the bytes of the state both ways over what all
// cores together stream. Nothing travels a link here, so this shows what the hand-overs cost, not what
// staging is for.
#include "table.hpp"

#include <plateau/host/backend.hpp>
#include <plateau/staging/staging_pipeline.hpp>

#include <algorithm>
#include <thread>
#include <vector>

namespace {

namespace pl = plateau;
using pl::index_t, pl::flow, pl::staged;
using backend_type = pl::host_backend;
using pipeline = pl::staging_pipeline<backend_type, staged<float, flow::inout>>;

// Some arithmetic for each element, as an optimizer has.
struct update {
  float scale;
  PLATEAU_HD void operator()(index_t i, pl::view<float> x) const {
    float y = x[i];
    for (int k = 0; k < 4; ++k) y = y * scale + 0.25F;
    x[i] = y;
  }
};

struct rig {
  index_t elements, bucket_elements;
  backend_type backend;
  bench::touched_buffer<float> state, other;
  backend_type::stream main = backend.make_stream("main"), second = backend.make_stream("second");
  pl::bucket_plan plan;

  rig(index_t n, index_t of_bucket)
      : elements(n), bucket_elements(of_bucket), state(static_cast<std::size_t>(n)),
        other(static_cast<std::size_t>(n)), plan(pl::bucket_plan::elementwise(n, of_bucket)) {}

  pl::view<float, pl::host_space> slab() { return {state.data(), elements}; }
  void finish() {
    backend.wait(backend.record(main));
    backend.wait(backend.record(second));
  }
  // Every bucket once on one stream, through as many slots as the pipeline has.
  template <class F> void stage(pl::view<float> slots, int count, F f) {
    for (index_t i = 0; i < plan.buckets(); ++i) {
      const pl::bucket b = plan.at(i);
      f(slab().sub(b.first, b.elements), slots.sub(i % count * bucket_elements, b.elements));
    }
    finish();
  }
  // Read once and written once, by all cores.
  void stream_all() {
    const index_t half = elements / 2;
    const pl::view<float> to{other.data(), elements};
    backend.copy(main, pl::in(slab().sub(0, half)), pl::out(to.sub(0, half)));
    backend.copy(second, pl::in(slab().sub(half, elements - half)), pl::out(to.sub(half, elements - half)));
    finish();
  }
};

void measure(bench::table& table, index_t elements, index_t bucket_elements, int repeats) {
  rig r(elements, bucket_elements);
  backend_type& be = r.backend;
  const double cores = std::max(1u, std::thread::hardware_concurrency());
  const auto n = static_cast<double>(r.plan.buckets());
  const std::string size =
      fmt::format("{} MiB in buckets of {} MiB", elements * 4 >> 20, bucket_elements * 4 >> 20);
  for (int slots = 1; slots <= 4; ++slots) {
    pl::workspace<backend_type> space(be, pipeline::working_set_of({bucket_elements, slots}));
    pipeline stage(be, space, {bucket_elements, slots});
    bench::touched_buffer<float> alone(static_cast<std::size_t>(slots * bucket_elements));
    const pl::view<float> memory{alone.data(), slots * bucket_elements};
    struct stages {
      double in, compute, out, streaming;
      double all() const { return in + compute + out; }
      double bound(double on_cores) const {
        return std::max({in, compute, out, all() / on_cores, streaming});
      }
      // With so many slots, of so many buckets.
      double limit(double on_cores, int of_slots, double buckets) const {
        const double b = bound(on_cores);
        if (of_slots == 1) return all();
        if (of_slots == 2) return ((buckets - 1) * std::max(b, all() / 2) + all()) / buckets;
        return b * (buckets + 2) / buckets;
      }
    };
    const auto smaller = [](stages a, stages b) {
      return stages{std::min(a.in, b.in), std::min(a.compute, b.compute), std::min(a.out, b.out),
                    std::min(a.streaming, b.streaming)};
    };
    std::vector<double> of_bound, of_limit, of_processor;
    stages least{1e9, 1e9, 1e9, 1e9};
    bench::series whole;
    for (int i = -1; i < repeats; ++i) { // the first is not counted
      stages s{};
      bench::series run;
      double processor = bench::processor_seconds_now();
      s.in = bench::seconds_of([&] {
        r.stage(memory, slots, [&](auto from, auto to) { be.copy(r.main, pl::in(from), pl::out(to)); });
      });
      processor -= bench::processor_seconds_now();
      run.time([&] {
        stage.run(r.main, r.plan, pipeline::slabs(r.slab()),
                  [&](auto& on, const pl::bucket& b, pl::view<float> x) {
                    be.launch(on, pl::elements{b.elements}, update{0.5F}, pl::inout(x));
                  });
        r.finish();
      });
      processor += bench::processor_seconds_now();
      s.compute = bench::seconds_of([&] {
        r.stage(memory, slots,
                [&](auto, auto x) { be.launch(r.main, pl::elements{x.n}, update{0.5F}, pl::inout(x)); });
      });
      s.out = bench::seconds_of([&] {
        r.stage(memory, slots, [&](auto to, auto from) { be.copy(r.main, pl::in(from), pl::out(to)); });
      });
      processor -= bench::processor_seconds_now();
      s.streaming = bench::seconds_of([&] { r.stream_all(); });
      if (i < 0) continue;
      least = smaller(least, s);
      of_bound.push_back(run.wall[0] / s.bound(cores));
      of_processor.push_back(run.processor[0] / -processor);
      of_limit.push_back(run.wall[0] / s.limit(cores, slots, n));
      whole.wall.push_back(run.wall[0]);
      whole.processor.push_back(run.processor[0]);
    }
    const double fastest = bench::spread_of(whole.wall).minimum;
    bench::spread bound = bench::spread_of(of_bound), limit = bench::spread_of(of_limit);
    bound.minimum = fastest / least.bound(cores);
    limit.minimum = fastest / least.limit(cores, slots, n);
    constexpr const char* limits[] = {"  time / all three stages",
                                      "  time / (half of all stages or the bound, and the fill)",
                                      "  time / (bound x (buckets + 2) / buckets)"};
    table.row(fmt::format("{}, {} slot{}: ms", size, slots, slots == 1 ? "" : "s"), whole.in(1e-3));
    table.row("  time / bound", bound);
    table.row("  processor time / that of the three stages alone", bench::spread_of(of_processor));
    table.row(limits[std::min(slots, 3) - 1], limit, bench::goal::at_most(1.03));
  }
}

} // namespace

int main(int argc, char** argv) {
  bench::table table(argv);
  const int repeats = argc > 1 ? std::max(1, std::atoi(argv[1])) : 15;
  measure(table, index_t{64} << 20, index_t{2} << 20, repeats);
  measure(table, index_t{64} << 20, index_t{4} << 20, repeats);
}
