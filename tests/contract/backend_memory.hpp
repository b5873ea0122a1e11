// SPDX-License-Identifier: Apache-2.0
//
// The backend contract: memory is metered by purpose and space, a request that fails leaves no trace in the
// accounts, and a step that repeats its shapes takes nothing from the heap.
#pragma once

#include "backend_rig.hpp"
#include "support/counted_new.hpp"

#include <plateau/column_sum.hpp>
#include <plateau/kernels.hpp>
#include <plateau/meter.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

namespace backend_contract {

template <class Memory> void check_resource(Memory& memory) {
  const std::size_t size = 1000 * sizeof(float);
  CHECK(memory.meter().current() == 0);
  {
    pl::buffer<float, Memory> a(memory, 1000, tag::parameters), b(memory, 500, tag::dispatch);
    CHECK(memory.meter().current(tag::parameters) == size);
    CHECK(memory.meter().current(tag::dispatch) == size / 2);
    CHECK(memory.meter().current() == size + size / 2);
    CHECK(reinterpret_cast<std::uintptr_t>(a.data()) % pl::part_alignment == 0);
    const pl::buffer<float, Memory> none(memory, 0, tag::other);
    CHECK(memory.meter().current() == size + size / 2);
  }
  CHECK(memory.meter().current() == 0);
  CHECK(memory.meter().peak().bytes == size + size / 2);
  CHECK(memory.meter().peak(tag::dispatch).bytes == size / 2);

  // More than the machine has, and more than the limit.
  const auto attempt = [&](index_t bytes) {
    const pl::buffer<unsigned char, Memory> b(memory, bytes, tag::gradients);
  };
  CHECK(has(refusal<pl::error>([&] { attempt(index_t{1} << 60); }), std::to_string(std::size_t{1} << 60)));
  memory.meter().limit(5000);
  CHECK(has(refusal<pl::budget_exceeded>([&] { attempt(5001); }), "5001"));
  CHECK(memory.meter().current() == 0);
  CHECK(memory.meter().peak().bytes == size + size / 2);
  CHECK(memory.meter().peak(tag::gradients).bytes == 0);
  attempt(5000);
  CHECK(memory.meter().peak(tag::gradients).bytes == 5000);
}

template <class Backend> void resources(const subject<Backend>& under_test) {
  const auto backend = under_test.make();
  check_resource(backend->device());
  check_resource(backend->pinned());
}

template <class Backend> void steady_state(const subject<Backend>& under_test) {
  if (!under_test.steady_state_is_free) return;
  rig<Backend> r(under_test);
  auto side = r.b.make_stream("side");
  const index_t row_count = 40, columns = 30, n = row_count * columns;
  auto x = r.upload(numbers<float>(n, 1)), w = r.upload(numbers<float>(columns * columns, 2));
  auto y = r.template device<float>(n), sums = r.upload(numbers<float>(columns, 3));
  auto low = r.upload(numbers<pl::bfloat16>(n, 4));
  auto ids = r.upload(std::vector<std::int32_t>{3, 1, 2, 1});
  auto order = r.template device<std::int32_t>(4);
  auto offsets = r.template device<std::int64_t>(5), scanned = r.template device<std::int64_t>(6);
  auto h = r.template pinned<float>(columns);
  std::vector<float> into(static_cast<std::size_t>(columns));
  const auto of_product = [&]<class A>(A, transpose op_b) {
    return Backend::template gemm_scratch_bytes<A, A, float>(transpose::no, op_b, row_count, columns,
                                                             columns);
  };
  auto scratch = r.template device<unsigned char>(static_cast<index_t>(std::max(
      {of_product(0.0F, transpose::no), of_product(0.0F, transpose::yes),
       of_product(pl::bfloat16(0.0F), transpose::yes), pl::column_sum_scratch_bytes(row_count, columns),
       std::size_t{Backend::group_by_key_scratch_bytes(4, 4)},
       std::size_t{Backend::exclusive_scan_scratch_bytes(5)}})));
  using group = pl::gemm_group<float, float, float>;
  const group groups[] = {
      {x.matrix(row_count, columns), w.matrix(columns, columns), y.matrix(row_count, columns)},
      {tile<float>{nullptr, 0, columns, columns}, w.matrix(columns, columns),
       tile<float>{nullptr, 0, columns, columns}}};

  const auto pass = [&] {
    r.b.launch(r.s, elements{n}, pl::scale{0.5F}, inout(x.all()));
    r.b.launch(r.s, rows{1}, affine_row{1, 0}, inout(tile<std::uint32_t>{}));
    r.b.copy(r.s, in(x.all()), out(y.all()));
    r.b.copy(r.s, in(x.matrix(row_count, columns)), out(y.matrix(row_count, columns)));
    r.b.gemm(r.s, transpose::no, transpose::yes, 1.0F, in(x.matrix(row_count, columns)),
             in(w.matrix(columns, columns)), 0.0F, out(y.matrix(row_count, columns)), scratch.all());
    r.b.gemm(r.s, transpose::no, transpose::yes, 1.0F, in(low.matrix(row_count, columns)),
             in(low.matrix(columns, columns)), 1.0F, inout(y.matrix(row_count, columns)), scratch.all());
    r.b.grouped_gemm(r.s, transpose::no, transpose::no, 1.0F, 1.0F, std::span<const group>(groups),
                     scratch.all());
    r.b.wait(side, r.b.record(r.s));
    pl::column_sum(r.b, side, in(y.matrix(row_count, columns)), inout(sums.all()), scratch.all());
    r.b.group_by_key(side, in(ids.all()), out(order.all()), out(offsets.all()), scratch.all());
    r.b.exclusive_scan(side, in(offsets.all()), out(scanned.all()), scratch.all());
    r.b.copy(side, in(sums.all()), out(h.all()));
    r.b.host_task(
        side, [](view<float, pl::host_space> v) { v[0] += 1; }, inout(h.all()));
    const auto ready = r.b.record(side);
    r.b.wait(r.s, ready);
    r.b.fetch(ready, in(h.all()), std::span(into), "sums", 0.0F);
    r.finish();
  };
  pass();
  pass();
  const std::uint64_t before = counted_new::calls.load();
  for (int i = 0; i < 50; ++i) pass();
  CHECK(counted_new::calls.load() == before);
}

} // namespace backend_contract
