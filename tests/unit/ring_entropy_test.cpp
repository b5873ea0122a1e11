// SPDX-License-Identifier: Apache-2.0
//
// Two more reductions over a split vocabulary, so that the rotation is not one loss' own: the entropy of a
// projection on ranks as threads against float64, its memory, order and errors; and what every rank has the
// columns of its shard of, a softmax, a log-sum-exp and the largest, on nothing but the rotation and the
// state of a row.
#include "../../examples/sharded_softmax/sharded_softmax.hpp"
#include "../../examples/sharded_top_k/sharded_top_k.hpp"
#include "support/accuracy.hpp"
#include "support/counted_new.hpp"
#include "support/rank_fixtures.hpp"
#include "support/tensors.hpp"

#include <plateau/drain.hpp>
#include <plateau/ring/entropy.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace pl = plateau;
using pl::entropy_state, pl::index_t;

namespace {

using counts = std::vector<index_t>;
const float nan_value = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

struct exact_row {
  double lse, entropy;
  template <class Logits> explicit exact_row(const Logits& z) {
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (const auto v : z) largest = std::max(largest, static_cast<double>(v));
    for (const auto v : z) sum += std::exp(static_cast<double>(v) - largest);
    lse = largest + std::log(sum);
    entropy = 0;
    for (const auto v : z)
      if (std::exp(static_cast<double>(v) - lse) > 0)
        entropy += std::exp(static_cast<double>(v) - lse) * (lse - static_cast<double>(v));
  }
};
entropy_state fold(const std::vector<float>& z) {
  entropy_state state;
  for (const float v : z) state = merge(state, entropy_state::of(v));
  return state;
}

struct sizes {
  counts tokens, shards;
  index_t hidden = 7, spare = 2;
  float scale = 0.5F;

  index_t all_tokens() const { return std::accumulate(tokens.begin(), tokens.end(), index_t{0}); }
  index_t vocabulary() const { return std::accumulate(shards.begin(), shards.end(), index_t{0}); }
  int ranks() const { return static_cast<int>(tokens.size()); }
  pl::entropy_shape shape() const {
    pl::entropy_shape s;
    s.tokens = *std::max_element(tokens.begin(), tokens.end());
    s.hidden = hidden;
    s.vocabulary = vocabulary();
    s.tile_tokens = 3;
    s.tile_vocabulary = 4;
    s.hop_rows = 5;
    s.logit_scale = scale;
    return s;
  }
};
struct result {
  std::vector<float> entropies, lses;
  std::vector<pl::counters> work, world;
};
// Rows of `cols` elements, `spare` apart, NaN between them.
template <class T> std::vector<T> spread(const std::vector<T>& from, index_t cols, index_t spare) {
  std::vector<T> to;
  for (std::size_t i = 0; i < from.size(); ++i) {
    to.push_back(from[i]);
    if ((i + 1) % static_cast<std::size_t>(cols) == 0)
      to.insert(to.end(), static_cast<std::size_t>(spare), static_cast<T>(nan_value));
  }
  return to;
}
template <class T>
result run(const sizes& c, const std::vector<T>& x, const std::vector<T>& weight, bool counts_given = false) {
  result all;
  all.entropies.resize(static_cast<std::size_t>(c.all_tokens()));
  all.lses = all.entropies;
  all.work.resize(c.tokens.size());
  all.world = all.work;
  const auto wide_x = spread(x, c.hidden, c.spare), wide_weight = spread(weight, c.hidden, c.spare);
  support::on_threads<>{}.run(c.ranks(), [&](pl::thread_communicator& comm, pl::host_backend& backend) {
    using entropy_type = pl::linear_entropy<pl::host_backend, pl::thread_communicator, T>;
    const auto me = static_cast<std::size_t>(comm.rank());
    const index_t n = c.tokens[me], rows = c.shards[me], ld = c.hidden + c.spare;
    const index_t first = std::accumulate(c.tokens.begin(), c.tokens.begin() + comm.rank(), index_t{0}),
                  first_row = std::accumulate(c.shards.begin(), c.shards.begin() + comm.rank(), index_t{0});
    const pl::working_set set = entropy_type::working_set(c.shape(), c.ranks());
    pl::workspace<pl::host_backend> space(backend, set);
    entropy_type op(backend, comm, c.shape(), space, rows);
    auto s = backend.make_stream("main");
    const pl::drain<pl::host_backend> before_they_go(backend, s);
    const pl::counters work = backend.counters(), sent = comm.counters();
    typename entropy_type::inputs in{{wide_x.data() + first * ld, n, c.hidden, ld},
                                     {wide_weight.data() + first_row * ld, rows, c.hidden, ld}};
    if (counts_given) in.tokens_of_rank = c.tokens;
    const typename entropy_type::outputs want{support::all(all.entropies).sub(first, n),
                                              support::all(all.lses).sub(first, n)};
    op.forward(s, in, want);
    all.work[me] = backend.counters() - work;
    all.world[me] = comm.counters() - sent;
    std::uint64_t calls[3] = {};
    for (std::uint64_t& each : calls) {
      op.forward(s, in, want);
      backend.wait(backend.record(s));
      each = counted_new::calls.load();
    }
    if (c.ranks() == 1) CHECK(calls[2] == calls[1]); // of more, one may still be at its first
  });
  return all;
}
template <class T> void check(const sizes& c) {
  const auto x = support::random_values<T>(c.all_tokens() * c.hidden, 1, 3),
             weight = support::random_values<T>(c.vocabulary() * c.hidden, 2);
  const result found = run(c, x, weight);
  std::vector<double> entropies, lses;
  for (index_t i = 0; i < c.all_tokens(); ++i) {
    std::vector<double> z;
    for (index_t v = 0; v < c.vocabulary(); ++v) {
      double sum = 0;
      for (index_t h = 0; h < c.hidden; ++h)
        sum += static_cast<double>(static_cast<float>(x[static_cast<std::size_t>(i * c.hidden + h)])) *
               static_cast<double>(static_cast<float>(weight[static_cast<std::size_t>(v * c.hidden + h)]));
      z.push_back(static_cast<double>(c.scale) * sum);
    }
    entropies.push_back(exact_row(z).entropy);
    lses.push_back(exact_row(z).lse);
  }
  support::check_accurate(found.entropies, entropies, 8);
  support::check_accurate(found.lses, lses, 8);
  for (const float h : found.entropies) CHECK(h >= 0.0F);
}

} // namespace

TEST_CASE("the state of a row: parts merged in any order, far apart, shifted, empty, infinite or NaN") {
  std::mt19937 source(1);
  for (const float spread : {0.1F, 1.0F, 30.0F, 1000.0F, 1e30F})
    for (const int parts : {1, 2, 5, 40}) {
      CAPTURE(spread);
      std::vector<float> z;
      std::vector<entropy_state> states;
      std::normal_distribution<float> normal(0, spread);
      for (int p = 0; p < parts; ++p) {
        std::vector<float> part(source() % 5);
        for (float& v : part) v = normal(source);
        states.push_back(fold(part));
        z.insert(z.end(), part.begin(), part.end());
      }
      if (z.empty()) continue;
      for (int order = 0; order < 10; ++order) {
        std::shuffle(states.begin(), states.end(), source);
        entropy_state state;
        for (const entropy_state& s : states) state = merge(state, s);
        CHECK(static_cast<double>(state.entropy()) ==
              doctest::Approx(exact_row(z).entropy).epsilon(1e-6 * parts));
      }
    }
  const entropy_state empty, one = entropy_state::of(3.0F);
  const entropy_state still_empty = merge(empty, empty), still_one = merge(empty, merge(one, empty));
  CHECK(still_empty.m == pl::lowest<float>());
  CHECK(still_empty.s == 0);
  CHECK(still_empty.a == 0);
  CHECK(std::isnan(empty.entropy()));
  CHECK(still_one.m == 3);
  CHECK(still_one.s == 1);
  CHECK(one.entropy() == 0);
  // A shift of all logits changes nothing: not even a bit, where the logits are exact.
  const float at_zero = fold({0, 1, -2, 3}).entropy(), far_away = fold({4096, 4097, 4094, 4099}).entropy();
  CHECK(at_zero == far_away);
  const float largest = std::numeric_limits<float>::max();
  CHECK(fold({-largest, largest}).entropy() == 0);
  CHECK(fold({-largest, -largest}).entropy() == doctest::Approx(std::log(2.0)));
  CHECK(fold({1, -infinity, 1}).entropy() == doctest::Approx(std::log(2.0)));
  CHECK(std::isnan(fold({-infinity}).entropy()));
  CHECK(std::isnan(fold({1, nan_value, 2}).entropy()));
  CHECK(std::isnan(fold({1, infinity}).entropy()));
}

TEST_CASE("entropy on 1, 2, 3 and 8 ranks, uneven, some with nothing, as in float64; fp32 and bf16") {
  for (const sizes& c :
       {sizes{{17}, {23}}, sizes{{11, 6}, {20, 3}}, sizes{{0, 14, 7}, {9, 0, 14}},
        sizes{{0, 0, 4}, {0, 23, 0}}, sizes{{3, 0, 11, 0, 6, 1, 2, 5}, {0, 9, 0, 14, 7, 1, 1, 1}}}) {
    CAPTURE(c.ranks());
    check<float>(c);
    check<pl::bfloat16>(c);
  }
}

TEST_CASE("one product, the ring's bytes and no others, no round trip, bytes that do not depend on tokens") {
  for (const int ranks : {1, 2, 3})
    for (const bool given : {false, true}) {
      sizes c;
      for (int r = 0; r < ranks; ++r) c.tokens.push_back(9 + 3 * r), c.shards.push_back(8 - 2 * r);
      const auto x = support::random_values<float>(c.all_tokens() * c.hidden, 1),
                 weight = support::random_values<float>(c.vocabulary() * c.hidden, 2);
      const result found = run(c, x, weight, given);
      std::uint64_t flops = 0, sent = 0;
      for (const pl::counters& w : found.work) {
        flops += w.matrix_flops;
        CHECK(w.host_round_trips == 0);
      }
      for (const pl::counters& w : found.world) {
        sent += w.sent_bytes;
        CHECK(w.host_exchanges == (given ? 0 : 1));
      }
      CHECK(flops == static_cast<std::uint64_t>(2 * c.all_tokens() * c.vocabulary() * c.hidden));
      CHECK(sent == static_cast<std::uint64_t>(c.all_tokens() *
                                               ((ranks - 1) * c.hidden * 4 + (ranks > 1 ? ranks : 0) * 12)));
    }
  pl::entropy_shape s;
  s.tokens = 16384;
  s.hidden = 2880;
  s.vocabulary = 201088;
  using entropy_type = pl::linear_entropy<pl::host_backend, pl::thread_communicator, pl::bfloat16>;
  const std::size_t bytes = entropy_type::working_set(s, 8).device_bytes();
  // The formula: two sub-blocks of rows, three of states, a tile, and what the product wants.
  const std::size_t hop = 1024, tile = 1024 * 2048;
  std::size_t scratch = 0;
  for (const pl::memory_line& line : entropy_type::working_set(s, 8))
    if (std::string(line.what) == "scratch") scratch = pl::aligned_bytes(line.bytes);
  CHECK(bytes == 2 * hop * 2880 * 2 + 3 * hop * 12 + 4 * tile + scratch);
  CHECK(entropy_type::working_set(s, 1).device_bytes() == hop * 12 + 4 * tile + scratch);
  s.tokens = index_t{1} << 20;
  CHECK(entropy_type::working_set(s, 8).device_bytes() == bytes);
}

TEST_CASE("under the order check nothing is unordered or read unwritten; other shards or extents are told") {
  for (const counts& tokens : {counts{7, 8, 6}, {7, 0, 13}, {17}, {0, 0}}) {
    pl::dry_ranks ran;
    const auto program = [&](auto& comm, auto& backend) {
      using backend_type = std::remove_reference_t<decltype(backend)>;
      using entropy_type = pl::linear_entropy<backend_type, pl::dry_communicator, float>;
      pl::entropy_shape shape = sizes{tokens, counts(tokens.size(), 9)}.shape();
      auto s = backend.make_stream("main");
      const index_t n = tokens[static_cast<std::size_t>(comm.rank())];
      pl::device_buffer<float, backend_type> x(backend.device(), n * 7, pl::tag::activations),
          weight(backend.device(), 63, pl::tag::parameters), entropies(backend.device(), n, pl::tag::other);
      backend.launch(s, pl::elements{n * 7}, pl::fill<float>{}, pl::out(x.all()));
      backend.launch(s, pl::elements{63}, pl::fill<float>{}, pl::out(weight.all()));
      pl::workspace<backend_type> space(backend, entropy_type::working_set(shape, comm.size()));
      entropy_type op(backend, comm, shape, space);
      const pl::drain<backend_type> before_they_go(backend, s);
      for (int step = 0; step < 2; ++step) {
        op.forward(s, {x.matrix(n, 7), weight.matrix(9, 7)}, {entropies.all(), {}});
        backend.launch(s, pl::elements{n}, pl::scale{2}, pl::inout(entropies.all()));
        backend.launch(s, pl::elements{n * 7}, pl::scale{2}, pl::inout(x.all()));
      }
    };
    support::without_data<>{{}, &ran}.run(static_cast<int>(tokens.size()), program);
    REQUIRE_FALSE(ran.cause.has_value());
    for (const std::string& each : ran.findings()) FAIL_CHECK(each);
  }

  const auto refused = [](const sizes& c, index_t x_rows, index_t ld = 7) {
    std::string text;
    const auto ends = pl::run_ranks_collecting(2, [&](pl::thread_communicator& comm) {
      using entropy_type = pl::linear_entropy<pl::host_backend, pl::thread_communicator, float>;
      pl::host_backend backend;
      auto shape = c.shape();
      shape.vocabulary = 10;
      pl::workspace<pl::host_backend> space(backend, entropy_type::working_set(shape, 2));
      entropy_type op(backend, comm, shape, space, c.shards[static_cast<std::size_t>(comm.rank())]);
      auto s = backend.make_stream("main");
      const std::vector<float> x(70), weight(70);
      const index_t n = comm.rank() == 1 ? x_rows : 1;
      op.forward(s, {{x.data(), n, 7, ld}, {weight.data(), 5, 7, 7}}, {});
    });
    for (const auto& end : ends) {
      REQUIRE(end.has_value());
      if (text.empty()) text = end->text;
      CHECK(end->text == text);
    }
    return text;
  };
  CHECK(refused({{4, 4}, {10, 10}}, 4).find("the vocabulary of 10 rows, but they have 10, 10") !=
        std::string::npos);
  CHECK(
      refused({{4, 4}, {5, 5}}, 6).find("rank 1: linear_entropy: the tokens of x must be at most 4, got 6") !=
      std::string::npos);
  CHECK(refused({{4, 4}, {5, 5}}, 4, 0).find("from row to row of x must be at least 7, got 0") !=
        std::string::npos);
}

TEST_CASE("a softmax in shards: each rank has the columns of its own, and they add up to one") {
  for (const counts& columns : {counts{13}, {4, 9}, {0, 20, 3}, {1, 2, 3, 4, 5, 6, 0, 8}})
    for (const index_t rows : {0, 1, 10, 21}) {
      const int ranks = static_cast<int>(columns.size());
      const index_t all = std::accumulate(columns.begin(), columns.end(), index_t{0});
      // One row more, to point at where there are none.
      auto z = support::random_values<float>((rows + 1) * all, 3, 40);
      if (rows > 2) z[static_cast<std::size_t>(2 * all)] = nan_value; // a row of its own
      std::vector<float> p(z.size());
      support::on_threads<>{}.run(ranks, [&](pl::thread_communicator& comm, pl::host_backend& backend) {
        const index_t first = std::accumulate(columns.begin(), columns.begin() + comm.rank(), index_t{0}),
                      n = columns[static_cast<std::size_t>(comm.rank())];
        example::sharded_softmax(backend, comm, pl::tile<const float>{z.data() + first, rows, n, all},
                                 pl::tile<float>{p.data() + first, rows, n, all}, 3);
      });
      for (index_t i = 0; i < rows; ++i) {
        const std::vector<float> row(z.begin() + i * all, z.begin() + (i + 1) * all);
        double sum = 0;
        for (index_t c = 0; c < all; ++c) {
          const float found = p[static_cast<std::size_t>(i * all + c)];
          if (i == 2) {
            CHECK(std::isnan(found));
            continue;
          }
          const double expected =
              std::exp(static_cast<double>(row[static_cast<std::size_t>(c)]) - exact_row(row).lse);
          CHECK(static_cast<double>(found) == doctest::Approx(expected).epsilon(1e-5));
          sum += static_cast<double>(found);
        }
        if (i != 2) CHECK(sum == doctest::Approx(1.0).epsilon(1e-5));
      }
    }
}

TEST_CASE("the largest in shards: what sorting whole rows gives, the lower column of equal values first") {
  constexpr int k = 4;
  for (const counts& columns : {counts{13}, {1, 2}, {4, 9}, {0, 20, 3}, {1, 2, 3, 4, 5, 6, 0, 8}})
    for (const index_t rows : {0, 1, 21}) {
      const auto ranks = static_cast<int>(columns.size());
      const index_t all = std::accumulate(columns.begin(), columns.end(), index_t{0});
      auto z = support::random_values<float>((rows + 1) * all, 5, 3);
      for (float& v : z) v = v < -2 ? -infinity : v > 2.5F ? nan_value : std::round(v); // each often
      std::vector<std::vector<float>> values(columns.size(), std::vector<float>(z.size() * k));
      std::vector<std::vector<std::int64_t>> found(columns.size(), std::vector<std::int64_t>(z.size() * k));
      std::vector<std::vector<float>> lses(columns.size(), std::vector<float>(z.size()));
      support::on_threads<>{}.run(ranks, [&](pl::thread_communicator& comm, pl::host_backend& backend) {
        const auto me = static_cast<std::size_t>(comm.rank());
        const index_t first = std::accumulate(columns.begin(), columns.begin() + comm.rank(), index_t{0});
        const pl::tile<const float> mine{z.data() + first, rows, columns[me], all};
        example::sharded_top_k<k>(backend, comm, mine, first, pl::view<float>{values[me].data(), rows * k},
                                  pl::view<std::int64_t>{found[me].data(), rows * k}, 3);
        example::sharded_log_sum_exp(backend, comm, mine, pl::view<float>{lses[me].data(), rows}, 3);
      });
      index_t wrong = 0;
      for (index_t r = 0; r < rows; ++r) {
        const std::vector<float> row(z.begin() + r * all, z.begin() + (r + 1) * all);
        std::vector<std::int64_t> order;
        for (index_t c = 0; c < all; ++c)
          if (!std::isnan(row[static_cast<std::size_t>(c)])) order.push_back(c);
        const bool clean = static_cast<index_t>(order.size()) == all;
        std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
          return row[static_cast<std::size_t>(a)] > row[static_cast<std::size_t>(b)];
        });
        for (std::size_t rank = 0; rank < columns.size(); ++rank) {
          for (std::size_t i = 0; i < k; ++i) {
            const bool there = i < order.size();
            const std::size_t at = static_cast<std::size_t>(r) * k + i;
            wrong += found[rank][at] != (there ? order[i] : std::numeric_limits<std::int64_t>::max()) ||
                     values[rank][at] != (there ? row[static_cast<std::size_t>(order[i])] : -infinity);
          }
          const float lse = lses[rank][static_cast<std::size_t>(r)];
          if (clean && row[static_cast<std::size_t>(order[0])] > -infinity)
            CHECK(static_cast<double>(lse) == doctest::Approx(exact_row(row).lse).epsilon(1e-5));
          else
            CHECK(std::isnan(lse));
        }
      }
      CHECK(wrong == 0);
    }
}
