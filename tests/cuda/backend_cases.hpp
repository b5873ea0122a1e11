// SPDX-License-Identifier: Apache-2.0
//
// What the CUDA backend does beyond the contract of all backends: teams of every size, grouped products in
// one call, streams that are adopted, host code in streams, and what it says where something is missing.
// Included by one file that runs on a GPU and by one that runs on the stand-in.
#pragma once

#include "contract/backend_products.hpp"
#include "cuda/team_kernels.hpp"

#include <plateau/cuda.hpp>
#include <plateau/kernels.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace cuda_backend_cases {

namespace pl = plateau;
using backend_contract::has;
using backend_contract::numbers;
using backend_contract::refusal;
using backend_contract::same_bits;
using pl::cuda_backend, pl::index_t, pl::transpose;
using pl::in, pl::inout, pl::out, pl::some;
using rig = backend_contract::rig<cuda_backend>;
template <class T> using matrix = backend_contract::matrix<T, cuda_backend>;

inline std::unique_ptr<cuda_backend> make_backend() { return std::make_unique<cuda_backend>("rank 5"); }
inline rig new_rig() { return rig(backend_contract::subject<cuda_backend>{make_backend}); }

// --- teams ---

template <int Threads> void check_team(index_t row_count, index_t columns) {
  CAPTURE(Threads);
  CAPTURE(row_count);
  CAPTURE(columns);
  rig r = new_rig();
  const index_t ld = columns + 3;
  const auto values = numbers<float>(row_count * ld, 7);
  const auto marks = std::vector<float>(values.size(), 77.0F);
  auto x = r.upload(values), roots = r.upload(marks), mirrored = r.upload(marks);
  auto sums = r.device<float>(3 * row_count);
  auto all = r.device<team_kernels::running>(row_count);
  auto once = r.device<float>(row_count);
  const auto rows_of = [&](const auto& b) { return pl::tile<float>{b.data(), row_count, columns, ld}; };
  const auto run = [&] {
    r.b.launch(r.s, pl::rows{row_count}, team_kernels::reductions<Threads>{}, in(rows_of(x)),
               out(sums.matrix(row_count, 3)));
    r.b.launch(r.s, pl::rows{row_count}, team_kernels::joined_structures<Threads>{}, in(rows_of(x)),
               out(all.all()));
    return std::pair(r.download(sums.all()), r.download(all.all()));
  };
  r.b.launch(r.s, pl::rows{row_count}, team_kernels::meetings<Threads>{}, in(rows_of(x)),
             some(rows_of(roots)), some(rows_of(mirrored)), out(once.all()));
  const auto [sum, joined] = run();
  const double roundings = static_cast<double>(columns) / Threads + 12; // one after the other, then a tree
  const auto root = r.download(roots.all()), back = r.download(mirrored.all());
  for (index_t q = 0; q < row_count; ++q) {
    const float* row = values.data() + q * ld;
    double expected = 0, size = 0;
    float largest = std::numeric_limits<float>::lowest();
    bool as_written = true;
    for (index_t i = 0; i < ld; ++i) {
      const auto at = static_cast<std::size_t>(q * ld + i);
      if (i >= columns) { // the padding
        as_written = as_written && root[at] == 77 && back[at] == 77;
        continue;
      }
      expected += double(row[i]);
      size += std::abs(double(row[i]));
      largest = std::max(largest, row[i]);
      as_written =
          as_written && root[at] == std::abs(row[i]) && back[at] == std::abs(row[columns - 1 - i]) + 3;
    }
    CHECK(as_written);
    CHECK(joined[static_cast<std::size_t>(q)].count == columns);
    CHECK(joined[static_cast<std::size_t>(q)].largest == largest);
    CHECK(std::abs(joined[static_cast<std::size_t>(q)].sum - expected) <= roundings * 0x1p-53 * size);
    for (index_t left_out = 0; left_out < 3; ++left_out) {
      CHECK(std::abs(double(sum[static_cast<std::size_t>(3 * q + left_out)]) - expected) <=
            roundings * 0x1p-24 * size);
      if (columns > left_out) expected -= double(row[columns - 1 - left_out]);
    }
  }
  const auto [again, joined_again] = run();
  CHECK(same_bits(again, sum));
  for (std::size_t q = 0; q < joined.size(); ++q) CHECK(joined_again[q].sum == joined[q].sum);
}
template <int Threads> void check_teams() {
  for (const index_t columns : {0, 1, 31, 33, 100, 1025, 3000}) check_team<Threads>(3, columns);
  check_team<Threads>(37, 50);
}

// --- products ---

// Groups as an expert's rows come: many, of different sizes, some empty, some without terms, and where
// `aligned` is false with rows that begin anywhere.
template <class T> void check_groups(transpose op_a, transpose op_b, bool aligned, float beta) {
  CAPTURE(static_cast<int>(op_a));
  CAPTURE(static_cast<int>(op_b));
  CAPTURE(aligned);
  CAPTURE(beta);
  rig r = new_rig();
  const index_t columns = aligned ? 24 : 21, groups = 70;
  struct part {
    index_t m, k;
    index_t a, b, c; // where the operands begin
  };
  std::vector<part> parts;
  index_t of_a = 0, of_b = 0, of_c = 0;
  for (index_t g = 0; g < groups; ++g) {
    const index_t step = aligned ? 8 : 1;
    const part p{g % 7 == 3 ? 0 : (g % 5 + 1) * step, g % 11 == 4 ? 0 : (g % 3 + 1) * step, of_a, of_b, of_c};
    parts.push_back(p);
    of_a += p.m * p.k, of_b += p.k * columns, of_c += p.m * columns;
  }
  const auto a = numbers<T>(of_a, 1), b = numbers<T>(of_b, 2), c = numbers<T>(of_c, 3);
  auto device_a = r.upload(a), device_b = r.upload(b), device_c = r.upload(c);
  using group = pl::gemm_group<T, T, T>;
  std::vector<group> list;
  const auto stored = [](T* p, transpose op, index_t m, index_t n) {
    return op == transpose::no ? pl::tile<T>{p, m, n, n} : pl::tile<T>{p, n, m, m};
  };
  std::uint64_t products = 0;
  for (const part& p : parts) {
    list.push_back({stored(device_a.data() + p.a, op_a, p.m, p.k),
                    stored(device_b.data() + p.b, op_b, p.k, columns),
                    {device_c.data() + p.c, p.m, columns, columns}});
    products += p.m != 0 && p.k != 0;
  }
  auto scratch = backend_contract::scratch_for<T, T, T>(r, op_a, op_b, 40, columns, 24);
  const pl::counters before = r.b.counters();
  r.b.grouped_gemm(r.s, op_a, op_b, 2.0F, beta, std::span<const group>(list), scratch.all());
  CHECK((r.b.counters() - before).matrix_products == products);
  const auto got = r.download(device_c.all());
  double worst = 0;
  for (const part& p : parts)
    for (index_t i = 0; i < p.m; ++i)
      for (index_t j = 0; j < columns; ++j) {
        const auto at = static_cast<std::size_t>(p.c + i * columns + j);
        double sum = double(beta) * double(float(c[at])), size = std::abs(sum);
        for (index_t q = 0; q < p.k; ++q) {
          const index_t in_a = op_a == transpose::no ? i * p.k + q : q * p.m + i;
          const index_t in_b = op_b == transpose::no ? q * columns + j : j * p.k + q;
          const double term = 2.0 * double(float(a[static_cast<std::size_t>(p.a + in_a)])) *
                              double(float(b[static_cast<std::size_t>(p.b + in_b)]));
          sum += term;
          size += std::abs(term);
        }
        const double unit = std::is_same_v<T, float> ? 0 : std::is_same_v<T, pl::half> ? 0x1p-11 : 0x1p-8;
        const double share =
            std::abs(double(float(got[at])) - sum) / (0x1p-20 * size + unit * std::abs(sum) + 0x1p-25);
        worst = share <= worst ? worst : share; // a NaN stays
      }
  CHECK(worst <= 1);
}

// Operands without terms are not read, and the scratch may begin at any multiple of 16.
inline void check_edges_of_products() {
  rig r = new_rig();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  auto bad = r.upload(std::vector<float>(12, nan));
  auto c = r.upload(std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8, 9});
  const auto needed = static_cast<index_t>(
      cuda_backend::gemm_scratch_bytes<float, float, float>(transpose::no, transpose::no, 3, 3, 4));
  auto scratch = r.device<unsigned char>(needed + 256);
  r.b.gemm(r.s, transpose::no, transpose::no, 0.0F, in(bad.matrix(3, 4)), in(bad.matrix(4, 3)), 0.5F,
           inout(c.matrix(3, 3)), scratch.all());
  CHECK(r.download(c.all()) == std::vector<float>{0.5F, 1, 1.5F, 2, 2.5F, 3, 3.5F, 4, 4.5F});
  // Columns of a wider matrix: what lies beside them stays.
  const pl::tile<float> thin{c.data(), 3, 2, 3};
  r.b.gemm(r.s, transpose::no, transpose::no, 0.0F, in(bad.matrix(3, 4)),
           in(pl::tile<float>{bad.data(), 4, 2, 2}), 0.0F, out(thin), scratch.all());
  CHECK(r.download(c.all()) == std::vector<float>{0, 0, 1.5F, 0, 0, 3, 0, 0, 4.5F});
  const matrix<float> a(r, 3, 4, 1), b(r, 4, 3, 2);
  matrix<float> d(r, 3, 3, 3);
  for (const index_t first : {16, 128, 240, 256}) {
    r.b.gemm(r.s, transpose::no, transpose::no, 1.0F, in(a.tile()), in(b.tile()), 0.0F, out(d.tile()),
             scratch.all().sub(first, needed));
    backend_contract::check_against_oracle(r, transpose::no, transpose::no, 1.0F, a, b, 0.0F, d);
  }
}

// --- streams, events and host code in streams ---

// Holds a stream up until it is let go, or for ten seconds.
struct gate {
  std::atomic<bool> open{false}, gave_up{false};
  auto task() {
    return [this] {
      const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (!open.load()) {
        if (std::chrono::steady_clock::now() > until) return gave_up.store(true);
        std::this_thread::yield();
      }
    };
  }
};

inline void check_adopted_streams() {
  rig r = new_rig();
  cudaStream_t theirs = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&theirs, cudaStreamNonBlocking) == cudaSuccess);
  auto h = r.pinned<float>(1);
  auto d = r.device<float>(1), e = r.device<float>(1);
  h.data()[0] = 3;
  auto ids = r.upload(std::vector<std::int32_t>{0, 0, 0});
  auto order = r.device<std::int32_t>(3);
  auto offsets = r.device<std::int64_t>(2), sums = r.device<std::int64_t>(3);
  auto scratch = r.device<unsigned char>(static_cast<index_t>(std::max(
      cuda_backend::group_by_key_scratch_bytes(3, 1), cuda_backend::exclusive_scan_scratch_bytes(2))));
  const auto group = [&] {
    r.b.group_by_key(r.s, in(ids.all()), out(order.all()), out(offsets.all()), scratch.all());
  };
  const auto scan = [&] { r.b.exclusive_scan(r.s, in(offsets.all()), out(sums.all()), scratch.all()); };
  group(), scan(); // what CUDA loads at the first use may wait for the device, which is held up below
  r.finish();
  gate g;
  cuda_backend::event ready;
  {
    auto s = r.b.make_stream(pl::cuda_stream_ref{theirs}, "theirs");
    CHECK(s.handle() == theirs);
    CHECK(s.name() == "theirs");
    CHECK(!s.owned());
    // Their work and ours are in one order.
    REQUIRE(cudaMemcpyAsync(d.data(), h.data(), sizeof(float), cudaMemcpyHostToDevice, theirs) ==
            cudaSuccess);
    r.b.launch(s, pl::elements{1}, pl::scale{2.0F}, inout(d.all()));
    r.b.host_task(s, g.task());
    REQUIRE(cudaMemcpyAsync(e.data(), d.data(), sizeof(float), cudaMemcpyDeviceToDevice, theirs) ==
            cudaSuccess);
    ready = r.b.record(s);
    auto moved = std::move(s);
    CHECK(moved.handle() == theirs);
  } // does not wait: the gate is closed
  CHECK(!g.gave_up.load());
  CHECK(cudaStreamQuery(theirs) == cudaErrorNotReady); // and leaves that as the last error
  group();
  CHECK(cudaStreamQuery(theirs) == cudaErrorNotReady);
  scan();
  g.open = true;
  r.b.wait(r.s, ready);
  CHECK(r.download(e.all()) == std::vector<float>{6});
  CHECK(r.download(sums.all()) == std::vector<std::int64_t>{0, 0, 3});
  REQUIRE(cudaStreamSynchronize(theirs) == cudaSuccess); // still there
  // A failure of a host task on it stays with our object, their stream goes on.
  {
    auto s = r.b.make_stream(pl::cuda_stream_ref{theirs}, "theirs again");
    r.b.host_task(s, [] { throw std::runtime_error("seven pears"); });
    CHECK(has(refusal<pl::error>([&] { r.b.wait(r.b.record(s)); }), "seven pears (on stream 'theirs again'"));
  }
  auto s = r.b.make_stream(pl::cuda_stream_ref{theirs}, "a third time");
  r.b.wait(r.b.record(s));
  REQUIRE(cudaStreamDestroy(theirs) == cudaSuccess);
}

// Events outlive what made them, and going back to the pool does not end a wait that was issued.
inline void check_events() {
  cuda_backend::event kept;
  {
    rig r = new_rig();
    auto other = r.b.make_stream("other");
    auto h = r.pinned<std::int32_t>(1);
    h.data()[0] = 0;
    gate g;
    r.b.host_task(r.s, g.task());
    r.b.host_task(
        r.s, [](pl::view<std::int32_t, pl::host_space> v) { v[0] = 41; }, some(h.all()));
    r.b.wait(other, r.b.record(r.s)); // the event is gone at once
    auto reused = r.b.make_stream("reused");
    for (int i = 0; i < 100; ++i) r.b.wait(r.b.record(reused)); // the same cudaEvent_t, recorded elsewhere
    r.b.host_task(
        other, [](pl::view<std::int32_t, pl::host_space> v) { v[0] += 1; }, inout(h.all()));
    g.open = true;
    r.b.wait(r.b.record(other));
    CHECK(h.data()[0] == 42);
    CHECK(!g.gave_up.load());
    kept = r.b.record(r.s);
    cuda_backend::event moved = std::move(kept);
    kept = std::move(moved);
    r.b.wait(moved); // a default one now
    r.b.wait(other, moved);
  }
  kept.wait();
}

// Calls of any size, more at a time than before, and none is lost.
inline void check_host_calls() {
  rig r = new_rig();
  auto h = r.pinned<std::int64_t>(1);
  h.data()[0] = 0;
  gate g;
  r.b.host_task(r.s, g.task());
  std::int64_t expected = 0;
  for (std::int64_t i = 0; i < 200; ++i) {
    const std::array<std::int64_t, 100> large{i, 1}; // 800 bytes
    r.b.host_task(
        r.s,
        [large](pl::view<std::int64_t, pl::host_space> v) {
          v[0] = 3 * v[0] % 1000003 + large[0] + large[1];
        },
        inout(h.all()));
    r.b.host_task(
        r.s, [i](pl::view<std::int64_t, pl::host_space> v) { v[0] = 5 * v[0] % 1000003 + i; },
        inout(h.all()));
    expected = 3 * expected % 1000003 + i + 1;
    expected = 5 * expected % 1000003 + i;
  }
  g.open = true;
  r.finish();
  CHECK(h.data()[0] == expected);
}

// A failure runs through a chain of streams in the order of their waits, also where it is known before the
// wait.
inline void check_relayed_failures() {
  rig r = new_rig();
  auto second = r.b.make_stream("second"), third = r.b.make_stream("third"), late = r.b.make_stream("late");
  auto h = r.pinned<std::int32_t>(2);
  h.data()[0] = h.data()[1] = 0;
  gate g;
  r.b.host_task(r.s, g.task());
  r.b.host_task(r.s, [] { throw pl::budget_exceeded("nine plums"); });
  r.b.wait(second, r.b.record(r.s));
  const auto before = r.b.record(third);
  r.b.host_task(
      third, [](pl::view<std::int32_t, pl::host_space> v) { v[0] = 1; }, some(h.all().sub(0, 1)));
  r.b.wait(third, r.b.record(second));
  r.b.host_task(
      third, [](pl::view<std::int32_t, pl::host_space> v) { v[1] = 1; }, some(h.all().sub(1, 1)));
  const auto behind = r.b.record(third);
  g.open = true;
  CHECK(has(refusal<pl::budget_exceeded>([&] { r.b.wait(behind); }), "nine plums (on stream 'main'"));
  r.b.wait(before);
  CHECK(h.data()[0] == 1); // came before the wait
  CHECK(h.data()[1] == 0); // is skipped
  r.b.wait(late, behind);  // known by now
  CHECK(
      has(refusal<pl::budget_exceeded>([&] { r.b.wait(r.b.record(late)); }), "nine plums (on stream 'main'"));
}

// Calls that have not begun are skipped, with the reason, once their stream is abandoned.
inline void check_abandoned_calls() {
  const auto b = make_backend();
  struct task {
    std::atomic<int>* ran;
    std::atomic<int>* skipped_by;
    void operator()() const { ++*ran; }
    void skipped(const pl::failure& why) const {
      if (why.text == "no more") ++*skipped_by;
    }
  };
  std::atomic<int> ran{0}, skipped{0};
  cudaStream_t s = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) == cudaSuccess);
  gate g;
  std::atomic<bool> begun{false};
  const auto calls = std::make_shared<pl::cudart::host_calls>("abandoned");
  pl::cudart::host_calls::issue(calls, s, task{&ran, &skipped}, {});
  pl::cudart::host_calls::issue(calls, s, [&, wait = g.task()] { begun = true, wait(); }, {});
  pl::cudart::host_calls::issue(calls, s, task{&ran, &skipped}, {});
  pl::cudart::host_calls::issue(calls, s, task{&ran, &skipped}, {});
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!begun.load() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  REQUIRE(begun.load());
  calls->abandon({pl::failure::kind::other, "no more"});
  g.open = true;
  REQUIRE(cudaStreamSynchronize(s) == cudaSuccess);
  CHECK(ran.load() == 1);
  CHECK(skipped.load() == 2);
  CHECK(!g.gave_up.load());
  CHECK(calls.use_count() == 1); // none of them holds it any more
  calls->raise(1);               // the first went well
  CHECK_THROWS_AS(calls->raise(4), pl::error);
  REQUIRE(cudaStreamDestroy(s) == cudaSuccess);
}

// An exception that passes through the scope of a stream waits for the device.
inline void check_unwinding() {
  const auto b = make_backend();
  pl::pinned_buffer<std::int32_t, cuda_backend> h(b->pinned(), 1, pl::tag::other);
  h.data()[0] = 0;
  std::atomic<bool> ended{false};
  try {
    auto s = b->make_stream("brief");
    b->host_task(s, [&ended] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      ended = true;
    });
    b->wait(b->record(s));
    b->host_task(
        s, [](pl::view<std::int32_t, pl::host_space> v) { v[0] = 7; }, some(h.all()));
    throw std::runtime_error("on the way");
  } catch (const std::runtime_error&) {
  }
  CHECK(ended.load());
  const std::int32_t now = h.data()[0];
  CHECK((now == 0 || now == 7)); // it ran or was skipped, and is over
}

// --- what it says ---

inline void check_refusals() {
  int count = 0;
  REQUIRE(cudaGetDeviceCount(&count) == cudaSuccess);
  for (const int device : {-1, count, count + 5}) {
    const std::string text = refusal<pl::backend_error>([&] { const cuda_backend b("rank 5", device); });
    CHECK(has(text, "plateau: rank 5: CUDA device " + std::to_string(device) + " was asked for"));
    CHECK(has(text, count == 1 ? "only device 0" : "0 to " + std::to_string(count - 1)));
  }
  const auto b = make_backend();
  CHECK(b->device_number() == 0);
  const std::size_t bytes = std::size_t{1} << 60;
  const auto allocate = [&](auto& memory) {
    return refusal<pl::backend_error>([&] {
      const pl::buffer<unsigned char, std::remove_cvref_t<decltype(memory)>> x(memory, index_t{1} << 60,
                                                                               pl::tag::other);
    });
  };
  CHECK(
      has(allocate(b->device()), "no " + std::to_string(bytes) + " bytes of device memory (the device has "));
  CHECK(has(allocate(b->pinned()), "no " + std::to_string(bytes) + " bytes of pinned host memory"));
  CHECK(cudaGetLastError() == cudaSuccess); // nothing is left behind
  CHECK(has(refusal<pl::config_error>([&] { b->device().allocate(8, 4096, pl::tag::other); }), "4096"));
}

} // namespace cuda_backend_cases
