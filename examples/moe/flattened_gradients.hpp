// SPDX-License-Identifier: Apache-2.0
//
// Gradients that leave during backward: each layer's go to fp32 sums in pinned host memory as soon as they
// are final for a micro-batch, and come back for the next one of the step. The device holds those of two
// layers, of the embedding, the final norm and the head. Of --flatten optimizer.
#pragma once

#include "model_config.hpp"
#include "parameter_layout.hpp"
#include "parameters.hpp"

#include <plateau/resource.hpp>
#include <plateau/staging/gradient_accumulators.hpp>
#include <plateau/view.hpp>
#include <plateau/working_set.hpp>

#include <array>
#include <utility>
#include <vector>

namespace moe {

template <class Backend> class flattened_gradients {
  using stream = typename Backend::stream;
  using store_type = pl::gradient_accumulators<Backend>;
  using home_type = pl::pinned_buffer<float, Backend>;

 public:
  flattened_gradients(Backend& backend, const parameter_layout& layout, const model_config&)
      : layout_(&layout), homes_{home_type(backend.pinned(), layout.shared.elements(), pl::tag::gradients),
                                 home_type(backend.pinned(), layout.expert.elements(), pl::tag::gradients),
                                 home_type(backend.pinned(), layout.owned.elements(), pl::tag::gradients)},
        store_(backend, parts(layout, [&](group_kind kind, index_t from, index_t n) {
                 return home(kind).sub(from, n);
               })) {}

  // What they hold all the time, exactly.
  static pl::reservation held_by(const parameter_layout& layout, const model_config&) {
    const auto sizes = [](group_kind, index_t, index_t n) {
      return pl::view<float, pl::host_space>{nullptr, n};
    };
    std::size_t sums = 0;
    for (const parameter_group* group : layout.groups())
      sums += static_cast<std::size_t>(group->elements()) * sizeof(float);
    return {store_type::working_set_of(parts(layout, sizes)).device_bytes(), sums};
  }
  pl::reservation promise() const { return held_by(*layout_, {}); }

  void begin_step(Backend&, stream&) { store_.begin_step(); }
  // Before anything of a micro-batch adds to embedding, final norm or head.
  void acquire_ends(stream& s) { store_.acquire(s, ends()); }
  // Before a layer's backward; after it. The next one, which is the one below, comes in meanwhile.
  const layer_tensors<float>& acquire(stream& s, index_t l) {
    store_.acquire(s, static_cast<int>(l));
    if (l > 0) store_.prefetch(static_cast<int>(l) - 1);
    fill(l);
    return tensors_;
  }
  void layer_is_final(stream& s, index_t l) { store_.is_final(s, static_cast<int>(l)); }
  // After the micro-batch's backward: embedding, head and final norm.
  void ends_are_final(stream& s) { store_.is_final(s, ends()); }
  // What comes next on the stream finds all sums of the step in host memory.
  void finish(stream& s) { store_.finish(s); }

  pl::tile<float> embedding() const {
    const parameter& p = layout_->shared[layout_->embedding];
    return pl::as_matrix(store_.piece(ends(), 0), p.rows, p.cols);
  }
  pl::view<float> final_norm() const {
    const parameter& p = layout_->shared[layout_->final_norm];
    return store_.piece(ends(), 1).sub(0, p.elements());
  }
  // The rows of the head that this rank multiplies with: all of them, or its part of the vocabulary.
  pl::tile<float> head() const {
    if (!layout_->owned.all().empty()) {
      const parameter& p = layout_->owned[layout_->head];
      return pl::as_matrix(store_.piece(ends(), 2), p.rows, p.cols);
    }
    if (layout_->head == layout_->embedding)
      return embedding().row_block(layout_->head_first, layout_->head_rows);
    const parameter& norm = layout_->shared[layout_->final_norm];
    const parameter& p = layout_->shared[layout_->head];
    return pl::as_matrix(store_.piece(ends(), 1).sub(p.offset - norm.offset, p.elements()), p.rows, p.cols)
        .row_block(layout_->head_first, layout_->head_rows);
  }
  // The sums of a group, in host memory.
  pl::view<float, pl::host_space> home(group_kind kind) const {
    return homes_[static_cast<std::size_t>(kind)].all();
  }

 private:
  int ends() const { return static_cast<int>(layout_->layers.size()); }
  // cut(kind, from, n): elements of a group's sums.
  template <class Cut> static std::vector<pl::gradient_part> parts(const parameter_layout& layout, Cut cut) {
    // From the beginning of one tensor to the end of another.
    const auto range = [&](const parameter_group& group, int first, int last) {
      const index_t from = group[first].offset;
      return cut(group.kind(), from, group[last].offset + group[last].elements() - from);
    };
    std::vector<pl::gradient_part> all;
    for (const layer_parameters& p : layout.layers)
      all.push_back({{range(layout.shared, p.input_norm, p.router),
                      range(layout.expert, p.gate.front(), p.up.back())}});
    const int last = static_cast<int>(layout.shared.all().size()) - 1;
    all.push_back(
        {{range(layout.shared, layout.embedding, layout.embedding),
          range(layout.shared, layout.final_norm, last), cut(group_kind::owned, 0, layout.owned.elements())},
         true});
    return all;
  }
  // The views of a layer that is on the device.
  void fill(index_t l) {
    const layer_parameters& p = layout_->layers[static_cast<std::size_t>(l)];
    const auto part = static_cast<int>(l);
    const auto of = [&](const parameter_group& group, std::size_t piece, int first, int i) {
      return store_.piece(part, piece).sub(group[i].offset - group[first].offset, group[i].elements());
    };
    const auto shared = [&](int i) { return of(layout_->shared, 0, p.input_norm, i); };
    const auto matrix = [&](int i) {
      return pl::as_matrix(shared(i), layout_->shared[i].rows, layout_->shared[i].cols);
    };
    const auto expert = [&](int i) {
      return pl::as_matrix(of(layout_->expert, 1, p.gate.front(), i), layout_->expert[i].rows,
                           layout_->expert[i].cols);
    };
    tensors_.input_norm = shared(p.input_norm);
    tensors_.post_norm = shared(p.post_norm);
    tensors_.query = matrix(p.query);
    tensors_.key = matrix(p.key);
    tensors_.value = matrix(p.value);
    tensors_.output = matrix(p.output);
    tensors_.router = matrix(p.router);
    for (auto* each : {&tensors_.gate, &tensors_.up, &tensors_.down}) each->clear();
    for (std::size_t e = 0; e < p.gate.size(); ++e) {
      tensors_.gate.push_back(expert(p.gate[e]));
      tensors_.up.push_back(expert(p.up[e]));
      tensors_.down.push_back(expert(p.down[e]));
    }
  }

  const parameter_layout* layout_;
  std::array<home_type, 3> homes_; // by group_kind
  layer_tensors<float> tensors_;   // of the layer that was acquired last
  store_type store_;               // goes before the homes that it writes to
};

} // namespace moe
