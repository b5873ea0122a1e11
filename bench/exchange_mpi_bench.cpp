// SPDX-License-Identifier: Apache-2.0
//
// All-to-all between processes, 64 MiB a rank in rows of 4 KiB, through the communicator, against
// MPI_Alltoallv with the same counts and buffers on the same job: mpirun -n 4 exchange_mpi_bench. In the
// skewed case the ranks are given shares of 1 : 2 : 3 : ... Both sides begin and end at a barrier.
#include "table.hpp"

#include <plateau/mpi.hpp>

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

namespace {

constexpr std::size_t rank_bytes = std::size_t{64} << 20, row_bytes = 4096;

// Bytes that each rank sends to each, in whole rows.
struct pattern {
  std::string name;
  std::vector<int> sent, received, send_at, receive_at;
  std::size_t received_bytes = 0;

  pattern(std::string called, int me, int ranks, int (*weight)(int)) : name(std::move(called)) {
    const std::size_t rows = rank_bytes / row_bytes;
    std::size_t weights = 0, given = 0;
    for (int p = 0; p < ranks; ++p) weights += static_cast<std::size_t>(weight(p));
    int at = 0;
    for (int p = 0; p < ranks; ++p) {
      const std::size_t share =
          p + 1 == ranks ? rows - given : rows * static_cast<std::size_t>(weight(p)) / weights;
      given += share;
      sent.push_back(static_cast<int>(share * row_bytes));
      send_at.push_back(at);
      at += sent.back();
    }
    for (int p = 0; p < ranks; ++p) {
      received.push_back(sent[static_cast<std::size_t>(me)]);
      receive_at.push_back(static_cast<int>(received_bytes));
      received_bytes += static_cast<std::size_t>(received.back());
    }
  }
};

void compare(bench::table* table, plateau::mpi_communicator& comm, const pattern& p) {
  plateau::host_backend backend;
  const bench::touched_buffer<unsigned char> sent(rank_bytes, 1), received(p.received_bytes, 0);
  auto stream = backend.make_stream("main");
  std::vector<plateau::send_op> sends, send_rows;
  std::vector<plateau::receive_op> receives, receive_rows;
  for (std::size_t r = 0; r < p.sent.size(); ++r) {
    const int peer = static_cast<int>(r);
    unsigned char *const from = sent.data() + p.send_at[r], *const to = received.data() + p.receive_at[r];
    sends.push_back({from, static_cast<std::size_t>(p.sent[r]), peer});
    receives.push_back({to, static_cast<std::size_t>(p.received[r]), peer});
    for (int at = 0; at < p.sent[r]; at += int(row_bytes)) send_rows.push_back({from + at, row_bytes, peer});
    for (int at = 0; at < p.received[r]; at += int(row_bytes))
      receive_rows.push_back({to + at, row_bytes, peer});
  }
  const auto together = [](const auto& f) {
    return [&f] {
      MPI_Barrier(MPI_COMM_WORLD);
      f();
      MPI_Barrier(MPI_COMM_WORLD);
    };
  };
  const auto all_to_all = [&] {
    MPI_Alltoallv(sent.data(), p.sent.data(), p.send_at.data(), MPI_BYTE, received.data(), p.received.data(),
                  p.receive_at.data(), MPI_BYTE, MPI_COMM_WORLD);
  };
  const auto against = [&](const std::string& what, const auto& s, const auto& r, bench::goal g) {
    const auto exchange = [&] {
      comm.exchange(stream, s, r);
      backend.wait(backend.record(stream));
    };
    const bench::pairs pairs = bench::in_turns(41, together(exchange), together(all_to_all));
    if (table == nullptr) return;
    table->row(what + p.name + " / MPI_Alltoallv", pairs.speed(), g);
    table->row("  milliseconds", pairs.ours.in(1e-3));
  };
  against("exchange of one block a pair, ", sends, receives, bench::goal::at_least(0.97));
  against("exchange in rows of 4 KiB, ", send_rows, receive_rows, {});
}

} // namespace

int main(int argc, char** argv) {
  // What would make the table start the program again, which MPI does not survive.
  unsetenv("OPENBLAS_CORETYPE");
  unsetenv("OPENBLAS_L2_SIZE");
  setenv("OPENBLAS_NUM_THREADS", "1", 1);
  const plateau::mpi_session session(argc, argv);
  plateau::run_mpi_ranks([&](plateau::mpi_communicator& comm) {
    const int me = comm.rank(), ranks = comm.size();
    std::optional<bench::table> table;
    if (me == 0) table.emplace(argv);
    comm.close_step(); // others sleep meanwhile, and do not spin on the cores that are looked at
    for (const auto& p :
         {pattern("balanced, " + std::to_string(ranks) + " ranks", me, ranks, [](int) { return 1; }),
          pattern("skewed, " + std::to_string(ranks) + " ranks", me, ranks, [](int r) { return r + 1; })})
      compare(table ? &*table : nullptr, comm, p);
    table.reset();
    comm.close_step();
  });
}
