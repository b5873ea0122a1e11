// SPDX-License-Identifier: Apache-2.0
//
// How a seeded schedule picks what happens next. One generator, the same on every machine; and a preference,
// drawn from the seed too, because evenly drawn orders all look alike after a while: the race that shows only
// when one stream falls far behind is found by starving one.
#pragma once

#include <plateau/config.hpp>

#include <span>

namespace plateau::inline v0::testing {

// splitmix64 (Steele, Lea, Flood 2014).
class random_numbers {
 public:
  explicit random_numbers(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(next() % n); }
  bool chance(unsigned of_256) { return next() % 256 < of_256; }

 private:
  std::uint64_t state_;
};

// Something that may happen next: an operation at the head of a stream, or a host that goes on.
struct candidate {
  bool host = false;
  int rank = 0;
  std::size_t which = 0;    // of the streams, or the host's rank
  std::size_t choices = 1;  // in which the operation may go on
  std::uint64_t number = 0; // of the stream, as created
  std::uint64_t issued = 0; // when the operation was issued
};

class preference {
 public:
  enum class order : unsigned char { even, one_stream_last, one_rank_last, latest_first, earliest_first };

  explicit preference(random_numbers& random) {
    constexpr unsigned eager[] = {0, 32, 128, 224};
    by_ = static_cast<order>(random.below(5));
    steps_between_calls_ = eager[random.below(4)];
    victim_ = random.below(8);
  }
  // The chance that something else happens before a host goes on from a call, of 256.
  unsigned steps_between_calls() const { return steps_between_calls_; }

  std::size_t choose(random_numbers& random, std::span<const candidate> all) const {
    const auto last = [&](const candidate& c) {
      if (by_ == order::one_stream_last) return !c.host && c.number % 8 == victim_;
      return by_ == order::one_rank_last && static_cast<std::size_t>(c.rank) % 8 == victim_;
    };
    if ((by_ == order::latest_first || by_ == order::earliest_first) && random.chance(224)) {
      const candidate* best = nullptr;
      for (const candidate& c : all)
        if (!c.host && (best == nullptr ||
                        (by_ == order::latest_first ? c.issued > best->issued : c.issued < best->issued)))
          best = &c;
      if (best != nullptr && random.chance(192)) return static_cast<std::size_t>(best - all.data());
    }
    std::size_t preferred = 0;
    for (const candidate& c : all) preferred += last(c) ? 0 : 1;
    if (preferred == 0) return random.below(all.size());
    std::size_t n = random.below(preferred);
    for (std::size_t i = 0;; ++i)
      if (!last(all[i]) && n-- == 0) return i;
  }

 private:
  order by_;
  unsigned steps_between_calls_;
  std::size_t victim_;
};

} // namespace plateau::inline v0::testing
