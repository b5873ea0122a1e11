// SPDX-License-Identifier: Apache-2.0
//
// What hangs inside NCCL ends: by the deadline, by an error that NCCL tells of, by the failure of another
// rank; and the end of streams and communicators, in whatever order, does not hang on what is in flight. That
// every communicator is aborted or destroyed once, and not used afterwards, the stand-in watches.
#include "nccl_fixture.hpp"

namespace {

namespace pl = plateau;
using nccl_ranks::all_say;
using nccl_ranks::backend;
using nccl_ranks::eight_devices;
using nccl_ranks::milliseconds;
using nccl_ranks::nobody_failed;
using nccl_ranks::on_threads;
using nccl_ranks::over_threads;

std::uint64_t aborts() { return cuda_stand_in::calls_of("ncclCommAbort"); }

// Rank 1 sends less than rank 0 expects. Says nothing of what the sends and receives of the other pair do.
template <class Buffer> void mismatched(pl::nccl_communicator& comm, backend::stream& s, const Buffer& b) {
  const int other = 1 - comm.rank();
  comm.exchange(s, {send_to(other, b.first(comm.rank() == 1 ? 4 : 8))}, {receive_from(other, b.last(8))},
                "dispatch");
}
// The same buffer for all of it: nothing arrives.
struct rig {
  nccl_ranks::backend gpu;
  pl::device_buffer<float, nccl_ranks::backend> memory{gpu.device(), 16, pl::tag::other};
  struct halves {
    pl::view<float> v;
    pl::view<float> first(pl::index_t n) const { return v.sub(0, n); }
    pl::view<float> last(pl::index_t n) const { return v.sub(v.n - n, n); }
  };
  halves views() const { return {memory.all()}; }
};

} // namespace

TEST_CASE("nccl: sizes that differ hang in NCCL; the deadline ends them, and the streams with them") {
  const eight_devices settings;
  const std::uint64_t before = aborts();
  const auto outcomes = over_threads::run(
      2,
      [](auto& comm) {
        rig here;
        auto s = here.gpu.make_stream("s");
        mismatched(comm, s, here.views());
        const auto done = here.gpu.record(s);
        CHECK(cudaStreamSynchronize(s.handle()) == cudaSuccess); // CUDA sees nothing wrong
        here.gpu.wait(done);                                     // but who waits gets the cause
        contract::require(false, "a wait for half an exchange throws");
      },
      milliseconds(500));
  all_say(outcomes,
          {"no rank completed an operation for 500 ms", "waits in 'dispatch'", "nccl_options::check_sizes"});
  CHECK(aborts() - before == 2);
}

TEST_CASE("nccl: what an exchange has not brought is not given out by way of another stream") {
  const eight_devices settings;
  const auto outcomes = over_threads::run(
      2,
      [](auto& comm) {
        rig here;
        pl::pinned_buffer<float, backend> host(here.gpu.pinned(), 16, pl::tag::other);
        auto moves = here.gpu.make_stream("moves"), compute = here.gpu.make_stream("compute");
        mismatched(comm, moves, here.views());
        here.gpu.wait(compute, here.gpu.record(moves));
        here.gpu.copy(compute, in(here.memory.all()), out(host.all()));
        std::vector<float> got(16);
        here.gpu.fetch(here.gpu.record(compute), in(host.all()), got, "got");
        contract::require(false, "a fetch behind half an exchange throws");
      },
      milliseconds(500));
  all_say(outcomes, {"waits in 'dispatch'"});
}

TEST_CASE("nccl: a rank that does not come to an exchange is named, the first time and later") {
  const eight_devices settings;
  for (const int late : {0, 1}) { // at its number `late`; NCCL connects the two ranks in the first
    CAPTURE(late);
    const auto outcomes = over_threads::run(
        2,
        [=](auto& comm) {
          rig here;
          auto s = here.gpu.make_stream("s");
          for (int k = 0; k < 2; ++k) {
            if (comm.rank() == 1 && k == late) std::this_thread::sleep_for(milliseconds(1600));
            comm.exchange(s, {send_to(1 - comm.rank(), here.views().first(8))},
                          {receive_from(1 - comm.rank(), here.views().last(8))}, k == 0 ? "first" : "second");
            here.gpu.wait(here.gpu.record(s));
          }
        },
        milliseconds(500));
    all_say(outcomes, {"rank 0 waits in", late == 0 ? "'first'" : "'second'",
                       "for rank 1, which takes part in nothing"});
  }
}

TEST_CASE("nccl: work before an exchange in its stream is no wait for other ranks") {
  cuda_stand_in::options at_once = eight_devices::settings(0);
  at_once.serial_host_functions = false; // the ranks' work takes as long as one of it
  const stand_in::with_settings settings(at_once);
  const auto outcomes = over_threads::run(
      2,
      [](auto& comm) {
        rig here;
        auto s = here.gpu.make_stream("s");
        here.gpu.host_task(s, [] { std::this_thread::sleep_for(milliseconds(1500)); });
        comm.exchange(s, {send_to(1 - comm.rank(), here.views().first(8))},
                      {receive_from(1 - comm.rank(), here.views().last(8))});
        here.gpu.wait(here.gpu.record(s));
        comm.close_step();
      },
      milliseconds(800));
  nobody_failed(outcomes);
}

TEST_CASE("nccl: an error that NCCL tells of while an exchange is in flight reaches all ranks") {
  const eight_devices settings;
  const std::uint64_t before = aborts();
  const auto outcomes = over_threads::run(
      3,
      [](auto& comm) {
        rig here;
        auto s = here.gpu.make_stream("s");
        if (comm.rank() == 2) cuda_stand_in::nccl::spoil(comm.world()->native(), ncclRemoteError);
        comm.exchange(s, {send_to((comm.rank() + 1) % 3, here.views().first(8))},
                      {receive_from((comm.rank() + 2) % 3, here.views().last(8))});
        here.gpu.wait(here.gpu.record(s));
        comm.close_step();
      },
      milliseconds(60'000));
  contract::check_cause(outcomes, 2, "remote process exited or there was a network error");
  all_say(outcomes, {"NCCL says: spoilt by a test"});
  CHECK(aborts() - before == 3);
}

TEST_CASE("P3: nccl: ends of streams and communicators, in any order, do not hang on what is in flight") {
  const eight_devices settings;
  for (const bool stream_first : {false, true})
    for (const bool split_off : {false, true}) {
      CAPTURE(stream_first);
      CAPTURE(split_off);
      const auto outcomes = contract::run_promptly<over_threads>(2, [=](auto& comm) {
        rig here;
        std::optional<backend::stream> s(here.gpu.make_stream("s"));
        auto used = std::make_unique<pl::nccl_communicator>(comm.split(split_off ? 0 : -1, 0));
        mismatched(split_off ? *used : comm, *s, here.views());
        if (comm.rank() == 1) {
          std::this_thread::sleep_for(milliseconds(50)); // the exchange has begun on rank 0
          comm.abort("enough");
        }
        if (stream_first) s.reset();
        used.reset();
        s.reset();
        comm.close_step();
      });
      contract::check_cause(outcomes, 1, "enough");
    }
}

TEST_CASE("P3: nccl: a rank that unwinds with an exchange in flight ends it, and others get its own cause") {
  const eight_devices settings;
  for (int repeat = 0; repeat < 10; ++repeat) {
    const auto outcomes = contract::run_promptly<over_threads>(2, [](auto& comm) {
      rig here;
      auto part = comm.split(0, 0);
      auto s = here.gpu.make_stream("s");
      mismatched(part, s, here.views());
      if (comm.rank() == 1) throw std::runtime_error("injected");
      here.gpu.wait(here.gpu.record(s));
    });
    contract::check_cause(outcomes, 1, "injected");
  }
}

TEST_CASE("nccl: whatever call of NCCL fails, all ranks end with it and nothing is left") {
  const eight_devices settings;
  const auto program = [](auto& comm) {
    rig here;
    auto s = here.gpu.make_stream("s");
    auto part = comm.split(0, -comm.rank());
    for (auto* c : {&comm, &part}) {
      const int other = 1 - c->rank();
      c->exchange(s, {send_to(other, here.views().first(8))}, {receive_from(other, here.views().last(8))});
    }
    here.gpu.wait(here.gpu.record(s));
    comm.close_step();
  };
  for (const char* name : {"ncclGetVersion", "ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommSplit",
                           "ncclGroupStart", "ncclSend", "ncclRecv", "ncclGroupEnd", "ncclCommGetAsyncError"})
    for (const std::uint64_t n : {1, 2, 3}) {
      CAPTURE(name);
      CAPTURE(n);
      if (n != 1 && name == std::string("ncclGetUniqueId")) continue; // there is only one
      if (n == 3 && (name == std::string("ncclGetVersion") || std::string(name).find("ncclComm") == 0) &&
          name != std::string("ncclCommGetAsyncError"))
        continue; // one on each rank
      cuda_stand_in::fail_call(name, n, ncclSystemError);
      const auto outcomes = contract::run_promptly<over_threads>(2, program);
      cuda_stand_in::fail_call(name, 0, 0);
      all_say(outcomes, {"unhandled system error", "NCCL says: told to fail"});
      // An error of what goes on in the background is said of what was begun.
      if (name != std::string("ncclCommGetAsyncError")) all_say(outcomes, {name});
    }
  nobody_failed(contract::run_promptly<over_threads>(2, program));
  CHECK(cuda_stand_in::nccl::communicators().living() == 0);
}

TEST_CASE("nccl: a call of CUDA that fails in an exchange fails the group") {
  const eight_devices settings;
  for (const char* name : {"cudaEventRecord", "cudaLaunchHostFunc"}) {
    CAPTURE(name);
    const auto outcomes = contract::run_promptly<over_threads>(2, [=](auto& comm) {
      rig here;
      auto s = here.gpu.make_stream("s");
      comm.close_step();
      if (comm.rank() == 0) cuda_stand_in::fail_call(name, 1, cudaErrorUnknown);
      comm.close_step();
      comm.exchange(s, {send_to(1 - comm.rank(), here.views().first(8))},
                    {receive_from(1 - comm.rank(), here.views().last(8))});
      here.gpu.wait(here.gpu.record(s));
      comm.close_step();
    });
    all_say(outcomes, {name, "nccl_watchdog_test.cpp"});
  }
}

TEST_CASE("nccl: what a rank sends to itself and does not expect is said at once") {
  const eight_devices settings;
  const auto outcomes = contract::run_promptly<over_threads>(2, [](auto& comm) {
    rig here;
    auto s = here.gpu.make_stream("s");
    const int me = comm.rank();
    if (me == 1)
      comm.exchange(s, {send_to(1, here.views().first(2)), send_to(1, here.views().first(3))},
                    {receive_from(1, here.views().last(2)), receive_from(1, here.views().last(4))}, "rows");
    else
      comm.exchange(s, {}, {}, "rows");
    comm.close_step();
  });
  contract::check_cause(outcomes, 1, "send 1 of rank 1 to rank 1 has 12 bytes, but rank 1 expects 16");
}

TEST_CASE("nccl: an exchange on another device than the communicator's is refused, and changes nothing") {
  const eight_devices settings;
  const auto outcomes = over_threads::run(
      2,
      [](auto& comm) {
        rig here;
        auto s = here.gpu.make_stream("s");
        const int me = comm.rank();
        cudaSetDevice(5);
        std::string text;
        try {
          comm.exchange(s, {send_to(1 - me, here.views().first(8))},
                        {receive_from(1 - me, here.views().last(8))});
        } catch (const pl::config_error& e) {
          text = e.what();
        }
        cudaSetDevice(me);
        contract::require(text.find("while CUDA device 5 is current") != std::string::npos &&
                              text.find("made on device " + std::to_string(me)) != std::string::npos,
                          "both devices are named");
        comm.exchange(s, {send_to(1 - me, here.views().first(8))},
                      {receive_from(1 - me, here.views().last(8))});
        here.gpu.wait(here.gpu.record(s));
        comm.close_step();
      },
      milliseconds(60'000));
  nobody_failed(outcomes);
}
