// SPDX-License-Identifier: Apache-2.0
//
// A host backend whose streams hold everything back and run it in an order that a seed decides: any order
// that the program allows. A program that forgets a wait gives other results under some seeds, and the same
// ones again under the same seed. Its operations are those of host_backend, bit for bit. For tests: what
// takes a host backend as a parameter takes this one.
#pragma once

#include <plateau/concepts.hpp>
#include <plateau/config.hpp>
#include <plateau/host/backend.hpp>
#include <plateau/host/block_gemm.hpp>
#include <plateau/resource.hpp>
#include <plateau/testing/schedule.hpp>
#include <plateau/testing/seeded_communicator.hpp>
#include <plateau/testing/seeded_stream.hpp>

#include <cstring>
#include <memory>
#include <string>
#include <utility>

namespace plateau::inline v0 {

namespace testing {

// One rank of a world.
struct place_in_world {
  std::shared_ptr<testing::schedule> world;
  int rank = 0;
  std::string name{}; // for errors

  // Of one rank alone.
  explicit place_in_world(const seeded_options& options)
      : world(std::make_shared<testing::schedule>(1, options)) {}
  explicit place_in_world(const seeded_communicator& comm)
      : world(comm.world()->schedule()), rank(comm.origin_rank(comm.rank())),
        name("rank " + std::to_string(rank)) {}
};

// RAM that begins with all bits set, a NaN in every float: what has never been written looks the same in
// every run, and does not look right.
template <class Space> struct marked_ram : ram_resource<Space> {
  void* allocate(std::size_t bytes, std::size_t alignment, tag t) {
    void* p = ram_resource<Space>::allocate(bytes, alignment, t);
    if (bytes != 0) std::memset(p, 0xff, bytes);
    return p;
  }
};

struct seeded_machine {
  using stream = seeded_stream;
  using event = seeded_event;
  template <class Space> using memory = marked_ram<Space>;

  template <class Space> memory<Space> make_memory() const { return {}; }
  stream make_stream(const char* name) const { return stream(world, rank, name, false); }

  std::shared_ptr<testing::schedule> world;
  int rank = 0;
};

// A host backend at a place in a world, over a machine that is made from it.
template <class Machine>
class world_backend : private place_in_world,
                      public basic_host_backend<block_gemm, host::cpu_runner, Machine> {
  using base = basic_host_backend<block_gemm, host::cpu_runner, Machine>;

 public:
  // In a world of its own, for one rank that has no communicator.
  explicit world_backend(std::uint64_t seed = 0) : world_backend(seeded_options{seed, nullptr}) {}
  explicit world_backend(const seeded_options& options)
      : place_in_world(options), base(place_in_world::name.c_str(), {}, Machine{world, rank}) {}
  // In the world of this communicator, at its rank; also for communicators that are split from it.
  explicit world_backend(const seeded_communicator& comm)
      : place_in_world(comm), base(place_in_world::name.c_str(), {}, Machine{world, rank}) {}
};

} // namespace testing

class seeded_backend : public testing::world_backend<testing::seeded_machine> {
 public:
  using world_backend::world_backend;
};
template <> inline constexpr bool accessible_from<seeded_backend, host_space> = true;
static_assert(backend<seeded_backend>);

} // namespace plateau::inline v0
