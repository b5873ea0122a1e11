// SPDX-License-Identifier: Apache-2.0
//
// Exact bytes in bf16, where products widen through scratch and weights have masters beside them.
#include "dry_run_peaks.hpp"

#include <plateau/scalar.hpp>

#include <doctest/doctest.h>

TEST_CASE("exact bytes in bf16") { test::check_grid<plateau::bfloat16>(8, 4); }
