// SPDX-License-Identifier: Apache-2.0
//
// All-to-all of 64 MiB a rank between four ranks that are threads, through the communicator, against the same
// bytes copied in the same pattern by four bare threads with non-temporal stores. Both sides start and end at
// a barrier of the same threads.
#include "table.hpp"

#include <plateau/host/backend.hpp>
#include <plateau/run_ranks.hpp>

#include <barrier>
#include <memory>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

using plateau::index_t;
constexpr int ranks = 4;
constexpr std::size_t rank_bytes = std::size_t{64} << 20, part_bytes = rank_bytes / ranks;

void bare_copy(unsigned char* to, const unsigned char* from, std::size_t bytes) {
#if defined(__x86_64__)
  for (std::size_t i = 0; i < bytes; i += 64) {
    const auto* f = reinterpret_cast<const __m128i*>(from + i);
    auto* t = reinterpret_cast<__m128i*>(to + i);
    for (int k = 0; k < 4; ++k) _mm_stream_si128(t + k, _mm_load_si128(f + k));
  }
  _mm_sfence();
#else
  std::memcpy(to, from, bytes);
#endif
}

struct buffers {
  bench::touched_buffer<unsigned char> sent{rank_bytes, 1}, received{rank_bytes, 0};
};

class bench_ranks {
 public:
  explicit bench_ranks(bench::table& table) : table_(table) {
    for (int r = 0; r < ranks; ++r) memory_.push_back(std::make_unique<buffers>());
  }

  void operator()(plateau::thread_communicator& comm) {
    plateau::host_backend backend;
    auto stream = backend.make_stream("main");
    const auto exchange = [&](std::size_t row_bytes) {
      const std::size_t rows = part_bytes / row_bytes;
      sends_[at(comm)].clear();
      receives_[at(comm)].clear();
      for (int peer = 0; peer < ranks; ++peer)
        for (std::size_t row = 0; row < rows; ++row) {
          const std::size_t offset = static_cast<std::size_t>(peer) * part_bytes + row * row_bytes;
          sends_[at(comm)].push_back({mine(comm).sent.data() + offset, row_bytes, peer});
          receives_[at(comm)].push_back({mine(comm).received.data() + offset, row_bytes, peer});
        }
      return [&, this] {
        comm.exchange(stream, sends_[at(comm)], receives_[at(comm)]);
        backend.wait(backend.record(stream));
      };
    };
    const auto bare = [&] {
      for (int i = 0; i < ranks; ++i) {
        const int peer = (comm.rank() + i) % ranks;
        bare_copy(mine(comm).received.data() + static_cast<std::size_t>(peer) * part_bytes,
                  memory_[static_cast<std::size_t>(peer)]->sent.data() + at(comm) * part_bytes, part_bytes);
      }
    };
    compare(comm, "exchange, 64 MiB a rank / bare non-temporal copies", exchange(part_bytes), bare,
            bench::goal::at_least(0.95));
    compare(comm, "exchange in rows of 4 KiB, 64 MiB a rank / bare copies", exchange(4096), bare, {});
    compare(comm, "exchange in rows of 64 KiB, 64 MiB a rank / bare copies", exchange(65'536), bare, {});
  }

 private:
  static std::size_t at(const plateau::thread_communicator& comm) {
    return static_cast<std::size_t>(comm.rank());
  }
  buffers& mine(const plateau::thread_communicator& comm) { return *memory_[at(comm)]; }

  template <class Ours, class Bare>
  void compare(plateau::thread_communicator& comm, const char* what, const Ours& ours, const Bare& bare,
               bench::goal g) {
    const auto together = [this](const auto& f) {
      return [this, &f] {
        barrier_.arrive_and_wait();
        f();
        barrier_.arrive_and_wait();
      };
    };
    const bench::pairs p = bench::in_turns(41, together(ours), together(bare));
    if (comm.rank() != 0) return;
    table_.row(what, p.speed(), g);
    table_.row("  milliseconds", p.ours.in(1e-3));
  }

  bench::table& table_;
  std::vector<std::unique_ptr<buffers>> memory_;
  std::vector<plateau::send_op> sends_[ranks];
  std::vector<plateau::receive_op> receives_[ranks];
  std::barrier<> barrier_{ranks};
};

} // namespace

int main(int, char** argv) {
  bench::table table(argv);
  plateau::run_ranks(ranks, bench_ranks(table));
}
