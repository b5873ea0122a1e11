// SPDX-License-Identifier: Apache-2.0
//
// The four peaks as everyone has them, in one place. The model and the trainer are templates over such a
// bundle: to flatten a peak, write another bundle that names another class for it; nothing else changes. What
// each class must offer is what the class here offers. The program takes the bundle whose classes look at the
// configuration (chosen_peaks.hpp).
#pragma once

#include "attention.hpp"
#include "boundaries_on_device.hpp"
#include "dense_loss.hpp"
#include "optimizer_on_device.hpp"
#include "parameters.hpp"
#include "uncapped_dispatch.hpp"

namespace moe {

struct unflattened {
  // Attention over whole sequences: a rank's memory grows with them.
  template <class Backend, class Communicator, class T>
  using attention = moe::attention<Backend, Communicator, T>;

  // Expert dispatch: grows with tokens x routing skew.
  template <class Backend, class Communicator, class T>
  using dispatch = uncapped_dispatch<Backend, Communicator, T>;

  // Vocabulary projection and loss: grows with tokens x vocabulary.
  template <class Backend, class Communicator, class T> using loss = dense_loss<Backend, Communicator, T>;

  // Inputs of layers, from forward to backward: grows with layers x tokens.
  template <class Backend, class T> using boundaries = boundaries_on_device<Backend, T>;

  // Gradients until the update, and the optimizer's state: grow with parameters.
  template <class Backend> using gradients = resident_gradients<Backend>;
  template <class Backend, class Communicator, class T>
  using optimizer = optimizer_on_device<Backend, Communicator, T>;
};

} // namespace moe
