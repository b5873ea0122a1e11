// SPDX-License-Identifier: Apache-2.0
// expect: plateau expert: needs forward_scratch_bytes(most_rows, most_groups) const and forward(stream&, const expert_groups<weight_type>&, const row_parts<Part...>&, tile<Result> results, scratch_view)
// control: an expert that can compute
#include <fail/support/experts.hpp>

#ifdef PLATEAU_FAIL_TEST_CONTROL
using subject = experts::whole;
#else
using subject = experts::weights;
#endif

void dispatch(experts::op& exchange, subject& expert) { experts::run(exchange, expert); }
