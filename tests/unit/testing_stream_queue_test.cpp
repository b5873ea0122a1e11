// SPDX-License-Identifier: Apache-2.0
#include <plateau/testing/stream_queue.hpp>

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

namespace pl = plateau;
using pl::testing::stream_queue;

namespace {
struct call final : pl::testing::command {
  call(std::function<bool()> f, std::string* skip_text = nullptr)
      : command("call", {"file.cpp", 7}), body(std::move(f)), told(skip_text) {}
  bool run(std::size_t) override { return body(); }
  void skipped(const pl::failure& why) override {
    if (told != nullptr) *told = why.text;
  }
  std::function<bool()> body;
  std::string* told;
};
std::string text_of(const stream_queue& q, std::uint64_t ticket) {
  try {
    q.raise(ticket);
  } catch (const pl::error& e) {
    return e.what();
  }
  return "";
}
} // namespace

TEST_CASE("stream_queue: operations run in order, one of several steps stays at the head") {
  stream_queue q(nullptr, 0, "main");
  std::string seen;
  int steps = 0;
  q.push(std::make_unique<call>([&] { return seen += "a", true; }));
  q.push(std::make_unique<call>([&] { return seen += "b", ++steps == 3; }));
  q.push(std::make_unique<call>([&] { return seen += "c", true; }));
  CHECK(q.issued() == 3);
  while (q.choices() != 0) q.step(0);
  CHECK(seen == "abbbc");
  CHECK(q.done(3));
  CHECK(q.issued() == 3);
}

TEST_CASE("stream_queue: a failure latches, names stream and line, and is told to what is skipped") {
  stream_queue q(nullptr, 0, "main");
  std::string skipped;
  q.push(std::make_unique<call>([] { return true; }));
  q.push(std::make_unique<call>([]() -> bool { throw std::runtime_error("7 apples"); }));
  q.push(std::make_unique<call>([]() -> bool { throw std::runtime_error("never run"); }, &skipped));
  while (q.choices() != 0) q.step(0);
  CHECK(text_of(q, 1) == "");
  CHECK(text_of(q, 2) == "7 apples (on stream 'main' at file.cpp:7)");
  CHECK(text_of(q, 3) == text_of(q, 2));
  CHECK(skipped == text_of(q, 2));
  q.abandon({pl::failure::kind::other, "later"});
  CHECK(text_of(q, 3) == text_of(q, 2)); // the first failure stays
}
