// SPDX-License-Identifier: Apache-2.0
//
// Weights and gradients of one rank: flat buffers of each, one for a group, cut into tensors by the layout.
// Weights are in the compute type T; gradients are fp32 and accumulate over micro-batches.
#pragma once

#include "model_config.hpp"
#include "parameter_layout.hpp"

#include <plateau/access.hpp>
#include <plateau/kernels.hpp>
#include <plateau/resource.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>
#include <plateau/working_set.hpp>

#include <optional>
#include <span>
#include <vector>

namespace moe {

namespace pl = plateau;

// The weights (T) or gradients (float) of one layer, as views.
template <class T> struct layer_tensors {
  pl::view<T> input_norm, post_norm; // (hidden)
  pl::tile<T> query, key, value;     // (heads * head_size, hidden), with the key-value heads for two of them
  pl::tile<T> output;                // (hidden, heads * head_size)
  pl::tile<T> router;                // (experts, hidden)
  std::vector<pl::tile<T>> gate, up; // per local expert (intermediate, hidden)
  std::vector<pl::tile<T>> down;     // per local expert (hidden, intermediate)
};

// One set of tensors, a flat buffer for each group.
template <class Backend, class T> class tensor_set {
 public:
  tensor_set(Backend& backend, const parameter_layout& layout, pl::tag t)
      : layout_(&layout), shared_(backend.device(), layout.shared.elements(), t),
        expert_(backend.device(), layout.expert.elements(), t),
        owned_(backend.device(), layout.owned.elements(), t) {
    for (const layer_parameters& p : layout.layers) {
      layer_tensors<T> l{vector(p.input_norm),
                         vector(p.post_norm),
                         shared(p.query),
                         shared(p.key),
                         shared(p.value),
                         shared(p.output),
                         shared(p.router),
                         {},
                         {},
                         {}};
      for (std::size_t e = 0; e < p.gate.size(); ++e) {
        l.gate.push_back(expert(p.gate[e]));
        l.up.push_back(expert(p.up[e]));
        l.down.push_back(expert(p.down[e]));
      }
      layers_.push_back(std::move(l));
    }
  }

  // What it allocates.
  static std::size_t bytes_of(const parameter_layout& layout) {
    std::size_t elements = 0;
    for (const parameter_group* group : layout.groups())
      elements += static_cast<std::size_t>(group->elements());
    return elements * sizeof(T);
  }

  pl::view<T> shared() const { return shared_.all(); }
  pl::view<T> expert() const { return expert_.all(); }
  pl::view<T> owned() const { return owned_.all(); }
  const layer_tensors<T>& layer(index_t l) const { return layers_[static_cast<std::size_t>(l)]; }
  pl::tile<T> embedding() const { return shared(layout_->embedding); }
  pl::view<T> final_norm() const { return vector(layout_->final_norm); }
  // The rows of the head that this rank multiplies with: all of them, or its part of the vocabulary.
  pl::tile<T> head() const {
    if (!layout_->owned.all().empty()) return matrix(owned_, layout_->owned[layout_->head]);
    return shared(layout_->head).row_block(layout_->head_first, layout_->head_rows);
  }
  pl::view<T> of(group_kind kind) const {
    return kind == group_kind::shared ? shared() : kind == group_kind::expert ? expert() : owned();
  }
  pl::view<T> of(const parameter_group& group, const parameter& p) const {
    return of(group.kind()).sub(p.offset, p.elements());
  }

 private:
  pl::tile<T> shared(int i) const { return matrix(shared_, layout_->shared[i]); }
  pl::tile<T> expert(int i) const { return matrix(expert_, layout_->expert[i]); }
  pl::view<T> vector(int i) const {
    const parameter& p = layout_->shared[i];
    return shared_.all().sub(p.offset, p.cols);
  }
  static pl::tile<T> matrix(const pl::device_buffer<T, Backend>& from, const parameter& p) {
    return pl::as_matrix(from.all().sub(p.offset, p.elements()), p.rows, p.cols);
  }

  const parameter_layout* layout_;
  pl::device_buffer<T, Backend> shared_, expert_, owned_;
  std::vector<layer_tensors<T>> layers_;
};

// Gradients that stay on the device for the whole step, as everyone has them: this is the baseline. The model
// says when it needs a layer's and when those are final for the micro-batch, so that a store that sends them
// away can take its place.
template <class Backend> class resident_gradients : public tensor_set<Backend, float> {
  using base = tensor_set<Backend, float>;

 public:
  // Nothing is promised: they grow with the parameters.
  static std::optional<pl::reservation> promise() { return std::nullopt; }
  // What they hold all the time.
  static pl::reservation held_by(const parameter_layout& layout, const model_config&) {
    return {base::bytes_of(layout), 0};
  }

  resident_gradients(Backend& backend, const parameter_layout& layout, const model_config&)
      : base(backend, layout, pl::tag::gradients) {}

  void begin_step(Backend& backend, typename Backend::stream& s) {
    for (const group_kind kind : all_group_kinds)
      backend.launch(s, pl::elements{base::of(kind).n}, pl::fill<float>{0}, pl::out(base::of(kind)));
  }
  // Before anything of a micro-batch adds to embedding, final norm or head.
  void acquire_ends(typename Backend::stream&) {}
  // Before a layer's backward; after it. Everything that adds to them lies between the two on the stream.
  const layer_tensors<float>& acquire(typename Backend::stream&, index_t l) const { return base::layer(l); }
  void layer_is_final(typename Backend::stream&, index_t) {}
  // After the micro-batch's backward: embedding, head and final norm.
  void ends_are_final(typename Backend::stream&) {}
};

} // namespace moe
