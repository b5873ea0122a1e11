// SPDX-License-Identifier: Apache-2.0
//
// The gradients that the configuration asks for: on the device for the whole step, or on their way to host
// memory during backward.
#pragma once

#include "either.hpp"
#include "flattened_gradients.hpp"
#include "model_config.hpp"
#include "parameters.hpp"

#include <plateau/error.hpp>

#include <optional>

namespace moe {

template <class Backend> class chosen_gradients {
  using stream = typename Backend::stream;

 public:
  using plain_type = resident_gradients<Backend>;
  using flat_type = flattened_gradients<Backend>;

  static pl::reservation held_by(const parameter_layout& layout, const model_config& c) {
    return c.flatten.optimizer ? flat_type::held_by(layout, c) : plain_type::held_by(layout, c);
  }

  chosen_gradients(Backend& backend, const parameter_layout& layout, const model_config& c)
      : one_(c.flatten.optimizer, backend, layout, c) {}

  std::optional<pl::reservation> promise() const {
    return one_.visit([](const auto& g) -> std::optional<pl::reservation> { return g.promise(); });
  }
  void begin_step(Backend& backend, stream& s) {
    one_.visit([&](auto& g) { g.begin_step(backend, s); });
  }
  void acquire_ends(stream& s) {
    one_.visit([&](auto& g) { g.acquire_ends(s); });
  }
  const layer_tensors<float>& acquire(stream& s, index_t l) {
    return one_.visit([&](auto& g) -> const layer_tensors<float>& { return g.acquire(s, l); });
  }
  void layer_is_final(stream& s, index_t l) {
    one_.visit([&](auto& g) { g.layer_is_final(s, l); });
  }
  void ends_are_final(stream& s) {
    one_.visit([&](auto& g) { g.ends_are_final(s); });
  }
  pl::tile<float> embedding() const {
    return one_.visit([](const auto& g) { return g.embedding(); });
  }
  pl::view<float> final_norm() const {
    return one_.visit([](const auto& g) { return g.final_norm(); });
  }
  pl::tile<float> head() const {
    return one_.visit([](const auto& g) { return g.head(); });
  }

  // For who knows which one it is: an optimizer of the same choice.
  plain_type& plain() { return one_.plain(); }
  const plain_type& plain() const { return one_.plain(); }
  flat_type& flat() { return one_.flat(); }
  // All of a group, or one tensor, where they stay on the device.
  pl::view<float> shared() const { return one_.plain().shared(); }
  pl::view<float> expert() const { return one_.plain().expert(); }
  pl::view<float> owned() const { return one_.plain().owned(); }
  pl::view<float> of(const parameter_group& group, const parameter& p) const {
    return one_.plain().of(group, p);
  }

 private:
  either<plain_type, flat_type> one_;
};

} // namespace moe
