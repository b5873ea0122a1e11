// SPDX-License-Identifier: Apache-2.0
//
// What a step takes with all four peaks flattened. The price that is paid on purpose is one more product of
// tokens and vocabulary, since logits are computed again for their gradient: a step of the unflattened model
// and that product are what a step is measured against, on this host and on a machine that is not here.
#pragma once

#include "table.hpp"
#include "whole_context.hpp"
#include "whole_runs.hpp"

#include <plateau/access.hpp>
#include <plateau/gemm.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/resource.hpp>
#if PLATEAU_BENCH_HAS_BLAS
#include <plateau/blas/blas_gemm.hpp>
#endif

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace bench {

#if PLATEAU_BENCH_HAS_BLAS
using whole_backend = plateau::basic_host_backend<plateau::blas_gemm>;
#else
using whole_backend = plateau::host_backend;
#endif

// The product that the unflattened loss begins with, on every rank at the same time.
class vocabulary_product {
 public:
  explicit vocabulary_product(const moe::options& o)
      : ranks_(o.ranks), tokens_(o.batch / o.ranks * o.context), hidden_(o.hidden),
        vocabulary_(*o.vocabulary) {}

  // Each time once on every rank, by the thread of the rank's stream.
  series run(int repeats) {
    series s;
    std::vector<part> parts;
    parts.reserve(static_cast<std::size_t>(ranks_));
    for (std::int64_t r = 0; r < ranks_; ++r) parts.emplace_back(*this);
    for (int i = 0; i < repeats + 1; ++i) {
      series one;
      one.time([&] {
        for (part& each : parts) each.enqueue();
        for (part& each : parts) each.backend->wait(each.backend->record(*each.stream));
      });
      if (i == 0) continue;
      s.wall.push_back(one.wall.front());
      s.processor.push_back(one.processor.front());
    }
    return s;
  }

 private:
  using type = plateau::bfloat16;
  struct part {
    std::unique_ptr<whole_backend> backend = std::make_unique<whole_backend>();
    plateau::device_buffer<type, whole_backend> x, weight;
    plateau::device_buffer<float, whole_backend> logits;
    plateau::device_buffer<unsigned char, whole_backend> scratch;
    std::unique_ptr<whole_backend::stream> stream;
    std::int64_t tokens, hidden, vocabulary;

    explicit part(const vocabulary_product& p)
        : x(backend->device(), p.tokens_ * p.hidden_, plateau::tag::other),
          weight(backend->device(), p.vocabulary_ * p.hidden_, plateau::tag::other),
          logits(backend->device(), p.tokens_ * p.vocabulary_, plateau::tag::other),
          scratch(backend->device(),
                  static_cast<std::int64_t>(whole_backend::gemm_scratch_bytes<type, type, float>(
                      plateau::transpose::no, plateau::transpose::yes, p.tokens_, p.vocabulary_, p.hidden_)),
                  plateau::tag::other),
          stream(std::make_unique<whole_backend::stream>(backend->make_stream("product"))), tokens(p.tokens_),
          hidden(p.hidden_), vocabulary(p.vocabulary_) {
      std::fill_n(x.all().p, x.size(), type(0.5F));
      std::fill_n(weight.all().p, weight.size(), type(0.25F));
    }
    void enqueue() {
      backend->gemm(*stream, plateau::transpose::no, plateau::transpose::yes, 1.0F,
                    plateau::in(x.matrix(tokens, hidden)), plateau::in(weight.matrix(vocabulary, hidden)),
                    0.0F, plateau::out(logits.matrix(tokens, vocabulary)), scratch.all());
    }
  };

  std::int64_t ranks_, tokens_, hidden_, vocabulary_;
};

// FLOPs of all ranks in one step, and how many of them are products with the vocabulary.
struct step_flops {
  double all = 0, vocabulary = 0;
};
inline step_flops flops_of(const moe::options& o, const moe::run_result& predicted) {
  step_flops f;
  for (const moe::kind_of_rank& kind : predicted.prediction->kinds)
    f.all += static_cast<double>(kind.ranks) * kind.step.flops;
  const double one = 2.0 * static_cast<double>(o.batch * o.context) * static_cast<double>(o.hidden) *
                     static_cast<double>(*o.vocabulary);
  f.vocabulary = (o.flatten.vocabulary ? 4 : 3) * one;
  return f;
}

inline void measure_step(table& out, int repeats) {
  constexpr std::int64_t context = 256;
  const auto shape = [&](flattened how) {
    moe::options o = whole_shape(how, context, whole_batch);
    o.steps = 6;
    return o;
  };
  const std::uint64_t limit = smallest_device(context);
  const bool longest =
      moe::highest_device_peak(predict(whole_shape(flattened::none, context + 1, whole_batch))) > limit;
  fmt::print("step at context {}, {} sequences: {}\n", context, whole_batch,
             longest ? "the longest that the unflattened model holds" : "the unflattened model holds more");
  const step_flops none_flops = flops_of(shape(flattened::none), predict(shape(flattened::none)));
  const step_flops all_flops = flops_of(shape(flattened::all), predict(shape(flattened::all)));
  out.row("vocabulary's share of the FLOPs, none", of_one(none_flops.vocabulary / none_flops.all));
  out.row("vocabulary's share of the FLOPs, all", of_one(all_flops.vocabulary / all_flops.all));

  // The device of this backend is the host: there a state need not pass through slots to be updated.
  moe::options on_host = shape(flattened::all);
  on_host.update_on = plateau::update_on::host;
  vocabulary_product product(shape(flattened::none));
  series all, all_on_host, none, one_more, both;
  const auto add = [](series& to, const real_run& run) {
    to.wall.push_back(spread_of(run.wall).median);
    to.processor.push_back(spread_of(run.processor).median);
  };
  for (int i = 0; i < repeats; ++i) {
    const auto flattened_runs = [&] {
      add(all, train(shape(flattened::all)));
      add(all_on_host, train(on_host));
    };
    if (i % 2 == 0) flattened_runs();
    add(none, train(shape(flattened::none)));
    if (i % 2 != 0) flattened_runs();
    const series more = product.run(5);
    one_more.wall.push_back(spread_of(more.wall).median);
    one_more.processor.push_back(spread_of(more.processor).median);
    both.wall.push_back(none.wall.back() + one_more.wall.back());
    both.processor.push_back(none.processor.back() + one_more.processor.back());
  }
  out.row("step, none: ms", none.in(1e-3));
  out.row("step, all: ms", all.in(1e-3));
  out.row("step, all with --update-on host: ms", all_on_host.in(1e-3));
  out.row("one product with the vocabulary: ms", one_more.in(1e-3));
  out.row("step, all / none", ratios(all, none));
  out.row("step, all / (none and one more product)", ratios(all, both), goal::at_most(1.10));
  out.row("step, all with --update-on host / the same", ratios(all_on_host, both), goal::at_most(1.10));
}

} // namespace bench
