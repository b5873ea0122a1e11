// SPDX-License-Identifier: Apache-2.0
//
// Ranks as threads on the CUDA backend, on the stand-in: the contract as on a GPU, then with operations that
// come late, with ranks on two devices, and with calls of the runtime that fail.
#include "cuda/thread_communicator_cases.hpp"

#include "stand_in_tools.hpp"

#include <string>

namespace {

using contract::milliseconds;
using cuda_threads::fixture;
namespace pl = plateau;

// Two rounds of all to all on two streams of each of three ranks, rank r on device r % devices.
void rounds(pl::cuda_thread_communicator& comm, int devices) {
  const int me = comm.rank(), n = comm.size();
  pl::cuda_backend backend("", me % devices);
  cuda_threads::numbers a(backend, n), b(backend, n);
  auto first = backend.make_stream("first"), second = backend.make_stream("second");
  for (int round = 0; round < 2; ++round) {
    auto& s = round == 0 ? first : second;
    a.put(s, [&](auto i) { return 100 * me + 10 * round + i; });
    std::vector<pl::send_op> sends;
    std::vector<pl::receive_op> receives;
    for (int p = 0; p < n; ++p) {
      sends.push_back(send_to(p, a.sub(p, 1)));
      receives.push_back(receive_from(p, b.sub(p, 1)));
    }
    comm.exchange(s, sends, receives, "all to all");
    const auto* got = b.get(s);
    for (int p = 0; p < n; ++p)
      contract::require(got[p] == 100 * p + 10 * round + me, "everybody's number for this rank");
  }
  pl::close_step(backend, comm, first, second);
}

} // namespace

TEST_CASE("cuda threads: where operations of streams come late") {
  for (const std::uint64_t seed : {1, 2}) {
    CAPTURE(seed);
    cuda_stand_in::options o;
    o.seed = seed;
    o.delay_microseconds = 200;
    const stand_in::with_settings late(o);
    cuda_threads::one_stream();
    cuda_threads::two_streams();
    contract::exchange_all_to_all<fixture>();
  }
  CHECK(stand_in::findings() == "");
}

TEST_CASE("cuda threads: ranks on two devices") {
  cuda_stand_in::options o;
  o.devices = 2;
  const stand_in::with_settings two(o);
  pl::run_ranks<pl::cuda_thread_communicator>(3, [](auto& comm) { rounds(comm, 2); });
}

TEST_CASE("P3: cuda threads: a call of the runtime that fails on one rank reaches all, with its name") {
  const stand_in::with_settings as_usual({});
  for (const std::string name :
       {"cudaMemcpyAsync", "cudaEventRecord", "cudaStreamWaitEvent", "cudaEventCreateWithFlags"}) {
    CAPTURE(name);
    const auto calls = [&] { return cuda_stand_in::calls_of(name); };
    const auto run = [] { return contract::run_promptly<fixture>(3, [](auto& comm) { rounds(comm, 1); }); };
    std::uint64_t before = calls();
    for (const auto& each : run()) REQUIRE_FALSE(each.has_value());
    const std::uint64_t usual = calls() - before;
    REQUIRE(usual > 0);
    for (std::uint64_t k = 1; k <= usual; ++k) {
      CAPTURE(k);
      before = calls();
      cuda_stand_in::fail_call(name, k, cudaErrorUnknown);
      const auto outcomes = run();
      cuda_stand_in::fail_call(name, 0, cudaErrorUnknown);
      // Fewer events are made when others come back to their pool earlier; the first one always is.
      if (k != 1 && calls() - before < k) continue;
      int failed = -1;
      for (const auto& each : outcomes) {
        REQUIRE(each.has_value());
        CAPTURE(each->text);
        CHECK(each->text.find(name) != std::string::npos);
        if (each->what != pl::failure::kind::collective)
          continue; // the rank's own call, outside of an exchange
        CHECK((failed < 0 || failed == each->failed_rank));
        failed = each->failed_rank;
      }
      CHECK(failed >= 0);
    }
  }
  CHECK(stand_in::findings() == "");
}
