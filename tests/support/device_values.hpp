// SPDX-License-Identifier: Apache-2.0
//
// Values to and from device memory in the one way that every backend has: a copy, and pinned memory that the
// host fills or reads. Where there is no data the same operations are recorded, and no values come back.
#pragma once

#include <plateau/access.hpp>
#include <plateau/resource.hpp>
#include <plateau/view.hpp>

#include <type_traits>
#include <vector>

namespace support {

// Whether pinned memory of the backend has bytes: that of a dry run has not.
template <class Backend> inline constexpr bool has_bytes = !requires(const Backend& b) {
  b.recorder().findings();
};

// Element i becomes value_of(i). Waits for the stream.
template <class Backend, class T, class ValueOf>
void to_device(Backend& backend, typename Backend::stream& stream, plateau::view<T> to, ValueOf value_of) {
  const plateau::pinned_buffer<T, Backend> staged(backend.pinned(), to.n, plateau::tag::other);
  if constexpr (has_bytes<Backend>)
    for (plateau::index_t i = 0; i < to.n; ++i) staged.data()[i] = value_of(i);
  else
    backend.host_access(plateau::out(staged.all()));
  backend.copy(stream, plateau::in(staged.all()), plateau::out(to));
  backend.wait(backend.record(stream));
}

// What is there when everything issued to the stream is done.
template <class Backend, class T>
std::vector<std::remove_const_t<T>> from_device(Backend& backend, typename Backend::stream& stream,
                                                plateau::view<T> from) {
  const plateau::pinned_buffer<std::remove_const_t<T>, Backend> staged(backend.pinned(), from.n,
                                                                       plateau::tag::other);
  backend.copy(stream, plateau::in(from), plateau::out(staged.all()));
  backend.wait(backend.record(stream));
  if constexpr (has_bytes<Backend>)
    return {staged.data(), staged.data() + from.n};
  else
    return {};
}

} // namespace support
