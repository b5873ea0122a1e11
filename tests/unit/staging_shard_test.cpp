// SPDX-License-Identifier: Apache-2.0
//
// Optimizer state dealt to the ranks: plans, tensors without gradients, sums piece by piece against the sums
// that they stand for, and a whole sharded update against the one that is not sharded. All of it on threads,
// in any order of operations, and under the order check with each wait left out.
#include "support/counted_new.hpp"
#include "support/device_values.hpp"
#include "support/rank_fixtures.hpp"
#include "support/tensors.hpp"

#include <plateau/close_step.hpp>
#include <plateau/drain.hpp>
#include <plateau/kernels.hpp>
#include <plateau/staging/gradient_accumulators.hpp>
#include <plateau/staging/shard_gather.hpp>
#include <plateau/staging/sharded_reduce.hpp>
#include <plateau/staging/staging_pipeline.hpp>
#include <plateau/testing/audited_backend.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace pl = plateau;
using pl::index_t;

namespace {

struct shard_case {
  int ranks = 3;
  std::vector<index_t> shards;       // by rank
  std::vector<index_t> tensors;      // none: nobody knows them
  std::vector<std::size_t> inactive; // tensors without a gradient on any rank
  pl::sharded_shape shape{5, 2};
  index_t bucket = 4;
  int slots = 3;
  bool whole = false; // sums for all ranks, no shards
  int steps = 2;

  index_t elements() const { return std::accumulate(shards.begin(), shards.end(), index_t{0}); }
  bool active(index_t element) const {
    std::size_t t = 0;
    if (tensors.empty()) return true;
    while (element >= tensors[t]) element -= tensors[t++];
    return std::find(inactive.begin(), inactive.end(), t) == inactive.end();
  }
};

// A gradient of a rank: numbers whose sums depend on the order.
float gradient_of(const shard_case& c, int rank, int step, index_t i) {
  if (!c.active(i)) return 0;
  const auto n = static_cast<std::uint32_t>(i * 2654435761 + rank * 40503 + step * 9973 + 7);
  return static_cast<float>((n ^ (n >> 13)) % 100003) * 1e-3F - 50;
}

struct fill_gradients {
  const shard_case* c;
  int rank, step;
  void operator()(pl::view<float, pl::host_space> to) const {
    for (index_t i = 0; i < to.n; ++i) to[i] = gradient_of(*c, rank, step, i);
  }
};
struct set_zeros {
  void operator()(pl::view<float, pl::host_space> to) const { std::fill_n(to.p, to.n, 0.0F); }
};
struct look {
  void operator()(pl::view<const float, pl::host_space>, pl::view<const float, pl::host_space>) const {}
};
// moment = moment / 2 + gradient; parameter += moment
struct toy_update {
  template <class S>
  PLATEAU_HD void operator()(index_t i, pl::view<const float, S> gradient, pl::view<float, S> moment,
                             pl::view<float, S> parameter) const {
    moment[i] = moment[i] * 0.5F + gradient[i];
    parameter[i] = parameter[i] + moment[i];
  }
};

struct rank_result {
  std::vector<float> gradients, seen, moments, parameters;
  std::size_t left = 0;
  pl::counters sent;
  std::uint64_t allocations = 0;
};
template <class Backend>
using toy_pipeline =
    pl::staging_pipeline<Backend, pl::staged<float, pl::flow::in>, pl::staged<float, pl::flow::inout>,
                         pl::staged<float, pl::flow::resident>>;

template <class Ranks> std::vector<rank_result> run_case(const shard_case& c, const Ranks& on) {
  using backend_type = typename Ranks::backend;
  using communicator_type = typename Ranks::communicator;
  using reduce_type = pl::sharded_reduce<backend_type, communicator_type>;
  using pipeline_type = toy_pipeline<backend_type>;
  std::vector<rank_result> all(static_cast<std::size_t>(c.ranks));
  on.run(c.ranks, [&](communicator_type& world, backend_type& backend) {
    rank_result& mine = all[static_cast<std::size_t>(world.rank())];
    try {
      const auto plan =
          c.whole ? pl::shard_plan::of(std::vector<index_t>(1, c.elements())) : pl::shard_plan::of(c.shards);
      const auto own = plan.of_rank(c.whole ? 0 : world.rank());
      pl::pinned_buffer<float, backend_type> gradients(backend.pinned(), c.elements(), pl::tag::gradients);
      pl::pinned_buffer<float, backend_type> moments(backend.pinned(), own.elements, pl::tag::optimizer);
      pl::device_buffer<float, backend_type> parameters(backend.device(), c.elements(), pl::tag::parameters);
      pl::device_buffer<float, backend_type> seen(backend.device(), own.elements, pl::tag::other);
      const pl::staging_shape buckets{c.bucket, c.slots};
      pl::workspace<backend_type> space(backend, pl::overlay(reduce_type::working_set_of(c.shape, c.ranks),
                                                             pipeline_type::working_set_of(buckets)));
      reduce_type reduce(backend, world, space, c.shape);
      pipeline_type pipeline(backend, space, buckets);
      pl::shard_gather<backend_type, communicator_type> gather(backend, world);
      auto stream = backend.make_stream("main");
      const pl::drain<backend_type> before_they_go(backend, stream);
      pl::tensor_activity activity;
      if (!c.tensors.empty()) {
        activity = pl::tensor_activity(c.tensors);
        // Each rank knows of some: the union counts.
        for (std::size_t t = 0; t < c.tensors.size(); ++t)
          activity.set(static_cast<index_t>(t),
                       std::find(c.inactive.begin(), c.inactive.end(), t) == c.inactive.end() &&
                           static_cast<int>(t) % c.ranks == world.rank());
        activity.unite(world);
      }
      backend.launch(stream, pl::elements{parameters.size()}, pl::fill<float>{1}, pl::out(parameters.all()));
      backend.host_task(stream, set_zeros{}, pl::out(moments.all()));
      pl::counters before;
      std::uint64_t calls = 0;
      const auto cut = pl::bucket_plan::elementwise(own.elements, c.bucket);
      for (int step = 0; step < c.steps; ++step) {
        backend.host_task(stream, fill_gradients{&c, world.rank(), step}, pl::out(gradients.all()));
        if (step + 1 == c.steps) {
          before = world.counters();
          calls = counted_new::calls.load();
        }
        const auto each = [&](auto& s, index_t first, pl::view<const float> sums) {
          backend.copy(s, pl::in(sums), pl::out(seen.all().sub(first - own.first, sums.n)));
        };
        if (c.whole)
          reduce.run_whole(stream, activity, gradients.all(), each);
        else
          reduce.run(stream, plan, activity, gradients.all(), each);
        pipeline.run(
            stream, cut,
            {gradients.all().sub(own.first, own.elements), moments.all(),
             parameters.all().sub(own.first, own.elements)},
            [&](auto& s, const pl::bucket& b, pl::view<const float> g, pl::view<float> m, pl::view<float> p) {
              backend.launch(s, pl::elements{b.elements}, toy_update{}, pl::in(g), pl::inout(m),
                             pl::inout(p));
              if (!c.whole) gather.piece(s, plan, c.bucket, b.index, parameters.all());
            });
        if (!c.whole) {
          for (index_t i = cut.buckets(); i < plan.pieces(c.bucket); ++i)
            gather.piece(stream, plan, c.bucket, i, parameters.all());
          gather.join(stream);
        }
        // Somebody uses them.
        backend.host_task(stream, look{}, pl::in(moments.all()), pl::in(gradients.all()));
        backend.launch(stream, pl::elements{parameters.size()}, pl::scale{1}, pl::inout(parameters.all()));
        backend.launch(stream, pl::elements{seen.size()}, pl::scale{1}, pl::inout(seen.all()));
        if (step + 1 == c.steps) {
          mine.allocations = counted_new::calls.load() - calls;
          mine.sent = world.counters() - before;
        }
        pl::close_step(backend, world, stream);
      }
      if constexpr (Ranks::has_data) {
        mine.parameters = support::from_device(backend, stream, parameters.all());
        mine.seen = support::from_device(backend, stream, seen.all());
        mine.gradients.assign(gradients.data(), gradients.data() + gradients.size());
        mine.moments.assign(moments.data(), moments.data() + moments.size());
      }
    } catch (...) {
      mine.left = backend.device().meter().current() + backend.pinned().meter().current();
      throw;
    }
    mine.left = backend.device().meter().current() + backend.pinned().meter().current();
  });
  return all;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), 4 * a.size()) == 0);
}

// The same with a loop.
struct expected_result {
  std::vector<float> sums, parameters, moments;
};
expected_result expected_of(const shard_case& c) {
  const auto n = static_cast<std::size_t>(c.elements());
  expected_result e{std::vector<float>(n), std::vector<float>(n, 1.0F), std::vector<float>(n)};
  for (int step = 0; step < c.steps; ++step)
    for (std::size_t i = 0; i < n; ++i) {
      float sum = gradient_of(c, 0, step, static_cast<index_t>(i));
      for (int r = 1; r < c.ranks; ++r) sum = sum + gradient_of(c, r, step, static_cast<index_t>(i));
      e.sums[i] = sum;
      e.moments[i] = e.moments[i] * 0.5F + sum;
      e.parameters[i] = e.parameters[i] + e.moments[i];
    }
  return e;
}
void check_case(const shard_case& c, const std::vector<rank_result>& all) {
  const expected_result e = expected_of(c);
  const auto part = [](const std::vector<float>& v, index_t first, index_t n) {
    return std::vector<float>(v.begin() + first, v.begin() + first + n);
  };
  index_t first = 0;
  for (std::size_t r = 0; r < all.size(); ++r) {
    CAPTURE(r);
    const index_t from = c.whole ? 0 : first, n = c.whole ? c.elements() : c.shards[r];
    CHECK(same(part(all[r].gradients, from, n), part(e.sums, from, n)));
    CHECK(same(all[r].seen, part(e.sums, from, n)));
    CHECK(same(all[r].moments, part(e.moments, from, n)));
    CHECK(same(all[r].parameters, e.parameters));
    CHECK(all[r].left == 0);
    first += c.shards[r];
    // What is not its own is as it was.
    if (c.whole) continue;
    for (index_t i = 0; i < c.elements(); ++i)
      if (i < from || i >= from + n) {
        const float was = gradient_of(c, static_cast<int>(r), c.steps - 1, i);
        if (all[r].gradients[static_cast<std::size_t>(i)] != was) FAIL_CHECK("element " << i);
      }
  }
}

shard_case small_case() {
  shard_case c;
  c.shards = {13, 0, 17};
  c.tensors = {4, 7, 2, 9, 8};
  c.inactive = {1, 3};
  return c;
}

} // namespace

TEST_CASE("O10: shards are whole grains, as even as can be, and may be empty") {
  for (index_t n = 0; n < 40; ++n)
    for (int ranks = 1; ranks < 6; ++ranks)
      for (index_t grain = 1; grain < 6; ++grain) {
        const auto p = pl::shard_plan::even(n, ranks, grain);
        REQUIRE(p.ranks() == ranks);
        index_t next = 0, least = n, most = 0;
        for (int r = 0; r < ranks; ++r) {
          const auto [first, count] = p.of_rank(r);
          REQUIRE(first == next);
          REQUIRE((first % grain == 0 || count == 0));
          next += count;
          const index_t grains = (count + grain - 1) / grain;
          least = std::min(least, grains);
          most = std::max(most, grains);
        }
        REQUIRE(next == n);
        REQUIRE(most - least <= 1);
        // Pieces of every rank cover its shard.
        for (index_t piece = 1; piece < 5; ++piece)
          for (int r = 0; r < ranks; ++r) {
            index_t at = p.of_rank(r).first;
            for (index_t i = 0; i < p.pieces(piece) + 2; ++i) {
              const auto [first, count] = p.piece(r, i, piece);
              REQUIRE(first == at);
              REQUIRE(count <= piece);
              at += count;
              if (i == p.pieces(piece) - 1) REQUIRE(at == p.of_rank(r).first + p.of_rank(r).elements);
            }
          }
      }
  CHECK_THROWS_WITH_AS(pl::shard_plan::even(5, 0), doctest::Contains("cannot deal 5 elements"),
                       pl::config_error);
  CHECK_THROWS_WITH_AS(pl::shard_plan::of(std::vector<index_t>{3, -1}),
                       doctest::Contains("rank 1 cannot own -1"), pl::config_error);
  CHECK_THROWS_AS(pl::shard_plan::of(std::vector<index_t>{}), pl::config_error);
  const index_t most = std::numeric_limits<index_t>::max();
  CHECK_THROWS_AS(pl::shard_plan::of(std::vector<index_t>{most, 1}), pl::config_error);
  // O3: no product overflows.
  const auto large = pl::shard_plan::even(most, 3, 65536);
  CHECK(large.of_rank(2).first + large.of_rank(2).elements == most);
  CHECK(large.piece(2, most / 2, 65536).elements == 0);
}

TEST_CASE("runs of active tensors are those of a loop over elements") {
  const std::vector<index_t> tensors{3, 0, 4, 1, 0, 5, 2};
  for (unsigned bits = 0; bits < 128; ++bits) {
    pl::tensor_activity a(tensors);
    std::vector<bool> active;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      a.set(static_cast<index_t>(t), (bits >> t & 1) != 0);
      for (index_t i = 0; i < tensors[t]; ++i) active.push_back((bits >> t & 1) != 0);
    }
    for (index_t first = 0; first < a.elements(); ++first)
      for (index_t n = 0; first + n <= a.elements(); ++n) {
        std::vector<bool> seen(active.size());
        index_t last = -1;
        a.for_each_run(first, n, [&](index_t from, index_t count) {
          REQUIRE(count > 0);
          REQUIRE(from > last); // adjacent runs are one
          last = from + count;
          for (index_t i = from; i < from + count; ++i) seen[static_cast<std::size_t>(i)] = true;
        });
        for (index_t i = 0; i < a.elements(); ++i) {
          const auto at = static_cast<std::size_t>(i);
          REQUIRE(seen[at] == (active[at] && i >= first && i < first + n));
        }
      }
  }
  CHECK(pl::tensor_activity().any_in(5, 1));
  CHECK_THROWS_AS(pl::tensor_activity(std::vector<index_t>{-1}), pl::config_error);
}

TEST_CASE("a sharded update has the bits of the one that is not, whatever pieces, buckets and slots") {
  for (int ranks = 1; ranks <= 5; ++ranks)
    for (int i = 0; i < 8; ++i) {
      CAPTURE(ranks);
      CAPTURE(i);
      shard_case c;
      c.ranks = ranks;
      for (int r = 0; r < ranks; ++r) c.shards.push_back(i % 3 == 2 ? 11 : (r * 7 + i * 5) % 23);
      c.shape = {1 + i % 7, 1 + i % 4};
      c.bucket = 1 + i * 3;
      c.slots = 1 + i % 3;
      c.whole = i % 4 == 3;
      if (i % 2 == 1) {
        const index_t n = c.elements();
        c.tensors = {n / 3, n / 7, n - n / 3 - n / 7 - n / 5, n / 5};
        c.inactive = {0, 2};
        if (i == 5) c.inactive = {0, 1, 2, 3};
      }
      check_case(c, run_case(c, support::on_threads<>{}));
    }
}

TEST_CASE("tensors without a gradient are not exchanged, the others once; from the second step on nothing is "
          "allocated") {
  for (const bool whole : {false, true}) {
    shard_case c = small_case();
    c.steps = 3;
    c.whole = whole;
    const auto all = run_case(c, support::on_threads<>{});
    check_case(c, all);
    std::uint64_t sent = 0;
    for (std::size_t r = 0; r < 3; ++r) {
      CHECK(all[r].allocations == 0);
      CHECK(all[r].sent.host_exchanges == 0);
      sent += all[r].sent.sent_bytes;
    }
    // Each active element goes from two ranks to its owner; then the owner's sum, or its parameter, to both.
    const std::uint64_t active = 4 + 2 + 8, back = whole ? active : 30;
    CHECK(sent == 4 * 2 * (active + back));
  }
}

TEST_CASE("the promise is tight, exact, and as the formula says") {
  using reduce_type = pl::sharded_reduce<pl::host_backend, pl::thread_communicator>;
  for (const int ranks : {1, 2, 40})
    for (const int slots : {1, 2, 4}) {
      const pl::sharded_shape shape{1 << 10, slots};
      const auto set = reduce_type::working_set_of(shape, ranks);
      CHECK(set.device_bytes() == static_cast<std::size_t>(slots * (2 * ranks - 1) * 1024 * 4));
      CHECK(set.pinned_bytes() == 0);
      CHECK(set.purpose() == pl::tag::optimizer);
      const auto fits = pl::sharded_shape::fitting(set.device_bytes() + 2 * 256 * 4, ranks, slots, 1024);
      CHECK(fits.piece_elements == 1024);
    }
  CHECK_THROWS_WITH_AS(pl::sharded_shape::fitting(1000, 40, 2, 65536),
                       doctest::Contains("fewer than a grain"), pl::config_error);
  CHECK_THROWS_AS(reduce_type::working_set_of({0, 2}, 2), pl::config_error);
  CHECK_THROWS_AS(reduce_type::working_set_of({1, 5}, 2), pl::config_error);
  // Full pieces of two ranks in both slots: every byte is touched.
  support::on_threads<>{}.run(3, [&](pl::thread_communicator& world, pl::host_backend& backend) {
    const pl::sharded_shape shape{256, 2};
    const auto set = reduce_type::working_set_of(shape, 3);
    const auto plan = pl::shard_plan::even(3 * 512, 3);
    pl::pinned_buffer<float, pl::host_backend> gradients(backend.pinned(), plan.elements(),
                                                         pl::tag::gradients);
    std::fill_n(gradients.data(), gradients.size(), 1.0F);
    pl::workspace<pl::host_backend> space(backend, set);
    reduce_type reduce(backend, world, space, shape);
    auto stream = backend.make_stream("main");
    pl::view<unsigned char> slab;
    {
      auto open = space.open(set);
      slab = open.device<unsigned char>(static_cast<index_t>(set.device_bytes()));
      backend.launch(stream, pl::elements{slab.n}, pl::fill<unsigned char>{0xa5}, pl::out(slab));
    }
    reduce.run(stream, plan, {}, gradients.all(), [](auto&, index_t, auto) {});
    backend.wait(backend.record(stream));
    index_t untouched = 0;
    for (index_t i = 0; i < slab.n; ++i) untouched = slab[i] == 0xa5 ? untouched + 1 : 0;
    CHECK(untouched <= 256);
  });
}

TEST_CASE("the same bits under any order of operations, and each keeps the word of its tags") {
  for (const bool whole : {false, true}) {
    shard_case c = small_case();
    c.whole = whole;
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      CAPTURE(seed);
      check_case(c, run_case(c, support::in_turns<>{{seed, nullptr}}));
    }
    for (std::uint64_t seed = 0; seed < 2; ++seed)
      check_case(c, run_case(c, support::in_turns<pl::audited_backend>{{seed, nullptr}}));
  }
}

TEST_CASE("O5: nothing is unordered, and every wait is missed where it is left out") {
  for (const bool whole : {false, true}) {
    CAPTURE(whole);
    shard_case c = small_case();
    c.whole = whole;
    if (whole) c.shape.piece_elements = 3;
    pl::dry_ranks ran;
    run_case(c, support::without_data<>{{}, &ran});
    REQUIRE_FALSE(ran.cause.has_value());
    for (const std::string& each : ran.findings()) FAIL_CHECK(each);
    std::map<std::string, int> missed, spared;
    const std::uint64_t waits = ran.recorders[2]->waits();
    for (std::uint64_t k = 0; k < waits; ++k) {
      pl::dry_options options;
      options.drop_wait = k;
      options.only_rank = 2;
      pl::dry_ranks with;
      run_case(c, support::without_data<>{options, &with});
      REQUIRE(with.recorders[2]->dropped().has_value());
      const std::string place = with.recorders[2]->dropped()->text();
      ++(with.findings().empty() ? spared : missed)[place.substr(place.rfind('/') + 1)];
    }
    int of_reduce = 0, of_gather = 0;
    for (const auto& [place, n] : missed) {
      of_reduce += place.find("sharded_reduce.hpp") == 0 ? n : 0;
      of_gather += place.find("shard_gather.hpp") == 0 ? n : 0;
    }
    CHECK(of_reduce == 32);
    CHECK(of_gather == (whole ? 0 : 12));
    // None can be spared but those of the test itself, and those that close a step.
    for (const auto& each : spared) {
      const std::string& place = each.first;
      CAPTURE(place);
      CHECK((place.find("drain.hpp") == 0 || place.find("close_step.hpp") == 0));
    }
  }
}

TEST_CASE("an operation that fails, whichever it is, ends all ranks with that cause, and nothing leaks") {
  for (const bool whole : {false, true}) {
    shard_case c = small_case();
    c.whole = whole;
    c.steps = 1;
    pl::dry_ranks ran;
    run_case(c, support::without_data<>{{}, &ran});
    for (std::uint64_t k = 0; k < ran.recorders[2]->operations(); ++k) {
      CAPTURE(k);
      pl::dry_options options;
      options.throw_at = k;
      options.only_rank = 2;
      pl::dry_ranks with;
      const auto all = run_case(c, support::without_data<>{options, &with});
      REQUIRE(with.cause.has_value());
      for (std::size_t r = 0; r < 3; ++r) {
        CHECK(with.left_with[r].has_value());
        CHECK(all[r].left == 0);
      }
      for (const std::string& each : with.findings()) FAIL_CHECK(each);
    }
  }
}

TEST_CASE("a callback that throws when it has enqueued: the workspace may go with the exception") {
  using backend_type = pl::dry_run<pl::host_backend>;
  using reduce_type = pl::sharded_reduce<backend_type, pl::dry_communicator>;
  for (const int ranks : {1, 2}) {
    pl::dry_ranks ran;
    support::without_data<>{{}, &ran}.run(ranks, [&](pl::dry_communicator& world, backend_type& backend) {
      auto stream = backend.make_stream("main");
      pl::pinned_buffer<float, backend_type> gradients(backend.pinned(), 20, pl::tag::gradients);
      pl::device_buffer<float, backend_type> copy(backend.device(), 20, pl::tag::other);
      backend.host_task(stream, pl::detail::zeros{}, pl::out(gradients.all()));
      backend.wait(backend.record(stream));
      const pl::sharded_shape shape{4, 2};
      pl::workspace<backend_type> space(backend, reduce_type::working_set_of(shape, ranks));
      reduce_type reduce(backend, world, space, shape);
      reduce.run(stream, pl::shard_plan::even(20, ranks), {}, gradients.all(),
                 [&](auto& s, index_t first, pl::view<const float> sums) {
                   backend.copy(s, pl::in(sums), pl::out(copy.all().sub(first, sums.n)));
                   if (first >= 4) throw std::runtime_error("no more");
                 });
    });
    REQUIRE(ran.cause.has_value());
    for (const std::string& each : ran.findings()) FAIL_CHECK(each);
  }
}

TEST_CASE("what does not fit is an error on all ranks before anything moves, and names the numbers") {
  using reduce_type = pl::sharded_reduce<pl::host_backend, pl::thread_communicator>;
  const auto with = [](auto f) {
    support::on_threads<>{}.run(2, [&](pl::thread_communicator& world, pl::host_backend& backend) {
      const pl::sharded_shape shape{4, 2};
      pl::pinned_buffer<float, pl::host_backend> gradients(backend.pinned(), 10, pl::tag::gradients);
      pl::workspace<pl::host_backend> space(backend, reduce_type::working_set_of(shape, 2));
      auto stream = backend.make_stream("main");
      f(world, backend, space, shape, stream, gradients.all());
    });
  };
  const auto none = [](auto&, index_t, auto) {};
  CHECK_THROWS_WITH(with([&](auto& world, auto& backend, auto& space, auto shape, auto& stream, auto all) {
                      reduce_type reduce(backend, world, space, shape);
                      reduce.run(stream, pl::shard_plan::even(11, 2), {}, all, none);
                    }),
                    doctest::Contains("10 gradients, but the plan is of 11 elements"));
  CHECK_THROWS_WITH(with([&](auto& world, auto& backend, auto& space, auto shape, auto& stream, auto all) {
                      reduce_type reduce(backend, world, space, shape);
                      reduce.run(stream, pl::shard_plan::even(10, 3), {}, all, none);
                    }),
                    doctest::Contains("the plan is for 3 ranks, the communicator has 2"));
  CHECK_THROWS_WITH(with([&](auto& world, auto& backend, auto& space, auto shape, auto& stream, auto all) {
                      reduce_type reduce(backend, world, space, shape);
                      reduce.run(stream, pl::shard_plan::even(10, 2),
                                 pl::tensor_activity(std::vector<index_t>{9}), all, none);
                    }),
                    doctest::Contains("have 9 elements together"));
  CHECK_THROWS_WITH(with([&](auto& world, auto& backend, auto& space, auto shape, auto&, auto) {
                      if (world.rank() == 1) shape.piece_elements = 3;
                      reduce_type reduce(backend, world, space, shape);
                    }),
                    doctest::Contains("pieces of 3 elements in 2 slots"));
  CHECK_THROWS_WITH(with([&](auto& world, auto& backend, auto& space, auto shape, auto&, auto) {
                      if (world.rank() == 1) shape.piece_elements = 400;
                      reduce_type reduce(backend, world, space, shape);
                    }),
                    doctest::Contains("but the workspace has"));
  // A callback that throws ends everybody with its text, and the memory may go.
  CHECK_THROWS_WITH(with([&](auto& world, auto& backend, auto& space, auto shape, auto& stream, auto all) {
                      reduce_type reduce(backend, world, space, shape);
                      reduce.run(stream, pl::shard_plan::even(10, 2), {}, all,
                                 [&](auto&, index_t first, auto) {
                                   if (first == 4) throw std::runtime_error("no more");
                                 });
                      pl::close_step(backend, world, stream);
                    }),
                    doctest::Contains("no more"));
  CHECK_THROWS_WITH(with([&](auto& world, auto& backend, auto&, auto, auto& stream, auto) {
                      pl::shard_gather<pl::host_backend, pl::thread_communicator> gather(backend, world);
                      pl::device_buffer<float, pl::host_backend> p(backend.device(), 4, pl::tag::parameters);
                      gather.piece(stream, pl::shard_plan::even(5, 2), 1, 0, p.all());
                    }),
                    doctest::Contains("4 elements on 2 ranks, but the plan is of 5 on 2"));
}
