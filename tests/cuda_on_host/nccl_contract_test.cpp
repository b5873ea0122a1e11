// SPDX-License-Identifier: Apache-2.0
//
// nccl_communicator does what every communicator must do while nothing fails; once more with operations of
// streams that come late.
#include "nccl_fixture.hpp"

#include <plateau/checks.hpp>

namespace {
using fixture = nccl_ranks::over_threads;
using nccl_ranks::eight_devices;
static_assert(plateau::check_communicator<plateau::nccl_communicator, plateau::cuda_backend>());

void with_data() {
  contract::exchange_ring<fixture>();
  contract::exchange_all_to_all<fixture>();
  contract::exchange_pieces<fixture>();
  contract::exchange_nothing<fixture>();
  contract::order_of_issue<fixture>();
  contract::exchanges_of_groups<fixture>();
}
} // namespace

TEST_CASE("nccl: exchanges") {
  const eight_devices settings;
  with_data();
}
TEST_CASE("nccl: exchanges where operations of streams come late") {
  const eight_devices settings(300);
  with_data();
}
TEST_CASE("nccl: exchange long lists") {
  const eight_devices settings;
  contract::exchange_long_lists<fixture>();
}
TEST_CASE("nccl: host exchange") {
  const eight_devices settings;
  contract::host_exchanges<fixture>();
}
TEST_CASE("nccl: split") {
  const eight_devices settings;
  contract::groups<fixture>();
}
TEST_CASE("nccl: sums in rank order") {
  const eight_devices settings;
  contract::sums_of<float, fixture>();
}
TEST_CASE("nccl: votes") {
  const eight_devices settings;
  contract::votes<fixture>();
}
