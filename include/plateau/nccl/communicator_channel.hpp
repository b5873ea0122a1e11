// SPDX-License-Identifier: Apache-2.0
//
// The host channel of ranks that have a communicator already: mpi_communicator, where each rank is a process,
// or thread_communicator, where they are threads with a GPU each. It is split off, so that what the user does
// with his own communicator meanwhile does not get in its way; it fails with it, and it with this.
#pragma once

#include <plateau/config.hpp>
#include <plateau/host/basic_communicator.hpp>
#include <plateau/nccl/host_channel.hpp>

#include <algorithm>
#include <memory>
#include <utility>

namespace plateau::inline v0::nccl {

template <class World> class communicator_channel final : public host_channel {
 public:
  communicator_channel(std::shared_ptr<World> world, int rank) : world_(std::move(world)), rank_(rank) {}
  // Collective over `comm`.
  static std::shared_ptr<host_channel> split_off(basic_communicator<World>& comm) {
    const basic_communicator<World> own = comm.split(0, comm.rank());
    return std::make_shared<communicator_channel>(own.world(), own.rank());
  }

  int rank() const override { return rank_; }
  int size() const override { return world_->size(); }
  int origin(int r) const override { return world_->origin(r); }
  const std::shared_ptr<host::abort_record>& record() const override { return world_->record(); }

  void issue(std::uint64_t sequence, host::operation_kind kind, const char* what) override {
    world_->issue(rank_, sequence, kind, what);
  }
  void host_exchange(std::uint64_t sequence, std::span<const std::int64_t> mine, std::span<std::int64_t> all,
                     const char* what) override {
    world_->host_exchange(rank_, sequence, mine, all, what);
  }
  std::shared_ptr<host_channel> child(const host::split_group& agreed) override {
    auto part = world_->child(rank_, agreed);
    if (part == nullptr) return nullptr;
    const auto me = std::find(agreed.members.begin(), agreed.members.end(), rank_) - agreed.members.begin();
    return std::make_shared<communicator_channel>(std::move(part), static_cast<int>(me));
  }
  std::int64_t split_offer() override {
    if constexpr (requires { world_->split_offer(rank_); }) return world_->split_offer(rank_);
    return 0;
  }

  void abort(failure why) override { world_->abort(rank_, std::move(why)); }
  void abandon(failure why) override {
    if constexpr (requires { world_->give_up(rank_, "", std::uint64_t{}, why); })
      world_->give_up(rank_, why.operation.c_str(), why.sequence, why);
    else
      world_->abort(rank_, std::move(why));
  }
  void leave() override { world_->leave(rank_); }
  void poll() override {
    if constexpr (requires { world_->poll(); }) world_->poll();
  }

 private:
  std::shared_ptr<World> world_;
  int rank_;
};

} // namespace plateau::inline v0::nccl
