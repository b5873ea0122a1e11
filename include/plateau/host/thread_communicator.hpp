// SPDX-License-Identifier: Apache-2.0
//
// The communicator of ranks that are threads of one process and run side by side. See basic_communicator for
// its operations, run_ranks for how to start it.
#pragma once

#include <plateau/config.hpp>
#include <plateau/host/basic_communicator.hpp>
#include <plateau/host/exchange_command.hpp>
#include <plateau/host/thread_world.hpp>

namespace plateau::inline v0 {

using thread_options = host::thread_options;
using thread_communicator = basic_communicator<host::thread_world>;

} // namespace plateau::inline v0
