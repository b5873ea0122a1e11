// SPDX-License-Identifier: Apache-2.0
//
// The boundaries that the configuration asks for: all on the device, or parked.
#pragma once

#include "boundaries_on_device.hpp"
#include "either.hpp"
#include "parked_boundaries.hpp"

#include <optional>

namespace moe {

template <class Backend, class T> class chosen_boundaries {
  using plain_type = boundaries_on_device<Backend, T>;
  using flat_type = parked_boundaries<Backend, T>;
  using stream = typename Backend::stream;

 public:
  static std::optional<plateau::reservation> promised(const model_config& c, const rank_grid& g,
                                                      const batch_limits& b) {
    return c.flatten.checkpoint ? flat_type::promised(c, g, b) : plain_type::promised(c, g, b);
  }

  static plateau::reservation held_by(const model_config& c, const batch_limits& b) {
    return c.flatten.checkpoint ? flat_type::held_by(c, b) : plain_type::held_by(c, b);
  }

  chosen_boundaries(Backend& backend, const model_config& c, const batch_limits& b)
      : one_(c.flatten.checkpoint, backend, c, b) {}

  // As those of the one that was chosen.
  plateau::tile<T> write(stream& s, index_t l, index_t rows) {
    return one_.visit([&](auto& x) { return x.write(s, l, rows); });
  }
  void written(stream& s, index_t l) {
    one_.visit([&](auto& x) { x.written(s, l); });
  }
  plateau::tile<T> read(stream& s, index_t l, index_t rows) {
    return one_.visit([&](auto& x) { return x.read(s, l, rows); });
  }
  void done(stream& s, index_t l) {
    one_.visit([&](auto& x) { x.done(s, l); });
  }
  index_t kept_before(index_t l) const {
    return one_.visit([&](const auto& x) { return x.kept_before(l); });
  }
  void end_pass() {
    one_.visit([](auto& x) { x.end_pass(); });
  }

 private:
  either<plain_type, flat_type> one_;
};

} // namespace moe
