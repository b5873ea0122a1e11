// SPDX-License-Identifier: Apache-2.0
//
// Gradients that leave the device during backward: what a micro-batch adds to a layer's gradients goes to
// fp32 accumulators in pinned host memory as soon as it is final, so that the device holds those of two
// layers, however many there are. For a further micro-batch of the step a layer's sums come back before its
// backward, one layer ahead, and the kernels add to them where they would have been: the bits are those of
// gradients that never left. (Adding on the host would give others, since a product that accumulates adds in
// another order than one that is added afterwards; and it would move three times the bytes through host
// memory.)
//
//   gradient_accumulators<Backend> store(backend, parts);       // parts: where each layer's sums are kept
//   store.begin_step();
//   for (layers, the last first) {
//     store.acquire(stream, layer);                             // zeros, or the sums so far
//     store.prefetch(layer - 1);
//     ... backward adds to store.piece(layer) ...
//     store.is_final(stream, layer);                            // off they go
//   }
//   store.finish(stream);                                       // all sums are in host memory
#pragma once

#include <plateau/access.hpp>
#include <plateau/checks.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/kernels.hpp>
#include <plateau/resource.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>
#include <plateau/working_set.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace plateau::inline v0 {

namespace detail {
struct zeros {
  void operator()(view<float, host_space> to) const { std::fill_n(to.p, to.n, 0.0F); }
};
} // namespace detail

// What is acquired together, such as a layer: the pinned fp32 memory of its pieces. A resident part keeps a
// place of its own on the device, as those do that are added to all through a backward: embedding and head.
struct gradient_part {
  std::vector<view<float, host_space>> home;
  bool resident = false;
};

// Used by the rank's host thread; not collective. Only enqueues: on the caller's stream and two of its own.
// The backend, the memory of the parts and what the caller's stream does with them must outlive it.
template <class Backend> class gradient_accumulators {
  static_assert(check_backend<Backend>());
  using stream = typename Backend::stream;
  using event = typename Backend::event;

 public:
  // Device memory: `slots` times the largest part, and the resident parts, each piece rounded up to
  // part_alignment. No pinned memory: that is the caller's. Throws config_error for slots outside [1, 4].
  static working_set working_set_of(const std::vector<gradient_part>& parts, int slots = 2) {
    working_set set(tag::gradients);
    set.device<float>("gradients of layers", checked(slots) * largest(parts));
    set.device<float>("resident gradients", residents(parts));
    return set;
  }

  // Throws as working_set_of and the backend do.
  gradient_accumulators(Backend& backend, std::vector<gradient_part> parts, int slots = 2)
      : backend_(&backend), parts_(std::move(parts)), slot_elements_(largest(parts_)),
        layers_(backend.device(), checked(slots) * slot_elements_, tag::gradients),
        resident_(backend.device(), residents(parts_), tag::gradients), state_(parts_.size()), moving_(slots),
        in_(backend.make_stream("gradients back")), out_(backend.make_stream("gradients away")) {
    for (int i = 0; i < slots; ++i)
      slots_.push_back({none, layers_.all().sub(i * slot_elements_, slot_elements_), {}, 0});
    index_t at = 0;
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      if (!parts_[p].resident) continue;
      state_[p].slot = static_cast<int>(slots_.size());
      slots_.push_back({static_cast<int>(p), resident_.all().sub(at, extent(parts_[p])), {}, 0});
      at += extent(parts_[p]);
    }
  }
  gradient_accumulators(const gradient_accumulators&) = delete;
  gradient_accumulators& operator=(const gradient_accumulators&) = delete;

  // From here on each part is zeros when it is first acquired. What uses the sums of the step before is
  // enqueued by now, on the stream that acquire() and finish() will be given. A step may be given up in the
  // middle: parts in use are free again.
  void begin_step() {
    departures_before_ = departures_;
    for (part_state& p : state_) {
      given_up_ = given_up_ || p.in_use;
      p.has_sums = p.is_new = p.in_use = false;
    }
    for (int i = 0; i < moving_; ++i) evict(slots_[static_cast<std::size_t>(i)]);
  }

  // The part is on the device for what comes next on `s`, with all that the step has added to it so far, and
  // in use until is_final(). Throws config_error when it is in use already, or all slots are.
  void acquire(stream& s, int part) {
    part_state& p = of(part);
    if (p.in_use) refuse(part, "is acquired twice: call is_final first");
    // Nobody has said when the work on parts of a step that was given up ends: with what is on the stream.
    if (std::exchange(given_up_, false)) {
      backend_->wait(out_, backend_->record(s));
      backend_->wait(in_, backend_->record(out_));
      arrived_ = departures_;
    }
    if (!load(part)) refuse(part, "finds no slot: all of them are in use, call is_final earlier");
    // What is here from before may still be on its way out, and must not change meanwhile.
    backend_->wait(s, p.is_new ? p.loaded : p.left);
    p.is_new = false;
    p.in_use = true;
  }
  // Begins to bring in what acquire() will be asked for next, while the part before it is in use. May be left
  // out; does nothing when all slots are in use, or no part of the step has been acquired after one that was
  // given up.
  void prefetch(int part) {
    if (!given_up_) load(part);
  }

  // Piece i of a part that is in use: as long as its home.
  view<float> piece(int part, std::size_t i = 0) const {
    const gradient_part& p = parts_[static_cast<std::size_t>(part)];
    index_t at = 0;
    for (std::size_t before = 0; before < i; ++before) at += padded(p.home[before].n);
    const int where = state_[static_cast<std::size_t>(part)].slot;
    if (where == none) refuse(part, "is not on the device: call acquire first");
    return slots_[static_cast<std::size_t>(where)].memory.sub(at, p.home[i].n);
  }

  // What `s` has added to the part is final for this micro-batch: it goes to host memory, and its slot may be
  // used again when it has arrived there. Throws config_error when the part is not in use.
  void is_final(stream& s, int part) {
    part_state& p = of(part);
    if (!p.in_use) refuse(part, "is final but was not acquired");
    slot& from = slots_[static_cast<std::size_t>(p.slot)];
    backend_->wait(out_, backend_->record(s));
    const auto& home = parts_[static_cast<std::size_t>(part)].home;
    for (std::size_t i = 0; i < home.size(); ++i)
      if (home[i].n != 0) backend_->copy(out_, in(view<const float>(piece(part, i))), out(home[i]));
    from.unused = backend_->record(out_);
    p.left = backend_->record(out_);
    from.unused_number = p.left_number = ++departures_;
    p.has_sums = true;
    p.in_use = false;
  }

  // What comes next on `s` finds the sums of the step in host memory. A part that was not acquired since
  // begin_step has none: its home becomes zeros, not the sums of an earlier step. Throws config_error when a
  // part is still in use.
  void finish(stream& s) {
    // What was done with the homes before this step is on `s`: who left in it has waited for that.
    bool waits = departures_ == departures_before_;
    for (std::size_t n = 0; n < parts_.size(); ++n) {
      if (state_[n].in_use) refuse(static_cast<int>(n), "is still in use at the end of the step");
      if (state_[n].has_sums) continue;
      if (std::exchange(waits, false)) backend_->wait(out_, backend_->record(s));
      for (const auto& home : parts_[n].home)
        if (home.n != 0) backend_->host_task(out_, detail::zeros{}, out(home));
      state_[n].left = backend_->record(out_);
      state_[n].left_number = ++departures_;
      state_[n].has_sums = true;
    }
    backend_->wait(s, backend_->record(out_));
  }

 private:
  static constexpr int none = -1;

  struct part_state {
    int slot = none;
    bool has_sums = false; // in this step; they are in its home, or on their way there
    bool is_new = false;   // in its slot: nobody has waited yet for what brings it in
    bool in_use = false;
    event loaded, left;
    std::uint64_t left_number = 0;
  };
  struct slot {
    int part = none;
    view<float> memory;
    event unused; // the end of its last way out
    std::uint64_t unused_number = 0;
  };

  static index_t padded(index_t n) {
    constexpr auto grain = static_cast<index_t>(part_alignment / sizeof(float));
    return (n + grain - 1) / grain * grain;
  }
  static index_t extent(const gradient_part& p) {
    index_t n = 0;
    for (const auto& home : p.home) n += padded(home.n);
    return n;
  }
  static index_t largest(const std::vector<gradient_part>& parts) {
    index_t most = 0;
    for (const gradient_part& p : parts) most = p.resident ? most : std::max(most, extent(p));
    return most;
  }
  static index_t residents(const std::vector<gradient_part>& parts) {
    index_t sum = 0;
    for (const gradient_part& p : parts) sum += p.resident ? extent(p) : 0;
    return sum;
  }
  static int checked(int slots) {
    if (slots < 1 || slots > 4)
      throw config_error("plateau: gradient_accumulators: slots must be 1, 2, 3 or 4, got " +
                         std::to_string(slots));
    return slots;
  }
  [[noreturn]] static void refuse(int part, const char* why) {
    throw config_error("plateau: gradient_accumulators: part " + std::to_string(part) + " " + why);
  }
  part_state& of(int part) {
    if (part < 0 || static_cast<std::size_t>(part) >= state_.size()) refuse(part, "does not exist");
    return state_[static_cast<std::size_t>(part)];
  }
  void evict(slot& from) {
    if (from.part != none) state_[static_cast<std::size_t>(from.part)].slot = none;
    from.part = none;
  }

  // Puts the part into a slot, unless it is there with its sums. False: there is none.
  bool load(int part) {
    part_state& p = of(part);
    if (p.in_use || p.is_new || (p.slot != none && p.has_sums)) return true;
    if (p.slot == none) p.slot = free_slot();
    if (p.slot == none) return false;
    slot& to = slots_[static_cast<std::size_t>(p.slot)];
    to.part = part;
    const bool back = p.has_sums;
    // The slot's last contents, and the part's own sums, have arrived. Both left on one stream, in order: who
    // has waited for one has waited for those before it.
    const bool sums_last = back && p.left_number > to.unused_number;
    const std::uint64_t number = sums_last ? p.left_number : to.unused_number;
    if (number > arrived_) {
      backend_->wait(in_, sums_last ? p.left : to.unused);
      arrived_ = number;
    }
    const auto& home = parts_[static_cast<std::size_t>(part)].home;
    if (!back) {
      const auto all = to.memory.sub(0, extent(parts_[static_cast<std::size_t>(part)]));
      backend_->launch(in_, elements{all.n}, fill<float>{0}, out(all));
    }
    for (std::size_t i = 0; back && i < home.size(); ++i)
      if (home[i].n != 0)
        backend_->copy(in_, in(view<const float, host_space>(home[i])), out(piece(part, i)));
    p.loaded = backend_->record(in_);
    p.is_new = true;
    return true;
  }
  // The slot that was used the longest ago, of those that nobody uses or waits for.
  int free_slot() {
    for (int i = 0; i < moving_; ++i) {
      const int n = (next_ + i) % moving_;
      slot& candidate = slots_[static_cast<std::size_t>(n)];
      if (candidate.part != none) {
        const part_state& there = state_[static_cast<std::size_t>(candidate.part)];
        if (there.in_use || there.is_new) continue;
      }
      evict(candidate);
      next_ = (n + 1) % moving_;
      return n;
    }
    return none;
  }

  Backend* backend_;
  std::vector<gradient_part> parts_;
  index_t slot_elements_;
  device_buffer<float, Backend> layers_, resident_;
  std::vector<part_state> state_;
  std::vector<slot> slots_; // those that parts share, then one for each resident part
  int moving_, next_ = 0;
  bool given_up_ = false;                      // a step that ended with parts in use, until the next acquire
  std::uint64_t departures_ = 0, arrived_ = 0; // ways out; the last that the way in has waited for
  std::uint64_t departures_before_ = 0;        // the step
  stream in_, out_;                            // last: they have ended before the memory goes
};

} // namespace plateau::inline v0
