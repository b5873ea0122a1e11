// SPDX-License-Identifier: Apache-2.0
//
// Numbers for labels: a program of millions of operations comes from a few hundred lines of source. Labels
// are told apart by their pointers, so that finding one costs a few nanoseconds; one that was compiled into
// two translation units may get two numbers.
#pragma once

#include <plateau/config.hpp>
#include <plateau/dry_run/program.hpp>

#include <cstdint>
#include <vector>

namespace plateau::inline v0::dry {

class label_table {
 public:
  // `labels` receives what is new; it must outlive the table.
  explicit label_table(std::vector<label>& labels) : labels_(&labels), slots_(64, none) {}

  std::uint32_t number_of(const char* name, source_line at) {
    for (std::size_t slot = hash(name, at) & mask();; slot = (slot + 1) & mask()) {
      const std::uint32_t number = slots_[slot];
      if (number == none) return add(name, at);
      const label& l = (*labels_)[number];
      if (l.name == name && l.at.line == at.line && l.at.file == at.file) return number;
    }
  }

 private:
  static constexpr std::uint32_t none = ~std::uint32_t{0};

  static std::size_t hash(const char* name, source_line at) {
    std::uint64_t h = reinterpret_cast<std::uintptr_t>(name) * 0x9e3779b97f4a7c15U;
    h ^= (reinterpret_cast<std::uintptr_t>(at.file) + static_cast<std::uint64_t>(at.line)) *
         0xc2b2ae3d27d4eb4fU;
    return static_cast<std::size_t>(h >> 24);
  }
  std::size_t mask() const { return slots_.size() - 1; }
  void put(std::uint32_t number) {
    const label& l = (*labels_)[number];
    std::size_t slot = hash(l.name, l.at) & mask();
    while (slots_[slot] != none) slot = (slot + 1) & mask();
    slots_[slot] = number;
  }
  std::uint32_t add(const char* name, source_line at) {
    const auto number = static_cast<std::uint32_t>(labels_->size());
    labels_->push_back({name, at});
    if (2 * labels_->size() > slots_.size()) {
      slots_.assign(2 * slots_.size(), none);
      for (std::uint32_t i = 0; i < number; ++i) put(i);
    }
    put(number);
    return number;
  }

  std::vector<label>* labels_;
  std::vector<std::uint32_t> slots_; // a power of two of them, at most half full
};

} // namespace plateau::inline v0::dry
