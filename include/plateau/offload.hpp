// SPDX-License-Identifier: Apache-2.0
//
// Tensors that wait for backward in host memory: what is parked, the store with its handles, and a sequence
// of layers that keeps only their parked inputs.
#pragma once

#include <plateau/offload/checkpointed.hpp>
#include <plateau/offload/offload_break_even.hpp>
#include <plateau/offload/offload_handle.hpp>
#include <plateau/offload/offload_plan.hpp>
#include <plateau/offload/offload_shape.hpp>
#include <plateau/offload/offload_statistics.hpp>
#include <plateau/offload/offload_store.hpp>
