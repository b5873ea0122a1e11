// SPDX-License-Identifier: Apache-2.0
//
// Which sanitizer is compiled in.
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#define CUDA_STAND_IN_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CUDA_STAND_IN_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define CUDA_STAND_IN_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define CUDA_STAND_IN_TSAN 1
#endif
#endif
