// SPDX-License-Identifier: Apache-2.0
//
// From ranks that have run to their timeline: times worked out by hand, any number of machines for one run,
// and why there is none.
#include <plateau/dry_run/predict.hpp>

#include <plateau/dry_run/backend.hpp>
#include <plateau/dry_run/presets.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/kernels.hpp>

#include "support/rank_programs.hpp"

#include <doctest/doctest.h>

#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

namespace pl = plateau;
namespace dry = plateau::dry;
using pl::dry_communicator;
using pl::elements;
using pl::in;
using pl::inout;
using pl::out;
using pl::run_dry;
using pl::tag;
using pl::transpose;
using plateau_test::slow_machine;
using backend_t = pl::dry_run<pl::host_backend>;
template <class T> using device = pl::device_buffer<T, backend_t>;
template <class T> using pinned = pl::pinned_buffer<T, backend_t>;

bool has(const std::string& text, const std::string& piece) {
  if (text.find(piece) != std::string::npos) return true;
  MESSAGE("'" << text << "' does not say '" << piece << "'");
  return false;
}

} // namespace

TEST_CASE(
    "a product, a copy under it, a round trip: times on a machine where a byte or a flop takes a second") {
  const auto ran = run_dry(1, [](dry_communicator& comm) {
    backend_t backend(comm);
    device<float> a(backend.device(), 16, tag::other), b(backend.device(), 16, tag::other),
        c(backend.device(), 16, tag::other), d(backend.device(), 8, tag::other);
    pinned<float> h(backend.pinned(), 16, tag::other), g(backend.pinned(), 8, tag::other);
    device<unsigned char> scratch(backend.device(), 4096, tag::other);
    auto s = backend.make_stream("compute"), t = backend.make_stream("moves");
    backend.host_access(out(h.all()), out(g.all()));
    backend.copy(s, in(h.all()), out(a.all())); // 64 s
    backend.copy(s, in(h.all()), out(b.all())); // 64 s
    backend.wait(backend.record(s));
    backend.recorder().mark("the operands are there");
    backend.gemm(s, transpose::no, transpose::no, 1, in(a.matrix(4, 4)), in(b.matrix(4, 4)), 0,
                 out(c.matrix(4, 4)), scratch.all()); // 128 s
    backend.copy(t, in(g.all()), out(d.all()));       // 32 s, under it
    std::vector<float> into(4);
    backend.fetch(backend.record(s), in(h.first(4)), std::span(into), "result", 0.0F);
    backend.recorder().mark("the host knows");
  });
  const auto t = pl::predict(ran, slow_machine());
  REQUIRE(t.trouble == "");
  CHECK(t.complete);
  REQUIRE(t.ranks.size() == 1);
  CHECK(t.ranks[0].marks.size() == 2);
  CHECK(t.ranks[0].marks[0].so_far.seconds == doctest::Approx(128));
  CHECK(t.ranks[0].marks[1].so_far.seconds == doctest::Approx(256));
  CHECK(t.seconds == doctest::Approx(256));
  CHECK(t.ranks[0].compute_busy == doctest::Approx(128));
  CHECK(t.ranks[0].transfer_busy == doctest::Approx(160));
  CHECK(t.ranks[0].exposed_transfer == doctest::Approx(128));
  CHECK(t.ranks[0].host_round_trips == 1);
  CHECK(t.ranks[0].flops == 128);
  CHECK(t.events.events.empty());

  // The same run on another machine, with its events, and one on which every cost is another.
  pl::hardware twice = slow_machine();
  twice.fp32_flops = 2;
  twice.host_to_device_bytes_per_second = 2;
  twice.host_link_bytes_per_second = 4;
  dry::solve_options options;
  options.events = true;
  const auto u = pl::predict(ran, twice, options);
  CHECK(u.seconds == doctest::Approx(128));
  CHECK_FALSE(u.events.events.empty());
  options.perturb = 0.5;
  options.perturb_seed = 3;
  const auto v = pl::predict(ran, slow_machine(), options);
  CHECK(v.seconds != t.seconds);
  CHECK(v.seconds < 1.5 * 256);
  CHECK(pl::predict(ran, slow_machine()).seconds == t.seconds);
}

TEST_CASE("ranks wait for those they exchange with; the last one makes the time") {
  const auto ran = run_dry(2, [](dry_communicator& comm) {
    backend_t backend(comm);
    device<float> a(backend.device(), 10, tag::other), b(backend.device(), 10, tag::other);
    auto s = backend.make_stream("main");
    for (int i = 0; i < (comm.rank() == 0 ? 30 : 5); ++i) // 10 floats written: 0.04 s from the cache
      backend.launch(s, elements{10}, pl::fill<float>{1}, out(a.all()));
    comm.exchange(s, {send_to(1 - comm.rank(), a.all())}, {receive_from(1 - comm.rank(), b.all())});
    backend.wait(backend.record(s));
    backend.recorder().mark("exchanged");
  });
  pl::hardware h = slow_machine();
  h.cache_bytes = 1 << 20;
  const auto t = pl::predict(ran, h);
  REQUIRE(t.complete);
  // 40 bytes over a link of 10 a second, after 30 kernels of 40 bytes from a cache of 1000 a second.
  for (const dry::rank_times& r : t.ranks) CHECK(r.marks[0].so_far.seconds == doctest::Approx(30 * 0.04 + 4));
  CHECK(t.ranks[1].rank == 1);
  CHECK(t.ranks[1].sent_bytes == 40);
  h.ranks_per_node = 1; // over the network instead
  CHECK(pl::predict(ran, h).seconds == doctest::Approx(30 * 0.04 + 40));
}

TEST_CASE("folded ranks have no times of their own: the programs are those that went on") {
  const auto ran = run_dry(6, [](dry_communicator& comm) {
    backend_t backend(comm);
    if (!comm.fold(comm.rank() == 1 || comm.rank() == 4 ? 1 : 0)) return;
    comm.close_step();
  });
  const auto t = pl::predict(ran, slow_machine());
  REQUIRE(t.complete);
  REQUIRE(t.ranks.size() == 2);
  CHECK(t.ranks[0].rank == 0);
  CHECK(t.ranks[1].rank == 1);
  // Classes of 4 and 2 ranks that do not send one another as much as they expect.
  const auto uneven = run_dry(6, [](dry_communicator& comm) {
    backend_t backend(comm);
    device<float> a(backend.device(), 10, tag::other), b(backend.device(), 10, tag::other);
    auto s = backend.make_stream("main");
    backend.launch(s, elements{10}, pl::fill<float>{1}, out(a.all()));
    if (!comm.fold(comm.rank() == 1 || comm.rank() == 4 ? 1 : 0)) return;
    const int me = comm.rank();
    comm.exchange(s, {send_to((me + 1) % 6, a.first(me == 1 ? 4 : 5))},
                  {receive_from((me + 5) % 6, b.first(5))});
  });
  CHECK_FALSE(uneven.cause);
  CHECK(has(pl::predict(uneven, slow_machine()).trouble, "the ranks that were folded are not alike"));
}

TEST_CASE("why there is no timeline: the failure of the run, before what it left unmatched") {
  const auto ran = run_dry(4, [](dry_communicator& comm) {
    backend_t backend(comm);
    device<float> a(backend.device(), 10, tag::other), b(backend.device(), 10, tag::other);
    auto s = backend.make_stream("main");
    backend.launch(s, elements{10}, pl::fill<float>{1}, out(a.all()));
    if (comm.rank() == 2) throw std::runtime_error("the disk is full");
    comm.exchange(s, {send_to((comm.rank() + 1) % 4, a.all())},
                  {receive_from((comm.rank() + 3) % 4, b.all())});
    comm.close_step();
  });
  const auto t = pl::predict(ran, slow_machine());
  CHECK_FALSE(t.complete);
  CHECK(t.seconds == 0);
  CHECK(t.ranks.empty());
  CHECK(has(t.trouble, "rank 2"));
  CHECK(has(t.trouble, "the disk is full"));
}

TEST_CASE("a rank that returns early leaves the others alone in an exchange: both are named") {
  const auto ran = run_dry(3, [](dry_communicator& comm) {
    backend_t backend(comm);
    device<float> a(backend.device(), 10, tag::other), b(backend.device(), 10, tag::other);
    auto s = backend.make_stream("main");
    backend.launch(s, elements{10}, pl::fill<float>{1}, out(a.all()));
    if (comm.rank() == 1) return;
    comm.exchange(s, {send_to((comm.rank() + 1) % 3, a.all())},
                  {receive_from((comm.rank() + 2) % 3, b.all())}, "dispatch");
  });
  const auto t = pl::predict(ran, slow_machine());
  CHECK_FALSE(t.complete);
  CHECK(has(t.trouble, "rank 1"));
  CHECK(has(t.trouble, "'dispatch'"));
}

TEST_CASE("a run without programs has no timeline") {
  pl::dry_options options;
  options.record_program = false;
  const auto ran = run_dry(
      2, [](dry_communicator& comm) { comm.close_step(); }, options);
  std::string text;
  try {
    pl::predict(ran, slow_machine());
  } catch (const pl::config_error& e) {
    text = e.what();
  }
  CHECK(has(text, "rank 0 has recorded no program"));
}

TEST_CASE("machines that cannot be, and costs that are perturbed too much, are refused") {
  const auto ran = run_dry(1, [](dry_communicator& comm) { comm.close_step(); });
  pl::hardware h = slow_machine();
  h.half_flops = 0;
  std::string text;
  try {
    pl::predict(ran, h);
  } catch (const pl::config_error& e) {
    text = e.what();
  }
  CHECK(has(text, "half_flops"));
  CHECK_THROWS_AS(pl::predict(ran, slow_machine(), {1, 1.0, false}), pl::config_error);
  CHECK(pl::predict(ran, pl::h200()).complete);
}
