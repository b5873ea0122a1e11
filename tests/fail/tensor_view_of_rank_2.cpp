// SPDX-License-Identifier: Apache-2.0
// expect: plateau: as_view needs a tensor of rank 1
// control: rank 1
#include <plateau/tensor_traits.hpp>

#ifdef PLATEAU_FAIL_TEST_CONTROL
constexpr int dimensions = 1;
#else
constexpr int dimensions = 2;
#endif

struct block {
  float* base;
  long extents[dimensions], strides[dimensions];
};

template <> struct plateau::tensor_traits<block> {
  using element_type = float;
  using space = host_space;
  static constexpr int rank = dimensions;
  static float* data(const block& b) { return b.base; }
  static index_t extent(const block& b, int d) { return b.extents[d]; }
  static index_t stride(const block& b, int d) { return b.strides[d]; }
};

void use(const block& b) { plateau::as_view(b); }
