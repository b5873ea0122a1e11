// SPDX-License-Identifier: Apache-2.0
//
// The end of a step: what failed on this rank's streams reaches every rank, though nobody has waited for it.
// The communicator cannot see it by itself: work that no exchange follows fails without a word.
#pragma once

#include <plateau/checks.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>

#include <type_traits>
#include <utility>

namespace plateau::inline v0 {

// Collective. Waits for the streams, in the order given, then closes the step: throws on all ranks, as
// collective_error, what failed on a stream of any of them, or what any has latched. Name every stream that
// the step has used.
template <class Backend, class Communicator, class... Streams>
void close_step(Backend& backend, Communicator& comm, Streams&... streams) {
  static_assert(check_backend<Backend>());
  static_assert(check_communicator<Communicator, Backend>());
  static_assert(
      sizeof...(Streams) != 0 && (std::is_same_v<Streams, typename Backend::stream> && ...),
      "plateau: close_step(backend, comm, streams...) waits for the streams of the step: name them");
  const auto finish = [&](typename Backend::stream& s) {
    try {
      backend.wait(backend.record(s));
    } catch (...) {
      failure why = failure::current();
      if (why.what != failure::kind::collective) why.operation = "work on a stream";
      comm.latch(std::move(why));
    }
  };
  (finish(streams), ...);
  comm.close_step();
}

} // namespace plateau::inline v0
