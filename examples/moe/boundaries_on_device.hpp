// SPDX-License-Identifier: Apache-2.0
//
// The inputs of the layers, kept from forward to backward, as everyone has them: all on the device, so that
// the peak grows with layers x tokens. This is the baseline. The model says when an input has been written,
// read and done with, so that a store that parks it elsewhere in between can take its place.
#pragma once

#include "model_config.hpp"

#include <plateau/resource.hpp>
#include <plateau/tag.hpp>
#include <plateau/view.hpp>
#include <plateau/working_set.hpp>

#include <cstddef>
#include <optional>

namespace moe {

template <class Backend, class T> class boundaries_on_device {
  using stream = typename Backend::stream;

 public:
  // Nothing is promised: it grows with the layers and the tokens.
  static std::optional<plateau::reservation> promised(const model_config&, const rank_grid&,
                                                      const batch_limits&) {
    return std::nullopt;
  }

  // What they hold all the time.
  static plateau::reservation held_by(const model_config& c, const batch_limits& b) {
    return {static_cast<std::size_t>((c.layers + 1) * b.tokens() * c.hidden) * sizeof(T), 0};
  }

  // Boundary l is the input of layer l; the last is the output of the last layer.
  boundaries_on_device(Backend& backend, const model_config& c, const batch_limits& b)
      : hidden_(c.hidden), elements_(b.tokens() * c.hidden),
        memory_(backend.device(), (c.layers + 1) * elements_, plateau::tag::checkpoint) {}

  // Where boundary l is to be written, (rows, hidden); after its last writer has been enqueued, `written`.
  plateau::tile<T> write(stream&, index_t l, index_t rows) { return at(l, rows); }
  void written(stream&, index_t) {}
  // Boundary l to be read, in forward or backward; after the pass's last reader has been enqueued, `done`.
  plateau::tile<T> read(stream&, index_t l, index_t rows) { return at(l, rows); }
  void done(stream&, index_t) {}
  // The last boundary at or before l that outlives forward.
  index_t kept_before(index_t l) const { return l; }
  // Behind the last use in a micro-batch, also where an exception has ended it.
  void end_pass() {}

 private:
  plateau::tile<T> at(index_t l, index_t rows) const {
    return plateau::as_matrix(memory_.all().sub(l * elements_, elements_), rows, hidden_);
  }

  index_t hidden_, elements_;
  plateau::device_buffer<T, Backend> memory_; // (layers + 1, tokens, hidden)
};

} // namespace moe
