// SPDX-License-Identifier: Apache-2.0
//
// The fused projection and cross-entropy on the host, fp32, against its own matrix products replayed alone:
// four at the tile it works with where gradients are recomputed, three where they are made in one pass, and
// on two ranks that are threads the same products on as many threads at the same time. What it takes beside
// inputs, gradients and states stands below each. With the built-in products and with the BLAS.
//
//   ring_bench [small|large|ranks [pairs]]: one of the shapes, or the two ranks, instead of all
#include "table.hpp"

#include <plateau/host/backend.hpp>
#include <plateau/ring/linear_cross_entropy.hpp>
#include <plateau/run_ranks.hpp>
#include <plateau/workspace.hpp>

#if PLATEAU_BENCH_HAS_BLAS
#include <plateau/blas/blas_gemm.hpp>
#endif

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace {

namespace pl = plateau;
using pl::index_t, pl::transpose;
using communicator_type = pl::thread_communicator;

constexpr double mebibyte = 1024.0 * 1024.0;
constexpr index_t tile_tokens = 1024, tile_columns = 2048; // the best of those tried

bench::spread one(double x) { return {x, x, x, x, 0}; }

// What a rank has of a head: tokens, its part of the vocabulary, and room for all results.
template <class Gemm> class head {
 public:
  using backend_type = pl::basic_host_backend<Gemm>;
  using loss = pl::linear_cross_entropy<backend_type, communicator_type, float>;

  head(communicator_type& comm, index_t tokens, index_t hidden, index_t vocabulary, index_t strip_rows)
      : n_(tokens / comm.size()), h_(hidden), v_(vocabulary / comm.size()), ranks_(comm.size()),
        x_(at(n_ * h_)), weight_(at(v_ * h_)), dx_(at(n_ * h_)), dweight_(at(v_ * h_)), targets_(at(n_)),
        states_(at(n_)), stream_(backend_.make_stream("main")) {
    std::uint64_t draw = 88172645463325252u + static_cast<std::uint64_t>(comm.rank());
    const auto next = [&] {
      draw ^= draw << 13, draw ^= draw >> 7, draw ^= draw << 17;
      return draw;
    };
    const auto value = [&](float size) {
      return size * (static_cast<float>(next() % 2001) / 1000.0F - 1.0F);
    };
    for (index_t i = 0; i < n_ * h_; ++i) x_.data()[i] = value(1);
    for (index_t i = 0; i < v_ * h_; ++i) weight_.data()[i] = value(0.1F);
    for (index_t i = 0; i < n_; ++i)
      targets_.data()[i] = static_cast<std::int32_t>(next() % static_cast<std::uint64_t>(vocabulary));
    pl::cross_entropy_shape s;
    s.tokens = n_, s.hidden = h_, s.vocabulary = vocabulary;
    s.tile = {tile_tokens, tile_columns};
    s.hop_rows = std::min<index_t>(n_, 2048);
    s.rotate = pl::rotation::activations;
    s.one_pass = strip_rows != 0;
    s.strip_rows = std::max<index_t>(1, strip_rows);
    shape_ = s;
    set_.emplace(loss::working_set(s, ranks_));
    space_.emplace(backend_, *set_);
    op_.emplace(backend_, comm, s, *space_);
    logits_.emplace(at(tile_tokens * tile_columns));
    sums_.emplace(at(std::min(n_, tile_tokens) * h_), 0.0F);
    std::size_t most = 1;
    for (const auto& [a, b, m, n, k] :
         {std::tuple{transpose::no, transpose::yes, tile_tokens, tile_columns, h_},
          std::tuple{transpose::no, transpose::no, tile_tokens, h_, tile_columns},
          std::tuple{transpose::yes, transpose::no, tile_columns, h_, tile_tokens}})
      most = std::max(most, backend_type::template gemm_scratch_bytes<float, float, float>(a, b, m, n, k));
    scratch_.emplace(most);
  }

  void step() {
    typename loss::inputs in{x(), weight(), {targets_.data(), n_}};
    pl::cross_entropy_saved& keep = keep_;
    keep.rows = {states_.data(), n_};
    keep.sums = {sum_, 2};
    typename loss::gradients to{{dx_.data(), n_, h_, h_}, {}, {dweight_.data(), v_, h_, h_}, {}};
    if (shape_.one_pass) keep.dx = to.dx, keep.dweight = to.dweight;
    op_->forward(stream_, in, keep, {{&loss_, 1}});
    op_->backward(stream_, in, keep, {&upstream_, 1}, to);
    wait();
  }
  // The products of a step, and nothing between them: of the logits `forwards` times.
  void products(int forwards) {
    const pl::tile<float> z = tile(*logits_, tile_tokens, tile_columns);
    const pl::scratch_view space{scratch_->data(), static_cast<index_t>(scratch_->size())};
    for (int pass = 0; pass < forwards; ++pass)
      for (int hop = 0; hop < ranks_; ++hop)
        for (index_t i = 0; i < n_; i += tile_tokens)
          for (index_t j = 0; j < v_; j += tile_columns) {
            const index_t m = std::min(tile_tokens, n_ - i), n = std::min(tile_columns, v_ - j);
            const pl::tile<float> d{z.p, m, n, n}, dx = tile(*sums_, m, h_),
                                                   dw{dweight_.data() + j * h_, n, h_, h_};
            const auto rows = pl::in(x().row_block(i, m)), columns = pl::in(weight().row_block(j, n));
            backend_.gemm(stream_, transpose::no, transpose::yes, 1.0F, rows, columns, 0.0F, pl::out(d),
                          space);
            if (pass + 1 != forwards) continue;
            // Not into dx, where a step's results are; the sums are as long as a tile.
            backend_.gemm(stream_, transpose::no, transpose::no, 1.0F, pl::in(d), columns,
                          j == 0 ? 0.0F : 1.0F, pl::inout(dx), space);
            backend_.gemm(stream_, transpose::yes, transpose::no, 1.0F, pl::in(d), rows, 0.0F, pl::out(dw),
                          space);
          }
    wait();
  }
  double mebibytes() const { return static_cast<double>(set_->device_bytes()) / mebibyte; }
  float value() const { return loss_; }

 private:
  static std::size_t at(index_t n) { return static_cast<std::size_t>(n); }
  static pl::tile<float> tile(const bench::touched_buffer<float>& b, index_t rows, index_t cols) {
    return {b.data(), rows, cols, cols};
  }
  pl::tile<const float> x() const { return {x_.data(), n_, h_, h_}; }
  pl::tile<const float> weight() const { return {weight_.data(), v_, h_, h_}; }
  void wait() { backend_.wait(backend_.record(stream_)); }

  index_t n_, h_, v_;
  int ranks_;
  backend_type backend_;
  bench::touched_buffer<float> x_, weight_, dx_, dweight_;
  bench::touched_buffer<std::int32_t> targets_;
  bench::touched_buffer<pl::token_state> states_;
  double sum_[2] = {};
  float loss_ = 0, upstream_ = 1;
  pl::cross_entropy_saved keep_;
  pl::cross_entropy_shape shape_;
  std::optional<bench::touched_buffer<float>> logits_, sums_;
  std::optional<bench::touched_buffer<unsigned char>> scratch_;
  std::optional<pl::working_set> set_;
  std::optional<pl::workspace<backend_type>> space_;
  typename backend_type::stream stream_;
  std::optional<loss> op_;
};

struct problem {
  index_t tokens, hidden, vocabulary, strip_rows;
  int repeats;

  std::string text() const { return fmt::format("T {}, H {}, V {}", tokens, hidden, vocabulary); }
};
constexpr problem small_problem{2048, 512, 65'536, 512, 9}, large_problem{2048, 1024, 131'072, 248, 3};

template <class Gemm> void alone(bench::table& table, problem p, int pairs) {
  if (pairs != 0) p.repeats = pairs;
  pl::run_ranks(1, [&](communicator_type& comm) {
    for (const bool one_pass : {false, true}) {
      head<Gemm> h(comm, p.tokens, p.hidden, p.vocabulary, one_pass ? p.strip_rows : 0);
      const bench::pairs t = bench::in_turns(
          p.repeats, [&] { h.step(); }, [&] { h.products(one_pass ? 1 : 2); });
      table.row(fmt::format("{} / {} products, {}, {}", one_pass ? "one pass" : "recomputed",
                            one_pass ? "three" : "four", Gemm::name, p.text()),
                t.time(), bench::goal::at_most(one_pass ? 1.10 : 1.05));
      table.row("  seconds", t.ours.in(1));
      table.row("  MiB beyond inputs, gradients and states", one(h.mebibytes()),
                bench::goal::at_most(one_pass ? 130 : 10));
      if (!(h.value() > 0)) fmt::print("the loss is {}\n", h.value());
    }
  });
}

template <class Gemm> void two_ranks(bench::table& table, problem p, int pairs) {
  if (pairs != 0) p.repeats = pairs;
  std::barrier<> barrier(2);
  pl::run_ranks(2, [&](communicator_type& comm) {
    head<Gemm> h(comm, p.tokens, p.hidden, p.vocabulary, 0);
    const auto together = [&](auto f) {
      return [&barrier, f] {
        barrier.arrive_and_wait();
        f();
        barrier.arrive_and_wait();
      };
    };
    const bench::pairs t =
        bench::in_turns(p.repeats, together([&] { h.step(); }), together([&] { h.products(2); }));
    if (comm.rank() != 0) return;
    table.row(fmt::format("two ranks / as many threads' products, {}, {}", Gemm::name, p.text()), t.time(),
              bench::goal::at_most(1.10));
    table.row("  seconds", t.ours.in(1));
    table.row("  MiB of a rank beyond inputs, gradients and states", one(h.mebibytes()));
  });
}

} // namespace

int main(int argc, char** argv) {
  bench::table table(argv);
  const std::string_view only = argc > 1 ? argv[1] : "";
  const int pairs = argc > 2 ? std::atoi(argv[2]) : 0;
  const auto each = [&](auto run) {
#if PLATEAU_BENCH_HAS_BLAS
    run(pl::blas_gemm{});
#endif
    run(pl::block_gemm{});
  };
  if (only.empty() || only == "small")
    each([&](auto gemm) { alone<decltype(gemm)>(table, small_problem, pairs); });
  if (only.empty() || only == "ranks")
    each([&](auto gemm) { two_ranks<decltype(gemm)>(table, small_problem, pairs); });
  if (only.empty() || only == "large")
    each([&](auto gemm) { alone<decltype(gemm)>(table, large_problem, pairs); });
}
