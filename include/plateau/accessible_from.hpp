// SPDX-License-Identifier: Apache-2.0
//
// Which memory a backend's operations reach. Kernels and products work on device memory, host tasks on host
// memory, copies on both; what else is possible a backend says itself. A view in the wrong space is a compile
// error with a sentence, so that a program which the host runs by luck, since all its memory is RAM, does not
// crash on a device.
#pragma once

#include <plateau/config.hpp>
#include <plateau/view.hpp>

#include <type_traits>

namespace plateau::inline v0 {

// Whether kernels and products of `Backend` reach memory of `Space`. A backend that reaches more than device
// memory specialises it: the host backend does for host memory, a machine with unified memory may.
template <class Backend, class Space>
inline constexpr bool accessible_from = std::is_same_v<Space, device_space>;

// Stops the compilation when a kernel or a product of Backend cannot reach one of the spaces (void: none).
template <class Backend, class... Spaces> constexpr void check_accessible() {
  static_assert(((std::is_void_v<Spaces> || accessible_from<Backend, Spaces>)&&...),
                "plateau: kernels and products of this backend cannot reach the memory space of this view: "
                "copy to device memory first, or specialise plateau::accessible_from for the backend");
}

// The same for copies, which reach host memory too.
template <class Backend, class... Spaces> constexpr void check_copyable() {
  static_assert(((accessible_from<Backend, Spaces> || std::is_same_v<Spaces, host_space>)&&...),
                "plateau: copies of this backend reach device_space and host_space, and what "
                "plateau::accessible_from is specialised for; this view is in another space");
}

} // namespace plateau::inline v0
