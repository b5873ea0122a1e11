// SPDX-License-Identifier: Apache-2.0
//
// The one file that nvcc compiles for extern_template_check.cpp.
#include "cuda/extern_template.hpp"

#include <doctest/doctest.h>

template class extern_template_example::doubling<plateau::cuda_backend>;

TEST_CASE("a .cpp file runs a kernel by extern template") {
  CHECK(extern_template_example::eight_times(1.5F) == 12.0F);
}
