// SPDX-License-Identifier: Apache-2.0
//
// A streamed AdamW on threads: the bits of the same steps without it, for every bucket size, number of slots,
// place of gradients, masters and update; its memory to the byte; what is refused, and what is left of the
// state when something fails.

#include "support/adamw_case.hpp"
#include "support/counted_new.hpp"
#include "support/rank_fixtures.hpp"

#include <plateau/testing/audited_backend.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace pl = plateau;
using pl::bfloat16, pl::device_space, pl::host_space, pl::index_t, pl::update_on;
using support::adamw_case, support::adamw_at_once, support::adamw_gradients, support::run_adamw;
using threads = support::on_threads<>;

namespace {

adamw_case several_tensors() {
  adamw_case c;
  c.tensors = {{100, 0}, {0, 0}, {1, 1, false}, {33, 1}, {64, 0, false}, {2, 1}, {0, 1}};
  c.groups = {{3e-3, 0.9, 0.99, 1e-8, 0.1}, {1e-2, 0.8, 0.999, 1e-6, 0}};
  c.absent = {{}, {2, 4}, {0}, {}};
  c.steps = 4;
  return c;
}

template <class G, class P, class GS, class MS> void check_bits(const adamw_case& c, int ranks) {
  const auto found = run_adamw<G, P, GS, MS>(c, ranks, threads());
  for (int r = 0; r < ranks; ++r) {
    CAPTURE(r);
    const auto& mine = found[static_cast<std::size_t>(r)];
    CHECK(mine.norms == found[0].norms);
    CHECK(mine.counted.host_round_trips == 0);
    CHECK(mine.same_state(adamw_at_once<G, P>(c, r, mine.norms)));
  }
}

} // namespace

TEST_CASE("the bits of the update at once, whatever the buckets and the slots") {
  adamw_case c = several_tensors();
  for (const index_t bucket : {1, 7, 16, 64, 1000})
    for (int slots = 1; slots <= 4; ++slots) {
      CAPTURE(bucket);
      CAPTURE(slots);
      c.shape = {bucket, slots};
      check_bits<float, bfloat16, device_space, host_space>(c, 1);
      if (bucket != 7 && bucket != 64) continue;
      check_bits<bfloat16, float, host_space, host_space>(c, 2);
      check_bits<float, float, device_space, device_space>(c, 1);
      c.shape.where = update_on::host;
      c.shape.host_threads = slots % 2 + 1;
      check_bits<bfloat16, bfloat16, device_space, host_space>(c, 2);
      check_bits<float, bfloat16, host_space, host_space>(c, 1);
    }
}

namespace {

using host_type = pl::host_backend;
using comm_type = pl::thread_communicator;
using plain_adamw = pl::streamed_adamw<host_type, comm_type, float, bfloat16>;

bool has(const std::string& text, const std::string& what) { return text.find(what) != std::string::npos; }
template <class Error, class F> std::string thrown(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

template <class GS> pl::dry_ranks dry(const adamw_case& c, const pl::dry_options& options = {}) {
  pl::dry_ranks ran;
  run_adamw<bfloat16, bfloat16, GS, host_space>(c, 2, support::without_data<>{options, &ran});
  return ran;
}

// One rank's optimizer and all that it is given, on threads.
struct rig {
  std::vector<pl::adamw_tensor> tensors = several_tensors().tensors;
  std::vector<pl::adamw_group> groups = several_tensors().groups;
  host_type backend;
  pl::device_buffer<float, host_type> gradients{backend.device(), 200, pl::tag::gradients};
  pl::device_buffer<bfloat16, host_type> parameters{backend.device(), 200, pl::tag::parameters};
  pl::workspace<host_type> space;
  plain_adamw adamw;
  host_type::stream stream = backend.make_stream("main");

  explicit rig(comm_type& comm, const pl::adamw_shape& shape = {16, 3})
      : space(backend, plain_adamw::working_set_of(shape, 7, comm.size())),
        adamw(backend, comm, tensors, shape, space) {
    for (index_t i = 0; i < 200; ++i) gradients.all()[i] = 0.01f, parameters.all()[i] = bfloat16(1.0f);
    adamw.set_masters(stream, parameters.all());
  }
  void step() {
    adamw.step(stream, pl::view<const float>(gradients.all()), parameters.all(), {groups, 1.0, {}});
    backend.wait(backend.record(stream));
  }
  std::vector<float> state() const {
    std::vector<float> all;
    for (index_t t = 0; t < adamw.tensors(); ++t)
      for (const auto& v : {adamw.master(t), adamw.first_moment(t), adamw.second_moment(t)})
        all.insert(all.end(), v.p, v.p + v.n);
    return all;
  }
};

} // namespace

TEST_CASE("the norm is that of all ranks, what they have alike counts once, and clips") {
  adamw_case c;
  c.tensors = {{20000}, {3}, {30000}}; // more than one block
  c.shape.bucket_elements = 5000;
  for (const bool same : {false, true})
    for (const int ranks : {1, 3}) {
      c.same_on_all_ranks = same;
      double squares = 0;
      for (int r = 0; r < (same ? 1 : ranks); ++r) {
        std::vector<float> g(static_cast<std::size_t>(c.elements()));
        for (index_t i = 0; i < c.elements(); ++i) support::gradients_of(c, r, 0)(i, support::all(g));
        for (const float x : g) squares += static_cast<double>(x) * static_cast<double>(x);
      }
      c.steps = 1;
      const auto on_device = run_adamw<float, bfloat16>(c, ranks, threads());
      const auto on_host = run_adamw<float, bfloat16, host_space>(c, ranks, threads());
      for (const auto& r : on_device) CHECK(r.norms[0] == static_cast<float>(std::sqrt(squares)));
      for (const auto& r : on_host) CHECK(r.norms == on_device[0].norms);
      CHECK(on_device[0].norms[0] > 1);
    }
}

TEST_CASE("an exact sum does not depend on the order, and is the sum") {
  const std::vector<double> terms{0x1p-298, 0x1.fffffffffffffp+300, 1.0, 0x1.23456789abcdep-200, 0.0, 0x1p-30,
                                  3e38};
  std::vector<double> backwards(terms.rbegin(), terms.rend());
  const auto sum = [](const std::vector<double>& all) {
    std::vector<std::int64_t> s(pl::exact_sum::words);
    for (const double x : all) pl::exact_sum::add(s.data(), x);
    pl::exact_sum::carry(s.data());
    return s;
  };
  CHECK(sum(terms) == sum(backwards));
  CHECK(pl::exact_sum::value(sum(terms).data()) == 0x1.fffffffffffffp+300);
  for (const double x : terms) CHECK(pl::exact_sum::value(sum({x}).data()) == x);
  CHECK(pl::exact_sum::value(sum(std::vector<double>(1 << 20, 0x1.0000001p0)).data()) == 0x1.0000001p20);
  CHECK(pl::exact_sum::value(sum({1e200}).data()) !=
        pl::exact_sum::value(sum({1e200}).data())); // beyond: NaN
  CHECK(pl::is_nan(pl::exact_sum::value(sum({1, std::numeric_limits<double>::infinity()}).data())));
}

TEST_CASE("memory: slots and a control block, whatever the state; exact slabs; nothing in a later step") {
  const pl::adamw_shape shape{256, 3};
  // 8 B of moments and 4 of masters pass through the slots: 3 x 256 x 12, and the control block.
  const std::size_t control = 32768 + 256 + 256 + 256;
  CHECK(plain_adamw::working_set_of(shape, 7, 1).device_bytes() == 3 * 256 * 12 + control);
  CHECK(plain_adamw::working_set_of(shape, 7, 1).pinned_bytes() == 0);
  CHECK(plain_adamw::state_of(1000, 7).pinned_bytes() == 3 * 4096);
  CHECK(plain_adamw::state_of(1000, 7).device_bytes() == 512);
  for (const update_on where : {update_on::device, update_on::host})
    pl::run_ranks<comm_type>(1, [&](comm_type& comm) {
      rig r(comm, {16, 3, where, 2});
      const auto& device = r.backend.device().meter();
      const auto& pinned = r.backend.pinned().meter();
      const std::size_t workspace = r.space.device_bytes() + r.space.pinned_bytes();
      CHECK(device.current() + pinned.current() == workspace + 200 * 6 + 3 * 200 * 4 + 7 * 8 + 4);
      r.step();
      const std::size_t held = device.current() + pinned.current();
      const std::uint64_t before = counted_new::calls.load();
      r.step();
      r.step();
      CHECK(counted_new::calls.load() == before);
      CHECK(device.current() + pinned.current() == held);
      CHECK(r.backend.counters().host_round_trips == 0);
    });
}

TEST_CASE("what cannot be is refused before anything changes, and the next step goes on") {
  pl::run_ranks<comm_type>(1, [](comm_type& comm) {
    rig r(comm);
    r.step();
    const auto before = r.state();
    const auto refused = [&](const pl::adamw_options& o, index_t gradients = 200) {
      const std::string text = thrown<pl::config_error>([&] {
        r.adamw.step(r.stream, pl::view<const float>(r.gradients.all().sub(0, gradients)), r.parameters.all(),
                     o);
      });
      CHECK(r.state() == before);
      return text;
    };
    auto bad = r.groups;
    bad[1].learning_rate = std::numeric_limits<double>::quiet_NaN();
    CHECK(has(refused({bad, 1, {}}), "learning_rate of group 1 is nan"));
    bad = r.groups, bad[0].beta2 = 1.5;
    CHECK(has(refused({bad, 1, {}}), "beta2 of group 0 is 1.5"));
    CHECK(has(refused({std::span(r.groups).first(1), 1, {}}),
              "tensor 2 is of group 1, but the step has settings for 1"));
    CHECK(has(refused({r.groups, -1, {}}), "clip is -1"));
    const std::vector<unsigned char> three(3, 1);
    CHECK(has(refused({r.groups, 1, three}), "`present` has 3 entries, but there are 7 tensors"));
    CHECK(has(refused({r.groups, 1, {}}, 199), "gradients has 199 entries, but there are 200 elements"));
    std::vector<std::int64_t> steps(6);
    CHECK(has(thrown<pl::config_error>([&] { r.adamw.read_steps(r.stream, steps); }),
              "steps has 6 entries, but there are 7 tensors"));
    steps.assign(7, -2);
    CHECK(has(thrown<pl::config_error>([&] { r.adamw.write_steps(r.stream, steps); }),
              "tensor 0 cannot have made -2"));
    CHECK(has(thrown<pl::config_error>([&] { r.adamw.master(7); }), "there is no tensor 7 of 7"));
    r.step();
    CHECK(r.state() != before);
    r.adamw.read_steps(r.stream, steps);
    CHECK(steps == std::vector<std::int64_t>(7, 2));
  });
}

TEST_CASE("one rank that cannot reserve fails all, with its numbers, and nothing is left") {
  const auto make = [](pl::adamw_shape shape, std::size_t budget, index_t slots_of_workspace) {
    return thrown<pl::collective_error>([&] {
      pl::run_ranks<comm_type>(2, [&](comm_type& comm) {
        host_type backend;
        if (comm.rank() == 1 && budget != 0) backend.pinned().meter().limit(budget);
        pl::workspace<host_type> space(backend, plain_adamw::working_set_of({slots_of_workspace, 1}, 1, 2));
        const std::vector<pl::adamw_tensor> tensors{{1000}};
        try {
          plain_adamw adamw(backend, comm, tensors, shape, space);
        } catch (...) {
          CHECK(backend.pinned().meter().current() == 0);
          throw;
        }
      });
    });
  };
  CHECK(make({16, 1}, 0, 16) == "");
  const std::string budget = make({16, 1}, 10000, 16);
  CHECK(has(budget, "rank 1"));
  CHECK(has(budget, "4000 bytes"));
  CHECK(has(budget, "10000"));
  CHECK(has(make({16, 4}, 0, 16), "4 slots of 16 elements need"));
  CHECK(has(make({0, 1}, 0, 16), "bucket_elements must be at least 1, got 0"));
  CHECK(has(make({16, 5}, 0, 16), "slots must be 1, 2, 3 or 4, got 5"));
}

TEST_CASE("a progress that throws leaves whole buckets: those before it updated, the others as they were") {
  for (const update_on where : {update_on::device, update_on::host})
    for (const index_t stop : {0, 4, 12}) {
      const std::string text = thrown<pl::collective_error>([&] {
        pl::run_ranks<comm_type>(1, [&](comm_type& comm) {
          rig whole(comm, {16, 3, where}), cut(comm, {16, 3, where});
          const auto before = cut.state();
          whole.step();
          const auto after = whole.state();
          try {
            cut.adamw.step(cut.stream, pl::view<const float>(cut.gradients.all()), cut.parameters.all(),
                           {cut.groups, 1.0, {}}, [&](const pl::bucket& b) {
                             if (b.index == stop) throw std::runtime_error("enough");
                           });
            FAIL("nothing came out");
          } catch (const std::runtime_error&) {
          }
          // Element e of the list is updated if its bucket was enqueued.
          std::size_t at = 0;
          for (index_t t = 0; t < 7; ++t)
            for (int field = 0; field < 3; ++field)
              for (index_t i = 0; i < cut.tensors[static_cast<std::size_t>(t)].elements; ++i, ++at) {
                const bool updated = (cut.adamw.plan().first_of(t) + i) / 16 <= stop;
                if (cut.state()[at] != (updated ? after : before)[at])
                  FAIL("element " << i << " of tensor " << t);
              }
        });
      });
      CHECK((text.empty() || has(text, "enough")));
    }
}

TEST_CASE("whatever fails in a step: the workspace may go with the exception") {
  using dry_type = pl::dry_run<host_type>;
  using adamw_type = pl::streamed_adamw<dry_type, pl::dry_communicator, float, bfloat16>;
  for (const update_on where : {update_on::device, update_on::host}) {
    std::uint64_t operations = 1;
    for (std::uint64_t k = 0; k <= operations; ++k) { // the last one is not there
      pl::dry_ranks ran;
      pl::dry_options options;
      options.throw_at = k;
      support::without_data<>{options, &ran}.run(1, [&](pl::dry_communicator& comm, dry_type& backend) {
        const std::vector<pl::adamw_tensor> tensors{{20}, {20}};
        const std::vector<pl::adamw_group> groups(1);
        const pl::adamw_shape shape{16, 2, where};
        auto s = backend.make_stream("main");
        pl::device_buffer<float, dry_type> gradients(backend.device(), 40, pl::tag::gradients);
        pl::device_buffer<bfloat16, dry_type> parameters(backend.device(), 40, pl::tag::parameters);
        const pl::drain<dry_type> before_they_go(backend, s);
        pl::workspace<dry_type> space(backend, adamw_type::working_set_of(shape, 2, 1));
        adamw_type adamw(backend, comm, tensors, shape, space);
        backend.launch(s, pl::elements{40}, pl::fill<float>{1}, pl::out(gradients.all()));
        backend.launch(s, pl::elements{40}, pl::fill<bfloat16>{bfloat16(1.0f)}, pl::out(parameters.all()));
        adamw.set_masters(s, parameters.all());
        adamw.step(s, pl::view<const float>(gradients.all()), parameters.all(), {groups, 1, {}});
        backend.wait(backend.record(s));
      });
      operations = std::max(operations, ran.recorders[0]->operations());
      CAPTURE(k);
      CHECK(ran.cause.has_value() == (k < operations));
      for (const std::string& each : ran.findings()) FAIL_CHECK(each);
    }
    CHECK(operations > 20);
  }
}

TEST_CASE("the promise is tight: a step touches all of it") {
  using adamw_type = pl::streamed_adamw<host_type, comm_type, bfloat16, bfloat16>;
  for (const update_on where : {update_on::device, update_on::host})
    pl::run_ranks<comm_type>(2, [&](comm_type& comm) {
      const std::vector<pl::adamw_tensor> tensors(20, {100});
      const pl::adamw_shape shape{512, 3, where};
      const auto set = adamw_type::working_set_of(shape, 20, 2);
      host_type backend;
      pl::workspace<host_type> space(backend, set);
      pl::device_buffer<bfloat16, host_type> gradients(backend.device(), 2000, pl::tag::gradients),
          parameters(backend.device(), 2000, pl::tag::parameters);
      auto s = backend.make_stream("main");
      pl::view<unsigned char> device;
      pl::view<unsigned char, host_space> pinned;
      const auto fill = [&] {
        auto open = space.open(set);
        device = open.device<unsigned char>(static_cast<index_t>(set.device_bytes()));
        pinned = open.pinned<unsigned char>(static_cast<index_t>(set.pinned_bytes()));
        std::fill_n(device.p, device.n, 0xa5);
        std::fill_n(pinned.p, pinned.n, 0xa5);
      };
      adamw_type adamw(backend, comm, tensors, shape, space);
      backend.launch(s, pl::elements{2000}, adamw_gradients{1}, pl::out(gradients.all()));
      backend.launch(s, pl::elements{2000}, adamw_gradients{2}, pl::out(parameters.all()));
      adamw.set_masters(s, parameters.all());
      fill();
      const std::vector<pl::adamw_group> groups(1);
      adamw.step(s, pl::view<const bfloat16>(gradients.all()), parameters.all(), {groups, 1, {}});
      backend.wait(backend.record(s));
      const auto check = [](const auto& bytes) {
        index_t run = 0, longest = 0;
        for (index_t i = 0; i < bytes.n; ++i) {
          run = bytes[i] == 0xa5 ? run + 1 : 0;
          longest = std::max(longest, run);
        }
        CHECK(longest <= 256);
      };
      check(device);
      check(pinned);
      CHECK((pinned.n > 0) == (where == update_on::host));
    });
}

TEST_CASE("nothing is unordered, and every wait of the host's update that is left out is missed") {
  for (int slots = 1; slots <= 3; ++slots)
    for (const update_on where : {update_on::device, update_on::host})
      for (const bool on_host : {false, true}) {
        adamw_case c = several_tensors();
        c.steps = 2;
        c.shape = {48, slots, where};
        CAPTURE(slots);
        CAPTURE(on_host);
        CAPTURE(static_cast<int>(where));
        const auto run = [&](const pl::dry_options& options) {
          return on_host ? dry<host_space>(c, options) : dry<device_space>(c, options);
        };
        const pl::dry_ranks whole = run({});
        REQUIRE_FALSE(whole.cause.has_value());
        for (const std::string& each : whole.findings()) FAIL_CHECK(each);
        int of_adamw = 0;
        for (std::uint64_t k = 0; k < whole.recorders[1]->waits(); ++k) {
          pl::dry_options options;
          options.drop_wait = k;
          options.only_rank = 1;
          const pl::dry_ranks with = run(options);
          REQUIRE(with.recorders[1]->dropped().has_value());
          const std::string place = with.recorders[1]->dropped()->text();
          if (!has(place, "adamw_on_host.hpp") && !has(place, "staging_pipeline.hpp")) continue;
          ++of_adamw;
          CAPTURE(place);
          CHECK_FALSE(with.findings().empty());
        }
        CHECK(of_adamw > 10);
      }
}

TEST_CASE("an operation that fails, whichever it is, ends all ranks, and nothing leaks") {
  for (const update_on where : {update_on::device, update_on::host}) {
    adamw_case c = several_tensors();
    c.steps = 1;
    c.shape = {48, 2, where};
    const std::uint64_t operations = dry<host_space>(c).recorders[0]->operations();
    REQUIRE(operations > 20);
    for (std::uint64_t k = 0; k < operations; ++k) {
      pl::dry_options options;
      options.throw_at = k;
      options.only_rank = 0;
      const pl::dry_ranks with = dry<host_space>(c, options);
      CAPTURE(k);
      CHECK(with.cause.has_value());
      for (const std::string& each : with.findings()) FAIL_CHECK(each);
    }
  }
}

TEST_CASE("the same bits under any order of operations, and every operation keeps the word of its tags") {
  adamw_case c = several_tensors();
  c.steps = 3;
  for (const update_on where : {update_on::device, update_on::host})
    for (int slots = 1; slots <= 3; ++slots) {
      c.shape = {48, slots, where};
      for (std::uint64_t seed = 0; seed < 8; ++seed) {
        CAPTURE(seed);
        const auto check = [&](const auto& found) {
          for (int r = 0; r < 2; ++r) {
            const auto& mine = found[static_cast<std::size_t>(r)];
            CHECK(mine.same_state(adamw_at_once<bfloat16, bfloat16>(c, r, mine.norms)));
          }
        };
        check(run_adamw<bfloat16, bfloat16>(c, 2, support::in_turns<>{{seed, nullptr}}));
        check(run_adamw<bfloat16, bfloat16, host_space>(c, 2, support::in_turns<>{{seed, nullptr}}));
        if (seed == 0)
          check(run_adamw<bfloat16, bfloat16>(c, 2, support::in_turns<pl::audited_backend>{{seed, nullptr}}));
      }
    }
}
