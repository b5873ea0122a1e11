// SPDX-License-Identifier: Apache-2.0
//
// How an nccl_communicator comes to be: what ranks must agree on first, each with a line that says who has
// what; and communicators of the user's own, which stay the user's.
#include "nccl_fixture.hpp"

namespace {

namespace pl = plateau;
using nccl_ranks::all_say;
using nccl_ranks::backend;
using nccl_ranks::eight_devices;
using nccl_ranks::milliseconds;
using nccl_ranks::nobody_failed;
using nccl_ranks::on_threads;

// What a rank says when it does not come to be; the host channel stays usable, with which a second attempt
// succeeds.
template <class Attempt>
void refused(int ranks, int failed, std::initializer_list<const char*> words, Attempt attempt) {
  const auto outcomes = on_threads(ranks, [=](pl::thread_communicator& threads) {
    std::string text;
    int rank = -1;
    try {
      attempt(threads);
    } catch (const pl::collective_error& e) {
      text = e.cause;
      rank = e.failed_rank;
    }
    cuda_stand_in::nccl::version_here = 0;
    cuda_stand_in::driver_version_here = 0;
    cudaSetDevice(threads.rank());
    if (rank != failed)
      throw std::logic_error("rank " + std::to_string(rank) + " is named as the failed one: " + text);
    for (const char* w : words)
      if (text.find(w) == std::string::npos) throw std::logic_error("'" + text + "' does not say " + w);
    pl::nccl_communicator again{threads};
    again.close_step();
  });
  nobody_failed(outcomes);
}

// A communicator that the user makes, blocking or not.
ncclComm_t theirs(pl::thread_communicator& threads, int rank, int ranks, bool blocking = true) {
  ncclUniqueId id{};
  if (threads.rank() == 0) ncclGetUniqueId(&id);
  std::vector<std::int64_t> mine(16), all(16 * static_cast<std::size_t>(threads.size()));
  std::memcpy(mine.data(), &id, sizeof id);
  threads.host_exchange(mine, all);
  std::memcpy(&id, all.data(), sizeof id);
  ncclComm_t comm = nullptr;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = blocking ? 1 : 0;
  ncclCommInitRankConfig(&comm, ranks, id, rank, &config);
  for (ncclResult_t now = ncclInProgress; now == ncclInProgress;) ncclCommGetAsyncError(comm, &now);
  return comm;
}
ncclComm_t theirs(pl::thread_communicator& threads, bool blocking = true) {
  return theirs(threads, threads.rank(), threads.size(), blocking);
}
std::uint64_t ended() {
  return cuda_stand_in::calls_of("ncclCommAbort") + cuda_stand_in::calls_of("ncclCommDestroy") +
         cuda_stand_in::calls_of("ncclCommFinalize");
}

void ring(pl::nccl_communicator& comm, backend& gpu, int rounds = 3) {
  const int me = comm.rank(), n = comm.size();
  contract::mirrored<std::int64_t, backend> a(gpu, 10), b(gpu, 10);
  auto s = gpu.make_stream("ring");
  a.put(s, [&](auto i) { return 100 * me + i; });
  for (int k = 0; k < rounds; ++k) {
    comm.exchange(s, {send_to((me + 1) % n, a.all())}, {receive_from((me + n - 1) % n, b.all())}, "ring");
    gpu.copy(s, in(b.all()), out(a.all()));
  }
  contract::require(a.get(s)[7] == 100 * ((me + 3 * n - rounds) % n) + 7, "a ring goes round");
}

} // namespace

TEST_CASE("nccl: ranks with different versions of NCCL are refused, with both versions") {
  const eight_devices settings;
  refused(3, 1, {"ranks use different versions of NCCL: 2.28.9 on rank 0, 2, but 2.27.3 on rank 1"},
          [](auto& threads) {
            if (threads.rank() == 1) cuda_stand_in::nccl::version_here = 22'703;
            pl::nccl_communicator comm{threads};
          });
}
TEST_CASE("nccl: a NCCL that is too old is refused by all, with its version") {
  const eight_devices settings;
  refused(2, 1, {"rank 1: NCCL 2.17.1 is loaded, nccl_communicator needs 2.18 or newer"}, [](auto& threads) {
    if (threads.rank() == 1) cuda_stand_in::nccl::version_here = 21'701;
    pl::nccl_communicator comm{threads};
  });
  CHECK(pl::nccl::version_text(2'804) == "2.8.4");
}
TEST_CASE("nccl: ranks with different CUDA drivers are refused, with both versions") {
  const eight_devices settings;
  refused(3, 2, {"CUDA drivers of different versions: 13.0 on rank 0, 1, but 12.8 on rank 2"},
          [](auto& threads) {
            if (threads.rank() == 2) cuda_stand_in::driver_version_here = 12'080;
            pl::nccl_communicator comm{threads};
          });
}
TEST_CASE("nccl: two ranks on one GPU are refused, and both are named") {
  const eight_devices settings;
  refused(3, 2,
          {"rank 0 and rank 2 are both on GPU-", "NCCL takes one rank for each GPU", "cudaSetDevice",
           "cuda_thread_communicator"},
          [](auto& threads) {
            if (threads.rank() == 2) cudaSetDevice(0);
            pl::nccl_communicator comm{threads};
          });
}
TEST_CASE("nccl: ranks with different options are refused") {
  const eight_devices settings;
  refused(2, 1, {"nccl_options::check_sizes: false on rank 0, but true on rank 1"}, [](auto& threads) {
    pl::nccl_options with;
    with.check_sizes = threads.rank() == 1;
    pl::nccl_communicator comm{threads, with};
  });
}
TEST_CASE("nccl: without a device there is a sentence, not a crash") {
  const eight_devices settings;
  const auto outcomes = on_threads(2, [](auto& threads) {
    threads.close_step();
    if (threads.rank() == 0) {
      cuda_stand_in::options none;
      none.devices = 0;
      cuda_stand_in::configure(none);
    }
    threads.close_step();
    pl::nccl_communicator comm{threads};
  });
  all_say(outcomes, {"rank 0: no CUDA device"});
}

TEST_CASE("nccl: a communicator of the user's is used and given back") {
  const eight_devices settings;
  for (const bool blocking : {true, false}) {
    CAPTURE(blocking);
    const auto outcomes = on_threads(3, [=](auto& threads) {
      backend gpu;
      const ncclComm_t mine = theirs(threads, blocking);
      {
        pl::nccl_communicator comm{threads, mine};
        contract::require(comm.world()->native() == mine, "it is the user's");
        ring(comm, gpu);
        auto part = comm.split(threads.rank() < 2 ? 0 : 1, 0);
        ring(part, gpu);
        comm.close_step();
      }
      int size = 0;
      contract::require(ncclCommCount(mine, &size) == ncclSuccess && size == 3, "it lives");
      {
        pl::nccl_communicator again{threads, mine};
        ring(again, gpu);
        again.close_step();
      }
      threads.close_step();
      ncclCommDestroy(mine); // not before it has been given back: until then the watchdog asks for its state
    });
    nobody_failed(outcomes);
  }
}

TEST_CASE("nccl: an adopted communicator must be that of the host channel: both ranks and sizes are named") {
  const eight_devices settings;
  const auto outcomes = on_threads(4, [](auto& threads) {
    const ncclComm_t other_order = theirs(threads, 3 - threads.rank(), 4);
    std::string text;
    try {
      pl::nccl_communicator comm{threads, other_order};
    } catch (const pl::collective_error& e) {
      text = e.what();
    }
    ncclCommDestroy(other_order);
    contract::require(
        text.find("rank 0: the adopted ncclComm_t says rank 3 of 4, the host channel says rank 0 "
                  "of 4") != std::string::npos,
        "both ranks are named");

    auto pairs = threads.split(threads.rank() / 2, 0);
    const ncclComm_t smaller = theirs(pairs);
    text = "";
    try {
      pl::nccl_communicator comm{threads, smaller};
    } catch (const pl::collective_error& e) {
      text = e.what();
    }
    ncclCommDestroy(smaller);
    contract::require(
        text.find("rank 0: the adopted ncclComm_t says rank 0 of 2, the host channel says rank 0 "
                  "of 4") != std::string::npos ||
            text.find("says rank 0 of 2, the host channel says rank 2 of 4") != std::string::npos,
        "both sizes are named");
  });
  nobody_failed(outcomes);
}
TEST_CASE("nccl: an adopted communicator of another device, and none at all, are refused") {
  const eight_devices settings;
  const auto outcomes = on_threads(2, [](auto& threads) {
    const ncclComm_t mine = theirs(threads);
    const auto text_of = [&](auto attempt) -> std::string {
      try {
        attempt();
      } catch (const pl::error& e) {
        return e.what();
      }
      return "";
    };
    cudaSetDevice(threads.rank() + 2);
    const std::string elsewhere = text_of([&] { pl::nccl_communicator comm{threads, mine}; });
    cudaSetDevice(threads.rank());
    contract::require(elsewhere.find("of CUDA device 0, but device 2 is the current one") !=
                          std::string::npos,
                      "both devices are named");
    const std::string nothing = text_of([&] { pl::nccl_communicator comm{threads, ncclComm_t{}}; });
    contract::require(nothing.find("the adopted ncclComm_t is null") != std::string::npos, "null is refused");
    ncclCommDestroy(mine);
  });
  nobody_failed(outcomes);
  refused(2, 1, {"whose communicator it is: to be made on rank 0, but adopted on rank 1"}, [](auto& threads) {
    const ncclComm_t mine = theirs(threads);
    try {
      if (threads.rank() == 1)
        pl::nccl_communicator comm{threads, mine};
      else
        pl::nccl_communicator comm{threads};
    } catch (...) {
      ncclCommDestroy(mine);
      throw;
    }
  });
}

TEST_CASE("nccl: an environment that makes NCCL's calls block is refused") {
  const eight_devices settings;
  setenv("NCCL_COMM_BLOCKING", "1", 1);
  refused(2, 0, {"rank 0: NCCL_COMM_BLOCKING=1 is in the environment", "unset it"}, [](auto& threads) {
    try {
      pl::nccl_communicator comm{threads};
    } catch (...) {
      threads.host_exchange({}, {}); // the environment is that of both
      if (threads.rank() == 0) unsetenv("NCCL_COMM_BLOCKING");
      threads.host_exchange({}, {});
      throw;
    }
  });
}

TEST_CASE("nccl: in a group that fails an adopted communicator is left alone, or aborted once where that is "
          "allowed") {
  const eight_devices settings;
  for (const bool allowed : {false, true}) {
    CAPTURE(allowed);
    std::atomic<int> freed{0};
    const std::uint64_t before = ended();
    const auto outcomes = contract::run_promptly<nccl_ranks::plain_threads>(2, [&](auto& threads) {
      pl::nccl_options with;
      with.abort_adopted = allowed;
      backend gpu;
      const ncclComm_t mine = theirs(threads);
      struct end {
        ncclComm_t comm;
        bool gone;
        ~end() {
          if (!gone) ncclCommDestroy(comm); // as its owner would
        }
      } const at_end{mine, allowed};
      pl::device_buffer<float, backend> memory(gpu.device(), 16, pl::tag::other);
      auto s = gpu.make_stream("s");
      pl::nccl_communicator comm{threads, mine, with};
      if (threads.rank() == 0 && allowed) // in flight, and nobody comes
        try {
          comm.exchange(s, {send_to(1, memory.all())}, {}, "alone");
        } catch (const pl::collective_error&) {
          ++freed;
          throw;
        }
      if (threads.rank() == 1) {
        std::this_thread::sleep_for(milliseconds(50));
        comm.abort("enough");
      }
      comm.close_step();
    });
    contract::check_cause(outcomes, 1, "enough");
    CHECK(ended() - before == 2); // by its owner's destroy, or by our abort
    CHECK(freed == (allowed ? 1 : 0));
  }
}

TEST_CASE(
    "P4: nccl: a call that blocks in an adopted communicator ends with the deadline, where aborting it is "
    "allowed") {
  const eight_devices settings;
  const auto outcomes = on_threads(
      2,
      [](auto& threads) {
        pl::nccl_options with;
        with.abort_adopted = true;
        backend gpu;
        const ncclComm_t mine = theirs(threads);
        pl::device_buffer<float, backend> memory(gpu.device(), 16, pl::tag::other);
        auto s = gpu.make_stream("s");
        pl::nccl_communicator comm{threads, mine, with};
        if (threads.rank() == 1) std::this_thread::sleep_for(milliseconds(1600));
        comm.exchange(s, {send_to(1 - comm.rank(), memory.all().sub(0, 4))},
                      {receive_from(1 - comm.rank(), memory.all().sub(8, 4))}, "dispatch");
      },
      milliseconds(500));
  all_say(outcomes, {"no rank completed an operation for 500 ms", "waits in 'dispatch'",
                     "for rank 1, which takes part in nothing"});
}
