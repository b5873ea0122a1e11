// SPDX-License-Identifier: Apache-2.0
//
// Whether a sanitizer watches this test, under which everything takes about ten times as long.
#pragma once

namespace support {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool sanitized = true;
#elif defined(__has_feature)
inline constexpr bool sanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
inline constexpr bool sanitized = false;
#endif

} // namespace support
