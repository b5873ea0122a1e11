// SPDX-License-Identifier: Apache-2.0
//
// How a state is cut into buckets, and how large they are: every element once, in order, also beyond what 32
// bits count; and what cannot work is named with its numbers.
#include <plateau/staging/bucket_plan.hpp>
#include <plateau/staging/staging_shape.hpp>

#include <doctest/doctest.h>

#include <string>
#include <vector>

namespace pl = plateau;
using pl::index_t, pl::bucket, pl::bucket_plan;

namespace {

// All of the list, in order, no bucket empty or too large; and the parts of tensors are all of each.
void check_covers(const bucket_plan& p, const std::vector<index_t>& tensors, index_t most) {
  index_t at = 0, largest = 0;
  std::vector<index_t> of_tensor(tensors.size());
  for (index_t i = 0; i < p.buckets(); ++i) {
    const bucket b = p.at(i);
    CHECK(b.index == i);
    CHECK(b.first == at);
    CHECK(b.elements > 0);
    CHECK(b.elements <= most);
    at += b.elements;
    largest = std::max(largest, b.elements);
    index_t in_parts = 0;
    for (index_t t = 0; t < p.tensors(); ++t) {
      const pl::tensor_part part = p.part_of(b, t);
      if (part.elements != 0) {
        CHECK((t >= b.first_tensor && t < b.last_tensor));
        CHECK(part.at == in_parts); // one after the other
        CHECK(part.first == of_tensor[static_cast<std::size_t>(t)]);
        CHECK(b.first + part.at == p.first_of(t) + part.first);
      }
      in_parts += part.elements;
      of_tensor[static_cast<std::size_t>(t)] += part.elements;
    }
    CHECK(in_parts == b.elements);
  }
  CHECK(at == p.elements());
  CHECK(largest == p.largest());
  CHECK(of_tensor == tensors);
}
template <class F> std::string refused(F f) {
  try {
    f();
  } catch (const pl::config_error& e) {
    return e.what();
  }
  return "";
}
bool has(const std::string& text, const std::string& what) { return text.find(what) != std::string::npos; }

} // namespace

TEST_CASE("every element is in one bucket, in order, wherever it is cut") {
  const std::vector<std::vector<index_t>> lists{
      {}, {0}, {1}, {7}, {0, 0, 0}, {3, 4, 5}, {0, 9, 0, 1, 0}, {16, 1, 1, 1, 13}, {2, 2, 2, 2, 2}};
  for (const auto& list : lists)
    for (index_t most = 1; most <= 40; ++most) {
      const bucket_plan p = bucket_plan::elementwise(list, most);
      check_covers(p, list, most);
      CHECK(p.buckets() == (p.elements() + most - 1) / most);
    }
  CHECK(bucket_plan::elementwise(0, 5).buckets() == 0);
  CHECK(bucket_plan::elementwise(11, 5).buckets() == 3);
  CHECK(bucket_plan().buckets() == 0);
  CHECK(bucket_plan().elements() == 0);
}

TEST_CASE("whole tensors stay whole, and as many as fit share a bucket") {
  const std::vector<std::vector<index_t>> lists{
      {}, {0}, {1}, {7}, {0, 0, 0}, {3, 4, 5}, {0, 9, 0, 1, 0}, {16, 1, 1, 1, 13}, {2, 2, 2, 2, 2}};
  for (const auto& list : lists) {
    index_t largest = 1;
    for (const index_t n : list) largest = std::max(largest, n);
    for (index_t most = largest; most <= largest + 20; ++most) {
      const bucket_plan p = bucket_plan::whole_tensors(list, most);
      check_covers(p, list, most);
      index_t next = 0;
      for (index_t i = 0; i < p.buckets(); ++i) {
        const bucket b = p.at(i);
        CHECK(b.first_tensor == next); // every tensor in one, those without elements too
        next = b.last_tensor;
        if (i + 1 < p.buckets()) CHECK(b.elements + p.elements_of(b.last_tensor) > most);
      }
      if (p.buckets() != 0) CHECK(next == p.tensors());
    }
  }
}

TEST_CASE("O3: sizes beyond 32 bits") {
  // 3 x 2^31 and a little more: the plan of a state that no machine here has room for.
  const std::vector<index_t> tensors{index_t{3} << 31, 17, index_t{5} << 32};
  const index_t most = 142'076'000;
  const bucket_plan p = bucket_plan::elementwise(tensors, most);
  CHECK(p.elements() == (index_t{3} << 31) + 17 + (index_t{5} << 32));
  CHECK(p.buckets() == (p.elements() - 1) / most + 1);
  const bucket last = p.at(p.buckets() - 1);
  CHECK(last.first + last.elements == p.elements());
  CHECK(last.first_tensor == 2);
  index_t sum = 0;
  for (index_t i = 0; i < p.buckets(); ++i) sum += p.at(i).elements;
  CHECK(sum == p.elements());
  const bucket cut = p.at((index_t{3} << 31) / most);
  CHECK(cut.first_tensor == 0);
  CHECK(cut.last_tensor == 3);
  CHECK(p.part_of(cut, 1).elements == 17);
  CHECK(p.part_of(cut, 1).at == (index_t{3} << 31) - cut.first);

  const bucket_plan whole = bucket_plan::whole_tensors(tensors, index_t{5} << 32);
  CHECK(whole.buckets() == 2);
  CHECK(whole.at(1).first == (index_t{3} << 31) + 17);

  constexpr index_t half = std::numeric_limits<index_t>::max() / 2 + 1;
  const std::string text = refused([&] {
    bucket_plan::elementwise(std::vector<index_t>{half, half}, index_t{1} << 40);
  });
  CHECK(has(text, "tensor 1 cannot have " + std::to_string(half) + " elements"));
}

TEST_CASE("a plan that cannot be is refused with its numbers") {
  CHECK(has(refused([] { bucket_plan::elementwise(10, 0); }), "at least 1 element, got 0"));
  CHECK(has(refused([] { bucket_plan::elementwise(-1, 5); }), "cannot have -1 elements"));
  const std::string text = refused([] { bucket_plan::whole_tensors(std::vector<index_t>{3, 900, 17}, 899); });
  CHECK(has(text, "tensor 1 has 900 elements"));
  CHECK(has(text, "a bucket holds 899"));
}

TEST_CASE("buckets by bytes: all streamed fields together, and an eighth of the state by default") {
  CHECK(pl::bucket_elements_for(std::size_t{64} << 20, 16) == index_t{4} << 20);
  CHECK(pl::bucket_elements_for(100, 16) == 6);
  CHECK(pl::bucket_elements_for(16, 16) == 1);
  CHECK(pl::bucket_elements_for(10000, 26) == 256); // 384, rounded down to whole parts
  const std::string text = refused([] { pl::bucket_elements_for(15, 16); });
  CHECK(has(text, "a bucket of 15 bytes is smaller than one element of all streamed fields, which has 16"));
  for (const std::size_t state : {std::size_t{1} << 12, std::size_t{1} << 30, std::size_t{1} << 42})
    for (int slots = 1; slots <= 4; ++slots) {
      const std::size_t bytes = pl::default_bucket_bytes(state, slots);
      CHECK(8 * static_cast<std::size_t>(slots) * bytes <= state);
      CHECK(bytes == std::min(pl::usual_bucket_bytes, state / (8 * static_cast<std::size_t>(slots))));
    }
  for (const int slots : {0, 5, -1}) {
    pl::staging_shape s{1, slots};
    CHECK(has(refused([&] { s.check(); }), "slots must be 1, 2, 3 or 4, got " + std::to_string(slots)));
  }
  CHECK(has(refused([] { pl::staging_shape{}.check(); }), "bucket_elements must be at least 1, got 0"));
}
