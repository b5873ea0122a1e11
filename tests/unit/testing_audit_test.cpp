// SPDX-License-Identifier: Apache-2.0
#include <plateau/testing/audit.hpp>

#include <doctest/doctest.h>

#include <functional>
#include <stdexcept>
#include <string>

namespace pl = plateau;
using plateau::testing::operation_of;

namespace {
std::string told(const pl::testing::operation& o, const std::function<void()>& f) {
  pl::testing::audit audit;
  try {
    audit.run(o, f);
  } catch (const pl::error& e) {
    return e.what();
  }
  return "";
}
} // namespace

TEST_CASE("audit: of two arguments that are only written, the one that is read is named") {
  float a[4], b[4];
  const auto both =
      operation_of("both", true, pl::out(pl::view<float>{a, 4}), pl::out(pl::view<float>{b, 4}));
  const auto f = [&](const float* read) {
    return [&, read] {
      const float kept = read[2];
      for (int i = 0; i < 4; ++i) a[i] = 1, b[i] = 2;
      a[3] = kept == 1 ? 5 : kept;
    };
  };
  CHECK(told(both, f(b)) ==
        "plateau: audit: both: argument 1, out(v), is read, though only writing was promised: "
        "byte 12 of argument 0 depends on what it held before");
  CHECK(told(both, f(a)).find("both: argument 0, out(v), is read") != std::string::npos);
}

TEST_CASE("audit: scratch may be written or not, but what it held before must not matter") {
  std::int32_t x[2];
  alignas(16) unsigned char scratch[16];
  const auto o = operation_of("sum", true, pl::out(pl::view<std::int32_t>{x, 2}),
                              pl::host::scratch_argument{{scratch, 16}});
  CHECK(told(o, [&] { x[0] = 1, x[1] = 2, scratch[3] = 4; }) == "");
  CHECK(
      told(o, [&] { x[0] = 1, x[1] = scratch[3]; })
          .find(
              "sum: argument 1, scratch, is read, though only writing was promised: byte 4 of argument 0") !=
      std::string::npos);
}

TEST_CASE("audit: what is not repeatable by itself is told apart") {
  int n = 0;
  std::int32_t x[1];
  CHECK(told(operation_of("drifts", true, pl::out(pl::view<std::int32_t>{x, 1})), [&] {
          x[0] = ++n;
        }).find("changes from run to run") != std::string::npos);
}

TEST_CASE("audit: what the operation throws comes through, and inputs are left as they were") {
  std::int32_t x[2] = {3, 4};
  const auto o = operation_of("adds", true, pl::inout(pl::view<std::int32_t>{x, 1}),
                              pl::out(pl::view<std::int32_t>{x + 1, 1}));
  CHECK(told(o, [&] { x[1] = x[0] += 5; }) == "");
  CHECK(x[0] == 8); // once, though it ran twice
  CHECK(x[1] == 8);
  CHECK_THROWS_AS(pl::testing::audit().run(o, [] { throw std::runtime_error("no"); }), std::runtime_error);
}
