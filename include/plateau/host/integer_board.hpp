// SPDX-License-Identifier: Apache-2.0
//
// Where ranks that are threads lay down integers for one another: the host exchange of a group. Two sets of
// slots take turns, since a fast rank may begin the next exchange while a slow one still reads this one.
// After two exchanges of one length nothing is allocated.
#pragma once

#include <plateau/config.hpp>
#include <plateau/host/abort_record.hpp>
#include <plateau/majority.hpp>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <vector>

namespace plateau::inline v0::host {

class integer_board {
 public:
  explicit integer_board(int ranks) : here_(static_cast<std::size_t>(ranks)) {
    for (auto& set : slots_) set.resize(static_cast<std::size_t>(ranks));
  }

  // origin[r]: rank r in the outermost communicator. With the record's lock held; host thread of the rank.
  void exchange(abort_record& record, abort_record::lock_type& lock, std::span<const int> origin, int rank,
                std::span<const std::int64_t> mine, std::span<std::int64_t> all, const char* what,
                std::uint64_t sequence) {
    const std::uint64_t round = round_;
    const auto me = static_cast<std::size_t>(rank);
    auto& slots = slots_[round % 2];
    slots[me].assign(mine.begin(), mine.end());
    here_[me] = round + 1;
    if (++arrived_ == slots.size()) {
      check_lengths(record, lock, origin, rank, slots, what, sequence);
      arrived_ = 0;
      ++round_;
      record.progress();
      wake_.notify_all();
    } else {
      struct site final : wait_site {
        using wait_site::wait_site;
        bool awaits(int other) const override {
          for (std::size_t r = 0; r < origin.size(); ++r)
            if (origin[r] == other) return here[r] != number;
          return false;
        }
        std::span<const int> origin{};
        const std::uint64_t* here = nullptr;
        std::uint64_t number = 0;
      } here(origin[me], what, sequence);
      here.origin = origin;
      here.here = here_.data();
      here.number = round + 1;
      here.on_host_thread = true;
      record.await(lock, wake_, here, [&] { return round_ != round; });
    }
    std::int64_t* to = all.data();
    for (const auto& values : slots) to = std::copy(values.begin(), values.end(), to);
  }

  // Fails the group when not all have given as many.
  static void check_lengths(abort_record& record, abort_record::lock_type& lock, std::span<const int> origin,
                            int rank, const std::vector<std::vector<std::int64_t>>& slots, const char* what,
                            std::uint64_t sequence) {
    const int odd = first_outlier(static_cast<int>(slots.size()),
                                  [&](int r) { return slots[static_cast<std::size_t>(r)].size(); });
    if (odd < 0) return;
    std::string text = "ranks give different numbers of integers:";
    for (std::size_t r = 0; r < slots.size(); ++r)
      text += (r == 0 ? " rank " : ", rank ") + std::to_string(origin[r]) + " gives " +
              std::to_string(slots[r].size());
    record.fail(lock, origin[static_cast<std::size_t>(rank)],
                {failure::kind::collective, text, origin[static_cast<std::size_t>(odd)], what, sequence});
  }

 private:
  std::array<std::vector<std::vector<std::int64_t>>, 2> slots_;
  std::vector<std::uint64_t> here_; // number of the last round in which the rank has arrived
  std::size_t arrived_ = 0;
  std::uint64_t round_ = 0;
  std::condition_variable wake_;
};

} // namespace plateau::inline v0::host
