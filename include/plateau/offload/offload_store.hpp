// SPDX-License-Identifier: Apache-2.0
//
// Tensors that wait for backward in host memory. Each is written into a slot of the device inside a scope;
// the scope's end parks it, so that nobody can forget to; a slot turns over to the next one in program order.
// get() brings a tensor back, and begins to bring the one before it, which is next in a backward.
// docs/offload.md says what is promised, what it costs, and when it pays.
//
//   offload_store<Backend> store(backend, space, offload_shape::of_layers(layers, bytes));
//   auto h = store.hold(stream, l, x);                      // x, strided or not, is the caller's again at
//   once { auto w = store.open<tile<T>>(l) ... }                 // or write straight into the slot, see
//   offload_handle { auto r = h.get(stream); layer(in(r.view())); }        // the view lives as long as the
//   scope
//
// One host thread. Calls only enqueue, on the caller's streams and two of the store's own; the host never
// waits. The store must outlive its handles and scopes, and the backend and workspace the store; what the
// caller's streams were given must be over before the store goes.
#pragma once

#include <plateau/access.hpp>
#include <plateau/checks.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/offload/offload_handle.hpp>
#include <plateau/offload/offload_plan.hpp>
#include <plateau/offload/offload_shape.hpp>
#include <plateau/offload/offload_statistics.hpp>
#include <plateau/offload/offload_table.hpp>
#include <plateau/resource.hpp>
#include <plateau/stall_clock.hpp>
#include <plateau/tag.hpp>
#include <plateau/tensor_traits.hpp>
#include <plateau/view.hpp>
#include <plateau/working_set.hpp>
#include <plateau/workspace.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace plateau::inline v0 {

// Where the pinned memory comes from.
enum class offload_slab : unsigned char { of_workspace, of_caller };

template <class Backend> class offload_store {
  static_assert(check_backend<Backend>());
  using access = detail::offload::access;
  using slot_type = detail::offload::slot<typename Backend::event>;
  using item_type = detail::offload::item<typename Backend::event>;

 public:
  using stream = typename Backend::stream;
  using event = typename Backend::event;
  using host_bytes = view<unsigned char, host_space>;

  // All that it takes, exactly. Throws config_error for a shape that cannot be.
  static working_set working_set_of(const offload_shape& shape,
                                    offload_slab slab = offload_slab::of_workspace) {
    return set_of(plan_offload(shape), slab);
  }

  // Takes its part of the workspace at once and has it until it goes, so give it a workspace of its own, or
  // make it before any phase of another operator is opened. Throws config_error for a shape that cannot be or
  // a workspace that is too small.
  offload_store(Backend& backend, workspace<Backend>& space, const offload_shape& shape)
      : offload_store(backend, space, shape, plan_offload(shape), offload_slab::of_workspace, {}) {}
  // The same with pinned memory of the caller's, which must outlive it: plan_offload(shape).pinned_bytes or
  // more, aligned to part_alignment.
  offload_store(Backend& backend, workspace<Backend>& space, const offload_shape& shape, host_bytes slab)
      : offload_store(backend, space, shape, plan_offload(shape), offload_slab::of_caller, slab) {}
  offload_store(const offload_store&) = delete;
  offload_store& operator=(const offload_store&) = delete;

  // A handle for tensor `t` of the shape, not written yet; Tensor is view<T> or tile<T>. Throws config_error
  // when as many of this tensor are open as may be in flight.
  template <class Tensor> offload_handle<Tensor, Backend> open(index_t t) {
    raise_failure();
    if (t < 0 || t >= shape_.count())
      refuse("there is no tensor " + std::to_string(t) + " among " + std::to_string(shape_.count()));
    const index_t i = table_.open(t);
    if (i == detail::offload::nowhere)
      refuse("tensor " + std::to_string(t) + " is open " + std::to_string(shape_.in_flight) +
             " times: one forward too many; end a backward first, or make the shape with a larger in_flight");
    return offload_handle<Tensor, Backend>(*this, i);
  }
  // Tensor `t` with the values of x, a device tensor of rank 1 or 2: rows may be apart, and it may begin
  // anywhere; other strides are refused. x is read on the stream, and belongs to the caller afterwards.
  template <class Tensor> auto hold(stream& s, index_t t, const Tensor& x) {
    static_assert(tensor<Tensor>, "plateau: this is no tensor: specialise plateau::tensor_traits for it "
                                  "(element_type, space, rank, data, extent, stride)");
    using traits = tensor_traits<Tensor>;
    static_assert(std::is_same_v<typename traits::space, device_space>,
                  "plateau: offload_store::hold needs a tensor in device memory");
    using element = std::remove_const_t<typename traits::element_type>;
    if constexpr (traits::rank == 1) {
      const auto from = as_view(x);
      auto h = open<view<element>>(t);
      auto w = h.write(s, from.n);
      backend_->copy(s, in(from), out(w.view()));
      w.close();
      return h;
    } else {
      const auto from = as_tile(x);
      auto h = open<tile<element>>(t);
      auto w = h.write(s, from.rows, from.cols);
      backend_->copy(s, in(from), out(w.view()));
      w.close();
      return h;
    }
  }

  const offload_shape& shape() const { return shape_; }
  const offload_plan& plan() const { return plan_; }
  // Where tensor t is, and why.
  std::string why(index_t t) const { return plan_.why(shape_, t); }
  offload_statistics statistics() const {
    offload_statistics s = statistics_;
    s.stall_seconds = stalls_.seconds();
    s.recompute_seconds = shape_.costs.recompute_seconds;
    return s;
  }
  // Throws what the end of a scope could not: a destructor throws nothing. So does every later call.
  void raise_failure() const {
    if (failed_) failed_->raise();
  }

 private:
  template <class, class> friend class offload_handle;
  template <class, class> friend class offload_scope;

  offload_store(Backend& backend, workspace<Backend>& space, const offload_shape& shape, offload_plan plan,
                offload_slab whose, host_bytes slab)
      : backend_(&backend), shape_(shape), plan_(std::move(plan)), table_(shape_, plan_),
        memory_(space.open(set_of(plan_, whose))),
        device_(memory_.template device<unsigned char>(plan_.device_bytes)),
        slab_(whose == offload_slab::of_caller ? slab
                                               : memory_.template pinned<unsigned char>(plan_.pinned_bytes)),
        stalls_(shape.measure_stalls), out_(backend.make_stream("park")),
        in_(backend.make_stream("restore")) {
    if (slab_.n < plan_.pinned_bytes)
      refuse("the slab has " + std::to_string(slab_.n) + " bytes, but " + std::to_string(plan_.pinned_bytes) +
             " are needed: plan_offload(shape).pinned_bytes");
    if (reinterpret_cast<std::uintptr_t>(slab_.p) % part_alignment != 0)
      refuse("the slab must begin at a multiple of " + std::to_string(part_alignment) + " bytes");
  }
  static working_set set_of(const offload_plan& plan, offload_slab slab) {
    working_set set(tag::checkpoint);
    // One line each: the parts inside are multiples of part_alignment.
    set.add("device slots and tensors that are not parked", memory_kind::device,
            static_cast<std::size_t>(plan.device_bytes));
    if (slab == offload_slab::of_workspace)
      set.add("parked tensors", memory_kind::pinned_host, static_cast<std::size_t>(plan.pinned_bytes));
    return set;
  }
  [[noreturn]] static void refuse(const std::string& what) {
    throw config_error("plateau: offload_store: " + what);
  }
  std::string name_of(index_t i) const { return "tensor " + std::to_string(table_.tensor_of(i)); }
  void check_idle(index_t i) const {
    if (table_.of(i).scope != access::none) refuse(name_of(i) + " has an open scope: close that one first");
  }
  // What a backend throws leaves the books in doubt: the store then throws it at every later call.
  template <class F> void do_or_fail(F f) {
    try {
      f();
    } catch (...) {
      if (!failed_) failed_ = failure::current();
      throw;
    }
  }

  view<unsigned char> device_part(index_t i) {
    const index_t s = table_.of(i).slot;
    return device_.sub(table_.at(s).first_byte, table_.of(i).bytes);
  }
  host_bytes host_part(index_t i) const { return slab_.sub(table_.place(i), table_.of(i).bytes); }

  // What `user` does next in the slot comes after all that was done there.
  void claim(stream& user, slot_type& slot) {
    if (slot.parking) backend_->wait(user, slot.copied_out); // which came after the writer
    if (!slot.unread)
      backend_->wait(user, slot.used); // which came after what made the contents
    else if (!slot.parking)
      backend_->wait(user, slot.ready);
    slot.parking = false;
  }
  void move_in(index_t i, index_t s) {
    if (table_.give(s, i)) ++statistics_.dropped;
    statistics_.most_on_device = std::max(statistics_.most_on_device, table_.on_device(table_.kind_of(i)));
  }
  index_t slot_or_refuse(index_t i) {
    const index_t s = table_.slot_for(i, false);
    if (s == detail::offload::nowhere)
      refuse(name_of(i) + " has no slot: scopes of all " + std::to_string(shape_.restored_at_once) +
             " that may be on the device at once are open; close one, or make the shape with a larger "
             "restored_at_once");
    return s;
  }

  void begin_write(stream& s, index_t i, index_t bytes) {
    raise_failure();
    check_idle(i);
    item_type& it = table_.of(i);
    if (it.written)
      refuse(name_of(i) +
             " is written and parked already: its contents stay; drop the handle and open another "
             "one for new ones");
    const index_t most = shape_.tensors[static_cast<std::size_t>(table_.tensor_of(i))].bytes;
    if (bytes < 0 || bytes > most)
      refuse(name_of(i) + " of " + std::to_string(bytes) + " bytes, but the shape has " +
             std::to_string(most));
    const index_t to = table_.parks(i) ? slot_or_refuse(i) : it.slot;
    it.bytes = bytes;
    if (table_.parks(i)) move_in(i, to);
    it.scope = access::writing;
    do_or_fail([&] {
      stalls_.begin(*backend_, s);
      claim(s, table_.at(to));
      stalls_.end(*backend_, s);
    });
  }
  // Without contents where an exception has ended the scope.
  void end_write(stream& s, index_t i, bool complete) {
    item_type& it = table_.of(i);
    slot_type& slot = table_.at(it.slot);
    it.scope = access::none;
    do_or_fail([&] {
      slot.ready = backend_->record(s);
      slot.unread = true;
      if (!complete || !it.open) return table_.forget(i);
      table_.was_written(i);
      if (!table_.parks(i)) return;
      backend_->wait(out_, slot.ready);
      backend_->wait(out_, it.copied_in); // of what was there before, which nobody may have read
      backend_->copy(out_, in(device_part(i)), out(host_part(i)));
      slot.copied_out = backend_->record(out_);
      slot.parking = true;
      it.copied_out = backend_->record(out_);
      ++statistics_.parked;
      statistics_.parked_bytes += static_cast<std::uint64_t>(it.bytes);
    });
  }
  void restore(index_t i, index_t s) {
    item_type& it = table_.of(i);
    move_in(i, s);
    it.restored = true;
    do_or_fail([&] {
      slot_type& slot = table_.at(s);
      claim(in_, slot);
      backend_->wait(in_, it.copied_out);
      backend_->copy(in_, in(host_part(i)), out(device_part(i)));
      slot.ready = backend_->record(in_);
      slot.unread = true;
      it.copied_in = backend_->record(in_);
      ++statistics_.restored;
      statistics_.restored_bytes += static_cast<std::uint64_t>(it.bytes);
    });
  }
  // What comes next keeps its slot or gets one, as far as there are slots that nobody needs.
  void restore_ahead(index_t i) {
    index_t next = i;
    for (int n = 0; n < table_.ahead(); ++n) {
      next = table_.next(next);
      if (next == detail::offload::nowhere || !bring(next, true)) return;
    }
  }
  bool bring(index_t i, bool spare) {
    item_type& it = table_.of(i);
    if (!it.open || !it.written || !table_.parks(i)) return true;
    if (it.slot == detail::offload::nowhere) {
      const index_t s = table_.slot_for(i, spare);
      if (s == detail::offload::nowhere) return false;
      restore(i, s);
    }
    it.ahead = true;
    return true;
  }
  void prefetch(index_t i) {
    raise_failure();
    if (!table_.of(i).written) refuse(name_of(i) + " has not been written: there is nothing to restore");
    bring(i, false);
  }
  void begin_read(stream& s, index_t i) {
    raise_failure();
    check_idle(i);
    item_type& it = table_.of(i);
    if (!it.written) refuse(name_of(i) + " has not been written: there is nothing to get");
    const bool late = it.slot == detail::offload::nowhere;
    if (late) {
      restore(i, slot_or_refuse(i));
      ++statistics_.late;
    }
    it.scope = access::reading;
    it.ahead = false;
    slot_type& slot = table_.at(it.slot);
    table_.touch(i);
    do_or_fail([&] {
      stalls_.begin(*backend_, s);
      backend_->wait(s, slot.unread ? slot.ready : slot.used);
      stalls_.end(*backend_, s);
    });
    if (late || table_.turned_round(i)) restore_ahead(i);
    it.read = true;
  }
  void end_read(stream& s, index_t i) {
    item_type& it = table_.of(i);
    it.scope = access::none;
    do_or_fail([&] {
      slot_type& slot = table_.at(it.slot);
      slot.used = backend_->record(s);
      slot.unread = false;
    });
    if (!it.open) table_.forget(i);
  }
  void drop(index_t i) noexcept { table_.close(i); }
  offload_state state_of(index_t i) const {
    const item_type& it = table_.of(i);
    if (it.scope == access::writing) return offload_state::resident;
    if (!it.written) return offload_state::empty;
    if (it.slot == detail::offload::nowhere) return offload_state::parked;
    if (!table_.parks(i)) return offload_state::resident;
    if (!it.restored) return offload_state::parking;
    return table_.at(it.slot).unread ? offload_state::restoring : offload_state::resident;
  }

  Backend* backend_;
  offload_shape shape_;
  offload_plan plan_;
  detail::offload::table<event> table_;
  typename workspace<Backend>::phase memory_;
  view<unsigned char> device_;
  host_bytes slab_;
  std::optional<failure> failed_;
  offload_statistics statistics_;
  detail::stall_clock stalls_;
  stream out_, in_; // they go first: the memory must not go while they use it
};

} // namespace plateau::inline v0
