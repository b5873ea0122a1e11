// SPDX-License-Identifier: Apache-2.0
#include <plateau/host/abort_record.hpp>

#include <doctest/doctest.h>

#include <thread>

using plateau::collective_error;
using plateau::failure;
using plateau::host::abort_record;

namespace {
failure cause(int rank, const char* text) { return {failure::kind::collective, text, rank, "ring", 4}; }

// What a reader on the given rank is told.
std::string told(abort_record& record, int reader) {
  abort_record::lock_type lock(record.mutex());
  try {
    record.raise(lock, reader);
  } catch (const collective_error& e) {
    CHECK(lock.owns_lock());
    return e.cause;
  }
}
struct waits_for final : plateau::host::wait_site {
  waits_for(int who, int whom) : wait_site(who, "ring", 4), peer(whom) {}
  bool awaits(int other) const override { return other == peer; }
  int peer;
};
std::string waits(abort_record& record, int rank, int peer) {
  abort_record::lock_type lock(record.mutex());
  std::condition_variable wake;
  waits_for site(rank, peer);
  try {
    record.await(lock, wake, site, [] { return false; });
  } catch (const collective_error& e) {
    return std::to_string(e.failed_rank) + ": " + e.cause;
  }
  return "";
}
constexpr std::chrono::milliseconds a_minute = std::chrono::minutes(1);
} // namespace

TEST_CASE("abort record: the first cause wins") {
  abort_record record(3, a_minute);
  {
    const std::lock_guard lock(record.mutex());
    CHECK_FALSE(record.aborted());
    record.abort(cause(1, "first"));
    record.abort(cause(2, "second"));
    record.abort(cause(1, "third"));
  }
  CHECK(told(record, 0) == "first");
}

TEST_CASE(
    "abort record: a provisional cause is replaced by its own rank only, and read when it is definitive") {
  abort_record record(3, a_minute);
  {
    const std::lock_guard lock(record.mutex());
    record.abort(cause(1, "passed through"), true);
    record.abort(cause(2, "another"));
  }
  CHECK(told(record, 1) == "passed through"); // its own rank does not wait for itself
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const std::lock_guard lock(record.mutex());
    record.abort(cause(1, "the exception"));
  });
  CHECK(told(record, 0) == "the exception");
  later.join();
}

TEST_CASE(
    "abort record: a provisional cause stands when its rank confirms it, or says nothing for the grace") {
  for (const bool confirmed : {true, false}) {
    abort_record record(3, a_minute);
    {
      const std::lock_guard lock(record.mutex());
      record.abort(cause(1, "a kernel's failure"), true);
      record.confirm(2);
      if (confirmed) record.confirm(1);
    }
    const auto begun = abort_record::clock::now();
    CHECK(told(record, 0) == "a kernel's failure");
    CHECK((abort_record::clock::now() - begun >= abort_record::grace - std::chrono::milliseconds(100)) !=
          confirmed);
  }
}

TEST_CASE("abort record: a wait for a rank that has left ends, one for another rank goes on") {
  abort_record record(3, std::chrono::milliseconds(50));
  {
    const std::lock_guard lock(record.mutex());
    record.leave(2);
  }
  CHECK(waits(record, 0, 2) ==
        "2: rank 2 has left: it ended while rank 0 waits in 'ring' (operation 4) for it");
  abort_record other(3, std::chrono::milliseconds(50));
  CHECK(waits(other, 0, 1).rfind("1: no rank completed an operation for 50 ms: rank 0 waits in 'ring'", 0) ==
        0);
}

TEST_CASE("abort record: the longest deadline that can be said is as good as none") {
  abort_record record(2, std::chrono::milliseconds::max());
  std::string said;
  std::thread waiting([&] { said = waits(record, 0, 1); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  {
    const std::lock_guard lock(record.mutex());
    record.abort(cause(1, "later"));
  }
  waiting.join();
  CHECK(said == "1: later");
}

TEST_CASE("abort record: the deadline follows who waits for whom") {
  abort_record record(4, std::chrono::milliseconds(500));
  std::string first, second;
  std::thread a([&] { first = waits(record, 0, 1); });
  std::thread b([&] { second = waits(record, 1, 3); });
  a.join();
  b.join();
  CHECK(first == second);
  CHECK(first.rfind("3: ", 0) == 0);
  CHECK(first.find("for rank 3, which takes part in nothing") != std::string::npos);
}

namespace {
// A record whose waits poll instead of sleeping, as those of processes do.
struct polling_record final : abort_record {
  using abort_record::abort_record;
  void sleep(lock_type& lock, std::condition_variable&, clock::time_point,
             plateau::host::wait_site* site) override {
    lock.unlock();
    if (site != nullptr) site->poll();
    ++polls;
    lock.lock();
    if (heard) abort(*heard);
  }
  void cause_changed() override { told += cause()->text + (provisional() ? "? " : ". "); }
  void wait_ended(const plateau::host::wait_site& site) override {
    told += site.operation + std::string(" ended ");
  }

  std::optional<failure> heard;
  std::string told;
  int polls = 0;
};
struct polled final : plateau::host::wait_site {
  using wait_site::wait_site;
  bool awaits(int) const override { return false; }
  bool poll() override { return ++polls != 0; }
  int polls = 0;
};
} // namespace

TEST_CASE("abort record: a record may poll where another sleeps, and is told of each change of the cause") {
  polling_record record(3, a_minute);
  abort_record::lock_type lock(record.mutex());
  std::condition_variable wake;
  polled site(0, "ring", 4);
  record.await(lock, wake, site, [&] { return site.polls == 3; });
  CHECK(record.polls == 3);
  CHECK(record.told == "ring ended ");

  record.told.clear();
  record.abort(cause(1, "first"), true);
  record.abort(cause(2, "second"));
  record.abort(cause(1, "better"));
  record.confirm(1);
  CHECK(record.told == "first? better. ");
}
TEST_CASE("abort record: a cause that is heard of while a wait polls ends it") {
  polling_record record(3, a_minute);
  record.heard = cause(2, "elsewhere");
  CHECK(waits(record, 0, 1) == "2: elsewhere");
}
