// SPDX-License-Identifier: Apache-2.0
// expect: plateau: group_by_key: order holds 32- or 64-bit integers
// control: 32 bits; here 16
#include <plateau/dry_run/backend.hpp>
#include <plateau/host/backend.hpp>

#include <cstdint>

namespace pl = plateau;
using backend = pl::dry_run<pl::host_backend>;

#ifdef PLATEAU_FAIL_TEST_CONTROL
using position = std::int32_t;
#else
using position = std::int16_t;
#endif

void issue(backend& b, backend::stream& s, pl::view<std::int32_t> ids, pl::view<position> order,
           pl::view<std::int64_t> offsets) {
  b.group_by_key(s, pl::in(ids), pl::out(order), pl::out(offsets), {});
}
