// SPDX-License-Identifier: Apache-2.0
//
// An exchange as a command of a stream. The lists lie in the command itself, in one of a few sizes, so that
// enqueuing one allocates nothing; only lists of more than 4,096 operations go to the heap.
#pragma once

#include <plateau/config.hpp>
#include <plateau/host/stream.hpp>
#include <plateau/host/thread_world.hpp>

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace plateau::inline v0::host {

template <std::size_t Capacity> struct inline_lists {
  std::array<posted_send, Capacity> sends{};
  std::array<posted_receive, Capacity> receives{};
  inline_lists(std::size_t, std::size_t) {}
};
struct heap_lists {
  std::vector<posted_send> sends;
  std::vector<posted_receive> receives;
  heap_lists(std::size_t send_count, std::size_t receive_count)
      : sends(send_count), receives(receive_count) {}
};

template <class Lists> class exchange_command {
 public:
  exchange_command(std::shared_ptr<thread_world> world, std::shared_ptr<command_ring> ring,
                   const exchange_call& call, std::span<const send_op> sends,
                   std::span<const receive_op> receives)
      : world_(std::move(world)), ring_(std::move(ring)), call_(call), lists_(sends.size(), receives.size()) {
    for (const send_op& s : sends)
      if (s.bytes != 0) lists_.sends[send_count_++] = {s.p, s.bytes, s.peer};
    for (const receive_op& r : receives)
      if (r.bytes != 0) lists_.receives[receive_count_++] = {r.p, nullptr, r.bytes, r.peer};
  }

  void operator()() {
    call_.sends = {lists_.sends.data(), send_count_};
    call_.receives = {lists_.receives.data(), receive_count_};
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

  std::shared_ptr<thread_world> world_;
  std::shared_ptr<command_ring> ring_;
  exchange_call call_;
  std::size_t send_count_ = 0, receive_count_ = 0;
  Lists lists_;
};

// Appends the exchange `call`, with these lists, to the stream.
inline void push_exchange(stream& s, const std::shared_ptr<thread_world>& world, const exchange_call& call,
                          std::span<const send_op> sends, std::span<const receive_op> receives) {
  const auto push = [&]<class Lists>(std::type_identity<Lists>) {
    s.push(exchange_command<Lists>(world, s.ring(), call, sends, receives));
  };
  const std::size_t longest = std::max(sends.size(), receives.size());
  if (longest <= 4)
    push(std::type_identity<inline_lists<4>>{});
  else if (longest <= 16)
    push(std::type_identity<inline_lists<16>>{});
  else if (longest <= 64)
    push(std::type_identity<inline_lists<64>>{});
  else if (longest <= 512)
    push(std::type_identity<inline_lists<512>>{});
  else if (longest <= 4096)
    push(std::type_identity<inline_lists<4096>>{});
  else
    push(std::type_identity<heap_lists>{});
}

} // namespace plateau::inline v0::host
