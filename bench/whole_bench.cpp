// SPDX-License-Identifier: Apache-2.0
//
// All four peaks flattened, against none of them: how much longer a context and how much larger a batch the
// same device trains, by real runs at its limit; what a step takes, here and on machines that are not here;
// and what memory grows with.
//   whole_bench [PART ...] [--pairs N] [--times N] [--steps-at-longest N]
// Parts are sizes, losses and longest, which together are `context`, then step, virtual and growth; without a
// name all of them.
#include "table.hpp"
#include "whole_context.hpp"
#include "whole_step.hpp"
#include "whole_virtual.hpp"

#include "growth.hpp"
#include "growth_report.hpp"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <set>
#include <string>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace {

// As the training program does, so that freed memory is not touched for the first time in every step.
void keep_freed_memory() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, -1);
  mallopt(M_ARENA_MAX, 1);
#endif
}

// Where little is in flight the largest phase is the update, which does not grow with tokens: at a long
// context it is a layer's backward.
void measure_growth() {
  for (const std::int64_t context : {256, 8192}) {
    const moe::options o = bench::whole_shape(bench::flattened::all, context, bench::whole_batch);
    const moe::growth_table grown = moe::growth_of(
        o, *o.vocabulary, [](const moe::training_job& job) { return bench::predict(job.config); });
    fmt::print("From context {}. {}\n", context, moe::growth_text(grown));
  }
}

} // namespace

int main(int argc, char** argv) {
  const std::set<std::string> known{"sizes", "losses", "longest", "step", "virtual", "growth"};
  std::set<std::string> parts;
  bench::context_parts context;
  int pairs = 7;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const int value = i + 1 < argc ? std::atoi(argv[i + 1]) : 0;
    if (word == "context") {
      parts.insert({"sizes", "losses", "longest"});
    } else if (known.count(word) != 0) {
      parts.insert(word);
    } else if (word == "--pairs" && value > 0) {
      pairs = std::atoi(argv[++i]);
    } else if (word == "--times" && value > 0) {
      context.times = std::atoi(argv[++i]);
    } else if (word == "--steps-at-longest" && value >= 1 && value <= 3) {
      context.steps_at_longest = std::atoi(argv[++i]);
    } else {
      fmt::print(
          stderr,
          "whole_bench: '{}': expected context, sizes, losses, longest, step, virtual, growth, --pairs N, "
          "--times N (of the context that losses are compared at) or --steps-at-longest 1 to 3\n",
          word);
      return 2;
    }
  }
  if (parts.empty()) parts = known;
  const auto wanted = [&](const char* part) { return parts.count(part) != 0; };
  keep_freed_memory();
  bench::table table(argv);
  try {
    if (wanted("growth")) measure_growth();
    if (wanted("virtual")) bench::measure_virtual(table);
    if (wanted("step")) bench::measure_step(table, pairs);
    context.sizes = wanted("sizes");
    context.losses = wanted("losses");
    context.longest = wanted("longest");
    if (context.sizes || context.losses || context.longest) bench::context_bench(table, context).run();
  } catch (const std::exception& error) {
    fmt::print(stderr, "whole_bench: {}\n", error.what());
    return 1;
  }
}
