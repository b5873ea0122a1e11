// SPDX-License-Identifier: Apache-2.0
//
// After an owner has updated a piece of its shard: that piece to all other ranks, into place, while the next
// one is updated. No memory: what travels lies on the device where it stays. Owners may have shards of
// different lengths, also none: the plan says how many pieces the longest has, and all ranks exchange as
// often.
#pragma once

#include <plateau/checks.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/exchange.hpp>
#include <plateau/staging/shard_plan.hpp>
#include <plateau/view.hpp>

#include <string>
#include <vector>

namespace plateau::inline v0 {

// Calls are collective and only enqueue, on a stream of its own. Backend and communicator must outlive it.
template <class Backend, class Communicator> class shard_gather {
  static_assert(check_backend<Backend>());
  static_assert(check_communicator<Communicator, Backend>());
  using stream = typename Backend::stream;

 public:
  shard_gather(Backend& backend, Communicator& comm)
      : backend_(&backend), comm_(&comm), transfer_(backend.make_stream("parameters to all")) {}
  shard_gather(const shard_gather&) = delete;
  shard_gather& operator=(const shard_gather&) = delete;

  // Piece i of every rank's shard, i from 0 to plan.pieces(piece_elements): this rank's, which `made` has
  // just written, goes to the others, and theirs comes into its place in `whole` (plan.elements()). `made` is
  // also after whatever last used those places. Throws config_error when the sizes do not fit; the other
  // ranks end with it.
  template <class T>
  void piece(stream& made, const shard_plan& plan, index_t piece_elements, index_t i, view<T> whole) {
    if (comm_->size() == 1) return;
    check(plan, whole.n);
    const int me = comm_->rank();
    const auto place = [&](int r) {
      const element_range p = plan.piece(r, i, piece_elements);
      return whole.sub(p.first, p.elements);
    };
    sends_.clear();
    receives_.clear();
    for (int r = 0; r < comm_->size(); ++r)
      if (r != me) {
        sends_.push_back(send_to(r, place(me)));
        receives_.push_back(receive_from(r, place(r)));
      }
    backend_->wait(transfer_, backend_->record(made));
    comm_->exchange(transfer_, sends_, receives_, "parameters from their owners");
  }
  // The stream waits for all pieces.
  void join(stream& s) {
    if (comm_->size() > 1) backend_->wait(s, backend_->record(transfer_));
  }
  // The host waits for all pieces, where something has failed and the parameters may go.
  void settle() noexcept {
    try {
      backend_->wait(backend_->record(transfer_));
    } catch (...) { // latched there, and has come out already
    }
  }

 private:
  void check(const shard_plan& plan, index_t whole) const {
    if (plan.ranks() == comm_->size() && plan.elements() == whole) return;
    const config_error why("plateau: rank " + std::to_string(comm_->rank()) +
                           ": shard_gather: " + std::to_string(whole) + " elements on " +
                           std::to_string(comm_->size()) + " ranks, but the plan is of " +
                           std::to_string(plan.elements()) + " on " + std::to_string(plan.ranks()));
    comm_->abort(std::string(why.what()));
    throw why;
  }

  Backend* backend_;
  Communicator* comm_;
  std::vector<send_op> sends_; // keep their capacity
  std::vector<receive_op> receives_;
  stream transfer_;
};

} // namespace plateau::inline v0
