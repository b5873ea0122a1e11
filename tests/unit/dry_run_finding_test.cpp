// SPDX-License-Identifier: Apache-2.0
#include <plateau/dry_run/finding.hpp>

#include <doctest/doctest.h>

#include <string>
#include <utility>

namespace dry = plateau::dry;
using dry::finding_kind;
using dry::operation_ref;
using dry::touch;

namespace {
std::string text(const dry::finding& f) {
  return dry::text_of(f, [](const operation_ref& o) {
    return "'op" + std::to_string(o.name) + "' (operation " + std::to_string(o.number) + ") on stream 's" +
           std::to_string(o.stream) + "' at p.hpp:" + std::to_string(10 * o.number);
  });
}
dry::finding example(finding_kind kind) {
  dry::finding f;
  f.kind = kind;
  f.operation = {12, 3, 2};
  f.mode = touch::read;
  f.allocation = 3;
  f.allocation_bytes = 1000;
  f.purpose = plateau::tag::optimizer;
  f.space = "device";
  f.first = 0;
  f.last = 4096;
  return f;
}
} // namespace

TEST_CASE("O5: finding: the sentence names both operations, the bytes and what to do") {
  auto f = example(finding_kind::unordered);
  f.earlier = operation_ref{9, 4, 1};
  f.earlier_mode = touch::write;
  CHECK(text(f) ==
        "'op3' (operation 12) on stream 's2' at p.hpp:120 reads what 'op4' (operation 9) on stream "
        "'s1' at p.hpp:90 writes, and no event orders them: bytes [0, 4096) of device allocation 3 "
        "(optimizer); record an event after the earlier one and let the later one's stream wait for it");
  f.operation.stream = 0;
  CHECK(text(f).find("let the host wait for it") != std::string::npos);
  f.earlier = operation_ref{operation_ref::adoption, 0, 1};
  CHECK(text(f).find("the caller's work before the memory was adopted") != std::string::npos);
}

TEST_CASE("finding: each kind has its sentence") {
  CHECK(text(example(finding_kind::read_before_write)).find("which hold no values") != std::string::npos);
  CHECK(text(example(finding_kind::out_of_bounds))
            .find("reads bytes [0, 4096) of device allocation 3 (optimizer), which has only 1000 bytes") !=
        std::string::npos);
  CHECK(text(example(finding_kind::unknown_memory))
            .find("4096 bytes that no resource of this backend gave out") != std::string::npos);
  CHECK(text(example(finding_kind::use_after_free)).find("which was freed before") != std::string::npos);
  auto f = example(finding_kind::free_in_flight);
  f.earlier = operation_ref{9, 4, 1};
  f.earlier_mode = touch::update;
  CHECK(text(f) ==
        "the host frees device allocation 3 (optimizer) while 'op4' (operation 9) on stream 's1' at "
        "p.hpp:90, which updates bytes [0, 4096) of it, may still run; record an event after that and "
        "let the host wait for it before freeing");
}

TEST_CASE("finding: every way to touch bytes has its verb") {
  auto f = example(finding_kind::use_after_free);
  const std::pair<touch, const char*> verbs[] = {
      {touch::read, " reads "},         {touch::write, " writes "},
      {touch::update, " updates "},     {touch::partial, " writes some of "},
      {touch::accumulate, " adds to "}, {touch::scratch, " uses as scratch "}};
  for (const auto& [mode, verb] : verbs) {
    f.mode = mode;
    CHECK(text(f).find(verb) != std::string::npos);
  }
}
