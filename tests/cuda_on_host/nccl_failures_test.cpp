// SPDX-License-Identifier: Apache-2.0
//
// nccl_communicator does what every communicator must do when a rank fails. Sizes that differ are named when
// they are compared, which is an option; without it the deadline ends what hangs in NCCL.
#include "nccl_fixture.hpp"

namespace {
using nccl_ranks::eight_devices;
using fixture = nccl_ranks::over_threads;

struct checking : fixture {
  template <class F> static nccl_ranks::outcomes run(int ranks, F f, nccl_ranks::milliseconds deadline) {
    return nccl_ranks::on_threads(
        ranks,
        [&](plateau::thread_communicator& threads) {
          plateau::nccl_options with = options();
          with.check_sizes = true;
          plateau::nccl_communicator comm{threads, with};
          f(comm);
        },
        deadline);
  }
};
} // namespace

TEST_CASE("P3: nccl: a rank throws between two operations, on the host or on a stream: all get its cause") {
  const eight_devices settings;
  contract::one_rank_throws<fixture>();
}
TEST_CASE("P3: nccl: a rank throws while the watchdogs of others are about to begin what they prepared") {
  const eight_devices settings;
  auto& slow = cuda_stand_in::nccl::here().slow_answer_microseconds;
  slow = 4000;
  contract::one_rank_throws<fixture>();
  slow = 0;
  CHECK(stand_in::findings() == "");
}
TEST_CASE(
    "P3: nccl: a split that NCCL has done, but not said so, when the group fails, leaves nothing behind") {
  const eight_devices settings;
  auto& deaf = cuda_stand_in::nccl::here().deaf_rank;
  const auto living = [] { return cuda_stand_in::nccl::communicators().living(); };
  for (const int rank : {0, 1}) {
    CAPTURE(rank);
    const auto outcomes = fixture::run(
        3,
        [&](auto& comm) {
          const int color = comm.rank() == 2 ? -1 : 0;
          auto first = comm.split(color, 0);
          comm.close_step();
          if (comm.rank() == rank) deaf = rank;
          auto second = comm.split(color, 0);
          if (comm.rank() == 2) {
            for (int i = 0; i < 10'000 && living() < 3 + 2 + 2; ++i)
              std::this_thread::sleep_for(nccl_ranks::milliseconds(1));
            CHECK(living() == 7);
            throw std::runtime_error("injected");
          }
        },
        contract::a_minute);
    deaf = -1;
    contract::check_cause(outcomes, 2, "injected");
    CHECK(living() == 0);
  }
  CHECK(stand_in::findings() == "");
}
TEST_CASE("P3: nccl: a split that is refused ends nothing that has an owner") {
  const eight_devices settings;
  for (const bool earlier : {false, true}) {
    CAPTURE(earlier);
    const auto outcomes = fixture::run(
        2,
        [&](auto& comm) {
          std::optional<std::decay_t<decltype(comm)>> first;
          if (earlier) first.emplace(comm.split(0, 0));
          comm.close_step();
          if (comm.rank() == 0) cuda_stand_in::fail_call("ncclCommSplit", 1, ncclSystemError); // of either
          comm.close_step();
          auto second = comm.split(0, 0);
        },
        contract::a_minute);
    nccl_ranks::all_say(outcomes, {"ncclCommSplit"});
    CHECK(cuda_stand_in::nccl::communicators().living() == 0);
  }
  CHECK(stand_in::findings() == "");
}
TEST_CASE("nccl: a rank returns early") {
  const eight_devices settings;
  contract::one_rank_returns_early<fixture>();
}
TEST_CASE("nccl: a rank sleeps past the deadline") {
  const eight_devices settings;
  contract::one_rank_sleeps<fixture>();
}
TEST_CASE("nccl: progress restarts deadlines") {
  const eight_devices settings;
  contract::progress_restarts_deadlines<fixture>();
}
TEST_CASE("nccl: sizes differ, and are compared") {
  const eight_devices settings;
  contract::sizes_differ<checking>();
}
TEST_CASE("nccl: exchanges whose sizes are compared") {
  const eight_devices settings;
  contract::exchange_all_to_all<checking>();
  contract::exchange_pieces<checking>();
  contract::exchange_nothing<checking>();
  contract::exchanges_of_groups<checking>();
}
TEST_CASE("P2: nccl: ranks start collectives in different orders: both operations are named") {
  const eight_devices settings;
  contract::orders_differ<fixture>();
  contract::orders_differ<checking>();
  contract::circle_between_communicators<fixture>();
}
TEST_CASE("nccl: latched failures surface at close_step") {
  const eight_devices settings;
  contract::latched_failures_surface<fixture>();
}
TEST_CASE("nccl: what fails on a stream surfaces at close_step, though nobody waits for it") {
  const eight_devices settings;
  contract::stream_failures_surface<fixture>();
}
TEST_CASE("nccl: buffers outlive the copies of peers") {
  const eight_devices settings;
  contract::buffers_outlive_copies<fixture>();
}
TEST_CASE("P3: nccl: what stands in one communicator ends, although another one is freed first") {
  const eight_devices settings;
  const auto outcomes = fixture::run(
      2,
      [](auto& comm) {
        fixture::backend gpu;
        contract::mirrored<std::int64_t, fixture::backend> a(gpu, 8), b(gpu, 8);
        auto s = gpu.make_stream("s");
        a.put(s, [](auto i) { return i; });
        auto part = comm.split(0, comm.rank());
        const int other = 1 - comm.rank();
        comm.exchange(s, {send_to(other, a.all())}, {receive_from(other, b.all())});
        gpu.wait(gpu.record(s));
        part.exchange(s, {send_to(other, a.sub(0, 4))}, {receive_from(other, b.all())}); // never ends
        gpu.wait(gpu.record(s));
      },
      nccl_ranks::milliseconds(300));
  for (const auto& o : outcomes) CHECK(o.has_value());
  CHECK(stand_in::findings() == "");
}
TEST_CASE("nccl: a device that fails while an exchange stands is named, although no host code runs there any "
          "more") {
  const eight_devices settings;
  const auto outcomes = fixture::run(
      2,
      [](auto& comm) {
        fixture::backend gpu;
        contract::mirrored<std::int64_t, fixture::backend> a(gpu, 8), b(gpu, 8);
        auto s = gpu.make_stream("s");
        const int other = 1 - comm.rank();
        comm.exchange(s, {send_to(other, a.sub(0, 4))}, {receive_from(other, b.all())}); // never ends
        if (comm.rank() == 1) {                                      // threads begin on device 0
          std::this_thread::sleep_for(nccl_ranks::milliseconds(50)); // until the watchdog has seen it begin
          cuda_stand_in::fail_device(gpu.device_number(), cudaErrorIllegalAddress, "of the test");
        }
        for (int i = 0; i < 1000; ++i) { // its failure comes up in one of the next steps
          std::this_thread::sleep_for(nccl_ranks::milliseconds(20));
          comm.close_step();
        }
      },
      nccl_ranks::milliseconds(60'000));
  contract::check_cause(outcomes, 1, "cudaEventQuery: cudaErrorIllegalAddress");
  CHECK(stand_in::findings().find("of the test") != std::string::npos);
}
