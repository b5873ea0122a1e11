// SPDX-License-Identifier: Apache-2.0
//
// A checkpointed sequence: the bits of the same layers with every input kept in memory of its own, whatever
// is parked and in whatever order; two inputs on the device at any depth; no product forward more than twice;
// nothing unordered, no wait that is not missed, no leak; and in virtual time, as fast as without parking
// where the link hides it.
#include "support/counted_new.hpp"
#include "support/offload_layers.hpp"
#include "support/tensors.hpp"

#include <plateau/dry_run/backend.hpp>
#include <plateau/dry_run/predict.hpp>
#include <plateau/dry_run/presets.hpp>
#include <plateau/dry_run/run_dry.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/offload.hpp>
#include <plateau/testing/audited_backend.hpp>

#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace pl = plateau;
using pl::index_t;
using support::again, support::offload_net;

namespace {

using dry = pl::dry_run<pl::host_backend>;
using host = pl::host_backend;

template <class T> void check_same(const offload_net::result<T>& a, const offload_net::result<T>& b) {
  CHECK(support::same_bits(a.y, b.y));
  CHECK(support::same_bits(a.dx, b.dx));
  CHECK(support::same_bits(a.dw, b.dw));
}
template <class T> bool is_zero(const std::vector<T>& v) {
  bool zero = true;
  for (const T x : v) zero = zero && pl::widen(x) == 0;
  return zero;
}
template <again How, class T, class Backend = host>
offload_net::result<T> run(const offload_net& n, bool with_store = true) {
  Backend be;
  auto r = n.run<How, T>(be, with_store);
  r.left = be.device().meter().current() + be.pinned().meter().current();
  CHECK(r.left == 0);
  return r;
}
template <again How, class T> void check_bits() {
  offload_net n;
  for (const bool unequal : {false, true}) {
    n.unequal = unequal;
    const auto expected = run<How, T>(n, false);
    CHECK_FALSE(is_zero(expected.dx));
    CHECK_FALSE(is_zero(expected.dw));
    for (const index_t budget : {index_t{0}, index_t{800}, pl::offload_shape::no_limit})
      for (const int every : {1, 2, 4, 9})
        for (const int restored : {2, 3}) {
          CAPTURE(unequal);
          CAPTURE(budget);
          CAPTURE(every);
          n.budget = budget;
          n.keep_every = every;
          n.restored_at_once = restored;
          check_same(run<How, T>(n), expected);
        }
  }
}
// y = x / (1 + |x|), with nothing of its own.
template <class Backend> struct stateless_layer {
  using stream = typename Backend::stream;
  static constexpr bool backward_recomputes = true;

  Backend* be;
  index_t input_columns() const { return 8; }
  index_t output_columns() const { return 8; }
  void forward(stream& s, pl::tile<const float> x, pl::tile<float> y) {
    be->launch(s, pl::rows{x.rows}, support::soften{}, pl::in(x), pl::out(y));
  }
  void backward(stream& s, pl::tile<const float> x, pl::tile<const float> dy, pl::tile<float> dx) {
    be->copy(s, pl::in(x), pl::out(dx));
    be->launch(s, pl::rows{x.rows}, support::soften_backward{}, pl::in(dy), pl::inout(dx));
  }
};
// Two passes, each on a stream of its own, forward and back in turns.
void on_two_streams(dry& be) {
  using layers_type = std::vector<stateless_layer<dry>>;
  layers_type layers(5, {&be});
  pl::checkpointed_shape shape;
  shape.rows = 4;
  shape.keep_every = 3;
  shape.in_flight = 2;
  using net_type = pl::checkpointed<dry, float, layers_type>;
  pl::workspace<dry> space(be, net_type::working_set_of(shape, layers));
  net_type net(be, space, shape, layers);
  pl::device_buffer<float, dry> memory(be.device(), 8 * 32, pl::tag::other);
  const auto part = [&](index_t i) { return pl::as_matrix(memory.all().sub(32 * i, 32), 4, 8); };
  auto one = be.make_stream("one"), two = be.make_stream("two");
  const pl::drain<dry> after_one(be, one), after_two(be, two);
  for (const auto& [s, first] : {std::pair{&one, 0}, {&two, 4}})
    for (const index_t i : {0, 2})
      be.launch(*s, pl::elements{32}, pl::fill<float>{1}, pl::out(pl::as_row(part(first + i))));
  for (int step = 0; step < 2; ++step) {
    auto a = net.forward(one, part(0), part(1));
    auto b = net.forward(two, part(4), part(5));
    net.backward(one, a, part(2), part(3));
    net.backward(two, b, part(6), part(7));
  }
}
// Its findings, and the places of the store's waits that were missed, or spared.
struct dry_result {
  std::vector<std::string> findings;
  std::uint64_t waits = 0, operations = 0;
};
template <again How> dry_result run_dry(const offload_net& n, const pl::dry_options& options = {}) {
  dry be("", options);
  n.run<How, float>(be);
  dry_result r;
  for (const auto& f : be.recorder().findings()) r.findings.push_back(be.recorder().text_of(f));
  r.waits = be.recorder().waits();
  r.operations = be.recorder().operations();
  return r;
}

} // namespace

TEST_CASE("the bits of layers whose inputs are all kept, whatever is parked") {
  check_bits<again::recompute, float>();
  check_bits<again::in_backward, float>();
  check_bits<again::forward, float>();
  check_bits<again::kept, float>();
  check_bits<again::recompute, pl::bfloat16>();
}

TEST_CASE("several passes in flight, backward in any order and more than once, over several steps") {
  for (const std::vector<int>& order : {std::vector<int>{0, 1, 2}, {2, 1, 0}, {1, 1, 0}, {0, 2, 0, 1}}) {
    offload_net n;
    n.passes = 3;
    n.backward = order;
    n.steps = 2;
    n.unequal = true;
    for (const int every : {1, 2}) {
      n.keep_every = every;
      const auto found = run<again::kept, float>(n);
      check_same(found, run<again::kept, float>(n, false));
      // Only the first input of each backward, and what is kept beside it, may not be there in time.
      if (every == 1) CHECK(found.statistics.late <= 2 * 2 * order.size());
    }
  }
  offload_net n;
  n.rows = 0;
  check_same(run<again::recompute, float>(n), run<again::recompute, float>(n, false));
  n.rows = 3, n.layers = 1;
  check_same(run<again::forward, float>(n), run<again::forward, float>(n, false));
}

TEST_CASE("under any order of operations, and with every operation taken at its word") {
  offload_net n;
  n.passes = 2;
  n.backward = {1, 0};
  n.layers = 4;
  const auto expected = run<again::kept, float>(n, false);
  for (std::uint64_t seed = 1; seed <= 15; ++seed) {
    CAPTURE(seed);
    pl::seeded_backend be(seed);
    check_same(n.run<again::kept, float>(be), expected);
  }
  pl::audited_backend audited(7);
  check_same(n.run<again::kept, float>(audited), expected);
}

TEST_CASE("two inputs on the device, whatever the depth; the peak falls as the budget grows") {
  for (const index_t layers : {8, 64, 1024}) {
    offload_net n;
    n.layers = layers;
    n.rows = 32;
    dry be;
    const auto r = n.run<again::recompute, float>(be);
    const std::size_t input = 32 * 8 * 4;
    CHECK(r.promised == 2 * input + 2 * input); // and the gradients between layers
    CHECK(be.device().meter().peak(pl::tag::checkpoint).bytes == r.promised);
    CHECK(be.pinned().meter().peak(pl::tag::checkpoint).bytes == static_cast<std::size_t>(layers) * input);
    CHECK(r.statistics.restored == static_cast<std::uint64_t>(layers - 2));
    CHECK(r.statistics.late == 0);
    CHECK(r.statistics.most_on_device == 2);
    CHECK(r.work.host_round_trips == 0);
  }
  offload_net n;
  n.layers = 12;
  std::size_t last = ~std::size_t{0};
  for (index_t parked = 0; parked <= 12; ++parked) {
    n.budget = parked * 256;
    dry be;
    n.run<again::recompute, float>(be);
    const std::size_t peak = be.device().meter().peak(pl::tag::checkpoint).bytes;
    CHECK((parked > 2 ? peak < last : peak <= last));
    last = peak;
  }
}

TEST_CASE("no product goes forward more than twice; with a segment of several layers, three times") {
  const auto products = [](const offload_net& n, auto how) {
    const auto r = run<decltype(how)::value, float>(n);
    return r.work.matrix_products / static_cast<std::uint64_t>(n.layers) - 2; // two are of backward
  };
  offload_net n;
  n.layers = 6;
  CHECK(products(n, std::integral_constant<again, again::recompute>{}) == 2);
  CHECK(products(n, std::integral_constant<again, again::in_backward>{}) == 2);
  CHECK(products(n, std::integral_constant<again, again::forward>{}) == 2);
  CHECK(products(n, std::integral_constant<again, again::kept>{}) == 2);
  n.keep_every = 3;
  const auto r = run<again::recompute, float>(n);
  CHECK(r.work.matrix_products == 6 * 4 + 4); // all but the last of each segment once more
}

TEST_CASE("after construction nothing is allocated") {
  offload_net n;
  host be;
  // What a step allocates is the test's: the same without the store.
  const auto calls_of = [&](bool with_store) {
    const auto calls = [&](int steps) {
      n.steps = steps;
      const std::uint64_t before = counted_new::calls;
      n.run<again::recompute, float>(be, with_store);
      return counted_new::calls - before;
    };
    calls(1);
    return calls(12) - calls(2);
  };
  CHECK(calls_of(true) == 10 * 2); // the list of passes, and the pass
}

TEST_CASE("nothing is unordered, and every wait is missed that something else does not stand for") {
  std::map<std::string, int> missed;
  const auto check = [&](const offload_net& n, auto how) {
    constexpr again which = decltype(how)::value;
    const dry_result whole = run_dry<which>(n);
    for (const std::string& each : whole.findings) FAIL_CHECK(each);
    for (std::uint64_t k = 0; k < whole.waits; ++k) {
      pl::dry_options options;
      options.drop_wait = k;
      dry be("", options);
      n.run<which, float>(be);
      REQUIRE(be.recorder().dropped().has_value());
      const std::string place = be.recorder().dropped()->text();
      if (be.recorder().found() > 0) ++missed[place.substr(place.rfind('/') + 1)];
    }
  };
  offload_net n;
  n.layers = 6;
  check(n, std::integral_constant<again, again::recompute>{});
  n.passes = 2;
  n.backward = {0, 1};
  n.keep_every = 2;
  n.unequal = true;
  check(n, std::integral_constant<again, again::kept>{});
  int of_store = 0;
  for (const auto& [place, times] : missed) of_store += place.find("offload_store.hpp") == 0 ? times : 0;
  CHECK(of_store > 40);
}

TEST_CASE("passes on streams of their own take turns with what they share") {
  std::uint64_t waits = 1;
  int dropped = 0, missed = 0;
  for (std::uint64_t k = 0; k <= waits; ++k) {
    pl::dry_options options;
    if (k < waits) options.drop_wait = k;
    dry be("", options);
    on_two_streams(be);
    waits = be.recorder().waits();
    if (!be.recorder().dropped()) {
      for (const auto& f : be.recorder().findings()) FAIL_CHECK(be.recorder().text_of(f));
      continue;
    }
    if (be.recorder().dropped()->text().find("checkpointed.hpp") == std::string::npos) continue;
    ++dropped;
    missed += be.recorder().found() > 0;
  }
  CHECK(dropped == 7); // nobody is before the first
  CHECK(missed == 7);
}

TEST_CASE("whichever operation fails, it is thrown, and nothing leaks") {
  offload_net n;
  n.passes = 2;
  n.backward = {1, 0};
  n.keep_every = 2;
  const std::uint64_t operations = run_dry<again::kept>(n).operations;
  REQUIRE(operations > 100);
  for (std::uint64_t k = 0; k < operations; ++k) {
    CAPTURE(k);
    pl::dry_options options;
    options.throw_at = k;
    dry be("", options);
    std::string text;
    try {
      n.run<again::kept, float>(be);
    } catch (const pl::backend_error& e) {
      text = e.what();
    }
    CHECK(text.find("operation " + std::to_string(k) + " fails") != std::string::npos);
    CHECK(be.device().meter().current() + be.pinned().meter().current() == 0);
    for (const auto& f : be.recorder().findings()) FAIL_CHECK(be.recorder().text_of(f));
  }
}

TEST_CASE("in virtual time parking costs nothing where the link hides it, and the break-even says where") {
  const pl::hardware machine = pl::h200();
  for (const index_t hidden : {20480, 5120}) {
    CAPTURE(hidden);
    offload_net n;
    n.rows = 8192;
    n.hidden = hidden;
    n.layers = 24;
    const auto seconds = [&](index_t budget) {
      n.budget = budget;
      const pl::dry_ranks ran = pl::run_dry(1, [&](pl::dry_communicator& comm) {
        dry be(comm);
        n.run<again::recompute, pl::bfloat16>(be);
      });
      REQUIRE_FALSE(ran.cause.has_value());
      return pl::predict(ran, machine).seconds;
    };
    const double without = seconds(0), with = seconds(pl::offload_shape::no_limit);
    pl::offload_costs costs;
    costs.to_host_bytes_per_second = machine.device_to_host_bytes_per_second;
    costs.to_device_bytes_per_second = machine.host_to_device_bytes_per_second;
    const double product = 2.0 * 8192 * static_cast<double>(hidden * hidden) / machine.half_flops;
    costs.forward_seconds = costs.recompute_seconds = product;
    costs.backward_seconds = 3 * product;
    const auto even = pl::break_even_of(8192 * hidden * 2, costs);
    CHECK((even.hidden_bytes_per_second < costs.to_host_bytes_per_second) == (hidden == 20480));
    if (even.exposed_seconds == 0)
      CHECK(with <= 1.02 * without);
    else // what is exposed is what the break-even says, layer by layer
      CHECK(with - without == doctest::Approx(23 * even.exposed_seconds).epsilon(0.1));
  }
}

TEST_CASE("the working set of a sequence is the formula of the documentation") {
  host be;
  auto s = be.make_stream("main");
  const auto check = [&](auto how, index_t unread) {
    using layer = support::soft_layer<host, float, decltype(how)::value>;
    std::vector<layer> all;
    const pl::drain<host> end(be, s);
    for (index_t l = 0; l < 7; ++l)
      all.emplace_back(be, s, 40, 8, 8, 1); // an input: 40 x 8 floats, 1,280 bytes
    for (const int every : {1, 2, 3, 7, 100}) {
      CAPTURE(every);
      pl::checkpointed_shape shape;
      shape.rows = 40;
      shape.keep_every = every;
      shape.in_flight = 2;
      const auto set = pl::checkpointed<host, float, std::vector<layer>>::working_set_of(shape, all);
      const index_t inputs = (7 + every - 1) / every, segment = std::min(every, 7);
      const auto kept = pl::kept_tensors_of<layer>() * index_t{256}; // 160 bytes each; every layer has one
      const index_t parked = inputs * 2 > 2 ? inputs * 2 : 0;
      CHECK(set.device_bytes() == static_cast<std::size_t>((parked == 0 ? inputs * 2 : 2) * 1280 + 2 * kept +
                                                           (segment - 1) * 1280 + 2 * 1280 + unread * 1280));
      CHECK(set.pinned_bytes() == static_cast<std::size_t>(parked * 1280 + 7 * 2 * kept));
    }
  };
  check(std::integral_constant<again, again::recompute>{}, 0);
  check(std::integral_constant<again, again::in_backward>{}, 0);
  check(std::integral_constant<again, again::forward>{}, 1);
  check(std::integral_constant<again, again::kept>{}, 0);
}

TEST_CASE("what cannot be is refused and says why") {
  using layer = support::soft_layer<host, float, again::recompute>;
  using net_type = pl::checkpointed<host, float, std::vector<layer>, layer>;
  host be;
  auto s = be.make_stream("main");
  std::vector<layer> some;
  for (int i = 0; i < 2; ++i) some.emplace_back(be, s, 4, 8, 8, 1);
  layer last(be, s, 4, 8, 5, 1), wrong(be, s, 4, 7, 5, 1);
  const pl::drain<host> end(be, s);
  const auto text = [](auto f) {
    std::string t;
    try {
      f();
    } catch (const pl::config_error& e) {
      t = e.what();
    }
    return t;
  };
  const auto has = [](const std::string& t, const char* part) { return t.find(part) != std::string::npos; };
  pl::checkpointed_shape shape;
  shape.rows = 4;
  const auto set = [&](const pl::checkpointed_shape& of, layer& with) {
    return text([&] { net_type::working_set_of(of, some, with); });
  };
  CHECK(has(set(shape, wrong), "layer 2 takes 7 columns, but the one before it gives 8"));
  auto bad = shape;
  bad.keep_every = 0;
  CHECK(has(set(bad, last), "keep_every is 0"));
  bad = shape, bad.restored_at_once = 1;
  CHECK(has(set(bad, last), "2 or more are needed"));
  bad = shape, bad.rows = -1;
  CHECK(has(set(bad, last), "rows is -1"));
  bad = shape, bad.in_flight = 0;
  CHECK(has(set(bad, last), "in_flight is 0"));

  pl::workspace<host> space(be, net_type::working_set_of(shape, some, last));
  net_type net(be, space, shape, some, last);
  CHECK(net.layers() == 3);
  pl::device_buffer<float, host> x(be.device(), 64, pl::tag::other), y(be.device(), 64, pl::tag::other);
  const pl::drain<host> before_they_go(be, s);
  be.launch(s, pl::elements{64}, support::soft_noise{}, pl::out(x.all()));
  CHECK(has(text([&] { static_cast<void>(net.forward(s, x.matrix(4, 7), y.matrix(4, 5))); }), "x is 4 x 7"));
  CHECK(has(text([&] { static_cast<void>(net.forward(s, x.matrix(5, 8), y.matrix(5, 5))); }),
            "at most 4 rows"));
  auto one = net.forward(s, x.matrix(4, 8), y.matrix(4, 5));
  CHECK(has(text([&] { static_cast<void>(net.forward(s, x.matrix(4, 8), y.matrix(4, 5))); }),
            "one forward too many"));
  CHECK(has(text([&] { net.backward(s, one, y.matrix(3, 5), x.matrix(4, 8)); }), "dy is 3 x 5, but 4 x 5"));
  auto two = std::move(one);
  CHECK(has(text([&] { net.backward(s, one, y.matrix(4, 5), x.matrix(4, 8)); }), "moved from"));
  net.backward(s, two, y.matrix(4, 5), x.matrix(4, 8));
  net.backward(s, two, y.matrix(4, 5), x.matrix(4, 8));
}

TEST_CASE("a pass forward and backward, as the documentation has it") {
  using Backend = host;
  using T = float;
  using block = support::soft_layer<Backend, T, again::recompute>;
  Backend backend;
  auto stream = backend.make_stream("main");
  std::vector<block> blocks;
  for (int i = 0; i < 4; ++i) blocks.emplace_back(backend, stream, 4, 8, 8, 1);
  pl::checkpointed_shape shape;
  shape.rows = 4;
  pl::workspace<Backend> space(
      backend, pl::checkpointed<Backend, T, std::vector<block>>::working_set_of(shape, blocks));
  pl::device_buffer<T, Backend> memory(backend.device(), 4 * 32, pl::tag::other);
  const pl::drain<Backend> before_it_goes(backend, stream);
  const auto matrix = [&](index_t i) { return pl::as_matrix(memory.all().sub(32 * i, 32), 4, 8); };
  const auto x = matrix(0), y = matrix(1), dy = matrix(2), dx = matrix(3);
  backend.launch(stream, pl::elements{32}, support::soft_noise{}, pl::out(pl::as_row(x)));
  backend.launch(stream, pl::elements{32}, pl::fill<T>{1}, pl::out(pl::as_row(dy)));
  backend.launch(stream, pl::elements{32}, pl::fill<T>{0}, pl::out(pl::as_row(dx)));

  pl::checkpointed<Backend, T, std::vector<block>> net(backend, space, shape, blocks);
  auto pass = net.forward(stream, x, y);
  net.backward(stream, pass, dy, dx);

  backend.wait(backend.record(stream));
  for (index_t i = 0; i < 32; ++i) {
    CHECK(y.p[i] != 0);
    CHECK(dx.p[i] != 0);
  }
}
