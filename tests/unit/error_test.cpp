// SPDX-License-Identifier: Apache-2.0
//
// Errors: what they say, and that each survives the way through a value, which is how threads and ranks pass
// them on.
#include <plateau/error.hpp>

#include <doctest/doctest.h>

#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <typeinfo>

namespace {

namespace pl = plateau;

template <class Thrown> pl::failure caught(const Thrown& thrown) {
  try {
    throw thrown;
  } catch (...) {
    return pl::failure::current();
  }
}

// What arrives when `thrown` travels as a value: exactly this type, exactly this text.
template <class Expected, class Thrown> void check_round_trip(const Thrown& thrown, const char* text) {
  const pl::failure copy = caught(thrown);
  bool exact = false;
  try {
    copy.raise();
  } catch (const Expected& e) {
    exact = typeid(e) == typeid(Expected);
    CHECK(std::string(e.what()) == text);
  } catch (...) {
  }
  CHECK(exact);
}

TEST_CASE("every error keeps its type and its text on the way through a failure") {
  check_round_trip<pl::config_error>(pl::config_error("shape"), "shape");
  check_round_trip<pl::budget_exceeded>(pl::budget_exceeded("limit"), "limit");
  check_round_trip<pl::backend_error>(pl::backend_error("device"), "device");
  check_round_trip<pl::error>(pl::error("plain"), "plain");
}

TEST_CASE("an exception from outside arrives as plateau::error with its text") {
  check_round_trip<pl::error>(std::runtime_error("user's own"), "user's own");
  check_round_trip<pl::error>(std::bad_alloc(), std::bad_alloc().what());
  check_round_trip<pl::error>(42, "an exception that is not a std::exception");
}

TEST_CASE("a collective error keeps its parts, and does not wrap its text a second time") {
  const pl::collective_error first(3, "exchange", 17, "the budget of rank 3 is spent");
  CHECK(std::string(first.what()) ==
        "rank 3 failed in exchange (operation 17): the budget of rank 3 is spent");

  pl::failure carried = caught(first);
  for (int hop = 0; hop < 3; ++hop) {
    try {
      carried.raise();
    } catch (const pl::collective_error& e) {
      CHECK(e.failed_rank == 3);
      CHECK(e.operation == "exchange");
      CHECK(e.sequence == 17);
      CHECK(e.cause == "the budget of rank 3 is spent");
      CHECK(std::string(e.what()) == first.what());
      carried = pl::failure::current();
    }
  }
}

TEST_CASE("one catch of plateau::error sees them all") {
  static_assert(std::is_base_of_v<pl::error, pl::config_error>);
  static_assert(std::is_base_of_v<pl::error, pl::budget_exceeded>);
  static_assert(std::is_base_of_v<pl::error, pl::backend_error>);
  static_assert(std::is_base_of_v<pl::error, pl::collective_error>);
  CHECK_THROWS_AS(pl::failure{}.raise(), pl::error);
}

} // namespace
