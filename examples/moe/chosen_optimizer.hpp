// SPDX-License-Identifier: Apache-2.0
//
// The optimizer that the configuration asks for: its state on the device, or in host memory.
#pragma once

#include "chosen_gradients.hpp"
#include "either.hpp"
#include "flattened_optimizer.hpp"
#include "optimizer_on_device.hpp"

#include <cstdint>
#include <optional>

namespace moe {

template <class Backend, class Communicator, class T> class chosen_optimizer {
  using stream = typename Backend::stream;
  using plain_type = optimizer_on_device<Backend, Communicator, T>;
  using flat_type = flattened_optimizer<Backend, Communicator, T>;

 public:
  using weights_type = tensor_set<Backend, T>;
  using gradients_type = chosen_gradients<Backend>;

  static bool flattens(const model_config& c) { return c.flatten.optimizer; }
  static pl::reservation held_by(const parameter_layout& layout, const model_config& c, const rank_grid& g,
                                 int rank) {
    return c.flatten.optimizer ? flat_type::held_by(layout, c, g, rank)
                               : plain_type::held_by(layout, c, g, rank);
  }
  static pl::reservation reserve_for(const parameter_layout& layout, const model_config& c,
                                     const rank_grid& g) {
    return c.flatten.optimizer ? flat_type::reserve_for(layout, c, g) : plain_type::reserve_for(layout, c, g);
  }

  chosen_optimizer(Backend& backend, Communicator& world, Communicator& replicas, Communicator& alone,
                   pl::workspace<Backend>& space, const parameter_layout& layout, const weights_type& weights,
                   adamw_settings settings, const model_config& c)
      : one_(c.flatten.optimizer, backend, world, replicas, alone, space, layout, weights, settings, c) {}

  std::optional<pl::reservation> promise() const {
    return one_.visit([](const auto& o) -> std::optional<pl::reservation> { return o.promise(); });
  }
  void reset(stream& s) {
    one_.visit([&](auto& o) { o.reset(s); });
  }
  void had_rows(index_t layer, index_t expert) {
    one_.visit([&](auto& o) { o.had_rows(layer, expert); });
  }
  void update(stream& s, gradients_type& gradients, double learning_rate, std::int64_t step) {
    if (one_.is_flat())
      one_.flat().update(s, gradients.flat(), learning_rate, step);
    else
      one_.plain().update(s, gradients.plain(), learning_rate, step);
  }
  pl::view<float> gradient_norm() const {
    return one_.visit([](const auto& o) { return o.gradient_norm(); });
  }
  template <class F> void set_values(stream& s, const parameter_group& group, const parameter& p, F fill) {
    one_.visit([&](auto& o) { o.set_values(s, group, p, fill); });
  }
  void put(stream& s, const parameter_group& group, const parameter& p, int which, index_t first,
           pl::view<float, pl::host_space> from) {
    one_.visit([&](auto& o) { o.put(s, group, p, which, first, from); });
  }
  void get(stream& s, const parameter_group& group, const parameter& p, int which, index_t first,
           pl::view<float, pl::host_space> to) {
    one_.visit([&](auto& o) { o.get(s, group, p, which, first, to); });
  }
  bool copies_to_send() const { return one_.is_flat(); }
  pl::view<float> to_send(stream& s, const parameter_group& group, const parameter& p, int which,
                          index_t first, index_t n, pl::view<float, pl::host_space> host,
                          pl::view<float> device) {
    return one_.visit([&](auto& o) { return o.to_send(s, group, p, which, first, n, host, device); });
  }
  template <class F> void for_each_place(const parameter_group& group, index_t first, index_t n, F f) const {
    one_.visit([&](const auto& o) { o.for_each_place(group, first, n, f); });
  }

 private:
  either<plain_type, flat_type> one_;
};

} // namespace moe
