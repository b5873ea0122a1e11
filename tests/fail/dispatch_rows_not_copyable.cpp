// SPDX-License-Identifier: Apache-2.0
// expect: plateau: capped_all_to_all moves rows by their bytes: parts must be trivially copyable
// control: rows that are bytes
#include <fail/support/experts.hpp>

#include <string>

#ifdef PLATEAU_FAIL_TEST_CONTROL
using part = float;
#else
using part = std::string;
#endif
template <> struct plateau::row_traits<std::string> { using result_type = float; };

using exchange = plateau::capped_all_to_all<plateau::host_backend, plateau::thread_communicator, part>;
static_assert(sizeof(exchange) > 0);
