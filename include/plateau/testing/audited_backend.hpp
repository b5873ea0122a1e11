// SPDX-License-Identifier: Apache-2.0
//
// A seeded backend that takes every operation at its word. While an operation of any rank runs, the memory of
// all audited backends of its world is shut except for what the operation has declared by its tags and its
// scratch: with the address sanitizer, the first access to anything else stops the program and shows the
// line. Arguments that come as out(v), and scratch, are filled with a pattern before, so that a byte that was
// not written, and a value that depends on what was there, are errors; they name the operation, the argument,
// its byte, the stream and the line, and latch like any failure of a stream. Kernels run twice for that, host
// tasks once, where only eight bytes in a row that are left out are found; exchanges are not audited. The
// padding of a type is of its bytes: write objects that have some as a whole, not member by member.
#pragma once

#include <plateau/concepts.hpp>
#include <plateau/config.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/resource.hpp>
#include <plateau/testing/schedule.hpp>
#include <plateau/testing/seeded_backend.hpp>
#include <plateau/testing/seeded_stream.hpp>

#include <memory>
#include <utility>

namespace plateau::inline v0 {

namespace testing {

// RAM whose parts the world watches.
template <class Space> class watched_ram {
 public:
  using space = Space;

  explicit watched_ram(std::shared_ptr<schedule> world) : world_(std::move(world)) {}

  void* allocate(std::size_t bytes, std::size_t alignment, tag t) {
    void* p = ram_.allocate(bytes, alignment, t);
    world_->audit().memory().add(p, bytes);
    return p;
  }
  void deallocate(void* p, std::size_t bytes, std::size_t alignment, tag t) noexcept {
    world_->audit().memory().remove(p);
    ram_.deallocate(p, bytes, alignment, t);
  }

 private:
  std::shared_ptr<schedule> world_;
  marked_ram<Space> ram_;
};

struct audited_machine {
  using stream = seeded_stream;
  using event = seeded_event;
  template <class Space> using memory = watched_ram<Space>;

  template <class Space> memory<Space> make_memory() const { return memory<Space>(world); }
  stream make_stream(const char* name) const { return stream(world, rank, name, true); }

  std::shared_ptr<testing::schedule> world;
  int rank = 0;
};

} // namespace testing

class audited_backend : public testing::world_backend<testing::audited_machine> {
 public:
  using world_backend::world_backend;
};
template <> inline constexpr bool accessible_from<audited_backend, host_space> = true;
static_assert(backend<audited_backend>);

} // namespace plateau::inline v0
