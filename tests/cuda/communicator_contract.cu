// SPDX-License-Identifier: Apache-2.0
//
// Several ranks on one GPU, held to the communicator contract.
#include "thread_communicator_cases.hpp"
