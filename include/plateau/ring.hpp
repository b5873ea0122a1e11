// SPDX-License-Identifier: Apache-2.0
//
// Reductions over a dimension that is split over ranks: the states that they carry, the rotation, and the
// cross-entropy and the entropy of a projection on it, and attention over a split sequence.
#pragma once

#include <plateau/ring/attention.hpp>
#include <plateau/ring/entropy.hpp>
#include <plateau/ring/linear_cross_entropy.hpp>
#include <plateau/ring/online_lse.hpp>
#include <plateau/ring/ring_reduce.hpp>
