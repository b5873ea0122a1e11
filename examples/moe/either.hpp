// SPDX-License-Identifier: Apache-2.0
//
// One of two classes that do the same work, picked when it is made: a peak as everyone has it, or flattened.
// So a program can have every combination of peaks and is compiled once.
#pragma once

#include <optional>

namespace moe {

template <class Plain, class Flat> class either {
 public:
  // The arguments are those of both. Neither may be moved: others point to it.
  template <class... Arguments> explicit either(bool flat, Arguments&&... arguments) {
    if (flat)
      flat_.emplace(arguments...);
    else
      plain_.emplace(arguments...);
  }
  either(const either&) = delete;
  either& operator=(const either&) = delete;

  bool is_flat() const { return flat_.has_value(); }
  // f(the one that is there); it must return the same type for both.
  template <class F> decltype(auto) visit(F f) { return flat_ ? f(*flat_) : f(*plain_); }
  template <class F> decltype(auto) visit(F f) const { return flat_ ? f(*flat_) : f(*plain_); }
  Plain& plain() { return *plain_; }
  Flat& flat() { return *flat_; }
  const Plain& plain() const { return *plain_; }
  const Flat& flat() const { return *flat_; }

 private:
  std::optional<Plain> plain_;
  std::optional<Flat> flat_;
};

} // namespace moe
