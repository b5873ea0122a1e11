// SPDX-License-Identifier: Apache-2.0
//
// The stand-in for NCCL shows what it is there to show: what does not fit hangs, what is not waited for has
// not happened, and what NCCL would not mention is reported.
#include "stand_in_tools.hpp"

#include <nccl.h>

#include <chrono>
#include <functional>
#include <thread>

namespace {

using stand_in::device_array;
using stand_in::found;

struct eight_devices : stand_in::with_settings {
  eight_devices() : with_settings(settings()) {}
  static cuda_stand_in::options settings() {
    cuda_stand_in::options o;
    o.devices = 8;
    return o;
  }
};

void await(ncclComm_t comm, ncclResult_t until = ncclSuccess) {
  ncclResult_t now = ncclInProgress;
  while (now == ncclInProgress) ncclCommGetAsyncError(comm, &now);
  CHECK(now == until);
}

// f(rank, comm) on threads with a device each.
void on_ranks(int ranks, bool blocking, const std::function<void(int, ncclComm_t)>& f) {
  ncclUniqueId id{};
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      cudaSetDevice(r);
      ncclComm_t comm = nullptr;
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = blocking ? 1 : 0;
      const ncclResult_t begun = ncclCommInitRankConfig(&comm, ranks, id, r, &config);
      CHECK(begun == (blocking ? ncclSuccess : ncclInProgress));
      await(comm);
      f(r, comm);
    });
  for (std::thread& t : threads) t.join();
}
void end(ncclComm_t comm) {
  CHECK(ncclCommFinalize(comm) != ncclInvalidUsage);
  await(comm);
  CHECK(ncclCommDestroy(comm) == ncclSuccess);
}
// Rank r's part in a ring, with as many bytes as it thinks.
void ring(int r, int ranks, ncclComm_t comm, const device_array<int>& a, const device_array<int>& b,
          std::size_t sent, std::size_t expected, const stand_in::stream& s) {
  CHECK(ncclGroupStart() == ncclSuccess);
  CHECK(ncclSend(a.p, sent, ncclInt8, (r + 1) % ranks, comm, s.s) == ncclSuccess);
  CHECK(ncclRecv(b.p, expected, ncclInt8, (r + ranks - 1) % ranks, comm, s.s) == ncclSuccess);
  const ncclResult_t ended = ncclGroupEnd();
  CHECK((ended == ncclSuccess || ended == ncclInProgress));
}

} // namespace

TEST_CASE("nccl stand-in: sends meet receives; a group that is not waited for is not in its stream yet") {
  const eight_devices settings;
  for (const bool blocking : {true, false}) {
    CAPTURE(blocking);
    on_ranks(3, blocking, [=](int r, ncclComm_t comm) {
      const stand_in::stream s;
      const device_array<int> a({r, r + 10}, s), b({-1, -1}, s);
      s.finish();
      ring(r, 3, comm, a, b, 8, 8, s);
      if (!blocking) {
        CHECK(b.download(s)[0] == -1);
        ncclResult_t now = ncclSuccess;
        CHECK(ncclCommGetAsyncError(comm, &now) == ncclSuccess);
        CHECK(now == ncclInProgress);
        CHECK(ncclSend(a.p, 8, ncclInt8, 0, comm, s.s) == ncclInvalidArgument); // not before it is done
      }
      await(comm);
      CHECK(b.download(s) == std::vector<int>{(r + 2) % 3, (r + 2) % 3 + 10});
      end(comm);
    });
  }
  CHECK(stand_in::findings() == "");
}

TEST_CASE("nccl stand-in: sizes that differ hang until both ranks abort") {
  const eight_devices settings;
  on_ranks(2, false, [](int r, ncclComm_t comm) {
    const stand_in::stream s;
    const device_array<int> a({r, r}, s), b({-1, -1}, s);
    ring(r, 2, comm, a, b, 4, r == 0 ? 4 : 8, s);
    await(comm);
    const stand_in::event done;
    cudaEventRecord(done.e, s.s);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    CHECK(cudaEventQuery(done.e) == cudaErrorNotReady);
    CHECK(ncclCommAbort(comm) == ncclSuccess);
    s.finish();
  });
  CHECK(stand_in::findings() == "");
}

TEST_CASE("nccl stand-in: parts of a split, in the order of keys") {
  const eight_devices settings;
  on_ranks(4, false, [](int r, ncclComm_t comm) {
    ncclComm_t part = nullptr;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    CHECK(ncclCommSplit(comm, r == 3 ? NCCL_SPLIT_NOCOLOR : 0, -r, &part, &config) == ncclInProgress);
    CHECK(part == nullptr);
    await(comm);
    CHECK((part == nullptr) == (r == 3));
    if (part != nullptr) {
      int rank = -1, size = 0;
      CHECK(ncclCommUserRank(part, &rank) == ncclSuccess);
      CHECK(ncclCommCount(part, &size) == ncclSuccess);
      CHECK(rank == 2 - r);
      CHECK(size == 3);
      end(part);
    }
    end(comm);
  });
}

TEST_CASE("nccl stand-in: two ranks on one device, errors of a test's own, wrong arguments") {
  const eight_devices settings;
  ncclUniqueId id{};
  ncclGetUniqueId(&id);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r)
    threads.emplace_back([=] {
      ncclComm_t comm = nullptr;
      CHECK(ncclCommInitRank(&comm, 2, id, r) == ncclInvalidUsage);
      CHECK(std::string(ncclGetLastError(comm)) == "Duplicate GPU detected");
      ncclCommAbort(comm);
    });
  for (std::thread& t : threads) t.join();
  on_ranks(1, false, [](int, ncclComm_t comm) {
    const stand_in::stream s;
    const device_array<int> a({1}, s);
    s.finish();
    int on_host = 0;
    CHECK(ncclSend(a.p, 4, ncclInt8, 1, comm, s.s) == ncclInvalidArgument);
    CHECK(ncclSend(&on_host, 4, ncclInt8, 0, comm, s.s) == ncclInvalidArgument);
    CHECK(ncclSend(a.p, 400, ncclInt8, 0, comm, s.s) == ncclInvalidArgument);
    CHECK(ncclSend(a.p, 4, ncclInt8, 0, comm, s.s) == ncclInvalidUsage); // to itself, and no receive
    cuda_stand_in::nccl::spoil(comm, ncclRemoteError);
    await(comm, ncclRemoteError);
    ncclCommAbort(comm);
  });
  CHECK(stand_in::findings() == "");
}

TEST_CASE("nccl stand-in: what is used after its end, by two threads at a time, or left, is reported") {
  const eight_devices settings;
  on_ranks(1, false, [](int, ncclComm_t comm) {
    end(comm);
    ncclResult_t now = ncclSuccess;
    CHECK(ncclCommGetAsyncError(comm, &now) == ncclInvalidArgument);
    CHECK(found("ncclCommGetAsyncError is called for a communicator that does not exist"));
    CHECK(ncclCommAbort(comm) == ncclInvalidArgument);
    CHECK(found("ncclCommAbort is called for a communicator that does not exist"));
  });
  on_ranks(1, false, [](int, ncclComm_t comm) {
    {
      const cuda_stand_in::nccl::visit somebody("a call", comm);
      ncclResult_t now = ncclSuccess;
      std::thread([&] { ncclCommGetAsyncError(comm, &now); }).join();
    }
    CHECK(found("while another thread is in the same communicator"));
    cuda_stand_in::nccl::report_communicators();
    CHECK(found("at the end there still are 1 NCCL communicators"));
    end(comm);
  });
  on_ranks(1, false, [](int, ncclComm_t comm) {
    const stand_in::stream s;
    cudaLaunchHostFunc(
        s.s,
        [](void* p) {
          ncclResult_t now = ncclSuccess;
          ncclCommGetAsyncError(static_cast<ncclComm_t>(p), &now);
        },
        comm);
    s.finish();
    CHECK(found("ncclCommGetAsyncError is called in a host function of a stream"));
    end(comm);
  });
}
