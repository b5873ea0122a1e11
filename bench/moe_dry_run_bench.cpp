// SPDX-License-Identifier: Apache-2.0
//
// What a dry run costs: a whole step of a model of 241 billion parameters on 64 ranks, in seconds and bytes
// of this program; and microseconds per operation, with the check of stream order ("checked") and without, of
// a staging pipeline, of one stream, and of the reference model's step. Recording and timeline are counted
// together.
#include "table.hpp"

#include "dry_training.hpp"

#include <plateau/dry_run/backend.hpp>
#include <plateau/dry_run/predict.hpp>
#include <plateau/dry_run/presets.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/kernels.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include <sys/resource.h>

namespace {

namespace pl = plateau;
using pl::index_t;
using dry_backend = pl::dry_run<pl::host_backend>;

double peak_mebibytes() {
  rusage u{};
  getrusage(RUSAGE_SELF, &u);
  return static_cast<double>(u.ru_maxrss) / 1024;
}
bench::spread of_one(double value) { return {value, value, value, value, 0}; }

moe::options large_model(const std::string& routing, bool check, std::int64_t layers) {
  moe::options o;
  o.ranks = 64;
  o.expert_parallel = 64;
  o.layers = layers;
  o.hidden = 4096;
  o.heads = 64;
  o.kv_heads = 4;
  o.experts = 128;
  o.top_k = 8;
  o.intermediate = 1600;
  o.vocabulary = 151936;
  o.context = 16384;
  o.batch = 64;
  o.dtype = moe::compute_type::bf16;
  o.dry_run = true;
  o.check_order = check;
  o.routing = moe::parse_routing("--routing", routing);
  return o;
}
moe::run_result run(const moe::options& o) {
  moe::corpus text;
  text.vocabulary = *o.vocabulary;
  moe::training_job job;
  job.config = o;
  job.text = &text;
  job.machine = pl::h200();
  return moe::run_dry_training<pl::host_backend, pl::bfloat16>(job);
}

void large(bench::table& table) {
  const moe::options balanced = large_model("balanced", false, 94);
  const double parameters = moe::parameter_count(balanced, 151936);
  bench::series s;
  moe::run_result result;
  s.time([&] { result = run(balanced); });
  const std::string name = fmt::format("{:.0f}B model, 64 x 16,384 tokens, balanced", parameters / 1e9);
  table.row(name + ": seconds", s.in(1), bench::goal::at_most(30));
  table.row(name + ": MiB of this program", of_one(peak_mebibytes()), bench::goal::at_most(4096));
  table.row(name + ": kinds of ranks", of_one(static_cast<double>(result.prediction->kinds.size())));
  table.row(name + ": million operations", of_one(1e-6 * static_cast<double>(result.prediction->operations)));

  // With the tiles of a GPU the ranks that differ can each be run.
  moe::options hot = large_model("hot:0.95,4", false, 94);
  hot.attention_queries = 1024;
  hot.attention_keys = 2048;
  bench::series h;
  h.time([&] { result = run(hot); });
  table.row("the same, hot:0.95,4, attention tiles 1,024 x 2,048: seconds", h.in(1));
  table.row("the same: kinds of ranks", of_one(static_cast<double>(result.prediction->kinds.size())));
}

// `run(options)` returns how many operations it recorded.
template <class Run> void per_operation(bench::table& table, const std::string& what, Run run) {
  for (const bool check : {true, false}) {
    pl::dry_options options;
    options.check_order = check;
    std::uint64_t operations = 0;
    const bench::series s = bench::alone(5, [&] { operations = run(options); });
    table.row(fmt::format("{}, {}: us an operation", what, check ? "checked" : "unchecked"),
              s.in(1e-6 * static_cast<double>(operations)), bench::goal::at_most(check ? 3 : 1));
  }
}

// One rank's program and its timeline.
template <class F> std::uint64_t recorded(const pl::dry_options& options, F f) {
  const auto ran = pl::run_dry(
      1,
      [&](pl::dry_communicator& comm) {
        dry_backend backend(comm);
        f(backend);
      },
      options);
  const auto times = pl::predict(ran, pl::h200());
  if (ran.cause || !times.complete || ran.recorders.front()->found() != 0) {
    fmt::print("the program is wrong: {}\n", times.trouble);
    std::exit(1);
  }
  return ran.recorders.front()->operations();
}

void small(bench::table& table) {
  per_operation(table, "one kernel on one stream", [](const pl::dry_options& options) {
    return recorded(options, [](dry_backend& b) {
      pl::device_buffer<float, dry_backend> x(b.device(), 1024, pl::tag::other);
      auto s = b.make_stream("s");
      b.launch(s, pl::elements{1024}, pl::fill<float>{0}, pl::out(x.all()));
      for (int i = 0; i < 300'000; ++i)
        b.launch(s, pl::elements{1024}, pl::add{}, pl::in(x.all()), pl::inout(x.all()));
    });
  });
  per_operation(table, "4,096 buckets, 3 slots, 3 streams", [](const pl::dry_options& options) {
    return recorded(options, [](dry_backend& b) {
      constexpr index_t buckets = 4096, elements = 1024, slots = 3;
      pl::pinned_buffer<float, dry_backend> host(b.pinned(), buckets * elements, pl::tag::optimizer);
      pl::device_buffer<float, dry_backend> device(b.device(), slots * elements, pl::tag::optimizer);
      b.host_access(pl::out(host.all()));
      auto in = b.make_stream("in"), compute = b.make_stream("compute"), out = b.make_stream("out");
      std::vector<dry_backend::event> free(slots);
      for (int pass = 0; pass < 10; ++pass)
        for (index_t i = 0; i < buckets; ++i) {
          const auto bucket = host.all().sub(i * elements, elements);
          const auto slot = device.all().sub(i % slots * elements, elements);
          b.wait(in, free[static_cast<std::size_t>(i % slots)]);
          b.copy(in, pl::in(bucket), pl::out(slot));
          b.wait(compute, b.record(in));
          b.launch(compute, pl::elements{elements}, pl::add{}, pl::in(slot), pl::inout(slot));
          b.wait(out, b.record(compute));
          b.copy(out, pl::in(slot), pl::out(bucket));
          free[static_cast<std::size_t>(i % slots)] = b.record(out);
        }
      b.wait(b.record(out));
    });
  });
  per_operation(table, "large model, 8 layers", [](const pl::dry_options& options) {
    return run(large_model("balanced", options.check_order, 8)).prediction->operations;
  });
}

} // namespace

int main(int, char** argv) {
  bench::table table(argv);
  large(table); // first: the most bytes of the program are those of this one
  small(table);
}
