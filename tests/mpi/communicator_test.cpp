// SPDX-License-Identifier: Apache-2.0
//
// What is particular to ranks that are processes: the same bits as threads, messages that are cut and
// gathered, the user's own communicator, bad input.
#include "support/counted_new.hpp"

#include "mpi_rig.hpp"

#include <plateau/close_step.hpp>
#include <plateau/collectives.hpp>
#include <plateau/digest.hpp>
#include <plateau/run_ranks.hpp>
#include <plateau/vote.hpp>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>

#include <unistd.h>

namespace pl = plateau;
using std::chrono::milliseconds;

namespace {

void require(bool holds, const char* sentence) {
  if (!holds) throw std::logic_error(sentence);
}
template <class F> void all_succeed(int ranks, F f, pl::mpi_options options = {}) {
  for (const auto& o : mpi_rig::run(ranks, f, options)) {
    if (o) MESSAGE(o->text);
    CHECK_FALSE(o.has_value());
  }
}
template <class Error, class F> std::string text_of(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}
bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

// Sums, all-to-alls and host exchanges, each of which depends on the last; what a rank has at the end.
template <class Communicator> std::vector<float> steps(Communicator& comm) {
  const int me = comm.rank(), n = comm.size();
  const pl::index_t length = 1000 * n;
  pl::host_backend backend;
  pl::device_buffer<float, pl::host_backend> a(backend.device(), length, pl::tag::other);
  pl::device_buffer<float, pl::host_backend> b(backend.device(), length, pl::tag::other);
  pl::device_buffer<unsigned char, pl::host_backend> scratch(
      backend.device(), pl::index_t(pl::reduce_scratch_bytes<float>(n)), pl::tag::other);
  pl::pinned_buffer<float, pl::host_backend> h(backend.pinned(), length, pl::tag::other);
  auto s = backend.make_stream("steps");
  for (pl::index_t i = 0; i < length; ++i) h.data()[i] = 1.0F / static_cast<float>(1 + me * 31 + i % 977);
  backend.copy(s, in(h.all()), out(a.all()));
  for (int step = 0; step < 5; ++step) {
    std::vector<pl::send_op> sends;
    std::vector<pl::receive_op> receives;
    for (int p = 0; p < n; ++p) {
      sends.push_back(send_to(p, a.all().sub(1000 * p, 1000)));
      receives.push_back(receive_from(p, b.all().sub(1000 * p, 1000)));
    }
    comm.exchange(s, sends, receives, "all to all");
    pl::all_reduce(backend, comm, s, inout(b.all()), scratch.all());
    backend.copy(s, in(b.all()), out(h.all()));
    backend.wait(backend.record(s));
    const std::int64_t mine[] = {static_cast<std::int64_t>(h.data()[me + step] * 1e6F)};
    std::vector<std::int64_t> all(static_cast<std::size_t>(n));
    comm.host_exchange(mine, all);
    for (pl::index_t i = 0; i < length; ++i)
      h.data()[i] = h.data()[i] / 3.0F + static_cast<float>(all[static_cast<std::size_t>(i % n)]) * 1e-7F;
    backend.copy(s, in(h.all()), out(a.all()));
    backend.wait(backend.record(s));
  }
  return {h.data(), h.data() + length};
}

} // namespace

TEST_CASE("mpi on 4 ranks: processes give bit for bit what threads give") {
  std::vector<float> of_process, of_thread;
  all_succeed(4, [&](auto& comm) { of_process = steps(comm); });
  pl::run_ranks(4, [&](auto& comm) {
    std::vector<float> mine = steps(comm);
    if (comm.rank() == mpi_rig::process()) of_thread = std::move(mine);
  });
  if (mpi_rig::process() >= 4) return;
  REQUIRE(of_process.size() == of_thread.size());
  CHECK(std::memcmp(of_process.data(), of_thread.data(), of_thread.size() * sizeof(float)) == 0);
}

// Large counts go as several messages; here "large" is 1,000 bytes. Each side's memory is whole, or in rows
// with gaps, independently.
TEST_CASE("mpi on 3 ranks: messages are cut at the largest size, and gathered from scattered memory") {
  for (const std::size_t from_gap : {0, 24})
    for (const std::size_t to_gap : {0, 40})
      for (const std::size_t largest : {1000, 1 << 20}) {
        CAPTURE(from_gap);
        CAPTURE(to_gap);
        pl::mpi_options options;
        options.largest_message = largest;
        all_succeed(
            3,
            [=](auto& comm) {
              const int me = comm.rank();
              const std::size_t rows = 37, row = 1704;
              std::vector<unsigned char> a(3 * rows * (row + from_gap)), b(3 * rows * (row + to_gap), 255);
              std::vector<pl::send_op> sends;
              std::vector<pl::receive_op> receives;
              const auto value = [](int from, int to, std::size_t i) {
                return static_cast<unsigned char>((i * 7 + static_cast<std::size_t>(from * 3 + to)) % 251);
              };
              for (int p = 0; p < 3; ++p)
                for (std::size_t r = 0; r < rows; ++r) {
                  const std::size_t k = static_cast<std::size_t>(p) * rows + r;
                  unsigned char* const from = a.data() + k * (row + from_gap);
                  for (std::size_t i = 0; i < row; ++i) from[i] = value(me, p, r * row + i);
                  sends.push_back({from, row, p});
                  receives.push_back({b.data() + k * (row + to_gap), row, p});
                }
              pl::host_backend backend;
              auto s = backend.make_stream("s");
              for (int twice = 0; twice < 2; ++twice) comm.exchange(s, sends, receives);
              backend.wait(backend.record(s));
              for (int p = 0; p < 3; ++p)
                for (std::size_t r = 0; r < rows; ++r) {
                  const unsigned char* const to =
                      b.data() + (static_cast<std::size_t>(p) * rows + r) * (row + to_gap);
                  for (std::size_t i = 0; i < row; ++i)
                    require(to[i] == value(p, me, r * row + i), "a byte of a row");
                  for (std::size_t i = 0; i < to_gap; ++i) require(to[row + i] == 255, "between rows");
                }
            },
            options);
      }
}

TEST_CASE("mpi on 2 ranks: the user's communicator is not touched") {
  const MPI_Comm users = mpi_rig::first_processes(2);
  const int me = mpi_rig::process();
  int given = 41 + me, taken = 0;
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Errhandler before = MPI_ERRHANDLER_NULL, after = MPI_ERRHANDLER_NULL;
  if (me < 2) {
    MPI_Comm_get_errhandler(users, &before);
    for (const int tag : {0, 1}) MPI_Isend(&given, 1, MPI_INT, 1 - me, tag, users, &request);
  }
  all_succeed(2, [](auto& comm) {
    steps(comm);
    comm.close_step();
  });
  if (me >= 2) return;
  MPI_Comm_get_errhandler(users, &after);
  CHECK(before == after);
  for (const int tag : {0, 1}) {
    MPI_Recv(&taken, 1, MPI_INT, 1 - me, tag, users, MPI_STATUS_IGNORE);
    CHECK(taken == 42 - me);
  }
  MPI_Errhandler_free(&before);
  MPI_Errhandler_free(&after);
}

TEST_CASE("mpi on 2 ranks: after the first exchanges nothing is allocated") {
  all_succeed(2, [](auto& comm) {
    pl::host_backend backend;
    std::vector<float> a(5000, 1.0F), b(5000);
    auto s = backend.make_stream("s");
    const int other = 1 - comm.rank();
    std::uint64_t before = 0;
    for (int i = 0; i < 60; ++i) {
      if (i == 20) before = counted_new::calls;
      comm.exchange(
          s, {{a.data(), 8000, other}, {a.data() + 3000, 8000, other}, {a.data(), 80, comm.rank()}},
          {{b.data(), 8000, other}, {b.data() + 3000, 8000, other}, {b.data() + 2500, 80, comm.rank()}});
      backend.wait(backend.record(s));
      const std::int64_t mine[] = {i, comm.rank()};
      std::int64_t all[4];
      comm.host_exchange(mine, all);
      comm.close_step();
    }
    const std::uint64_t allocations = counted_new::calls - before;
    require(allocations == 0, ("40 steps allocated " + std::to_string(allocations) + " times").c_str());
  });
}

TEST_CASE("mpi on 3 ranks: after a group has failed a new one works") {
  for (int trial = 0; trial < 5; ++trial) {
    const auto failed = mpi_rig::run(3,
                                     [&](auto& comm) {
                                       if (comm.rank() == trial % 3) throw std::runtime_error("injected");
                                       comm.close_step();
                                     },
                                     {});
    for (const auto& o : failed) CHECK(o.has_value());
    all_succeed(3, [](auto& comm) { comm.close_step(); });
  }
}

TEST_CASE("mpi on 2 ranks: a deadline and a grace as long as they can be said are as good as none") {
  pl::mpi_options options;
  options.deadline = options.grace = milliseconds::max();
  all_succeed(
      2, [](auto& comm) { steps(comm); }, options);
}

TEST_CASE("mpi on 4 ranks: shapes and types that differ between processes are named by rank") {
  const auto outcomes = mpi_rig::run(4,
                                     [](auto& comm) {
                                       pl::digest given;
                                       given.add(comm.rank() == 2 ? 64 : 128);
                                       pl::vote(comm, given, nullptr, "linear cross-entropy");
                                     },
                                     {});
  for (const auto& o : outcomes) {
    REQUIRE(o.has_value());
    CHECK(o->failed_rank == 2);
    CHECK(o->operation == "linear cross-entropy");
    CHECK(contains(o->text, "rank 2 against rank 0, 1, 3"));
  }
}

TEST_CASE("mpi on 2 ranks: versions that differ between processes: both are named, on both") {
  const auto outcomes = mpi_rig::run(
      2,
      [](pl::mpi_communicator& comm) {
        pl::mpi::joining_ranks<pl::mpi::world> ranks{comm.world(), comm.rank()};
        pl::mpi::agree_on_versions(ranks, pl::mpi::versions_here()); // these are the same
        pl::mpi::agree_on_versions(ranks, comm.rank() == 0 ? "Plateau 0.1.0, X" : "Plateau 0.2.0, X");
      },
      {});
  for (const auto& o : outcomes) {
    REQUIRE(o.has_value());
    CHECK(contains(o->text, "rank 1 has Plateau 0.2.0, X; rank 0 has Plateau 0.1.0, X"));
  }
}

TEST_CASE("mpi on 1 ranks: what cannot serve is refused with a sentence") {
  const auto refused = [](MPI_Comm comm, pl::mpi_options options) {
    return text_of<pl::config_error>([&] { pl::mpi_communicator{comm, options}; });
  };
  CHECK(contains(refused(MPI_COMM_NULL, {}), "over MPI_COMM_NULL"));
  CHECK(contains(refused(MPI_COMM_SELF, {milliseconds(0)}), "a deadline of 0 ms"));
  pl::mpi_options options;
  options.largest_message = 0;
  CHECK(contains(refused(MPI_COMM_SELF, options), "messages of up to 0 bytes"));
  options.largest_message = std::size_t{1} << 31;
  CHECK(contains(refused(MPI_COMM_SELF, options), "messages of up to 2147483648 bytes"));
}
TEST_CASE("mpi on 2 ranks: an intercommunicator is refused") {
  MPI_Comm half = MPI_COMM_NULL, between = MPI_COMM_NULL;
  const int me = mpi_rig::process();
  MPI_Comm_split(MPI_COMM_WORLD, me % 2, me, &half);
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - me % 2, 0, &between);
  CHECK(contains(text_of<pl::config_error>([&] { pl::mpi_communicator{between}; }), "intercommunicator"));
  MPI_Comm_free(&between);
  MPI_Comm_free(&half);
}
TEST_CASE("mpi on 1 ranks: a split for which MPI has no tag left") {
  pl::mpi_communicator comm{MPI_COMM_SELF};
  pl::host::split_group agreed;
  agreed.color = 0;
  agreed.parts = 1;
  agreed.members = {0};
  void* largest = nullptr;
  int found = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&largest), &found);
  REQUIRE(found != 0);
  agreed.offer = *static_cast<int*>(largest);
  CHECK(contains(text_of<pl::config_error>([&] { comm.world()->child(0, agreed); }), "MPI has tags for"));
  agreed.offer = *static_cast<int*>(largest) - 1;
  CHECK(comm.world()->child(0, agreed)->size() == 1);
}

TEST_CASE("mpi on 2 ranks: a rank that does not come in time: nobody waits for ever") {
  pl::mpi_options options;
  options.deadline = milliseconds(300);
  options.grace = milliseconds(100);
  const int me = mpi_rig::process();
  if (me == 0) {
    const std::string text = text_of<pl::backend_error>([&] {
      pl::mpi_communicator{mpi_rig::first_processes(2), options};
    });
    CHECK(contains(text, "rank 0: not all ranks of the communicator came"));
    CHECK(contains(text, "within 300 ms"));
  } else {
    static_cast<void>(mpi_rig::first_processes(2));
  }
  MPI_Barrier(MPI_COMM_WORLD);
  // Rank 1 comes now, when rank 0 has given up: it hears nothing from it, and the job goes on.
  if (me == 1) {
    const std::string text = text_of<pl::collective_error>([&] {
      pl::mpi_communicator{mpi_rig::first_processes(2), options};
    });
    CHECK(contains(text, "rank 0 failed in mpi_communicator"));
    CHECK(contains(text, "rank 0, which takes part in nothing"));
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

// What a transport does not take at once moves only while its sender polls. Here a rank touches MPI no more
// until the other has told it, by a file, that it has everything. Over TCP this shows; shared memory may move
// all that without the sender.
TEST_CASE("mpi on 2 ranks: a rank that computes for long after an operation keeps nobody from ending it") {
  all_succeed(2, [](auto& comm) {
    pl::host_backend backend;
    const std::size_t n = 40'000;
    std::vector<std::int64_t> mine(n, 7 + comm.rank()), all(2 * n), got(2 * n);
    std::vector<pl::send_op> sends; // no two sizes alike: the sizes are a large message too
    std::vector<pl::receive_op> receives;
    for (std::size_t i = 0, at = 0; i < 8000; at += 1 + i++ % 2 * 8) {
      sends.push_back({mine.data() + at, 8 * (1 + i % 2 * 8), 1 - comm.rank()});
      receives.push_back({got.data() + at, 8 * (1 + i % 2 * 8), 1 - comm.rank()});
    }
    const std::int64_t id[] = {comm.rank() == 0 ? static_cast<std::int64_t>(getpid()) : 0};
    std::int64_t ids[2];
    comm.host_exchange(id, ids);
    auto s = backend.make_stream("s");
    for (int trial = 0; trial < 12; ++trial) {
      if (trial % 2 == 0) {
        comm.host_exchange(mine, all);
      } else {
        comm.exchange(s, sends, receives);
        backend.wait(backend.record(s));
      }
      const auto mark = [&](int rank) {
        return std::filesystem::temp_directory_path() / ("plateau_" + std::to_string(ids[0]) + "_" +
                                                         std::to_string(trial) + "_" + std::to_string(rank));
      };
      if (comm.rank() == trial / 2 % 2) {
        bool told = false;
        for (int i = 0; i < 4000 && !told; ++i) {
          std::this_thread::sleep_for(milliseconds(5));
          told = std::filesystem::remove(mark(1 - comm.rank()));
        }
        require(told, "the other rank has not ended the operation");
      } else {
        std::ofstream(mark(comm.rank())) << trial;
      }
      comm.close_step();
    }
  });
}

TEST_CASE("mpi on 2 ranks: a scope that an exception leaves tells the others") {
  std::optional<pl::failure> mine;
  if (mpi_rig::process() < 2) {
    try {
      pl::mpi_communicator comm{mpi_rig::first_processes(2)};
      if (comm.rank() == 1) throw std::runtime_error("in the user's own code");
      comm.close_step();
    } catch (...) {
      mine = pl::failure::current();
    }
  }
  const auto outcomes = mpi_rig::gather(2, mine);
  REQUIRE(outcomes[0].has_value());
  CHECK(outcomes[0]->failed_rank == 1);
  CHECK(contains(outcomes[0]->text, "an exception passed through the scope of its communicator"));
  REQUIRE(outcomes[1].has_value());
  CHECK(outcomes[1]->text == "in the user's own code");
}

TEST_CASE("mpi on 2 ranks: over a communicator of the user's, as documented") {
  const MPI_Comm mine = mpi_rig::first_processes(2);
  if (mine == MPI_COMM_NULL) return;
  pl::mpi_options options;
  options.deadline = std::chrono::seconds(20);
  pl::mpi_communicator comm{mine, options}; // a duplicate of it; all its ranks make one
  pl::host_backend backend;
  pl::device_buffer<float, pl::host_backend> a(backend.device(), 1024, pl::tag::other);
  pl::device_buffer<float, pl::host_backend> b(backend.device(), 1024, pl::tag::other);
  auto stream = backend.make_stream("moves");
  const int left = (comm.rank() + comm.size() - 1) % comm.size(), right = (comm.rank() + 1) % comm.size();
  comm.exchange(stream, {send_to(right, a.all())}, {receive_from(left, b.all())}, "ring");
  pl::close_step(backend, comm, stream);
  CHECK(comm.counters().sent_bytes == 4096);
}
