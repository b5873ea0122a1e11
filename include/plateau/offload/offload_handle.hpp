// SPDX-License-Identifier: Apache-2.0
//
// A handle owns a tensor that a store keeps; a scope is the time during which its bytes may be touched. Both
// are move-only. A view lives as long as its scope: when a writing scope ends the tensor is parked, when a
// reading one ends its slot may turn over, in the order of the stream that the scope was opened for.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/view.hpp>

#include <exception>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

namespace plateau::inline v0 {

template <class Backend> class offload_store;

// Where a tensor is, by what has been enqueued: nothing is polled.
enum class offload_state : unsigned char {
  empty,    // not written yet
  resident, // on the device: being written, not to be parked, or back and read
  parking,  // on its way to the host, still in the slot where it was written
  parked,   // on the host only
  restoring // on its way back, not read yet
};

// View is what may be touched: view<T>, tile<T>, of const for reading.
template <class View, class Backend> class offload_scope {
  static constexpr bool writes = !std::is_const_v<typename View::element_type>;

 public:
  using stream = typename Backend::stream;

  offload_scope(offload_scope&& other) noexcept
      : store_(std::exchange(other.store_, nullptr)), stream_(other.stream_), item_(other.item_),
        view_(other.view_), exceptions_(other.exceptions_) {}
  offload_scope& operator=(offload_scope&&) = delete;
  // Throws nothing: what fails here is thrown by the store's next call. Contents that an exception has kept
  // from being written are not parked; the handle can be written again.
  ~offload_scope() {
    try {
      end(std::uncaught_exceptions() == exceptions_);
    } catch (...) {
    }
  }

  View view() const& { return view_; }
  View view() && = delete; // the scope would be over
  // Ends the scope now; the work that the stream was given until here may touch the view.
  void close() { end(true); }

 private:
  template <class, class> friend class offload_handle;

  offload_scope(offload_store<Backend>& store, stream& s, index_t item, View v)
      : store_(&store), stream_(&s), item_(item), view_(v), exceptions_(std::uncaught_exceptions()) {}
  void end(bool complete) {
    offload_store<Backend>* store = std::exchange(store_, nullptr);
    if (store == nullptr) return;
    view_ = {};
    if constexpr (writes)
      store->end_write(*stream_, item_, complete);
    else
      store->end_read(*stream_, item_);
  }

  offload_store<Backend>* store_;
  stream* stream_;
  index_t item_;
  View view_;
  int exceptions_;
};

// Tensor is view<T> or tile<T>, in device memory, of elements that are copied byte by byte. Its destructor
// waits for nothing and is safe while copies are in flight or a scope is open: the memory is the store's.
template <class Tensor, class Backend> class offload_handle {
  using element = typename Tensor::element_type;
  static constexpr bool matrix = std::is_same_v<Tensor, tile<element>>;
  static_assert(matrix || std::is_same_v<Tensor, plateau::view<element>>,
                "plateau: an offload_handle is of view<T> or tile<T> in device memory");
  static_assert(!std::is_const_v<element> && std::is_trivially_copyable_v<element>,
                "plateau: an offload_handle is of elements that can be written and copied byte by byte");

 public:
  using stream = typename Backend::stream;
  using constant = typename constant_view<Tensor>::type;
  using write_scope = offload_scope<Tensor, Backend>;
  using read_scope = offload_scope<constant, Backend>;

  // Owns nothing, as one that was moved from: it can be assigned to and asked for nothing else.
  offload_handle() = default;
  offload_handle(offload_handle&& other) noexcept
      : store_(std::exchange(other.store_, nullptr)), item_(other.item_), rows_(other.rows_),
        cols_(other.cols_) {}
  offload_handle& operator=(offload_handle&& other) noexcept {
    if (this == &other) return *this;
    drop();
    store_ = std::exchange(other.store_, nullptr);
    item_ = other.item_, rows_ = other.rows_, cols_ = other.cols_;
    return *this;
  }
  ~offload_handle() { drop(); }

  // Where the tensor is to be written on the stream, once; contiguous, contents undefined. Throws
  // config_error when it has been written, when it has more bytes than the shape says, or when scopes of all
  // slots are open.
  write_scope write(stream& s, index_t rows, index_t cols) requires matrix {
    owner().begin_write(s, item_, bytes_of(rows, cols));
    rows_ = rows, cols_ = cols;
    return write_scope(*store_, s, item_, {pointer(), rows, cols, cols});
  }
  write_scope write(stream& s, index_t n) requires(!matrix) {
    owner().begin_write(s, item_, bytes_of(1, n));
    rows_ = 1, cols_ = n;
    return write_scope(*store_, s, item_, {pointer(), n});
  }
  // The tensor, for the stream to read. Throws config_error when it has not been written, when a scope of it
  // is open, or when scopes of all slots are.
  read_scope get(stream& s) {
    owner().begin_read(s, item_);
    if constexpr (matrix)
      return read_scope(*store_, s, item_, {pointer(), rows_, cols_, cols_});
    else
      return read_scope(*store_, s, item_, {pointer(), cols_});
  }
  // Begins to bring it back, unless scopes of all slots are open: for a backward in another order than the
  // last first, which get() foresees by itself unless shape.restore_ahead is off.
  void prefetch() { owner().prefetch(item_); }

  // Throws config_error when it was moved from.
  offload_state state() const { return owner().state_of(item_); }
  index_t tensor() const { return owner().table_.tensor_of(item_); }
  explicit operator bool() const { return store_ != nullptr; }

 private:
  template <class> friend class offload_store;

  offload_handle(offload_store<Backend>& store, index_t item) : store_(&store), item_(item) {}
  void drop() noexcept {
    if (store_ != nullptr) std::exchange(store_, nullptr)->drop(item_);
  }
  offload_store<Backend>& owner() const {
    if (store_ == nullptr)
      throw config_error(
          "plateau: offload_handle: it owns no tensor: it was moved from, or never opened by a store");
    return *store_;
  }
  element* pointer() const { return reinterpret_cast<element*>(store_->device_part(item_).p); }
  static index_t bytes_of(index_t rows, index_t cols) {
    constexpr index_t most = std::numeric_limits<index_t>::max() / static_cast<index_t>(sizeof(element));
    if (rows < 0 || cols < 0 || (cols > 0 && rows > most / cols))
      throw config_error("plateau: offload_handle: a tensor of " + std::to_string(rows) + " x " +
                         std::to_string(cols) + " elements cannot be");
    return rows * cols * static_cast<index_t>(sizeof(element));
  }

  offload_store<Backend>* store_ = nullptr;
  index_t item_ = 0, rows_ = 0, cols_ = 0;
};

} // namespace plateau::inline v0
