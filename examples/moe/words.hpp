// SPDX-License-Identifier: Apache-2.0
//
// Numbers and texts as a row of 64-bit integers, which is what ranks can give one another without a stream
// (host_exchange), whether they share memory or not. What was put in one order is taken out in the same.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace moe {

class word_writer {
 public:
  template <class T>
    requires std::integral<T> || std::is_enum_v<T>
  void put(T value) { words_.push_back(static_cast<std::int64_t>(value)); }
  void put(double value) { words_.push_back(std::bit_cast<std::int64_t>(value)); }
  // Its length, then eight bytes a word.
  void put(std::string_view text) {
    put(text.size());
    const std::size_t at = words_.size();
    words_.resize(at + (text.size() + 7) / 8);
    if (!text.empty()) std::memcpy(words_.data() + at, text.data(), text.size());
  }
  const std::vector<std::int64_t>& words() const { return words_; }

 private:
  std::vector<std::int64_t> words_;
};

// The words must outlive it. Throws std::runtime_error where they end too early, as those of another version
// of the program may.
class word_reader {
 public:
  explicit word_reader(std::span<const std::int64_t> words) : left_{words} {}

  template <class T = std::int64_t>
    requires std::integral<T> || std::is_enum_v<T> T number() { return static_cast<T>(taken(1)[0]); }
  double real() { return std::bit_cast<double>(taken(1)[0]); }
  std::string text() {
    const auto bytes = number<std::size_t>();
    if (bytes > 8 * left_.size()) taken(left_.size() + 1);
    std::string out(bytes, '\0');
    const auto from = taken((bytes + 7) / 8);
    if (bytes != 0) std::memcpy(out.data(), from.data(), bytes);
    return out;
  }
  bool empty() const { return left_.empty(); }

 private:
  std::span<const std::int64_t> taken(std::size_t count) {
    if (count > left_.size())
      throw std::runtime_error{"what a rank has sent ends too early: do all ranks run the same program?"};
    const auto first = left_.first(count);
    left_ = left_.subspan(count);
    return first;
  }

  std::span<const std::int64_t> left_;
};

} // namespace moe
