// SPDX-License-Identifier: Apache-2.0
// expect: plateau: staged<T, flow>: only a resident field may be of const elements
// control: elements that a copy can write into a slot
#include <plateau/host/backend.hpp>
#include <plateau/staging/staging_pipeline.hpp>

#ifdef PLATEAU_FAIL_TEST_CONTROL
using element = float;
#else
using element = const float;
#endif
using pipeline =
    plateau::staging_pipeline<plateau::host_backend, plateau::staged<element, plateau::flow::in>>;
static_assert(pipeline::streamed_bytes_per_element == 4);
