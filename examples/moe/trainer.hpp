// SPDX-License-Identifier: Apache-2.0
//
// One rank's part of training: which sequences of a step are its own, the step itself, the held-out loss. A
// step is the same whatever the number of ranks, but for the order of floating-point sums.
#pragma once

#include "batch_dealing.hpp"
#include "expert_watch.hpp"
#include "model.hpp"
#include "peak_promise.hpp"
#include "token_sampler.hpp"
#include "unflattened.hpp"

#include <plateau/digest.hpp>
#include <plateau/dry_run/scenario.hpp>
#include <plateau/dry_run/scenario_shares.hpp>
#include <plateau/vote.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace moe {

struct training_settings {
  adamw_settings adamw;
  index_t context = 128;
  index_t batch = 16;     // sequences of a step, over all ranks and micro-batches
  index_t accumulate = 1; // micro-batches of a step
  pl::share_form shares;  // how the sequences of a micro-batch are dealt over the ranks, or groups of them
  std::int64_t steps = 100, warmup = 10;
  double learning_rate = 3e-3; // the highest
  double final_share = 0.1;    // of it, at the last step
  int sequence_parallel = 1;   // ranks that share each sequence; divides the ranks

  // Linear warm-up, then a cosine (Loshchilov & Hutter 2017). `step` counts from 0.
  double rate(std::int64_t step) const {
    if (step < warmup) return learning_rate * static_cast<double>(step + 1) / static_cast<double>(warmup);
    const double along =
        static_cast<double>(step - warmup) / static_cast<double>(std::max<std::int64_t>(1, steps - warmup));
    const double low = learning_rate * final_share;
    return low + 0.5 * (learning_rate - low) * (1 + std::cos(std::numbers::pi * std::min(1.0, along)));
  }
  // Sequences of one rank in one micro-batch, at most, and of each its part, at most.
  batch_limits limits(int ranks) const {
    return {dealing().largest(ranks), dealing().split(context).most_rows(), sequence_parallel, context};
  }
  batch_dealing dealing() const { return {batch, accumulate, shares, sequence_parallel}; }
  // The rank's own sequences of a micro-batch, counted over the step.
  pl::share_range own_sequences_of(index_t micro, int rank, int ranks) const {
    return dealing().own_of(micro, rank, ranks);
  }
  // Tokens of the rank in the micro-batches before `micro`; before `accumulate`, in the whole step.
  index_t own_tokens_before(index_t micro, int rank, int ranks) const {
    return dealing().own_before(micro, rank, ranks) * dealing().rows_of(rank, context);
  }
};

struct step_outcome {
  double loss = 0; // mean over the tokens of the step on all ranks, with the balance loss
  double gradient_norm = 0;
  std::vector<expert_load> loads;       // routed rows over all ranks
  std::vector<std::int64_t> own_routes; // (layers, experts): rows of this rank's own tokens
};

// `Peaks` names the class that deals with each of the four peaks (unflattened.hpp).
template <class Backend, class Communicator, class T, class Peaks = unflattened> class trainer {
 public:
  using model_type = moe::model<Backend, Communicator, T, Peaks>;
  using optimizer_type = typename Peaks::template optimizer<Backend, Communicator, T>;
  using stream_type = typename Backend::stream;
  using backend_type = Backend;

  // What it holds beside model and optimizer.
  static pl::reservation held_by() { return {0, 2 * sizeof(double) + sizeof(float)}; }

  // Collective: all ranks reserve, then all agree (collective_error on every rank otherwise). `backend` and
  // `world` must outlive it.
  trainer(Backend& backend, Communicator& world, const model_config& c, const rank_grid& g,
          const training_settings& settings, const forced_routing* forced = nullptr)
      : backend_(&backend), world_(&world), grid_(g), settings_(settings),
        group_(world.split(world.rank() / g.expert_parallel, world.rank())),
        replicas_(world.split(world.rank() % g.expert_parallel, world.rank())),
        stream_(backend.make_stream("main")) {
    if (const int s = settings.sequence_parallel; s != 1) {
      if (s < 1 || g.ranks % s != 0)
        throw pl::config_error("trainer: " + std::to_string(s) +
                               " ranks are to share each sequence; expected a divisor of the " +
                               std::to_string(g.ranks) + " ranks");
      sequence_.emplace(world.split(world.rank() / s, world.rank()));
    }
    if (c.flatten.optimizer) alone_.emplace(world.split(world.rank(), 0));
    std::optional<pl::failure> mine;
    try {
      pl::check_shares(settings.shares, g.ranks / settings.sequence_parallel);
      if (forced != nullptr)
        forced->scenario().check_tokens(
            world.rank(), settings.own_tokens_before(settings.accumulate, world.rank(), g.ranks));
      model_.emplace(backend, world, group_, c, g, settings.limits(g.ranks), forced,
                     sequence_ ? &*sequence_ : nullptr);
      optimizer_.emplace(backend, world, replicas_, alone_ ? *alone_ : replicas_, model_->space(),
                         model_->layout(), model_->weights(), settings.adamw, c);
      pinned_ = pl::pinned_buffer<double, Backend>(backend.pinned(), 2, pl::tag::other);
      pinned_norm_ = pl::pinned_buffer<float, Backend>(backend.pinned(), 1, pl::tag::other);
    } catch (...) {
      mine = pl::failure::current();
    }
    pl::vote(world, digest_of(c, g, settings, forced), mine ? &*mine : nullptr, "trainer",
             described(c, g, settings));
  }

  model_type& model() { return *model_; }
  optimizer_type& optimizer() { return *optimizer_; }
  stream_type& stream() { return stream_; }
  Backend& backend() { return *backend_; }
  Communicator& world() { return *world_; }
  const rank_grid& grid() const { return grid_; }
  // The most that the flattened peaks hold.
  std::vector<peak_promise> promises() const {
    std::vector<peak_promise> out = model_->promises();
    if (const auto most = optimizer_->promise()) out.push_back({pl::tag::optimizer, *most});
    return out;
  }

  // Random weights, the same for every number of ranks; zero moments.
  void initialise(std::uint64_t seed) {
    const double hidden = static_cast<double>(model_->config().hidden);
    const auto deep = static_cast<float>(
        0.5 / std::sqrt(2.0 * static_cast<double>(std::max<index_t>(1, model_->config().layers))));
    for (const parameter_group* group : model_->layout().groups())
      for (const parameter& p : group->all()) {
        const bool onto_residual = p.name.ends_with("o_proj.weight") || p.name.ends_with("w2.weight");
        const double fan_in = p.name == "model.embed_tokens.weight" ? hidden : static_cast<double>(p.cols);
        // The whole tensor's, of which this may be a part.
        const auto skipped = static_cast<std::uint64_t>(p.first_element()) * random_weights::step;
        random_weights kernel{seed_of(seed, p.name) + skipped, 0,
                              static_cast<float>(1.0 / std::sqrt(fan_in))};
        if (onto_residual) kernel.deviation *= deep;
        if (p.name == "model.embed_tokens.weight" || p.name == "lm_head.weight") kernel.deviation *= 0.5F;
        if (p.vector) kernel = {0, 1, 0};
        optimizer_->set_values(stream_, *group, p, [&](stream_type& s, index_t first, pl::view<float> to) {
          random_weights part = kernel;
          part.seed += static_cast<std::uint64_t>(first) * random_weights::step;
          backend_->launch(s, pl::elements{to.n}, part, pl::out(to));
        });
      }
    optimizer_->reset(stream_);
  }

  // Step `step` (from 0) of the schedule, on its own sequences of the sampler's. Collective.
  step_outcome run_step(const token_sampler& sampler, std::int64_t step) {
    step_so_far done = begin_step();
    for (index_t micro = 0; micro < settings_.accumulate; ++micro)
      run_micro_batch(sampler, step, micro, done);
    return end_step(step, done);
  }

  // The parts of run_step, in this order, for who looks at what lies between them: the losses of a
  // micro-batch's tokens after it, the gradients before the update. All are collective.
  struct step_so_far {
    std::vector<std::int64_t> report;
    index_t own_tokens = 0;
  };
  step_so_far begin_step() {
    model_->begin_step(stream_);
    const auto& c = model_->config();
    return {std::vector<std::int64_t>(static_cast<std::size_t>(1 + c.layers * c.experts)), 0};
  }
  void run_micro_batch(const token_sampler& sampler, std::int64_t step, index_t micro, step_so_far& done) {
    micro_batch batch = part_of(sampler, step, micro);
    batch.first_of_rank = done.own_tokens;
    done.own_tokens += static_cast<index_t>(batch.sequences.size()) *
                       settings_.dealing().rows_of(world_->rank(), batch.context);
    model_->forward_backward(stream_, std::move(batch));
    add_own_routes(done.report);
    note_experts();
  }
  step_outcome end_step(std::int64_t step, step_so_far& done) {
    phase("update");
    optimizer_->update(stream_, model_->gradients(), settings_.rate(step), step + 1);
    const losses sums = fetch_losses();
    std::vector<std::int64_t>& report = done.report;
    report[0] = std::bit_cast<std::int64_t>(sums.tokens);
    std::vector<std::int64_t> all(report.size() * static_cast<std::size_t>(world_->size()));
    world_->host_exchange(report, all, "step report");
    phase("between steps");
    step_outcome out = outcome(all, report.size(), sums);
    out.own_routes.assign(report.begin() + 1, report.end());
    return out;
  }

  // The mean loss over the sampler's held-out sequences. Collective.
  double held_out_loss(const token_sampler& sampler) {
    const index_t sequences = sampler.held_out_sequences();
    const index_t round =
        (settings_.batch + settings_.accumulate - 1) / settings_.accumulate; // as in training
    model_->begin_step(stream_);
    for (index_t first = 0; first < sequences; first += round) {
      const index_t count = std::min(round, sequences - first);
      const pl::share_range own = settings_.dealing().own_of_all(count, world_->rank(), world_->size());
      micro_batch batch = batch_of({first + own.first, first + own.last}, count,
                                   [&](index_t i) { return sampler.held_out(i); });
      batch.step = pl::evaluation_step;
      model_->forward_only(stream_, std::move(batch));
    }
    const double mine = fetch_losses().tokens;
    const double total = sum_over_ranks(mine);
    return total / static_cast<double>(sequences * settings_.context);
  }

 private:
  struct losses {
    double tokens, balance;
    float norm;
  };

  // What every rank must have been given alike.
  static pl::digest digest_of(const model_config& c, const rank_grid& g, const training_settings& s,
                              const forced_routing* forced) {
    const auto bits = [](auto value) { return std::bit_cast<std::int64_t>(static_cast<double>(value)); };
    pl::digest d;
    d.add(pl::scalar_kind_of<T>).add(c.layers).add(c.hidden).add(c.heads).add(c.kv_heads).add(c.experts);
    d.add(c.top_k).add(c.intermediate).add(c.vocabulary).add(bits(c.norm_epsilon)).add(bits(c.rope_theta));
    d.add(forced == nullptr ? std::string_view{} : std::string_view(forced->text()));
    d.add(pl::share_code(s.shares));
    d.add(c.tied).add(bits(c.balance_weight)).add(c.attention.queries).add(c.attention.keys);
    d.add(g.ranks).add(g.expert_parallel).add(s.sequence_parallel).add(c.sequence.hop_rows);
    d.add(c.flatten.dispatch).add(c.flatten.vocabulary).add(c.flatten.checkpoint).add(c.flatten.optimizer);
    d.add(c.dispatch.send_cap_rows).add(c.dispatch.receive_cap_rows).add(c.dispatch.slots);
    d.add(c.dispatch.placement).add(c.dispatch.foreign_experts);
    d.add(c.loss.tile_tokens).add(c.loss.tile_vocabulary).add(c.loss.hop_rows).add(c.loss.rotate);
    d.add(c.checkpoint.host_budget_bytes).add(c.checkpoint.keep_every);
    d.add(c.optimizer.bucket_bytes).add(c.optimizer.slots).add(c.optimizer.where).add(c.optimizer.zero1);
    d.add(s.context).add(s.batch).add(s.accumulate).add(s.steps).add(s.warmup).add(bits(s.learning_rate));
    d.add(bits(s.final_share)).add(bits(s.adamw.beta1)).add(bits(s.adamw.beta2)).add(bits(s.adamw.epsilon));
    return d.add(bits(s.adamw.weight_decay)).add(bits(s.adamw.clip));
  }
  // What differs most likely, in words, for the error of a vote.
  static std::string described(const model_config& c, const rank_grid& g, const training_settings& s) {
    std::string text = sizeof(T) == 2 ? "16-bit" : "fp32";
    const auto add = [&](const char* what, std::int64_t value) {
      text += std::string(", ") + what + " " + std::to_string(value);
    };
    add("layers", c.layers);
    add("hidden", c.hidden);
    add("heads", c.heads);
    add("key-value heads", c.kv_heads);
    add("experts", c.experts);
    add("top-k", c.top_k);
    add("intermediate", c.intermediate);
    add("vocabulary", c.vocabulary);
    text += ", flattened:";
    for (const auto& [name, is] : {std::pair{" dispatch", c.flatten.dispatch},
                                   {" vocabulary", c.flatten.vocabulary},
                                   {" checkpoint", c.flatten.checkpoint},
                                   {" optimizer", c.flatten.optimizer}})
      if (is) text += name;
    add("ranks", g.ranks);
    add("expert-parallel", g.expert_parallel);
    add("sequence-parallel", s.sequence_parallel);
    add("context", s.context);
    add("batch", s.batch);
    add("accumulate", s.accumulate);
    add("steps", s.steps);
    return text;
  }
  void phase(const char* name) {
    backend_->device().meter().phase(name);
    backend_->pinned().meter().phase(name);
  }
  static std::uint64_t seed_of(std::uint64_t seed, const std::string& name) {
    std::uint64_t hash = 0xcbf29ce484222325U ^ (seed * 0x9e3779b97f4a7c15U); // FNV-1a
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
    return hash;
  }

  // A micro-batch of `count` sequences of which this rank has `own`; `sequence(i)` gives one.
  template <class F> micro_batch batch_of(pl::share_range own, index_t count, F sequence) const {
    micro_batch batch;
    for (index_t i = own.first; i < own.last; ++i) batch.sequences.push_back(sequence(i));
    batch.context = settings_.context;
    batch.first_token = own.first * settings_.context;
    batch.group_tokens = count * settings_.context;
    batch.step_tokens = settings_.batch * settings_.context;
    return batch;
  }
  micro_batch part_of(const token_sampler& sampler, std::int64_t step, index_t micro) const {
    micro_batch batch = batch_of(settings_.own_sequences_of(micro, world_->rank(), world_->size()),
                                 settings_.dealing().all_of(micro).size(),
                                 [&](index_t i) { return sampler.sequence(step, i); });
    batch.step = step;
    return batch;
  }

  // Which of this rank's experts have had rows, of any rank of the group.
  void note_experts() {
    const auto& c = model_->config();
    const index_t local = c.experts / grid_.expert_parallel;
    for (index_t l = 0; l < c.layers; ++l)
      for (index_t e = 0; e < local; ++e)
        for (index_t source = 0; source < group_.size(); ++source)
          if (model_->routed(l)[static_cast<std::size_t>(source * c.experts + group_.rank() * local + e)] !=
              0)
            optimizer_->had_rows(l, e);
  }
  // The routes of this rank's own tokens, by layer and expert, behind the loss in the report.
  void add_own_routes(std::vector<std::int64_t>& report) const {
    const auto& c = model_->config();
    for (index_t l = 0; l < c.layers; ++l)
      for (index_t e = 0; e < c.experts; ++e)
        report[static_cast<std::size_t>(1 + l * c.experts + e)] +=
            model_->routed(l)[static_cast<std::size_t>(group_.rank() * c.experts + e)];
  }
  losses fetch_losses() {
    backend_->copy(stream_, pl::in(model_->loss_sums()), pl::out(pinned_.all().sub(0, 2)));
    backend_->copy(stream_, pl::in(optimizer_->gradient_norm()), pl::out(pinned_norm_.all()));
    const auto done = backend_->record(stream_);
    double sums[2];
    float norm[1];
    backend_->fetch(done, pl::in(pinned_.all().sub(0, 2)), sums, "loss sums", 0.0);
    backend_->fetch(done, pl::in(pinned_norm_.all()), norm, "gradient norm", 0.0F);
    return {sums[0], sums[1], norm[0]};
  }
  double sum_over_ranks(double mine) {
    const std::int64_t bits[1] = {std::bit_cast<std::int64_t>(mine)};
    std::vector<std::int64_t> all(static_cast<std::size_t>(world_->size()));
    world_->host_exchange(bits, all, "loss");
    double total = 0;
    for (const std::int64_t each : all) total += std::bit_cast<double>(each);
    return total;
  }
  step_outcome outcome(const std::vector<std::int64_t>& all, std::size_t stride, const losses& sums) const {
    const auto& c = model_->config();
    step_outcome out;
    double tokens = 0;
    for (std::size_t r = 0; r < all.size(); r += stride) tokens += std::bit_cast<double>(all[r]);
    out.loss = tokens / static_cast<double>(settings_.batch * settings_.context) + sums.balance;
    out.gradient_norm = static_cast<double>(sums.norm);
    for (index_t l = 0; l < c.layers; ++l) {
      expert_load load{l, std::vector<std::int64_t>(static_cast<std::size_t>(c.experts))};
      for (std::size_t r = 0; r < all.size(); r += stride)
        for (index_t e = 0; e < c.experts; ++e)
          load.rows[static_cast<std::size_t>(e)] += all[r + static_cast<std::size_t>(1 + l * c.experts + e)];
      out.loads.push_back(std::move(load));
    }
    return out;
  }

  Backend* backend_;
  Communicator* world_;
  rank_grid grid_;
  training_settings settings_;
  Communicator group_, replicas_;           // the expert group; the ranks that hold the same experts
  std::optional<Communicator> sequence_;    // the ranks that share each sequence, where some do
  std::optional<Communicator> alone_;       // this rank, where the optimizer is flattened
  std::optional<model_type> model_;         // what may fail to be reserved is made before the vote
  std::optional<optimizer_type> optimizer_; // of the ranks, and goes before what it refers to
  pl::pinned_buffer<double, Backend> pinned_;
  pl::pinned_buffer<float, Backend> pinned_norm_;
  stream_type stream_; // the last member: it must have ended before the memory that it uses goes
};

} // namespace moe
