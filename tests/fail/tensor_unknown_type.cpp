// SPDX-License-Identifier: Apache-2.0
// expect: plateau: this is no tensor: specialise plateau::tensor_traits for it
// control: with the traits
#include <plateau/tensor_traits.hpp>

struct samples {
  float* base;
  long n;
};

#ifdef PLATEAU_FAIL_TEST_CONTROL
template <> struct plateau::tensor_traits<samples> {
  using element_type = float;
  using space = device_space;
  static constexpr int rank = 1;
  static float* data(const samples& s) { return s.base; }
  static index_t extent(const samples& s, int) { return s.n; }
  static index_t stride(const samples&, int) { return 1; }
};
#endif

void use(const samples& s) { plateau::as_view(s); }
