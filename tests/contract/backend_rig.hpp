// SPDX-License-Identifier: Apache-2.0
//
// What the tests of the backend contract stand on: a backend with a stream, data brought to the device and
// back by the backend's own copies (so that the tests hold where the host cannot reach device memory), and
// kernels.
#pragma once

#include <doctest/doctest.h>

#include <plateau/access.hpp>
#include <plateau/concepts.hpp>
#include <plateau/error.hpp>
#include <plateau/resource.hpp>
#include <plateau/scalar.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace backend_contract {

namespace pl = plateau;
using pl::elements;
using pl::in;
using pl::index_t;
using pl::inout;
using pl::out;
using pl::rows;
using pl::some;
using pl::tag;
using pl::tile;
using pl::transpose;
using pl::view;

// A backend without data runs the parts of the contract that need none: specialise it there. What is uploaded
// has no values then.
template <class Backend> inline constexpr bool has_data = true;

// Device code of a GPU cannot throw: specialise it there.
template <class Backend> inline constexpr bool kernels_throw = true;

// The backend under test, made anew for each test.
template <class Backend> struct subject {
  std::unique_ptr<Backend> (*make)();
  bool steady_state_is_free = true; // no operator new once a shape has been seen
};

template <class Backend> struct rig {
  using backend_type = Backend;
  template <class T> using on_device = pl::device_buffer<T, Backend>;
  template <class T> using on_host = pl::pinned_buffer<T, Backend>;

  explicit rig(const subject<Backend>& under_test)
      : owned(under_test.make()), b(*owned), s(b.make_stream("main")) {}

  template <class T> on_device<T> device(index_t n) { return {b.device(), n, tag::other}; }
  template <class T> on_host<T> pinned(index_t n) { return {b.pinned(), n, tag::other}; }
  template <class T> on_device<T> upload(const std::vector<T>& values) {
    const auto n = static_cast<index_t>(values.size());
    auto to = device<T>(n);
    auto from = pinned<T>(n);
    if (has_data<Backend> && n != 0) std::memcpy(from.data(), values.data(), from.bytes());
    b.copy(s, in(from.all()), out(to.all()));
    finish();
    return to;
  }
  template <class T> std::vector<T> download(view<T> from) {
    auto to = pinned<T>(from.n);
    b.copy(s, in(from), out(to.all()));
    finish();
    return {to.data(), to.data() + to.size()};
  }
  void finish() { b.wait(b.record(s)); }

  std::unique_ptr<Backend> owned;
  Backend& b;
  typename Backend::stream s;
};

// Numbers in [-1, 1), the same everywhere.
template <class T> std::vector<T> numbers(index_t n, std::uint32_t seed) {
  std::vector<T> values(static_cast<std::size_t>(n));
  std::uint32_t state = seed * 2654435761u + 1;
  for (T& v : values) {
    state = state * 1664525u + 1013904223u;
    v = T(static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31f);
  }
  return values;
}
template <class T> bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// The text with which f is refused.
template <class Error = pl::config_error, class F> std::string refusal(F f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "(nothing was thrown)";
}
inline bool has(const std::string& text, const std::string& piece) {
  if (text.find(piece) != std::string::npos) return true;
  MESSAGE("'" << text << "' does not say '" << piece << "'");
  return false;
}
// Whether the text names a line of `file` after `first` and before `last`.
inline bool names_line(const std::string& text, const std::string& file, int first, int last) {
  const std::size_t at = text.find(file + ":");
  const int line = at == std::string::npos ? 0 : std::atoi(text.c_str() + at + file.size() + 1);
  if (first < line && line < last) return true;
  MESSAGE("'" << text << "' names no line of " << file << " in (" << first << ", " << last << ")");
  return false;
}

// --- kernels ---

struct count_visit {
  PLATEAU_HD void operator()(index_t i, view<std::int32_t> visits) const { visits[i] += 1; }
};
struct affine { // does not commute with another one
  std::uint32_t factor, offset;
  PLATEAU_HD void operator()(index_t i, view<std::uint32_t> x) const { x[i] = x[i] * factor + offset; }
};
struct affine_row {
  std::uint32_t factor, offset;
  template <class Team> PLATEAU_HD void operator()(Team& team, index_t r, tile<std::uint32_t> x) const {
    std::uint32_t* row = x.row(r);
    const std::uint32_t a = factor, b = offset;
    team.for_each(x.cols, [=](index_t i) { row[i] = row[i] * a + b; });
  }
};
// sums[r] = sum of the row; then every element becomes the sum less its mirror image.
struct fold_row {
  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t r, tile<const std::int64_t> x, tile<std::int64_t> y,
                             view<std::int64_t> sums) const {
    const std::int64_t* from = x.row(r);
    std::int64_t* to = y.row(r);
    const index_t n = x.cols;
    const std::int64_t sum = team.reduce(n, std::int64_t{0}, pl::plus{}, [=](index_t i) { return from[i]; });
    team.for_each(n, [=](index_t i) { to[i] = from[i]; });
    team.once([=] { sums[r] = sum; });
    // Reads what other members wrote.
    const std::int64_t again =
        team.reduce(n, std::int64_t{0}, pl::plus{}, [=](index_t i) { return to[n - 1 - i]; });
    team.for_each(n, [=](index_t i) { to[i] = again - from[n - 1 - i]; });
  }
};
struct fail_at {
  index_t place;
  void operator()(index_t i, view<std::int32_t> v) const {
    if (i == place) throw std::runtime_error("the kernel failed at element " + std::to_string(i));
    v[i] = 1;
  }
};

} // namespace backend_contract
