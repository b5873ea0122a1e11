// SPDX-License-Identifier: Apache-2.0
//
// The loss that the configuration asks for: over dense logits, or without any.
#pragma once

#include "dense_loss.hpp"
#include "either.hpp"
#include "ring_loss.hpp"

#include <optional>

namespace moe {

template <class Backend, class Communicator, class T> class chosen_loss {
  using plain_type = dense_loss<Backend, Communicator, T>;
  using flat_type = ring_loss<Backend, Communicator, T>;

 public:
  static pl::reservation reserve_for(const model_config& c, const rank_grid& g, const batch_limits& b) {
    return c.flatten.vocabulary ? flat_type::reserve_for(c, g, b) : plain_type::reserve_for(c, g, b);
  }
  static std::optional<pl::reservation> promised(const model_config& c, const rank_grid& g,
                                                 const batch_limits& b) {
    return c.flatten.vocabulary ? flat_type::promised(c, g, b) : plain_type::promised(c, g, b);
  }

  static pl::reservation grows_to(const model_config& c, const rank_grid& g, const batch_limits& b) {
    return c.flatten.vocabulary ? flat_type::grows_to(c, g, b) : plain_type::grows_to(c, g, b);
  }

  chosen_loss(Backend& backend, Communicator& world, pl::workspace<Backend>& space, const model_config& c,
              const rank_grid& g, const batch_limits& b)
      : one_(c.flatten.vocabulary, backend, world, space, c, g, b) {}

  // As those of the one that was chosen.
  template <class... Arguments> void forward(Arguments&&... arguments) {
    one_.visit([&](auto& loss) { loss.forward(arguments...); });
  }
  template <class... Arguments> void forward_backward(Arguments&&... arguments) {
    one_.visit([&](auto& loss) { loss.forward_backward(arguments...); });
  }

 private:
  either<plain_type, flat_type> one_;
};

} // namespace moe
