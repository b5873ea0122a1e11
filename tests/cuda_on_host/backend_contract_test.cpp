// SPDX-License-Identifier: Apache-2.0
//
// The CUDA backend on the stand-in, held to the backend contract: with the threads of a block in three
// orders, and with operations that come late. It takes the library's own workspace nowhere, and no copy of it
// involves ordinary memory, which would hold the host up.
#include "contract/backend_contract.hpp"
#include "stand_in_tools.hpp"

#include <plateau/cuda.hpp>

#include <cublas_v2.h>

#include <memory>

namespace pl = plateau;
namespace cs = stand_in::cs;

// Device code cannot throw.
template <> inline constexpr bool backend_contract::kernels_throw<pl::cuda_backend> = false;

namespace {

void hold_to_contract(const cs::options& o) {
  const stand_in::with_settings back(o);
  const auto ordinary = cs::pageable_copies().load(), pool = cs::products_in_own_pool().load();
  const auto before = cs::held();
  backend_contract::everything<pl::cuda_backend>({[] { return std::make_unique<pl::cuda_backend>(); }});
  CHECK(cs::pageable_copies().load() == ordinary);
  CHECK(cs::products_in_own_pool().load() == pool);
  CHECK(cs::held() == before);
  CHECK(stand_in::findings().empty());
}
cs::options in_order(cs::thread_order order, unsigned delay, std::uint64_t seed) {
  cs::options o;
  o.order = order;
  o.delay_microseconds = delay;
  o.seed = seed;
  return o;
}

} // namespace

TEST_CASE("cuda_backend: threads in order") { hold_to_contract({}); }
TEST_CASE("cuda_backend: threads in reverse, operations late") {
  hold_to_contract(in_order(cs::thread_order::backward, 100, 1));
}
TEST_CASE("cuda_backend: threads shuffled, operations late") {
  hold_to_contract(in_order(cs::thread_order::shuffled, 100, 2));
}
TEST_CASE("cuda_backend: host functions of several streams at a time") {
  cs::options o;
  o.serial_host_functions = false;
  hold_to_contract(o);
}
