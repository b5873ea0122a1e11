// SPDX-License-Identifier: Apache-2.0
// expect: plateau: staging_pipeline<Backend, Fields...> takes fields as staged<T, flow>
// control: a field that says which way it goes
#include <plateau/host/backend.hpp>
#include <plateau/staging/staging_pipeline.hpp>

#ifdef PLATEAU_FAIL_TEST_CONTROL
using field = plateau::staged<float, plateau::flow::inout>;
#else
using field = float;
#endif
static_assert(sizeof(plateau::staging_pipeline<plateau::host_backend, field>) > 0);
