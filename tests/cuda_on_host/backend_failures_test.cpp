// SPDX-License-Identifier: Apache-2.0
//
// The CUDA backend where CUDA fails, on the stand-in: machines on which it cannot run, and each single call
// that it makes, failing once. What fails says so with the call, nothing is left behind, and the next try
// succeeds.
#include "contract/backend_rig.hpp"
#include "stand_in_tools.hpp"

#include <plateau/column_sum.hpp>
#include <plateau/cuda.hpp>
#include <plateau/kernels.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace pl = plateau;
namespace cs = stand_in::cs;
using backend_contract::has;
using backend_contract::refusal;
using pl::cuda_backend, pl::index_t, pl::transpose;
using pl::in, pl::inout, pl::out, pl::some;

namespace {

std::string refused_with(const cs::options& o) {
  const stand_in::with_settings back(o);
  return refusal<pl::backend_error>([] { const cuda_backend b("rank 2"); });
}

// Every operation of the backend once, and the sums that come out of it.
std::vector<float> program() {
  using pl::device_buffer, pl::pinned_buffer, pl::tag;
  cuda_backend b;
  const index_t n = 16;
  device_buffer<float, cuda_backend> x(b.device(), n * n, tag::other), y(b.device(), n * n, tag::other),
      sums(b.device(), n, tag::other);
  device_buffer<std::int32_t, cuda_backend> ids(b.device(), n, tag::other), order(b.device(), n, tag::other);
  device_buffer<std::int64_t, cuda_backend> offsets(b.device(), 5, tag::other),
      total(b.device(), 6, tag::other);
  pinned_buffer<float, cuda_backend> h(b.pinned(), n * n, tag::other), g(b.pinned(), n * n, tag::other);
  device_buffer<unsigned char, cuda_backend> scratch(
      b.device(),
      static_cast<index_t>(
          cuda_backend::gemm_scratch_bytes<float, float, float>(transpose::no, transpose::no, n, n, n)),
      tag::other);
  auto s = b.make_stream("main"), other = b.make_stream("other");
  for (index_t i = 0; i < n * n; ++i) h.data()[i] = static_cast<float>(i % 7);
  b.copy(s, in(h.all()), out(x.all()));
  b.copy(s, in(x.matrix(n, n).column_block(0, n / 2)), out(y.matrix(n, n).column_block(n / 2, n / 2)));
  b.launch(s, pl::elements{n * n}, pl::fill<float>{2}, out(y.all()));
  b.launch(s, pl::rows{n}, backend_contract::affine_row{1, 0}, inout(pl::tile<std::uint32_t>{}));
  b.gemm(s, transpose::no, transpose::yes, 1.0F, in(x.matrix(n, n)), in(x.matrix(n, n)), 1.0F,
         inout(y.matrix(n, n)), scratch.all());
  const pl::tile_batch<float> halves{x.data(), 2, n / 2 * n, n / 2, n, n};
  b.gemm(s, transpose::no, transpose::yes, 0.5F, in(halves), in(halves), 0.0F,
         out(pl::tile_batch<float>{y.data(), 2, n / 2, n / 2, n / 2, n}), scratch.all());
  using group = pl::gemm_group<float, float, float>;
  const group groups[] = {{x.matrix(n, n).row_block(0, 4), x.matrix(n, n), y.matrix(n, n).row_block(0, 4)},
                          {x.matrix(n, n).row_block(4, 12), x.matrix(n, n), y.matrix(n, n).row_block(4, 12)}};
  b.grouped_gemm(s, transpose::no, transpose::no, 1.0F, 1.0F, std::span<const group>(groups), scratch.all());
  b.launch(s, pl::elements{n}, pl::fill<std::int32_t>{3}, out(ids.all()));
  b.group_by_key(s, in(ids.all()), out(order.all()), out(offsets.all()), scratch.all());
  b.exclusive_scan(s, in(offsets.all()), out(total.all()), scratch.all());
  b.wait(other, b.record(s));
  b.launch(other, pl::elements{n}, pl::fill<float>{0}, out(sums.all()));
  pl::column_sum(b, other, in(y.matrix(n, n)), inout(sums.all()), scratch.all());
  b.copy(other, in(y.all()), out(h.all()));
  b.copy(other, in(sums.all()), out(h.first(n)));
  b.copy(other, in(h.all()), out(g.all()));
  b.host_task(
      other, [](pl::view<float, pl::host_space> v) { v[0] += 1; }, inout(g.all()));
  b.wait(s, b.record(other)); // behind a host task
  std::vector<float> into(static_cast<std::size_t>(n * n));
  b.fetch(b.record(s), in(g.all()), std::span(into), "everything");
  return into;
}

} // namespace

TEST_CASE("a machine that cannot run it says why") {
  cs::options o;
  o.driver_version = 12020;
  std::string text = refused_with(o);
  CHECK(has(text, "plateau: rank 2: no CUDA device: the driver is too old"));
  CHECK(has(text, "for CUDA 12.2"));
  CHECK(has(text, "for CUDA 13.0"));
  o.driver_version = 0;
  CHECK(has(refused_with(o), "this machine has no CUDA driver"));
  o.driver_version = o.runtime_version;
  o.devices = 0;
  CHECK(has(refused_with(o), "shows no GPU to the program"));
  o.devices = 1;
  cs::fail_call("cudaGetDeviceCount", 1, cudaErrorStubLibrary);
  text = refused_with(o);
  cs::fail_call("cudaGetDeviceCount", 0, 0);
  CHECK(has(text, "is a stub that is there to link against"));
  CHECK(stand_in::findings() == "");
}

TEST_CASE("a GPU for which there is no code is named with its architecture") {
  cuda_backend b;
  pl::device_buffer<float, cuda_backend> x(b.device(), 4, pl::tag::other);
  auto s = b.make_stream("main");
  cs::fail_call("cudaLaunchKernelEx", 1, cudaErrorNoKernelImageForDevice);
  const std::string text =
      refusal<pl::backend_error>([&] { b.launch(s, pl::elements{4}, pl::fill<float>{2}, out(x.all())); });
  cs::fail_call("cudaLaunchKernelEx", 0, 0);
  CHECK(has(text, "cudaLaunchKernelEx of fill<float>: cudaErrorNoKernelImageForDevice"));
  CHECK(has(text, "no code for compute capability "));
  CHECK(has(text, "CMAKE_CUDA_ARCHITECTURES"));
  CHECK(has(text, "backend_failures_test.cpp:"));
  b.launch(s, pl::elements{4}, pl::fill<float>{2}, out(x.all()));
}

TEST_CASE("every call that fails is named, and nothing is left behind") {
  const char* const names[] = {"cudaGetDeviceCount",
                               "cudaSetDevice",
                               "cublasCreate",
                               "cublasSetMathMode",
                               "cudaMalloc",
                               "cudaMallocHost",
                               "cudaStreamCreateWithFlags",
                               "cudaEventCreateWithFlags",
                               "cudaEventRecord",
                               "cudaEventSynchronize",
                               "cudaStreamWaitEvent",
                               "cudaMemcpyAsync",
                               "cudaMemcpy2DAsync",
                               "cudaLaunchKernelEx",
                               "cudaLaunchHostFunc",
                               "cublasSetStream",
                               "cublasSetWorkspace",
                               "cublasGemmEx_64",
                               "cublasGemmStridedBatchedEx_64",
                               "cublasGemmGroupedBatchedEx",
                               "cub::DeviceRadixSort::SortPairs",
                               "cub::DeviceScan::ExclusiveSum"};
  // Made by destructors, which have nobody to tell.
  const char* const closing[] = {"cudaFree",          "cudaFreeHost",     "cudaStreamSynchronize",
                                 "cudaStreamDestroy", "cudaEventDestroy", "cublasDestroy"};
  std::vector<std::uint64_t> made;
  const auto count = [](const char* name) { return cs::calls_of(name); };
  for (const char* name : names) made.push_back(count(name));
  std::uint64_t others = 0;
  for (const char* name : closing) others += count(name);
  const std::uint64_t all = cs::all_calls();
  const std::vector<float> expected = program();
  std::uint64_t seen = 0;
  for (const char* name : closing) seen += count(name);
  seen -= others;
  for (std::size_t i = 0; i < made.size(); ++i) {
    made[i] = count(names[i]) - made[i];
    seen += made[i];
    CAPTURE(names[i]);
    CHECK(made[i] > 0);
  }
  REQUIRE(seen == cs::all_calls() - all); // it makes no other

  for (std::size_t i = 0; i < made.size(); ++i)
    for (std::uint64_t n = 1; n <= made[i]; ++n) {
      const auto before = cs::held();
      // Of the same number in both libraries.
      static_assert(static_cast<int>(cudaErrorInvalidValue) ==
                    static_cast<int>(CUBLAS_STATUS_NOT_INITIALIZED));
      cs::fail_call(names[i], n, cudaErrorInvalidValue);
      std::vector<float> got;
      const std::string text = refusal<pl::backend_error>([&] { got = program(); });
      cs::fail_call(names[i], 0, 0);
      CAPTURE(n);
      CHECK(got.empty());
      CHECK(text.find("plateau: ") == 0);
      CHECK(has(text, names[i]));
      CHECK(cs::held() == before);
      CHECK(stand_in::findings() == "");
    }
  CHECK(program() == expected);
}
