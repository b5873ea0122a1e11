// SPDX-License-Identifier: Apache-2.0
//
// What processes tell each other about an exchange, without any process: sizes, cuts, packets.
#include <plateau/mpi/packet.hpp>
#include <plateau/mpi/pieces.hpp>
#include <plateau/mpi/size_list.hpp>

#include <doctest/doctest.h>

#include <initializer_list>
#include <random>
#include <string>
#include <utility>
#include <vector>

using namespace plateau::mpi;

namespace {

size_list sizes_of(std::initializer_list<std::uint64_t> sizes) {
  size_list l;
  for (const auto s : sizes) l.append(s);
  return l;
}
// "which: one against other", or "same".
std::string difference(std::initializer_list<std::uint64_t> one, std::initializer_list<std::uint64_t> other) {
  const size_difference d = first_difference(sizes_of(one), sizes_of(other));
  if (!d.found) return "same";
  return std::to_string(d.which) + ": " + std::to_string(d.one) + " against " + std::to_string(d.other);
}

unsigned char memory[1 << 16];
using stretches = std::vector<std::pair<std::size_t, std::size_t>>; // offset in memory, bytes

std::vector<piece> pieces_at(const stretches& where) {
  std::vector<piece> pieces;
  for (const auto& [at, bytes] : where) pieces.push_back({memory + at, bytes});
  return pieces;
}
stretches messages(const stretches& where, std::size_t largest) {
  stretches found;
  each_message(pieces_at(where), largest, [&](unsigned char* p, std::size_t bytes) {
    found.push_back({static_cast<std::size_t>(p - memory), bytes});
  });
  return found;
}

} // namespace

TEST_CASE("mpi sizes: the first place where two lists differ, with both values") {
  CHECK(difference({}, {}) == "same");
  CHECK(difference({4, 4, 8}, {4, 4, 8}) == "same");
  CHECK(difference({4}, {}) == "0: 4 against 0");
  CHECK(difference({}, {4}) == "0: 0 against 4");
  CHECK(difference({4, 4, 8}, {4, 8}) == "1: 4 against 8");
  CHECK(difference({4, 4}, {4, 4, 4}) == "2: 0 against 4");
  CHECK(difference({4, 4, 4}, {4, 4}) == "2: 4 against 0");
  CHECK(difference({4, 4, 9}, {4, 4, 4}) == "2: 9 against 4");
  CHECK(difference({7, 4, 9}, {7, 4, 8}) == "2: 9 against 8");
}
TEST_CASE("mpi sizes: thousands of equal ones are one entry, and come back from a packet") {
  size_list l = sizes_of({1});
  for (int i = 0; i < 10'000; ++i) l.append(4096);
  CHECK(l.runs().size() == 2);
  packet p;
  packet_writer w(p);
  l.write(w);
  packet_reader r(p);
  size_list back;
  back.read(r);
  CHECK_FALSE(first_difference(l, back).found);
  CHECK(r.at() == p.size());
}

TEST_CASE("mpi packet: what was written is read; what is missing is an error") {
  packet p;
  packet_writer w(p);
  const std::int64_t values[] = {-1, 5};
  w.number(7);
  w.text("ring");
  w.numbers(std::span<const std::int64_t>(values));
  packet_reader r(p);
  std::vector<std::int64_t> back{9};
  CHECK(r.number() == 7);
  CHECK(r.text() == "ring");
  r.numbers(2, back);
  CHECK(back == std::vector<std::int64_t>{9, -1, 5});
  CHECK_THROWS_AS(r.number(), plateau::backend_error);
}

TEST_CASE("mpi messages: adjacent memory is one message, up to the largest size") {
  CHECK(messages({}, 100).empty());
  CHECK(messages({{0, 10}, {10, 20}, {40, 5}}, 100) == stretches{{0, 30}, {40, 5}});
  CHECK(messages({{0, 10}, {10, 20}, {30, 1}}, 10) == stretches{{0, 10}, {10, 10}, {20, 10}, {30, 1}});
  CHECK(messages({{50, 10}, {0, 10}}, 100) == stretches{{50, 10}, {0, 10}});
}

// Whatever the layouts of both sides: the sender's stretches, message by message, are the receiver's bytes in
// order.
TEST_CASE("mpi messages: a sender fits its pieces to the receiver's cuts") {
  std::mt19937 random(7);
  const auto below = [&](std::size_t n) {
    return std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
  };
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<std::size_t> sizes(1 + below(20));
    for (auto& s : sizes) s = 1 + below(50);
    const auto layout = [&](std::size_t first) {
      stretches where;
      for (const std::size_t s : sizes) {
        first += below(2) * below(30);
        where.push_back({first, s});
        first += s;
      }
      return where;
    };
    const stretches from = layout(0), to = layout(5000);
    std::vector<std::size_t> sent, received; // byte by byte
    for (const auto& [at, bytes] : from)
      for (std::size_t i = 0; i < bytes; ++i) sent.push_back(at + i);
    const std::vector<piece> pieces = pieces_at(from);
    piece_reader reader(pieces);
    for (const auto& [at, bytes] : messages(to, 1 + below(100))) {
      std::size_t in_message = 0, last_end = ~std::size_t{0};
      reader.next(bytes, [&](unsigned char* p, std::size_t n) {
        CHECK(static_cast<std::size_t>(p - memory) !=
              last_end); // or it would be one stretch with that before
        for (std::size_t i = 0; i < n; ++i) received.push_back(static_cast<std::size_t>(p - memory) + i);
        in_message += n;
        last_end = static_cast<std::size_t>(p - memory) + n;
      });
      CHECK(in_message == bytes);
    }
    CHECK(received == sent);
  }
}
