// SPDX-License-Identifier: Apache-2.0
//
// The host channel over a function of the user's. Each host exchange begins with a frame of one size that
// says which operation it is, how many integers follow, and which exchanges came before it, so that ranks
// that disagree all learn it, and in the same words; few integers travel in the frame itself. Failures of
// other ranks are seen here by the deadline alone, unless the function throws: it carries nothing by itself.
#pragma once

#include <plateau/config.hpp>
#include <plateau/digest.hpp>
#include <plateau/majority.hpp>
#include <plateau/nccl/callback.hpp>
#include <plateau/nccl/host_channel.hpp>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace plateau::inline v0::nccl {

class callback_channel final : public host_channel {
 public:
  // The outermost one. Throws config_error for a rank or size that cannot be, or without all_gather.
  static std::shared_ptr<host_channel> make(nccl_callback with) {
    check_callback(with);
    std::vector<int> origins(static_cast<std::size_t>(with.size));
    std::iota(origins.begin(), origins.end(), 0);
    auto one = std::make_shared<common>(with);
    return std::make_shared<callback_channel>(std::move(with), std::move(one), std::move(origins));
  }
  struct common;
  callback_channel(nccl_callback with, std::shared_ptr<common> one, std::vector<int> origins)
      : with_(std::move(with)), common_(std::move(one)), record_(common_, &common_->record),
        origins_(std::move(origins)) {}

  int rank() const override { return with_.rank; }
  int size() const override { return with_.size; }
  int origin(int r) const override { return origins_[static_cast<std::size_t>(r)]; }
  const std::shared_ptr<host::abort_record>& record() const override { return record_; }

  void issue(std::uint64_t, host::operation_kind kind, const char* what) override {
    host::abort_record::lock_type lock(record_->mutex());
    record_->check(lock, me());
    if (kind != host::operation_kind::exchange) return;
    issued_.add(what);
    last_ = what;
  }

  void host_exchange(std::uint64_t sequence, std::span<const std::int64_t> mine, std::span<std::int64_t> all,
                     const char* what) override {
    const frame own(sequence, what, last_, issued_.value(), mine);
    std::vector<frame> frames(static_cast<std::size_t>(size()));
    gather({reinterpret_cast<const std::int64_t*>(&own), frame::words},
           {reinterpret_cast<std::int64_t*>(frames.data()), frame::words * frames.size()}, what, sequence);
    compare(frames, what, sequence);
    if (mine.size() > frame::payload_words) {
      gather(mine, all, what, sequence);
    } else {
      for (std::size_t r = 0; r < frames.size(); ++r)
        std::copy_n(frames[r].payload.begin(), mine.size(), all.begin() + std::ptrdiff_t(r * mine.size()));
    }
    const host::abort_record::lock_type lock(record_->mutex());
    record_->progress();
  }

  // Its split function makes it, unless all ranks stay together in their order.
  std::shared_ptr<host_channel> child(const host::split_group& agreed) override {
    nccl_callback part = with_;
    if (agreed.parts != 1 || static_cast<int>(agreed.members.size()) != size() ||
        !std::is_sorted(agreed.members.begin(), agreed.members.end())) {
      if (!with_.split)
        throw config_error("plateau: rank " + std::to_string(me()) +
                           ": split of an nccl_communicator whose nccl_callback has no split function: give "
                           "it one, or make the communicator over MPI");
      if (agreed.members.empty()) return nullptr;
      part = with_.split(agreed.members);
      check_callback(part);
    }
    std::vector<int> origins;
    for (const int m : agreed.members) origins.push_back(origin(m));
    return std::make_shared<callback_channel>(std::move(part), common_, std::move(origins));
  }
  std::int64_t split_offer() override { return 0; }

  void abort(failure why) override { tell(std::move(why), false); }
  void abandon(failure why) override { tell(std::move(why), true); }
  void leave() override {
    const host::abort_record::lock_type lock(record_->mutex());
    record_->leave(me());
  }
  void poll() override {
    std::optional<failure> late;
    {
      const host::abort_record::lock_type lock(record_->mutex());
      const site* wait = common_->gathering;
      if (wait != nullptr && !record_->aborted()) late = record_->overdue(*wait, wait->begun);
    }
    if (late) abort(std::move(*late));
  }

 private:
  struct frame {
    static constexpr std::size_t name_bytes = 48, payload_words = 16, words = 3 + 12 + payload_words;
    using name = std::array<char, name_bytes>;

    frame() = default;
    frame(std::uint64_t at, const char* of, const char* after, std::uint64_t before,
          std::span<const std::int64_t> mine)
        : sequence(static_cast<std::int64_t>(at)), length(static_cast<std::int64_t>(mine.size())),
          exchanges(static_cast<std::int64_t>(before)) {
      put(what, of);
      put(last, after);
      if (mine.size() <= payload_words) std::copy(mine.begin(), mine.end(), payload.begin());
    }
    static void put(name& to, const char* text) {
      std::memcpy(to.data(), text, std::min(std::strlen(text), name_bytes - 1));
    }

    std::int64_t sequence = 0, length = 0, exchanges = 0;
    name what{}, last{};
    std::array<std::int64_t, payload_words> payload{};
  };
  static_assert(sizeof(frame) == frame::words * sizeof(std::int64_t));

  struct site final : host::wait_site {
    using wait_site::wait_site;
    bool awaits(int other) const override {
      return other != rank &&
             std::find(of->origins_.begin(), of->origins_.end(), other) != of->origins_.end();
    }
    const callback_channel* of = nullptr;
  };

 public:
  // Of a channel and all that are split off: the rank is in one call of the user's at a time.
  struct common {
    explicit common(const nccl_callback& with) : record(with.size, with.deadline), abort(with.abort) {}
    host::abort_record record;
    const std::function<void(const std::string&)> abort;
    const site* gathering = nullptr; // under the record's mutex
  };

 private:
  static void check_callback(const nccl_callback& c) {
    if (c.size < 1 || c.rank < 0 || c.rank >= c.size)
      throw config_error("plateau: nccl_callback: rank " + std::to_string(c.rank) + " of " +
                         std::to_string(c.size) + " ranks");
    if (!c.all_gather) throw config_error("plateau: nccl_callback: all_gather is missing");
  }
  int me() const { return origin(with_.rank); }

  // Lists the wait while the user's function runs: poll() then finds it when it lasts too long.
  void gather(std::span<const std::int64_t> mine, std::span<std::int64_t> all, const char* what,
              std::uint64_t sequence) {
    site here(me(), what, sequence);
    here.of = this;
    here.wake = &wake_;
    std::optional<failure> thrown;
    host::abort_record::lock_type lock(record_->mutex());
    record_->check(lock, me());
    {
      const host::abort_record::listed while_it_runs{*record_, here};
      here.begun = host::abort_record::clock::now();
      common_->gathering = &here;
      lock.unlock();
      try {
        with_.all_gather(mine, all);
      } catch (...) {
        thrown = failure::current();
      }
      lock.lock();
      common_->gathering = nullptr;
    }
    record_->check(lock, me());
    if (!thrown) return;
    lock.unlock();
    fail("nccl_callback::all_gather threw: " + thrown->text, me(), what, sequence);
  }

  // Every rank has the same frames, so all of them find the same.
  void compare(const std::vector<frame>& frames, const char* what, std::uint64_t sequence) {
    const auto at = [&](int r) -> const frame& { return frames[static_cast<std::size_t>(r)]; };
    const auto odd = [&](auto value_of) { return first_outlier(size(), value_of); };
    const auto most = [&](auto value_of) { return majority_rank(size(), value_of); };
    const auto name_of = [](int r) { return "rank " + std::to_string(r); };

    const auto operation = [&](int r) { return std::pair(at(r).sequence, at(r).what); };
    if (const int r = odd(operation); r >= 0) {
      const int q = most(operation);
      const auto describe = [&](int of) {
        return "host exchange '" + std::string(at(of).what.data()) + "' as operation " +
               std::to_string(at(of).sequence) + " on " + name_of(origin(of));
      };
      fail("ranks issue operations in different orders: " + describe(r) + " meets " + describe(q) +
               latest(at(r), origin(r)) + latest(at(q), origin(q)),
           origin(r), what, sequence);
    }
    const auto exchanges = [&](int r) { return at(r).exchanges; };
    if (const int r = odd(exchanges); r >= 0) {
      const int q = most(exchanges);
      fail("ranks have issued different exchanges before host exchange '" + std::string(what) + "'" +
               latest(at(r), origin(r)) + latest(at(q), origin(q)),
           origin(r), what, sequence);
    }
    const auto length = [&](int r) { return at(r).length; };
    if (const int r = odd(length); r >= 0) {
      std::string text = "ranks give different numbers of integers:";
      for (int q = 0; q < size(); ++q)
        text += (q == 0 ? " " : ", ") + name_of(origin(q)) + " gives " + std::to_string(at(q).length);
      fail(text, origin(r), what, sequence);
    }
  }
  static std::string latest(const frame& f, int rank) {
    return "; the last exchange of rank " + std::to_string(rank) +
           (f.last[0] == '\0' ? " is none" : " is '" + std::string(f.last.data()) + "'");
  }

  [[noreturn]] void fail(std::string text, int failed, const char* what, std::uint64_t sequence) {
    tell({failure::kind::collective, std::move(text), failed, what, sequence}, false);
    host::abort_record::lock_type lock(record_->mutex());
    record_->raise(lock, me());
  }
  void tell(failure why, bool provisional) {
    std::optional<failure> first;
    {
      const host::abort_record::lock_type lock(record_->mutex());
      if (!record_->aborted()) first = why;
      record_->abort(std::move(why), provisional);
      if (!provisional) record_->confirm(me());
    }
    if (first && common_->abort)
      common_->abort(
          collective_error(first->failed_rank, first->operation, first->sequence, first->text).what());
  }

  nccl_callback with_;
  std::shared_ptr<common> common_;
  std::shared_ptr<host::abort_record> record_; // of common_
  std::vector<int> origins_;
  digest issued_;
  const char* last_ = "";
  std::condition_variable wake_;
};

} // namespace plateau::inline v0::nccl
