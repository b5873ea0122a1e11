// SPDX-License-Identifier: Apache-2.0
//
// Labels get a number each, the same one again for the same pointers, however many there are.
#include <plateau/dry_run/label_table.hpp>

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace {
namespace dry = plateau::dry;
}

TEST_CASE("a label is a name, a file and a line") {
  std::vector<dry::label> labels;
  dry::label_table table(labels);
  const char* const gemm = "gemm";
  const char* const copy = "copy";
  const char* const model = "model.cpp";
  const char* const trainer = "trainer.cpp";
  CHECK(table.number_of(gemm, {model, 1}) == 0);
  CHECK(table.number_of(copy, {model, 1}) == 1);
  CHECK(table.number_of(gemm, {trainer, 1}) == 2);
  CHECK(table.number_of(gemm, {model, 2}) == 3);
  CHECK(table.number_of(gemm, {}) == 4);
  CHECK(table.number_of(gemm, {model, 1}) == 0);
  CHECK(table.number_of(copy, {model, 1}) == 1);
  CHECK(table.number_of(gemm, {}) == 4);
  REQUIRE(labels.size() == 5);
  CHECK(labels[3].name == gemm);
  CHECK(labels[3].at.file == model);
  CHECK(labels[3].at.line == 2);
  CHECK(labels[4].at.text() == "");
}

TEST_CASE("labels are told apart by their pointers, not by their letters") {
  std::vector<dry::label> labels;
  dry::label_table table(labels);
  const std::string a = "the same text", b = a;
  CHECK(table.number_of(a.c_str(), {"f", 1}) == 0);
  CHECK(table.number_of(b.c_str(), {"f", 1}) == 1);
}

TEST_CASE("thousands of labels keep their numbers while the table grows") {
  std::vector<dry::label> labels;
  dry::label_table table(labels);
  std::vector<std::string> names(100);
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = "kernel " + std::to_string(i);
  for (int round = 0; round < 3; ++round)
    for (int line = 0; line < 100; ++line)
      for (std::size_t i = 0; i < names.size(); ++i) {
        const std::uint32_t expected = static_cast<std::uint32_t>(100 * line) + static_cast<std::uint32_t>(i);
        REQUIRE(table.number_of(names[i].c_str(), {"model.cpp", line}) == expected);
        REQUIRE(labels.size() == (round == 0 ? expected + 1 : 10'000));
      }
}

TEST_CASE("labels that are there before the table stay as they are") {
  std::vector<dry::label> labels;
  labels.push_back({"before", {}});
  dry::label_table table(labels);
  CHECK(table.number_of("after", {}) == 1);
  CHECK(labels.size() == 2);
}
