// SPDX-License-Identifier: Apache-2.0
//
// This process's end of a group: one duplicated MPI communicator, the small messages on it, and the record of
// failures, which it keeps in step with those of the other processes. Nothing here calls a blocking or a
// collective function of MPI: whoever waits polls, so that every wait ends when the group has failed, when
// a rank has left, or with the deadline. Any thread may poll; one at a time takes messages, in the order in
// which they were sent.
#pragma once

#include <plateau/config.hpp>
#include <plateau/host/abort_record.hpp>
#include <plateau/host/exchange_call.hpp>
#include <plateau/mpi/check.hpp>
#include <plateau/mpi/inbox.hpp>
#include <plateau/mpi/options.hpp>
#include <plateau/mpi/outbox.hpp>
#include <plateau/mpi/remote_waits.hpp>
#include <plateau/mpi/size_list.hpp>

#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace plateau::inline v0::mpi {

class link final : public host::abort_record {
 public:
  // Owns `comm`.
  link(MPI_Comm comm, const mpi_options& options)
      : link(comm, options, asked(MPI_Comm_rank, comm), asked(MPI_Comm_size, comm)) {}
  ~link() override { close(); }

  MPI_Comm comm() const { return comm_; }
  int rank() const { return rank_; }
  const mpi_options& options() const { return options_; }

  // All below up to poll() with the lock held.
  inbox& box(int context) { return boxes_[context]; }
  void drop(int context) { boxes_.erase(context); }
  packet take_packet() { return out_.take(); }
  void give_packet(packet&& p) { out_.give(std::move(p)); }
  void send(int to, packet&& p, const void* of) { mpi::check(out_.send(to, std::move(p), of), "MPI_Isend"); }
  // Whether MPI still has some of what was sent for `of`. Larger messages move only while their sender polls:
  // an operation ends when its own have gone, since its rank may compute for long after it.
  bool sending(const void* of) const { return out_.underway(of); }
  // The same of one rank; one that has left has got it.
  bool sending(const void* of, int to) const { return out_.underway(of, to) && !has_left(to); }
  // This rank completed an operation. The others are told, but not each time.
  void completed() {
    progress();
    const auto now = clock::now();
    if (now < told_progress_ + deadline() / 32) return;
    told_progress_ = now;
    tell(message::progress, [](packet_writer&) {});
  }
  void leave_group() {
    if (has_left(rank_)) return;
    leave(rank_);
    tell(message::left, [](packet_writer&) {});
  }
  // All ranks have come. Before that MPI has nothing of the user's, so a failure ends no job.
  bool founded = false;
  // The next number of a communicator that no rank of this process's knowledge uses yet.
  std::int64_t next_context = 1;

  // Takes what has come. Without the lock; any thread.
  void poll() {
    const std::unique_lock one_at_a_time(arrival_mutex_, std::try_to_lock);
    if (!one_at_a_time) return;
    while (next_arrival()) {
      const std::lock_guard lock(mutex());
      if (arriving_tag_ == outbox::tag) handle(arriving_from_, std::move(arriving_));
      wake_all();
    }
    const std::lock_guard lock(mutex());
    out_.reap();
    announce_waits();
  }
  // For calls that return at once: those who wait poll already.
  void poll_if_nobody_does() {
    bool somebody = false;
    {
      const std::lock_guard lock(mutex());
      for (const host::wait_site* s : sites()) somebody = somebody || s->wake != nullptr;
    }
    if (!somebody) poll();
  }

  // Says goodbye, and waits until all have: in a group that has failed as long as the grace, otherwise as
  // long as somebody completes an operation before `patience` is over. Returns whether all have.
  bool farewell(clock::duration patience) {
    lock_type lock(mutex());
    if (!said_goodbye_) {
      leave_group();
      tell(message::goodbye, [](packet_writer&) {});
      said_goodbye_ = true;
    }
    std::condition_variable nobody;
    const auto begun = clock::now();
    for (;;) {
      if (goodbyes_ + 1 == goodbye_.size() && out_.empty()) return true;
      if (aborted() && !given_up_by_) given_up_by_ = clock::now() + options_.grace;
      const auto until = aborted() ? *given_up_by_ : std::max(begun, progressed()) + patience;
      if (clock::now() >= until) return false;
      sleep(lock, nobody, until, nullptr);
    }
  }
  // Ends the job: a rank that has failed cannot tell all others, or cannot get its memory back from MPI.
  [[noreturn]] void end_job(const char* why) noexcept {
    std::string text = "plateau: rank " + std::to_string(rank_) + ": ";
    {
      const std::lock_guard lock(mutex());
      if (const auto& c = cause())
        text += collective_error(c->failed_rank, c->operation, c->sequence, c->text).what();
      std::string silent;
      for (std::size_t r = 0; r < goodbye_.size(); ++r)
        if (!goodbye_[r] && static_cast<int>(r) != rank_)
          silent += (silent.empty() ? "" : ", ") + std::to_string(r);
      text += std::string("; ") + why + " for " + std::to_string(options_.grace.count()) +
              " ms (not ended: rank " + silent + "): the job is aborted\n";
    }
    std::fputs(text.c_str(), stderr);
    std::fflush(stderr);
    MPI_Abort(comm_, 1);
    std::terminate();
  }

 private:
  link(MPI_Comm comm, const mpi_options& options, int rank, int ranks)
      : abort_record(ranks, options.deadline), comm_(comm), rank_(rank), options_(options), out_(comm),
        goodbye_(static_cast<std::size_t>(ranks)), exceptions_(std::uncaught_exceptions()) {
    options_.deadline = std::min(options.deadline, longest);
    options_.grace = std::min(options.grace, longest);
  }
  template <class Ask> static int asked(Ask ask, MPI_Comm comm) {
    int value = 0;
    mpi::check(ask(comm, &value), "MPI_Comm_rank or MPI_Comm_size");
    return value;
  }

  struct unlocked {
    lock_type& lock;
    explicit unlocked(lock_type& l) : lock(l) { lock.unlock(); }
    unlocked(const unlocked&) = delete;
    unlocked& operator=(const unlocked&) = delete;
    ~unlocked() { lock.lock(); }
  };

  // A wait polls. What comes within microseconds is met by spinning; then others may have the core; what
  // takes longer is not worth one.
  void sleep(lock_type& lock, std::condition_variable& wake, clock::time_point,
             host::wait_site* site) override {
    using std::chrono::microseconds;
    const auto waited =
        site != nullptr ? clock::now() - site->begun : clock::duration(std::chrono::seconds(1));
    bool moving = false;
    {
      const unlocked meanwhile(lock);
      if (site != nullptr) moving = site->poll();
      poll();
      if (waited > microseconds(50) && (waited < microseconds(2000) || moving)) std::this_thread::yield();
    }
    if (moving || waited < microseconds(2000)) return;
    wake.wait_for(lock, waited < microseconds(100'000) ? microseconds(50) : microseconds(500));
  }
  void cause_changed() override {
    if (hearing_) return; // who says it tells all
    const failure& c = *cause();
    tell(message::cause, [&](packet_writer& w) {
      w.number(provisional() ? 1 : 0);
      w.number(static_cast<std::uint64_t>(c.failed_rank));
      w.number(c.sequence);
      w.text(c.operation);
      w.text(c.text);
    });
  }
  void wait_ended(const host::wait_site& site) override {
    const auto it = std::find(announced_.begin(), announced_.end(), &site);
    if (it == announced_.end()) return;
    announced_.erase(it);
    tell(message::moves_on, [&](packet_writer& w) { w.number(key_of(site)); });
  }
  static std::uint64_t key_of(const host::wait_site& site) { return reinterpret_cast<std::uintptr_t>(&site); }

  // Tells the others of waits that have lasted long, so that a deadline can say who waited for whom.
  void announce_waits() {
    const auto now = clock::now();
    if (now < announce_next_) return;
    announce_next_ = now + deadline() / 32;
    for (const host::wait_site* s : sites()) {
      if (s->wake == nullptr || now < s->begun + deadline() / 4) continue;
      if (std::find(announced_.begin(), announced_.end(), s) == announced_.end()) announced_.push_back(s);
      awaited_.clear();
      for (std::size_t r = 0; r < goodbye_.size(); ++r)
        if (s->awaits(static_cast<int>(r))) awaited_.push_back(r);
      tell(message::waits, [&](packet_writer& w) {
        w.number(key_of(*s));
        w.number(s->sequence);
        w.text(s->operation);
        w.number(awaited_.size());
        w.numbers(std::span<const std::uint64_t>(awaited_));
      });
    }
  }

  // To all others that may still listen. Does not throw: what cannot be told here, a deadline finds.
  template <class Fill> void tell(message what, Fill fill) noexcept {
    if (said_goodbye_) return;
    for (std::size_t r = 0; r < goodbye_.size(); ++r) {
      if (static_cast<int>(r) == rank_) continue;
      packet p = out_.take();
      packet_writer w(p);
      w.number(static_cast<std::uint64_t>(what));
      fill(w);
      static_cast<void>(out_.send(static_cast<int>(r), std::move(p)));
    }
  }

  // Whether a message has come in whole; it then lies in arriving_. In a group that has failed the bytes of
  // exchanges that nobody receives any more come this way too, so that their senders can leave. (Those that
  // are received never do: MPI gives them to the receives, which are posted before anything is sent.)
  bool next_arrival() {
    if (request_ == MPI_REQUEST_NULL) {
      bool failed = false;
      {
        const std::lock_guard lock(mutex());
        failed = aborted();
        if (arriving_.capacity() == 0) arriving_ = out_.take();
      }
      int there = 0;
      MPI_Message which = MPI_MESSAGE_NULL;
      MPI_Status status{};
      mpi::check(
          MPI_Improbe(MPI_ANY_SOURCE, failed ? MPI_ANY_TAG : outbox::tag, comm_, &there, &which, &status),
          "MPI_Improbe");
      if (there == 0) return false;
      int bytes = 0;
      mpi::check(MPI_Get_count(&status, MPI_BYTE, &bytes), "MPI_Get_count");
      arriving_from_ = status.MPI_SOURCE;
      arriving_tag_ = status.MPI_TAG;
      arriving_.resize(static_cast<std::size_t>(bytes));
      mpi::check(MPI_Imrecv(arriving_.data(), bytes, MPI_BYTE, &which, &request_), "MPI_Imrecv");
    }
    int done = 0;
    mpi::check(MPI_Test(&request_, &done, MPI_STATUS_IGNORE), "MPI_Test");
    return done != 0;
  }

  void handle(int from, packet&& content) {
    packet_reader in(content);
    const auto what = static_cast<message>(in.number());
    switch (what) {
    case message::note:
    case message::integers:
      return operation(what, from, in, std::move(content));
    case message::cause: {
      const bool is_provisional = in.number() != 0;
      failure why{failure::kind::collective, {}, static_cast<int>(in.number()), {}, 0};
      why.sequence = in.number();
      why.operation = in.text();
      why.text = in.text();
      hearing_ = true;
      abort(std::move(why), is_provisional);
      hearing_ = false;
      break;
    }
    case message::left:
      leave(from);
      break;
    case message::goodbye:
      goodbye_[static_cast<std::size_t>(from)] = true;
      ++goodbyes_;
      break;
    case message::progress:
      progress();
      break;
    case message::waits: {
      const std::uint64_t key = in.number(), sequence = in.number();
      auto& whom = waits_.begun(from, key, known_(in.text()), sequence);
      in.numbers(in.number(), whom);
      break;
    }
    case message::moves_on:
      waits_.ended(from, in.number());
      break;
    }
    give_packet(std::move(content));
  }

  // A part of an operation, which must be the one that this rank has in its place.
  void operation(message is, int from, packet_reader& in, packet&& content) {
    inbox& to = box(static_cast<int>(in.number()));
    const std::uint64_t sequence = in.number();
    const char* what = known_(in.text());
    const auto kind =
        is == message::note ? host::operation_kind::exchange : host::operation_kind::host_exchange;
    if (const auto* other = to.log.compare(sequence, kind, what, from); other != nullptr)
      return abort({failure::kind::collective,
                    host::issue_log::contradiction(sequence, kind, what, from, *other, other->rank), from,
                    what, sequence});
    arrival a;
    a.from = from;
    a.number = is == message::note ? in.number() : sequence;
    a.round = is == message::note ? 0 : in.number();
    a.read = in.at();
    if (is == message::note && a.number < to.exchanges_ended) return unexpected(from, what, sequence, in);
    a.content = std::move(content);
    (is == message::note ? to.notes : to.integers).push_back(std::move(a));
  }
  // A note for an exchange that has ended here: there was nothing between the two ranks then, or this rank
  // would have waited for it.
  void unexpected(int from, const char* what, std::uint64_t sequence, packet_reader& in) {
    size_list sent, expected;
    sent.read(in);
    expected.read(in);
    const auto first = [](const size_list& l) { return l.runs().empty() ? 0 : l.runs().front().size; };
    if (first(sent) != 0)
      abort({failure::kind::collective, host::sizes_differ(0, from, rank_, first(sent), 0), from, what,
             sequence});
    else
      abort({failure::kind::collective, host::sizes_differ(0, rank_, from, 0, first(expected)), rank_, what,
             sequence});
  }

  // The end of the group, on the thread that gives it up last. A healthy group frees its communicator once no
  // message can be underway; a failed one leaves it, and ends the job when not all ranks are there to see it.
  void close() noexcept {
    int finalized = 0;
    if (MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0) return;
    try {
      {
        const std::lock_guard lock(mutex());
        if (std::uncaught_exceptions() > exceptions_)
          abort({failure::kind::collective, "an exception passed through the scope of its communicator",
                 rank_, "its own code", 0});
        confirm(rank_);
      }
      const bool complete = farewell(options_.grace);
      const lock_type lock(mutex());
      waits_.clear();
      if (request_ != MPI_REQUEST_NULL) static_cast<void>(new packet(std::move(arriving_))); // still MPI's
      if (!aborted() && complete) MPI_Comm_free(&comm_);
      if (!aborted() || complete || !founded) return;
    } catch (const std::exception& e) {
      std::fprintf(stderr, "plateau: rank %d: at the end of its communicator: %s\n", rank_, e.what());
      return;
    }
    end_job("the end of the other ranks has been awaited");
  }

  MPI_Comm comm_;
  int rank_;
  mpi_options options_;
  outbox out_;
  std::map<int, inbox> boxes_;
  known_names known_;
  std::vector<bool> goodbye_;
  std::size_t goodbyes_ = 0;
  int exceptions_;
  bool said_goodbye_ = false, hearing_ = false;
  std::optional<clock::time_point> given_up_by_; // one grace, however often farewell() is called
  clock::time_point told_progress_{}, announce_next_{};
  std::vector<const host::wait_site*> announced_;
  std::vector<std::uint64_t> awaited_;
  remote_waits waits_{*this};

  std::mutex arrival_mutex_; // before mutex(), never after it
  packet arriving_;
  MPI_Request request_ = MPI_REQUEST_NULL;
  int arriving_from_ = -1, arriving_tag_ = 0;
};

} // namespace plateau::inline v0::mpi
