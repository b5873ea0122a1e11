// SPDX-License-Identifier: Apache-2.0
//
// Everything for dry runs in one include: the backend and communicator without data, machines, timelines,
// scenarios, and the files that show them. It is not part of plateau.hpp, which a trainer's every source
// includes and which should take no longer for it. docs/dry_run.md tells how to use it.
#pragma once

#include <plateau/dry_run/backend.hpp>
#include <plateau/dry_run/communicator.hpp>
#include <plateau/dry_run/hardware.hpp>
#include <plateau/dry_run/predict.hpp>
#include <plateau/dry_run/presets.hpp>
#include <plateau/dry_run/run_dry.hpp>
#include <plateau/dry_run/scenario.hpp>
#include <plateau/dry_run/this_host.hpp>
#include <plateau/trace/chrome_trace.hpp>
#include <plateau/trace/memory_svg.hpp>
