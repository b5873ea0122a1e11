// SPDX-License-Identifier: Apache-2.0
//
// The dispatch on four ranks that are threads, 64 MiB of rows of 4 KiB a rank, all ranks beginning and ending
// together. What rounds cost: `run` in eight of them against the same in one, with an expert that copies its
// rows. What its parts reach of the memory: gather and scatter-add, counted in bytes read and written,
// against bare non-temporal copies; rows exchanged round by round against one exchange of all. What hiding
// gains where transfers and experts share the cores: nothing is expected, and nothing may be lost.
#include "table.hpp"

#include <plateau/all_to_all/capped_all_to_all.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/resource.hpp>
#include <plateau/run_ranks.hpp>
#include <plateau/workspace.hpp>

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <cstring>
#endif

namespace {

namespace pl = plateau;
namespace kernels = plateau::detail::dispatch;
using pl::index_t;
using backend_type = pl::host_backend;
using communicator_type = pl::thread_communicator;
using operation = pl::capped_all_to_all<backend_type, communicator_type, float>;
template <class T> using buffer = pl::device_buffer<T, backend_type>;

constexpr int ranks = 4;
constexpr index_t tokens = 16'384, width = 1024, experts = 8; // 64 MiB of each rank
constexpr index_t inner_width = 48; // products of once to twice the transfers on the machines seen so far
constexpr index_t row_bytes = width * index_t{sizeof(float)};

struct copy_rows {
  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t r, pl::tile<const float> from, pl::tile<float> to) const {
    kernels::copy_row(team, from.row(r), to.row(r), from.cols);
  }
};

// Copies its rows; with an inner width, multiplies them by a (inner, width) and that by b (inner, width);
// with -1, does nothing, so that only transfers are left.
struct bench_expert {
  using weight_type = float;
  backend_type* backend;
  index_t inner = 0;
  pl::tile<const float> a{}, b{};

  std::span<const pl::matrix_extent> weight_parts() const { return {}; }
  std::size_t forward_scratch_bytes(index_t most_rows, index_t) const {
    using pl::transpose;
    if (inner <= 0) return 0;
    return hidden_bytes(most_rows) + std::max(backend_type::gemm_scratch_bytes<float, float, float>(
                                                  transpose::no, transpose::yes, most_rows, inner, width),
                                              backend_type::gemm_scratch_bytes<float, float, float>(
                                                  transpose::no, transpose::no, most_rows, width, inner));
  }
  void forward(backend_type::stream& s, const pl::expert_groups<float>& groups,
               const pl::row_parts<float>& rows, pl::tile<float> results, pl::scratch_view scratch) {
    for (index_t g = 0; g < groups.size() && inner >= 0; ++g)
      one_group(s, std::get<0>(rows).row_block(groups.first(g), groups.rows(g)),
                results.row_block(groups.first(g), groups.rows(g)), scratch);
  }
  void one_group(backend_type::stream& s, pl::tile<const float> x, pl::tile<float> y,
                 pl::scratch_view scratch) {
    if (inner == 0) {
      backend->launch(s, pl::rows{x.rows}, copy_rows{}, pl::in(x), pl::out(y));
      return;
    }
    const pl::tile<float> hidden{reinterpret_cast<float*>(scratch.p), x.rows, inner, inner};
    const auto used = static_cast<index_t>(hidden_bytes(x.rows));
    scratch = scratch.sub(used, scratch.n - used);
    backend->gemm(s, pl::transpose::no, pl::transpose::yes, 1.0F, pl::in(x), pl::in(a), 0.0F, pl::out(hidden),
                  scratch);
    backend->gemm(s, pl::transpose::no, pl::transpose::no, 1.0F, pl::in(hidden), pl::in(b), 0.0F, pl::out(y),
                  scratch);
  }
  std::size_t hidden_bytes(index_t n) const {
    return pl::aligned_bytes(static_cast<std::size_t>(n * inner) * sizeof(float));
  }
};

void bare_copy(unsigned char* to, const unsigned char* from, std::size_t bytes) {
#if defined(__x86_64__)
  for (std::size_t i = 0; i < bytes; i += 64) {
    const auto* f = reinterpret_cast<const __m128i*>(from + i);
    auto* t = reinterpret_cast<__m128i*>(to + i);
    for (int k = 0; k < 4; ++k) _mm_stream_si128(t + k, _mm_loadu_si128(f + k));
  }
  _mm_sfence();
#else
  std::memcpy(to, from, bytes);
#endif
}
bench::spread times(bench::spread s, double factor) {
  for (double* x : {&s.median, &s.p10, &s.p90, &s.minimum, &s.processor}) *x *= factor;
  return s;
}

class dispatch_bench {
 public:
  // `only`: one of "rounds", "parts", "hiding"; empty: all.
  dispatch_bench(bench::table& table, std::string_view only) : table_(table), only_(only) {}

  void operator()(communicator_type& comm) {
    rank r(comm);
    if (only_.empty() || only_ == "rounds") rounds(comm, r);
    if (only_.empty() || only_ == "parts") parts(comm, r);
    if (only_.empty() || only_ == "hiding") hiding(comm, r);
  }

 private:
  struct rank {
    explicit rank(communicator_type& c)
        : comm(&c), x(backend.device(), tokens * width, pl::tag::activations),
          y(backend.device(), tokens * width, pl::tag::activations),
          a(backend.device(), inner_width * width, pl::tag::parameters),
          b(backend.device(), inner_width * width, pl::tag::parameters),
          ids(backend.device(), tokens, pl::tag::other), stream(backend.make_stream("main")) {
      for (index_t i = 0; i < x.size(); ++i) x.data()[i] = static_cast<float>(i % 4099) * 1e-4F;
      for (index_t t = 0; t < tokens; ++t)
        ids.data()[t] = static_cast<std::int32_t>((t * 2654435761u >> 7) % experts); // as good as any
      for (index_t i = 0; i < y.size(); ++i) y.data()[i] = 0;
      for (const auto* weights : {&a, &b})
        for (index_t i = 0; i < a.size(); ++i) weights->data()[i] = static_cast<float>(i % 17) * 1e-3F;
    }
    communicator_type* comm;
    backend_type backend;
    buffer<float> x, y, a, b;
    buffer<std::int32_t> ids;
    backend_type::stream stream;
    void wait() { backend.wait(backend.record(stream)); }
  };
  // An operator with its memory and plan; `run` is what is timed.
  struct dispatch {
    dispatch(rank& of, index_t cap, int slots, index_t inner = 0)
        : r(&of), expert{&of.backend, inner, of.a.matrix(inner_width, width),
                         of.b.matrix(inner_width, width)},
          space(of.backend, operation::reserve_for(shape(cap, slots), ranks, expert)),
          exchange(of.backend, *of.comm, shape(cap, slots), space, expert),
          plan(exchange.plan(of.stream, of.ids.all())) {}
    static operation::shape shape(index_t cap, int slots) {
      operation::shape s;
      s.tokens = tokens, s.experts = experts, s.widths = {width};
      s.send_cap_rows = s.receive_cap_rows = cap;
      s.slots = slots;
      s.placement.policy = pl::placement_policy::native; // counts are even enough
      return s;
    }
    void run() {
      exchange.run(r->stream, plan, r->ids.all(), {r->x.matrix(tokens, width)}, {},
                   r->y.matrix(tokens, width), expert, {});
      r->wait();
    }
    rank* r;
    bench_expert expert;
    pl::workspace<backend_type> space;
    operation exchange;
    pl::dispatch_plan plan;
  };

  template <class F> auto together(const F& f) {
    return [this, &f] {
      barrier_.arrive_and_wait();
      f();
      barrier_.arrive_and_wait();
    };
  }
  void row(communicator_type& comm, const std::string& what, const bench::spread& s, bench::goal g = {}) {
    if (comm.rank() == 0) table_.row(what, s, g);
  }

  void rounds(communicator_type& comm, rank& r) {
    // Loads differ by a few rows, so a cap of exactly an eighth would need nine rounds.
    const index_t one = 2 * tokens, eighth = tokens / 8 + 64;
    dispatch whole(r, one, 2);
    for (const int slots : {1, 2, 3}) {
      dispatch parts(r, eighth, slots);
      const bench::pairs p =
          bench::in_turns(15, together([&] { parts.run(); }), together([&] { whole.run(); }));
      row(comm,
          fmt::format("run in {} rounds, {} slots / in {}, copying expert",
                      parts.exchange.statistics().rounds, slots, whole.exchange.statistics().rounds),
          p.speed(), slots == 2 ? bench::goal::at_least(0.9) : bench::goal{});
      row(comm, "  milliseconds", p.ours.in(1e-3));
    }
  }

  void parts(communicator_type& comm, rank& r) {
    buffer<float> slot(r.backend.device(), tokens * width, pl::tag::dispatch);
    buffer<std::int32_t> route(r.backend.device(), tokens, pl::tag::dispatch),
        position(r.backend.device(), tokens, pl::tag::dispatch);
    for (index_t i = 0; i < slot.size(); ++i) slot.data()[i] = 0;
    for (index_t i = 0; i < tokens; ++i) { // as if sorted by expert: tokens come in strides of some
      const index_t token = i * 8 % tokens + i * 8 / tokens;
      route.data()[i] = static_cast<std::int32_t>(token);
      position.data()[token] = static_cast<std::int32_t>(i);
    }
    const auto bare = [&] {
      bare_copy(reinterpret_cast<unsigned char*>(slot.data()),
                reinterpret_cast<const unsigned char*>(r.x.data()),
                static_cast<std::size_t>(tokens * row_bytes));
    };
    const auto gather = [&] {
      r.backend.launch(r.stream, pl::rows{tokens}, kernels::gather_rows{1}, pl::in(route.all()),
                       pl::in(r.x.matrix(tokens, width)), pl::out(slot.matrix(tokens, width)));
      r.wait();
    };
    bench::pairs p = bench::in_turns(31, together(gather), together(bare));
    row(comm, "gather / bare non-temporal copy of as many bytes", p.speed());
    const auto scatter = [&] {
      r.backend.launch(r.stream, pl::rows{tokens}, kernels::scatter_add{1, 0, tokens}, pl::in(route.all()),
                       pl::in(position.all()), pl::in(pl::tile<const float>{}),
                       pl::in(slot.matrix(tokens, width)), pl::inout(r.y.matrix(tokens, width)));
      r.wait();
    };
    p = bench::in_turns(31, together(scatter), together(bare));
    row(comm, "scatter-add / the same (three streams against two)", times(p.speed(), 1.5));

    // Everybody's rows in eight rounds: to each rank a block for each of its experts, as the operator does.
    const auto exchange = [&](index_t parts, index_t blocks) {
      const index_t n = tokens / parts, block = n / (ranks * blocks);
      for (index_t part = 0; part < parts; ++part) {
        std::vector<pl::send_op> sends;
        std::vector<pl::receive_op> receives;
        for (int peer = 0; peer < ranks; ++peer)
          for (index_t b = 0; b < blocks; ++b) {
            const index_t first = (part * n + (peer * blocks + b) * block) * width;
            sends.push_back(pl::send_to(peer, r.x.all().sub(first, block * width)));
            receives.push_back(pl::receive_from(peer, slot.all().sub(first, block * width)));
          }
        comm.exchange(r.stream, sends, receives);
      }
      r.wait();
    };
    p = bench::in_turns(31, together([&] { exchange(8, experts / ranks); }), together(bare));
    row(comm, "exchange in 8 rounds / bare copies", p.speed());
    row(comm, "  milliseconds, beside MPI_Alltoallv's between processes", p.ours.in(1e-3));
    p = bench::in_turns(31, together([&] { exchange(8, experts / ranks); }),
                        together([&] { exchange(1, 1); }));
    row(comm, "exchange in 8 rounds / in one", p.speed());
  }

  void hiding(communicator_type& comm, rank& r) {
    const index_t eighth = tokens / 8 + 64;
    for (const int slots : {1, 2, 3}) {
      dispatch transfers(r, eighth, slots, -1), all(r, eighth, slots, inner_width);
      const buffer<unsigned char> scratch(r.backend.device(),
                                          static_cast<index_t>(all.expert.forward_scratch_bytes(eighth, 1)),
                                          pl::tag::other);
      // The expert alone, in as many calls as it gets, on rows that are just there.
      const auto compute = [&] {
        for (index_t part = 0; part < 8; ++part)
          for (index_t g = 0; g < experts / ranks; ++g) {
            const index_t n = tokens / 8 / (experts / ranks), first = part * tokens / 8 + g * n;
            all.expert.one_group(r.stream, r.x.matrix(tokens, width).row_block(first, n),
                                 r.y.matrix(tokens, width).row_block(first, n), scratch.all());
          }
        r.wait();
      };
      const auto apart = [&] {
        compute();
        barrier_.arrive_and_wait();
        transfers.run();
      };
      const bench::pairs sides = bench::in_turns(9, together(compute), together([&] { transfers.run(); }));
      row(comm, fmt::format("expert alone / transfers alone, {} slots", slots), sides.time());
      const bench::pairs p = bench::in_turns(11, together([&] { all.run(); }), together(apart));
      row(comm, fmt::format("run with that expert in 8 rounds / expert + transfers, {} slots", slots),
          p.time(), slots == 2 ? bench::goal::at_most(1.05) : bench::goal{});
      row(comm, "  milliseconds", p.ours.in(1e-3));
    }
  }

  bench::table& table_;
  std::string_view only_;
  std::barrier<> barrier_{ranks};
};

// Rows of a group by policy, from plans alone: 8 ranks, 64 experts, routes by Zipf's law.
void rows_of_a_group(bench::table& table) {
  using policy = pl::round_policy;
  const int n = 8;
  const index_t all = 64, cap = 4096;
  pl::expert_homes homes{all, n};
  std::vector<int> rank_of;
  std::vector<index_t> rows, caps(n, cap), twice(n, 2 * cap);
  for (index_t e = 0; e < all; ++e) {
    rank_of.push_back(homes.home(e));
    // Popularity by a fixed shuffle of 1 / (i + 1), so that hot experts are anywhere.
    for (int source = 0; source < n; ++source)
      rows.push_back(static_cast<index_t>(60'000.0 / static_cast<double>((e * 37 + source) % all + 1)));
  }
  for (const auto& [name, which] :
       {std::pair{"expert-first", policy::expert_first}, std::pair{"diagonal", policy::diagonal},
        std::pair{"smooth", policy::smooth}})
    for (const bool wide : {false, true}) {
      pl::round_plan plan(n, all);
      plan.begin(rank_of, rows, wide ? twice : caps, caps, which);
      double groups = 0, moved = 0;
      while (plan.next()) {
        index_t last = -1;
        for (const pl::round_block& b : plan.blocks()) {
          groups += b.segment != last ? 1 : 0;
          last = b.segment;
          moved += static_cast<double>(b.rows);
        }
      }
      const double mean = moved / groups;
      table.row(fmt::format("rows of a group, {}, cap 4,096, send cap x {}", name, wide ? 2 : 1),
                {mean, mean, mean, mean, 0});
    }
}

} // namespace

int main(int argc, char** argv) {
  bench::table table(argv);
  const std::string_view only = argc > 1 ? argv[1] : "";
  if (only.empty() || only == "groups") rows_of_a_group(table);
  pl::run_ranks(ranks, dispatch_bench(table, only));
}
