// SPDX-License-Identifier: Apache-2.0
//
// The cross-entropy without data, in virtual time on the H200 preset: eight ranks of a node, a vocabulary of
// 201,088, hidden 2,880, bf16, with the scratch of CUDA. What it takes beside inputs, shards, their gradients
// and 16 bytes a token, whatever the tokens; its time against that of its own products, replayed alone with
// what each operation costs at least; and what of the transfers shows. Nothing here is measured: the same
// program gives the same figures on any machine.
//
// In the preset a kernel has the device to itself also while it starts and ends, and then a second tile in
// flight gains nothing. A GPU is mostly idle in that time: the rows that say "gaps used" leave it to the
// other stream.
#include "table.hpp"

#include <plateau/close_step.hpp>
#include <plateau/cuda/scratch_model.hpp>
#include <plateau/dry_run.hpp>
#include <plateau/ring/linear_cross_entropy.hpp>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace {

namespace pl = plateau;
using pl::index_t, pl::transpose;
using backend_type = pl::dry_run<pl::cuda_scratch>;
using loss = pl::linear_cross_entropy<backend_type, pl::dry_communicator, pl::bfloat16>;
template <class T> using buffer = pl::device_buffer<T, backend_type>;

constexpr int ranks = 8;
constexpr index_t hidden = 2880, vocabulary = 201'088;

bench::spread one(double x) { return {x, x, x, x, 0}; }

pl::cross_entropy_shape shape_of(index_t tokens, index_t columns, int tiles) {
  pl::cross_entropy_shape s;
  s.tokens = tokens, s.hidden = hidden, s.vocabulary = vocabulary;
  s.tile = {1024, columns};
  s.hop_rows = 1024;
  s.rotate = pl::rotation::activations;
  s.tiles_in_flight = tiles;
  return s;
}
double megabytes(const pl::cross_entropy_shape& s) {
  return static_cast<double>(loss::working_set(s, ranks).device_bytes()) / 1e6;
}

// One step, or its products alone, of rank 3: seconds, seconds of its products at the machine's rate, and the
// share of exposed transfers.
struct predicted {
  double seconds = 0, at_full_rate = 0, exposed = 0;
};
class step {
 public:
  step(const pl::cross_entropy_shape& s, bool products_alone) {
    pl::dry_options options;
    options.check_order = false;
    ran_.emplace(pl::run_dry(
        ranks, [&](pl::dry_communicator& comm) { program(comm, s, products_alone); }, options));
    if (ran_->cause) ran_->cause->raise();
  }
  predicted on(const pl::hardware& machine) const {
    const pl::dry::timeline t = pl::predict(*ran_, machine);
    if (!t.complete) throw pl::config_error(t.trouble);
    const auto& marks = t.ranks[3].marks;
    const auto d = marks[1].so_far - marks[0].so_far;
    return {d.seconds, d.flops / machine.half_flops, d.exposed_transfer / d.seconds};
  }

 private:
  static void program(pl::dry_communicator& comm, const pl::cross_entropy_shape& s, bool products_alone) {
    backend_type be(comm);
    auto stream = be.make_stream("main");
    const index_t n = s.tokens, v = vocabulary / ranks;
    buffer<pl::bfloat16> x(be.device(), n * hidden, pl::tag::activations),
        w(be.device(), v * hidden, pl::tag::parameters), dx(be.device(), n * hidden, pl::tag::activations),
        d(be.device(), s.tile.tokens * s.tile.vocabulary, pl::tag::other);
    buffer<float> dw(be.device(), v * hidden, pl::tag::gradients), up(be.device(), 1, pl::tag::other),
        value(be.device(), 1, pl::tag::other), z(be.device(), d.size(), pl::tag::other),
        sums(be.device(), s.tile.tokens * hidden, pl::tag::other);
    buffer<std::int32_t> targets(be.device(), n, pl::tag::other);
    buffer<pl::token_state> states(be.device(), n, pl::tag::other);
    buffer<double> both(be.device(), 2, pl::tag::other);
    pl::workspace<backend_type> space(be, loss::working_set(s, ranks));
    loss op(be, comm, s, space);
    pl::cross_entropy_saved keep{states.all(), both.all()};
    const loss::inputs in{x.matrix(n, hidden), w.matrix(v, hidden), targets.all()};
    be.wait(be.record(stream));
    be.recorder().mark("begin");
    if (products_alone) {
      buffer<unsigned char> scratch(be.device(), index_t{33} << 20, pl::tag::other);
      for (int pass = 0; pass < 2; ++pass)
        for (int hop = 0; hop < ranks; ++hop)
          for (index_t i = 0; i < n; i += s.tile.tokens)
            for (index_t j = 0; j < v; j += s.tile.vocabulary) {
              const index_t rows = std::min(s.tile.tokens, n - i),
                            columns = std::min(s.tile.vocabulary, v - j);
              const auto tokens = pl::in(x.matrix(n, hidden).row_block(i, rows)),
                         shard = pl::in(w.matrix(v, hidden).row_block(j, columns));
              const auto gradients = pl::in(pl::as_matrix(d.all(), rows, columns));
              be.gemm(stream, transpose::no, transpose::yes, 1.0F, tokens, shard, 0.0F,
                      pl::out(pl::as_matrix(z.all(), rows, columns)), scratch.all());
              if (pass == 0) continue;
              be.gemm(stream, transpose::no, transpose::no, 1.0F, gradients, shard, 1.0F,
                      pl::inout(pl::as_matrix(sums.all(), rows, hidden)), scratch.all());
              be.gemm(stream, transpose::yes, transpose::no, 1.0F, gradients, tokens, 1.0F,
                      pl::inout(dw.matrix(v, hidden).row_block(j, columns)), scratch.all());
            }
    } else {
      op.forward(stream, in, keep, {value.all()});
      op.backward(stream, in, keep, up.all(), {dx.matrix(n, hidden), {}, dw.matrix(v, hidden)});
    }
    be.wait(be.record(stream));
    be.recorder().mark("end");
    pl::close_step(be, comm, stream);
  }

  std::optional<pl::dry_ranks> ran_;
};

} // namespace

int main(int, char** argv) {
  bench::table table(argv);
  const pl::hardware preset = pl::h200();
  pl::hardware gaps = preset;
  gaps.kernel_gap_seconds = gaps.operation_seconds;
  const index_t chosen = 2048;
  for (const pl::memory_line& line : loss::working_set(shape_of(1 << 14, chosen, 2), ranks))
    if (line.bytes > 100'000 && line.kind == pl::memory_kind::device)
      table.row(fmt::format("working set, MB: {}", line.what), one(static_cast<double>(line.bytes) / 1e6));
  for (const index_t tokens : {1 << 14, 1 << 17, 1 << 20})
    table.row(fmt::format("MB beyond inputs, shards, gradients, states; {} tokens", tokens),
              one(megabytes(shape_of(tokens, chosen, 2))), bench::goal::at_most(150));
  for (const index_t columns : {1024, 2048, 2514, 4096}) {
    const step products(shape_of(1 << 14, columns, 1), true);
    for (const int tiles : {1, 2}) {
      const pl::cross_entropy_shape s = shape_of(1 << 14, columns, tiles);
      const step whole(s, false);
      for (const auto& [name, machine] : {std::pair{"preset", preset}, std::pair{"gaps used", gaps}}) {
        const predicted t = whole.on(machine), alone = products.on(machine);
        const bool promised = tiles == 2 && columns == chosen && machine.kernel_gap_seconds > 0;
        table.row(
            fmt::format("tile 1,024 x {}, {} in flight, {}: time / its products'", columns, tiles, name),
            one(t.seconds / alone.seconds), promised ? bench::goal::at_most(1.03) : bench::goal{});
        table.row("  time / its products at the machine's rate", one(t.seconds / t.at_full_rate));
        table.row("  ms of forward and backward", one(t.seconds * 1e3));
        table.row("  exposed transfers, % of the time", one(100 * t.exposed), bench::goal::at_most(2));
      }
      table.row("  MB", one(megabytes(s)), bench::goal::at_most(150));
    }
  }
  const step longer(shape_of(1 << 17, chosen, 2), false);
  table.row("131,072 tokens, gaps used: time / products at machine's rate",
            one(longer.on(gaps).seconds / longer.on(gaps).at_full_rate));
}
