// SPDX-License-Identifier: Apache-2.0
//
// Waits for a stream where a scope ends, also when an exception ends it: memory that the scope owns must not
// go while work that uses it is in flight. Declare it after the memory, so that it goes first.
#pragma once

#include <plateau/checks.hpp>
#include <plateau/config.hpp>

namespace plateau::inline v0 {

template <class Backend> class drain {
  static_assert(check_backend<Backend>());

 public:
  drain(Backend& backend, typename Backend::stream& stream) : backend_(&backend), stream_(&stream) {}
  drain(const drain&) = delete;
  drain& operator=(const drain&) = delete;
  // A failure of the stream is not lost: it latches, and surfaces at the next wait of the host.
  ~drain() {
    try {
      backend_->wait(backend_->record(*stream_));
    } catch (...) {
    }
  }

 private:
  Backend* backend_;
  typename Backend::stream* stream_;
};

} // namespace plateau::inline v0
