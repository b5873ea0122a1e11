// SPDX-License-Identifier: Apache-2.0
//
// Watches one operation at a time, of all ranks, and says where it does not keep the word of its tags. Memory
// that it has not declared is shut while it runs (see watched_memory). What it promises to write is filled
// with a pattern first, scratch too. An operation that can be repeated runs twice, over the same memory but
// with two patterns that differ in every byte: a byte that keeps both was not written; any other difference
// means that what was there before has been read. A host task runs once: a word of the pattern that survives
// was not written.
#pragma once

#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/testing/operation.hpp>
#include <plateau/testing/poison.hpp>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace plateau::inline v0::testing {

class audit {
 public:
  watched_memory& memory() { return memory_; }

  // Runs call(), which does what `o` says. Throws what call throws, and an error that names the operation,
  // the argument and the byte where it breaks its word.
  template <class Call> void run(const operation& o, Call call) {
    sort_out(o);
    const auto shut_and_call = [&] {
      const watched_memory::only these(memory_, o.pieces);
      call();
    };
    if (filled_.empty()) return shut_and_call();
    if (!o.repeatable) {
      fill(no_argument);
      shut_and_call();
      return find_survivors(o);
    }
    take(before_);
    const auto again = [&](int changed) { // with the other pattern in this argument, or in all
      restore(before_);
      fill(changed);
      shut_and_call();
    };
    fill(no_argument);
    shut_and_call();
    take(after_);
    again(all_arguments);
    const difference d = compare(all_arguments);
    if (d.what == nothing) return;
    if (d.what == unwritten)
      refuse(o, d.argument, d.mode, d.offset, "is not written, though every byte was promised");
    again(no_argument);
    if (compare(no_argument).what == changed_value)
      refuse(o, d.argument, d.mode, d.offset, "changes from run to run, though nothing else does");
    for (const piece& p : filled_) {
      again(p.argument + 1);
      const difference because = compare(p.argument + 1);
      if (because.what != changed_value) continue;
      refuse(o, p.argument, p.mode, no_offset,
             "is read, though only writing was promised: byte " + std::to_string(because.offset) +
                 " of argument " + std::to_string(because.argument) + " depends on what it held before");
    }
    refuse(o, d.argument, d.mode, d.offset, "depends on what arguments that are only written held before");
  }

 private:
  // Whose pattern is changed: an argument, by its number + 1, all or none.
  static constexpr int all_arguments = -1, no_argument = 0;
  static constexpr std::size_t no_offset = ~std::size_t{0};
  enum finding { nothing, unwritten, changed_value };
  struct difference {
    finding what = nothing;
    int argument = 0;
    touch mode = touch::write;
    std::size_t offset = 0;
  };
  using bytes = std::vector<unsigned char>;

  // written_: what may be written and must be the same afterwards; filled_: what may not be read. What is
  // declared as read too, by another argument, is not filled: an operation may work in place.
  void sort_out(const operation& o) {
    written_.clear();
    filled_.clear();
    kept_.clear();
    for (const piece& p : o.pieces) {
      if (p.mode != touch::read && p.mode != touch::scratch) written_.push_back(p);
      if (p.mode != touch::write && p.mode != touch::scratch) kept_.push_back(p);
    }
    join(kept_);
    for (const piece& p : o.pieces)
      if (p.mode == touch::write || p.mode == touch::scratch) subtract(p, kept_, filled_);
  }
  // One byte of the pattern, which depends on the address; its complement is the other pattern.
  static unsigned char pattern(std::uintptr_t address, bool other) {
    std::uint64_t z = (address / 8 + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 31)) * 0xbf58476d1ce4e5b9u;
    z ^= z >> 29;
    const auto byte = static_cast<unsigned char>(z >> (address % 8 * 8));
    return other ? static_cast<unsigned char>(~byte) : byte;
  }
  static bool other_pattern(const piece& p, int changed) {
    return changed == all_arguments || changed == p.argument + 1;
  }
  void fill(int changed) const {
    for (const piece& p : filled_)
      for (std::size_t i = 0; i < p.bytes; ++i)
        p.begin()[i] = pattern(p.address + i, other_pattern(p, changed));
  }
  void take(bytes& into) const {
    into.clear();
    for (const piece& p : written_) into.insert(into.end(), p.begin(), p.begin() + p.bytes);
  }
  void restore(const bytes& from) const {
    const unsigned char* at = from.data();
    for (const piece& p : written_) {
      std::memcpy(p.begin(), at, p.bytes);
      at += p.bytes;
    }
  }
  // The first byte that the last run has left otherwise than the first run, whose result is after_.
  difference compare(int changed) const {
    difference unwritten_byte;
    std::size_t at = 0;
    for (const piece& p : written_) {
      if (std::memcmp(p.begin(), after_.data() + at, p.bytes) != 0)
        for (std::size_t i = 0; i < p.bytes; ++i) {
          const unsigned char now = p.begin()[i], first = after_[at + i];
          if (now == first) continue;
          const std::uintptr_t address = p.address + i;
          const bool untouched = p.mode == touch::write && other_pattern(p, changed) &&
                                 first == pattern(address, false) && now == pattern(address, true);
          if (!untouched) return {changed_value, p.argument, p.mode, p.offset + i};
          if (unwritten_byte.what == nothing) unwritten_byte = {unwritten, p.argument, p.mode, p.offset + i};
        }
      at += p.bytes;
    }
    return unwritten_byte;
  }
  void find_survivors(const operation& o) const {
    for (const piece& p : filled_) {
      if (p.mode != touch::write || p.bytes < 8) continue;
      for (std::size_t i = 0; i + 8 <= p.bytes; i += 8) {
        std::size_t same = 0;
        while (same < 8 && p.begin()[i + same] == pattern(p.address + i + same, false)) ++same;
        if (same == 8)
          refuse(o, p.argument, p.mode, p.offset + i,
                 "and the seven after it are not written, though every byte was promised");
      }
    }
  }
  [[noreturn]] static void refuse(const operation& o, int argument, touch mode, std::size_t offset,
                                  const std::string& why) {
    throw error("plateau: audit: " + std::string(o.name) + ": " +
                (offset == no_offset ? std::string() : "byte " + std::to_string(offset) + " of ") +
                "argument " + std::to_string(argument) + ", " + tag_of(mode) + ", " + why);
  }

  watched_memory memory_;
  std::vector<piece> written_, filled_, kept_;
  bytes before_, after_;
};

} // namespace plateau::inline v0::testing
