// SPDX-License-Identifier: Apache-2.0
//
// The inputs of the layers, parked in host memory from forward to backward: the device holds two of them,
// whatever the depth, and those for which the host budget has no room. Where only every k-th is kept, those
// in between share k - 1 buffers, in forward and when backward computes them again.
#pragma once

#include "model_config.hpp"

#include <plateau/offload/offload_store.hpp>
#include <plateau/tag.hpp>
#include <plateau/view.hpp>
#include <plateau/working_set.hpp>
#include <plateau/workspace.hpp>

#include <algorithm>
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
    return held_by(c, b);
  }
  // What they hold all the time.
  static plateau::reservation held_by(const model_config& c, const batch_limits& b) {
    return plateau::reserve(set_of(c, b));
  }

  parked_boundaries(Backend& backend, const model_config& c, const batch_limits& b)
      : hidden_(c.hidden), layers_(c.layers), keep_every_(c.checkpoint.keep_every),
        elements_(b.tokens() * c.hidden), space_(backend, set_of(c, b), plateau::tag::checkpoint),
        store_(backend, space_, shape_of(c, b)), memory_(space_.open(inner_set(c, b))),
        inner_(memory_.template device<T>(inner_count(c) * elements_)),
        all_(static_cast<std::size_t>(c.layers + 1)) {}

  // As boundaries_on_device. A boundary that is written again was that of a pass that is over.
  plateau::tile<T> write(stream& s, index_t l, index_t rows) {
    if (!keeps(l)) return inner(l, rows);
    boundary& b = at(l);
    b.tensor = {};
    b.tensor = store_.template open<plateau::tile<T>>(tensor_of(l));
    b.writing.emplace(b.tensor.write(s, rows, hidden_));
    return b.writing->view();
  }
  void written(stream&, index_t l) {
    if (!keeps(l)) return;
    at(l).writing->close();
    at(l).writing.reset();
  }
  plateau::tile<T> read(stream& s, index_t l, index_t rows) {
    if (!keeps(l)) return inner(l, rows);
    boundary& b = at(l);
    b.reading.emplace(b.tensor.get(s));
    const auto v = b.reading->view();
    return {const_cast<T*>(v.p), v.rows, v.cols, v.ld}; // the type that the model reads all boundaries by
  }
  void done(stream&, index_t l) {
    if (!keeps(l)) return;
    at(l).reading->close();
    at(l).reading.reset();
  }
  index_t kept_before(index_t l) const { return keeps(l) ? l : l / keep_every_ * keep_every_; }
  // Scopes that an exception has left open end here, while their stream is there.
  void end_pass() {
    for (boundary& b : all_) {
      b.writing.reset();
      b.reading.reset();
    }
  }

 private:
  struct boundary {
    handle tensor;
    std::optional<typename handle::write_scope> writing;
    std::optional<typename handle::read_scope> reading;
  };
  // The output of the last layer is wanted as soon as it is there, and is always kept.
  static index_t kept_inputs(const model_config& c) {
    return (c.layers + c.checkpoint.keep_every - 1) / c.checkpoint.keep_every;
  }
  static plateau::offload_shape shape_of(const model_config& c, const batch_limits& b) {
    return plateau::offload_shape::of_layers(kept_inputs(c) + 1,
                                             b.tokens() * c.hidden * static_cast<index_t>(sizeof(T)),
                                             c.checkpoint.host_budget_bytes);
  }
  static index_t inner_count(const model_config& c) {
    return std::max<index_t>(std::min(c.checkpoint.keep_every, c.layers) - 1, 0);
  }
  static plateau::working_set inner_set(const model_config& c, const batch_limits& b) {
    return plateau::working_set(plateau::tag::checkpoint)
        .device<T>("inputs inside a segment", inner_count(c) * b.tokens() * c.hidden);
  }
  static plateau::working_set set_of(const model_config& c, const batch_limits& b) {
    plateau::working_set set = store_type::working_set_of(shape_of(c, b));
    return set.add(inner_set(c, b));
  }

  bool keeps(index_t l) const { return l % keep_every_ == 0 || l == layers_; }
  index_t tensor_of(index_t l) const { return (l + keep_every_ - 1) / keep_every_; }
  boundary& at(index_t l) { return all_[static_cast<std::size_t>(l)]; }
  plateau::tile<T> inner(index_t l, index_t rows) const {
    return plateau::as_matrix(inner_.sub((l % keep_every_ - 1) * elements_, elements_), rows, hidden_);
  }

  index_t hidden_, layers_, keep_every_, elements_;
  plateau::workspace<Backend> space_;
  store_type store_;
  typename plateau::workspace<Backend>::phase memory_;
  plateau::view<T> inner_;
  std::vector<boundary> all_; // goes before the store
};

} // namespace moe
