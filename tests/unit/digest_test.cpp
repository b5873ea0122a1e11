// SPDX-License-Identifier: Apache-2.0
#include <plateau/digest.hpp>

#include <doctest/doctest.h>

using plateau::digest;

TEST_CASE("digest: FNV-1a of the bytes, lowest first") {
  CHECK(digest{}.value() == 0xcbf29ce484222325u);
  std::uint64_t state = 0xcbf29ce484222325u;
  for (const std::uint64_t byte : {2, 1, 0, 0, 0, 0, 0, 0}) state = (state ^ byte) * 0x100000001b3u;
  CHECK(digest{}.add(0x102).value() == state);
}

TEST_CASE("digest: order, sign and the borders of texts count") {
  CHECK(digest{}.add(1).add(2).value() != digest{}.add(2).add(1).value());
  CHECK(digest{}.add(-1).value() != digest{}.add(1).value());
  CHECK(digest{}.add("ab").add("c").value() != digest{}.add("a").add("bc").value());
  enum class choice { a, b };
  CHECK(digest{}.add(choice::b).value() == digest{}.add(1).value());
}

TEST_CASE("digest: floating-point values count by their bits") {
  CHECK(digest{}.add(0.5f).value() == digest{}.add(0x3f000000u).value());
  CHECK(digest{}.add(0.5).value() == digest{}.add(std::uint64_t{0x3fe0000000000000u}).value());
  CHECK(digest{}.add(plateau::bfloat16(0.5f)).value() == digest{}.add(0x3f00).value());
  CHECK(digest{}.add(0.0f).value() != digest{}.add(-0.0f).value());
  CHECK(digest{}.add(1e-5f).value() != digest{}.add(1e-6f).value()); // as integers both would be 0
}

TEST_CASE("digest: at compile time") {
  constexpr auto value = digest{}.add(std::string_view("tokens")).add(4096).add(true).value();
  CHECK(value == digest{}.add(std::string_view("tokens")).add(4096).add(true).value());
}
