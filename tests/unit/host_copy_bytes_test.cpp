// SPDX-License-Identifier: Apache-2.0
#include <plateau/host/copy_bytes.hpp>

#include <doctest/doctest.h>

#include <vector>

namespace host = plateau::host;

TEST_CASE("copy_bytes: every length and alignment, and nothing beside the target") {
  std::vector<unsigned char> from(1200), to(1200);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i * 37 + 1);
  for (const auto copy : {&host::copy_bytes, &host::copy_bytes_streaming})
    for (std::size_t n = 0; n < 900; n += n < 300 ? 1 : 61)
      for (const std::size_t d : {0, 1, 15, 16, 63})
        for (const std::size_t s : {0, 3, 64}) {
          std::fill(to.begin(), to.end(), static_cast<unsigned char>(0));
          copy(to.data() + 64 + d, from.data() + s, n);
          bool right = true;
          for (std::size_t i = 0; i < to.size(); ++i) {
            const bool inside = i >= 64 + d && i < 64 + d + n;
            right = right && to[i] == (inside ? from[i - 64 - d + s] : 0);
          }
          REQUIRE(right);
        }
}

TEST_CASE("copy_bytes: large and unaligned") {
  const std::size_t n = host::streaming_copy_bytes + 77;
  std::vector<unsigned char> from(n + 5), to(n + 9);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i * 131 >> 3);
  host::copy_bytes(to.data() + 3, from.data() + 5, n);
  CHECK(std::equal(from.begin() + 5, from.begin() + 5 + std::ptrdiff_t(n), to.begin() + 3));
}

TEST_CASE("copy_bytes: null pointers are legal when there is nothing to copy") {
  host::copy_bytes(nullptr, nullptr, 0);
  host::copy_bytes_streaming(nullptr, nullptr, 0);
}
