// SPDX-License-Identifier: Apache-2.0
//
// Expert dispatch as everyone has it: one all-to-all of every routed row, with buffers as large as the
// routing demands, so that the peak grows with tokens and with skew. This is the baseline. Rows are sent
// grouped by expert, and arrive grouped by local expert first, then by source, so that each expert's rows are
// one block.
//
// One host round trip per layer in forward, for the counts; backward takes them from there and regroups the
// routes on the device. The buffers are sized by the counts, so the host waits for their last use before it
// frees them.
#pragma once

#include "dispatch_summary.hpp"
#include "kernels/dispatch.hpp"
#include "kernels/swiglu.hpp"
#include "layer_buffers.hpp"
#include "model_config.hpp"
#include "routing.hpp"
#include "scratch_need.hpp"

#include <plateau/access.hpp>
#include <plateau/drain.hpp>
#include <plateau/exchange.hpp>
#include <plateau/gemm.hpp>
#include <plateau/grouped.hpp>
#include <plateau/resource.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>
#include <plateau/working_set.hpp>
#include <plateau/workspace.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace moe {

namespace pl = plateau;

template <class Backend, class Communicator, class T> class uncapped_dispatch {
  using stream = typename Backend::stream;
  using rows_buffer = pl::device_buffer<T, Backend>;

 public:
  // What outlives a layer's forward.
  using plan_type = routing_counts;
  static const routing_counts& counts_of(const plan_type& p) { return p; }

  // Where the routes of the rank's tokens lie when they are grouped by expert: in the layer's own memory.
  struct layer_part {
    pl::view<std::int32_t> order;    // (tokens * top_k) the route at each place
    pl::view<std::int32_t> position; // (tokens * top_k) the place of each route
    pl::view<std::int64_t> offsets;  // (experts + 1)

    template <class Source>
    layer_part(Source& from, const model_config& c, const batch_limits& b)
        : order(from.template device<std::int32_t>("routes by expert", b.tokens() * c.top_k)),
          position(from.template device<std::int32_t>("place of each route", b.tokens() * c.top_k)),
          offsets(from.template device<std::int64_t>("first route of each expert", c.experts + 1)) {}
    static std::size_t scratch_bytes(const model_config& c, const batch_limits& b) {
      return scratch_need<Backend>().group_by_key(b.tokens() * c.top_k, c.experts).bytes();
    }
    layer_part sub(index_t routes) const {
      layer_part of(*this);
      of.order = order.sub(0, routes);
      of.position = position.sub(0, routes);
      return of;
    }
  };

  // Nothing is promised: it grows with the routing.
  static std::optional<pl::reservation> promised(const model_config&, const rank_grid&, const batch_limits&) {
    return std::nullopt;
  }
  // What it holds all the time.
  static pl::reservation held_by(const model_config& c) {
    return {0, static_cast<std::size_t>(c.experts + 1) * sizeof(std::int64_t)};
  }
  static std::optional<dispatch_summary> summary() { return std::nullopt; }

  // What it needs of a workspace beside the layer's own part.
  static pl::reservation reserve_for(const model_config& c, const rank_grid& g, const batch_limits& b,
                                     layer_pass) {
    return pl::reserve(working_set(c, g, b));
  }
  // The part of the dispatch's memory that does not depend on the routing.
  static pl::working_set working_set(const model_config& c, const rank_grid& g, const batch_limits& b) {
    return pl::working_set(pl::tag::dispatch).device<unsigned char>("scratch", scratch_elements(c, g, b));
  }

  // `group` is the expert group; its exchanges run on the streams given below. `space` must have room for the
  // working set whenever forward or backward is called.
  uncapped_dispatch(Backend& backend, Communicator& group, pl::workspace<Backend>& space,
                    const model_config& c, const rank_grid& g, const batch_limits& b)
      : backend_(&backend), group_(&group), space_(&space), set_(working_set(c, g, b)),
        scratch_elements_(scratch_elements(c, g, b)), experts_(c.experts), local_(c.experts / group.size()),
        hidden_(c.hidden), intermediate_(c.intermediate), top_k_(c.top_k),
        pinned_(backend.pinned(), c.experts + 1, pl::tag::dispatch),
        host_offsets_(static_cast<std::size_t>(c.experts + 1)),
        own_counts_(static_cast<std::size_t>(c.experts)) {}

  // The layer's host round trip: the counts of the whole expert group. ids (n * top_k); adds the routes of
  // each expert to load (experts).
  void plan(stream& s, pl::view<std::int32_t> ids, const layer_part& part, pl::scratch_view scratch,
            pl::view<float> load, routing_counts& into) {
    group_routes(s, ids, part, scratch);
    backend_->launch(s, pl::rows{experts_}, count_routes{}, pl::in(part.offsets), pl::inout(load));
    backend_->copy(s, pl::in(part.offsets), pl::out(pinned_.all()));
    backend_->fetch(backend_->record(s), pl::in(pinned_.all()), host_offsets_, "routes of each expert");
    for (index_t e = 0; e < experts_; ++e)
      own_counts_[at(e)] = host_offsets_[at(e + 1)] - host_offsets_[at(e)];
    into.resize(static_cast<std::size_t>(group_->size()) * at(experts_));
    group_->host_exchange(own_counts_, into, "routing counts");
  }

  // out(token) += sum over its routes of gate * expert(rows(token)). rows (n, hidden), gates (n, top_k), out
  // (n, hidden). `part` as plan left it.
  void forward(stream& s, const routing_counts& counts, pl::view<std::int32_t> ids, const layer_part& part,
               pl::tile<T> rows, pl::tile<float> gates, const expert_tensors<T>& weights, pl::tile<T> out) {
    const layer_part index = part.sub(ids.n);
    auto open = space_->open(set_);
    const pl::scratch_view scratch = open.template device<unsigned char>(scratch_elements_);
    const exchange_plan p(*this, counts);
    compute held(*this, p);
    const pl::drain<Backend> before_they_go(*backend_, s);
    run_experts(s, p, held, index, rows, weights, scratch);
    backend_->launch(s, pl::rows{rows.rows}, combine{}, pl::in(index.position), pl::in(gates),
                     pl::in(matrix(held.sent, p.routes, hidden_)), pl::inout(out));
  }

  // As forward, behind other layers: groups the routes again; nothing reaches the host.
  void forward_again(stream& s, const routing_counts& counts, pl::view<std::int32_t> ids,
                     const layer_part& part, pl::scratch_view layer_scratch, pl::tile<T> rows,
                     pl::tile<float> gates, const expert_tensors<T>& weights, pl::tile<T> out) {
    group_routes(s, ids, part, layer_scratch);
    forward(s, counts, ids, part, rows, gates, weights, out);
  }

  // From dout (n, hidden) to drows (n, hidden), written, dgates (n, top_k), written, and the weights'
  // gradients, added. Groups the routes again; nothing reaches the host.
  void backward(stream& s, const routing_counts& counts, pl::view<std::int32_t> ids, const layer_part& part,
                pl::scratch_view layer_scratch, pl::tile<T> rows, pl::tile<float> gates,
                const expert_tensors<T>& weights, pl::tile<T> dout, pl::tile<T> drows, pl::tile<float> dgates,
                const expert_tensors<float>& gradients) {
    Backend& be = *backend_;
    group_routes(s, ids, part, layer_scratch);
    const layer_part index = part.sub(ids.n);
    auto open = space_->open(set_);
    const pl::scratch_view scratch = open.template device<unsigned char>(scratch_elements_);
    const exchange_plan p(*this, counts);
    compute held(*this, p);
    rows_buffer dresult(be.device(), p.received * hidden_, pl::tag::dispatch);
    rows_buffer dhidden(be.device(), p.received * intermediate_, pl::tag::dispatch);
    const pl::drain<Backend> before_they_go(be, s);
    run_experts(s, p, held, index, rows, weights, scratch);
    const auto sent = matrix(held.sent, p.routes, hidden_);
    be.launch(s, pl::rows{rows.rows}, gate_gradients{}, pl::in(index.position), pl::in(dout), pl::in(sent),
              pl::out(dgates));
    be.launch(s, pl::rows{p.routes}, gather_scaled_rows{static_cast<int>(top_k_)}, pl::in(index.order),
              pl::in(gates), pl::in(dout), pl::out(sent));
    send_rows(s, p, held.sent, dresult);
    product(s, p, pl::transpose::no, dresult, hidden_, weights.down, 0.0F, dhidden, intermediate_, scratch);
    weight_gradient(s, p, dresult, hidden_, held.hidden, intermediate_, gradients.down, scratch);
    be.launch(s, pl::elements{p.received * intermediate_}, swiglu_backward{}, pl::inout(held.gate.all()),
              pl::inout(held.up.all()), pl::in(dhidden.all()));
    weight_gradient(s, p, held.gate, intermediate_, held.rows, hidden_, gradients.gate, scratch);
    weight_gradient(s, p, held.up, intermediate_, held.rows, hidden_, gradients.up, scratch);
    product(s, p, pl::transpose::no, held.gate, intermediate_, weights.gate, 0.0F, dresult, hidden_, scratch);
    product(s, p, pl::transpose::no, held.up, intermediate_, weights.up, 1.0F, dresult, hidden_, scratch);
    return_rows(s, p, dresult, held.sent);
    be.launch(s, pl::rows{rows.rows}, combine_gradients{}, pl::in(index.position), top_k_, pl::in(sent),
              pl::out(drows));
  }

 private:
  void group_routes(stream& s, pl::view<std::int32_t> ids, const layer_part& part, pl::scratch_view scratch) {
    const layer_part index = part.sub(ids.n);
    backend_->group_by_key(s, pl::in(ids), pl::out(index.order), pl::out(index.offsets), scratch);
    backend_->launch(s, pl::elements{ids.n}, invert{}, pl::in(index.order), pl::out(index.position));
  }
  static index_t scratch_elements(const model_config& c, const rank_grid& g, const batch_limits& b) {
    const index_t most_rows =
        b.tokens() * c.top_k * g.expert_parallel; // every route of the group on one rank
    return static_cast<index_t>(scratch_need<Backend>()
                                    .template linear<T>(most_rows, c.hidden, c.intermediate)
                                    .template linear<T>(most_rows, c.intermediate, c.hidden)
                                    .bytes());
  }
  static std::size_t at(index_t i) { return static_cast<std::size_t>(i); }

  // Offsets of one exchange, from the counts that every rank of the group has.
  struct exchange_plan {
    index_t routes = 0, received = 0;
    std::vector<index_t> send_counts;    // (experts): own routes of each expert
    std::vector<index_t> receive_counts; // (local experts, sources): rows that arrive, in their order
    std::vector<index_t> expert_rows;    // (local experts)

    exchange_plan(const uncapped_dispatch& d, const routing_counts& counts) {
      const int size = d.group_->size(), rank = d.group_->rank();
      for (index_t e = 0; e < d.experts_; ++e) send_counts.push_back(counts[at(rank * d.experts_ + e)]);
      for (const index_t n : send_counts) routes += n;
      for (index_t e = 0; e < d.local_; ++e) {
        index_t rows = 0;
        for (int source = 0; source < size; ++source) {
          receive_counts.push_back(counts[at(source * d.experts_ + rank * d.local_ + e)]);
          rows += receive_counts.back();
        }
        expert_rows.push_back(rows);
        received += rows;
      }
    }
  };

  // What the experts' forward leaves for their backward.
  struct compute {
    rows_buffer sent, rows, gate, up, hidden,
        result; // (routes, hidden), (received, hidden), (received, intermediate) x 3
    compute(const uncapped_dispatch& d, const exchange_plan& p)
        : sent(make(d, p.routes * d.hidden_)), rows(make(d, p.received * d.hidden_)),
          gate(make(d, p.received * d.intermediate_)), up(make(d, p.received * d.intermediate_)),
          hidden(make(d, p.received * d.intermediate_)), result(make(d, p.received * d.hidden_)) {}
    static rows_buffer make(const uncapped_dispatch& d, index_t n) {
      return rows_buffer(d.backend_->device(), n, pl::tag::dispatch);
    }
  };

  static pl::tile<T> matrix(const rows_buffer& b, index_t rows, index_t cols) { return b.matrix(rows, cols); }

  // Sends the rows, runs the experts, and brings their results back into `held.sent`.
  void run_experts(stream& s, const exchange_plan& p, compute& held, const layer_part& index,
                   pl::tile<T> rows, const expert_tensors<T>& weights, pl::scratch_view scratch) {
    backend_->launch(s, pl::rows{p.routes}, gather_rows{static_cast<int>(top_k_)}, pl::in(index.order),
                     pl::in(rows), pl::out(matrix(held.sent, p.routes, hidden_)));
    send_rows(s, p, held.sent, held.rows);
    product(s, p, pl::transpose::yes, held.rows, hidden_, weights.gate, 0.0F, held.gate, intermediate_,
            scratch);
    product(s, p, pl::transpose::yes, held.rows, hidden_, weights.up, 0.0F, held.up, intermediate_, scratch);
    backend_->launch(s, pl::elements{p.received * intermediate_}, swiglu{}, pl::in(held.gate.all()),
                     pl::in(held.up.all()), pl::out(held.hidden.all()));
    product(s, p, pl::transpose::yes, held.hidden, intermediate_, weights.down, 0.0F, held.result, hidden_,
            scratch);
    return_rows(s, p, held.result, held.sent);
  }

  // Rows grouped by expert on this rank to the experts' ranks, and the same way back.
  void send_rows(stream& s, const exchange_plan& p, const rows_buffer& from, const rows_buffer& to) {
    move(s, p, from, to, true);
  }
  void return_rows(stream& s, const exchange_plan& p, const rows_buffer& from, const rows_buffer& to) {
    move(s, p, from, to, false);
  }
  void move(stream& s, const exchange_plan& p, const rows_buffer& from, const rows_buffer& to, bool there) {
    sends_.clear();
    receives_.clear();
    const rows_buffer& own = there ? from : to;
    const rows_buffer& experts = there ? to : from;
    index_t first = 0;
    for (index_t e = 0; e < experts_; ++e) {
      const auto block = own.all().sub(first * hidden_, p.send_counts[at(e)] * hidden_);
      const int peer = static_cast<int>(e / local_);
      if (there)
        sends_.push_back(pl::send_to(peer, block));
      else
        receives_.push_back(pl::receive_from(peer, block));
      first += p.send_counts[at(e)];
    }
    first = 0;
    for (std::size_t i = 0; i < p.receive_counts.size(); ++i) {
      const auto block = experts.all().sub(first * hidden_, p.receive_counts[i] * hidden_);
      const int peer = static_cast<int>(i) % group_->size();
      if (there)
        receives_.push_back(pl::receive_from(peer, block));
      else
        sends_.push_back(pl::send_to(peer, block));
      first += p.receive_counts[i];
    }
    group_->exchange(s, sends_, receives_, there ? "rows to experts" : "rows from experts");
  }

  // to (rows of each expert, out) = from (..., in) op(weight) + beta to, expert by expert.
  void product(stream& s, const exchange_plan& p, pl::transpose op, const rows_buffer& from, index_t in,
               std::span<const pl::tile<T>> weight, float beta, const rows_buffer& to, index_t out,
               pl::scratch_view scratch) {
    std::vector<pl::gemm_group<T, T, T>> groups;
    index_t first = 0;
    for (std::size_t e = 0; e < weight.size(); first += p.expert_rows[e], ++e) {
      const index_t n = p.expert_rows[e];
      if (n == 0) continue;
      groups.push_back({matrix(from, p.received, in).row_block(first, n), weight[e],
                        matrix(to, p.received, out).row_block(first, n)});
    }
    backend_->grouped_gemm(s, pl::transpose::no, op, 1.0F, beta,
                           std::span<const pl::gemm_group<T, T, T>>(groups), scratch);
  }
  // gradient (left, right) += a^T b over each expert's rows; a (rows, left), b (rows, right).
  void weight_gradient(stream& s, const exchange_plan& p, const rows_buffer& a, index_t left,
                       const rows_buffer& b, index_t right, std::span<const pl::tile<float>> gradient,
                       pl::scratch_view scratch) {
    std::vector<pl::gemm_group<T, T, float>> groups;
    index_t first = 0;
    for (std::size_t e = 0; e < gradient.size(); first += p.expert_rows[e], ++e) {
      const index_t n = p.expert_rows[e];
      if (n == 0) continue;
      groups.push_back({matrix(a, p.received, left).row_block(first, n),
                        matrix(b, p.received, right).row_block(first, n), gradient[e]});
    }
    backend_->grouped_gemm(s, pl::transpose::yes, pl::transpose::no, 1.0F, 1.0F,
                           std::span<const pl::gemm_group<T, T, float>>(groups), scratch);
  }

  Backend* backend_;
  Communicator* group_;
  pl::workspace<Backend>* space_;
  pl::working_set set_;
  index_t scratch_elements_;
  index_t experts_, local_, hidden_, intermediate_, top_k_;
  pl::pinned_buffer<std::int64_t, Backend> pinned_;
  std::vector<std::int64_t> host_offsets_, own_counts_;
  std::vector<pl::send_op> sends_;
  std::vector<pl::receive_op> receives_;
};

} // namespace moe
