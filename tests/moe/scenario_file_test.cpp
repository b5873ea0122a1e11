// SPDX-License-Identifier: Apache-2.0
//
// Counts from CSV and JSON: the same table from both, a recording that reads back as what was added, and for
// each malformed file one line with the file and the line, byte or field.

#include "scenario_file.hpp"
#include "scratch_folder.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace moe;
using moe_test::has;
using moe_test::message_of;
using moe_test::read_file;
using moe_test::write_file;

namespace {

using rows_t = std::vector<std::int64_t>;

plateau::counts_table read(const std::string& bytes) {
  const moe_test::scratch_folder folder;
  write_file(folder.file("counts"), bytes);
  return read_counts(folder.file("counts"));
}

// What reading complains of, without the file's folder; requires that the sentence begins with the file, and
// is one line.
std::string refusal(const std::string& bytes) {
  const moe_test::scratch_folder folder;
  const std::string path = folder.file("counts");
  write_file(path, bytes);
  const std::string message = message_of<input_error>([&] { read_counts(path); });
  REQUIRE(message.starts_with(path + ": "));
  REQUIRE_FALSE(has(message, "\n"));
  return message.substr(path.size() + 2);
}
std::string csv_refusal(const std::string& lines) { return refusal("step,layer,rank,expert,rows\n" + lines); }

const std::string json_text = R"({"rows": [5, 7, 9], "step": [0, 1, 1], "layer": [0, 0, 0],
                                  "rank": [1, 0, 0], "expert": [2, 0, 1], "comment": "any"})";

} // namespace

TEST_CASE("CSV and JSON give the same table; what is left out gets no rows") {
  const rows_t expected{0, 0, 0, 0, 0, 5, 7, 9, 0, 0, 0, 0};
  for (const std::string& text :
       {std::string("step,layer,rank,expert,rows\n0,0,1,2,5\n1,0,0,0,7\n1,0,0,1,9\n"),
        std::string("step,layer,rank,expert,rows\r\n1,0,0,1,9\r\n\r\n1,0,0,0,7\r\n0,0,1,2,5"), json_text,
        "\n  " + json_text}) {
    const plateau::counts_table t = read(text);
    CHECK(t.steps == 2);
    CHECK(t.layers == 1);
    CHECK(t.ranks == 2);
    CHECK(t.experts == 3);
    CHECK(t.rows == expected);
  }
}

TEST_CASE("a malformed CSV is refused with its line and field") {
  const std::string header = "expected the header step,layer,rank,expert,rows, got ";
  CHECK(refusal("") == "line 1: " + header + "''");
  CHECK(refusal("\n0,0,0,0,1\n") == "line 1: " + header + "''");
  CHECK(refusal("0,0,0,0,1\n") == "line 1: " + header + "'0,0,0,0,1'");
  CHECK(refusal("step,layer,rank,expert\n") == "line 1: " + header + "'step,layer,rank,expert'");
  CHECK(csv_refusal("") == "no counts; expected at least one");
  const std::string number = "expected a whole number from 0 to ";
  CHECK(csv_refusal("0,0,0,0,1\n0,0,x,1,1\n") == "line 3: field 'rank': " + number + "65535, got 'x'");
  CHECK(csv_refusal("-1,0,0,0,1\n") == "line 2: field 'step': " + number + "1048575, got '-1'");
  CHECK(csv_refusal("0,0,0,0,1.5\n") == "line 2: field 'rows': " + number + "281474976710656, got '1.5'");
  CHECK(csv_refusal("0,0,0,0,\n") == "line 2: field 'rows': " + number + "281474976710656, got ''");
  CHECK(csv_refusal("0,0,0,0, 1\n") == "line 2: field 'rows': " + number + "281474976710656, got ' 1'");
  CHECK(has(csv_refusal("0,0,0,0,99999999999999999999\n"), "line 2: field 'rows'"));
  CHECK(has(csv_refusal("0,70000,0,0,1\n"), "line 2: field 'layer': " + number + "65535, got '70000'"));
  CHECK(csv_refusal("0,0,0,1\n") == "line 2: 4 fields; expected 5: step,layer,rank,expert,rows");
  CHECK(csv_refusal("\n0,0,0,0,1,2\n") == "line 3: 6 fields; expected 5: step,layer,rank,expert,rows");
  CHECK(csv_refusal("0,0,0,0,1\n0,0,0,1,1\n0,0,0,0,1\n") ==
        "line 4: step 0, layer 0, rank 0, expert 0 for the second time; expected it once");
  CHECK(csv_refusal("1000000,60000,60000,1000000,1\n") ==
        "1000001 steps x 60001 layers x 60001 ranks x 1000001 experts; expected at most 134217728 counts");
  CHECK(has(csv_refusal(std::string("0,0,\0\x1b[31m,0,1\n", 16)), "line 2: field 'rank'"));
}

TEST_CASE("a malformed JSON is refused with its line or field") {
  CHECK(has(refusal("{\"step\":\n [0"), "line 2: not JSON (syntax error"));
  CHECK(has(refusal("{} x"), "line 1: not JSON (syntax error"));
  CHECK(refusal("{\n\"rows\": [1e999]}") == "line 2: expected a number that a double holds, got 1e999");
  CHECK(refusal("{}") == "field 'step': missing; expected an array of whole numbers");
  const auto with = [](const std::string& from, const std::string& to) {
    std::string text = json_text;
    text.replace(text.find(from), from.size(), to);
    return refusal(text);
  };
  CHECK(with("\"layer\"", "\"Layer\"") == "field 'layer': missing; expected an array of whole numbers");
  CHECK(with("[1, 0, 0]", "7") == "field 'rank': not an array; expected an array of whole numbers");
  CHECK(with("[5, 7, 9]", "[5, 7]") == "field 'rows': 2 numbers; expected 3, as many as 'step' has");
  const std::string number = "expected a whole number from 0 to ";
  CHECK(with("[5, 7, 9]", "[5, \"x\", 9]") ==
        "field 'rows', element 1: " + number + "281474976710656, got '\"x\"'");
  CHECK(with("[2, 0, 1]", "[2, 0, -1]") == "field 'expert', element 2: " + number + "1048575, got '-1'");
  CHECK(with("[2, 0, 1]", "[2, 0.5, 1]") == "field 'expert', element 1: " + number + "1048575, got '0.5'");
  CHECK(has(with("[5, 7, 9]", "[18446744073709551615, 7, 9]"), "field 'rows', element 0"));
  CHECK(with("[2, 0, 1]", "[2, 1, 1]") ==
        "element 2: step 1, layer 0, rank 0, expert 1 for the second time; expected it once");
  CHECK(refusal(R"({"step": [], "layer": [], "rank": [], "expert": [], "rows": []})") ==
        "no counts; expected at least one");
}

TEST_CASE("a file that is not there or not a file is refused with what was expected") {
  const moe_test::scratch_folder folder;
  CHECK(has(message_of<input_error>([&] { read_counts(folder.file("no")); }),
            "expected counts as CSV or JSON"));
  CHECK(has(message_of<input_error>([&] { read_counts(folder.file("")); }), "not a regular file"));
}

TEST_CASE("what ranks add at the same time is written in order, and reads back as it was") {
  const moe_test::scratch_folder folder;
  routing_recorder recorder;
  std::vector<std::thread> threads;
  for (std::int64_t rank = 0; rank < 3; ++rank)
    threads.emplace_back([&recorder, rank] {
      for (std::int64_t step = 0; step < 2; ++step)
        for (std::int64_t micro = 0; micro < 2; ++micro)
          for (std::int64_t layer = 0; layer < 2; ++layer)
            recorder.add(step, layer, rank, rows_t{step, 10 * layer, rank, 0});
    });
  for (std::thread& each : threads) each.join();
  const std::string path = folder.file("r.csv");
  recorder.write_csv(path);
  const std::string text = read_file(path);
  CHECK(text.starts_with("step,layer,rank,expert,rows\n0,0,0,0,0\n0,0,0,1,0\n"));
  CHECK(has(text, "\n1,1,2,0,2\n1,1,2,1,20\n1,1,2,2,4\n1,1,2,3,0\n"));
  const plateau::counts_table t = read_counts(path);
  CHECK(t.experts == 4); // the last one got no rows, and is written
  std::size_t i = 0;
  for (std::int64_t step = 0; step < 2; ++step)
    for (std::int64_t layer = 0; layer < 2; ++layer)
      for (std::int64_t rank = 0; rank < 3; ++rank)
        for (const std::int64_t rows : {2 * step, 20 * layer, 2 * rank, std::int64_t{0}})
          CHECK(t.rows.at(i++) == rows);
  CHECK(i == t.rows.size());
  CHECK(has(message_of<input_error>([&] { recorder.write_csv(folder.file("none/r.csv")); }),
            "cannot be written"));
}

TEST_CASE("a table grows to the shape of a model by experts, layers and ranks without rows") {
  const auto small = std::make_shared<const plateau::counts_table>(
      plateau::counts_table{2, 1, 2, 2, {1, 2, 3, 4, 5, 6, 7, 8}});
  CHECK(extended(small, {2, 1, 1, 2}) == small);
  CHECK(extended(small, {1, 1}) == small); // what is more than the shape is refused elsewhere
  const auto large = extended(small, {3, 1, 2, 3});
  CHECK(large->rows == rows_t{1, 2, 0, 3, 4, 0, 0, 0, 0, /**/ 0, 0, 0, 0, 0, 0, 0, 0, 0, //
                              5, 6, 0, 7, 8, 0, 0, 0, 0, /**/ 0, 0, 0, 0, 0, 0, 0, 0, 0});
}
