// SPDX-License-Identifier: Apache-2.0
//
// The stand-in's cuBLAS and CUB.
#include "stand_in_tools.hpp"

#include <cub/block/block_reduce.cuh>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#include <cub/warp/warp_reduce.cuh>
#include <cublas_v2.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

using namespace stand_in;

namespace {

struct handle {
  cublasHandle_t h = nullptr;
  handle() { REQUIRE(cublasCreate(&h) == CUBLAS_STATUS_SUCCESS); }
  handle(const handle&) = delete;
  ~handle() { cublasDestroy(h); }
};
// C (m x n) = alpha op(A) op(B) + beta C in fp32, columns one behind the other.
struct product {
  cublasOperation_t op_a = CUBLAS_OP_N, op_b = CUBLAS_OP_N;
  std::int64_t m = 2, n = 3, k = 2, ld_a = 2, ld_b = 2, ld_c = 2;
  float alpha = 1, beta = 0;
  cudaDataType type_a = CUDA_R_32F, type_b = CUDA_R_32F, type_c = CUDA_R_32F;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cublasStatus_t issue(const handle& h, const void* a, const void* b, void* c) const {
    return cublasGemmEx_64(h.h, op_a, op_b, m, n, k, &alpha, a, type_a, ld_a, b, type_b, ld_b, &beta, c,
                           type_c, ld_c, compute, CUBLAS_GEMM_DEFAULT);
  }
};
std::uint16_t bits_of(float f) { // of bfloat16, exact values only
  std::uint32_t b;
  std::memcpy(&b, &f, 4);
  return static_cast<std::uint16_t>(b >> 16);
}

struct sum {
  template <class T> T operator()(const T& a, const T& b) const { return a + b; }
};
// Two reductions in one piece of memory; `Barrier` tells whether the second waits until the first was read.
template <int Threads, bool Barrier> __global__ void reduce_blocks(const int* in, int* out) {
  using join = cub::BlockReduce<int, Threads>;
  __shared__ typename join::TempStorage work;
  const int first = join(work).Reduce(in[threadIdx.x], sum{});
  if (Barrier) __syncthreads();
  const int second = join(work).Reduce(in[threadIdx.x] + 1, sum{});
  if (threadIdx.x != 0) return;
  out[0] = first;
  out[1] = second;
}
__global__ void reduce_warps(const int* in, int* out, int* unpromised) {
  using join = cub::WarpReduce<int>;
  __shared__ typename join::TempStorage work[2];
  const int mine = join(work[threadIdx.x / 32]).Reduce(in[threadIdx.x], sum{});
  if (threadIdx.x % 32 == 0) out[threadIdx.x / 32] = mine;
  unpromised[threadIdx.x] = mine;
}

} // namespace

TEST_CASE("products: column-major, transposed, scaled, in the given stream") {
  stream s;
  handle h;
  REQUIRE(cublasSetStream(h.h, s.s) == CUBLAS_STATUS_SUCCESS);
  const device_array<float> a({1, 2, 3, 4}, s);       // (1 3; 2 4)
  const device_array<float> b({1, 0, 0, 1, 1, 1}, s); // (1 0 1; 0 1 1)
  device_array<float> c({10, 10, 10, 10, 10, 10}, s);
  product p;
  REQUIRE(p.issue(h, a.p, b.p, c.p) == CUBLAS_STATUS_SUCCESS);
  CHECK(c.download(s) == std::vector<float>{1, 2, 3, 4, 4, 6});
  p.op_a = CUBLAS_OP_T; // (1 2; 3 4)
  p.alpha = 2;
  p.beta = -1;
  REQUIRE(p.issue(h, a.p, b.p, c.p) == CUBLAS_STATUS_SUCCESS);
  CHECK(c.download(s) == std::vector<float>{1, 4, 1, 4, 2, 8});
  product q;
  q.op_b = CUBLAS_OP_T;
  q.ld_b = 3; // the same six numbers as 3 x 2: (1 1; 0 1; 0 1)
  REQUIRE(q.issue(h, a.p, b.p, c.p) == CUBLAS_STATUS_SUCCESS);
  CHECK(c.download(s) == std::vector<float>{4, 6, 3, 4, 3, 4});
  // Without terms C is scaled; what C held before counts for nothing where beta is 0.
  device_array<float> nan(std::vector<float>(6, std::numeric_limits<float>::quiet_NaN()), s);
  p = {};
  p.k = 0;
  REQUIRE(p.issue(h, a.p, b.p, nan.p) == CUBLAS_STATUS_SUCCESS);
  CHECK(nan.download(s) == std::vector<float>(6, 0.0F));
  p = {};
  p.alpha = 0;
  p.beta = 3;
  REQUIRE(p.issue(h, nullptr, nullptr, c.p) == CUBLAS_STATUS_SUCCESS);
  CHECK(c.download(s) == std::vector<float>{12, 18, 9, 12, 9, 12});
}

TEST_CASE("products of bfloat16 and half, rounded once") {
  stream s;
  handle h;
  REQUIRE(cublasSetStream(h.h, s.s) == CUBLAS_STATUS_SUCCESS);
  product p;
  p.m = p.n = 1;
  p.k = p.ld_b = 2;
  p.ld_a = p.ld_c = 1;
  // 1 * 1 + 2^-8 * 1 lies half way between 1 and 1 + 2^-7: even wins. With 3 * 2^-8 it is above.
  for (const auto& [small, expected] : {std::pair{0x1p-8F, 1.0F}, std::pair{0x3p-8F, 1 + 0x1p-6F}}) {
    const device_array<std::uint16_t> a({bits_of(1), bits_of(small)}, s), b({bits_of(1), bits_of(1)}, s);
    device_array<std::uint16_t> c(1);
    device_array<float> wide(1);
    p.type_a = p.type_b = p.type_c = CUDA_R_16BF;
    REQUIRE(p.issue(h, a.p, b.p, c.p) == CUBLAS_STATUS_SUCCESS);
    CHECK(c.download(s)[0] == bits_of(expected));
    p.type_c = CUDA_R_32F;
    REQUIRE(p.issue(h, a.p, b.p, wide.p) == CUBLAS_STATUS_SUCCESS);
    CHECK(wide.download(s)[0] == 1 + small);
  }
  const device_array<std::uint16_t> a({0x3c00, 0x1000}, s), b({0x3c00, 0x3c00}, s); // 1, 2^-11; 1, 1
  device_array<std::uint16_t> c(1);
  p.type_a = p.type_b = p.type_c = CUDA_R_16F;
  REQUIRE(p.issue(h, a.p, b.p, c.p) == CUBLAS_STATUS_SUCCESS);
  CHECK(c.download(s)[0] == 0x3c00);
  const device_array<std::uint16_t> big({0x7bff, 0x7bff}, s); // 65504 twice
  REQUIRE(p.issue(h, big.p, b.p, c.p) == CUBLAS_STATUS_SUCCESS);
  CHECK(c.download(s)[0] == 0x7c00);
  for (int bits = 0; bits < 0x7c00; ++bits) {
    const double v = cs::from_half(static_cast<std::uint16_t>(bits));
    REQUIRE(cs::to_half(v) == bits);
    REQUIRE(cs::to_half(-v) == (bits | 0x8000));
  }
  CHECK(std::isnan(cs::from_half(0x7e00)));
  CHECK(cs::to_half(std::numeric_limits<double>::quiet_NaN()) == 0x7e00);
}

TEST_CASE("products in batches, also of one array with itself") {
  stream s;
  handle h;
  REQUIRE(cublasSetStream(h.h, s.s) == CUBLAS_STATUS_SUCCESS);
  const float one = 1, none = 0;
  const device_array<float> a({1, 2, 3}, s), b({5, 7}, s);
  device_array<float> c(6);
  const auto batched = [&](long long stride_c) {
    return cublasGemmStridedBatchedEx_64(h.h, CUBLAS_OP_N, CUBLAS_OP_N, 1, 2, 1, &one, a.p, CUDA_R_32F, 1, 1,
                                         b.p, CUDA_R_32F, 1, 0, &none, c.p, CUDA_R_32F, 1, stride_c, 3,
                                         CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  };
  REQUIRE(batched(2) == CUBLAS_STATUS_SUCCESS);
  CHECK(c.download(s) == std::vector<float>{5, 7, 10, 14, 15, 21});
  REQUIRE(batched(1) == CUBLAS_STATUS_SUCCESS);
  s.finish();
  CHECK(found("overlap each other"));
  product p;
  p.m = p.n = p.k = p.ld_a = p.ld_b = p.ld_c = 1;
  REQUIRE(p.issue(h, c.p, b.p, c.p) == CUBLAS_STATUS_SUCCESS);
  s.finish();
  CHECK(found("or A or B"));
  // Columns between the columns of A are nobody's.
  p.m = 2;
  p.n = p.k = 1;
  p.ld_a = p.ld_c = 2;
  REQUIRE(p.issue(h, c.p, b.p, c.p + 2) == CUBLAS_STATUS_SUCCESS);
  s.finish();
  CHECK(findings().empty());
}

TEST_CASE("products in groups take their pointers from the device") {
  stream s;
  handle h;
  REQUIRE(cublasSetStream(h.h, s.s) == CUBLAS_STATUS_SUCCESS);
  const device_array<float> a({1, 2, 3}, s), b({5, 7}, s);
  device_array<float> c(4);
  const device_array<const void*> pa({a.p, a.p + 1, a.p + 2}, s), pb({b.p, b.p, b.p}, s);
  const device_array<void*> pc({c.p, c.p + 1, c.p + 2}, s);
  const cublasOperation_t ops[] = {CUBLAS_OP_N, CUBLAS_OP_N};
  const int ones[] = {1, 1}, columns[] = {1, 2}, sizes[] = {2, 1};
  const float alphas[] = {1, 10}, betas[] = {0, 0};
  const auto grouped = [&](const void* const* of_a, cudaDataType type_c) {
    return cublasGemmGroupedBatchedEx(h.h, ops, ops, ones, columns, ones, alphas, of_a, CUDA_R_32F, ones,
                                      pb.p, CUDA_R_32F, ones, betas, pc.p, type_c, ones, 2, sizes,
                                      CUBLAS_COMPUTE_32F);
  };
  REQUIRE(grouped(pa.p, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS);
  CHECK(c.download(s) == std::vector<float>{5, 10, 150, 210});
  const void* on_host[] = {a.p, a.p, a.p};
  CHECK(grouped(on_host, CUDA_R_32F) == CUBLAS_STATUS_EXECUTION_FAILED);
  CHECK(found("do not lie on the device"));
  CHECK(grouped(pa.p, CUDA_R_16BF) == CUBLAS_STATUS_NOT_SUPPORTED);
}

TEST_CASE("products that cuBLAS refuses") {
  stream s;
  handle h;
  REQUIRE(cublasSetStream(h.h, s.s) == CUBLAS_STATUS_SUCCESS);
  const device_array<float> a(16), b(16);
  device_array<float> c(16);
  const auto status = [&](auto change) {
    product p;
    change(p);
    return p.issue(h, a.p, b.p, c.p);
  };
  CHECK(status([](product& p) { p.ld_a = 1; }) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(status([](product& p) { p.ld_b = 1; }) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(status([](product& p) { p.ld_c = 1; }) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(status([](product& p) { p.op_b = CUBLAS_OP_T; }) == CUBLAS_STATUS_INVALID_VALUE); // now 3 rows
  CHECK(status([](product& p) { p.m = -1; }) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(status([](product& p) { p.type_b = CUDA_R_16BF; }) == CUBLAS_STATUS_NOT_SUPPORTED);
  CHECK(status([](product& p) { p.type_c = CUDA_R_16F; }) == CUBLAS_STATUS_NOT_SUPPORTED);
  CHECK(status([](product& p) { p.m = 0; }) == CUBLAS_STATUS_SUCCESS);
  CHECK(status([](product& p) { p.compute = CUBLAS_COMPUTE_32F_FAST_TF32; }) == CUBLAS_STATUS_NOT_SUPPORTED);
  CHECK(found("other than plain fp32"));
  CHECK(cublasSetMathMode(h.h, CUBLAS_TF32_TENSOR_OP_MATH) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(found("rounds fp32 to less"));
  CHECK(cublasSetMathMode(h.h, static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH |
                                                         CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)) ==
        CUBLAS_STATUS_SUCCESS);
  cs::fail_call("cublasGemmEx_64", 1, CUBLAS_STATUS_ALLOC_FAILED);
  CHECK(status([](product&) {}) == CUBLAS_STATUS_ALLOC_FAILED);
  cublasHandle_t gone = nullptr;
  REQUIRE(cublasCreate(&gone) == CUBLAS_STATUS_SUCCESS);
  REQUIRE(cublasDestroy(gone) == CUBLAS_STATUS_SUCCESS);
  CHECK(cublasSetStream(gone, s.s) == CUBLAS_STATUS_NOT_INITIALIZED);
  CHECK(found("cublasSetStream with a handle"));
  cs::options o;
  o.devices = 0;
  with_settings back(o);
  CHECK(cublasCreate(&gone) == CUBLAS_STATUS_NOT_INITIALIZED);
}

TEST_CASE("products that leave their matrices end the device") {
  with_settings back({});
  stream s;
  handle h;
  REQUIRE(cublasSetStream(h.h, s.s) == CUBLAS_STATUS_SUCCESS);
  const device_array<float> a(4), b(5);
  device_array<float> c(6);
  REQUIRE(product{}.issue(h, a.p, b.p, c.p) == CUBLAS_STATUS_SUCCESS); // b holds 5 of 6
  CHECK(cudaStreamSynchronize(s.s) == cudaErrorIllegalAddress);
  CHECK(found("a product in cuBLAS touches 24 bytes"));
}

TEST_CASE("the workspace: device memory, aligned, forgotten with each stream, and written to") {
  stream s;
  handle h;
  const device_array<float> a({1, 2, 3, 4}, s), b({1, 0, 0, 1, 1, 1}, s);
  device_array<float> c(6);
  device_array<unsigned char> work(1024);
  std::vector<char> on_host(2048);
  CHECK(cublasSetWorkspace(h.h, work.p + 128, 512) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(cublasSetWorkspace(h.h, work.p, 1025) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(found("a workspace for cuBLAS of 1025 bytes"));
  void* const aligned = on_host.data() + (256 - reinterpret_cast<std::uintptr_t>(on_host.data()) % 256);
  CHECK(cublasSetWorkspace(h.h, aligned, 512) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(found("not all device memory"));
  const auto before = cs::products_in_own_pool().load();
  REQUIRE(cublasSetWorkspace(h.h, work.p, 1024) == CUBLAS_STATUS_SUCCESS);
  REQUIRE(cublasSetStream(h.h, s.s) == CUBLAS_STATUS_SUCCESS);
  REQUIRE(product{}.issue(h, a.p, b.p, c.p) == CUBLAS_STATUS_SUCCESS);
  CHECK(cs::products_in_own_pool().load() == before + 1);
  REQUIRE(cublasSetWorkspace(h.h, work.p, 1024) == CUBLAS_STATUS_SUCCESS);
  REQUIRE(product{}.issue(h, a.p, b.p, c.p) == CUBLAS_STATUS_SUCCESS);
  CHECK(cs::products_in_own_pool().load() == before + 1);
  CHECK(work.download(s)[1023] == 0xc5);
  REQUIRE(product{}.issue(h, a.p, b.p, work.p) == CUBLAS_STATUS_SUCCESS);
  s.finish();
  CHECK(found("the workspace of cuBLAS overlaps a matrix"));
}

TEST_CASE("block reductions: thread 0 has the result, the rest has rubbish, and reuse wants a barrier") {
  int wrong = 0;
  for (const auto order :
       {cs::thread_order::forward, cs::thread_order::backward, cs::thread_order::shuffled}) {
    cs::options o;
    o.order = order;
    with_settings back(o);
    stream s;
    std::vector<int> values(64);
    for (int i = 0; i < 64; ++i) values[static_cast<std::size_t>(i)] = i * i;
    const device_array<int> in(values, s);
    device_array<int> out(2);
    cudaLaunchConfig_t c = launch_of(1, 64, s);
    REQUIRE(cudaLaunchKernelEx(&c, reduce_blocks<64, true>, in.p, out.p) == cudaSuccess);
    CHECK(out.download(s) == std::vector<int>{85344, 85408});
    REQUIRE(cudaLaunchKernelEx(&c, reduce_blocks<64, false>, in.p, out.p) == cudaSuccess);
    if (out.download(s) != std::vector<int>{85344, 85408}) ++wrong;
    device_array<int> sums(2), unpromised(64);
    REQUIRE(cudaLaunchKernelEx(&c, reduce_warps, in.p, sums.p, unpromised.p) == cudaSuccess);
    CHECK(sums.download(s) == std::vector<int>{10416, 74928});
    CHECK(unpromised.download(s)[1] == static_cast<int>(0xfefefefe));
  }
  CHECK(wrong > 0);
  stream s;
  const device_array<int> in(64);
  device_array<int> out(64);
  cudaLaunchConfig_t c = launch_of(1, 32, s);
  REQUIRE(cudaLaunchKernelEx(&c, reduce_blocks<64, true>, in.p, out.p) == cudaSuccess);
  s.finish();
  CHECK(found("a block of another size than its cub::BlockReduce"));
}

TEST_CASE("sorting pairs is stable and looks at the given bits only") {
  stream s;
  const std::vector<std::uint32_t> keys{0x15, 0x24, 0x11, 0x05, 0x34, 0x01};
  const device_array<std::uint32_t> ki(keys, s);
  const device_array<std::int64_t> vi({0, 1, 2, 3, 4, 5}, s);
  device_array<std::uint32_t> ko(6);
  device_array<std::int64_t> vo(6);
  std::size_t wanted = 0;
  const auto sort = [&](void* scratch, std::size_t& bytes, int begin, int end) {
    return cub::DeviceRadixSort::SortPairs(scratch, bytes, ki.p, ko.p, vi.p, vo.p, std::int64_t{6}, begin,
                                           end, s.s);
  };
  REQUIRE(sort(nullptr, wanted, 0, 4) == cudaSuccess);
  REQUIRE(wanted > 0);
  device_array<unsigned char> work(wanted);
  REQUIRE(sort(work.p, wanted, 0, 4) == cudaSuccess);
  CHECK(vo.download(s) == std::vector<std::int64_t>{2, 5, 1, 4, 0, 3});
  CHECK(ko.download(s) == std::vector<std::uint32_t>{0x11, 0x01, 0x24, 0x34, 0x15, 0x05});
  REQUIRE(sort(work.p, wanted, 4, 32) == cudaSuccess);
  CHECK(vo.download(s) == std::vector<std::int64_t>{3, 5, 0, 2, 1, 4});
  std::size_t less = wanted - 1;
  CHECK(sort(work.p, less, 0, 4) == cudaErrorInvalidValue);
  CHECK(sort(work.p, wanted, 4, 4) == cudaErrorInvalidValue);
  CHECK(sort(work.p, wanted, 0, 33) == cudaErrorInvalidValue);
  CHECK(cub::DeviceRadixSort::SortPairs(work.p, wanted, ki.p, ko.p, ko.p, ko.p, 6, 0, 32, s.s) ==
        cudaSuccess);
  s.finish();
  CHECK(found("arrays of cub::DeviceRadixSort::SortPairs overlap"));
  const device_array<std::int32_t> negative({3, -1, 0, -5}, s), places({0, 1, 2, 3}, s);
  device_array<std::int32_t> sorted(4), order(4);
  REQUIRE(cub::DeviceRadixSort::SortPairs(work.p, wanted, negative.p, sorted.p, places.p, order.p, 4, 0, 32,
                                          s.s) == cudaSuccess);
  CHECK(sorted.download(s) == std::vector<std::int32_t>{-5, -1, 0, 3});
}

TEST_CASE("exclusive sums, in place too") {
  stream s;
  device_array<std::int64_t> v({3, 1, 4, 1, 5}, s), to(5);
  std::size_t wanted = 0;
  REQUIRE(cub::DeviceScan::ExclusiveSum(nullptr, wanted, v.p, to.p, 5, s.s) == cudaSuccess);
  device_array<unsigned char> work(wanted);
  REQUIRE(cub::DeviceScan::ExclusiveSum(work.p, wanted, v.p, to.p, 5, s.s) == cudaSuccess);
  CHECK(to.download(s) == std::vector<std::int64_t>{0, 3, 4, 8, 9});
  REQUIRE(cub::DeviceScan::ExclusiveSum(work.p, wanted, v.p, v.p, 5, s.s) == cudaSuccess);
  CHECK(v.download(s) == std::vector<std::int64_t>{0, 3, 4, 8, 9});
  REQUIRE(cub::DeviceScan::ExclusiveSum(work.p, wanted, v.p, v.p + 1, 4, s.s) == cudaSuccess);
  s.finish();
  CHECK(found("arrays of cub::DeviceScan::ExclusiveSum overlap"));
}
