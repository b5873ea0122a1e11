// SPDX-License-Identifier: Apache-2.0
//
// The reference model on one rank: embedding, layers, final norm, loss; forward and backward of one
// micro-batch. Between forward and backward each layer keeps its input only. Everything is enqueued on the
// caller's stream.
#pragma once

#include "kernels/embedding.hpp"
#include "kernels/model.hpp"
#include "kernels/norm.hpp"
#include "layer.hpp"
#include "layer_buffers.hpp"
#include "parameters.hpp"
#include "peak_promise.hpp"
#include "routing.hpp"
#include "unflattened.hpp"

#include <plateau/checks.hpp>
#include <plateau/collectives.hpp>
#include <plateau/kernels.hpp>
#include <plateau/memory_source.hpp>
#include <plateau/ring/sequence_split.hpp>
#include <plateau/workspace.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace moe {

// Token sequences of context + 1 tokens each; what they point at must stay until the micro-batch has run.
using token_sequences = std::vector<std::span<const std::int32_t>>;

// Writes inputs and targets (sequences * rows) of those positions of each sequence that are a rank's; runs on
// the host, in stream order. A target is the next token of the sequence, whoever has it as an input.
struct fill_tokens {
  token_sequences sequences;
  std::vector<pl::position_range> positions;

  void operator()(pl::view<std::int32_t, pl::host_space> inputs,
                  pl::view<std::int32_t, pl::host_space> targets) const {
    index_t at = 0;
    for (const auto& tokens : sequences)
      for (const pl::position_range& own : positions)
        for (auto i = static_cast<std::size_t>(own.first); i < static_cast<std::size_t>(own.end());
             ++i, ++at) {
          inputs[at] = tokens[i];
          targets[at] = tokens[i + 1];
        }
  }
};

// A micro-batch as one rank sees it.
struct micro_batch {
  token_sequences sequences; // the rank's own, or those that it shares; perhaps none
  index_t context = 0;       // of all of a sequence
  index_t first_token = 0;   // of these sequences, counted over the whole batch of the step
  index_t first_of_rank = 0; // the same, counted over the rank's own tokens of the step
  std::int64_t step = 0;     // from 0, or plateau::evaluation_step
  index_t group_tokens = 0;  // of all ranks in this micro-batch
  index_t step_tokens = 0;   // of all ranks and micro-batches in this step: what the loss is divided by
};

// `Peaks` names the class that deals with each of the four peaks (unflattened.hpp).
template <class Backend, class Communicator, class T, class Peaks = unflattened> class model {
  using stream = typename Backend::stream;
  using dispatch_type = typename Peaks::template dispatch<Backend, Communicator, T>;
  using loss_type = typename Peaks::template loss<Backend, Communicator, T>;
  using boundaries_type = typename Peaks::template boundaries<Backend, T>;
  using gradients_type = typename Peaks::template gradients<Backend>;
  using optimizer_type = typename Peaks::template optimizer<Backend, Communicator, T>;
  using attention_type = typename Peaks::template attention<Backend, Communicator, T>;
  using layer_type = layer<Backend, attention_type, dispatch_type, T>;

 public:
  using buffers = typename layer_type::buffers;

  // What a layer is lent: its buffers, and beside them what attention and dispatch have in turn.
  static pl::reservation layer_need(const model_config& c, const batch_limits& b, layer_pass pass,
                                    pl::reservation dispatch) {
    return pl::together(buffers::working_set(c, b, pass),
                        pl::overlay(attention_type::reserve_for(c, b), dispatch));
  }
  // The workspace of a step. What is never open at the same time shares memory: forward, loss, backward and
  // the optimizer's update.
  static pl::reservation workspace_of(const parameter_layout& layout, const model_config& c,
                                      const rank_grid& g, const batch_limits& b) {
    const auto of = [&](layer_pass pass) {
      return layer_need(c, b, pass, dispatch_type::reserve_for(c, g, b, pass));
    };
    return pl::overlay(of(layer_pass::forward), of(layer_pass::backward), loss_type::reserve_for(c, g, b),
                       optimizer_type::reserve_for(layout, c, g));
  }
  // The activations that it holds all the time.
  static pl::reservation held_by(const model_config& c, const rank_grid& g, const batch_limits& b) {
    const auto tokens = static_cast<std::size_t>(b.tokens()), experts = static_cast<std::size_t>(c.experts);
    const std::size_t of_a_token =
        2 * static_cast<std::size_t>(c.hidden) * sizeof(T) + sizeof(float) + 2 * sizeof(std::int32_t);
    return {tokens * of_a_token + 3 * experts * sizeof(float) +
                static_cast<std::size_t>(reduce_elements(g.ranks, c)) + 4 * sizeof(double),
            tokens * 2 * sizeof(std::int32_t)};
  }

  // Reserves everything but what the unflattened peaks allocate as they go. `world`, `group` (the expert
  // group) and `sequence` (the ranks that share each sequence, where the limits say some) must outlive the
  // model. Throws config_error for an impossible shape, budget_exceeded.
  model(Backend& backend, Communicator& world, Communicator& group, const model_config& c, const rank_grid& g,
        const batch_limits& b, const forced_routing* forced = nullptr, Communicator* sequence = nullptr)
      : backend_(&backend), world_(&world), config_(c), grid_(g), limits_(b), layout_(c, g, world.rank()),
        weights_(backend, layout_, pl::tag::parameters), gradients_(backend, layout_, c),
        forward_set_(buffers::working_set(c, b, layer_pass::forward)),
        backward_set_(buffers::working_set(c, b, layer_pass::backward)),
        space_(backend, workspace_of(layout_, c, g, b)), dispatch_(backend, group, space_, c, g, b),
        attention_(backend, sequence, space_, c, b), layer_(backend, attention_, dispatch_, c, b, forced),
        boundaries_(backend, c, b), dx_(backend.device(), b.tokens() * c.hidden, pl::tag::activations),
        final_normed_(backend.device(), b.tokens() * c.hidden, pl::tag::activations),
        losses_(backend.device(), b.tokens(), pl::tag::activations),
        tokens_(backend.device(), 2 * b.tokens(), pl::tag::activations),
        pinned_tokens_(backend.pinned(), 2 * b.tokens(), pl::tag::activations),
        balance_(backend.device(), 3 * c.experts, pl::tag::activations),
        reduce_scratch_(backend.device(), reduce_elements(world.size(), c), pl::tag::activations),
        sums_(backend.device(), 4, pl::tag::activations), positions_(positions_of(sequence, b)),
        plans_(static_cast<std::size_t>(c.layers)), loss_(backend, world, space_, c, g, b) {
    static_assert(pl::check_backend<Backend>() && pl::check_communicator<Communicator, Backend>());
  }

  const parameter_layout& layout() const { return layout_; }
  // Lent to the optimizer while no micro-batch runs.
  pl::workspace<Backend>& space() { return space_; }
  const model_config& config() const { return config_; }
  const tensor_set<Backend, T>& weights() const { return weights_; }
  const gradients_type& gradients() const { return gradients_; }
  gradients_type& gradients() { return gradients_; }
  // The routed rows of a layer in the last forward: (expert_parallel, experts).
  const routing_counts& routed(index_t layer) const {
    return dispatch_type::counts_of(plans_[static_cast<std::size_t>(layer)]);
  }
  // What its dispatches have done so far, where the dispatch keeps count.
  std::optional<dispatch_summary> dispatched() const { return dispatch_.summary(); }
  // The most that its peaks hold, those that promise something.
  std::vector<peak_promise> promises() const {
    std::vector<peak_promise> out;
    const auto add = [&](pl::tag t, const std::optional<pl::reservation>& most) {
      if (most) out.push_back({t, *most});
    };
    add(pl::tag::dispatch, dispatch_type::promised(config_, grid_, limits_));
    add(pl::tag::vocabulary, loss_type::promised(config_, grid_, limits_));
    add(pl::tag::checkpoint, boundaries_type::promised(config_, grid_, limits_));
    add(pl::tag::gradients, gradients_.promise());
    return out;
  }
  // (2) on the device: sums since begin_step over the rank's micro-batches of the tokens' losses, and of the
  // balance loss (that of the whole group, weighted with the micro-batch's share of the step).
  pl::view<double> loss_sums() const { return sums_.all().sub(0, 2); }
  // (the rank's own tokens of the last micro-batch) on the device: the loss of each.
  pl::view<float> token_losses() const { return losses_.all().sub(0, last_tokens_); }

  // Gradients and loss sums start from zero.
  void begin_step(stream& s) {
    gradients_.begin_step(*backend_, s);
    backend_->launch(s, pl::elements{2}, pl::fill<double>{0}, pl::out(loss_sums()));
  }

  // Adds the gradients of the micro-batch's loss. Every rank calls it, also one without sequences.
  void forward_backward(stream& s, micro_batch batch) {
    phase("forward");
    const pass_end behind_all{boundaries_};
    const batch_part part = begin(s, batch);
    forward(s, part);
    add_balance_loss(s, batch);
    phase("loss");
    const auto dx = pl::as_matrix(dx_.all(), part.tokens(), config_.hidden);
    const auto normed = final_normed(s, part);
    const auto losses = losses_.all().sub(0, part.tokens());
    gradients_.acquire_ends(s);
    loss_.forward_backward(s, normed, targets(part), weights_.head(),
                           1.0F / static_cast<float>(batch.step_tokens), losses, dx, gradients_.head());
    add_loss(s, losses);
    backward(s, part, batch);
  }

  // Adds the losses of the micro-batch's tokens to loss_sums; no gradients.
  void forward_only(stream& s, micro_batch batch) {
    phase("evaluation");
    const pass_end behind_all{boundaries_};
    const batch_part part = begin(s, batch);
    forward(s, part);
    const auto normed = final_normed(s, part);
    const auto losses = losses_.all().sub(0, part.tokens());
    loss_.forward(s, normed, targets(part), weights_.head(), losses);
    add_loss(s, losses);
  }

 private:
  // Whatever ends a pass, nobody touches boundaries on its stream any more.
  struct pass_end {
    boundaries_type& boundaries;
    ~pass_end() { boundaries.end_pass(); }
  };
  // Only the balance loss is summed over ranks here: two numbers for each expert.
  static pl::collective_options reduce_options(const model_config& c) { return {2 * c.experts}; }
  static index_t reduce_elements(int ranks, const model_config& c) {
    if (c.balance_weight == 0) return 0;
    return static_cast<index_t>(pl::reduce_scratch_bytes<float>(ranks, reduce_options(c)));
  }
  // Those of this rank, where ranks share each sequence.
  static std::vector<pl::position_range> positions_of(const Communicator* sequence, const batch_limits& b) {
    if (b.sequence_ranks == 1) return {};
    const auto split = pl::sequence_split::balanced(b.whole_context, b.sequence_ranks);
    const auto chunks = split.chunks(sequence->rank());
    return {chunks.begin(), chunks.end()};
  }
  void phase(const char* name) {
    backend_->device().meter().phase(name);
    backend_->pinned().meter().phase(name);
  }
  pl::view<std::int32_t> inputs(const batch_part& part) const { return tokens_.all().sub(0, part.tokens()); }
  pl::view<std::int32_t> targets(const batch_part& part) const {
    return tokens_.all().sub(limits_.tokens(), part.tokens());
  }
  pl::view<float> probability_sum() const { return balance_.all().sub(0, config_.experts); }
  pl::view<float> load() const { return balance_.all().sub(config_.experts, config_.experts); }
  pl::view<float> sink() const { return balance_.all().sub(2 * config_.experts, config_.experts); }

  // Tokens to the device.
  batch_part begin(stream& s, micro_batch& batch) {
    const auto sequences = static_cast<index_t>(batch.sequences.size());
    const bool shared = limits_.sequence_ranks > 1;
    std::vector<pl::position_range> own = positions_;
    if (!shared) own.push_back({0, batch.context});
    index_t rows = 0;
    for (const pl::position_range& range : own) rows += range.rows;
    const batch_part part{
        sequences,
        rows,
        {{batch.step, world_->rank(), batch.first_token, batch.first_of_rank, sequences * rows},
         positions_,
         batch.context}};
    bool whole = shared ? batch.context == limits_.whole_context : rows <= limits_.context;
    for (const auto& sequence : batch.sequences)
      whole = whole && static_cast<index_t>(sequence.size()) == batch.context + 1;
    if (!whole || part.tokens() > limits_.tokens())
      throw pl::config_error("model: a micro-batch of " + std::to_string(part.sequences) + " sequences of " +
                             std::to_string(batch.context) + " tokens, made for at most " +
                             std::to_string(limits_.tokens()) + " tokens and sequences of " +
                             std::to_string(shared ? limits_.whole_context : limits_.context) +
                             "; each span holds one token more, its last target");
    last_tokens_ = part.tokens();
    const auto pinned_inputs = pinned_tokens_.all().sub(0, part.tokens());
    const auto pinned_targets = pinned_tokens_.all().sub(limits_.tokens(), part.tokens());
    backend_->host_task(s, fill_tokens{std::move(batch.sequences), std::move(own)}, pl::out(pinned_inputs),
                        pl::out(pinned_targets));
    backend_->copy(s, pl::in(pinned_inputs), pl::out(inputs(part)));
    backend_->copy(s, pl::in(pinned_targets), pl::out(targets(part)));
    return part;
  }

  // From tokens to the last boundary.
  void forward(stream& s, const batch_part& part) {
    auto open = space_.open(forward_set_);
    pl::phase_source<Backend> source(open);
    const buffers buf(source, config_, limits_, layer_pass::forward);
    const index_t n = part.tokens();
    backend_->launch(s, pl::elements{balance_.size()}, pl::fill<float>{0}, pl::out(balance_.all()));
    backend_->launch(s, pl::rows{n}, embed{}, pl::in(inputs(part)), pl::in(weights_.embedding()),
                     pl::out(boundaries_.write(s, 0, n)));
    boundaries_.written(s, 0);
    for (index_t l = 0; l < config_.layers; ++l) {
      const auto x = boundaries_.read(s, l, n), out = boundaries_.write(s, l + 1, n);
      layer_.forward(s, buf, part, l, weights_.layer(l), x, out, {probability_sum(), load()},
                     plans_[static_cast<std::size_t>(l)]);
      boundaries_.written(s, l + 1);
      boundaries_.done(s, l);
    }
  }

  // From dx of the normalised last boundary to every gradient.
  void backward(stream& s, const batch_part& part, const micro_batch& batch) {
    phase("backward");
    auto open = space_.open(backward_set_);
    pl::phase_source<Backend> source(open);
    const buffers buf(source, config_, limits_, layer_pass::backward);
    const index_t n = part.tokens();
    const auto dx = pl::as_matrix(dx_.all(), n, config_.hidden);
    final_norm_backward(s, buf, n, boundaries_.read(s, config_.layers, n), dx);
    boundaries_.done(s, config_.layers);
    for (index_t last = config_.layers - 1; last >= 0;) {
      const index_t first = boundaries_.kept_before(last);
      for (index_t l = first; l < last; ++l) { // inputs that were not kept
        const auto x = boundaries_.read(s, l, n), out = boundaries_.write(s, l + 1, n);
        layer_.forward_again(s, buf, part, l, weights_.layer(l), x, out, plans_[static_cast<std::size_t>(l)],
                             sink());
        boundaries_.written(s, l + 1);
        boundaries_.done(s, l);
      }
      for (index_t l = last; l >= first; --l) {
        layer_.backward(s, buf, part, l, weights_.layer(l), gradients_.acquire(s, l),
                        plans_[static_cast<std::size_t>(l)], boundaries_.read(s, l, n), dx, load(),
                        balance_scale(batch), sink());
        gradients_.layer_is_final(s, l);
        boundaries_.done(s, l);
      }
      last = first - 1;
    }
    // Each row of the table sums its tokens' gradients in order. The ids have been used.
    const auto order = buf.ids.sub(0, n);
    backend_->group_by_key(s, pl::in(inputs(part)), pl::out(order), pl::out(buf.token_offsets), buf.scratch);
    backend_->launch(s, pl::rows{config_.vocabulary}, embed_backward{}, pl::in(order),
                     pl::in(buf.token_offsets), pl::in(dx), pl::inout(gradients_.embedding()));
    gradients_.ends_are_final(s);
  }
  // The last boundary, normalised: what the loss sees. (tokens, hidden)
  pl::tile<T> final_normed(stream& s, const batch_part& part) {
    const auto normed = pl::as_matrix(final_normed_.all(), part.tokens(), config_.hidden);
    backend_->launch(s, pl::rows{part.tokens()}, rms_norm{config_.norm_epsilon},
                     pl::in(boundaries_.read(s, config_.layers, part.tokens())),
                     pl::in(weights_.final_norm()), pl::out(normed));
    boundaries_.done(s, config_.layers);
    return normed;
  }
  // dx becomes the gradient of the norm's input, x.
  void final_norm_backward(stream& s, const buffers& buf, index_t n, pl::tile<T> x, pl::tile<T> dx) {
    const auto dy = pl::as_matrix(buf.dnormed, n, config_.hidden);
    const auto terms = pl::as_matrix(buf.gain_terms, n, config_.hidden);
    backend_->copy(s, pl::in(dx), pl::out(dy));
    backend_->launch(s, pl::elements{n * config_.hidden}, pl::fill<T>{T(0.0F)}, pl::out(pl::as_row(dx)));
    backend_->launch(s, pl::rows{n}, rms_norm_backward{config_.norm_epsilon}, pl::in(x),
                     pl::in(weights_.final_norm()), pl::in(dy), pl::inout(dx), pl::out(terms));
    pl::column_sum(*backend_, s, pl::in(terms), pl::inout(gradients_.final_norm()), buf.scratch);
  }

  void add_loss(stream& s, pl::view<float> losses) {
    backend_->launch(s, pl::rows{1}, sum_values{}, pl::in(losses), pl::out(sums_.all().sub(2, 1)));
    backend_->launch(s, pl::elements{1}, pl::add{}, pl::in(sums_.all().sub(2, 1)),
                     pl::inout(sums_.all().sub(0, 1)));
  }

  // The balance loss pools all layers and ranks, so its gradient is known once every layer has routed.
  void add_balance_loss(stream& s, const micro_batch& batch) {
    if (config_.balance_weight == 0 || config_.layers == 0) return;
    pl::all_reduce(*backend_, *world_, s, pl::inout(balance_.all().sub(0, 2 * config_.experts)),
                   reduce_scratch_.all(), reduce_options(config_));
    backend_->launch(s, pl::rows{1}, add_balance{static_cast<double>(balance_scale(batch))},
                     pl::in(probability_sum()), pl::in(load()), pl::inout(sums_.all().sub(1, 1)));
  }
  // experts / (layers tokens)^2, weighted, times the micro-batch's share of the step.
  float balance_scale(const micro_batch& batch) const {
    if (config_.balance_weight == 0 || batch.group_tokens == 0) return 0;
    const double rows = static_cast<double>(config_.layers) * static_cast<double>(batch.group_tokens);
    const double share = static_cast<double>(batch.group_tokens) / static_cast<double>(batch.step_tokens);
    return static_cast<float>(static_cast<double>(config_.balance_weight) * share *
                              static_cast<double>(config_.experts) / (rows * rows));
  }

  Backend* backend_;
  Communicator* world_;
  model_config config_;
  rank_grid grid_;
  batch_limits limits_;
  index_t last_tokens_ = 0;
  parameter_layout layout_;
  tensor_set<Backend, T> weights_;
  gradients_type gradients_;
  pl::working_set forward_set_, backward_set_;
  pl::workspace<Backend> space_;
  dispatch_type dispatch_;
  attention_type attention_;
  layer_type layer_;
  boundaries_type boundaries_;
  pl::device_buffer<T, Backend> dx_, final_normed_; // (tokens, hidden)
  pl::device_buffer<float, Backend> losses_;        // (tokens)
  pl::device_buffer<std::int32_t, Backend> tokens_; // inputs, targets (tokens each)
  pl::pinned_buffer<std::int32_t, Backend> pinned_tokens_;
  pl::device_buffer<float, Backend>
      balance_; // probability sums, load, and what the recomputation adds (experts each)
  pl::device_buffer<unsigned char, Backend> reduce_scratch_;
  pl::device_buffer<double, Backend> sums_;              // losses, balance, and room for one addend
  std::vector<pl::position_range> positions_;            // of a sequence, where ranks share it; else empty
  std::vector<typename dispatch_type::plan_type> plans_; // (layers): all that outlives a layer's forward
  loss_type loss_; // may have a stream of its own: goes before the memory that it reads
};

} // namespace moe
