// SPDX-License-Identifier: Apache-2.0
// expect: plateau: results are added in float: row_traits<Part>::result_type must be float, bfloat16 or half
// control: rows of a type of one's own that come back as numbers
#include <fail/support/experts.hpp>

struct reading {
  int channel;
  short value;
};
#ifdef PLATEAU_FAIL_TEST_CONTROL
template <> struct plateau::row_traits<reading> { using result_type = float; };
#endif

using exchange = plateau::capped_all_to_all<plateau::host_backend, plateau::thread_communicator, reading>;
static_assert(sizeof(exchange) > 0);
