// SPDX-License-Identifier: Apache-2.0
//
// A host exchange between processes: every rank's integers to every rank, in as many rounds as the number of
// ranks has bits. In each round a rank passes on all that it has to the rank as far below it as it has ranks'
// worth. Blocks carry their lengths, so that all see it when they differ.
#pragma once

#include <plateau/config.hpp>
#include <plateau/host/integer_board.hpp>
#include <plateau/mpi/inbox.hpp>
#include <plateau/mpi/link.hpp>

#include <algorithm>
#include <span>
#include <vector>

namespace plateau::inline v0::mpi {

// Its lists keep their memory. Host thread.
class integer_rounds {
 public:
  integer_rounds(link& over, inbox& from, std::span<const int> origin, int rank, int context)
      : link_(over), box_(from), origin_(origin), rank_(rank), context_(context) {}

  // With the lock held.
  void run(host::abort_record::lock_type& lock, std::condition_variable& wake,
           std::span<const std::int64_t> mine, std::span<std::int64_t> all, const char* what,
           std::uint64_t sequence) {
    const auto ranks = origin_.size();
    const auto me = static_cast<std::size_t>(rank_);
    lengths_.assign(1, mine.size()); // of rank me, me + 1, ...
    values_.assign(mine.begin(), mine.end());
    site here(*this, what, sequence);
    here.on_host_thread = true;
    for (std::size_t have = 1; have < ranks; have *= 2) {
      const std::size_t pass_on = std::min(have, ranks - have);
      send(origin_[(me + ranks - have) % ranks], pass_on, have, what, sequence);
      here.peer = origin_[(me + have) % ranks];
      const auto next = [&](const arrival& a) { return a.number == sequence && a.round == have; };
      link_.await(lock, wake, here,
                  [&] { return std::any_of(box_.integers.begin(), box_.integers.end(), next); });
      arrival got = *inbox::take(box_.integers, next);
      packet_reader in(got.content, got.read);
      in.numbers(in.number(), lengths_);
      std::size_t values = 0;
      for (std::size_t i = have; i < lengths_.size(); ++i) values += lengths_[i];
      in.numbers(values, values_);
      link_.give_packet(std::move(got.content));
    }
    here.peer = -1;
    link_.await(lock, wake, here, [&] { return !link_.sending(this); });
    check_lengths(lock, what, sequence);
    for (std::size_t i = 0; i < ranks; ++i)
      std::copy_n(values_.data() + i * mine.size(), mine.size(), all.data() + (me + i) % ranks * mine.size());
    link_.completed();
  }

 private:
  struct site final : host::wait_site {
    site(const integer_rounds& r, const char* in_operation, std::uint64_t at_sequence)
        : wait_site(r.link_.rank(), in_operation, at_sequence), here(r) {}
    bool awaits(int other) const override {
      return peer < 0 ? here.link_.sending(&here, other) : other == peer;
    }
    const integer_rounds& here;
    int peer = -1; // whose integers are missing; none: those that were sent are still underway
  };

  void send(int to, std::size_t blocks, std::uint64_t round, const char* what, std::uint64_t sequence) {
    packet p = link_.take_packet();
    packet_writer w(p);
    w.number(static_cast<std::uint64_t>(message::integers));
    w.number(static_cast<std::uint64_t>(context_));
    w.number(sequence);
    w.text(what);
    w.number(round);
    w.number(blocks);
    const std::span<const std::uint64_t> lengths(lengths_.data(), blocks);
    w.numbers(lengths);
    std::size_t values = 0;
    for (const std::uint64_t n : lengths) values += n;
    w.numbers(std::span<const std::int64_t>(values_.data(), values));
    link_.send(to, std::move(p), this);
  }
  void check_lengths(host::abort_record::lock_type& lock, const char* what, std::uint64_t sequence) const {
    if (std::all_of(lengths_.begin(), lengths_.end(), [&](auto n) { return n == lengths_[0]; })) return;
    std::vector<std::vector<std::int64_t>> by_rank(lengths_.size());
    for (std::size_t i = 0; i < lengths_.size(); ++i)
      by_rank[(static_cast<std::size_t>(rank_) + i) % by_rank.size()].resize(lengths_[i]);
    host::integer_board::check_lengths(link_, lock, origin_, rank_, by_rank, what, sequence);
  }

  link& link_;
  inbox& box_;
  std::span<const int> origin_;
  int rank_, context_;
  std::vector<std::uint64_t> lengths_;
  std::vector<std::int64_t> values_;
};

} // namespace plateau::inline v0::mpi
