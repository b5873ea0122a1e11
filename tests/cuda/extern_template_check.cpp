// SPDX-License-Identifier: Apache-2.0
//
// A trainer's file, compiled by the host's compiler: it makes streams and buffers, copies, waits and runs
// host code itself, and calls what launches by its declaration.
#include "cuda/extern_template.hpp"

#include <plateau/cuda.hpp>

#include <span>

namespace extern_template_example {

float eight_times(float value) {
  pl::cuda_backend backend;
  pl::device_buffer<float, pl::cuda_backend> x(backend.device(), 1, pl::tag::other);
  pl::pinned_buffer<float, pl::cuda_backend> h(backend.pinned(), 1, pl::tag::other);
  auto stream = backend.make_stream("trainer");
  h.data()[0] = value;
  backend.copy(stream, pl::in(h.all()), pl::out(x.all()));
  doubling operation(backend);
  operation.run(stream, x.all(), 3);
  backend.copy(stream, pl::in(x.all()), pl::out(h.all()));
  float result = 0;
  backend.fetch(backend.record(stream), pl::in(h.all()), std::span(&result, 1), "result");
  return result;
}

} // namespace extern_template_example
