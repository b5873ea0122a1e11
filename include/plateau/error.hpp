// SPDX-License-Identifier: Apache-2.0
//
// What Plateau throws. Each error says what was asked, what was expected, on which rank, and what to do.
// Errors are carried between threads and ranks by value, as a `failure`, and thrown anew where they surface:
// an exception_ptr shared across threads cannot be proved race-free by the thread sanitizer, and cannot cross
// processes at all.
#pragma once

#include <plateau/budget_facts.hpp>
#include <plateau/config.hpp>

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace plateau::inline v0 {

// Base of everything that the library throws, but for the wide team that tests run kernels on: a wrong kernel
// is a std::logic_error there.
struct error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A shape, an option or an argument that cannot work. Nothing has been changed.
struct config_error : error {
  using error::error;
};

// A resource is at its limit. The message itemises what was held, tag by tag, against what was promised;
// where a meter wrote it, `facts` has the numbers.
struct budget_exceeded : error {
  explicit budget_exceeded(const std::string& text) : error(text), facts(budget_facts::in(text)) {}

  std::optional<budget_facts> facts;
};

// The machine below failed: an allocation, a copy, a kernel, a thread that could not start.
struct backend_error : error {
  using error::error;
};

// A rank threw, disagreed, stopped or disappeared; every rank of the group gets this, with the first cause.
// `sequence` counts the operations of the communicator from 0, on the failed rank, or on the rank that waited
// for it in vain.
struct collective_error : error {
  collective_error(int rank, std::string in_operation, std::uint64_t at_sequence, std::string why)
      : error("rank " + std::to_string(rank) + " failed in " + in_operation + " (operation " +
              std::to_string(at_sequence) + "): " + why),
        failed_rank(rank), operation(std::move(in_operation)), sequence(at_sequence), cause(std::move(why)) {}

  // The numbers of the failed rank's budget_exceeded, where that is the cause.
  std::optional<budget_facts> budget() const { return budget_facts::in(cause); }

  int failed_rank;
  std::string operation;
  std::uint64_t sequence;
  std::string cause;
};

// How an error's text begins: with the name of the rank ("rank 2") where it is known.
inline std::string error_prefix(const char* owner) {
  return *owner == '\0' ? std::string("plateau: ") : std::string("plateau: ") + owner + ": ";
}

// An error as a value: copied between threads and ranks, thrown anew on the other side.
struct failure {
  enum class kind : unsigned char { other, config, budget, backend, collective };

  kind what = kind::other;
  std::string text{};   // the whole message; for a collective failure only the cause
  int failed_rank = -1; // collective only, as the next two
  std::string operation{};
  std::uint64_t sequence = 0;

  [[noreturn]] void raise() const {
    switch (what) {
    case kind::config:
      throw config_error(text);
    case kind::budget:
      throw budget_exceeded(text);
    case kind::backend:
      throw backend_error(text);
    case kind::collective:
      throw collective_error(failed_rank, operation, sequence, text);
    case kind::other:
      break;
    }
    throw error(text);
  }

  // The exception being handled, as a value. Call it inside a catch block.
  static failure current() {
    try {
      throw;
    } catch (const collective_error& e) {
      return {kind::collective, e.cause, e.failed_rank, e.operation, e.sequence};
    } catch (const config_error& e) {
      return {kind::config, e.what()};
    } catch (const budget_exceeded& e) {
      return {kind::budget, e.what()};
    } catch (const backend_error& e) {
      return {kind::backend, e.what()};
    } catch (const std::exception& e) {
      return {kind::other, e.what()};
    } catch (...) {
      return {kind::other, "an exception that is not a std::exception"};
    }
  }
};

} // namespace plateau::inline v0
