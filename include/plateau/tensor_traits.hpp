// SPDX-License-Identifier: Apache-2.0
//
// How the library reads a tensor type that it does not know: pointer, extents, strides in elements, element
// type, memory space. std::span, std::vector and anything shaped like std::mdspan work as they are, on the
// host; views and buffers of this library everywhere. For your own type specialise `tensor_traits` with the
// members below.
#pragma once

#include <plateau/config.hpp>
#include <plateau/view.hpp>

#include <concepts>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace plateau::inline v0 {

// Specialise for a tensor type of your own:
//   using element_type = float;  using space = device_space;  static constexpr int rank = 2;
//   static element_type* data(const Tensor&);                 // may be null when empty
//   static index_t extent(const Tensor&, int dimension);      // elements
//   static index_t stride(const Tensor&, int dimension);      // elements from one neighbour to the next
template <class Tensor> struct tensor_traits {};

template <class T, std::size_t N> struct tensor_traits<std::span<T, N>> {
  using element_type = T;
  using space = host_space;
  static constexpr int rank = 1;
  static T* data(std::span<T, N> t) { return t.data(); }
  static index_t extent(std::span<T, N> t, int) { return static_cast<index_t>(t.size()); }
  static index_t stride(std::span<T, N>, int) { return 1; }
};

template <class T, class A> struct tensor_traits<std::vector<T, A>> {
  static_assert(!std::is_same_v<T, bool>, "plateau: std::vector<bool> has no elements to point at");
  using element_type = T;
  using space = host_space;
  static constexpr int rank = 1;
  static T* data(const std::vector<T, A>& t) { return const_cast<T*>(t.data()); }
  static index_t extent(const std::vector<T, A>& t, int) { return static_cast<index_t>(t.size()); }
  static index_t stride(const std::vector<T, A>&, int) { return 1; }
};

template <class T, class S> struct tensor_traits<view<T, S>> {
  using element_type = T;
  using space = S;
  static constexpr int rank = 1;
  static T* data(view<T, S> t) { return t.p; }
  static index_t extent(view<T, S> t, int) { return t.n; }
  static index_t stride(view<T, S>, int) { return 1; }
};

template <class T, class S> struct tensor_traits<tile<T, S>> {
  using element_type = T;
  using space = S;
  static constexpr int rank = 2;
  static T* data(tile<T, S> t) { return t.p; }
  static index_t extent(tile<T, S> t, int d) { return d == 0 ? t.rows : t.cols; }
  static index_t stride(tile<T, S> t, int d) { return d == 0 ? t.ld : 1; }
};

template <class T, class S> struct tensor_traits<tile_batch<T, S>> {
  using element_type = T;
  using space = S;
  static constexpr int rank = 3;
  static T* data(tile_batch<T, S> t) { return t.p; }
  static index_t extent(tile_batch<T, S> t, int d) { return d == 0 ? t.count : d == 1 ? t.rows : t.cols; }
  static index_t stride(tile_batch<T, S> t, int d) { return d == 0 ? t.stride : d == 1 ? t.ld : 1; }
};

namespace detail {
// std::mdspan, and the reference implementation that comes before it, by shape rather than by name.
template <class M>
concept mdspan_like = requires(const M& m) {
  typename M::element_type;
  typename M::extents_type;
  typename M::layout_type;
  requires std::is_same_v<typename M::reference, typename M::element_type&>; // no accessor that computes
  { m.data_handle() } -> std::convertible_to<typename M::element_type*>;
  { m.extent(0) } -> std::convertible_to<index_t>;
  { m.stride(0) } -> std::convertible_to<index_t>;
  { M::rank() } -> std::convertible_to<std::size_t>;
};
} // namespace detail

template <detail::mdspan_like M> struct tensor_traits<M> {
  using element_type = typename M::element_type;
  using space = host_space;
  static constexpr int rank = static_cast<int>(M::rank());
  static element_type* data(const M& t) { return t.data_handle(); }
  static index_t extent(const M& t, int d) {
    return static_cast<index_t>(t.extent(static_cast<std::size_t>(d)));
  }
  static index_t stride(const M& t, int d) {
    return static_cast<index_t>(t.stride(static_cast<std::size_t>(d)));
  }
};

// A type whose tensor_traits are complete.
template <class Tensor>
concept tensor = requires(const Tensor& t) {
  typename tensor_traits<Tensor>::element_type;
  typename tensor_traits<Tensor>::space;
  { tensor_traits<Tensor>::rank } -> std::convertible_to<int>;
  { tensor_traits<Tensor>::data(t) } -> std::same_as<typename tensor_traits<Tensor>::element_type*>;
  { tensor_traits<Tensor>::extent(t, 0) } -> std::convertible_to<index_t>;
  { tensor_traits<Tensor>::stride(t, 0) } -> std::convertible_to<index_t>;
};

namespace detail {
template <class Traits, class Tensor> index_t checked_extent(const char* what, const Tensor& t, int d) {
  const index_t n = Traits::extent(t, d);
  if (n < 0)
    throw config_error(std::string("plateau: ") + what + ": extent " + std::to_string(n) + " of dimension " +
                       std::to_string(d) + " is negative");
  return n;
}
template <class View> constexpr tile<typename View::element_type, typename View::space> single_row(View v) {
  return {v.p, v.n == 0 ? 0 : 1, v.n, v.n};
}
} // namespace detail

// Any one-dimensional tensor of unit stride as a view. Throws config_error for another stride. Constness is
// that of the tensor's elements, whatever the constness of a handle to them; a std::vector owns its elements,
// so a const one gives a view of const, and a temporary one is refused.
template <class Tensor> auto as_view(const Tensor& t) {
  static_assert(tensor<Tensor>, "plateau: this is no tensor: specialise plateau::tensor_traits for it "
                                "(element_type, space, rank, data, extent, stride)");
  using traits = tensor_traits<Tensor>;
  static_assert(traits::rank == 1, "plateau: as_view needs a tensor of rank 1");
  const index_t n = detail::checked_extent<traits>("as_view", t, 0);
  if (n > 1 && traits::stride(t, 0) != 1)
    throw config_error("plateau: as_view: stride " + std::to_string(traits::stride(t, 0)) +
                       ", but elements must be adjacent (stride 1); copy the tensor first");
  return view<typename traits::element_type, typename traits::space>{traits::data(t), n};
}
template <class T, class A> view<T, host_space> as_view(std::vector<T, A>& t) {
  static_assert(tensor<std::vector<T, A>>);
  return {t.data(), static_cast<index_t>(t.size())};
}
template <class T, class A> view<const T, host_space> as_view(const std::vector<T, A>& t) {
  static_assert(tensor<std::vector<T, A>>);
  return {t.data(), static_cast<index_t>(t.size())};
}
template <class T, class A> void as_view(const std::vector<T, A>&&) = delete; // it would dangle

// Any two-dimensional tensor whose rows are adjacent elements as a tile; a one-dimensional one becomes a
// single row. Throws config_error when the inner stride is not 1, or rows would overlap (an outer stride of
// 0, a transpose).
template <class Tensor> auto as_tile(const Tensor& t) {
  static_assert(tensor<Tensor>, "plateau: this is no tensor: specialise plateau::tensor_traits for it "
                                "(element_type, space, rank, data, extent, stride)");
  using traits = tensor_traits<Tensor>;
  static_assert(traits::rank == 1 || traits::rank == 2, "plateau: as_tile needs a tensor of rank 1 or 2");
  using result = tile<typename traits::element_type, typename traits::space>;
  if constexpr (traits::rank == 1) {
    return detail::single_row(as_view(t));
  } else {
    const index_t rows = detail::checked_extent<traits>("as_tile", t, 0),
                  cols = detail::checked_extent<traits>("as_tile", t, 1);
    if (rows == 0 || cols == 0) return result{traits::data(t), rows, cols, cols}; // of any strides
    const index_t pitch = rows > 1 ? traits::stride(t, 0) : cols;
    if (cols > 1 && traits::stride(t, 1) != 1)
      throw config_error("plateau: as_tile: inner stride " + std::to_string(traits::stride(t, 1)) +
                         ", but the elements of a row must be adjacent; transpose or copy the tensor first");
    if (pitch < cols)
      throw config_error("plateau: as_tile: rows of " + std::to_string(cols) + " elements with a stride of " +
                         std::to_string(pitch) + " overlap; copy the tensor first");
    return result{traits::data(t), rows, cols, pitch};
  }
}
template <class T, class A> tile<T, host_space> as_tile(std::vector<T, A>& t) {
  return detail::single_row(as_view(t));
}
template <class T, class A> tile<const T, host_space> as_tile(const std::vector<T, A>& t) {
  return detail::single_row(as_view(t));
}
template <class T, class A> void as_tile(const std::vector<T, A>&&) = delete; // it would dangle

} // namespace plateau::inline v0
