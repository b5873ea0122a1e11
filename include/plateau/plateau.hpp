// SPDX-License-Identifier: Apache-2.0
//
// What every program needs, from the standard library alone: the seams, the host backend, and ranks as
// threads. Operators have headers of their own (plateau/all_to_all.hpp), as has the dry run
// (plateau/dry_run.hpp). A BLAS is plateau/blas/blas_gemm.hpp, which needs the component of that name.
// Headers of one's own may include less: each header stands alone.
#pragma once

// The seams: what backends and communicators are, and the values that pass through them.
#include <plateau/access.hpp>
#include <plateau/accessible_from.hpp>
#include <plateau/budget_facts.hpp>
#include <plateau/checks.hpp>
#include <plateau/concepts.hpp>
#include <plateau/config.hpp>
#include <plateau/counters.hpp>
#include <plateau/digest.hpp>
#include <plateau/error.hpp>
#include <plateau/exchange.hpp>
#include <plateau/gemm.hpp>
#include <plateau/grouped.hpp>
#include <plateau/meter.hpp>
#include <plateau/resource.hpp>
#include <plateau/scratch.hpp>
#include <plateau/tag.hpp>
#include <plateau/tensor_traits.hpp>
#include <plateau/view.hpp>
#include <plateau/working_set.hpp>
#include <plateau/workspace.hpp>

// Kernels and what they call.
#include <plateau/kernel.hpp>
#include <plateau/kernels.hpp>
#include <plateau/math.hpp>
#include <plateau/scalar.hpp>
#include <plateau/team.hpp>

// Operations that every backend and every communicator has.
#include <plateau/close_step.hpp>
#include <plateau/collectives.hpp>
#include <plateau/column_sum.hpp>
#include <plateau/drain.hpp>
#include <plateau/vote.hpp>

// The host: streams are threads, and so are ranks.
#include <plateau/host/backend.hpp>
#include <plateau/host/thread_communicator.hpp>
#include <plateau/run_ranks.hpp>
