// SPDX-License-Identifier: Apache-2.0
//
// Memory reserved once, lent to operators phase by phase. Phases nest like a stack; two that never overlap
// use the same bytes, so that a step needs the largest phase and not the sum, and many layers need what one
// needs. While a phase is open its bytes carry the operator's tag in the meter, otherwise the tag
// `workspace`. A phase measures how much of its promise it used, and closing it tells a checking backend that
// the contents are dead. Phases closed in another order would overlap without a word: the workspace notices,
// and opens none any more.
#pragma once

#include <plateau/checks.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/resource.hpp>
#include <plateau/working_set.hpp>

#include <algorithm>
#include <optional>
#include <string>

namespace plateau::inline v0 {

template <class Backend> class workspace {
  static_assert(check_backend<Backend>());

  // One slab of one space, handed out from the bottom.
  template <class Resource> struct slab {
    using space = typename Resource::space;

    buffer<unsigned char, Resource> bytes;
    Resource* resource;
    std::size_t used = 0;

    slab(Resource& r, std::size_t n, tag idle) : bytes(r, static_cast<index_t>(n), idle), resource(&r) {}
    std::size_t size() const { return bytes.bytes(); }
  };
  using device_slab = slab<typename Backend::device_memory>;
  using pinned_slab = slab<typename Backend::host_memory>;

 public:
  // Reserves both slabs; throws what the backend's resources throw. The backend must outlive the workspace.
  // `idle`: what its bytes are for while no phase is open: that of the one operator that has it to itself.
  workspace(Backend& backend, reservation r, tag idle = tag::workspace)
      : device_(backend.device(), r.device_bytes, idle), pinned_(backend.pinned(), r.pinned_bytes, idle),
        idle_(idle) {}
  workspace(Backend& backend, const working_set& s, tag idle = tag::workspace)
      : workspace(backend, reserve(s), idle) {}
  workspace(const workspace&) = delete;
  workspace& operator=(const workspace&) = delete;

  std::size_t device_bytes() const { return device_.size(); }
  std::size_t pinned_bytes() const { return pinned_.size(); }

  // The time during which an operator owns its part of the workspace. Closed by its destructor, last opened
  // first.
  class phase {
   public:
    // n elements of device memory, aligned to part_alignment; contents undefined. Throws config_error when
    // the phase would take more than its working set promises.
    template <class T> view<T, typename Backend::device_memory::space> device(index_t n) {
      return {static_cast<T*>(take(space_->device_, device_, tag_, n, sizeof(T))), n};
    }
    template <class T> view<T, typename Backend::host_memory::space> pinned(index_t n) {
      return {static_cast<T*>(take(space_->pinned_, pinned_, tag_, n, sizeof(T))), n};
    }
    // The most that was taken, in bytes of device memory: at most the promise.
    std::size_t device_high_water() const { return device_.high; }
    std::size_t pinned_high_water() const { return pinned_.high; }
    // Gives everything back without closing: the next round starts from the bottom.
    void rewind() noexcept { device_.taken = pinned_.taken = 0; }

    phase(const phase&) = delete;
    phase& operator=(const phase&) = delete;
    ~phase() { space_->close(*this); }

   private:
    friend class workspace;
    struct part {
      std::size_t first = 0, promised = 0, taken = 0, high = 0;
    };
    phase(workspace& space, const working_set& s) : space_(&space), tag_(s.purpose()) {
      space.open(*this, s);
    }

    template <class Slab>
    static void* take(Slab& from, part& p, tag t, index_t n, std::size_t element_bytes) {
      const bool possible = n >= 0 && static_cast<std::size_t>(n) <= p.promised / element_bytes;
      const std::size_t wanted = possible ? aligned_bytes(static_cast<std::size_t>(n) * element_bytes) : 0;
      if (!possible || wanted > p.promised - p.taken)
        throw config_error("plateau: workspace: a phase of " + std::string(name_of(t)) + " asks for " +
                           std::to_string(n) + " elements of " + std::to_string(element_bytes) +
                           " bytes of " + Slab::space::name + " memory, but " + std::to_string(p.taken) +
                           " of the " + std::to_string(p.promised) +
                           " bytes that its working set promises are taken");
      unsigned char* at = from.bytes.data() + p.first + p.taken;
      p.taken += wanted;
      p.high = std::max(p.high, p.taken);
      return n == 0 ? nullptr : at;
    }

    workspace* space_;
    tag tag_;
    part device_, pinned_;
  };

  // Opens a phase of `s`. Throws config_error when what is left of the workspace is smaller than the set, and
  // from the moment on when a phase was closed before one that had been opened after it.
  phase open(const working_set& s) { return phase(*this, s); }

 private:
  void open(phase& p, const working_set& s) {
    if (closed_early_)
      throw config_error("plateau: workspace: a phase of " + std::string(name_of(*closed_early_)) +
                         " was closed before one that was opened after it: close phases in the reverse order "
                         "of opening. No phase can be opened any more.");
    const std::size_t device_left = device_.size() - device_.used,
                      pinned_left = pinned_.size() - pinned_.used;
    if (s.device_bytes() > device_left || s.pinned_bytes() > pinned_left)
      throw config_error(
          "plateau: workspace: a phase of " + std::string(name_of(s.purpose())) + " needs " +
          std::to_string(s.device_bytes()) + " device and " + std::to_string(s.pinned_bytes()) +
          " pinned bytes, but " + std::to_string(device_left) + " and " + std::to_string(pinned_left) +
          " are free. Reserve overlay(...) of the phases that alternate, together(...) of those "
          "that nest.");
    enter(device_, p.device_, s.device_bytes(), s.purpose());
    enter(pinned_, p.pinned_, s.pinned_bytes(), s.purpose());
  }
  void close(phase& p) noexcept {
    if (!closed_early_ && !(last(device_, p.device_) && last(pinned_, p.pinned_))) closed_early_ = p.tag_;
    leave(pinned_, p.pinned_, p.tag_);
    leave(device_, p.device_, p.tag_);
  }
  template <class Slab> void enter(Slab& lent, typename phase::part& p, std::size_t bytes, tag t) {
    p.first = lent.used;
    p.promised = bytes;
    lent.used += bytes;
    lent.resource->meter().retag(idle_, t, bytes);
  }
  template <class Slab> static bool last(const Slab& slab, const typename phase::part& p) noexcept {
    return p.first + p.promised == slab.used;
  }
  template <class Slab> void leave(Slab& lent, typename phase::part& p, tag t) noexcept {
    lent.used = p.first;
    lent.resource->meter().retag(t, idle_, p.promised);
    lent.resource->retire(lent.bytes.data() + p.first, p.promised);
  }

  device_slab device_;
  pinned_slab pinned_;
  tag idle_;
  std::optional<tag> closed_early_; // the phase after which nothing is in order
};

} // namespace plateau::inline v0
