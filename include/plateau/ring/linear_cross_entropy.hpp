// SPDX-License-Identifier: Apache-2.0
//
// The loss of a language model without its logits: projection, cross-entropy and backward in one operator,
// tokens and vocabulary both split over the ranks. tokens x vocabulary never exists, on no rank; a tile of it
// does, and what goes around the ring. The bytes beyond inputs, shards, their gradients and 16 bytes a token
// do not depend on the number of tokens.
//
//   plateau::linear_cross_entropy<host_backend, thread_communicator, bfloat16> loss(backend, comm, limits,
//   space); loss.forward(stream, {x, shard, targets}, saved, {.loss = one_float}); loss.backward(stream, {x,
//   shard, targets}, saved, upstream, {.dx = dx, .dweight = dshard});
//
// Backward makes the logits again from x and the shard: four products in all, of which one is forward's.
// Logits, states and sums are fp32; gradients of logits are rounded to T once, as operands of their products,
// whose results are added in fp32 over tiles and hops, and rounded once at the end.
#pragma once

#include <plateau/access.hpp>
#include <plateau/checks.hpp>
#include <plateau/collectives.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/kernels.hpp>
#include <plateau/ring/cross_entropy_arguments.hpp>
#include <plateau/ring/cross_entropy_shape.hpp>
#include <plateau/ring/cross_entropy_statistics.hpp>
#include <plateau/ring/cross_entropy_steps.hpp>
#include <plateau/ring/ring_reduce.hpp>
#include <plateau/scalar.hpp>
#include <plateau/vote.hpp>
#include <plateau/workspace.hpp>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace plateau::inline v0 {

// T: what x and the weights are made of. Id: of the targets, 32 or 64 bits. One operator serves any number of
// heads, and any number of forwards whose backward is still to come: what it keeps is in the caller's
// `saved`. Used by the rank's host thread; calls only enqueue. Collective: all ranks of the communicator make
// the same calls. The backend, the communicator and the workspace must outlive it.
template <class Backend, class Communicator, class T, class Id = std::int32_t> class linear_cross_entropy {
  static_assert(check_backend<Backend>());
  static_assert(check_communicator<Communicator, Backend>());
  static_assert(std::is_same_v<Id, std::int32_t> || std::is_same_v<Id, std::int64_t>,
                "plateau: linear_cross_entropy: targets are std::int32_t or std::int64_t");
  using stream = typename Backend::stream;

 public:
  using shape = cross_entropy_shape;
  using inputs = cross_entropy_inputs<T, Id>;
  using saved = cross_entropy_saved;
  using outputs = cross_entropy_outputs;
  using gradients = cross_entropy_gradients<T>;

  // All that it takes from a workspace, exactly; the worst input touches all of it. Throws config_error for a
  // shape that cannot work.
  static plateau::working_set working_set(const shape& limits, int ranks) {
    return detail::cross_entropy_plan<Backend, T>(limits, ranks).working_set();
  }

  // Collective; two host exchanges. shard_rows: this rank's part of the vocabulary, which follows that of the
  // rank before; all ranks together have limits.vocabulary. -1: [V r / P, V (r + 1) / P). Throws on all ranks
  // when one of them cannot, or has another shape, and when the shards are not the vocabulary.
  linear_cross_entropy(Backend& backend, Communicator& comm, const shape& limits, workspace<Backend>& space,
                       index_t shard_rows = -1)
      : linear_cross_entropy(backend, comm, agreed(comm, limits, space), space, shard_rows) {}
  linear_cross_entropy(const linear_cross_entropy&) = delete;
  linear_cross_entropy& operator=(const linear_cross_entropy&) = delete;

  // The rows of the weights that a rank owns: [first_row(r), first_row(r + 1)).
  index_t first_row(int rank) const { return shard_first_[static_cast<std::size_t>(rank)]; }
  // Whether activations go around the ring, or weights.
  bool rotates_activations() const { return plan_.activations; }

  // The loss of this rank's tokens over the whole vocabulary. Collective; one host exchange, of the numbers
  // of tokens, unless in.tokens_of_rank has them; no host round trip. What does not fit is an error on all
  // ranks (with tokens_of_rank: config_error on this one). A target that is neither in the vocabulary nor
  // ignore_index is found on the device and latched: its token counts as nothing until the step is closed.
  void forward(stream& s, const inputs& in, saved& keep, const outputs& want = {}) {
    count_tokens(in, keep, want);
    auto open = space_->open(set_);
    const memory m = take(open);
    Backend& be = *backend_;
    be.launch(s, rows{1}, sum_classes{plan_.shape.vocabulary}, plateau::in(in.class_weights),
              out(m.class_sum));
    const index_t n = in.x.rows;
    const view<token_state> states = keep.rows.sub(0, n);
    detail::cross_entropy_forward<Backend, T, Id> work{step_of(in, keep, m), want};
    if (!plan_.activations) work.begin(s, states, want.entropies, want.argmaxes);
    rotate(s, keep, plan_.forward_payload(), plan_.forward_carry(), m.ring, work,
           "linear_cross_entropy forward");

    const loss_terms t = terms();
    const index_t wanted = std::max({want.losses.n, want.lses.n, want.log_probabilities.n});
    be.launch(s, elements{wanted}, token_outputs{t}, plateau::in(in.targets), plateau::in(in.token_weights),
              plateau::in(in.class_weights), plateau::in(m.class_sum), plateau::in(states), out(want.losses),
              out(want.lses), out(want.log_probabilities));
    const index_t block_tokens = n / token_sum_blocks + (n % token_sum_blocks != 0 ? 1 : 0);
    be.launch(s, rows{token_sum_blocks}, sum_tokens{t, block_tokens}, plateau::in(in.targets),
              plateau::in(in.token_weights), plateau::in(in.class_weights), plateau::in(m.class_sum),
              plateau::in(states), out(m.sums));
    be.launch(s, rows{1}, join_sums{}, plateau::in(m.sums), plateau::in(in.targets), out(keep.sums.sub(0, 2)),
              out(m.bad));
    report_bad_target(s, m);
    if (want.entropies.n != 0 || want.argmaxes.n != 0)
      be.launch(s, elements{n}, finish_statistics{t}, plateau::in(in.targets), plateau::in(in.token_weights),
                plateau::in(states), inout(want.entropies), inout(want.argmaxes), out(want.correct));
    if (plan_.shape.accuracy) count_correct(s, in, want, m, block_tokens);
    if (plan_.shape.options.reduction == reduction::none) return;
    all_reduce(be, *comm_, s, inout(keep.sums.sub(0, 2)), m.sum_scratch, plan_.sum_options,
               "linear_cross_entropy sums");
    if (want.loss.n != 0)
      be.launch(s, elements{1}, reduce_loss{divisor(in)}, plateau::in(keep.sums.sub(0, 2)),
                out(want.loss.sub(0, 1)));
  }

  // The gradients of upstream x loss: of the reduced loss for one value (1), of the tokens' losses, divided
  // as reduction says, for one each (tokens). `in` and `keep` as they were given to forward, which they
  // outlive; nothing of them is changed, so that it may be called again. Collective; no host exchange, no
  // round trip.
  void backward(stream& s, const inputs& in, const saved& keep, view<const float> upstream,
                const gradients& to) {
    check(in, keep, upstream, to);
    const shape& limits = plan_.shape;
    if (limits.frozen_inputs && limits.frozen_weights) return;
    auto open = space_->open(set_);
    const memory m = take(open);
    Backend& be = *backend_;
    be.launch(s, rows{1}, sum_classes{limits.vocabulary}, plateau::in(in.class_weights), out(m.class_sum));
    const index_t n = in.x.rows;
    tile<float> dx{};
    if (!plan_.activations && !limits.frozen_inputs) dx = stationary(to, m, n);
    detail::cross_entropy_backward<Backend, T, Id> work{step_of(in, keep, m), to, divisor(in), upstream,
                                                        m.gradient_tile,      dx};
    rotate(s, keep, plan_.backward_payload(), plan_.backward_carry(), m.ring, work,
           "linear_cross_entropy backward");
    if (m.accumulator.n != 0 && n != 0) work.round_into(s, dx, to.dx);
  }

 private:
  using plan_type = detail::cross_entropy_plan<Backend, T>;
  using misfit = detail::cross_entropy_misfit;

  // Its parts of the workspace, in the order of the lines.
  struct memory {
    ring_buffers ring;
    view<float> logits;
    view<T> gradient_tile;
    view<token_gradient> tile_tokens;
    view<float> accumulator;
    scratch_view scratch;
    view<token_sums> sums;
    scratch_view sum_scratch;
    view<float> class_sum;
    view<bad_target> bad;
    view<bad_target, typename Backend::host_memory::space> bad_on_host;
  };

  linear_cross_entropy(Backend& backend, Communicator& comm, const plan_type& plan, workspace<Backend>& space,
                       index_t shard_rows)
      : backend_(&backend), comm_(&comm), space_(&space), plan_(plan), set_(plan.working_set()),
        numbers_(static_cast<std::size_t>(4 * comm.size())),
        shard_first_(static_cast<std::size_t>(comm.size() + 1)),
        shard_rows_(static_cast<std::size_t>(comm.size())), transfer_(backend.make_stream("ring")) {
    const even_shards even{plan.shape.vocabulary, comm.size()};
    const std::int64_t mine[] = {shard_rows == -1 ? even.count(comm.rank()) : shard_rows};
    comm.host_exchange(mine, shard_rows_, "linear_cross_entropy shards");
    bool good = true;
    for (int r = 0; r < comm.size(); ++r) {
      const auto i = static_cast<std::size_t>(r);
      good = good && shard_rows_[i] >= 0 && shard_rows_[i] <= plan.shape.vocabulary - shard_first_[i];
      shard_first_[i + 1] = good ? shard_first_[i] + shard_rows_[i] : 0;
    }
    if (good && shard_first_.back() == plan.shape.vocabulary) return;
    std::string text = "plateau: linear_cross_entropy: the shards of all ranks must be the vocabulary of " +
                       std::to_string(plan.shape.vocabulary) + " rows, but they have ";
    for (std::size_t r = 0; r < shard_rows_.size(); ++r)
      text += (r == 0 ? "" : ", ") + std::to_string(shard_rows_[r]);
    throw config_error(text + ": give each rank its own part, not all of it");
  }

  // The plan, once all ranks have the same shape and room for it.
  static plan_type agreed(Communicator& comm, const shape& limits, const workspace<Backend>& space) {
    std::optional<plan_type> plan;
    std::optional<failure> mine;
    try {
      plan.emplace(limits, comm.size());
      const plateau::working_set set = plan->working_set();
      if (set.device_bytes() > space.device_bytes() || set.pinned_bytes() > space.pinned_bytes())
        throw config_error("plateau: linear_cross_entropy: the workspace has " +
                           std::to_string(space.device_bytes()) + " device and " +
                           std::to_string(space.pinned_bytes()) + " pinned bytes, but " +
                           std::to_string(set.device_bytes()) + " and " + std::to_string(set.pinned_bytes()) +
                           " are needed: reserve working_set(limits, ranks)");
    } catch (...) {
      mine = failure::current();
    }
    constexpr scalar_kind type = scalar_kind_of<T>, ids = scalar_kind_of<Id>;
    vote(comm, limits.digest_of(type, ids), mine ? &*mine : nullptr, "linear_cross_entropy",
         limits.text(type, ids));
    return *plan;
  }

  template <class Phase> memory take(Phase& open) const {
    memory m;
    m.ring = ring_buffers::take(open, plan_.layout(), plan_.ranks);
    const index_t tile_elements = plan_.tile_tokens() * plan_.tile_columns();
    m.logits = open.template device<float>(tile_elements);
    if constexpr (std::is_same_v<T, float>)
      m.gradient_tile = m.logits;
    else
      m.gradient_tile = open.template device<T>(tile_elements);
    if (!plan_.activations) m.tile_tokens = open.template device<token_gradient>(plan_.tile_tokens());
    if (plan_.needs_accumulator())
      m.accumulator = open.template device<float>(plan_.shape.tokens * plan_.shape.hidden);
    m.scratch = open.template device<unsigned char>(static_cast<index_t>(plan_.scratch_bytes()));
    m.sums = open.template device<token_sums>(token_sum_blocks);
    m.sum_scratch = open.template device<unsigned char>(
        static_cast<index_t>(reduce_scratch_bytes<double>(plan_.ranks, plan_.sum_options)));
    m.class_sum = open.template device<float>(1);
    m.bad = open.template device<bad_target>(1);
    m.bad_on_host = open.template pinned<bad_target>(1);
    return m;
  }

  loss_terms terms() const {
    const cross_entropy_options& o = plan_.shape.options;
    return {o.ignore_index, plan_.shape.vocabulary, o.smoothing, o.z_loss};
  }
  loss_divisor divisor(const inputs& in) const {
    const cross_entropy_options& o = plan_.shape.options;
    return {o.reduction == reduction::denominator ? in.denominator : 1.0, o.reduction == reduction::mean,
            o.nan_when_empty};
  }
  detail::cross_entropy_step<Backend, T, Id> step_of(const inputs& in, const saved& keep, const memory& m) {
    return {*backend_, plan_,         in,        keep,       shard_first_, comm_->rank(), terms(),
            m.logits,  m.tile_tokens, m.scratch, m.class_sum};
  }
  template <class Work>
  void rotate(stream& s, const saved& keep, const ring_row& payload, const ring_row& carry,
              const ring_buffers& buffers, Work& work, const char* what) {
    const ring_schedule schedule(plan_.activations ? std::span<const index_t>(keep.tokens) : shard_rows_,
                                 plan_.hop_rows());
    ring_reduce<Backend, Communicator>(*backend_, *comm_, transfer_)
        .run(s, schedule, payload, carry, buffers, work, what);
  }
  // Where the gradient of x is summed when weights rotate.
  tile<float> stationary(const gradients& to, const memory& m, index_t n) const {
    if (m.accumulator.n != 0) return as_matrix(m.accumulator, n, plan_.shape.hidden);
    if constexpr (std::is_same_v<T, float>)
      if (to.wide_dx.rows == 0) return to.dx;
    return to.wide_dx;
  }

  // Host code in stream order: a token whose target is no part of the vocabulary is latched.
  struct latch_bad_target {
    Communicator* comm;
    int rank;
    index_t vocabulary;
    std::int64_t ignored;

    void operator()(view<const bad_target, typename Backend::host_memory::space> bad) const {
      if (bad[0].token < 0) return;
      failure why{failure::kind::config,
                  "plateau: rank " + std::to_string(rank) + ": linear_cross_entropy: the target " +
                      std::to_string(bad[0].target) + " of token " + std::to_string(bad[0].token) +
                      " is not in [0, " + std::to_string(vocabulary) + "), nor ignore_index " +
                      std::to_string(ignored) + ": the token counts as nothing"};
      why.operation = "linear_cross_entropy";
      comm->latch(std::move(why));
    }
  };
  void report_bad_target(stream& s, const memory& m) {
    backend_->copy(s, plateau::in(m.bad), out(m.bad_on_host));
    const int me = detail::origin_rank(*comm_, comm_->rank());
    backend_->host_task(s,
                        latch_bad_target{comm_, me, plan_.shape.vocabulary, plan_.shape.options.ignore_index},
                        plateau::in(m.bad_on_host));
  }

  // The sums over blocks of tokens, and the first bad target, have been used, and serve again.
  void count_correct(stream& s, const inputs& in, const outputs& want, const memory& m,
                     index_t block_tokens) {
    const view<double> counts = want.accuracy.sub(0, 2);
    backend_->launch(s, rows{token_sum_blocks}, sum_correct{terms(), block_tokens}, plateau::in(in.targets),
                     plateau::in(in.token_weights), plateau::in(want.argmaxes), out(m.sums));
    backend_->launch(s, rows{1}, join_sums{}, plateau::in(m.sums), plateau::in(in.targets), out(counts),
                     out(m.bad));
    all_reduce(*backend_, *comm_, s, inout(counts), m.sum_scratch, plan_.sum_options,
               "linear_cross_entropy accuracy");
  }

  void count_tokens(const inputs& in, saved& keep, const outputs& want) {
    const int ranks = comm_->size(), me = comm_->rank();
    const misfit f = detail::find_misfit(plan_.shape, shard_rows(), in, keep, &want);
    keep.tokens.resize(static_cast<std::size_t>(ranks));
    if (in.tokens_of_rank.empty()) {
      const std::int64_t mine[] = {in.x.rows, f.number, f.got, f.wanted};
      const std::uint64_t sequence = comm_->counters().exchanges + comm_->counters().host_exchanges;
      comm_->host_exchange(mine, numbers_, "linear_cross_entropy tokens");
      for (std::size_t r = 0; r < keep.tokens.size(); ++r) {
        const misfit theirs{numbers_[4 * r + 1], numbers_[4 * r + 2], numbers_[4 * r + 3]};
        const int who = detail::origin_rank(*comm_, static_cast<int>(r));
        if (theirs.number >= 0)
          throw collective_error(who, "linear_cross_entropy", sequence, theirs.text(who));
        keep.tokens[r] = numbers_[4 * r];
      }
      return;
    }
    const int who = detail::origin_rank(*comm_, me);
    if (f.number >= 0) throw config_error(f.text(who));
    const auto given = in.tokens_of_rank;
    if (given.size() != keep.tokens.size() || given[static_cast<std::size_t>(me)] != in.x.rows)
      throw config_error("plateau: rank " + std::to_string(who) +
                         ": linear_cross_entropy: tokens_of_rank has " + std::to_string(given.size()) +
                         " counts for " + std::to_string(ranks) + " ranks, and must have " +
                         std::to_string(in.x.rows) + " for this one");
    std::copy(given.begin(), given.end(), keep.tokens.begin());
  }
  void check(const inputs& in, const saved& keep, view<const float> upstream, const gradients& to) const {
    const auto me = static_cast<std::size_t>(comm_->rank());
    const bool stays = !plan_.activations && !plan_.shape.frozen_inputs, rounded = plan_.needs_accumulator();
    detail::check_backward(detail::origin_rank(*comm_, comm_->rank()), plan_.shape, shard_rows(), in, keep,
                           me < keep.tokens.size() ? keep.tokens[me] : -1, upstream.n, to,
                           stays && !std::is_same_v<T, float> && !rounded, rounded);
  }
  index_t shard_rows() const { return first_row(comm_->rank() + 1) - first_row(comm_->rank()); }

  Backend* backend_;
  Communicator* comm_;
  workspace<Backend>* space_;
  plan_type plan_;
  plateau::working_set set_;
  std::vector<std::int64_t> numbers_;
  std::vector<index_t> shard_first_, shard_rows_;
  stream transfer_;
};

} // namespace plateau::inline v0
