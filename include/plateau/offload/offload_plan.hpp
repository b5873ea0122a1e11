// SPDX-License-Identifier: Apache-2.0
//
// Which tensors are parked: pure arithmetic on a shape, the same on every rank. Those that are idle longest,
// the first of forward, go first, until the next one does not fit the budget. A parked tensor costs pinned
// memory of its own and shares the device's slots with the others of its kind; one that is kept has device
// memory of its own. Of all such choices within the budget the plan takes the one with the fewest device
// bytes, so the peak never rises with the budget; where parking would save none, nothing is parked.
#pragma once

#include <plateau/config.hpp>
#include <plateau/offload/offload_shape.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

namespace plateau::inline v0 {

// Why a tensor is where it is.
enum class offload_reason : unsigned char {
  parked,
  empty,     // it has no bytes
  budget,    // the host budget has no room for it
  too_short, // it is idle for less than it takes to go and come
  no_gain    // as many device slots would be needed as memory is saved
};

struct offload_plan {
  std::vector<offload_reason> reason;              // by tensor
  index_t parked = 0;                              // tensors
  index_t device_bytes = 0, pinned_bytes = 0;      // of all micro-batches in flight
  std::array<index_t, offload_kinds> slots{};      // on the device, by kind
  std::array<index_t, offload_kinds> slot_bytes{}; // of each: the largest parked one
  index_t kept_bytes = 0;                          // of device_bytes, of tensors that are not parked

  bool is_parked(index_t tensor) const {
    return reason[static_cast<std::size_t>(tensor)] == offload_reason::parked;
  }
  // In a sentence.
  std::string why(const offload_shape& shape, index_t tensor) const {
    const auto t = static_cast<std::size_t>(tensor);
    const std::string name =
        "tensor " + std::to_string(tensor) + " of " + std::to_string(shape.tensors[t].bytes) + " bytes ";
    switch (reason[t]) {
    case offload_reason::parked:
      return name + "is parked";
    case offload_reason::empty:
      return name + "needs no memory";
    case offload_reason::budget:
      return name + "stays on the device: the host budget of " + std::to_string(shape.host_budget_bytes) +
             " bytes has no room for it beside the " + std::to_string(pinned_bytes) +
             " bytes of those that are idle longer";
    case offload_reason::too_short:
      return name + "stays on the device: it is idle for " + std::to_string(shape.tensors[t].idle_seconds) +
             " s, less than the way to the host and back";
    case offload_reason::no_gain:
      break;
    }
    return name + "stays on the device: to park it would take a slot as large as what it saves";
  }
};

namespace detail::offload {

// Seconds for the way out, or back; 0 where the rate is not known.
inline double seconds_for(index_t bytes, double bytes_per_second) {
  return bytes_per_second > 0 ? static_cast<double>(bytes) / bytes_per_second : 0;
}

// The bytes of one choice, as tensors are added to those that are parked.
class offload_tally {
 public:
  explicit offload_tally(const offload_shape& shape) : shape_(&shape) {
    for (const offload_tensor& t : shape.tensors) kept_ += all_of(t);
  }
  index_t all_of(const offload_tensor& t) const {
    return offload_shape::slot_bytes(t.bytes) * shape_->in_flight;
  }
  void park(const offload_tensor& t) {
    const auto k = static_cast<std::size_t>(t.kind);
    largest_[k] = std::max(largest_[k], offload_shape::slot_bytes(t.bytes));
    count_[k] += shape_->in_flight;
    pinned_ += all_of(t);
    kept_ -= all_of(t);
  }
  index_t slots(std::size_t kind) const { return std::min<index_t>(count_[kind], shape_->restored_at_once); }
  index_t slot_bytes(std::size_t kind) const { return largest_[kind]; }
  index_t kept() const { return kept_; }
  index_t pinned() const { return pinned_; }
  index_t device() const {
    index_t sum = kept_;
    for (std::size_t k = 0; k < largest_.size(); ++k) sum += slots(k) * largest_[k];
    return sum;
  }

 private:
  const offload_shape* shape_;
  std::array<index_t, offload_kinds> largest_{}, count_{};
  index_t kept_ = 0, pinned_ = 0;
};

} // namespace detail::offload

// Throws config_error for a shape that cannot be.
inline offload_plan plan_offload(const offload_shape& shape) {
  shape.check();
  using detail::offload::offload_tally, detail::offload::seconds_for;
  const auto& costs = shape.costs;
  const auto too_short = [&](const offload_tensor& t) {
    const double out_seconds = seconds_for(t.bytes, costs.to_host_bytes_per_second);
    return t.idle_seconds > 0 &&
           t.idle_seconds < out_seconds + seconds_for(t.bytes, costs.to_device_bytes_per_second);
  };
  const auto may = [&](const offload_tensor& t, index_t largest) {
    return t.bytes > 0 && t.bytes <= largest && !too_short(t);
  };
  // One large tensor would make every slot large: each size is tried as the largest that is parked.
  std::vector<index_t> sizes;
  for (const offload_tensor& t : shape.tensors) sizes.push_back(t.bytes);
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  offload_tally best(shape);
  index_t best_largest = 0, best_end = 0; // parked: those of [0, best_end) up to this size
  for (const index_t largest : sizes) {
    offload_tally now(shape);
    for (index_t t = 0; t < shape.count(); ++t) {
      const offload_tensor& tensor = shape.tensors[static_cast<std::size_t>(t)];
      if (!may(tensor, largest)) continue;
      if (now.all_of(tensor) > shape.host_budget_bytes - now.pinned()) break;
      now.park(tensor);
      const index_t saved = best.device() - now.device();
      if (saved < 0 || (saved == 0 && now.pinned() >= best.pinned())) continue;
      best = now, best_largest = largest, best_end = t + 1;
    }
  }
  offload_plan plan;
  for (index_t t = 0; t < shape.count(); ++t) {
    const offload_tensor& tensor = shape.tensors[static_cast<std::size_t>(t)];
    offload_reason r = offload_reason::no_gain;
    if (tensor.bytes == 0)
      r = offload_reason::empty;
    else if (t < best_end && may(tensor, best_largest))
      r = offload_reason::parked;
    else if (best.all_of(tensor) > shape.host_budget_bytes - best.pinned())
      r = offload_reason::budget;
    else if (too_short(tensor))
      r = offload_reason::too_short;
    plan.parked += r == offload_reason::parked;
    plan.reason.push_back(r);
  }
  for (std::size_t k = 0; k < plan.slots.size(); ++k) {
    plan.slots[k] = best.slots(k);
    plan.slot_bytes[k] = best.slot_bytes(k);
  }
  plan.device_bytes = best.device();
  plan.pinned_bytes = best.pinned();
  plan.kept_bytes = best.kept();
  return plan;
}

} // namespace plateau::inline v0
