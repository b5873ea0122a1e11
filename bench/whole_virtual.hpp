// SPDX-License-Identifier: Apache-2.0
//
// The step on machines that are not here: nodes of eight H200, by the dry run. One shape is that of a
// published case, a model of 35 billion parameters whose experts lie within a node; its optimizer's state is
// dealt over all ranks. The other is the one that is run for real, for which such a device is far too fast:
// its step is all latency.
#pragma once

#include "table.hpp"
#include "whole_runs.hpp"
#include "whole_step.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

namespace bench {

// 32.1 billion parameters in experts, 2.9 in the rest.
inline moe::options published_shape(flattened how, std::int64_t context) {
  moe::options o;
  o.ranks = 64;
  o.expert_parallel = 8;
  o.layers = 48;
  o.hidden = 2048;
  o.heads = 16;
  o.kv_heads = 4;
  o.experts = 128;
  o.top_k = 8;
  o.intermediate = 848;
  o.vocabulary = 151936;
  o.context = context;
  o.batch = o.ranks;
  o.dtype = moe::compute_type::bf16;
  o.backend = moe::backend_choice::cuda;
  o.attention_queries = 2048; // tiles that keep such a device busy
  o.attention_keys = 4096;
  o.routing = moe::parse_routing("--routing", "balanced");
  if (how == flattened::none) return o;
  o.flatten = {true, true, true, true};
  o.dispatch_cap = {16384, 16384};
  o.dispatch_slots = 3;
  o.vocabulary_tile = {4096, 16384};
  o.hop_rows = 4096;
  o.zero1 = true;
  return o;
}
inline moe::options small_shape_on_gpus(flattened how, std::int64_t context) {
  moe::options o = whole_shape(how, context, whole_batch);
  o.backend = moe::backend_choice::cuda;
  o.gemm = moe::gemm_choice::builtin;
  return o;
}

// Exposed transfers by the time of the step, on the rank that has most.
inline double exposed_share(const moe::run_result& r) {
  double most = 0;
  for (const moe::kind_of_rank& kind : r.prediction->kinds)
    most = std::max(most, kind.step.exposed_transfer / kind.step.seconds);
  return most;
}
// The same with each cost up to 30% larger or smaller, by three chances.
inline double perturbed_share(moe::options o) {
  double most = 0;
  o.perturb = 0.3;
  for (o.perturb_seed = 1; o.perturb_seed <= 3; ++o.perturb_seed)
    most = std::max(most, exposed_share(predict(o)));
  return most;
}

// One more product of a rank's tokens with the vocabulary, which reads and writes nothing.
inline double product_seconds(const moe::options& o, const plateau::hardware& machine) {
  return 2.0 * static_cast<double>(o.batch / o.ranks * o.context) * static_cast<double>(o.hidden) *
         static_cast<double>(*o.vocabulary) / machine.half_flops;
}

template <class Shape>
void compare_steps(table& out, const std::string& name, std::int64_t context, Shape shape) {
  const plateau::hardware machine = plateau::h200();
  const moe::run_result none = predict(shape(flattened::none, context)),
                        all = predict(shape(flattened::all, context));
  const double of_none = none.prediction->step_seconds, of_all = all.prediction->step_seconds;
  const step_flops flops = flops_of(shape(flattened::all, context), all);
  fmt::print("{}, {} tokens: step {:.4g} s with none, {:.4g} s with all, peaks {:.1f} and {:.1f} GB, exposed "
             "transfers {:.1f}% and {:.1f}%\n",
             name, context, of_none, of_all, static_cast<double>(moe::highest_device_peak(none)) * 1e-9,
             static_cast<double>(moe::highest_device_peak(all)) * 1e-9, 100 * exposed_share(none),
             100 * exposed_share(all));
  out.row(name + ": vocabulary's share of the FLOPs", of_one(flops.vocabulary / flops.all));
  out.row(name + ": step, all / none", of_one(of_all / of_none));
  out.row(name + ": step, all / (none and one more product)",
          of_one(of_all / (of_none + product_seconds(shape(flattened::none, context), machine))),
          goal::at_most(1.03));
  out.row(name + ": exposed transfers, all", of_one(exposed_share(all)), goal::at_most(0.02));
  out.row(name + ": the same, costs +- 30%", of_one(perturbed_share(shape(flattened::all, context))),
          goal::at_most(0.05));
}

inline void measure_virtual(table& out) {
  // The longest that the unflattened model holds, in steps of 1,024 tokens.
  const std::uint64_t device = plateau::h200().device_bytes;
  std::int64_t fits = 1, too_many = 128;
  while (too_many - fits > 1) {
    const std::int64_t middle = (fits + too_many) / 2;
    const bool does =
        moe::highest_device_peak(predict(published_shape(flattened::none, 1024 * middle))) <= device;
    (does ? fits : too_many) = middle;
  }
  compare_steps(out, "35B on 64 H200", 1024 * fits, published_shape);
  // Where only the flattened one goes on.
  moe::options far = published_shape(flattened::all, 4 * 1024 * fits);
  far.attention_queries = far.attention_keys = 8192; // fewer operations to predict
  far.dispatch_cap = {65536, 65536};
  const moe::run_result all = predict(far);
  const std::string name = "35B on 64 H200, 4 x the tokens";
  fmt::print("{}: step {:.4g} s, peak {:.1f} GB\n", name, all.prediction->step_seconds,
             static_cast<double>(moe::highest_device_peak(all)) * 1e-9);
  out.row(name + ": exposed transfers", of_one(exposed_share(all)), goal::at_most(0.02));
  out.row(name + ": the same, costs +- 30%", of_one(perturbed_share(far)), goal::at_most(0.05));
  compare_steps(out, "the shape run for real, on H200s", 256, small_shape_on_gpus);
}

} // namespace bench
