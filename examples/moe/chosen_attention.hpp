// SPDX-License-Identifier: Apache-2.0
//
// The attention that the ranks' grid asks for: over whole sequences, or over those that a group shares.
#pragma once

#include "attention.hpp"
#include "either.hpp"
#include "sequence_attention.hpp"

namespace moe {

template <class Backend, class Communicator, class T> class chosen_attention {
  using plain_type = attention<Backend, Communicator, T>;
  using flat_type = sequence_attention<Backend, Communicator, T>;

 public:
  static pl::reservation reserve_for(const model_config& c, const batch_limits& b) {
    return b.sequence_ranks > 1 ? flat_type::reserve_for(c, b) : plain_type::reserve_for(c, b);
  }

  chosen_attention(Backend& backend, Communicator* ranks, pl::workspace<Backend>& space,
                   const model_config& c, const batch_limits& b)
      : one_(b.sequence_ranks > 1, backend, ranks, space, c, b) {}

  // As those of the one that was chosen.
  template <class... Arguments> void forward(Arguments&&... arguments) {
    one_.visit([&](auto& attention) { attention.forward(arguments...); });
  }
  template <class... Arguments> void backward(Arguments&&... arguments) {
    one_.visit([&](auto& attention) { attention.backward(arguments...); });
  }

 private:
  either<plain_type, flat_type> one_;
};

} // namespace moe
