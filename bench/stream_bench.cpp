// SPDX-License-Identifier: Apache-2.0
//
// What it costs to hand work to a stream: pushing a launch, running a launch, a round trip to the worker and
// back, and a hop from one stream to another by an event; the last two also while other streams are busy,
// with more threads than cores.
#include "table.hpp"

#include <plateau/host/backend.hpp>

#include <atomic>
#include <thread>
#include <vector>

namespace {

using plateau::elements;
using plateau::host_backend;
using plateau::index_t;
using stream = host_backend::stream;

struct touch {
  template <class S> void operator()(index_t i, plateau::view<float, S> to) const { to[i] += 1.0f; }
};

struct fixture {
  host_backend backend;
  bench::touched_buffer<float> memory{1024};
  plateau::view<float> word{memory.data(), 1};
  stream a = backend.make_stream("a"), b = backend.make_stream("b");

  void launch(stream& s) { backend.launch(s, elements{1}, touch{}, plateau::inout(word)); }
  void wait(stream& s) { backend.wait(backend.record(s)); }
};

void hops(bench::table& table, fixture& f, const std::string& with) {
  constexpr int trips = 200, hops = 1000;
  const bench::series round_trips = bench::alone(25, [&] {
    for (int i = 0; i < trips; ++i) {
      f.launch(f.a);
      f.wait(f.a);
    }
  });
  table.row("launch and wait, host to worker and back, us" + with, round_trips.in(trips * 1e-6));
  const bench::series by_events = bench::alone(25, [&] {
    for (int i = 0; i < hops / 2; ++i) {
      f.launch(f.a);
      f.backend.wait(f.b, f.backend.record(f.a));
      f.launch(f.b);
      f.backend.wait(f.a, f.backend.record(f.b));
    }
    f.wait(f.a);
  });
  table.row("stream to stream by an event, us a hop" + with, by_events.in(hops * 1e-6));
}

// Eight streams of four host threads, each with a few tens of microseconds of work at a time and a wait now
// and then, as ranks that compute and copy.
class busy_ranks {
 public:
  busy_ranks() {
    for (int r = 0; r < 4; ++r)
      threads_.emplace_back([this] {
        host_backend backend;
        bench::touched_buffer<float> memory(32'768);
        const index_t half = static_cast<index_t>(memory.size()) / 2;
        stream compute = backend.make_stream("compute"), copies = backend.make_stream("copies");
        while (!stop_.load(std::memory_order_relaxed)) {
          for (int i = 0; i < 8; ++i) {
            backend.launch(compute, elements{half}, touch{},
                           plateau::inout(plateau::view<float>{memory.data(), half}));
            backend.launch(copies, elements{half}, touch{},
                           plateau::inout(plateau::view<float>{memory.data() + half, half}));
            backend.wait(compute, backend.record(copies));
          }
          backend.wait(backend.record(compute));
          steps_.fetch_add(1, std::memory_order_relaxed);
        }
      });
  }
  busy_ranks(const busy_ranks&) = delete;
  busy_ranks& operator=(const busy_ranks&) = delete;
  ~busy_ranks() {
    stop_ = true;
    for (std::thread& t : threads_) t.join();
  }
  long steps() const { return steps_.load(); }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<long> steps_{0};
  std::vector<std::thread> threads_;
};

} // namespace

int main(int, char** argv) {
  bench::table table(argv);
  fixture f;
  constexpr int many = 1000;
  bench::series pushing;
  for (int i = 0; i < 50; ++i) {
    pushing.time([&] {
      for (int k = 0; k < many; ++k) f.launch(f.a);
    });
    f.wait(f.a);
  }
  pushing.processor.assign(1, 0); // would count the worker too
  table.row("launch, host side, ns", pushing.in(many * 1e-9));
  const bench::series running = bench::alone(50, [&] {
    for (int k = 0; k < many; ++k) f.launch(f.a);
    f.wait(f.a);
  });
  table.row("launch and run, 1,000 in a row, ns", running.in(many * 1e-9));
  hops(table, f, "");
  const busy_ranks others;
  const long before = others.steps();
  const double begun = bench::seconds_now();
  hops(table, f, ", 8 busy streams");
  const double each = static_cast<double>(others.steps() - before) / (bench::seconds_now() - begun);
  table.row("  steps a second of the busy streams", {each, each, each, each, 0});
}
