// SPDX-License-Identifier: Apache-2.0
//
// The inputs of the layers, parked in host memory from forward to backward: the device holds two of them,
// whatever the depth, and those for which the host budget has no room.
#pragma once

#include "model_config.hpp"

#include <plateau/offload/offload_store.hpp>
#include <plateau/view.hpp>
#include <plateau/working_set.hpp>
#include <plateau/workspace.hpp>

#include <optional>
#include <vector>

namespace moe {

template <class Backend, class T> class parked_boundaries {
  using stream = typename Backend::stream;
  using store_type = plateau::offload_store<Backend>;
  using handle = plateau::offload_handle<plateau::tile<T>, Backend>;

 public:
  static std::optional<plateau::reservation> promised(const model_config& c, const rank_grid&,
                                                      const batch_limits& b) {
    return plateau::reserve(store_type::working_set_of(shape_of(c, b)));
  }

  parked_boundaries(Backend& backend, const model_config& c, const batch_limits& b)
      : hidden_(c.hidden), space_(backend, store_type::working_set_of(shape_of(c, b))),
        store_(backend, space_, shape_of(c, b)), all_(static_cast<std::size_t>(c.layers + 1)) {}

  // As boundaries_on_device. A boundary that is written again was that of a pass that is over.
  plateau::tile<T> write(stream& s, index_t l, index_t rows) {
    boundary& b = at(l);
    b.tensor = {};
    b.tensor = store_.template open<plateau::tile<T>>(l);
    b.writing.emplace(b.tensor.write(s, rows, hidden_));
    return b.writing->view();
  }
  void written(stream&, index_t l) {
    at(l).writing->close();
    at(l).writing.reset();
  }
  plateau::tile<T> read(stream& s, index_t l, index_t) {
    boundary& b = at(l);
    b.reading.emplace(b.tensor.get(s));
    const auto v = b.reading->view();
    return {const_cast<T*>(v.p), v.rows, v.cols, v.ld}; // the type that the model reads all boundaries by
  }
  void done(stream&, index_t l) {
    at(l).reading->close();
    at(l).reading.reset();
  }

 private:
  struct boundary {
    handle tensor;
    std::optional<typename handle::write_scope> writing;
    std::optional<typename handle::read_scope> reading;
  };
  static plateau::offload_shape shape_of(const model_config& c, const batch_limits& b) {
    return plateau::offload_shape::of_layers(c.layers + 1,
                                             b.tokens() * c.hidden * static_cast<index_t>(sizeof(T)),
                                             c.checkpoint.host_budget_bytes);
  }
  boundary& at(index_t l) { return all_[static_cast<std::size_t>(l)]; }

  index_t hidden_;
  plateau::workspace<Backend> space_;
  store_type store_;
  std::vector<boundary> all_; // goes before the store
};

} // namespace moe
