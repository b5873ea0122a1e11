// SPDX-License-Identifier: Apache-2.0
//
// A traced backend records each operation once, with its name, place, kind and bytes, on its stream and in
// its order; nothing of what has no size, and of waits those of the host.
#include <plateau/column_sum.hpp>
#include <plateau/concepts.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/kernels.hpp>
#include <plateau/resource.hpp>
#include <plateau/trace/traced_backend.hpp>

#include <contract/archetype_backend.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace {

namespace pl = plateau;
using pl::in;
using pl::inout;
using pl::out;
using pl::tag;
using pl::trace_kind;
using pl::transpose;
using backend_t = pl::traced_backend<pl::host_backend>;

static_assert(pl::backend<backend_t>);
static_assert(pl::backend<pl::traced_backend<archetypes::archetype_backend>>);
static_assert(pl::accessible_from<backend_t, pl::host_space>);
static_assert(backend_t::row_invariant == pl::host_backend::row_invariant);

struct seen {
  std::string name;
  std::string stream;
  trace_kind kind;
  std::uint64_t bytes;
};
bool operator==(const seen& a, const seen& b) {
  return a.name == b.name && a.stream == b.stream && a.kind == b.kind && a.bytes == b.bytes;
}
std::vector<seen> all_of(const pl::trace& t) {
  std::vector<seen> all;
  for (const pl::trace_event& e : t.events) all.push_back({e.name, t.streams[e.stream], e.kind, e.bytes});
  return all;
}

} // namespace

TEST_CASE("operations of one stream, one after the other") {
  pl::trace_recorder recorder(2);
  int first_line = 0, last_line = 0;
  {
    backend_t b(recorder, "rank 2");
    pl::device_buffer<float, backend_t> x(b.device(), 12, tag::activations);
    pl::pinned_buffer<float, backend_t> h(b.pinned(), 12, tag::other);
    pl::device_buffer<std::int32_t, backend_t> ids(b.device(), 4, tag::other),
        order(b.device(), 4, tag::other);
    pl::device_buffer<std::int64_t, backend_t> sums(b.device(), 5, tag::other);
    const std::size_t needed =
        std::max({b.gemm_scratch_bytes<float, float, float>(transpose::no, transpose::no, 2, 2, 2),
                  b.group_by_key_scratch_bytes(4, 4)});
    pl::device_buffer<unsigned char, backend_t> scratch(b.device(), static_cast<pl::index_t>(needed),
                                                        tag::other);
    auto made = b.make_stream("main");
    auto s = std::move(made); // streams may move
    first_line = __LINE__;
    b.launch(s, pl::elements{12}, pl::fill<float>{1}, out(x.all()));
    b.launch(s, pl::elements{4}, pl::fill<std::int32_t>{3}, out(ids.all()));
    b.copy(s, in(x.all()), out(h.all()));
    b.copy(s, in(h.matrix(3, 4)), out(x.matrix(3, 4)));
    const auto tile = [&](pl::index_t first) { return x.all().sub(first, 4); };
    const auto matrix = [&](pl::index_t first) { return pl::as_matrix(tile(first), 2, 2); };
    b.gemm(s, transpose::no, transpose::no, 1, in(matrix(0)), in(matrix(4)), 0, out(matrix(8)),
           scratch.all());
    const std::array<pl::gemm_group<float, float, float>, 1> groups{{{matrix(0), matrix(4), matrix(8)}}};
    b.grouped_gemm(s, transpose::no, transpose::no, 1, 0,
                   std::span<const pl::gemm_group<float, float, float>>(groups), scratch.all());
    b.group_by_key(s, in(ids.all()), out(order.all()), out(sums.all()), scratch.all());
    b.exclusive_scan(s, in(sums.first(4)), out(sums.all()), scratch.all());
    b.host_task(
        s, [](pl::view<float, pl::host_space> v) { v[0] = 42; }, inout(h.all()));
    last_line = __LINE__;
    std::array<float, 12> got{};
    b.fetch(b.record(s), in(h.all()), got, "the answer");
    CHECK(got[0] == 42);
    CHECK(got[1] == 1);
    b.wait(b.record(s));
  }
  const pl::trace t = pl::trace_recorder::merge("", {&recorder});
  std::vector<seen> on_stream, on_host;
  double end = 0;
  for (const pl::trace_event& e : t.events) {
    CHECK(e.rank == 2);
    CHECK(e.end >= e.begin);
    const seen what{e.name, t.streams[e.stream], e.kind, e.bytes};
    (e.stream == 0 ? on_host : on_stream).push_back(what);
    if (e.stream == 0) continue;
    CHECK(e.begin >= end); // they do not overlap
    end = e.end;
    CHECK(std::string(e.at.file).find("trace_traced_backend_test.cpp") != std::string::npos);
    CHECK(e.at.line > first_line);
    CHECK(e.at.line < last_line);
  }
  CHECK(on_stream == std::vector<seen>{{"fill<float>", "main", trace_kind::compute, 0},
                                       {"fill<int>", "main", trace_kind::compute, 0},
                                       {"copy", "main", trace_kind::copy, 48},
                                       {"copy", "main", trace_kind::copy, 48},
                                       {"gemm", "main", trace_kind::compute, 0},
                                       {"grouped_gemm", "main", trace_kind::compute, 0},
                                       {"group_by_key", "main", trace_kind::compute, 0},
                                       {"exclusive_scan", "main", trace_kind::compute, 0},
                                       {"host_task", "main", trace_kind::host, 0}});
  CHECK(on_host == std::vector<seen>{{"the answer", "host", trace_kind::waiting, 48},
                                     {"wait", "host", trace_kind::waiting, 0}});
  // The buffers came and went.
  REQUIRE_FALSE(t.memory.empty());
  CHECK(t.memory.front().bytes == 48);
  CHECK((t.memory.front().tag == tag::activations));
  CHECK(t.memory.back().bytes == 0);
}

TEST_CASE("what has no size leaves no event, and what is refused neither") {
  pl::trace_recorder recorder(0);
  backend_t b(recorder);
  auto s = b.make_stream("main");
  const pl::view<float> none;
  const pl::tile<float> no_tile;
  b.copy(s, in(none), out(none));
  b.copy(s, in(no_tile), out(no_tile));
  b.launch(s, pl::elements{0}, pl::fill<float>{1}, out(none));
  b.gemm(s, transpose::no, transpose::no, 1, in(no_tile), in(no_tile), 0, out(no_tile), {});
  b.grouped_gemm(s, transpose::no, transpose::no, 1, 0,
                 std::span<const pl::gemm_group<float, float, float>>{}, {});
  pl::device_buffer<std::int64_t, backend_t> one(b.device(), 1, tag::other);
  b.exclusive_scan(s, in(pl::view<std::int64_t>{}), out(one.all()), {});
  CHECK_THROWS_AS(b.launch(s, pl::elements{-1}, pl::fill<float>{1}, out(none)), pl::config_error);
  std::array<std::int64_t, 2> two{};
  CHECK_THROWS_AS(b.copy(s, in(one.all()), out(pl::view<std::int64_t>{two.data(), 2})), pl::config_error);
  b.launch(s, pl::elements{1}, pl::fill<std::int64_t>{1}, out(one.all()));
  b.wait(b.record(s));
  const auto all = all_of(pl::trace_recorder::merge("", {&recorder}));
  REQUIRE(all.size() == 2);
  // The host may begin to wait before the kernel runs.
  const bool kernel_first = all[0].stream == "main";
  CHECK(all[kernel_first ? 0 : 1].name.find("fill<") == 0);
  CHECK(all[kernel_first ? 1 : 0].name == "wait");
}

TEST_CASE("what the library enqueues is seen too, and counters are those of the backend alone") {
  pl::trace_recorder recorder(0);
  pl::counters traced, plain;
  const auto work = [](auto& b) {
    using B = std::remove_reference_t<decltype(b)>;
    pl::device_buffer<float, B> x(b.device(), 600 * 5, tag::other), sums(b.device(), 5, tag::other);
    pl::device_buffer<unsigned char, B> scratch(b.device(), 1 << 16, tag::other);
    auto s = b.make_stream("main");
    b.launch(s, pl::elements{3000}, pl::fill<float>{1}, out(x.all()));
    b.launch(s, pl::elements{5}, pl::fill<float>{0}, out(sums.all()));
    pl::column_sum(b, s, in(x.matrix(600, 5)), inout(sums.all()), scratch.all());
    b.wait(b.record(s));
    CHECK(sums.data()[4] == 600);
    return b.counters();
  };
  {
    backend_t b(recorder);
    traced = work(b);
  }
  {
    pl::host_backend b;
    plain = work(b);
  }
  CHECK(traced.launches == plain.launches);
  CHECK(traced.host_round_trips == plain.host_round_trips);
  const auto all = all_of(pl::trace_recorder::merge("", {&recorder}));
  CHECK(all.size() == traced.launches + 1);
}

TEST_CASE("a traced backend without a recorder does what its backend does, and records nothing") {
  plateau::traced_backend<plateau::host_backend> backend(nullptr);
  auto s = backend.make_stream("main");
  plateau::device_buffer<std::int32_t, plateau::host_backend> x(backend.device(), 4, plateau::tag::other);
  plateau::pinned_buffer<std::int32_t, plateau::host_backend> h(backend.pinned(), 4, plateau::tag::other);
  backend.launch(s, plateau::elements{4}, plateau::fill<std::int32_t>{7}, plateau::out(x.all()));
  backend.copy(s, plateau::in(x.all()), plateau::out(h.all()));
  std::int32_t values[4] = {};
  backend.fetch(backend.record(s), plateau::in(h.all()), values, "values");
  backend.wait(backend.record(s));
  CHECK(values[3] == 7);
  CHECK(backend.recorder() == nullptr);
}
