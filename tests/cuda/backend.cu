// SPDX-License-Identifier: Apache-2.0
//
// The CUDA backend under nvcc, compiled only: it models the concept, and every operation is instantiated for
// every type and every pair of memory spaces that it takes.
#include "cuda/team_kernels.hpp"

#include <plateau/cuda.hpp>

#include <plateau/checks.hpp>
#include <plateau/column_sum.hpp>
#include <plateau/drain.hpp>
#include <plateau/dry_run/backend.hpp>
#include <plateau/kernels.hpp>
#include <plateau/workspace.hpp>

#include <cstdint>
#include <span>
#include <type_traits>

namespace pl = plateau;
using pl::cuda_backend;
using pl::index_t;
using pl::transpose;

static_assert(pl::backend<cuda_backend> && pl::check_backend<cuda_backend>());
static_assert(pl::scratch_model<pl::cuda_scratch> && pl::scratch_model<cuda_backend>);
static_assert(pl::check_backend<pl::dry_run<pl::cuda_scratch>>());
static_assert(std::is_default_constructible_v<cuda_backend> && !std::is_copy_constructible_v<cuda_backend>);
static_assert(std::is_nothrow_move_constructible_v<cuda_backend::stream> &&
              std::is_nothrow_move_constructible_v<cuda_backend::event> &&
              std::is_nothrow_move_assignable_v<cuda_backend::event>);
static_assert(pl::accessible_from<cuda_backend, pl::device_space> &&
              !pl::accessible_from<cuda_backend, pl::host_space>);

template class pl::workspace<cuda_backend>;
template class pl::drain<cuda_backend>;

namespace {

template <class T, class C>
void products(cuda_backend& b, cuda_backend::stream& s, pl::tile<T> x, pl::tile<C> y, pl::tile_batch<T> many,
              pl::tile_batch<C> results, pl::scratch_view scratch) {
  b.gemm(s, transpose::no, transpose::yes, 1.0F, pl::in(x), pl::in(x), 0.0F, pl::out(y), scratch);
  b.gemm(s, transpose::yes, transpose::no, 1.0F, pl::in(x), pl::in(x), 1.0F, pl::inout(y), scratch);
  b.gemm(s, transpose::no, transpose::no, 1.0F, pl::in(many), pl::in(many), 0.0F, pl::out(results), scratch);
  b.gemm(s, transpose::no, transpose::no, 1.0F, pl::in(many), pl::in(many), 1.0F, pl::inout(results),
         scratch);
  const pl::gemm_group<T, T, C> groups[] = {{x, x, y}};
  b.grouped_gemm(s, transpose::no, transpose::no, 1.0F, 1.0F,
                 std::span<const pl::gemm_group<T, T, C>>(groups), scratch);
}

} // namespace

void every_operation(cuda_backend& b, pl::device_buffer<float, cuda_backend>& x,
                     pl::pinned_buffer<float, cuda_backend>& h, pl::view<pl::bfloat16> low,
                     pl::view<pl::half> mid, pl::view<std::int32_t> ids, pl::view<std::int64_t> sums,
                     pl::view<team_kernels::running> joined, pl::scratch_view scratch, cudaStream_t theirs) {
  auto s = b.make_stream("ours");
  auto adopted = b.make_stream(pl::cuda_stream_ref{theirs}, "theirs");
  const auto copies = [&](auto from, auto to) { b.copy(s, pl::in(from), pl::out(to)); };
  copies(x.all(), x.all()), copies(x.all(), h.all()), copies(h.all(), x.all()), copies(h.all(), h.all());
  copies(x.matrix(1, 1), x.matrix(1, 1)), copies(x.matrix(1, 1), h.matrix(1, 1));
  copies(h.matrix(1, 1), x.matrix(1, 1)), copies(h.matrix(1, 1), h.matrix(1, 1));

  b.launch(s, pl::elements{x.size()}, pl::fill<float>{1}, pl::out(x.all()));
  b.launch(s, pl::elements{x.size()}, pl::convert{}, pl::in(x.all()), pl::out(low));
  const auto with_team_of = [&]<int Threads>(std::integral_constant<int, Threads>) {
    b.launch(s, pl::rows{1}, team_kernels::reductions<Threads>{}, pl::in(x.matrix(1, 1)),
             pl::out(x.matrix(1, 1)));
    b.launch(s, pl::rows{1}, team_kernels::joined_structures<Threads>{}, pl::in(x.matrix(1, 1)),
             pl::out(joined));
    b.launch(s, pl::rows{1}, team_kernels::meetings<Threads>{}, pl::in(x.matrix(1, 1)),
             pl::some(x.matrix(1, 1)), pl::some(x.matrix(1, 1)), pl::out(x.all()));
  };
  with_team_of(std::integral_constant<int, 32>{}), with_team_of(std::integral_constant<int, 64>{});
  with_team_of(std::integral_constant<int, 256>{}), with_team_of(std::integral_constant<int, 1024>{});
  pl::column_sum(b, s, pl::in(x.matrix(1, 1)), pl::inout(x.all()), scratch);

  const auto tile = x.matrix(1, 1);
  const pl::tile_batch<float> batch{x.data(), 1, 1, 1, 1, 1};
  const pl::tile_batch<pl::bfloat16> low_batch{low.p, 1, 1, 1, 1, 1};
  const pl::tile_batch<pl::half> mid_batch{mid.p, 1, 1, 1, 1, 1};
  products(b, s, tile, tile, batch, batch, scratch);
  products(b, s, pl::as_matrix(low, 1, 1), tile, low_batch, batch, scratch);
  products(b, s, pl::as_matrix(low, 1, 1), pl::as_matrix(low, 1, 1), low_batch, low_batch, scratch);
  products(b, s, pl::as_matrix(mid, 1, 1), tile, mid_batch, batch, scratch);
  products(b, s, pl::as_matrix(mid, 1, 1), pl::as_matrix(mid, 1, 1), mid_batch, mid_batch, scratch);

  b.group_by_key(s, pl::in(ids), pl::out(ids), pl::out(sums), scratch);
  b.group_by_key(s, pl::in(ids), pl::out(sums), pl::out(sums), scratch);
  b.exclusive_scan(s, pl::in(sums), pl::out(sums), scratch);
  b.host_task(
      s, [](pl::view<float, pl::host_space> v, float by) { v[0] += by; }, pl::inout(h.all()), 2.0F);
  const auto ready = b.record(s);
  b.wait(adopted, ready);
  b.wait(ready);
  float into = 0;
  b.fetch(ready, pl::in(h.all().sub(0, 1)), std::span(&into, 1), "value", 0.0F);
}
