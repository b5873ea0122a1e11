// SPDX-License-Identifier: Apache-2.0
//
// Any communicator over streams of one type, behind one type: a trainer that runs on threads today, on MPI or
// NCCL tomorrow is compiled once. A call through it costs an indirect jump, which is nothing beside an
// exchange. Sums of the communicator's own (native_all_reduce) are not passed on: they are templates over the
// element type; the sums in rank order take their place.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/counters.hpp>
#include <plateau/error.hpp>
#include <plateau/exchange.hpp>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>

namespace plateau::inline v0 {

// Owns the communicator that it was made from; threads, streams and errors are as there.
template <class Stream> class any_communicator {
 public:
  template <class Communicator>
    requires(!std::is_same_v<std::remove_cvref_t<Communicator>, any_communicator> &&
             std::is_rvalue_reference_v<Communicator&&>)
  explicit any_communicator(Communicator&& comm)
      : self_(std::make_unique<holder<Communicator>>(std::move(comm))) {}
  // Borrows: `comm` must outlive it.
  template <class Communicator>
    requires(!std::is_same_v<Communicator, any_communicator>)
  explicit any_communicator(Communicator* comm) : self_(std::make_unique<borrower<Communicator>>(comm)) {}

  int rank() const { return self_->rank(); }
  int size() const { return self_->size(); }
  const plateau::counters& counters() const { return self_->counters(); }
  any_communicator split(int color, int key) { return any_communicator(self_->split(color, key)); }
  void exchange(on<Stream> s, send_list sends, receive_list receives, const char* what = "exchange") {
    self_->exchange(s, sends, receives, what);
  }
  void host_exchange(std::span<const std::int64_t> mine, std::span<std::int64_t> all,
                     const char* what = "host_exchange") {
    self_->host_exchange(mine, all, what);
  }
  void close_step() { self_->close_step(); }
  void latch(failure why) { self_->latch(std::move(why)); }
  void abort(const failure& cause) { self_->abort(cause); }
  void abort(const std::string& cause) { abort(failure{failure::kind::other, cause}); }
  int origin_rank(int r) const { return self_->origin_rank(r); }
  // The communicator inside, for what is not here; null where it is of another type.
  template <class Communicator> Communicator* target() const {
    return static_cast<Communicator*>(self_->target(typeid(Communicator)));
  }

 private:
  struct interface_type {
    virtual ~interface_type() = default;
    virtual int rank() const = 0;
    virtual int size() const = 0;
    virtual const plateau::counters& counters() const = 0;
    virtual std::unique_ptr<interface_type> split(int color, int key) = 0;
    virtual void exchange(on<Stream> s, send_list sends, receive_list receives, const char* what) = 0;
    virtual void host_exchange(std::span<const std::int64_t> mine, std::span<std::int64_t> all,
                               const char* what) = 0;
    virtual void close_step() = 0;
    virtual void latch(failure why) = 0;
    virtual void abort(const failure& cause) = 0;
    virtual int origin_rank(int r) const = 0;
    virtual void* target(const std::type_info& type) const = 0;
  };
  template <class Communicator> struct borrower : interface_type {
    explicit borrower(Communicator* c) : comm(c) {}
    int rank() const override { return comm->rank(); }
    int size() const override { return comm->size(); }
    const plateau::counters& counters() const override { return comm->counters(); }
    std::unique_ptr<interface_type> split(int color, int key) override {
      return std::make_unique<holder<Communicator>>(comm->split(color, key));
    }
    void exchange(on<Stream> s, send_list sends, receive_list receives, const char* what) override {
      comm->exchange(s, sends, receives, what);
    }
    void host_exchange(std::span<const std::int64_t> mine, std::span<std::int64_t> all,
                       const char* what) override {
      comm->host_exchange(mine, all, what);
    }
    void close_step() override { comm->close_step(); }
    void latch(failure why) override { comm->latch(std::move(why)); }
    void abort(const failure& cause) override {
      if constexpr (requires { comm->abort(cause); })
        comm->abort(cause);
      else
        comm->abort(cause.text);
    }
    int origin_rank(int r) const override {
      if constexpr (requires { comm->origin_rank(r); })
        return comm->origin_rank(r);
      else
        return r;
    }
    void* target(const std::type_info& type) const override {
      return type == typeid(Communicator) ? comm : nullptr;
    }
    Communicator* comm;
  };
  template <class Communicator> struct holder final : borrower<Communicator> {
    explicit holder(Communicator&& c) : borrower<Communicator>(nullptr), owned(std::move(c)) {
      this->comm = &owned;
    }
    Communicator owned;
  };
  explicit any_communicator(std::unique_ptr<interface_type> self) : self_(std::move(self)) {}

  std::unique_ptr<interface_type> self_;
};

} // namespace plateau::inline v0
