// SPDX-License-Identifier: Apache-2.0
//
// The smallest program that uses the CUDA backend: kernels, a product and a sort, so that the runtime, cuBLAS
// and CUB are all asked for. It is compiled and linked; without a GPU it can only say that there is none.
#include <plateau/cuda.hpp>
#include <plateau/plateau.hpp>

#include <algorithm>
#include <cstdio>

namespace pl = plateau;
using pl::index_t;

int main() try {
  pl::cuda_backend backend;
  constexpr auto plain = pl::transpose::no;
  const std::size_t scratch_bytes =
      std::max(pl::cuda_backend::gemm_scratch_bytes<float, float, float>(plain, plain, 2, 2, 2),
               pl::cuda_backend::group_by_key_scratch_bytes(4, 2));
  pl::buffer<float, pl::cuda_backend::device_memory> x(backend.device(), 4, pl::tag::workspace);
  pl::buffer<std::int32_t, pl::cuda_backend::device_memory> keys(backend.device(), 4, pl::tag::workspace);
  pl::buffer<index_t, pl::cuda_backend::device_memory> order(backend.device(), 4 + 3, pl::tag::workspace);
  pl::buffer<unsigned char, pl::cuda_backend::device_memory> scratch(
      backend.device(), static_cast<index_t>(scratch_bytes), pl::tag::workspace);
  auto stream = backend.make_stream("consumer");
  backend.launch(stream, pl::elements{4}, pl::fill<float>{3}, pl::out(x.all()));
  backend.launch(stream, pl::elements{4}, pl::fill<std::int32_t>{1}, pl::out(keys.all()));
  const auto square = x.matrix(2, 2);
  backend.gemm(stream, plain, plain, 1, pl::in(square), pl::in(square), 1, pl::inout(square), scratch.all());
  backend.group_by_key(stream, pl::in(keys.all()), pl::out(order.first(4)), pl::out(order.all().sub(4, 3)),
                       scratch.all());
  backend.wait(backend.record(stream));
  std::printf("done on device %d\n", backend.device_number());
} catch (const pl::error& e) {
  std::printf("%s\n", e.what());
  return 1;
}
