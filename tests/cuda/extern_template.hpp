// SPDX-License-Identifier: Apache-2.0
//
// How a template that starts kernels is used in files that nvcc does not compile: its members are defined
// outside of the class, this header declares the one instantiation `extern`, one .cu file makes it, and any
// number of .cpp files call it. Members that are defined inside a class are inline, which `extern template`
// does not hold back from being instantiated.
#pragma once

#include <plateau/cuda.hpp>

#include <plateau/checks.hpp>
#include <plateau/kernels.hpp>

namespace extern_template_example {

namespace pl = plateau;

template <class Backend> class doubling {
  static_assert(pl::check_backend<Backend>());

 public:
  explicit doubling(Backend& backend) : backend_(backend) {} // starts nothing, so it may stand here
  // values *= 2, times over.
  void run(typename Backend::stream& s, pl::view<float> values, int times);

 private:
  Backend& backend_;
};

template <class Backend>
void doubling<Backend>::run(typename Backend::stream& s, pl::view<float> values, int times) {
  for (int i = 0; i < times; ++i)
    backend_.launch(s, pl::elements{values.n}, pl::scale{2.0F}, pl::inout(values));
}

extern template class doubling<pl::cuda_backend>;

// In the .cpp file.
float eight_times(float value);

} // namespace extern_template_example
