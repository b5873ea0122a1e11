// SPDX-License-Identifier: Apache-2.0
#include <plateau/column_sum.hpp>
#include <plateau/kernel_name.hpp>
#include <plateau/kernels.hpp>

#include <doctest/doctest.h>

#include <string>

namespace {
struct nameless {};
template <class T> struct holder {};
} // namespace
namespace someplateau {
struct kernel {};
} // namespace someplateau
namespace user {
struct rms_norm {};
} // namespace user

TEST_CASE("kernel_name: the name of the type without the library's namespaces") {
  CHECK(std::string(plateau::kernel_name<plateau::fill<float>>()) == "fill<float>");
  CHECK(std::string(plateau::kernel_name<plateau::detail::column_block_sums>()) == "column_block_sums");
  CHECK(std::string(plateau::kernel_name<user::rms_norm>()) == "user::rms_norm");
  CHECK(std::string(plateau::kernel_name<nameless>()) == "nameless");
  CHECK(std::string(plateau::kernel_name<holder<plateau::fill<float>>>()).find("holder<fill<float>") == 0);
  CHECK(std::string(plateau::kernel_name<someplateau::kernel>()) == "someplateau::kernel");
}

TEST_CASE("kernel_name: a lambda has some name, and a name stays where it is") {
  const auto task = [](int i) { return i; };
  CHECK(std::string(plateau::kernel_name<decltype(task)>()).find("lambda") != std::string::npos);
  CHECK(plateau::kernel_name<nameless>() == plateau::kernel_name<nameless>());
}
