// SPDX-License-Identifier: Apache-2.0
//
// One sequence of 1,048,576 tokens through the reference model at 241 billion parameters, without data, on
// the H200 preset: every rank has its part of the sequence and of the experts, and all four peaks are
// flattened. What each tag holds at its peak, how long a step is predicted to take and what of it is
// transfers that show; and the fewest GPUs that hold it. Bytes are the promise of a step, which is exact
// where all peaks are flattened (tests hold dry and real runs against it). Nothing here is measured.
//
//   attention_dry_run_bench [layers]: so many layers instead of 94
#include "table.hpp"

#include "dry_training.hpp"

#include <plateau/cuda/scratch_model.hpp>
#include <plateau/dry_run/presets.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>

namespace {

namespace pl = plateau;
constexpr std::int64_t tokens = 1 << 20;

bench::spread one(double x) { return {x, x, x, x, 0}; }

moe::options run_on(std::int64_t ranks, std::int64_t layers) {
  moe::options o;
  o.ranks = o.expert_parallel.emplace(ranks);
  o.sequence_parallel = ranks;
  o.layers = layers;
  o.hidden = 4096;
  o.heads = 64;
  o.kv_heads = 4;
  o.experts = 128;
  o.top_k = 8;
  o.intermediate = 1600;
  o.vocabulary = 151'936;
  o.context = tokens;
  o.batch = 1;
  o.attention_queries = 2048;
  o.attention_keys = 4096;
  o.key_hop_rows = 8192;
  o.dtype = moe::compute_type::bf16;
  o.flatten = {true, true, true, true};
  o.zero1 = true;
  o.routing = moe::parse_routing("--routing", "balanced");
  o.dry_run = true;
  o.check_order = false;
  o.backend = moe::backend_choice::cuda;
  return o;
}

class job {
 public:
  job(std::int64_t ranks, std::int64_t layers) {
    job_.config = run_on(ranks, layers);
    text_.vocabulary = *job_.config.vocabulary;
    job_.text = &text_;
    job_.machine = pl::h200();
  }
  job(const job&) = delete;
  job& operator=(const job&) = delete;
  const moe::training_job& operator*() const { return job_; }

 private:
  moe::corpus text_;
  moe::training_job job_;
};

// The bytes that a rank is promised to hold at most.
moe::step_promise promised(std::int64_t ranks, std::int64_t layers) {
  const job j(ranks, layers);
  return moe::promise_of_job<pl::cuda_scratch, pl::bfloat16>(*j, 0);
}

void promise_rows(bench::table& table, std::int64_t layers) {
  const auto capacity = static_cast<double>(pl::h200().device_bytes);
  constexpr double host_share = 2e12 / 8; // of a rank, in a host of 2 TB with eight of them
  std::int64_t fewest = 0, with_hosts = 0;
  for (std::int64_t ranks = 64; ranks >= 2; ranks /= 2) {
    const moe::step_promise p = promised(ranks, layers);
    const auto device = static_cast<double>(p.total.device_bytes);
    if (device <= capacity) fewest = ranks;
    if (device <= capacity && static_cast<double>(p.total.pinned_bytes) <= host_share) with_hosts = ranks;
    table.row(fmt::format("{} GPUs: GB of a device at its peak, of 141", ranks), one(device / 1e9),
              ranks == 64 ? bench::goal::at_most(capacity / 1e9) : bench::goal{});
    table.row("  GB of the host, of a rank", one(static_cast<double>(p.total.pinned_bytes) / 1e9));
    if (ranks != 64) continue;
    for (const pl::tag t : pl::all_tags)
      for (const auto& [bytes, space] :
           {std::pair{p[t].most.device_bytes, "device"}, {p[t].most.pinned_bytes, "host"}})
        if (bytes >= 1'000'000)
          table.row(fmt::format("  most of {}, {}, GB", pl::name_of(t), space),
                    one(static_cast<double>(bytes) / 1e9));
  }
  table.row("fewest GPUs that hold it", one(static_cast<double>(fewest)), bench::goal::at_most(64));
  table.row("  with 2 TB of memory for eight of them", one(static_cast<double>(with_hosts)));
}

// What a rank does in one step, by layers: the slowest of all ranks.
struct done {
  double seconds = 0, exposed = 0, flops = 0, operations = 0;
  std::size_t kinds = 0;
};
done step_of(std::int64_t layers) {
  const job j(64, layers);
  const moe::run_result result = moe::run_dry_training<pl::cuda_scratch, pl::bfloat16>(*j);
  const moe::prediction& p = *result.prediction;
  if (!p.trouble.empty()) fmt::print("{}\n", p.trouble);
  const auto slowest = std::max_element(p.kinds.begin(), p.kinds.end(), [](const auto& a, const auto& b) {
    return a.step.seconds < b.step.seconds;
  });
  return {slowest->step.seconds, slowest->step.exposed_transfer, slowest->step.flops,
          static_cast<double>(p.operations), p.kinds.size()};
}

// Each layer is the same again, so that a step of all follows from one of 2 and one of 4.
void step_rows(bench::table& table, std::int64_t layers) {
  bench::series took;
  done two, four;
  took.time([&] { two = step_of(2), four = step_of(4); });
  const auto all = [&](double done::*what) {
    const double of_a_layer = (four.*what - two.*what) / 2;
    return two.*what + static_cast<double>(layers - 2) * of_a_layer;
  };
  const double seconds = all(&done::seconds);
  table.row(fmt::format("64 GPUs: seconds of a step of {} layers, from those of 2 and 4", layers),
            one(seconds));
  table.row("  of them of a layer", one((four.seconds - two.seconds) / 2));
  table.row("  tokens a second", one(static_cast<double>(tokens) / seconds));
  table.row("  PFLOP of products, of a rank", one(all(&done::flops) / 1e15));
  table.row("  exposed transfers, % of the step", one(100 * all(&done::exposed) / seconds),
            bench::goal::at_most(2));
  table.row("  kinds of ranks", one(static_cast<double>(four.kinds)));
  table.row("  million operations recorded", one(1e-6 * (two.operations + four.operations)));
  table.row("  seconds of this program", took.in(1));
}

} // namespace

int main(int argc, char** argv) {
  bench::table table(argv);
  const std::int64_t layers = argc > 1 ? std::atoi(argv[1]) : 94;
  const auto parameters = moe::parameter_count(run_on(64, layers), 151'936);
  table.row("billion parameters", one(parameters / 1e9));
  promise_rows(table, layers);
  step_rows(table, layers);
}
