// SPDX-License-Identifier: Apache-2.0
//
// A sequence of layers of which only inputs outlive forward, and these parked: the device holds two of them,
// however many layers there are. Backward gets one ahead, computes again what a layer's backward needs, and
// goes back through it. keep_every = k keeps the input of every k-th layer only: k - 1 more inputs are on the
// device while such a segment is gone through, and its forward runs once more.
//
//   checkpointed<Backend, bfloat16, std::vector<block>> net(backend, space, shape, blocks);
//   auto pass = net.forward(stream, x, y);           // keeps what backward needs, until it goes
//   net.backward(stream, pass, dy, dx);              // any number of times; passes in any order
//
// One host thread. Calls only enqueue; passes may be on streams of their own, and take turns with the inputs
// and gradients inside a segment. See offload_store for what must outlive what; layers, and the order of what
// they write, are the caller's.
#pragma once

#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/offload/checkpoint_layer.hpp>
#include <plateau/offload/offload_shape.hpp>
#include <plateau/offload/offload_store.hpp>
#include <plateau/view.hpp>
#include <plateau/working_set.hpp>
#include <plateau/workspace.hpp>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace plateau::inline v0 {

struct checkpointed_shape {
  index_t rows = 0;   // of an input, at most
  int keep_every = 1; // layers
  index_t host_budget_bytes = offload_shape::no_limit;
  int restored_at_once = 2; // 2 or more: a layer's input and its output
  int in_flight = 1;        // passes whose backward has not ended
  offload_costs costs{};
  bool measure_stalls = false;
};

// Each Layer is one as checkpoint_layer.hpp says, or a list of such: something with size() and operator[].
template <class Backend, class T, class... Layer> class checkpointed {
  using stream_type = typename Backend::stream;
  static_assert(sizeof...(Layer) > 0, "plateau: checkpointed needs a layer");
  static_assert((check_layer<typename detail::offload::layer_of<Layer>::type, stream_type, T>() && ...));
  template <class L>
  static constexpr bool forward_once_more =
      !detail::offload::recomputes<L, stream_type, T> && !backward_recomputes_of<L>();

 public:
  using stream = stream_type;
  using shape = checkpointed_shape;

  // Keeps what the backward of one forward needs. Move-only; what it keeps is dropped with it, also while
  // copies are in flight. The sequence must outlive it.
  class pass {
   public:
    pass(pass&& other) noexcept : of_(std::exchange(other.of_, nullptr)), lane_(other.lane_) {}
    pass& operator=(pass&& other) noexcept {
      if (this == &other) return *this;
      drop();
      of_ = std::exchange(other.of_, nullptr);
      lane_ = other.lane_;
      return *this;
    }
    ~pass() { drop(); }

   private:
    friend class checkpointed;
    pass(checkpointed& of, std::size_t lane) : of_(&of), lane_(lane) {}
    void drop() noexcept {
      if (of_ != nullptr) std::exchange(of_, nullptr)->lanes_[lane_].clear();
    }
    checkpointed* of_;
    std::size_t lane_;
  };

  // All that it takes beside its layers, exactly. Throws config_error for a shape that cannot be.
  static working_set working_set_of(const shape& limits, const Layer&... layers) {
    const layout at(limits, layers...);
    working_set set = offload_store<Backend>::working_set_of(at.parking);
    return set.add(own_set(at));
  }
  // What is parked, for plan_offload and break_even_of.
  static offload_shape parking_of(const shape& limits, const Layer&... layers) {
    return layout(limits, layers...).parking;
  }

  // Takes its part of the workspace at once and has it until it goes. Throws config_error for what cannot be.
  checkpointed(Backend& backend, workspace<Backend>& space, const shape& limits, Layer&... layers)
      : backend_(&backend), limits_(limits), at_(limits, layers...), layers_(&layers...),
        store_(backend, space, at_.parking), memory_(space.open(own_set(at_))),
        lanes_(static_cast<std::size_t>(limits.in_flight)) {
    const index_t n = at_.most_elements;
    for (int i = 1; i < at_.longest; ++i) inner_.push_back(memory_.template device<T>(n));
    for (int i = 0; i < at_.gradient_buffers(); ++i) gradient_.push_back(memory_.template device<T>(n));
    if (at_.forward_once_more) unread_ = memory_.template device<T>(n);
    for (lane& l : lanes_) {
      l.inputs.resize(static_cast<std::size_t>(at_.layers()));
      l.kept.resize(static_cast<std::size_t>(at_.parking.count()));
    }
  }
  checkpointed(const checkpointed&) = delete;
  checkpointed& operator=(const checkpointed&) = delete;

  index_t layers() const { return at_.layers(); }
  const offload_store<Backend>& store() const { return store_; }

  // x (rows, input columns of the first layer) to y (rows, output columns of the last). Rows of both may be
  // apart. x is the caller's again behind this on the stream. Throws config_error when as many passes as may
  // be in flight live.
  [[nodiscard]] pass forward(stream& s, tile<const T> x, tile<T> y) {
    check("x", x.rows, x.cols, x.rows, at_.columns.front());
    check("y", y.rows, y.cols, x.rows, at_.columns.back());
    const auto free_lane = std::find_if(lanes_.begin(), lanes_.end(), [](const lane& l) { return !l.taken; });
    if (free_lane == lanes_.end())
      refuse("one forward too many: " + std::to_string(limits_.in_flight) +
             " passes live; let one go, or make the shape with a larger in_flight");
    lane& l = *free_lane;
    turn mine(*this, s, at_.longest > 1);
    l.taken = true;
    l.rows = x.rows;
    pass result(*this, static_cast<std::size_t>(free_lane - lanes_.begin()));
    l.inputs.front() = store_.hold(s, at_.input_tensor.front(), x);
    for (index_t i = 0; i < layers(); ++i) forward_layer(s, l, i, y);
    mine.end();
    return result;
  }

  // From dy, the gradient of y, to dx, that of x; both contiguous or not, and not the same memory.
  void backward(stream& s, const pass& p, tile<const T> dy, tile<T> dx) {
    if (p.of_ != this) refuse("a pass that was moved from, or of another sequence");
    lane& l = lanes_[p.lane_];
    check("dy", dy.rows, dy.cols, l.rows, at_.columns.back());
    check("dx", dx.rows, dx.cols, l.rows, at_.columns.front());
    turn mine(*this, s, true);
    for (index_t first = (layers() - 1) / limits_.keep_every * limits_.keep_every; first >= 0;
         first -= limits_.keep_every) {
      const index_t last = std::min<index_t>(first + limits_.keep_every, layers()) - 1;
      auto input = l.inputs[static_cast<std::size_t>(first)].get(s);
      const auto input_of = [&](index_t i) -> tile<const T> {
        if (i == first) return input.view();
        return inner(i, l.rows);
      };
      for (index_t i = first; i < last; ++i)
        visit(i, [&](auto& layer) {
          using layer_type = std::remove_reference_t<decltype(layer)>;
          kept_scopes<layer_type> kept(*this, s, l, i);
          detail::offload::call_forward_again<layer_type, stream, T>(layer, s, input_of(i),
                                                                     inner(i + 1, l.rows), kept.views);
        });
      for (index_t i = last; i >= first; --i) {
        const tile<const T> from = i == layers() - 1 ? dy : gradient(i + 1, l.rows);
        const tile<T> to = i == 0 ? dx : gradient(i, l.rows);
        visit(i, [&](auto& layer) { backward_layer(s, l, i, layer, input_of(i), from, to); });
      }
      input.close();
    }
    mine.end();
    store_.raise_failure(); // of scopes that have closed by themselves
  }

 private:
  struct lane {
    bool taken = false;
    index_t rows = 0;
    std::vector<offload_handle<tile<T>, Backend>> inputs;           // by layer; of those that are kept
    std::vector<offload_handle<view<unsigned char>, Backend>> kept; // by tensor; of what layers keep
    void clear() noexcept {
      for (auto& h : inputs) h = {};
      for (auto& h : kept) h = {};
      taken = false;
    }
  };
  // Which tensor is what, from limits and layers alone.
  struct layout {
    layout(const shape& limits, const Layer&... layers) {
      if (limits.rows < 0) refuse("rows is " + std::to_string(limits.rows) + ": 0 or more are needed");
      if (limits.keep_every < 1)
        refuse("keep_every is " + std::to_string(limits.keep_every) + ": 1 or more is needed");
      (add_all(limits, layers), ...);
      if (input_tensor.empty()) refuse("there is no layer");
      longest = static_cast<int>(std::min<index_t>(limits.keep_every, this->layers()));
      if (limits.restored_at_once < 2 && this->layers() > 1)
        refuse("restored_at_once is " + std::to_string(limits.restored_at_once) +
               ": 2 or more are needed, for a layer's input and its output");
      parking.host_budget_bytes = limits.host_budget_bytes;
      parking.restored_at_once = limits.restored_at_once;
      parking.in_flight = limits.in_flight;
      parking.costs = limits.costs;
      parking.measure_stalls = limits.measure_stalls;
      parking.check();
    }
    index_t layers() const { return static_cast<index_t>(input_tensor.size()); }
    int gradient_buffers() const { return static_cast<int>(std::min<index_t>(2, layers() - 1)); }

    offload_shape parking;
    std::vector<index_t> columns;                   // of the input of each layer, and of the last output
    std::vector<index_t> input_tensor, kept_tensor; // by layer: its input (or -1), the first that it keeps
    index_t most_elements = 0;                      // of an input or output
    int longest = 1;                                // layers of a segment
    bool forward_once_more = false;

   private:
    template <class L> void add_all(const shape& limits, const L& one) {
      if constexpr (detail::offload::layer_list<const L>)
        for (std::size_t i = 0; i < one.size(); ++i) add(limits, one[i]);
      else
        add(limits, one);
    }
    template <class L> void add(const shape& limits, const L& one) {
      const index_t from = one.input_columns(), to = one.output_columns(), l = layers();
      if (!columns.empty() && from != columns.back())
        refuse("layer " + std::to_string(l) + " takes " + std::to_string(from) +
               " columns, but the one before it gives " + std::to_string(columns.back()));
      for (const index_t c : {from, to})
        if (c < 0 || (c > 0 && limits.rows > offload_shape::no_limit / 16 / c))
          refuse("layer " + std::to_string(l) + " has " + std::to_string(c) + " columns");
      if (columns.empty()) columns.push_back(from);
      columns.push_back(to);
      most_elements = std::max({most_elements, limits.rows * from, limits.rows * to});
      const bool kept = l % limits.keep_every == 0;
      input_tensor.push_back(kept ? parking.count() : -1);
      if (kept) parking.tensors.push_back({limits.rows * from * static_cast<index_t>(sizeof(T))});
      kept_tensor.push_back(parking.count());
      if constexpr (kept_tensors_of<L>() > 0) {
        if constexpr (!detail::offload::goes_forward_again<L, stream, T>)
          if (limits.keep_every > 1)
            refuse("layer " + std::to_string(l) +
                   " keeps tensors and has no forward_again: keep every input");
        for (int i = 0; i < kept_tensors_of<L>(); ++i)
          parking.tensors.push_back({one.kept_bytes(i, limits.rows), 1 + i});
      }
      forward_once_more = forward_once_more || checkpointed::forward_once_more<L>;
    }
  };

  [[noreturn]] static void refuse(const std::string& what) {
    throw config_error("plateau: checkpointed: " + what);
  }
  static working_set own_set(const layout& at) {
    working_set set(tag::checkpoint);
    const auto add = [&](const char* what, index_t parts) {
      const index_t bytes = offload_shape::slot_bytes(at.most_elements * static_cast<index_t>(sizeof(T)));
      if (bytes > 0 && parts > offload_shape::no_limit / bytes)
        refuse(std::to_string(parts) + " inputs of " + std::to_string(bytes) +
               " bytes inside a segment overflow");
      set.add(what, memory_kind::device, static_cast<std::size_t>(parts * bytes));
    };
    add("inputs inside a segment", at.longest - 1);
    add("gradients between layers", at.gradient_buffers());
    add("output that nobody reads", at.forward_once_more ? 1 : 0);
    return set;
  }
  void check(const char* what, index_t rows, index_t cols, index_t want_rows, index_t want_cols) const {
    if (rows != want_rows || cols != want_cols || rows > limits_.rows)
      refuse(std::string(what) + " is " + std::to_string(rows) + " x " + std::to_string(cols) + ", but " +
             std::to_string(want_rows) + " x " + std::to_string(want_cols) + " is needed, of at most " +
             std::to_string(limits_.rows) + " rows");
  }

  // Calls f(layer i).
  template <class F> void visit(index_t i, F f) {
    const auto try_one = [&](auto& one) {
      if constexpr (detail::offload::layer_list<std::remove_reference_t<decltype(one)>>) {
        const auto n = static_cast<index_t>(one.size());
        if (i >= 0 && i < n) f(one[static_cast<std::size_t>(i)]);
        i -= n;
      } else if (i-- == 0) {
        f(one);
      }
    };
    std::apply([&](auto*... one) { (try_one(*one), ...); }, layers_);
  }
  bool keeps_input(index_t i) const { return i % limits_.keep_every == 0; }
  index_t columns(index_t i) const { return at_.columns[static_cast<std::size_t>(i)]; }
  tile<T> inner(index_t i, index_t rows) const {
    return as_matrix(inner_[static_cast<std::size_t>(i % limits_.keep_every - 1)], rows, columns(i));
  }
  tile<T> gradient(index_t i, index_t rows) const {
    const std::size_t n = gradient_.size();
    return as_matrix(gradient_[static_cast<std::size_t>(i) % n], rows, columns(i));
  }

  // Memory that is not a pass's own is used by one call after the other, whatever their streams.
  struct turn {
    turn(checkpointed& c, stream& of_call, bool uses_it) : of(c), s(of_call), ended(!uses_it) {
      if (uses_it) of.backend_->wait(s, of.turn_ended_);
    }
    turn(const turn&) = delete;
    turn& operator=(const turn&) = delete;
    ~turn() { // after an exception, which goes on
      try {
        end();
      } catch (...) {
      }
    }
    void end() {
      if (!std::exchange(ended, true)) of.turn_ended_ = of.backend_->record(s);
    }

    checkpointed& of;
    stream& s;
    bool ended;
  };

  // Scopes of what layer i keeps, for as long as it computes.
  template <class L> struct kept_scopes {
    static constexpr std::size_t n = static_cast<std::size_t>(kept_tensors_of<L>());

    kept_scopes(checkpointed& of, stream& s, lane& l, index_t i) {
      for (std::size_t k = 0; k < n; ++k) {
        const index_t t = of.at_.kept_tensor[static_cast<std::size_t>(i)] + static_cast<index_t>(k);
        scopes[k].emplace(l.kept[static_cast<std::size_t>(t)].get(s));
        views[k] = scopes[k]->view();
      }
    }
    kept_in<L> views;
    std::array<std::optional<offload_scope<view<const unsigned char>, Backend>>, n> scopes;
  };

  void forward_layer(stream& s, lane& l, index_t i, tile<T> y) {
    visit(i, [&](auto& layer) {
      using layer_type = std::remove_reference_t<decltype(layer)>;
      constexpr auto n = static_cast<std::size_t>(kept_tensors_of<layer_type>());
      std::optional<offload_scope<tile<const T>, Backend>> from;
      std::optional<offload_scope<tile<T>, Backend>> to;
      std::array<std::optional<offload_scope<view<unsigned char>, Backend>>, n> scopes;
      kept_out<layer_type> kept;
      if (keeps_input(i)) from.emplace(l.inputs[static_cast<std::size_t>(i)].get(s));
      const tile<const T> input = from ? tile<const T>(from->view()) : tile<const T>(inner(i, l.rows));
      tile<T> output = y;
      if (i + 1 < layers()) {
        if (keeps_input(i + 1)) {
          auto& h = l.inputs[static_cast<std::size_t>(i + 1)];
          h = store_.template open<tile<T>>(at_.input_tensor[static_cast<std::size_t>(i + 1)]);
          to.emplace(h.write(s, l.rows, columns(i + 1)));
          output = to->view();
        } else {
          output = inner(i + 1, l.rows);
        }
      }
      for (std::size_t k = 0; k < n; ++k) {
        const index_t t = at_.kept_tensor[static_cast<std::size_t>(i)] + static_cast<index_t>(k);
        auto& h = l.kept[static_cast<std::size_t>(t)];
        h = store_.template open<view<unsigned char>>(t);
        scopes[k].emplace(h.write(s, kept_bytes(layer, static_cast<int>(k), l.rows)));
        kept[k] = scopes[k]->view();
      }
      detail::offload::call_forward<layer_type, stream, T>(layer, s, input, output, kept);
      if (to) to->close(); // here an error is thrown
      for (auto& scope : scopes) scope->close();
      if (from) from->close();
    });
  }
  template <class L> static index_t kept_bytes(const L& layer, int k, index_t rows) {
    if constexpr (kept_tensors_of<L>() > 0)
      return layer.kept_bytes(k, rows);
    else
      return 0;
  }
  template <class L>
  void backward_layer(stream& s, lane& l, index_t i, L& layer, tile<const T> x, tile<const T> dy,
                      tile<T> dx) {
    kept_scopes<L> kept(*this, s, l, i);
    if constexpr (detail::offload::recomputes<L, stream, T>)
      detail::offload::call_recompute<L, stream, T>(layer, s, x, kept.views);
    else if constexpr (forward_once_more<L>)
      layer.forward(s, x, as_matrix(unread_, l.rows, columns(i + 1)));
    detail::offload::call_backward<L, stream, T>(layer, s, x, dy, dx, kept.views);
  }

  Backend* backend_;
  shape limits_;
  layout at_;
  std::tuple<Layer*...> layers_;
  offload_store<Backend> store_;
  typename workspace<Backend>::phase memory_;
  std::vector<lane> lanes_;
  std::vector<view<T>> inner_, gradient_;
  view<T> unread_;
  typename Backend::event turn_ended_;
};

} // namespace plateau::inline v0
