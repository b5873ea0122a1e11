// SPDX-License-Identifier: Apache-2.0
//
// Which spaces a backend reaches, by default and by its own word; what is refused is in tests/fail.
#include <plateau/accessible_from.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/host/wide_team.hpp>

#include <doctest/doctest.h>

namespace {

namespace pl = plateau;

struct machine;
struct unified;
struct elsewhere;

} // namespace

template <> inline constexpr bool plateau::accessible_from<unified, plateau::host_space> = true;

TEST_CASE("kernels reach device memory, and what the backend says") {
  static_assert(pl::accessible_from<machine, pl::device_space> &&
                !pl::accessible_from<machine, pl::host_space>);
  static_assert(pl::accessible_from<unified, pl::host_space> && !pl::accessible_from<unified, elsewhere>);
  using wide = pl::basic_host_backend<pl::block_gemm, pl::host::wide_runner>;
  static_assert(pl::accessible_from<pl::host_backend, pl::host_space> &&
                pl::accessible_from<wide, pl::host_space> && !pl::accessible_from<wide, elsewhere>);
  pl::check_accessible<machine, pl::device_space, void>();
  pl::check_copyable<machine, pl::device_space, pl::host_space>();
  CHECK(!pl::accessible_from<machine, void>);
}
