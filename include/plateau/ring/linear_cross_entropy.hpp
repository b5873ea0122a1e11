// SPDX-License-Identifier: Apache-2.0
//
// The loss of a language model without its logits: projection, cross-entropy and backward in one operator,
// tokens and vocabulary both split over the ranks. tokens x vocabulary never exists, on no rank; a tile of it
// does, and what goes around the ring. The bytes beyond inputs, shards, their gradients and 16 bytes a token
// do not depend on the number of tokens.
//
//   plateau::linear_cross_entropy<host_backend, thread_communicator, bfloat16> loss(
//       backend, comm, limits, space);
//   loss.forward(stream, {x, shard, targets}, saved, {.loss = one_float});
//   loss.backward(stream, {x, shard, targets}, saved, upstream, {.dx = dx, .dweight = dshard});
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
#include <plateau/ring/cross_entropy_memory.hpp>
#include <plateau/ring/cross_entropy_one_pass.hpp>
#include <plateau/ring/cross_entropy_plan.hpp>
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
#include <utility>
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
      : linear_cross_entropy(backend, comm, agreed(backend, comm, limits, space), space) {
    count_shards(shard_rows);
  }
  // The same with even shards; where the vote is left to the caller, not a word passes between ranks: the
  // constructor throws, on this rank, what does not fit here; put limits.digest_of into the vote.
  linear_cross_entropy(Backend& backend, Communicator& comm, const shape& limits, workspace<Backend>& space,
                       voting who)
      : linear_cross_entropy(backend, comm,
                             who == voting::now ? agreed(backend, comm, limits, space)
                                                : fitting(backend, comm, limits, space),
                             space) {}
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
    if (plan_.shape.one_pass) detail::check_one_pass(plan_.shape, in.x.rows, keep);
    count_tokens(in, keep, want);
    auto open = space_->open(set_);
    const memory m = memory::take(open, plan_);
    Backend& be = *backend_;
    be.launch(s, rows{1}, sum_classes{plan_.shape.vocabulary}, plateau::in(in.class_weights),
              out(m.class_sum));
    const index_t n = in.x.rows;
    const view<token_state> states = keep.rows.sub(0, n);
    detail::cross_entropy_forward<Backend, T, Id> work{step_of(in, keep, m), want, m.apart};
    work.begin_at_home(s);
    if (plan_.shape.one_pass)
      in_one_pass(s, in, keep, m, work);
    else
      rotate(s, keep, plan_.forward_payload(), plan_.forward_carry(), m.ring, work,
             "linear_cross_entropy forward");
    work.finish_at_home(s);

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
    const shape& limits = plan_.shape;
    if (limits.one_pass) detail::check_one_upstream(upstream.n);
    if (limits.one_pass) detail::check_one_pass(limits, in.x.rows, keep);
    check(in, keep, upstream, to);
    if (limits.frozen_inputs && limits.frozen_weights) return;
    if (limits.one_pass)
      return detail::scale_gradients(*backend_, s, keep, in.x.rows, divisor(in), upstream, to);
    auto open = space_->open(set_);
    const memory m = memory::take(open, plan_);
    Backend& be = *backend_;
    be.launch(s, rows{1}, sum_classes{limits.vocabulary}, plateau::in(in.class_weights), out(m.class_sum));
    const index_t n = in.x.rows;
    tile<float> dx{};
    if (!plan_.activations && !limits.frozen_inputs) dx = stationary(to, m, n);
    detail::cross_entropy_backward<Backend, T, Id> work{step_of(in, keep, m), to, divisor(in), upstream,
                                                        m.gradient_tiles,     dx};
    rotate(s, keep, plan_.backward_payload(), plan_.backward_carry(), m.ring, work,
           "linear_cross_entropy backward");
    if (m.accumulator.n != 0 && n != 0) work.round_into(s, dx, to.dx);
  }

 private:
  using plan_type = detail::cross_entropy_plan<Backend, T>;
  using misfit = detail::cross_entropy_misfit;
  using report = detail::cross_entropy_report;
  using memory = detail::cross_entropy_memory<Backend, T, Id>;

  // What can fail on one rank alone, made before the ranks vote.
  struct parts {
    plan_type plan;
    stream transfer;
    std::optional<stream> second;
  };
  // With even shards, of whole blocks.
  linear_cross_entropy(Backend& backend, Communicator& comm, parts made, workspace<Backend>& space)
      : backend_(&backend), comm_(&comm), space_(&space), plan_(made.plan), set_(plan_.working_set()),
        numbers_(static_cast<std::size_t>(comm.size()) * report::numbers),
        shard_first_(static_cast<std::size_t>(comm.size() + 1)),
        shard_rows_(static_cast<std::size_t>(comm.size())), transfer_(std::move(made.transfer)),
        second_(std::move(made.second)) {
    const index_t vocabulary = plan_.shape.vocabulary, unit = std::max<index_t>(1, plan_.shape.fixed_block);
    const even_shards even{(vocabulary - 1) / unit + 1, comm.size()};
    for (std::size_t r = 0; r < shard_rows_.size(); ++r) {
      const index_t blocks = even.first(static_cast<int>(r) + 1);
      shard_first_[r + 1] = r + 1 == shard_rows_.size() ? vocabulary : blocks * unit;
      shard_rows_[r] = shard_first_[r + 1] - shard_first_[r];
    }
  }
  // The shards that the ranks have, or were asked for by -1.
  void count_shards(index_t mine_or_even) {
    const std::int64_t mine[] = {mine_or_even == -1 ? shard_rows() : mine_or_even};
    comm_->host_exchange(mine, shard_rows_, "linear_cross_entropy shards");
    bool good = true;
    for (std::size_t i = 0; i < shard_rows_.size(); ++i) {
      good = good && shard_rows_[i] >= 0 && shard_rows_[i] <= plan_.shape.vocabulary - shard_first_[i];
      shard_first_[i + 1] = good ? shard_first_[i] + shard_rows_[i] : 0;
    }
    if (good && shard_first_.back() == plan_.shape.vocabulary) return check_blocks();
    std::string text = "plateau: linear_cross_entropy: the shards of all ranks must be the vocabulary of " +
                       std::to_string(plan_.shape.vocabulary) + " rows, but they have ";
    for (std::size_t r = 0; r < shard_rows_.size(); ++r)
      text += (r == 0 ? "" : ", ") + std::to_string(shard_rows_[r]);
    throw config_error(text + ": give each rank its own part, not all of it");
  }

  void check_blocks() const {
    const index_t block = plan_.shape.fixed_block, vocabulary = plan_.shape.vocabulary;
    for (std::size_t r = 0; block != 0 && r < shard_rows_.size(); ++r)
      if (shard_first_[r] % block != 0 && shard_first_[r] != vocabulary)
        throw config_error("plateau: linear_cross_entropy: the shard of rank " +
                           std::to_string(detail::origin_rank(*comm_, static_cast<int>(r))) +
                           " must begin at a multiple of fixed_block " + std::to_string(block) +
                           ", but begins at row " + std::to_string(shard_first_[r]));
  }

  // What a rank needs for the shape, if the workspace has room for it.
  static parts fitting(Backend& backend, const Communicator& comm, const shape& limits,
                       const workspace<Backend>& space) {
    const plan_type plan(limits, comm.size());
    const plateau::working_set set = plan.working_set();
    if (set.device_bytes() > space.device_bytes() || set.pinned_bytes() > space.pinned_bytes())
      throw config_error("plateau: linear_cross_entropy: the workspace has " +
                         std::to_string(space.device_bytes()) + " device and " +
                         std::to_string(space.pinned_bytes()) + " pinned bytes, but " +
                         std::to_string(set.device_bytes()) + " and " + std::to_string(set.pinned_bytes()) +
                         " are needed: reserve working_set(limits, ranks)");
    parts made{plan, backend.make_stream("ring"), std::nullopt};
    if (limits.tiles_in_flight == 2) made.second.emplace(backend.make_stream("second tile"));
    return made;
  }
  // The same, once all ranks have one and the same shape.
  static parts agreed(Backend& backend, Communicator& comm, const shape& limits,
                      const workspace<Backend>& space) {
    std::optional<parts> made;
    std::optional<failure> mine;
    try {
      made.emplace(fitting(backend, comm, limits, space));
    } catch (...) {
      mine = failure::current();
    }
    constexpr scalar_kind type = scalar_kind_of<T>, ids = scalar_kind_of<Id>;
    vote(comm, limits.digest_of(type, ids), mine ? &*mine : nullptr, "linear_cross_entropy",
         limits.text(type, ids));
    return std::move(*made);
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
    return {*backend_,    plan_,         in,        keep,
            shard_first_, comm_->rank(), terms(),   second_ ? &*second_ : nullptr,
            m.logits,     m.tile_tokens, m.scratch, m.class_sum};
  }
  void in_one_pass(stream& s, const inputs& in, const saved& keep, const memory& m,
                   detail::cross_entropy_forward<Backend, T, Id>& work) {
    backend_->launch(s, elements{1}, fill<float>{1}, out(m.unit));
    const gradients sums{{}, keep.dx, keep.dweight, keep.dbias};
    detail::cross_entropy_backward<Backend, T, Id> back{
        step_of(in, keep, m), sums, {}, m.unit, m.gradient_tiles};
    detail::cross_entropy_one_pass<Backend, T, Id>{work, back, m.strip}.run(s);
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
      const report mine(plan_.shape, in, f);
      const std::uint64_t sequence = comm_->counters().exchanges + comm_->counters().host_exchanges;
      comm_->host_exchange(mine.all, numbers_, "linear_cross_entropy tokens");
      const int first = detail::origin_rank(*comm_, 0);
      for (std::size_t r = 0; r < keep.tokens.size(); ++r) {
        const std::int64_t* its = &numbers_[report::numbers * r];
        const misfit theirs{its[1], its[2], its[3]};
        const int who = detail::origin_rank(*comm_, static_cast<int>(r));
        const std::string trouble =
            theirs.number >= 0 ? theirs.text(who) : report::difference(who, its, first, numbers_.data());
        if (!trouble.empty()) throw collective_error(who, "linear_cross_entropy", sequence, trouble);
        keep.tokens[r] = its[0];
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
  std::optional<stream> second_;
};

} // namespace plateau::inline v0
