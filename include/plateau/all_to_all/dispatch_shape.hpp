// SPDX-License-Identifier: Apache-2.0
//
// The limits of a dispatch, known at launch: any smaller input is fine, and may change with each call. Slots
// hold `send_cap_rows` and `receive_cap_rows` rows, so their bytes depend neither on tokens, nor on skew, nor
// on the number of ranks. All ranks give the same shape.
#pragma once

#include <plateau/all_to_all/expert_homes.hpp>
#include <plateau/all_to_all/placement_plan.hpp>
#include <plateau/all_to_all/round_plan.hpp>
#include <plateau/config.hpp>
#include <plateau/digest.hpp>
#include <plateau/error.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

namespace plateau::inline v0 {

// Which of a rank's rows for one expert go first: in the order of the tokens, or every n-th one in each of n
// rounds.
enum class row_order : unsigned char { contiguous, strided };

template <std::size_t Parts> struct dispatch_shape {
  index_t tokens = 0;                  // most of any rank
  index_t experts = 0;                 // of the layer, on all ranks together
  index_t top_k = 1;                   // routes of a token; those that are -1 go nowhere
  std::array<index_t, Parts> widths{}; // elements of a row, part by part
  index_t result_width = 0;            // elements of what comes back for a row; 0: as the first part
  index_t send_cap_rows = 4096;        // most rows out of a rank in a round
  index_t receive_cap_rows = 4096;     // most rows into a rank in a round
  int slots = 2; // rounds in flight, 1 to 3; with 3, kernels that move rows do not run beside the expert's
  // 0: the caps are hard. Otherwise rounds are never more than this: where the rows of a call would need
  // more, the caps of that call grow, and slots are made for the most that tokens and top_k can demand, so
  // that their bytes do depend on tokens (and those of a receive slot on ranks).
  index_t most_rounds = 0;
  round_policy rounds = round_policy::expert_first;
  row_order order = row_order::contiguous;
  placement_options placement{};
  // Results wait until a token has all of its own and are added in the order of its slots: the same bits for
  // any caps, placement and number of ranks as far as the expert gives them, for tokens x top_k rows of
  // memory instead of tokens x width in fp32.
  bool ordered = false;
  bool backward = true; // whether run_backward will be called: the workspace must have room for it
  // Below so many rows in the average product statistics().advice() calls the cap too fine. The traffic of a
  // product's weights and their gradients then takes a good tenth of its time on an H200 (docs/dispatch.md).
  index_t fewest_group_rows = 1024;
  bool measure_stalls = false; // statistics().stall_seconds; two host tasks a wait

  index_t routes() const { return tokens * top_k; }
  index_t result_elements() const { return result_width > 0 ? result_width : widths[0]; }
  // Experts of other ranks that a rank may hold.
  index_t foreign_slots(int ranks) const {
    if (placement.policy == placement_policy::native || ranks == 1) return 0;
    return std::min(placement.foreign_experts, experts);
  }
  index_t send_slot_rows() const { return slot_rows(send_cap_rows, routes()); }
  index_t receive_slot_rows(int ranks) const { return slot_rows(receive_cap_rows, routes() * ranks); }

  // Throws config_error, naming the field, for what cannot be.
  void check() const {
    const auto in_range = [](const char* field, index_t value, index_t least, index_t most) {
      if (value < least || value > most)
        throw config_error("plateau: dispatch_shape." + std::string(field) + ": " + std::to_string(value) +
                           "; expected " + std::to_string(least) + " to " + std::to_string(most));
    };
    constexpr index_t most_ids = std::numeric_limits<std::int32_t>::max();
    constexpr index_t most = index_t{1} << 40; // elements, rows or rounds
    in_range("experts", experts, 1, most_ids - 1);
    in_range("top_k", top_k, 1, 1 << 20);
    in_range("tokens", tokens, 0, most_ids / top_k); // routes are numbered in 32 bits on the device
    for (const index_t w : widths) in_range("widths", w, 1, most);
    in_range("result_width", result_width, 0, most);
    in_range("send_cap_rows", send_cap_rows, 1, most);
    in_range("receive_cap_rows", receive_cap_rows, 1, most);
    in_range("slots", slots, 1, 3);
    in_range("most_rounds", most_rounds, 0, most);
    in_range("fewest_group_rows", fewest_group_rows, 0, most);
    in_range("placement.foreign_experts", placement.foreign_experts, 0, most_ids);
  }
  void add_to(digest& d) const {
    d.add(tokens).add(experts).add(top_k).add(result_elements()).add(send_cap_rows).add(receive_cap_rows);
    for (const index_t w : widths) d.add(w);
    d.add(slots).add(most_rounds).add(rounds).add(order).add(ordered).add(backward);
    d.add(placement.policy).add(placement.foreign_experts).add(placement.least_piece_rows);
    d.add(placement.weight_move_rows).add(placement.capacity_millionths).add(placement.threshold_millionths);
  }
  // For the error of ranks that differ.
  std::string text() const {
    std::string all = "tokens " + std::to_string(tokens) + ", experts " + std::to_string(experts) +
                      ", top_k " + std::to_string(top_k) + ", widths";
    for (const index_t w : widths) all += " " + std::to_string(w);
    const auto add = [&](const char* what, auto value) {
      all += ", " + std::string(what) + " " + std::to_string(static_cast<index_t>(value));
    };
    add("result", result_elements()), add("send cap", send_cap_rows), add("receive cap", receive_cap_rows);
    add("slots", slots), add("most rounds", most_rounds), add("rounds policy", rounds), add("order", order);
    add("ordered", ordered), add("backward", backward), add("placement policy", placement.policy);
    add("foreign experts", placement.foreign_experts), add("least piece", placement.least_piece_rows);
    add("weight move", placement.weight_move_rows), add("capacity", placement.capacity_millionths);
    add("threshold", placement.threshold_millionths);
    return all;
  }

 private:
  index_t slot_rows(index_t cap, index_t all) const {
    if (most_rounds > 0) cap = std::max(cap, (all + most_rounds - 1) / most_rounds);
    return std::min(cap, all);
  }
};

} // namespace plateau::inline v0
