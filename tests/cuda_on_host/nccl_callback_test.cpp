// SPDX-License-Identifier: Apache-2.0
//
// nccl_communicator over a function of the user's that gathers integers: what the communicator's contract
// says of ranks that do the same; and what can be found out when they do not.
#include "nccl_fixture.hpp"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

namespace {

namespace pl = plateau;
using nccl_ranks::all_say;
using nccl_ranks::backend;
using nccl_ranks::eight_devices;
using nccl_ranks::milliseconds;
using nccl_ranks::outcomes;

// What a user's job may have: ranks lay down integers and wait for one another, until somebody ends the job.
class job {
 public:
  explicit job(int ranks) : slots_(static_cast<std::size_t>(ranks)) {}

  void all_gather(int rank, std::span<const std::int64_t> mine, std::span<std::int64_t> all) {
    std::unique_lock lock(mutex_);
    const std::uint64_t round = round_;
    slots_[static_cast<std::size_t>(rank)].assign(mine.begin(), mine.end());
    if (++come_ == slots_.size()) {
      auto& result = results_[round % 2];
      result.clear();
      for (const auto& s : slots_) result.insert(result.end(), s.begin(), s.end());
      come_ = 0;
      ++round_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return ended_ || round_ != round; });
    if (round_ == round) throw std::runtime_error("the job has ended: " + why_);
    const auto& result = results_[round % 2];
    contract::require(result.size() == all.size(), "all ranks gave as many");
    std::copy(result.begin(), result.end(), all.begin());
  }
  void end(const std::string& why) {
    const std::lock_guard lock(mutex_);
    ++times_ended;
    if (!ended_) why_ = why;
    ended_ = true;
    changed_.notify_all();
  }
  std::shared_ptr<job> part(const std::vector<int>& members, std::size_t n) {
    const std::lock_guard lock(mutex_);
    auto& p = parts_[{members, asked_[members]++ / n}];
    if (!p) p = std::make_shared<job>(static_cast<int>(n));
    return p;
  }
  std::atomic<int> times_ended{0};

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::vector<std::int64_t>> slots_;
  std::vector<std::int64_t> results_[2];
  std::size_t come_ = 0;
  std::uint64_t round_ = 0;
  bool ended_ = false;
  std::string why_;
  std::map<std::vector<int>, std::size_t> asked_;
  std::map<std::pair<std::vector<int>, std::size_t>, std::shared_ptr<job>> parts_;
};

pl::nccl_callback callback(const std::shared_ptr<job>& of, int rank, int size, milliseconds deadline,
                           bool splits = true) {
  pl::nccl_callback c;
  c.rank = rank;
  c.size = size;
  c.deadline = deadline;
  c.all_gather = [=](auto mine, auto all) { of->all_gather(rank, mine, all); };
  c.abort = [=](const std::string& why) { of->end(why); };
  if (splits)
    c.split = [=](std::span<const int> members) {
      const std::vector<int> list(members.begin(), members.end());
      const auto me = std::find(list.begin(), list.end(), rank) - list.begin();
      return callback(of->part(list, list.size()), static_cast<int>(me), static_cast<int>(list.size()),
                      deadline);
    };
  return c;
}

// Runs f(comm) on threads of the test's own; what each rank left with.
template <class F>
outcomes on_a_job(const std::shared_ptr<job>& of, int ranks, F f, milliseconds deadline,
                  pl::nccl_options with, bool splits = true) {
  outcomes left(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      cudaSetDevice(r);
      try {
        pl::nccl_communicator comm{callback(of, r, ranks, deadline, splits), with};
        try {
          f(comm);
        } catch (...) {
          left[static_cast<std::size_t>(r)] = pl::failure::current();
          comm.abort(*left[static_cast<std::size_t>(r)]);
        }
      } catch (...) {
        left[static_cast<std::size_t>(r)] = pl::failure::current();
      }
    });
  for (std::thread& t : threads) t.join();
  return left;
}

struct over_callback {
  using backend = nccl_ranks::backend;
  template <class F> static outcomes run(int ranks, F f, milliseconds deadline) {
    return on_a_job(std::make_shared<job>(ranks), ranks, f, deadline, {});
  }
};
struct checking : over_callback {
  template <class F> static outcomes run(int ranks, F f, milliseconds deadline) {
    pl::nccl_options with;
    with.check_sizes = true;
    return on_a_job(std::make_shared<job>(ranks), ranks, f, deadline, with);
  }
};

} // namespace

TEST_CASE("nccl over a callback: the contract while nothing fails") {
  const eight_devices settings;
  contract::exchange_ring<over_callback>();
  contract::exchange_all_to_all<over_callback>();
  contract::exchange_nothing<over_callback>();
  contract::order_of_issue<over_callback>();
  contract::host_exchanges<over_callback>();
  contract::splits<over_callback>();
  contract::votes<over_callback>();
  contract::exchange_pieces<checking>();
}
TEST_CASE("nccl over a callback: sizes, lengths and orders that differ are named on all ranks") {
  const eight_devices settings;
  contract::sizes_differ<checking>();
  contract::orders_differ<checking>();
}
TEST_CASE("nccl over a callback: latched failures and those of streams surface at close_step on their rank") {
  const eight_devices settings;
  const auto job_of = std::make_shared<job>(3);
  const auto left = on_a_job(job_of, 3,
                             [](auto& comm) {
                               if (comm.rank() == 2)
                                 comm.latch({pl::failure::kind::other, "label 7 of token 3 is out of range"});
                               comm.close_step();
                               contract::require(false, "close_step throws");
                             },
                             milliseconds(60'000), {});
  all_say(left, {"label 7 of token 3"}); // the others have it from the job
  CHECK(left[2]->failed_rank == 2);
  CHECK(job_of->times_ended >= 1);
}
TEST_CASE("P2: nccl over a callback: exchanges in different orders are named at the next host exchange") {
  const eight_devices settings;
  const auto left = over_callback::run(
      2,
      [](auto& comm) {
        backend gpu;
        pl::device_buffer<float, backend> memory(gpu.device(), 16, pl::tag::other);
        auto s = gpu.make_stream("s");
        for (int k = 0; k < 2; ++k)
          comm.exchange(s, {send_to(1 - comm.rank(), memory.all().sub(0, 4))},
                        {receive_from(1 - comm.rank(), memory.all().sub(8, 4))},
                        k == comm.rank() ? "first" : "second"); // of one size, so they meet
        comm.close_step();
      },
      milliseconds(60'000));
  all_say(left, {"different exchanges before host exchange 'close_step'",
                 "last exchange of rank 0 is 'second'", "last exchange of rank 1 is 'first'"});
}
TEST_CASE("nccl over a callback: one that throws is the cause, and the job is told once by each rank") {
  const eight_devices settings;
  const auto job_of = std::make_shared<job>(2);
  std::vector<std::string> texts(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r)
    threads.emplace_back([&, r] {
      cudaSetDevice(r);
      auto c = callback(job_of, r, 2, milliseconds(60'000));
      c.all_gather = [=, calls = 0](auto mine, auto all) mutable {
        if (r == 1 && ++calls == 12) throw std::runtime_error("the network is gone");
        job_of->all_gather(r, mine, all);
      };
      try {
        pl::nccl_communicator comm{std::move(c)};
        for (int k = 0; k < 20; ++k) comm.close_step();
      } catch (const pl::collective_error& e) {
        texts[static_cast<std::size_t>(r)] = e.what();
      }
    });
  for (std::thread& t : threads) t.join();
  for (const std::string& t : texts) {
    CAPTURE(t);
    CHECK(t.find("nccl_callback::all_gather threw") != std::string::npos);
    CHECK(t.find("the network is gone") != std::string::npos);
  }
  CHECK(job_of->times_ended == 2);
}
TEST_CASE("P4: nccl over a callback: a rank that does not come ends the others at the deadline") {
  const eight_devices settings;
  for (const bool in_making : {true, false}) {
    CAPTURE(in_making);
    const auto job_of = std::make_shared<job>(2);
    std::string text;
    std::thread other([&] {
      if (in_making) return;
      cudaSetDevice(1);
      try {
        pl::nccl_communicator comm{callback(job_of, 1, 2, milliseconds(60'000))};
        std::this_thread::sleep_for(milliseconds(1600));
      } catch (const pl::collective_error&) {
      }
    });
    cudaSetDevice(0);
    try {
      pl::nccl_communicator comm{callback(job_of, 0, 2, milliseconds(500))};
      comm.host_exchange({}, {}, "capacities");
    } catch (const pl::collective_error& e) {
      text = e.what();
    }
    other.join();
    CAPTURE(text);
    CHECK(text.find("no rank completed an operation for 500 ms") != std::string::npos);
    CHECK(text.find(in_making ? "waits in 'nccl_communicator'" : "waits in 'capacities'") !=
          std::string::npos);
    CHECK(text.find("for rank 1, which takes part in nothing") != std::string::npos);
    CHECK(job_of->times_ended == 1);
  }
}
TEST_CASE("nccl over a callback: what cannot work is said") {
  const eight_devices settings;
  const auto text_of = [](pl::nccl_callback c) -> std::string {
    try {
      pl::nccl_communicator comm{std::move(c)};
    } catch (const pl::config_error& e) {
      return e.what();
    }
    return "";
  };
  const auto of = std::make_shared<job>(1);
  CHECK(text_of(callback(of, 3, 2, milliseconds(100))).find("rank 3 of 2 ranks") != std::string::npos);
  pl::nccl_callback empty;
  empty.rank = 0;
  empty.size = 1;
  CHECK(text_of(empty).find("all_gather is missing") != std::string::npos);

  const auto left = on_a_job(
      std::make_shared<job>(2), 2, [](auto& comm) { comm.split(comm.rank(), 0); }, milliseconds(60'000), {},
      false);
  all_say(left, {"nccl_callback has no split function"});
}
