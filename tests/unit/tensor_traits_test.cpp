// SPDX-License-Identifier: Apache-2.0
//
// Other people's tensors: standard containers, anything shaped like std::mdspan, a type of one's own on the
// device; strides are honoured, or refused by name.
#include <plateau/tensor_traits.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

// As a user would write it: nothing of the library in the type itself.
namespace user {
struct device_matrix {
  float* base = nullptr;
  long rows = 0, cols = 0, row_stride = 0, col_stride = 1;
};
struct strided_row {
  const int* base = nullptr;
  int n = 0, stride = 1;
};
struct cube {};
} // namespace user

template <> struct plateau::tensor_traits<user::device_matrix> {
  using element_type = float;
  using space = device_space;
  static constexpr int rank = 2;
  static float* data(const user::device_matrix& t) { return t.base; }
  static index_t extent(const user::device_matrix& t, int d) { return d == 0 ? t.rows : t.cols; }
  static index_t stride(const user::device_matrix& t, int d) { return d == 0 ? t.row_stride : t.col_stride; }
};
template <> struct plateau::tensor_traits<user::strided_row> {
  using element_type = const int;
  using space = device_space;
  static constexpr int rank = 1;
  static const int* data(const user::strided_row& t) { return t.base; }
  static index_t extent(const user::strided_row& t, int) { return t.n; }
  static index_t stride(const user::strided_row& t, int) { return t.stride; }
};

namespace {

namespace pl = plateau;
using pl::index_t;

// The part of std::mdspan that the library relies on.
template <class T, std::size_t Rank, class Reference = T&> struct minimal_mdspan {
  using element_type = T;
  using reference = Reference;
  using extents_type = std::array<std::size_t, Rank>;
  using layout_type = void;
  using data_handle_type = T*;

  T* handle = nullptr;
  extents_type extents{}, strides{};

  static constexpr std::size_t rank() { return Rank; }
  T* data_handle() const { return handle; }
  std::size_t extent(std::size_t d) const { return extents[d]; }
  std::size_t stride(std::size_t d) const { return strides[d]; }
};

TEST_CASE("std::vector and std::span are rows in host memory") {
  std::vector<float> x{1, 2, 3};
  const auto v = pl::as_view(x);
  static_assert(std::is_same_v<decltype(pl::as_view(x)), pl::view<float, pl::host_space>>);
  CHECK(v.data() == x.data());
  CHECK(v.size() == 3);
  const auto row = pl::as_tile(x);
  CHECK((row.rows == 1 && row.cols == 3 && row.p == x.data()));

  const std::span<const float> s(x);
  static_assert(std::is_same_v<decltype(pl::as_view(s)), pl::view<const float, pl::host_space>>);
  CHECK(pl::as_view(s).data() == x.data());
  CHECK(pl::as_view(std::span<float, 3>(x.data(), 3)).size() == 3);
  CHECK(pl::as_view(std::span(x).subspan(1))[0] == 2);
}

template <class V>
concept viewable = requires(V&& v) {
  plateau::as_view(std::forward<V>(v));
};
template <class V>
concept tileable = requires(V&& v) {
  plateau::as_tile(std::forward<V>(v));
};

TEST_CASE("a const vector gives a view of const, a temporary one none") {
  const std::vector<int> x{4, 5};
  static_assert(std::is_same_v<decltype(pl::as_view(x)), pl::view<const int, pl::host_space>>);
  static_assert(std::is_same_v<decltype(pl::as_tile(x)), pl::tile<const int, pl::host_space>>);
  CHECK(pl::as_view(x)[1] == 5);
  CHECK(pl::as_tile(x)(0, 1) == 5);
  static_assert(viewable<std::vector<int>&> && viewable<const std::vector<int>&>);
  static_assert(!viewable<std::vector<int>> && !tileable<std::vector<int>>);
  static_assert(viewable<std::span<int>>); // a handle may be temporary: it owns nothing
}

TEST_CASE("D3: null is legal when empty") {
  std::vector<float> none;
  CHECK(pl::as_view(none).size() == 0);
  CHECK(pl::as_tile(none).rows == 0);
  CHECK(pl::as_view(std::span<int>{}).data() == nullptr);
  CHECK(pl::as_view(pl::view<float>{}).size() == 0);
  // Strides of an empty tensor mean nothing: [0, k] and [k, 0] in any layout.
  CHECK(pl::as_tile(user::device_matrix{nullptr, 0, 5, 1, 0}).cols == 5);
  CHECK(pl::as_tile(user::device_matrix{nullptr, 5, 0, 0, 5}).rows == 5);
  CHECK(pl::as_tile(minimal_mdspan<float, 2>{nullptr, {0, 4}, {1, 0}}).rows == 0);
}

TEST_CASE("anything shaped like std::mdspan is a tensor in host memory") {
  std::array<double, 12> a{};
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<double>(i);
  const minimal_mdspan<double, 2> m{a.data(), {3, 2}, {4, 1}}; // (3, 2) of a (3, 4)
  static_assert(pl::tensor<minimal_mdspan<double, 2>>);
  const auto t = pl::as_tile(m);
  static_assert(std::is_same_v<decltype(pl::as_tile(m)), pl::tile<double, pl::host_space>>);
  CHECK((t.rows == 3 && t.cols == 2 && t.ld == 4));
  CHECK(t(2, 1) == 9);
  CHECK(pl::as_view(minimal_mdspan<double, 1>{a.data(), {12}, {1}})[11] == 11);
  CHECK(pl::as_tile(minimal_mdspan<const double, 1>{a.data(), {12}, {1}}).cols == 12);
  // Elements that an accessor computes are not there to be pointed at.
  static_assert(!pl::tensor<minimal_mdspan<double, 2, double>>);
}

TEST_CASE("a type of one's own names its memory space") {
  float* device = reinterpret_cast<float*>(std::uintptr_t{4096});
  const user::device_matrix m{device, 100'000, 50'000, 50'176}; // padded rows
  const auto t = pl::as_tile(m);
  static_assert(std::is_same_v<decltype(pl::as_tile(m)), pl::tile<float, pl::device_space>>);
  CHECK((t.rows == 100'000 && t.cols == 50'000 && t.ld == 50'176));
  CHECK(reinterpret_cast<std::uintptr_t>(t.row(99'999)) - 4096 == std::uintptr_t{99'999} * 50'176 * 4);
  static_assert(std::is_same_v<decltype(pl::as_view(user::strided_row{})), pl::view<const int>>);
  static_assert(!pl::tensor<user::cube> && !pl::tensor<int> && pl::tensor<user::device_matrix>);
}

TEST_CASE("views of the library are tensors in their own space") {
  float* device = reinterpret_cast<float*>(std::uintptr_t{4096});
  const auto t = pl::as_tile(pl::tile<float>{device, 3, 4, 8});
  static_assert(std::is_same_v<decltype(pl::as_tile(pl::tile<float>{})), pl::tile<float>>);
  CHECK((t.p == device && t.rows == 3 && t.cols == 4 && t.ld == 8));
  CHECK(pl::as_view(pl::view<const float>{device, 7}).size() == 7);
}

TEST_CASE("V4: a transposed tensor is refused") {
  std::array<float, 12> a{};
  const minimal_mdspan<float, 2> transposed{a.data(), {3, 4}, {1, 3}};
  CHECK_THROWS_WITH_AS(pl::as_tile(transposed), doctest::Contains("inner stride 3"), pl::config_error);
  CHECK_THROWS_AS(pl::as_tile(user::device_matrix{a.data(), 3, 4, 1, 3}), pl::config_error);
  // A single column or row has the same elements in the same places both ways.
  CHECK(pl::as_tile(minimal_mdspan<float, 2>{a.data(), {4, 1}, {3, 7}}).ld == 3);
  CHECK(pl::as_tile(minimal_mdspan<float, 2>{a.data(), {1, 4}, {9, 1}}).cols == 4);
  CHECK_THROWS_AS(pl::as_tile(minimal_mdspan<float, 2>{a.data(), {1, 4}, {9, 3}}), pl::config_error);
}

TEST_CASE("V4: a stride of 0, or one that makes rows overlap, is refused") {
  std::array<float, 12> a{};
  std::array<int, 4> labels{};
  CHECK_THROWS_WITH_AS(pl::as_view(user::strided_row{labels.data(), 4, 0}), doctest::Contains("stride 0"),
                       pl::config_error);
  CHECK_THROWS_AS(pl::as_view(user::strided_row{labels.data(), 2, 2}), pl::config_error);
  CHECK_THROWS_AS(pl::as_view(user::strided_row{labels.data(), 2, -1}), pl::config_error);
  CHECK(pl::as_view(user::strided_row{labels.data(), 1, 0}).size() == 1); // one element has no neighbour

  CHECK_THROWS_WITH_AS(pl::as_tile(minimal_mdspan<float, 2>{a.data(), {3, 4}, {0, 1}}),
                       doctest::Contains("overlap"), pl::config_error);
  CHECK_THROWS_AS(pl::as_tile(minimal_mdspan<float, 2>{a.data(), {3, 4}, {3, 1}}), pl::config_error);
  CHECK_THROWS_AS(pl::as_tile(user::device_matrix{a.data(), 3, 4, -4, 1}), pl::config_error);
  CHECK_THROWS_AS(pl::as_tile(user::device_matrix{a.data(), 3, 1, 0, 1}), pl::config_error);
  CHECK_THROWS_AS(pl::as_tile(user::device_matrix{a.data(), 3, 4, 4, 0}), pl::config_error);
}

TEST_CASE("negative extents are refused") {
  std::array<int, 4> a{};
  CHECK_THROWS_WITH_AS(pl::as_view(user::strided_row{a.data(), -3, 1}), doctest::Contains("extent -3"),
                       pl::config_error);
  CHECK_THROWS_AS(pl::as_tile(user::device_matrix{nullptr, 2, -1, 1, 1}), pl::config_error);
}

TEST_CASE("a batch of tiles is a tensor of rank 3") {
  float storage[40] = {};
  const pl::tile_batch<float> batch{storage, 2, 20, 3, 4, 5};
  using traits = pl::tensor_traits<pl::tile_batch<float>>;
  static_assert(pl::tensor<pl::tile_batch<float>> && traits::rank == 3);
  static_assert(std::is_same_v<traits::space, pl::device_space>);
  CHECK(traits::data(batch) == storage);
  CHECK((traits::extent(batch, 0) == 2 && traits::extent(batch, 1) == 3 && traits::extent(batch, 2) == 4));
  CHECK((traits::stride(batch, 0) == 20 && traits::stride(batch, 1) == 5 && traits::stride(batch, 2) == 1));
}

} // namespace
