// SPDX-License-Identifier: Apache-2.0
//
// The four peaks with the dispatch by rounds, everything else as everyone has it: --flatten dispatch.
#pragma once

#include "capped_dispatch.hpp"
#include "unflattened.hpp"

namespace moe {

struct flattened_dispatch : unflattened {
  template <class Backend, class Communicator, class T>
  using dispatch = capped_dispatch<Backend, Communicator, T>;
};

} // namespace moe
