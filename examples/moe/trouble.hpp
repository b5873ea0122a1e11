// SPDX-License-Identifier: Apache-2.0
//
// Why a run cannot go on, as a value: the status that the program ends with and one line. What the user can
// mend is 2, everything else 1.
#pragma once

#include "input_error.hpp"

#include <plateau/error.hpp>

#include <exception>
#include <optional>
#include <string>
#include <utility>

namespace moe {

struct trouble {
  int status = 0;
  std::string text;
};

// What f throws, nothing if it returns.
template <class F> std::optional<trouble> trouble_of(F&& f) {
  try {
    std::forward<F>(f)();
    return std::nullopt;
  } catch (const input_error& error) {
    return trouble{2, error.what()};
  } catch (const plateau::config_error& error) { // a shape that no rule of the flags has refused
    return trouble{2, error.what()};
  } catch (const std::exception& error) {
    return trouble{1, error.what()};
  }
}

} // namespace moe
