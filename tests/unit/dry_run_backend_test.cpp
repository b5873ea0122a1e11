// SPDX-License-Identifier: Apache-2.0
//
// The backend without data: it counts and meters as the host backend does, byte for byte; it names what
// nothing orders, what is stale and what goes too early; it answers fetches from a scenario; and it fails and
// forgets where it is told to.
#include <plateau/dry_run/backend.hpp>

#include <plateau/checks.hpp>
#include <plateau/column_sum.hpp>
#include <plateau/drain.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/kernels.hpp>
#include <plateau/workspace.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace pl = plateau;
namespace dry = plateau::dry;
using dry::action;
using dry::engine;
using pl::dry_options;
using pl::elements;
using pl::in;
using pl::index_t;
using pl::inout;
using pl::out;
using pl::rows;
using pl::some;
using pl::tag;
using pl::transpose;
using backend_t = pl::dry_run<pl::host_backend>;
template <class T, class B = backend_t> using device = pl::device_buffer<T, B>;
template <class T, class B = backend_t> using pinned = pl::pinned_buffer<T, B>;

static_assert(pl::check_backend<backend_t>());
static_assert(backend_t::row_invariant == pl::host_backend::row_invariant);
static_assert(pl::accessible_from<backend_t, pl::host_space>);

// Scratch of another machine, which is no backend.
struct other_scratch {
  static constexpr bool row_invariant = false;
  template <class A, class B, class C>
  static std::size_t gemm_scratch_bytes(transpose, transpose, index_t m, index_t, index_t) {
    return static_cast<std::size_t>(m) * 1000;
  }
  static std::size_t group_by_key_scratch_bytes(index_t n, index_t) {
    return static_cast<std::size_t>(n) * 16;
  }
  static std::size_t exclusive_scan_scratch_bytes(index_t) { return 48; }
};
static_assert(pl::check_backend<pl::dry_run<other_scratch>>());
static_assert(!pl::dry_run<other_scratch>::row_invariant);
static_assert(!pl::accessible_from<pl::dry_run<other_scratch>, pl::host_space>);

bool has(const std::string& text, const std::string& piece) {
  if (text.find(piece) != std::string::npos) return true;
  MESSAGE("'" << text << "' does not say '" << piece << "'");
  return false;
}
std::string at_line(int line) { return "dry_run_backend_test.cpp:" + std::to_string(line); }
std::vector<std::string> findings(const backend_t& b) {
  std::vector<std::string> all;
  for (const dry::finding& f : b.recorder().findings()) all.push_back(b.recorder().text_of(f));
  return all;
}
std::string only_finding(const backend_t& b) {
  const auto all = findings(b);
  for (std::size_t i = 1; i < all.size(); ++i) MESSAGE(all[i]);
  REQUIRE(all.size() == 1);
  return all[0];
}
template <class Error = pl::config_error, class F> std::string refusal(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "(nothing was thrown)";
}
const dry::instruction& last(const backend_t& b) { return b.recorder().program().instructions.back(); }
std::string last_name(const backend_t& b) { return b.recorder().program().labels[last(b).name].name; }

void check_same(const pl::counters& a, const pl::counters& b) {
  CHECK(a.matrix_flops == b.matrix_flops);
  CHECK(a.matrix_products == b.matrix_products);
  CHECK(a.launches == b.launches);
  CHECK(a.copied_bytes == b.copied_bytes);
  CHECK(a.host_round_trips == b.host_round_trips);
}
void check_same(const pl::meter& a, const pl::meter& b) {
  const auto same = [](const pl::peak& p, const pl::peak& q) {
    return p.bytes == q.bytes && p.held == q.held && std::string(p.phase) == q.phase;
  };
  CHECK(a.current() == b.current());
  CHECK(same(a.peak(), b.peak()));
  CHECK(a.allocations() == b.allocations());
  for (const tag t : pl::all_tags) {
    CAPTURE(pl::name_of(t));
    CHECK(a.current(t) == b.current(t));
    CHECK(same(a.peak(t), b.peak(t)));
    CHECK(a.allocations(t) == b.allocations(t));
  }
}

// A random program of everything that is counted, over buffers that come and go. The same calls on every
// backend: what is drawn does not depend on it. All memory is written before it is read.
template <class B> class random_program {
 public:
  random_program(B& b, std::uint32_t seed)
      : b_(b), random_(seed), s_(b.make_stream("main")), t_(b.make_stream("side")) {}

  void run(int steps) {
    for (int step = 0; step < steps; ++step) {
      if (step % 7 == 0) b_.device().meter().phase(step % 2 == 0 ? "even" : "odd");
      operation();
      if (draw(3) == 0) order(); // the other stream may go on with what this one has done
    }
    b_.wait(b_.record(s_));
    b_.wait(b_.record(t_));
  }

 private:
  using stream = typename B::stream;
  index_t draw(index_t n) { return std::uniform_int_distribution<index_t>(0, n - 1)(random_); }
  tag any_tag() { return pl::all_tags[static_cast<std::size_t>(draw(pl::tag_count))]; }
  void order() {
    b_.wait(t_, b_.record(s_));
    b_.wait(s_, b_.record(t_));
  }
  template <class T> device<T, B> filled(stream& s, index_t n) {
    device<T, B> x(b_.device(), n, any_tag());
    b_.launch(s, elements{n}, pl::fill<T>{}, out(x.all()));
    return x;
  }
  device<unsigned char, B> scratch(std::size_t n) {
    return {b_.device(), static_cast<index_t>(n), any_tag()};
  }

  template <class T> void multiply(stream& s) {
    const index_t m = draw(9), n = draw(9), k = draw(9), count = 1 + draw(3);
    const auto op_a = draw(2) == 0 ? transpose::no : transpose::yes;
    const auto op_b = draw(2) == 0 ? transpose::no : transpose::yes;
    const auto a = filled<T>(s, m * k * count), w = filled<T>(s, k * n * count);
    const auto c = filled<float>(s, m * n * count);
    const auto space = scratch(B::template gemm_scratch_bytes<T, T, float>(op_a, op_b, m, n, k));
    const auto matrix = [](const auto& x, index_t r, index_t q, transpose op, index_t i) {
      const auto v = x.all().sub(i * r * q, r * q);
      return op == transpose::no ? pl::as_matrix(v, r, q) : pl::as_matrix(v, q, r);
    };
    const auto batch = [&]<class E>(const device<E, B>& x, index_t r, index_t q, transpose op) {
      const auto first = matrix(x, r, q, op, 0);
      return pl::tile_batch<E>{first.p, count, r * q, first.rows, first.cols, first.ld};
    };
    const float beta = static_cast<float>(draw(2));
    switch (draw(3)) {
    case 0:
      b_.gemm(s, op_a, op_b, 1.0F, in(matrix(a, m, k, op_a, 0)), in(matrix(w, k, n, op_b, 0)), beta,
              inout(matrix(c, m, n, transpose::no, 0)), space.all());
      break;
    case 1:
      b_.gemm(s, op_a, op_b, 1.0F, in(batch(a, m, k, op_a)), in(batch(w, k, n, op_b)), beta,
              inout(batch(c, m, n, transpose::no)), space.all());
      break;
    case 2: {
      std::vector<pl::gemm_group<T, T, float>> groups;
      for (index_t i = 0; i < count; ++i)
        groups.push_back(
            {matrix(a, m, k, op_a, i), matrix(w, k, n, op_b, i), matrix(c, m, n, transpose::no, i)});
      b_.grouped_gemm(s, op_a, op_b, 1.0F, beta, std::span<const pl::gemm_group<T, T, float>>(groups),
                      space.all());
      break;
    }
    }
    b_.wait(b_.record(s));
  }
  void operation() {
    auto& s = draw(2) == 0 ? s_ : t_;
    const index_t n = draw(5) == 0 ? 0 : 1 + draw(500);
    switch (draw(8)) {
    case 0: {
      const auto x = filled<float>(s, n), y = filled<float>(s, n);
      pinned<float, B> h(b_.pinned(), n, any_tag());
      b_.copy(s, in(x.all()), out(y.all()));
      b_.copy(s, in(y.all()), out(h.all()));
      b_.copy(s, in(h.all()), out(x.all()));
      b_.wait(b_.record(s));
      break;
    }
    case 1: {
      const index_t r = draw(5), c = draw(6), ld = c + draw(3);
      const auto x = filled<float>(s, r * ld), y = filled<float>(s, r * ld);
      b_.copy(s, in(pl::tile<float>{x.data(), r, c, ld}), out(pl::tile<float>{y.data(), r, c, ld}));
      b_.wait(b_.record(s));
      break;
    }
    case 2:
      multiply<float>(s);
      break;
    case 3:
      multiply<pl::bfloat16>(s);
      break;
    case 4: {
      const index_t keys = draw(7);
      const auto ids = filled<std::int32_t>(s, n);
      const device<std::int32_t, B> order(b_.device(), n, any_tag());
      const device<std::int64_t, B> offsets(b_.device(), keys + 1, any_tag()),
          sums(b_.device(), keys + 2, any_tag());
      const auto space = scratch(B::group_by_key_scratch_bytes(n, keys));
      const auto more = scratch(B::exclusive_scan_scratch_bytes(keys + 1));
      b_.group_by_key(s, in(ids.all()), out(order.all()), out(offsets.all()), space.all());
      b_.exclusive_scan(s, in(offsets.all()), out(sums.all()), more.all());
      b_.wait(b_.record(s));
      break;
    }
    case 5: {
      const index_t c = 1 + draw(4);
      const auto x = filled<float>(s, n * c), sums = filled<float>(s, c);
      const auto space = scratch(pl::column_sum_scratch_bytes(n, c));
      pl::column_sum(b_, s, in(x.matrix(n, c)), inout(sums.all()), space.all());
      b_.wait(b_.record(s));
      break;
    }
    case 6: {
      const auto x = filled<std::int64_t>(s, n);
      pinned<std::int64_t, B> h(b_.pinned(), n, any_tag());
      std::vector<std::int64_t> into(static_cast<std::size_t>(n));
      b_.copy(s, in(x.all()), out(h.all()));
      b_.host_task(
          s, [](pl::view<std::int64_t, pl::host_space>) {}, inout(h.all()));
      b_.fetch(b_.record(s), in(h.all()), std::span(into), "values", 0);
      break;
    }
    case 7: {
      pl::working_set set(any_tag());
      set.device<float>("slot", n).pinned<float>("mirror", 2 * n);
      pl::workspace<B> space(b_, set);
      auto phase = space.open(set);
      const auto x = phase.template device<float>(n);
      b_.launch(s, elements{n}, pl::fill<float>{}, out(x));
      b_.wait(b_.record(s));
      break;
    }
    }
  }

  B& b_;
  std::mt19937 random_;
  stream s_, t_;
};

} // namespace

TEST_CASE("random programs count and meter as on the host backend, byte for byte") {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    pl::host_backend real("rank 0");
    backend_t none("rank 0");
    random_program<pl::host_backend>(real, seed).run(40);
    random_program<backend_t>(none, seed).run(40);
    check_same(none.counters(), real.counters());
    check_same(none.device().meter(), real.device().meter());
    check_same(none.pinned().meter(), real.pinned().meter());
    CHECK(none.device().meter().current() == 0);
    for (const std::string& f : findings(none)) FAIL_CHECK(f);
    // The program says the same: flops, and what each tag held.
    double flops = 0;
    std::size_t held[2] = {};
    std::size_t by_tag[2][pl::tag_count] = {};
    std::size_t most[2] = {};
    for (const dry::instruction& i : none.recorder().program().instructions) {
      flops += i.flops;
      if (i.what != action::memory) continue;
      held[i.other] += i.bytes - by_tag[i.other][i.stream];
      by_tag[i.other][i.stream] = i.bytes;
      most[i.other] = std::max(most[i.other], held[i.other]);
    }
    CHECK(flops == static_cast<double>(none.counters().matrix_flops));
    CHECK(most[0] == none.device().meter().peak().bytes);
    CHECK(most[1] == none.pinned().meter().peak().bytes);
    CHECK(held[0] == 0);
  }
}

TEST_CASE("counters and meters do not depend on what is checked and recorded") {
  for (const int parts : {0, 1, 2, 3}) {
    dry_options options;
    options.check_order = parts % 2 != 0;
    options.record_program = parts / 2 != 0;
    backend_t all("rank 0"), some_of_it("rank 0", options);
    random_program<backend_t>(all, 99).run(60);
    random_program<backend_t>(some_of_it, 99).run(60);
    check_same(all.counters(), some_of_it.counters());
    check_same(all.device().meter(), some_of_it.device().meter());
    CHECK(some_of_it.recorder().operations() == all.recorder().operations());
    CHECK(some_of_it.recorder().waits() == all.recorder().waits());
    CHECK(some_of_it.recorder().program().instructions.empty() == !options.record_program);
  }
}

namespace {
// to[i] = table[which[i]], of a table that need not be read whole.
struct look_up {
  std::uint64_t more = 0;
  void operator()(index_t i, pl::view<const std::int32_t> which, pl::view<const float> table,
                  pl::view<float> to) const {
    to[i] = table[which[i]];
  }
  std::uint64_t moved_bytes(index_t n, pl::view<const std::int32_t> which, pl::view<const float>,
                            pl::view<float> to) const {
    return static_cast<std::uint64_t>(n * 12 + which.n * 1000 + to.n * 100'000) + more;
  }
};
// Knows of another kind of arguments only, so that it is not asked.
struct look_up_all : look_up {
  std::uint64_t moved_bytes(index_t n, pl::view<const double>) const { return static_cast<std::uint64_t>(n); }
};
} // namespace

TEST_CASE("a kernel that says how many bytes it moves is charged for those") {
  backend_t b("rank 0");
  device<float> table(b.device(), 4096, tag::other), to(b.device(), 8, tag::other);
  device<std::int32_t> which(b.device(), 8, tag::other);
  auto s = b.make_stream("main");
  b.launch(s, elements{4096}, pl::fill<float>{1}, out(table.all()));
  b.launch(s, elements{8}, pl::fill<std::int32_t>{1}, out(which.all()));
  const auto filled = b.record(s);
  b.launch(s, elements{8}, look_up{7}, in(which.all()), in(table.all()), out(to.all()));
  CHECK(last(b).bytes == 8 * 12 + 8 * 1000 + 8 * 100'000 + 7);
  CHECK(has(last_name(b), "look_up"));
  b.launch(s, elements{8}, look_up_all{}, in(which.all()), in(table.all()), out(to.all()));
  CHECK(last(b).bytes == 8 * 4 + 4096 * 4 + 8 * 4);
  // What it touches is still all that it is given, as far as order goes.
  auto other = b.make_stream("other");
  b.wait(other, filled);
  b.launch(other, elements{1}, pl::fill<float>{2}, out(table.all().sub(4095, 1)));
  CHECK(has(only_finding(b), "look_up"));
}

TEST_CASE("what each operation is in the program: name, engine, flops, bytes") {
  backend_t b("rank 0");
  device<float> x(b.device(), 64, tag::other), y(b.device(), 64, tag::other), z(b.device(), 64, tag::other);
  pinned<float> h(b.pinned(), 64, tag::other), g(b.pinned(), 64, tag::other);
  device<pl::bfloat16> low(b.device(), 64, tag::other);
  device<std::int64_t> sums(b.device(), 9, tag::other);
  device<unsigned char> scratch(b.device(), 1 << 16, tag::other);
  auto s = b.make_stream("main");
  const auto is = [&](const char* name, engine on, double flops, std::uint64_t bytes, int line) {
    CAPTURE(name);
    CHECK(last(b).what == action::operation);
    CHECK(has(last_name(b), name));
    CHECK(last(b).on == on);
    CHECK(last(b).flops == flops);
    CHECK(last(b).bytes == bytes);
    CHECK(last(b).stream == s.number());
    CHECK(b.recorder().program().labels[last(b).name].at.line == line);
  };
  b.launch(s, elements{64}, pl::fill<float>{1}, out(x.all()));
  is("fill", engine::compute, 0, 256, __LINE__ - 1);
  b.launch(s, elements{64}, pl::fill<float>{1}, some(y.all()));
  is("fill", engine::compute, 0, 256, __LINE__ - 1);
  b.launch(s, elements{64}, pl::add{}, in(x.all()), inout(y.all())); // y comes and goes
  is("add", engine::compute, 0, 3 * 256, __LINE__ - 1);
  b.copy(s, in(x.all()), out(y.all()));
  is("copy", engine::device_copy, 0, 256, __LINE__ - 1);
  b.copy(s, in(x.all()), out(h.all()));
  is("copy", engine::device_to_host, 0, 256, __LINE__ - 1);
  b.copy(s, in(h.all()), out(z.all()));
  is("copy", engine::host_to_device, 0, 256, __LINE__ - 1);
  b.copy(s, in(h.all()), out(g.all()));
  is("copy", engine::host, 0, 256, __LINE__ - 1);
  b.copy(s, in(pl::tile<float>{x.data(), 3, 4, 10}), out(pl::tile<float>{y.data(), 3, 4, 12}));
  CHECK(last(b).bytes == 48);
  const auto never = [](pl::view<float, pl::host_space>) { throw std::runtime_error("no task is run"); };
  b.host_task(s, never, inout(g.all())); // one line: compilers differ in which of several they name
  is("host_task", engine::host, 0, 512, __LINE__ - 1);
  b.gemm(s, transpose::no, transpose::no, 1, in(x.matrix(4, 5)), in(y.matrix(5, 6)), 0, out(z.matrix(4, 6)),
         scratch.all());
  is("gemm", engine::compute, 2 * 4 * 5 * 6, 4 * (20 + 30 + 24), __LINE__ - 2);
  CHECK(last(b).type == pl::scalar_kind::fp32);
  b.gemm(s, transpose::no, transpose::no, 1, in(x.matrix(4, 5)), in(y.matrix(5, 6)), 1, inout(z.matrix(4, 6)),
         scratch.all());
  is("gemm", engine::compute, 2 * 4 * 5 * 6, 4 * (20 + 30 + 2 * 24), __LINE__ - 2);
  b.launch(s, elements{64}, pl::convert{}, in(x.all()), out(low.all()));
  is("convert", engine::compute, 0, 256 + 128, __LINE__ - 1);
  b.gemm(s, transpose::no, transpose::yes, 1, in(low.matrix(4, 8)), in(low.matrix(6, 8)), 0,
         out(z.matrix(4, 6)), scratch.all());
  is("gemm", engine::compute, 2 * 4 * 8 * 6, 2 * (32 + 48) + 4 * 24, __LINE__ - 2);
  CHECK(last(b).type == pl::scalar_kind::bf16);
  // One operand again and again is read once for each product.
  const pl::tile_batch<float> one{x.data(), 3, 0, 2, 2, 2}, three{y.data(), 3, 4, 2, 2, 2},
      to{z.data(), 3, 4, 2, 2, 2};
  b.gemm(s, transpose::no, transpose::no, 1, in(one), in(three), 0, out(to), scratch.all());
  is("gemm of batches", engine::compute, 3 * 2 * 8, 4 * 3 * 12, __LINE__ - 1);
  const pl::gemm_group<float, float, float> groups[] = {
      {x.matrix(2, 3), y.matrix(3, 2), pl::as_matrix(z.all().sub(0, 4), 2, 2)},
      {pl::tile<float>{nullptr, 0, 3, 3}, y.matrix(3, 2), pl::tile<float>{nullptr, 0, 2, 2}},
      {x.matrix(1, 3), y.matrix(3, 2), pl::as_matrix(z.all().sub(4, 2), 1, 2)}};
  b.grouped_gemm(s, transpose::no, transpose::no, 1, 0,
                 std::span<const pl::gemm_group<float, float, float>>(groups), scratch.all());
  is("grouped_gemm", engine::compute, 2 * (12 + 6), 4 * (6 + 6 + 4 + 3 + 6 + 2), __LINE__ - 2);
  b.exclusive_scan(s, in(sums.first(0)), out(sums.first(1)), scratch.all());
  is("exclusive_scan", engine::compute, 0, 8, __LINE__ - 1);
  CHECK(findings(b).empty());
}

TEST_CASE("D9, V5: 912,000 rows of 7,168 columns and 256,000 x 12,288 weights are counted in 64 bits") {
  backend_t b("rank 0");
  const index_t row_count = 912'000, hidden = 7168, vocabulary = 256'000, wide = 12'288;
  device<pl::bfloat16> rows_of(b.device(), row_count * hidden, tag::dispatch),
      again(b.device(), row_count * hidden, tag::dispatch);
  device<float> w(b.device(), vocabulary * wide, tag::vocabulary),
      x(b.device(), 4096 * wide, tag::activations), logits(b.device(), 4096 * vocabulary, tag::vocabulary);
  auto s = b.make_stream("main");
  b.launch(s, elements{rows_of.size()}, pl::fill<pl::bfloat16>{}, out(rows_of.all()));
  b.copy(s, in(rows_of.matrix(row_count, hidden)), out(again.matrix(row_count, hidden)));
  CHECK(b.counters().copied_bytes == 13'074'432'000u);
  CHECK(last(b).bytes == 13'074'432'000u);
  b.launch(s, elements{w.size()}, pl::fill<float>{}, out(w.all()));
  b.launch(s, elements{x.size()}, pl::fill<float>{}, out(x.all()));
  const auto needed = backend_t::gemm_scratch_bytes<float, float, float>(transpose::no, transpose::yes, 4096,
                                                                         vocabulary, wide);
  device<unsigned char> scratch(b.device(), static_cast<index_t>(needed), tag::other);
  b.gemm(s, transpose::no, transpose::yes, 1, in(x.matrix(4096, wide)), in(w.matrix(vocabulary, wide)), 0,
         out(logits.matrix(4096, vocabulary)), scratch.all());
  CHECK(b.counters().matrix_flops == std::uint64_t{2} * 4096 * 256'000 * 12'288);
  CHECK(b.device().meter().peak(tag::dispatch).bytes == 2 * 13'074'432'000u);
  CHECK(findings(b).empty());
  // One row too many runs past the end.
  b.launch(s, elements{1}, pl::fill<pl::bfloat16>{},
           some(pl::view<pl::bfloat16>{rows_of.data(), (row_count + 1) * hidden}));
  CHECK(has(only_finding(b), "which has only 13074432000 bytes"));
  b.wait(b.record(s));
}

TEST_CASE("scratch is what the model says") {
  using other = pl::dry_run<other_scratch>;
  CHECK(other::gemm_scratch_bytes<float, float, float>(transpose::no, transpose::no, 7, 1, 1) == 7000);
  CHECK(other::group_by_key_scratch_bytes(7, 1) == 112);
  CHECK(other::exclusive_scan_scratch_bytes(7) == 48);
  CHECK(backend_t::group_by_key_scratch_bytes(7, 1) == pl::host_backend::group_by_key_scratch_bytes(7, 1));
  other b("rank 0");
  device<std::int64_t, other> v(b.device(), 8, tag::other);
  device<unsigned char, other> scratch(b.device(), 64, tag::other);
  auto s = b.make_stream("main");
  CHECK(has(refusal([&] { b.exclusive_scan(s, in(v.first(3)), out(v.first(4)), scratch.first(47)); }),
            "needs 48 bytes of scratch, got 47"));
  // Two streams that share scratch are a finding, and so is scratch that is read afterwards.
  b.launch(s, elements{4}, pl::fill<std::int64_t>{}, out(v.first(4)));
  b.exclusive_scan(s, in(v.first(3)), out(v.all().sub(4, 4)), scratch.all());
  CHECK(b.recorder().found() == 0);
  auto t = b.make_stream("side");
  b.wait(t, b.record(s));
  b.launch(t, elements{1}, pl::fill<unsigned char>{}, inout(scratch.first(1)));
  REQUIRE(b.recorder().found() == 1);
  CHECK(has(b.recorder().text_of(b.recorder().findings()[0]), "used as scratch"));
  b.exclusive_scan(s, in(v.first(3)), out(v.all().sub(4, 4)), scratch.all());
  CHECK(b.recorder().found() == 2);
  b.wait(b.record(s));
}

// --- what the host does ---

TEST_CASE("fetch: the scenario is asked first, then there is the dry answer, then an error with its line") {
  struct request {
    int rank;
    std::string label;
    std::uint64_t number;
    std::size_t element_bytes, bytes;
  };
  std::vector<request> asked;
  dry_options options;
  options.scenario = [&](const pl::dry_fetch& f) {
    asked.push_back({f.rank, f.label, f.number, f.element_bytes, f.into.size()});
    if (std::string(f.label) != "counts") return false;
    for (std::size_t i = 0; i < f.into.size() / 8; ++i) {
      const std::int64_t value = 100 * static_cast<std::int64_t>(f.number) + static_cast<std::int64_t>(i);
      std::memcpy(f.into.data() + 8 * i, &value, 8);
    }
    return true;
  };
  backend_t b("rank 0", options);
  pinned<std::int64_t> counts(b.pinned(), 3, tag::dispatch);
  pinned<float> status(b.pinned(), 2, tag::other);
  auto s = b.make_stream("main");
  b.host_task(
      s, [](auto, auto) {}, out(counts.all()), out(status.all()));
  std::vector<std::int64_t> into(3, -1);
  std::array<float, 2> flags{-1, -1};

  b.fetch(b.record(s), in(counts.all()), std::span(into), "counts", 7); // its dry answer is not needed
  CHECK(into == std::vector<std::int64_t>{0, 1, 2});
  b.fetch(b.record(s), in(counts.all().sub(1, 2)), std::span(into).first(2), "counts");
  CHECK(into == std::vector<std::int64_t>{100, 101, 2});
  b.fetch(b.record(s), in(status.all()), std::span<float>(flags), "status", 0.5F);
  CHECK(flags == std::array<float, 2>{0.5F, 0.5F});
  CHECK(b.counters().host_round_trips == 3);
  flags = {-1, -1};
  const int line = __LINE__ + 2;
  const std::string text =
      refusal([&] { b.fetch(b.record(s), in(status.all()), std::span<float>(flags), "status"); });
  CHECK(has(text, "plateau: rank 0: fetch of 'status' at"));
  CHECK(has(text, at_line(line)));
  CHECK(has(text, "2 values"));
  CHECK(has(text, "scenario"));
  CHECK(flags == std::array<float, 2>{-1, -1});

  REQUIRE(asked.size() == 4);
  CHECK(asked[0].rank == 0);
  CHECK(asked[0].label == "counts");
  CHECK(asked[0].element_bytes == 8);
  CHECK(asked[0].bytes == 24);
  CHECK(asked[0].number == 0);
  CHECK(asked[1].number == 1); // of this label
  CHECK(asked[1].bytes == 16);
  CHECK(asked[2].label == "status");
  CHECK(asked[2].number == 0);
  CHECK(asked[2].element_bytes == 4);
  CHECK(asked[3].number == 1);

  // A fetch of nothing waits, asks nobody and is no round trip.
  const auto before = b.counters();
  b.fetch(b.record(s), in(status.first(0)), std::span<float>(), "nothing");
  CHECK((b.counters() - before).host_round_trips == 0);
  CHECK(asked.size() == 4);
  CHECK(last(b).what == action::host_wait);
  CHECK(last(b).round_trip == 0);
  CHECK(findings(b).empty());
}

TEST_CASE("a fetch waits, once, as a round trip; without its event it reads what may not be there") {
  backend_t b("rank 0");
  pinned<float> h(b.pinned(), 4, tag::other);
  device<float> d(b.device(), 4, tag::other);
  auto s = b.make_stream("main");
  b.launch(s, elements{4}, pl::fill<float>{}, out(d.all()));
  b.copy(s, in(d.all()), out(h.all()));
  std::array<float, 4> into{};
  b.fetch(b.record(s), in(h.all()), std::span<float>(into), "sums", 0.0F);
  CHECK(findings(b).empty());
  CHECK(last(b).what == action::host_wait);
  CHECK(last(b).round_trip == 1);
  CHECK(last(b).bytes == 2);
  b.copy(s, in(d.all()), out(h.all()));
  const int line = __LINE__ + 1;
  b.fetch({}, in(h.all()), std::span<float>(into), "sums", 0.0F);
  const std::string text = only_finding(b);
  CHECK(has(text, "'sums'"));
  CHECK(has(text, "of the host at"));
  CHECK(has(text, at_line(line)));
  CHECK(has(text, at_line(line - 2)));
  b.wait(b.record(s));
}

TEST_CASE("host_access is the host's own touch, at once") {
  backend_t b("rank 0");
  pinned<float> h(b.pinned(), 8, tag::other);
  auto s = b.make_stream("main");
  b.host_access(out(h.all()));
  b.host_access(); // nothing
  b.host_access(in(h.first(0)));
  const auto task = [](auto) {};
  b.host_task(s, task, inout(h.first(4)));
  b.host_access(in(h.all().sub(4, 4))); // nobody else's
  CHECK(findings(b).empty());
  const int line = __LINE__ - 3;
  b.host_access(in(h.all().sub(3, 2)));
  const std::string text = only_finding(b);
  CHECK(has(text, "'access'"));
  CHECK(has(text, "of the host reads what 'host_task'"));
  CHECK(has(text, at_line(line)));
  CHECK(has(text, "bytes [12, 16)"));
  CHECK(b.counters().host_round_trips == 0);
  b.wait(b.record(s));
}

TEST_CASE("waits name the line of their caller") {
  const auto program = [](backend_t& b, int& first_line) {
    device<float> x(b.device(), 4, tag::other);
    auto s = b.make_stream("main"), t = b.make_stream("side");
    first_line = __LINE__ + 1;
    b.launch(s, elements{4}, pl::fill<float>{}, out(x.all()));
    b.wait(t, b.record(s));
    b.launch(t, elements{4}, pl::scale{2}, inout(x.all()));
    b.wait(b.record(t));
  };
  int line = 0;
  for (const std::uint64_t k : {0, 1}) {
    dry_options options;
    options.drop_wait = k;
    backend_t b("rank 0", options);
    program(b, line);
    REQUIRE(b.recorder().dropped());
    CHECK(has(b.recorder().dropped()->text(), at_line(line + 1 + 2 * static_cast<int>(k))));
    if (k == 0) CHECK(has(only_finding(b), at_line(line + 2)));
  }
  backend_t b("rank 0");
  pinned<float> h(b.pinned(), 1, tag::other);
  float value = 0;
  auto s = b.make_stream("main");
  b.host_task(
      s, [](auto) {}, out(h.all()));
  line = __LINE__ + 1;
  b.fetch(b.record(s), in(h.all()), std::span(&value, 1), "value", 0.0F);
  CHECK(b.recorder().program().labels[last(b).name].at.line == line);
}

// --- order and memory ---

TEST_CASE("O5: a copy that waits for another stream's event is named with what it may overtake") {
  backend_t b("rank 0");
  device<float> state(b.device(), 64, tag::optimizer);
  pinned<float> master(b.pinned(), 64, tag::optimizer);
  auto copies = b.make_stream("copies"), compute = b.make_stream("compute"), other = b.make_stream("other");
  b.host_access(out(master.all()));
  b.copy(copies, in(master.all()), out(state.all()));
  b.wait(compute, b.record(copies));
  const int line = __LINE__ + 1;
  b.launch(compute, elements{64}, pl::scale{0.5F}, inout(state.all()));
  b.wait(copies, b.record(other)); // meant: of compute
  b.copy(copies, in(master.all()), out(state.all()));
  const std::string text = only_finding(b);
  CHECK(has(text, "rank 0"));
  CHECK(has(text, "on stream 'copies'"));
  CHECK(has(text, "on stream 'compute'"));
  CHECK(has(text, at_line(line)));
  CHECK(has(text, at_line(line + 2)));
  b.wait(b.record(compute));
}

TEST_CASE("O4: a staging slot that is filled again before its copy out has ended") {
  backend_t b("rank 0");
  pinned<float> state(b.pinned(), 4 * 16, tag::optimizer);
  device<float> slots(b.device(), 2 * 16, tag::optimizer);
  auto into = b.make_stream("in"), from = b.make_stream("out");
  b.host_access(out(state.all()));
  const auto run = [&](bool wait_for_slot) {
    backend_t::event empty[2];
    for (index_t bucket = 0; bucket < 4; ++bucket) {
      const auto slot = slots.all().sub(bucket % 2 * 16, 16);
      const auto home = state.all().sub(bucket * 16, 16);
      if (wait_for_slot) b.wait(into, empty[bucket % 2]);
      b.copy(into, in(home), out(slot));
      b.wait(from, b.record(into));
      b.copy(from, in(slot), out(home));
      empty[bucket % 2] = b.record(from);
    }
    b.wait(b.record(from));
  };
  run(true);
  CHECK(findings(b).empty());
  run(false);
  const std::string text = only_finding(b);
  CHECK(has(text, "'copy'"));
  CHECK(has(text, "on stream 'in'"));
  CHECK(has(text, "on stream 'out'"));
}

TEST_CASE("F1: what is restored before its park has finished") {
  backend_t b("rank 0");
  device<float> x(b.device(), 16, tag::checkpoint);
  pinned<float> slab(b.pinned(), 16, tag::checkpoint);
  auto park = b.make_stream("park"), restore = b.make_stream("restore");
  b.launch(park, elements{16}, pl::fill<float>{}, out(x.all()));
  b.copy(park, in(x.all()), out(slab.all()));
  b.copy(restore, in(slab.all()), out(x.all()));
  bool slab_named = false;
  for (const std::string& f : findings(b)) {
    CHECK(has(f, "on stream 'restore'"));
    CHECK(has(f, "on stream 'park'"));
    slab_named = slab_named || f.find("host allocation") != std::string::npos;
  }
  CHECK(slab_named);
  b.wait(b.record(park));
  b.wait(b.record(restore));
}

TEST_CASE("F2, F3: a buffer that goes before its stream's work is waited for, and what uses it afterwards") {
  backend_t b("rank 0");
  auto s = b.make_stream("main");
  int line = 0;
  float* stale = nullptr;
  {
    const device<float> x(b.device(), 8, tag::checkpoint);
    stale = x.data();
    line = __LINE__ + 1;
    b.launch(s, elements{8}, pl::fill<float>{}, out(x.all()));
  }
  std::string text = only_finding(b);
  CHECK(has(text, "the host frees device allocation 0 (checkpoint) while"));
  CHECK(has(text, at_line(line)));
  line = __LINE__ + 1;
  b.launch(s, elements{4}, pl::scale{2}, inout(pl::view<float>{stale, 4}));
  REQUIRE(findings(b).size() == 2);
  text = findings(b)[1];
  CHECK(has(text, "which was freed before"));
  CHECK(has(text, at_line(line)));
  // A new buffer has new addresses: the stale pointer stays known as one.
  {
    const device<float> y(b.device(), 8, tag::other);
    const pl::drain<backend_t> at_end(b, s); // goes first
    CHECK(y.data() != stale);
    b.launch(s, elements{8}, pl::fill<float>{}, out(y.all()));
  }
  CHECK(findings(b).size() == 2);
}

TEST_CASE("a phase of a workspace that is closed leaves nothing to read, and its users are still known") {
  backend_t b("rank 0");
  pl::working_set first(tag::dispatch), second(tag::vocabulary);
  first.device<float>("slot", 64).pinned<float>("mirror", 64);
  second.device<float>("logits", 64);
  pl::workspace<backend_t> space(b, pl::overlay(first, second));
  auto s = b.make_stream("main"), t = b.make_stream("side");
  pl::view<float> slot;
  pl::view<float, pl::host_space> mirror;
  {
    auto phase = space.open(first);
    slot = phase.device<float>(64);
    mirror = phase.pinned<float>(64);
    b.launch(s, elements{64}, pl::fill<float>{}, out(slot));
    b.copy(s, in(slot), out(mirror));
  }
  CHECK(b.device().meter().current(tag::dispatch) == 0);
  CHECK(b.device().meter().peak(tag::dispatch).bytes == 256);
  CHECK(findings(b).empty());
  int line = __LINE__ + 1;
  b.launch(s, elements{8}, pl::scale{2}, inout(slot.sub(8, 8)));
  const std::string text = only_finding(b);
  CHECK(has(text, "hold no values"));
  CHECK(has(text, "bytes [32, 64)"));
  CHECK(has(text, at_line(line)));
  const auto task = [](auto) {};
  line = __LINE__ + 1;
  b.host_task(s, task, in(mirror));
  REQUIRE(findings(b).size() == 2);
  CHECK(has(findings(b)[1], at_line(line)));
  {
    auto phase = space.open(second);
    const auto logits = phase.device<float>(64); // the same bytes
    REQUIRE(logits.p == slot.p);
    b.launch(t, elements{64}, pl::fill<float>{}, out(logits)); // while the first phase may still run
    CHECK(findings(b).size() > 2);
    CHECK(has(findings(b).back(), "on stream 'side'"));
    CHECK(has(findings(b).back(), "no event orders them"));
  }
  b.wait(b.record(s));
  b.wait(b.record(t));
  const auto before = b.recorder().found();
  {
    auto phase = space.open(first);
    const auto again = phase.device<float>(64);
    b.launch(s, elements{64}, pl::fill<float>{}, out(again));
    b.launch(s, elements{64}, pl::scale{2}, inout(again)); // written, so there
  }
  CHECK(b.recorder().found() == before);
}

TEST_CASE("adopt: memory of the caller's, valid in the order of a stream") {
  std::vector<float> own(16);
  backend_t b("rank 0");
  auto s = b.make_stream("main"), t = b.make_stream("side");
  const pl::view<float> v{own.data(), 16};
  b.adopt(own.data(), 64, s);
  b.launch(s, elements{16}, pl::scale{2}, inout(v));
  CHECK(findings(b).empty());
  const int line = __LINE__ + 1;
  b.launch(t, elements{16}, pl::scale{2}, inout(v)); // in no order
  REQUIRE_FALSE(findings(b).empty());
  for (const std::string& f : findings(b)) CHECK(has(f, at_line(line)));
  const auto before = b.recorder().found();
  b.launch(s, elements{1}, pl::fill<float>{}, some(pl::view<float>{own.data(), 17}));
  CHECK(b.recorder().found() > before);
  for (const float x : own) CHECK(x == 0); // it is not touched
}

TEST_CASE("a second backend of one rank gives out other addresses") {
  auto group = pl::dry_communicator::make_group(1);
  const auto first_of = [](backend_t& b) {
    const device<float> x(b.device(), 4, tag::other);
    return x.data();
  };
  const auto a = std::make_unique<backend_t>(group[0]);
  float* const p = first_of(*a);
  backend_t b(group[0]);
  CHECK(first_of(b) != p);
  CHECK(&a->recorder() == &b.recorder());
  CHECK(std::string(b.recorder().owner()) == "rank 0");
}

// --- faults ---

namespace {

// Two streams and every kind of operation; every wait matters. Whoever leaves early leaves in order.
struct fault_program {
  static constexpr int operations = 14, waits = 5, in_drain = 3;
  int first_line = 0, last_line = 0;

  void operator()(backend_t& b) {
    pl::working_set set(tag::dispatch);
    set.device<float>("slot", 64);
    pl::workspace<backend_t> space(b, set);
    device<float> x(b.device(), 64, tag::activations), w(b.device(), 64, tag::parameters),
        y(b.device(), 64, tag::activations);
    pinned<float> h(b.pinned(), 64, tag::other);
    device<std::int32_t> ids(b.device(), 4, tag::dispatch), order(b.device(), 4, tag::dispatch);
    device<std::int64_t> offsets(b.device(), 5, tag::dispatch), sums(b.device(), 6, tag::dispatch);
    device<unsigned char> scratch(b.device(), 4096, tag::workspace);
    std::array<float, 64> into{};
    auto s = b.make_stream("compute"), t = b.make_stream("moves");
    first_line = __LINE__, last_line = first_line + 35;
    b.host_access(out(h.all()));
    b.copy(t, in(h.all()), out(x.all()));
    b.copy(t, in(h.matrix(8, 8)), out(w.matrix(8, 8)));
    b.wait(s, b.record(t));
    b.gemm(s, transpose::no, transpose::no, 1, in(x.matrix(8, 8)), in(w.matrix(8, 8)), 0, out(y.matrix(8, 8)),
           scratch.all());
    b.wait(t, b.record(s));
    b.copy(t, in(y.all()), out(h.all()));
    b.launch(s, elements{4}, pl::fill<std::int32_t>{1}, out(ids.all()));
    b.group_by_key(s, in(ids.all()), out(order.all()), out(offsets.all()), scratch.all());
    b.exclusive_scan(s, in(offsets.all()), out(sums.all()), scratch.all());
    b.fetch(b.record(t), in(h.all()), std::span<float>(into), "results", 0.0F);
    b.host_task(
        t, [](auto) {}, inout(h.all()));
    {
      auto phase = space.open(set);
      const pl::drain<backend_t> at_end(b, s);
      const auto slot = phase.device<float>(64);
      b.launch(s, elements{64}, pl::fill<float>{}, out(slot));
      b.launch(s, elements{64}, pl::add{}, in(slot), inout(y.all()));
    }
    {
      auto phase = space.open(set); // the same bytes, by the other stream
      b.launch(t, elements{64}, pl::fill<float>{}, out(phase.device<float>(64)));
    }
    b.wait(b.record(t));
    b.host_access(in(h.all()));
  }
};
constexpr bool has_line(std::uint64_t operation) { // not of host_access
  return operation != 0 && operation != fault_program::operations - 1;
}
const char* const fault_names[] = {"'access' of the host",
                                   "'copy' on stream 'moves'",
                                   "'copy' on stream 'moves'",
                                   "'gemm' on stream 'compute'",
                                   "'copy' on stream 'moves'",
                                   "fill",
                                   "'group_by_key' on stream 'compute'",
                                   "'exclusive_scan' on stream 'compute'",
                                   "'results' of the host",
                                   "'host_task' on stream 'moves'",
                                   "fill",
                                   "add",
                                   "fill",
                                   "'access' of the host"};

} // namespace

TEST_CASE("throw_at: the k-th operation fails with its name, stream and line; nothing leaks or is found") {
  backend_t whole("rank 0");
  fault_program()(whole);
  for (const std::string& f : findings(whole)) FAIL_CHECK(f);
  REQUIRE(whole.recorder().operations() == fault_program::operations);
  for (std::uint64_t k = 0; k < fault_program::operations; ++k) {
    CAPTURE(k);
    dry_options options;
    options.throw_at = k;
    backend_t b("rank 0", options);
    fault_program program;
    const std::string text = refusal<pl::backend_error>([&] { program(b); });
    CHECK(has(text, "plateau: rank 0: "));
    CHECK(has(text, fault_names[k]));
    CHECK(has(text, "operation " + std::to_string(k) + " fails"));
    if (has_line(k)) {
      const std::string file = "dry_run_backend_test.cpp:";
      const std::size_t at = text.find(file);
      REQUIRE(at != std::string::npos);
      const int line = std::atoi(text.c_str() + at + file.size());
      CHECK(line > program.first_line);
      CHECK(line < program.last_line);
    }
    CHECK(b.device().meter().current() == 0);
    CHECK(b.pinned().meter().current() == 0);
    CHECK(b.recorder().operations() == k + 1);
    for (const std::string& f : findings(b)) FAIL_CHECK(f);
    // What failed was not counted.
    const auto count = [k](std::initializer_list<std::uint64_t> of) {
      return static_cast<std::uint64_t>(std::count_if(of.begin(), of.end(), [k](auto i) { return i < k; }));
    };
    CHECK(b.counters().launches == count({5, 10, 11, 12}));
    CHECK(b.counters().copied_bytes == 256 * count({1, 2, 4}));
    CHECK(b.counters().matrix_products == count({3}));
    CHECK(b.counters().host_round_trips == count({8}));
  }
}

TEST_CASE("drop_wait: whichever wait is forgotten, its line is known and the check objects") {
  backend_t whole("rank 0");
  fault_program()(whole);
  CHECK(whole.recorder().waits() == fault_program::waits);
  for (std::uint64_t k = 0; k < fault_program::waits; ++k) {
    CAPTURE(k);
    dry_options options;
    options.drop_wait = k;
    backend_t b("rank 0", options);
    fault_program program;
    program(b);
    REQUIRE(b.recorder().dropped());
    if (k == fault_program::in_drain) {
      CHECK(has(b.recorder().dropped()->file, "drain.hpp"));
    } else {
      CHECK(has(b.recorder().dropped()->file, "dry_run_backend_test.cpp"));
      CHECK(b.recorder().dropped()->line > program.first_line);
      CHECK(b.recorder().dropped()->line < program.last_line);
    }
    CHECK_FALSE(findings(b).empty());
  }
}
