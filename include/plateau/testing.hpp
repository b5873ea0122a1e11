// SPDX-License-Identifier: Apache-2.0
//
// The backends that hunt races and undeclared accesses in an operator, in one include. docs/dry_run.md tells
// how to test an operator with them.
#pragma once

#include <plateau/host/wide_team.hpp>
#include <plateau/testing/audited_backend.hpp>
#include <plateau/testing/run_seeded.hpp>
#include <plateau/testing/seeded_backend.hpp>
#include <plateau/testing/seeded_communicator.hpp>
