// SPDX-License-Identifier: Apache-2.0
//
// The four peaks as model_config::flatten asks for them: each class here is one of two, picked when it is
// made (either.hpp), so that a program with every combination compiles the trainer once. A peak that cannot
// be flattened yet is as everyone has it.
#pragma once

#include "chosen_attention.hpp"
#include "chosen_boundaries.hpp"
#include "chosen_dispatch.hpp"
#include "chosen_gradients.hpp"
#include "chosen_loss.hpp"
#include "chosen_optimizer.hpp"
#include "unflattened.hpp"

namespace moe {

struct chosen_peaks : unflattened {
  template <class Backend, class Communicator, class T>
  using attention = chosen_attention<Backend, Communicator, T>;

  template <class Backend, class Communicator, class T>
  using dispatch = chosen_dispatch<Backend, Communicator, T>;

  template <class Backend, class Communicator, class T> using loss = chosen_loss<Backend, Communicator, T>;

  template <class Backend, class T> using boundaries = chosen_boundaries<Backend, T>;

  template <class Backend> using gradients = chosen_gradients<Backend>;
  template <class Backend, class Communicator, class T>
  using optimizer = chosen_optimizer<Backend, Communicator, T>;
};

} // namespace moe
