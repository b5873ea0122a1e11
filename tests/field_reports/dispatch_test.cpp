// SPDX-License-Identifier: Apache-2.0
//
// What broke in other systems that move rows to experts, report by report, against the whole dispatch. Caps
// that differ (D11) and offsets beyond 32 bits (D9) are in the tests of errors and of order as well.
#include "support/dispatch_checks.hpp"

#include <plateau/math.hpp>

#include <doctest/doctest.h>

#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace pl = plateau;
using pl::index_t;
using support::dispatch_case;
using support::dispatch_of;

namespace {

const support::on_threads<> threads;
using rank_type = support::dispatch_rank<float, pl::host_backend, pl::thread_communicator>;

// All results of all ranks, bit for bit.
template <class T>
bool same_bits(const std::vector<support::dispatch_results<T>>& a,
               const std::vector<support::dispatch_results<T>>& b, bool weights = true) {
  bool same = a.size() == b.size();
  for (std::size_t r = 0; same && r < a.size(); ++r) {
    const auto equal = [](const auto& x, const auto& y) {
      return x.size() == y.size() &&
             (x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(x[0])) == 0);
    };
    same = equal(a[r].out, b[r].out) && equal(a[r].drows, b[r].drows) && equal(a[r].dgates, b[r].dgates) &&
           (!weights || equal(a[r].dweights, b[r].dweights));
  }
  return same;
}

} // namespace

TEST_CASE("D1: the number of rounds is the group's, whatever a rank's own tokens") {
  for (const std::vector<index_t>& tokens :
       {std::vector<index_t>{100, 0, 1, 17}, {0, 0, 0, 33}, {0, 0, 0, 0}}) {
    const dispatch_case c = dispatch_of(tokens, 8, 2, "spread");
    const auto found = support::run_dispatch<float>(c, threads);
    for (const auto& mine : found) {
      CHECK(mine.forward.rounds == found[0].forward.rounds);
      CHECK(mine.backward.rounds == found[0].forward.rounds);
    }
    CHECK((found[0].forward.rounds > 0) == (tokens[3] > 0));
    support::check_dispatch<float>(c, threads);
  }
}
TEST_CASE("D2, D6: a rank without tokens takes part in every exchange, forward and backward") {
  const dispatch_case c = dispatch_of({20, 0, 33}, 6, 2, "spread");
  std::vector<std::uint64_t> exchanges(3), forward(3);
  threads.run(3, [&](auto& comm, auto& backend) {
    rank_type rank(c, backend, comm);
    pl::dispatch_plan p;
    rank.plan(p);
    const auto at = static_cast<std::size_t>(comm.rank());
    const std::uint64_t before = comm.counters().exchanges;
    rank.forward(p);
    forward[at] = comm.counters().exchanges - before;
    rank.backward(p);
    exchanges[at] = comm.counters().exchanges - before;
    rank.results();
  });
  CHECK(forward[0] > 2);
  CHECK(forward[1] == forward[0]);
  CHECK(forward[2] == forward[0]);
  CHECK(exchanges[1] == exchanges[0]);
  CHECK(exchanges[2] == exchanges[0]);
  support::check_dispatch<float>(c, threads);
}
TEST_CASE("D3: ids, rows, gates and gradients of no tokens may be null") {
  threads.run(2, [&](auto& comm, auto& backend) {
    using op = rank_type::op;
    support::toy_expert<pl::host_backend, float> expert(&backend, 12);
    const dispatch_case c = dispatch_of({0, 0}, 2, 4, "spread");
    pl::dispatch_shape<1> shape = c.shape;
    shape.tokens = 5;
    pl::workspace<pl::host_backend> space(backend, op::reserve_for(shape, 2, expert));
    std::vector<float> weight(12, 1.0F), gradient(12, 3.0F);
    const std::vector<pl::tile<const float>> weights{{weight.data(), 1, 12, 12}};
    const std::vector<pl::tile<float>> gradients{{gradient.data(), 1, 12, 12}};
    auto stream = backend.make_stream("main");
    op exchange(backend, comm, shape, space, expert);
    const pl::tile<float> none{nullptr, 0, 12, 12}, no_gates{nullptr, 0, 4, 4};
    const pl::dispatch_plan p = exchange.plan(stream, {});
    exchange.run(stream, p, {}, {none}, no_gates, none, expert, weights);
    exchange.run_backward(stream, p, {}, {none}, no_gates, none, none, no_gates, expert, weights, gradients);
    exchange.run_backward(stream, p, {}, {none}, {}, none, none, {}, expert, weights, gradients);
    backend.wait(backend.record(stream));
    CHECK(gradient == std::vector<float>(12, 3.0F));
  });
}
TEST_CASE("D4: rank 0 has no tokens, three others send 4 x 6 rows: 72 arrive") {
  dispatch_case c = dispatch_of({0, 4, 4, 4}, 8, 6, "balanced");
  const auto found = support::run_dispatch<float>(c, threads);
  index_t sent = 0, received = 0;
  for (const auto& mine : found) {
    CHECK(mine.forward.all_rows == 72);
    sent += mine.forward.rows_sent;
    received += mine.forward.rows_received;
  }
  CHECK(sent == 72);
  CHECK(received == 72);
  support::check_dispatch<float>(c, threads);
}
TEST_CASE("D5: a rank that receives nothing gets all of its results") {
  dispatch_case c = dispatch_of({20, 9, 14}, 6, 2, "spread");
  c.shape.placement.policy = pl::placement_policy::native;
  c.expert_of = [](int, index_t t, index_t j) { return static_cast<int>(2 + (t + j) % 4); };
  const auto found = support::run_dispatch<float>(c, threads);
  CHECK(found[0].forward.rows_received == 0);
  CHECK(found[0].out.size() == 20 * 12);
  support::check_dispatch<float>(c, threads);
}
TEST_CASE("D6: gradients of experts that no row was sent to are what they were") {
  dispatch_case c = dispatch_of({0, 9, 14}, 6, 2, "spread");
  c.expert_of = [](int, index_t t, index_t j) { return static_cast<int>(2 + (t + j) % 4); };
  const auto found = support::run_dispatch<float>(c, threads);
  CHECK(found[0].dweights == std::vector<float>(2 * 12, 0.0F));
  CHECK(found[0].drows.empty());
  support::check_dispatch<float>(c, threads);
}
TEST_CASE("D7: 16 ranks of 2,304 tokens whose scores are nearly the same: what is announced is sent") {
  dispatch_case c = dispatch_of(std::vector<index_t>(16, 2304), 64, 2, "spread");
  c.shape.widths = {4};
  c.shape.send_cap_rows = c.shape.receive_cap_rows = 1024;
  // A score decides by its last digit: most go to two experts, some to their neighbours.
  c.expert_of = [](int rank, index_t t, index_t j) {
    return static_cast<int>((j == 0 ? 20 : 41) + ((t * 7 + rank) % 97 < 3 ? 1 : 0));
  };
  c.backward = false;
  const auto found = support::run_dispatch<float>(c, threads);
  index_t sent = 0, received = 0, announced = 0;
  for (const index_t n : found[0].counts) announced += n;
  for (const auto& mine : found) {
    CHECK(mine.counts == found[0].counts);
    CHECK(mine.forward.rows_sent == 2304 * 2);
    sent += mine.forward.rows_sent;
    received += mine.forward.rows_received;
  }
  CHECK(announced == 16 * 2304 * 2);
  CHECK(sent == announced);
  CHECK(received == announced);
  support::check_dispatch<float>(c, threads);
}
TEST_CASE("D8: with all tokens to one rank the peak is that of a balanced router, within the promise") {
  const char* const names[] = {"balanced", "all to one", "all to the last"};
  for (const char* name : names)
    for (const auto policy : {pl::placement_policy::native, pl::placement_policy::bounded_least_loaded}) {
      dispatch_case c = dispatch_of({60, 60, 60, 60}, 8, 2, name);
      c.shape.placement.policy = policy;
      threads.run(4, [&](auto& comm, auto& backend) {
        rank_type rank(c, backend, comm);
        pl::dispatch_plan p;
        rank.plan(p);
        rank.forward(p);
        rank.backward(p);
        const auto promised =
            rank_type::op::working_set_of(c.limits(), 4, rank.expert(), pl::dispatch_pass::backward);
        CHECK(backend.device().meter().peak(pl::tag::dispatch).bytes == promised.device_bytes());
        rank.results();
      });
    }
}
TEST_CASE("D9: rows and bytes are counted in 64 bits, and what these do not hold is refused") {
  using op = pl::capped_all_to_all<pl::host_backend, pl::thread_communicator, pl::bfloat16>;
  const support::toy_expert<pl::host_backend, pl::bfloat16> expert(nullptr, 7168);
  const auto line = [&](const pl::dispatch_shape<1>& s, const char* what) -> std::size_t {
    for (const pl::memory_line& l : op::working_set_of(s, 8, expert, pl::dispatch_pass::forward))
      if (std::string(l.what) == what) return l.bytes;
    return 0;
  };
  pl::dispatch_shape<1> s;
  s.tokens = 16384;
  s.top_k = 10;
  s.experts = 256;
  s.widths = {7168};
  s.slots = 1;
  s.send_cap_rows = s.receive_cap_rows = index_t{1} << 40;
  CHECK(line(s, "rows received") == std::size_t{1310720} * 7168 * 2); // 8 x 16,384 x 10 rows
  s.receive_cap_rows = 912000;
  CHECK(line(s, "rows received") == std::size_t{912000} * 7168 * 2);
  CHECK(line(s, "results") == std::size_t{912000} * 7168 * 2);

  // Sizes whose product would come round.
  const auto refused = [&](auto change) {
    pl::dispatch_shape<1> wrong = s;
    change(wrong);
    for (const auto pass : {pl::dispatch_pass::forward, pl::dispatch_pass::backward})
      CHECK_THROWS_AS(static_cast<void>(op::working_set_of(wrong, 8, expert, pass)), const pl::config_error&);
  };
  refused([](auto& w) { w.widths = {index_t{1} << 40}, w.tokens = index_t{1} << 27, w.top_k = 1; });
  refused([](auto& w) {
    w.widths = {index_t{1} << 36}, w.tokens = index_t{1} << 27, w.top_k = 8, w.ordered = true;
  });
  refused([](auto& w) { w.result_width = index_t{1} << 40, w.tokens = index_t{1} << 27, w.top_k = 1; });
  refused([](auto& w) { w.tokens = index_t{1} << 31, w.top_k = 1; });

  // The plan of such a step: all of 8 ranks' rows go to one.
  pl::round_plan rounds(8, 1);
  const std::vector<int> rank_of{3};
  const std::vector<index_t> rows(8, index_t{1} << 33), caps(8, index_t{1} << 32);
  rounds.begin(rank_of, rows, caps, caps, pl::round_policy::expert_first);
  CHECK(rounds.rounds() == 16);
  index_t moved = 0;
  while (rounds.next())
    for (const pl::round_block& b : rounds.blocks()) moved += b.rows;
  CHECK(moved == index_t{1} << 36);
}
TEST_CASE("D10: tokens with fewer routes than k: nothing is read where none has written") {
  for (const char* name : {"holes", "nowhere"})
    for (const bool ordered : {false, true}) {
      dispatch_case c = dispatch_of({30, 0, 25}, 6, 3, name);
      c.shape.ordered = ordered;
      threads.run(3, [&](auto& comm, auto& backend) {
        rank_type rank(c, backend, comm);
        const auto poison = [&] { // every number in it is NaN
          pl::working_set all(pl::tag::other);
          const auto bytes = static_cast<index_t>(rank.space().device_bytes());
          all.template device<unsigned char>("all", bytes);
          auto open = rank.space().open(all);
          backend.launch(rank.stream(), pl::elements{bytes}, pl::fill<unsigned char>{0xff},
                         pl::out(open.template device<unsigned char>(bytes)));
        };
        pl::dispatch_plan p;
        poison(), rank.plan(p);
        poison(), rank.forward(p);
        poison(), rank.backward(p);
        const auto mine = rank.results();
        const auto expected = support::oracle_of<float>(c, comm.rank());
        CHECK(support::same_as_exact(mine.out, expected.out));
        CHECK(support::same_as_exact(mine.drows, expected.drows));
        CHECK(support::same_as_exact(mine.dgates, expected.dgates));
        CHECK(support::same_as_exact(mine.dweights, expected.dweights));
      });
    }
}
TEST_CASE("D10: a rank whose routes all go nowhere reads nothing that was not written, ordered or not") {
  for (const bool ordered : {false, true}) {
    dispatch_case c = dispatch_of({30, 4, 25}, 6, 3, "spread");
    c.expert_of = [spread = c.expert_of](int rank, index_t t, index_t j) {
      return rank == 1 ? -1 : spread(rank, t, j);
    };
    c.shape.ordered = ordered;
    support::check_dispatch<float>(c, threads);
    pl::dry_options options;
    options.scenario = [&](const pl::dry_fetch& fetch) { return support::answer_fetch(c, fetch); };
    pl::dry_ranks ran;
    support::without_data<>{options, &ran}.run(3, [&](pl::dry_communicator& comm, auto& backend) {
      support::dispatch_rank<float, pl::dry_run<pl::host_backend>, pl::dry_communicator> rank(c, backend,
                                                                                              comm);
      pl::dispatch_plan p;
      rank.plan(p);
      rank.forward(p);
      rank.backward(p);
      backend.wait(backend.record(rank.stream()));
    });
    CHECK_FALSE(ran.cause.has_value());
    for (const std::string& finding : ran.findings()) FAIL_CHECK(finding);
  }
}
TEST_CASE("D12: bits do not change from run to run, nor with slots and stalls") {
  dispatch_case c = dispatch_of({40, 7, 33}, 6, 4, "hot rank");
  c.gate_scale = 0.1F; // so that every sum is rounded
  const auto expected = support::run_dispatch<pl::bfloat16>(c, threads);
  for (int repeat = 0; repeat < 6; ++repeat) {
    c.shape.slots = 1 + repeat % 3;
    c.shape.measure_stalls = repeat % 2 == 1;
    CHECK(same_bits(support::run_dispatch<pl::bfloat16>(c, threads), expected));
  }
}
TEST_CASE("D12: with two routes a token, or ordered, caps and placement change no bit of a token either") {
  for (const bool ordered : {false, true}) {
    dispatch_case c = dispatch_of({40, 7, 33}, 6, ordered ? 5 : 2, "hot rank");
    c.shape.ordered = ordered;
    c.gate_scale = 0.1F;
    c.shape.send_cap_rows = c.shape.receive_cap_rows = 1000;
    const auto expected = support::run_dispatch<float>(c, threads);
    for (const index_t cap : {3, 16, 50})
      for (const auto policy : {pl::placement_policy::native, pl::placement_policy::bounded_least_loaded})
        for (const auto order : {pl::row_order::contiguous, pl::row_order::strided}) {
          c.shape.send_cap_rows = cap;
          c.shape.receive_cap_rows = cap + 1;
          c.shape.placement.policy = policy;
          c.shape.order = order;
          CHECK(same_bits(support::run_dispatch<float>(c, threads), expected, false));
        }
  }
}
TEST_CASE("D13: counts [5, 0] on 2 ranks, capacity 1: an expert's weights go to a rank once") {
  for (const auto policy :
       {pl::placement_policy::bounded_least_loaded, pl::placement_policy::published_least_loaded}) {
    dispatch_case c = dispatch_of({5, 0}, 2, 1, "all to one");
    c.shape.placement.policy = policy;
    std::vector<std::uint64_t> wire(2);
    threads.run(2, [&](auto& comm, auto& backend) {
      rank_type rank(c, backend, comm);
      pl::dispatch_plan p;
      rank.plan(p);
      std::set<std::pair<index_t, int>> seen;
      for (const pl::moved_piece& piece : p.pieces) CHECK(seen.insert({piece.expert, piece.rank}).second);
      CHECK(p.pieces.size() == 1);
      rank.forward(p);
      wire[static_cast<std::size_t>(comm.rank())] = rank.exchange().statistics().wire_bytes;
      // To the other rank: rows of 12 floats, and the weights of one expert, which are as many.
      if (comm.rank() == 0)
        CHECK(wire[0] == static_cast<std::uint64_t>(p.pieces[0].rows + 1) * 12 * sizeof(float));
      rank.results();
    });
    support::check_dispatch<float>(c, threads);
  }
}
TEST_CASE("D14: counts [1000, 0 x 7] on 8 ranks, pieces of at least 1,024: all ranks get their 125") {
  dispatch_case c = dispatch_of({1000, 0, 0, 0, 0, 0, 0, 0}, 8, 1, "all to one");
  c.shape.placement.least_piece_rows = 1024;
  c.shape.send_cap_rows = c.shape.receive_cap_rows = 64;
  const auto found = support::run_dispatch<float>(c, threads);
  for (const auto& mine : found) {
    CHECK(mine.forward.largest_native_load == 1000);
    CHECK(mine.forward.largest_load == 125);
    CHECK(mine.forward.rows_received == 125);
  }
  support::check_dispatch<float>(c, threads);
}
TEST_CASE("D15: 512 experts and rows of bf16: ids arrive whole") {
  dispatch_case c = dispatch_of({90, 60, 77, 30}, 512, 4, "spread");
  c.expert_of = [](int rank, index_t t, index_t j) {
    return static_cast<int>((257 + 131 * t + 7 * j + 64 * rank) % 512);
  };
  support::check_dispatch<pl::bfloat16>(c, threads);
}
TEST_CASE("D16: weights of NaN of an expert that no row goes to are not read") {
  for (const bool hot : {false, true}) { // others help, too
    dispatch_case c = dispatch_of({30, 10, 20}, 9, 2, "spread");
    // Of each rank's three experts the middle one is unused.
    c.expert_of = [hot](int, index_t t, index_t j) {
      const index_t e = hot ? (t % 8 == 0 ? 3 : 0) : 3 * ((t + j) % 3);
      return static_cast<int>(e + (t % 2) * 2);
    };
    threads.run(3, [&](auto& comm, auto& backend) {
      const int r = comm.rank();
      rank_type rank(c, backend, comm);
      const pl::device_buffer<float, pl::host_backend> weights(backend.device(), 3 * 12, pl::tag::other);
      support::to_device(backend, rank.stream(), weights.all(), [&](index_t i) {
        return i / 12 == 1 ? std::numeric_limits<float>::quiet_NaN()
                           : c.weight<float>(3 * r + i / 12, i % 12);
      });
      rank.use_weights(weights.all());
      pl::dispatch_plan p;
      rank.plan(p);
      rank.forward(p);
      rank.backward(p);
      const auto mine = rank.results();
      const auto expected = support::oracle_of<float>(c, r);
      CHECK(support::same_as_exact(mine.out, expected.out));
      CHECK(support::same_as_exact(mine.drows, expected.drows));
      CHECK(support::same_as_exact(mine.dgates, expected.dgates));
      CHECK(support::same_as_exact(mine.dweights, expected.dweights));
    });
  }
}
