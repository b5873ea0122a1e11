// SPDX-License-Identifier: Apache-2.0
//
// The dispatch of rows to experts on other ranks, capped on both sides: the operator, what an expert must be,
// an adapter for a function of one expert, and the planners alone.
#pragma once

#include <plateau/all_to_all/capped_all_to_all.hpp>
#include <plateau/all_to_all/each_expert.hpp>
#include <plateau/all_to_all/expert.hpp>
#include <plateau/all_to_all/placement_plan.hpp>
#include <plateau/all_to_all/round_plan.hpp>
