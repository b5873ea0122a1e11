// SPDX-License-Identifier: Apache-2.0
//
// The communicator of ranks that are threads of one process with the CUDA backend: several ranks on one GPU,
// or each on its own. run_ranks<cuda_thread_communicator>(n, f) starts them; its operations are those of
// basic_communicator. An exchange blocks the calling host thread until the peers that it exchanges with have
// issued theirs, then enqueues copies from device to device and returns: it waits for host threads, never for
// a device, and what streams wait for has been enqueued already, so that no device can deadlock by it. But
// the exchanges of different communicators must come in one order on all ranks, also where their streams
// differ. What a stream's host task throws is seen by the rank that waits for it, and by its peers when that
// rank fails, or closes the step with plateau::close_step.
//
// Buffers of an exchange may be freed when the stream has been waited for; one that throws has waited itself
// for what peers were copying from them.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/cuda/device_mover.hpp>
#include <plateau/cuda/stream.hpp>
#include <plateau/error.hpp>
#include <plateau/exchange.hpp>
#include <plateau/host/abort_record.hpp>
#include <plateau/host/basic_communicator.hpp>
#include <plateau/host/basic_thread_world.hpp>
#include <plateau/host/exchange_call.hpp>

#include <memory>
#include <utility>

namespace plateau::inline v0 {

namespace cudart {

using thread_world = host::basic_thread_world<device_mover>;

// Enqueues the exchange `call`, with these lists, on the stream. Whatever fails in it fails the group.
inline void push_exchange(on<stream> s, const std::shared_ptr<thread_world>& world,
                          const host::exchange_call& call, send_list sends, receive_list receives) {
  device_exchange mine(call, world->mover().lane(call.rank), s, sends, receives);
  try {
    mine.announce();
    world->exchange(mine);
    mine.settle();
  } catch (const collective_error&) {
    throw; // the group knows
  } catch (...) {
    failure why = failure::current();
    const int me = world->origin(call.rank);
    world->abort(call.rank, {failure::kind::collective, std::move(why.text), me, call.what, call.sequence});
    host::abort_record::lock_type lock(world->record()->mutex());
    world->record()->raise(lock, me);
  }
}

} // namespace cudart

using cuda_thread_communicator = basic_communicator<cudart::thread_world>;

} // namespace plateau::inline v0
