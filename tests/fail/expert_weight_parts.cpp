// SPDX-License-Identifier: Apache-2.0
// expect: plateau expert: needs a type weight_type and weight_parts() const, giving a span of matrix_extent: the matrices of one expert
// control: an expert that says which matrices it has
#include <fail/support/experts.hpp>

#ifdef PLATEAU_FAIL_TEST_CONTROL
using subject = experts::whole;
#else
struct subject : experts::steps {
  using weight_type = float;
};
#endif

void dispatch(experts::op& exchange, subject& expert) { experts::run(exchange, expert); }
