// SPDX-License-Identifier: Apache-2.0
//
// Attention over a sequence that no rank has all of. Each rank keeps its queries; keys and values go around
// the ring in sub-blocks, two of which are there at a time, and meet all queries. Of the scores only a tile
// exists, forward and backward, and of a mask nothing. Causal or full, query heads in groups, packed
// documents, any split of the sequence.
//
//   const plateau::sequence_split split = plateau::sequence_split::balanced(tokens, comm.size());
//   plateau::ring_attention<host_backend, thread_communicator, bfloat16> attention(
//       backend, comm, limits, space);
//   attention.forward(stream, {q, k, v, &split, cu_seqlens}, saved, out);
//   attention.backward(stream, {q, k, v, &split, cu_seqlens}, saved, out, dout, {dq, dk, dv});
//
// Scores, states and sums are fp32; what is summed over tiles and ranks is rounded to T once, at the end. A
// row that sees no key has the output 0 and gives and gets no gradient.
#pragma once

#include <plateau/access.hpp>
#include <plateau/checks.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/ring/attention_arguments.hpp>
#include <plateau/ring/attention_plan.hpp>
#include <plateau/ring/attention_rounds.hpp>
#include <plateau/ring/attention_shape.hpp>
#include <plateau/ring/attention_steps.hpp>
#include <plateau/ring/attention_tile.hpp>
#include <plateau/ring/attention_work.hpp>
#include <plateau/ring/ring_reduce.hpp>
#include <plateau/scalar.hpp>
#include <plateau/vote.hpp>
#include <plateau/workspace.hpp>

#include <array>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace plateau::inline v0 {

// T: what queries, keys and values are made of. Kernel: what computes a block of them (attention_tile.hpp).
// One operator serves any number of layers, and any number of forwards whose backward is still to come: what
// it keeps is in the caller's `saved`. Used by the rank's host thread; calls only enqueue. Collective: all
// ranks of the communicator make the same calls. The backend, the communicator and the workspace must outlive
// it.
template <class Backend, class Communicator, class T, class Kernel = attention_by_gemm> class ring_attention {
  static_assert(check_backend<Backend>());
  static_assert(check_communicator<Communicator, Backend>());
  static_assert(
      std::is_same_v<Kernel, attention_by_gemm> || attention_tile_kernel<Kernel, Backend, T>,
      "plateau: ring_attention: Kernel is no attention_tile_kernel: it needs scratch_bytes(shape), "
      "forward(backend, stream, block, out, lse, scratch) and backward(backend, stream, block, out, "
      "lse, dout, dq, dk, dv, scratch), see attention_tile.hpp");
  using stream = typename Backend::stream;
  using plan_type = detail::attention_plan<Backend, T, Kernel>;

 public:
  using shape = attention_shape;
  using inputs = attention_inputs<T>;
  using saved = attention_saved;
  using gradients = attention_gradients<T>;

  // All that it takes from a workspace, exactly; the worst input touches all of it. Throws config_error for a
  // shape that cannot work.
  static plateau::working_set working_set(const shape& limits, int ranks) {
    return plan_type(limits, ranks).working_set();
  }
  // Of attention_saved::rows, for one forward.
  static std::size_t saved_bytes(const shape& limits) {
    return static_cast<std::size_t>(limits.tokens) * static_cast<std::size_t>(limits.heads) *
           sizeof(online_lse);
  }

  // Collective; one host exchange, or none where the vote is left to the caller: then it throws, on this
  // rank, what does not fit here; put limits.digest_of into the vote. Throws on all ranks when one of them
  // cannot, or has another shape.
  ring_attention(Backend& backend, Communicator& comm, const shape& limits, workspace<Backend>& space,
                 voting who = voting::now)
      : ring_attention(backend, comm, limits, space, Kernel{}, who) {}
  ring_attention(Backend& backend, Communicator& comm, const shape& limits, workspace<Backend>& space,
                 Kernel kernel, voting who = voting::now)
      : ring_attention(backend, comm, space, std::move(kernel),
                       who == voting::now ? agreed(backend, comm, limits, space)
                                          : fitting(backend, comm, limits, space)) {}
  ring_attention(const ring_attention&) = delete;
  ring_attention& operator=(const ring_attention&) = delete;

  // out: (rows of this rank, heads x head_size), written. Collective; one host exchange, of a digest of split
  // and cu_seqlens, unless in.agreed; no host round trip. What does not fit, and what differs between ranks,
  // is an error on all ranks (if in.agreed: config_error on this one).
  void forward(stream& s, const inputs& in, saved& keep, tile<T> result) {
    agree(in, keep, result);
    auto open = space_->open(set_);
    const memory m = memory::take(open, plan_);
    rounds_.assign(*in.split, plan_.hop_rows());
    const index_t n = in.split->rows(comm_->rank());
    tile<float> sums;
    if constexpr (plan_type::wide)
      sums = result;
    else
      sums = sums_of(m, n);
    detail::attention_forward<Backend, T, Kernel> work{step_of(in, keep, m, n, sums)};
    work.begin(s);
    rotate(s, in, {}, m, work, "ring_attention forward");
    work.finish_all(s, result);
  }

  // From the gradient of out. `in`, `keep` and `result` as forward had and left them; nothing of them is
  // changed, so that it may be called again. Collective; no host exchange, no round trip. Throws
  // config_error, on this rank, for what does not fit.
  void backward(stream& s, const inputs& in, const saved& keep, tile<const T> result, tile<const T> upstream,
                const gradients& to) {
    const int me = comm_->rank();
    detail::check_backward(plan_.shape, me, detail::origin_rank(*comm_, me), comm_->size(), in, keep, result,
                           upstream, to);
    auto open = space_->open(set_);
    const memory m = memory::take(open, plan_);
    rounds_.assign(*in.split, plan_.hop_rows());
    const index_t n = in.split->rows(me);
    tile<float> sums;
    if constexpr (plan_type::wide)
      sums = to.dq;
    else
      sums = sums_of(m, n);
    detail::attention_backward<Backend, T, Kernel> work{step_of(in, keep, m, n, sums), result, upstream, to,
                                                        m.dots.n == 0 ? m.dots
                                                                      : m.dots.sub(0, n * plan_.shape.heads)};
    work.begin(s);
    rotate(s, in, plan_.backward_carry(), m, work, "ring_attention backward");
    work.finish_all(s);
  }

 private:
  using memory = detail::attention_memory<Backend, T, Kernel>;
  using report = detail::attention_report;

  // What can fail on one rank alone, made before the ranks vote.
  struct parts {
    plan_type plan;
    stream transfer;
  };
  ring_attention(Backend& backend, Communicator& comm, workspace<Backend>& space, Kernel kernel, parts made)
      : backend_(&backend), comm_(&comm), space_(&space), kernel_(std::move(kernel)), plan_(made.plan),
        set_(plan_.working_set()), numbers_(static_cast<std::size_t>(comm.size()) * report::numbers),
        transfer_(std::move(made.transfer)) {}
  // What a rank needs for the shape, if the workspace has room for it.
  static parts fitting(Backend& backend, const Communicator& comm, const shape& limits,
                       const workspace<Backend>& space) {
    const plan_type plan(limits, comm.size());
    const plateau::working_set set = plan.working_set();
    if (set.device_bytes() > space.device_bytes())
      throw config_error("plateau: ring_attention: the workspace has " +
                         std::to_string(space.device_bytes()) + " device bytes, but " +
                         std::to_string(set.device_bytes()) +
                         " are needed: reserve working_set(limits, ranks)");
    return {plan, backend.make_stream("ring")};
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
    constexpr scalar_kind type = scalar_kind_of<T>;
    vote(comm, limits.digest_of(type), mine ? &*mine : nullptr, "ring_attention", limits.text(type));
    return std::move(*made);
  }

  tile<float> sums_of(const memory& m, index_t n) const {
    return as_matrix(m.sums, n, plan_.shape.query_columns());
  }
  detail::attention_step<Backend, T, Kernel> step_of(const inputs& in, const saved& keep, const memory& m,
                                                     index_t n, tile<float> sums) {
    return {*backend_, kernel_,      plan_, m, rounds_, in, keep.rows.sub(0, n * plan_.shape.heads),
            sums,      comm_->rank()};
  }
  template <class Work>
  void rotate(stream& s, const inputs& in, const ring_row& carry, const memory& m, Work& work,
              const char* what) {
    const ring_schedule schedule(in.split->rows_of_ranks(), plan_.hop_rows());
    ring_reduce<Backend, Communicator>(*backend_, *comm_, transfer_)
        .run(s, schedule, plan_.payload(), carry, m.ring, work, what);
  }

  void agree(const inputs& in, saved& keep, tile<const T> result) {
    const int me = comm_->rank(), first = detail::origin_rank(*comm_, 0);
    const detail::attention_misfit f = detail::find_misfit(plan_.shape, me, comm_->size(), in, keep, result);
    const std::uint64_t digest = f.number >= 0 ? 0 : detail::attention_digest(*in.split, in.cu_seqlens);
    if (in.agreed) {
      if (f.number >= 0) throw config_error(f.text(detail::origin_rank(*comm_, me)));
    } else {
      const report mine(f, digest);
      const std::uint64_t sequence = comm_->counters().exchanges + comm_->counters().host_exchanges;
      comm_->host_exchange(mine.all, numbers_, "ring_attention inputs");
      for (int r = 0; r < comm_->size(); ++r) {
        const int who = detail::origin_rank(*comm_, r);
        const std::string trouble = report::trouble(
            who, &numbers_[report::numbers * static_cast<std::size_t>(r)], first, numbers_.data());
        if (!trouble.empty()) throw collective_error(who, "ring_attention", sequence, trouble);
      }
    }
    keep.of = digest;
  }

  Backend* backend_;
  Communicator* comm_;
  workspace<Backend>* space_;
  Kernel kernel_;
  plan_type plan_;
  plateau::working_set set_;
  std::vector<std::int64_t> numbers_;
  attention_rounds rounds_;
  stream transfer_;
};

} // namespace plateau::inline v0
