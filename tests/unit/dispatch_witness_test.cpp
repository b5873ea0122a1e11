// SPDX-License-Identifier: Apache-2.0
//
// That memory stays flat, seen from outside: by the operating system, which knows nothing of meters; and by
// an expert that does what a dispatch exists to avoid, which shows what the round's own memory is worth.
#include "support/dispatch_checks.hpp"

#include <doctest/doctest.h>

#include <barrier>
#include <cstddef>
#include <fstream>
#include <span>
#include <string>
#include <tuple>
#include <vector>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace pl = plateau;
using pl::index_t, pl::tile, pl::view;
using support::dispatch_case;

namespace {

// ---- What the operating system sees -----------------------------------------------------------------------

// A line of /proc/self/status in bytes; 0 where there is none.
std::size_t bytes_of_process(const std::string& line) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (std::size_t kib = 0; word == line + ":" && status >> kib) return kib * 1024;
  return 0;
}
// What filling the inputs has left in the heap: it would hide as much growth.
void give_back_free_memory() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}
// What a sanitizer keeps beside each byte would be counted too, and without optimisation kernels over this
// much memory take long.
constexpr bool memory_is_the_programs_own() {
#if !defined(__OPTIMIZE__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return false;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
  return false;
#else
  return true;
#endif
#else
  return true;
#endif
}

// All slots of each rank are filled, in three rounds.
dispatch_case filling(index_t cap, index_t width) {
  dispatch_case c;
  c.tokens = {3 * cap / 8, 3 * cap / 8};
  c.shape.experts = 4;
  c.shape.top_k = 8;
  c.shape.widths = {width};
  c.shape.slots = 3;
  c.shape.send_cap_rows = c.shape.receive_cap_rows = cap;
  c.shape.placement.foreign_experts = 0;
  c.expert_of = support::workload("balanced", 2, 4, 8);
  return c;
}
struct growth {
  std::size_t promised = 0, seen = 0; // of both ranks
};
growth grow(const dispatch_case& c) {
  using rank_type = support::dispatch_rank<float, pl::host_backend, pl::thread_communicator>;
  growth g;
  std::size_t at_first = 0;
  std::barrier together(2);
  support::on_threads<>{}.run(2, [&](auto& comm, auto& backend) {
    // Inputs and outputs have been written; the workspace exists, but nobody has touched it, so that its
    // pages are not there yet.
    rank_type rank(c, backend, comm);
    together.arrive_and_wait();
    if (comm.rank() == 0) {
      give_back_free_memory();
      g.promised = 2 * (rank.space().device_bytes() + rank.space().pinned_bytes());
      at_first = bytes_of_process("VmRSS");
    }
    together.arrive_and_wait();
    pl::dispatch_plan p;
    rank.plan(p);
    rank.forward(p);
    rank.backward(p);
    backend.wait(backend.record(rank.stream()));
    together.arrive_and_wait();
    if (comm.rank() == 0) g.seen = bytes_of_process("VmHWM") - at_first;
    together.arrive_and_wait();
  });
  return g;
}

} // namespace

TEST_CASE("a process grows by what the dispatch has promised, and 2% at most") {
  if (!memory_is_the_programs_own()) {
    MESSAGE("left out: this build is not optimised, or a sanitizer has memory of its own");
    return;
  }
  if (bytes_of_process("VmRSS") == 0 || bytes_of_process("VmHWM") == 0) {
    MESSAGE("left out: /proc/self/status does not say what the process holds");
    return;
  }
  grow(filling(64, 64)); // code, stacks and the allocator's own
  const growth g = grow(filling(2048, 4096));
  CAPTURE(g.promised);
  CAPTURE(g.seen);
  CHECK(g.promised > std::size_t{1000} << 20);
  CHECK(g.seen <= g.promised + g.promised / 50);
  CHECK(g.seen >= g.promised - g.promised / 20); // it was all needed, and seen
}

// ---- Without the release after each round -----------------------------------------------------------------

namespace {

using dry_backend = pl::dry_run<pl::host_backend>;

// The toy expert; `hoards`: what a round computes on its way is not in the round's scratch, but in memory of
// its own, kept until somebody says that it may go.
struct hoarding_expert {
  using toy = support::toy_expert<dry_backend, float>;
  using weight_type = float;

  dry_backend* backend;
  bool hoards;
  toy inner{backend, 12};
  std::vector<pl::device_buffer<float, dry_backend>> kept{};

  std::span<const pl::matrix_extent> weight_parts() const { return inner.weight_parts(); }
  std::size_t forward_scratch_bytes(index_t n, index_t g) const { return inner.forward_scratch_bytes(n, g); }
  std::size_t backward_scratch_bytes(index_t n, index_t g) const {
    return inner.backward_scratch_bytes(n, g);
  }
  void forward(dry_backend::stream& s, const pl::expert_groups<float>& groups,
               const std::tuple<tile<const float>>& rows, tile<float> results, pl::scratch_view scratch) {
    inner.forward(s, groups, rows, results, scratch);
  }
  void backward(dry_backend::stream& s, const pl::expert_groups<float>& groups,
                const std::tuple<tile<const float>>& rows, view<const float> gates,
                tile<const float> dresults, tile<float> drows, view<float> dgates, pl::scratch_view scratch) {
    if (hoards) {
      kept.emplace_back(backend->device(), std::get<0>(rows).rows * 12, pl::tag::dispatch);
      scratch = {reinterpret_cast<unsigned char*>(kept.back().data()), kept.back().size() * 4};
    }
    inner.backward(s, groups, rows, gates, dresults, drows, dgates, scratch);
  }
};

// The most that rank 0 holds for dispatches while a layer of `tokens` runs.
std::size_t peak_of(index_t tokens, bool hoards) {
  using rank_type = support::dispatch_rank<float, dry_backend, pl::dry_communicator>;
  dispatch_case c;
  c.tokens = {tokens, tokens, tokens};
  c.shape.experts = 6;
  c.shape.widths = {12};
  c.shape.send_cap_rows = c.shape.receive_cap_rows = 256;
  c.expert_of = support::workload("balanced", 3, 6, 1);
  std::size_t most = 0;
  pl::dry_options options;
  options.scenario = [&](const pl::dry_fetch& fetch) { return support::answer_fetch(c, fetch); };
  support::without_data<>{options}.run(3, [&](pl::dry_communicator& comm, dry_backend& backend) {
    rank_type rank(c, backend, comm);
    hoarding_expert expert{&backend, hoards};
    pl::dispatch_plan p;
    rank.plan(p);
    rank.with(rank.exchange(), expert, p);
    backend.wait(backend.record(rank.stream()));
    if (comm.rank() == 0) most = backend.device().meter().peak(pl::tag::dispatch).bytes;
  });
  return most;
}

} // namespace

TEST_CASE("the release after each round is what keeps the peak flat: without it the peak grows with tokens") {
  const index_t tokens = 3000;
  std::vector<std::size_t> flat, hoarded;
  for (const index_t times : {1, 2, 4}) {
    const index_t n = times * tokens;
    // What is linear by promise: the routing index, two words a route, and the sums.
    const std::size_t linear = 2 * pl::aligned_bytes(static_cast<std::size_t>(n) * 4) +
                               pl::aligned_bytes(static_cast<std::size_t>(n) * 12 * 4);
    flat.push_back(peak_of(n, false) - linear);
    hoarded.push_back(peak_of(n, true) - linear);
    // One row of intermediates for each row that the rank computes.
    CHECK(hoarded.back() - flat.back() == static_cast<std::size_t>(n) * 12 * 4);
  }
  CHECK(flat[1] == flat[0]);
  CHECK(flat[2] == flat[0]);
  CHECK(hoarded[1] - hoarded[0] == static_cast<std::size_t>(tokens) * 12 * 4);
  CHECK(hoarded[2] - hoarded[1] == static_cast<std::size_t>(2 * tokens) * 12 * 4);
}
