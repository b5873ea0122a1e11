// SPDX-License-Identifier: Apache-2.0
// expect: plateau expert: needs backward_scratch_bytes(most_rows, most_groups) const and backward(stream&, const expert_groups<weight_type>&, const row_parts<Part...>&, view<const float> gates, tile<const Result> dresults, tile<Row> drows, view<float> dgates, scratch_view)
// control: an expert that has a backward
#include <fail/support/experts.hpp>

#ifdef PLATEAU_FAIL_TEST_CONTROL
using subject = experts::whole;
#else
using subject = experts::forward_only;
#endif

void dispatch(experts::op& exchange, subject& expert) { experts::run_backward(exchange, expert); }
