// SPDX-License-Identifier: Apache-2.0
//
// How sure a model is, without its logits: the entropy of each token's distribution over a vocabulary that is
// split over ranks, and the log of its sum of exponentials. For sampling, distillation or watching a training
// run, where there are no targets. A small instance of ring_reduce: activations go around the ring, each with
// a state of 12 bytes; of the logits a tile exists.
//
//   plateau::linear_entropy<host_backend, thread_communicator, bfloat16> entropy(
//       backend, comm, limits, space);
//   entropy.forward(stream, {x, shard}, {.entropies = one_a_token});
//
// Forward only. The bytes that it takes do not depend on the number of tokens, of any rank.
#pragma once

#include <plateau/access.hpp>
#include <plateau/checks.hpp>
#include <plateau/config.hpp>
#include <plateau/digest.hpp>
#include <plateau/error.hpp>
#include <plateau/gemm.hpp>
#include <plateau/kernels.hpp>
#include <plateau/ring/entropy_kernels.hpp>
#include <plateau/ring/entropy_state.hpp>
#include <plateau/ring/ring_reduce.hpp>
#include <plateau/scalar.hpp>
#include <plateau/vote.hpp>
#include <plateau/workspace.hpp>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace plateau::inline v0 {

struct entropy_shape {
  index_t tokens = 0; // of a rank, at most
  index_t hidden = 0;
  index_t vocabulary = 0;     // of all ranks together
  index_t tile_tokens = 1024; // of the logits that exist at a time
  index_t tile_vocabulary = 2048;
  index_t hop_rows = 1024; // tokens of a sub-block
  float logit_scale = 1;   // 1 / temperature

  // Throws config_error with what cannot work.
  void check() const {
    const auto at_least = [](const char* what, index_t n, index_t least) {
      if (n < least)
        throw config_error("plateau: linear_entropy: " + std::string(what) + " must be at least " +
                           std::to_string(least) + ", got " + std::to_string(n));
    };
    at_least("tokens", tokens, 0);
    at_least("hidden", hidden, 1);
    at_least("vocabulary", vocabulary, 1);
    at_least("tile_tokens", tile_tokens, 1);
    at_least("tile_vocabulary", tile_vocabulary, 1);
    at_least("hop_rows", hop_rows, 1);
    const index_t rows = std::min({tile_tokens, hop_rows, std::max<index_t>(1, tokens)}),
                  cols = std::min(tile_vocabulary, vocabulary);
    if (std::max({tokens, hidden, vocabulary}) > detail::most_extent ||
        detail::too_many_elements(rows, cols) || detail::too_many_elements(std::max(rows, cols), hidden))
      throw config_error("plateau: linear_entropy: " + std::to_string(tokens) + " tokens of " +
                         std::to_string(hidden) + ", a vocabulary of " + std::to_string(vocabulary) +
                         " and tiles of " + std::to_string(rows) + " x " + std::to_string(cols) +
                         " overflow: make them smaller");
    if (!is_finite(logit_scale))
      throw config_error("plateau: linear_entropy: logit_scale must be finite, got " +
                         std::to_string(logit_scale));
  }
  digest digest_of(scalar_kind type) const {
    digest d;
    d.add("linear_entropy").add(type).add(tokens).add(hidden).add(vocabulary).add(tile_tokens);
    return d.add(tile_vocabulary).add(hop_rows).add(logit_scale);
  }
  std::string text(scalar_kind type) const {
    return std::string(scalar_name(type)) + ", tokens " + std::to_string(tokens) + ", hidden " +
           std::to_string(hidden) + ", vocabulary " + std::to_string(vocabulary) + ", tile " +
           std::to_string(tile_tokens) + 'x' + std::to_string(tile_vocabulary) + ", hop_rows " +
           std::to_string(hop_rows) + ", logit_scale " + std::to_string(logit_scale);
  }
};

// Device memory; rows may be further apart than they are long. A rank may come with no tokens or no shard.
template <class T> struct entropy_inputs {
  tile<const T> x;                           // (tokens, hidden)
  tile<const T> weight;                      // (rows of this rank's shard, hidden)
  std::span<const index_t> tokens_of_rank{}; // by rank, if the caller knows: saves forward a host exchange
};
// Empty where nobody wants it. NaN where a row has a NaN or +infinity, or nothing but -infinity.
struct entropy_outputs {
  view<float> entropies{}; // (tokens), in nats
  view<float> lses{};      // (tokens): log of the sum of exponentials
};

// Used by the rank's host thread; calls only enqueue. Collective: all ranks of the communicator make the same
// calls. The backend, the communicator and the workspace must outlive it.
template <class Backend, class Communicator, class T> class linear_entropy {
  static_assert(check_backend<Backend>());
  static_assert(check_communicator<Communicator, Backend>());
  using stream = typename Backend::stream;

 public:
  using shape = entropy_shape;
  using inputs = entropy_inputs<T>;
  using outputs = entropy_outputs;

  // All that it takes from a workspace, exactly. Throws config_error for a shape that cannot work.
  static plateau::working_set working_set(const shape& limits, int ranks) {
    limits.check();
    plateau::working_set set(tag::vocabulary);
    layout(limits, ranks).add_to(set, ranks);
    set.template device<float>("tile of logits", tile_elements(limits));
    set.template device<unsigned char>("scratch", scratch_bytes(limits));
    return set;
  }

  // Collective; two host exchanges. shard_rows: this rank's part of the vocabulary, which follows that of the
  // rank before; -1: [V r / P, V (r + 1) / P). Throws on all ranks when one of them cannot, or has another
  // shape, and when the shards are not the vocabulary.
  linear_entropy(Backend& backend, Communicator& comm, const shape& limits, workspace<Backend>& space,
                 index_t shard_rows = -1)
      : linear_entropy(backend, comm, limits, space, agreed(backend, comm, limits, space)) {
    const index_t even = even_shards{limits.vocabulary, comm.size()}.count(comm.rank());
    const std::int64_t mine[] = {shard_rows == -1 ? even : shard_rows};
    comm.host_exchange(mine, tokens_, "linear_entropy shards");
    index_t left = limits.vocabulary;
    for (const index_t n : tokens_) left = n < 0 || n > left ? -1 : left - n;
    shard_rows_ = mine[0];
    if (left == 0) return;
    std::string text = "plateau: linear_entropy: the shards of all ranks must be the vocabulary of " +
                       std::to_string(limits.vocabulary) + " rows, but they have ";
    for (std::size_t r = 0; r < tokens_.size(); ++r)
      text += (r == 0 ? "" : ", ") + std::to_string(tokens_[r]);
    throw config_error(text + ": give each rank its own part, not all of it");
  }
  linear_entropy(const linear_entropy&) = delete;
  linear_entropy& operator=(const linear_entropy&) = delete;

  // Of this rank's tokens over the whole vocabulary, on the stream. Collective; one host exchange, of the
  // numbers of tokens, unless in.tokens_of_rank has them; no host round trip. What does not fit is an error
  // on all ranks (with tokens_of_rank: config_error on this one).
  void forward(stream& s, const inputs& in, const outputs& want) {
    count_tokens(in, want);
    auto open = space_->open(set_);
    const int ranks = comm_->size();
    const ring_layout l = layout(shape_, ranks);
    const ring_buffers buffers = ring_buffers::take(open, l, ranks);
    const view<float> logits = open.template device<float>(tile_elements(shape_));
    const scratch_view scratch = open.template device<unsigned char>(scratch_bytes(shape_));
    rotation_work work{*backend_, shape_, in, want, logits, scratch, ranks == 1};
    const ring_schedule schedule(tokens_, hop_rows(shape_));
    ring_reduce<Backend, Communicator>(*backend_, *comm_, transfer_)
        .run(s, schedule, {shape_.hidden * sizeof(T)}, l.carry, buffers, work, "linear_entropy");
  }

 private:
  // What happens to rows as they go around.
  struct rotation_work {
    Backend& backend;
    const shape& limits;
    const inputs& in;
    const outputs& want;
    view<float> logits; // the memory of a tile
    scratch_view scratch;
    bool alone;

    void load(stream& s, const ring_step& own, const ring_block& payload) {
      if (alone) return; // used where they are
      backend.copy(s, plateau::in(in.x.row_block(own.first, own.rows)),
                   out(payload.as_rows<T>(0, own.rows, limits.hidden)));
    }
    void compute(stream& s, const ring_step& at, const ring_block& payload, const ring_block& carry) {
      const tile<const T> x = alone ? in.x.row_block(at.first, at.rows)
                                    : tile<const T>(payload.as_rows<T>(0, at.rows, limits.hidden));
      const view<entropy_state> states = carry.as<entropy_state>(0, at.rows);
      backend.launch(s, elements{at.rows}, fill<entropy_state>{}, out(states));
      for (index_t i = 0; i < at.rows; i += limits.tile_tokens)
        for (index_t j = 0; j < in.weight.rows; j += limits.tile_vocabulary) {
          const index_t tokens = std::min(limits.tile_tokens, at.rows - i),
                        columns = std::min(limits.tile_vocabulary, in.weight.rows - j);
          const tile<float> z = as_matrix(logits, tokens, columns);
          backend.gemm(s, transpose::no, transpose::yes, limits.logit_scale,
                       plateau::in(x.row_block(i, tokens)), plateau::in(in.weight.row_block(j, columns)),
                       0.0F, out(z), scratch);
          backend.launch(s, rows{tokens}, fold_entropies{}, plateau::in(z), inout(states.sub(i, tokens)));
        }
    }
    void merge(stream& s, index_t n, const ring_block& arrived, const ring_block& carry) {
      backend.launch(s, elements{n}, merge_entropies{}, plateau::in(arrived.as<entropy_state>(0, n)),
                     inout(carry.as<entropy_state>(0, n)));
    }
    void finish(stream& s, const ring_step& own, const ring_block& carry) {
      const auto part = [&](view<float> v) { return v.n == 0 ? v : v.sub(own.first, own.rows); };
      backend.launch(s, elements{own.rows}, write_entropies{},
                     plateau::in(carry.as<entropy_state>(0, own.rows)), out(part(want.entropies)),
                     out(part(want.lses)));
    }
  };

  static index_t hop_rows(const shape& s) { return std::min(s.hop_rows, std::max<index_t>(1, s.tokens)); }
  static index_t tile_rows(const shape& s) { return std::min(s.tile_tokens, hop_rows(s)); }
  static index_t tile_columns(const shape& s) { return std::min(s.tile_vocabulary, s.vocabulary); }
  static index_t tile_elements(const shape& s) { return tile_rows(s) * tile_columns(s); }
  static index_t scratch_bytes(const shape& s) {
    return static_cast<index_t>(Backend::template gemm_scratch_bytes<T, T, float>(
        transpose::no, transpose::yes, tile_rows(s), tile_columns(s), s.hidden));
  }
  static ring_layout layout(const shape& s, int ranks) {
    const std::size_t row = static_cast<std::size_t>(s.hidden) * sizeof(T);
    return {hop_rows(s),
            {"moving activations"},
            {"moving states"},
            {ranks == 1 ? 0 : row},
            {sizeof(entropy_state)}};
  }

  // What can fail on one rank alone, made before the ranks vote.
  struct parts {
    plateau::working_set set;
    stream transfer;
  };
  linear_entropy(Backend& backend, Communicator& comm, const shape& limits, workspace<Backend>& space,
                 parts made)
      : backend_(&backend), comm_(&comm), space_(&space), shape_(limits), set_(made.set),
        tokens_(static_cast<std::size_t>(comm.size())), numbers_(4 * tokens_.size()),
        transfer_(std::move(made.transfer)) {}
  // Once all ranks have the same shape, and what it needs.
  static parts agreed(Backend& backend, Communicator& comm, const shape& limits,
                      const workspace<Backend>& space) {
    std::optional<parts> made;
    std::optional<failure> mine;
    try {
      const plateau::working_set set = working_set(limits, comm.size());
      if (set.device_bytes() > space.device_bytes())
        throw config_error("plateau: linear_entropy: the workspace has " +
                           std::to_string(space.device_bytes()) + " device bytes, but " +
                           std::to_string(set.device_bytes()) +
                           " are needed: reserve working_set(limits, ranks)");
      made.emplace(parts{set, backend.make_stream("ring")});
    } catch (...) {
      mine = failure::current();
    }
    constexpr scalar_kind type = scalar_kind_of<T>;
    vote(comm, limits.digest_of(type), mine ? &*mine : nullptr, "linear_entropy", limits.text(type));
    return std::move(*made);
  }

  void count_tokens(const inputs& in, const outputs& want) {
    const index_t n = in.x.rows;
    std::array<std::int64_t, 4> mine{n, -1, 0, 0}; // then what does not fit, and both values
    const auto must = [&](int what, index_t got, index_t wanted, bool fits) {
      if (mine[1] < 0 && !fits) mine = {n, what, got, wanted};
    };
    must(0, n, shape_.tokens, n <= shape_.tokens);
    must(1, in.x.cols, shape_.hidden, n == 0 || in.x.cols == shape_.hidden);
    must(2, in.weight.rows, shard_rows_, in.weight.rows == shard_rows_);
    must(3, in.weight.cols, shape_.hidden, shard_rows_ == 0 || in.weight.cols == shape_.hidden);
    must(6, in.x.ld, shape_.hidden, n <= 1 || in.x.ld >= shape_.hidden);
    must(7, in.weight.ld, shape_.hidden, shard_rows_ <= 1 || in.weight.ld >= shape_.hidden);
    must(4, want.entropies.n, n, want.entropies.n == 0 || want.entropies.n == n);
    must(5, want.lses.n, n, want.lses.n == 0 || want.lses.n == n);
    const auto text = [](int rank, const std::int64_t* m) {
      constexpr const char* names[] = {"the tokens of x must be at most ",
                                       "the columns of x must be ",
                                       "the rows of the weights, this rank's shard, must be ",
                                       "the columns of the weights must be ",
                                       "the entropies, one for each token or none, must be ",
                                       "the lses, one for each token or none, must be ",
                                       "the elements from row to row of x must be at least ",
                                       "the elements from row to row of the weights must be at least "};
      return "plateau: rank " + std::to_string(rank) + ": linear_entropy: " + names[m[1]] +
             std::to_string(m[3]) + ", got " + std::to_string(m[2]);
    };
    if (in.tokens_of_rank.empty()) {
      const std::uint64_t sequence = comm_->counters().exchanges + comm_->counters().host_exchanges;
      comm_->host_exchange(mine, numbers_, "linear_entropy tokens");
      for (std::size_t r = 0; r < tokens_.size(); ++r) {
        const int who = detail::origin_rank(*comm_, static_cast<int>(r));
        if (numbers_[4 * r + 1] >= 0)
          throw collective_error(who, "linear_entropy", sequence, text(who, &numbers_[4 * r]));
        tokens_[r] = numbers_[4 * r];
      }
      return;
    }
    const int me = detail::origin_rank(*comm_, comm_->rank());
    const auto given = in.tokens_of_rank;
    if (mine[1] >= 0) throw config_error(text(me, mine.data()));
    if (given.size() != tokens_.size() || given[static_cast<std::size_t>(comm_->rank())] != n)
      throw config_error("plateau: rank " + std::to_string(me) + ": linear_entropy: tokens_of_rank has " +
                         std::to_string(given.size()) + " counts for " + std::to_string(tokens_.size()) +
                         " ranks, and must have " + std::to_string(n) + " for this one");
    std::copy(given.begin(), given.end(), tokens_.begin());
  }

  Backend* backend_;
  Communicator* comm_;
  workspace<Backend>* space_;
  shape shape_;
  plateau::working_set set_;
  std::vector<index_t> tokens_;
  std::vector<std::int64_t> numbers_;
  index_t shard_rows_ = 0;
  stream transfer_;
};

} // namespace plateau::inline v0
