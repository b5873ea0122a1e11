// SPDX-License-Identifier: Apache-2.0
//
// One exchange of one rank. It posts its receives, then tells each peer with which there is traffic what it
// sends, what it expects and how its memory is cut; a send starts only when the peer's note has come and
// agrees. So every byte that is sent meets a receive that is posted already: nothing is buffered, sizes that
// differ are known before anything moves, and who unwinds knows what MPI may still touch.
#pragma once

#include <plateau/config.hpp>
#include <plateau/host/abort_record.hpp>
#include <plateau/host/copy_bytes.hpp>
#include <plateau/host/exchange_call.hpp>
#include <plateau/mpi/check.hpp>
#include <plateau/mpi/inbox.hpp>
#include <plateau/mpi/link.hpp>
#include <plateau/mpi/pieces.hpp>
#include <plateau/mpi/size_list.hpp>

#include <algorithm>
#include <atomic>
#include <span>
#include <thread>
#include <vector>

namespace plateau::inline v0::mpi {

// Its lists keep their memory from exchange to exchange. One thread at a time.
class transfer {
 public:
  // `from` is the inbox of the communicator.
  transfer(link& over, inbox& from, std::span<const int> origin, int rank, int context)
      : link_(over), box_(from), origin_(origin), rank_(rank), context_(context), parts_(origin.size()) {}

  // Blocks until all has been received and sent. When it leaves by an exception MPI has let go of the
  // buffers. The lock is held when it returns or throws, but not all the time.
  void run(host::abort_record::lock_type& lock, std::condition_variable& wake, host::exchange_call& call) {
    sort(call);
    site here(*this, call);
    try {
      lock.unlock();
      post_receives();
      lock.lock();
      for (int i = 1; i < size(); ++i) send_note(call, (rank_ + i) % size());
      lock.unlock();
      copy_own(lock, call);
      lock.lock();
      for (;;) {
        while (auto note =
                   inbox::take(box_.notes, [&](const arrival& a) { return a.number == call.index; })) {
          lock.unlock();
          agree(lock, call, *note);
          lock.lock();
          link_.give_packet(std::move(note->content));
        }
        if (finished()) return;
        link_.await(lock, wake, here, [&] { return note_of(call.index) || finished(); });
      }
    } catch (...) {
      if (!lock.owns_lock()) lock.lock();
      if (const failure why = failure::current(); why.what != failure::kind::collective)
        link_.abort({failure::kind::collective, why.text, origin(rank_), call.what, call.sequence});
      lock.unlock();
      let_go();
      lock.lock();
      throw;
    }
  }

 private:
  struct site final : host::wait_site {
    site(transfer& t, const host::exchange_call& c)
        : wait_site(t.origin(t.rank_), c.what, c.sequence), here(t) {}
    bool awaits(int other) const override { return here.awaits(other); }
    bool poll() override { return here.poll(); }
    transfer& here;
  };
  // What this rank and a peer have to do with each other.
  struct part {
    std::span<const piece> sends, receives;
    std::vector<MPI_Request> requests; // receives, then sends
    std::atomic<std::size_t> ended{0}; // of the requests, in order; other threads ask whom a wait is for
    std::size_t posted = 0;            // receives
    size_list cuts;
    bool waiting = false; // there is traffic
    bool agreed = false;

    void reset() {
      requests.clear();
      ended = 0;
      posted = 0;
      cuts.clear();
      waiting = !sends.empty() || !receives.empty();
      agreed = false;
    }
    bool done() const { return ended == requests.size(); }
    // MPI moves all of them; which one is asked for does not matter.
    void test() {
      for (; ended < requests.size(); ++ended) {
        int done = 0;
        check(MPI_Test(&requests[ended], &done, MPI_STATUS_IGNORE), "MPI_Test");
        if (done == 0) return;
      }
    }
  };

  int size() const { return static_cast<int>(parts_.size()); }
  int origin(int rank) const { return origin_[static_cast<std::size_t>(rank)]; }
  part& part_of(int rank) { return parts_[static_cast<std::size_t>(rank)]; }
  const part& part_of(int rank) const { return parts_[static_cast<std::size_t>(rank)]; }
  int tag() const { return outbox::tag + 1 + context_; }

  // A rank that has left has sent all that it agreed to.
  bool awaits(int other) const {
    for (int r = 0; r < size(); ++r)
      if (origin(r) == other && r != rank_)
        return part_of(r).waiting && (!part_of(r).agreed || (!part_of(r).done() && !link_.has_left(other)) ||
                                      link_.sending(this, other));
    return false;
  }
  // Whether bytes are moving.
  bool poll() {
    bool moving = false;
    for (part& p : parts_) {
      p.test();
      moving = moving || (p.agreed && !p.done());
    }
    return moving;
  }

  // The pieces of each peer, one after the other.
  void sort(const host::exchange_call& call) {
    const auto by_peer = [this](auto ops, std::vector<piece>& pieces, auto list) {
      starts_.assign(parts_.size() + 1, 0);
      for (const auto& op : ops) ++starts_[static_cast<std::size_t>(op.peer) + 1];
      for (std::size_t r = 1; r < starts_.size(); ++r) starts_[r] += starts_[r - 1];
      pieces.resize(ops.size());
      for (std::size_t r = 0; r < parts_.size(); ++r)
        parts_[r].*list = std::span<const piece>(pieces).subspan(starts_[r], starts_[r + 1] - starts_[r]);
      for (const auto& op : ops) // MPI takes what it sends as a pointer to const
        pieces[starts_[static_cast<std::size_t>(op.peer)]++] = {
            static_cast<unsigned char*>(const_cast<void*>(static_cast<const void*>(op.p))), op.bytes};
    };
    by_peer(call.sends, sends_, &part::sends);
    by_peer(call.receives, receives_, &part::receives);
    for (part& p : parts_) p.reset();
    part_of(rank_).agreed = true;
  }
  static void list(std::span<const piece> pieces, size_list& sizes) {
    sizes.clear();
    for (const piece& p : pieces) sizes.append(p.bytes);
  }

  void post_receives() {
    for (int i = 1; i < size(); ++i) {
      const int peer = (rank_ + size() - i) % size();
      part& p = part_of(peer);
      each_message(p.receives, link_.options().largest_message, [&](unsigned char* to, std::size_t bytes) {
        p.requests.push_back(MPI_REQUEST_NULL);
        check(MPI_Irecv(to, static_cast<int>(bytes), MPI_BYTE, origin(peer), tag(), link_.comm(),
                        &p.requests.back()),
              "MPI_Irecv");
        p.posted = p.requests.size();
        p.cuts.append(bytes);
      });
    }
  }
  void send_note(const host::exchange_call& call, int peer) {
    const part& p = part_of(peer);
    if (!p.waiting) return;
    packet note = link_.take_packet();
    packet_writer w(note);
    w.number(static_cast<std::uint64_t>(message::note));
    w.number(static_cast<std::uint64_t>(context_));
    w.number(call.sequence);
    w.text(call.what);
    w.number(call.index);
    for (const auto& pieces : {p.sends, p.receives}) {
      list(pieces, sizes_);
      sizes_.write(w);
    }
    p.cuts.write(w);
    link_.send(origin(peer), std::move(note), this);
  }

  // Sends to oneself.
  void copy_own(host::abort_record::lock_type& lock, const host::exchange_call& call) {
    const part& p = part_of(rank_);
    list(p.sends, sizes_);
    list(p.receives, other_);
    if (const auto d = first_difference(sizes_, other_); d.found)
      disagree(lock, call, d.which, rank_, rank_, d.one, d.other);
    piece_reader from(p.sends); // rows that lie adjacent on both sides are one copy
    each_message(p.receives, std::size_t(-1), [&](unsigned char* to, std::size_t bytes) {
      from.next(bytes, [&](const unsigned char* stretch, std::size_t n) {
        host::copy_bytes(to, stretch, n);
        to += n;
      });
    });
  }

  bool note_of(std::uint64_t index) const {
    return std::any_of(box_.notes.begin(), box_.notes.end(),
                       [&](const arrival& a) { return a.number == index; });
  }
  // A peer's note has come: what both say must be the same; then the sends to it start.
  void agree(host::abort_record::lock_type& lock, const host::exchange_call& call, const arrival& note) {
    const int peer = static_cast<int>(std::find(origin_.begin(), origin_.end(), note.from) - origin_.begin());
    part& p = part_of(peer);
    packet_reader in(note.content, note.read);
    other_.read(in);
    list(p.receives, sizes_);
    if (const auto d = first_difference(other_, sizes_); d.found)
      disagree(lock, call, d.which, peer, rank_, d.one, d.other);
    other_.read(in);
    list(p.sends, sizes_);
    if (const auto d = first_difference(sizes_, other_); d.found)
      disagree(lock, call, d.which, rank_, peer, d.one, d.other);
    p.agreed = true;
    other_.read(in);
    piece_reader pieces(p.sends);
    for (const size_list::run& r : other_.runs())
      for (std::uint64_t i = 0; i < r.count; ++i) send_message(p, pieces, peer, r.size);
    p.test();
  }
  // The sender is named as the failed rank: a receive cannot be wrong by itself.
  [[noreturn]] void disagree(host::abort_record::lock_type& lock, const host::exchange_call& call,
                             std::uint64_t which, int from, int to, std::uint64_t sent,
                             std::uint64_t expected) {
    lock.lock();
    link_.fail(lock, origin(rank_),
               {failure::kind::collective,
                host::sizes_differ(which, origin(from), origin(to), sent, expected), origin(from), call.what,
                call.sequence});
  }

  void send_message(part& p, piece_reader& pieces, int peer, std::size_t bytes) {
    lengths_.clear();
    places_.clear();
    unsigned char* first = nullptr;
    pieces.next(bytes, [&](unsigned char* from, std::size_t n) {
      if (first == nullptr) first = from;
      MPI_Aint place = 0;
      check(MPI_Get_address(from, &place), "MPI_Get_address");
      places_.push_back(place);
      lengths_.push_back(static_cast<int>(n));
    });
    p.requests.push_back(MPI_REQUEST_NULL);
    if (lengths_.size() == 1) {
      check(MPI_Isend(first, lengths_[0], MPI_BYTE, origin(peer), tag(), link_.comm(), &p.requests.back()),
            "MPI_Isend");
      return;
    }
    MPI_Datatype gathered = MPI_DATATYPE_NULL;
    check(MPI_Type_create_hindexed(static_cast<int>(lengths_.size()), lengths_.data(), places_.data(),
                                   MPI_BYTE, &gathered),
          "MPI_Type_create_hindexed");
    check(MPI_Type_commit(&gathered), "MPI_Type_commit");
    const int code =
        MPI_Isend(MPI_BOTTOM, 1, gathered, origin(peer), tag(), link_.comm(), &p.requests.back());
    MPI_Type_free(&gathered); // MPI keeps it as long as it is in use
    check(code, "MPI_Isend");
  }

  bool finished() const {
    return std::all_of(parts_.begin(), parts_.end(),
                       [](const part& p) { return !p.waiting || (p.agreed && p.done()); }) &&
           !link_.sending(this); // notes
  }

  // Takes the buffers back from MPI. Receives for which nothing has come are cancelled; what has begun ends,
  // since the peer is in the same exchange, or takes in what it does not want any more. Where it does not,
  // because it is gone, the memory cannot be given back to its owner, and the job ends.
  void let_go() noexcept {
    try {
      for (part& p : parts_)
        for (std::size_t i = p.ended; i < p.posted; ++i)
          if (p.requests[i] != MPI_REQUEST_NULL) check(MPI_Cancel(&p.requests[i]), "MPI_Cancel");
      auto moved = host::abort_record::clock::now(); // something has, within the grace
      for (std::size_t before = 0;;) {
        poll();
        if (std::all_of(parts_.begin(), parts_.end(), [](const part& p) { return p.done(); })) return;
        std::size_t ended = 0;
        for (const part& p : parts_) ended += p.ended;
        if (ended != before) moved = host::abort_record::clock::now();
        before = ended;
        if (host::abort_record::clock::now() > moved + link_.options().grace) break;
        link_.poll();
        std::this_thread::yield();
      }
    } catch (const std::exception& e) {
      std::fprintf(stderr, "plateau: rank %d: %s\n", origin(rank_), e.what());
    }
    link_.end_job("buffers of an exchange have been in the hands of MPI");
  }

  link& link_;
  inbox& box_;
  std::span<const int> origin_;
  int rank_, context_;
  std::vector<part> parts_;
  std::vector<piece> sends_, receives_;
  std::vector<std::size_t> starts_;
  size_list sizes_, other_;
  std::vector<int> lengths_;
  std::vector<MPI_Aint> places_;
};

} // namespace plateau::inline v0::mpi
