// SPDX-License-Identifier: Apache-2.0
//
// An exchange as a command of a stream. Its lists lie behind it in the stream's ring, at their real size, so
// that enqueuing one allocates nothing; only lists of more than half the ring, 7,000 operations, go to the
// heap.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/exchange.hpp>
#include <plateau/host/exchange_call.hpp>
#include <plateau/host/stream.hpp>
#include <plateau/host/thread_world.hpp>

#include <memory>
#include <utility>

namespace plateau::inline v0::host {

// A World has exchange(call), which blocks, and give_up(rank, what, sequence, failure), which ends it.
template <class World> class exchange_command {
 public:
  exchange_command(std::shared_ptr<World> world, std::shared_ptr<command_ring> ring,
                   const exchange_call& call)
      : world_(std::move(world)), ring_(std::move(ring)), call_(call) {}

  void operator()() {
    struct interruptible {
      command_ring& ring;
      explicit interruptible(exchange_command& c) : ring(*c.ring_) { ring.interruptible(&interrupted, &c); }
      interruptible(const interruptible&) = delete;
      interruptible& operator=(const interruptible&) = delete;
      ~interruptible() { ring.interruptible(nullptr, nullptr); }
    } const while_it_runs(*this);
    world_->exchange(call_);
  }
  void skipped(const failure& why) { world_->give_up(call_.rank, call_.what, call_.sequence, why); }

 private:
  static void interrupted(void* self, const failure& why) {
    static_cast<exchange_command*>(self)->skipped(why);
  }

  std::shared_ptr<World> world_;
  std::shared_ptr<command_ring> ring_;
  exchange_call call_;
};

// Appends the exchange `call`, with these lists, to the stream.
template <class World>
void push_exchange_command(on<stream> s, const std::shared_ptr<World>& world, const exchange_call& call,
                           send_list sends, receive_list receives) {
  const auto command = [&](unsigned char* storage) {
    exchange_call with_lists = call;
    post_lists(with_lists, storage, sends, receives);
    return exchange_command<World>(world, s.stream.ring(), with_lists);
  };
  s.stream.push_with(exchange_list_bytes(sends.size(), receives.size()), command, s.place());
}
inline void push_exchange(on<stream> s, const std::shared_ptr<thread_world>& world, const exchange_call& call,
                          send_list sends, receive_list receives) {
  push_exchange_command(s, world, call, sends, receives);
}

} // namespace plateau::inline v0::host
