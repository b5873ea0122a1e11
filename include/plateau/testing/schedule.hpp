// SPDX-License-Identifier: Apache-2.0
//
// The world of seeded backends: the hosts of all ranks, their streams, and one token. Exactly one thread runs
// at any time, the one that has the token, whether it runs the code of its own rank or operations of any
// stream of any rank; which of them comes next is drawn from the seed. So a program that is deterministic by
// itself takes the same course whenever it is given the same seed, and another one with another seed.
#pragma once

#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/host/abort_record.hpp>
#include <plateau/testing/audit.hpp>
#include <plateau/testing/random_choice.hpp>
#include <plateau/testing/stream_queue.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace plateau::inline v0 {

namespace testing {
// Something that happened: a step of an operation, or a host that goes on (stream "", operation "host").
struct step {
  int rank = 0;
  std::string stream{};
  std::string operation{};
  int line = 0;

  friend bool operator==(const step& a, const step& b) {
    return a.rank == b.rank && a.stream == b.stream && a.operation == b.operation && a.line == b.line;
  }
};
} // namespace testing

struct seeded_options {
  std::uint64_t seed = 0;
  std::vector<testing::step>* order = nullptr; // gets every step, in the order in which they happen
};

namespace testing {

class schedule {
 public:
  schedule(int ranks, seeded_options options)
      : random_(options.seed), preference_(random_), order_(options.order),
        record_(std::make_shared<host::abort_record>(ranks, std::chrono::hours(1))),
        hosts_(static_cast<std::size_t>(ranks)), token_(static_cast<int>(random_.below(hosts_.size()))) {
    if (ranks == 1) hosts_.front().entered = true; // by whoever uses it
  }
  schedule(const schedule&) = delete;
  schedule& operator=(const schedule&) = delete;

  const std::shared_ptr<host::abort_record>& record() const { return record_; }
  testing::audit& audit() { return audit_; }

  // A rank's host thread begins: waits for the token. It has it from here on, except inside the functions
  // below, until it ends.
  void enter(int rank) {
    std::unique_lock lock(mutex_);
    host_thread& me = of(rank);
    me.wake.wait(lock, [&] { return token_ == rank; });
    me.entered = true;
  }
  bool entered(int rank) { return of(rank).entered; }
  bool ended(int rank) { return of(rank).ended; }
  void end(int rank) {
    of(rank).ended = true;
    for (;;) {
      if (std::all_of(hosts_.begin(), hosts_.end(), [](const host_thread& h) { return h.ended; })) return;
      const candidate* next = draw(rank);
      if (next == nullptr) continue;
      if (!next->host) {
        run(*next);
        continue;
      }
      const std::lock_guard lock(mutex_);
      if (of(next->rank).absent) continue; // it said so only now: nobody would take the token
      note({next->rank, "", "host", 0});
      token_ = next->rank;
      of(token_).wake.notify_one();
      return;
    }
  }

  // Another thread, which has no token, says that the thread of this rank could not be started, and perhaps
  // why: whoever has the token makes it known.
  void never_comes(int rank, std::optional<failure> why) {
    bool token_is_there = false;
    {
      const std::lock_guard lock(mutex_);
      if (of(rank).absent) return;
      of(rank).absent = true;
      if (why && !absent_because_) absent_because_ = std::move(why);
      token_is_there = token_ == rank;
    }
    if (token_is_there) end(rank);
  }

  // Called wherever a host asks for something: lets other things happen first, or not.
  void pause(int rank) {
    while (random_.chance(preference_.steps_between_calls())) {
      list(rank);
      if (candidates_.empty()) return;
      take(rank, candidates_[preference_.choose(random_, candidates_)]);
    }
  }
  // Lets other things happen until ready(), which must not change by itself. `site` says for which ranks.
  void await(int rank, const host::wait_site* site, const std::function<bool()>& ready) {
    host_thread& me = of(rank);
    me.ready = &ready;
    me.site = site;
    while (!ready())
      if (const candidate* next = draw(rank)) take(rank, *next);
    me.ready = nullptr;
    me.site = nullptr;
  }
  // Whether the group has failed, and the rank need not wait for a better word of the one that did.
  bool failed_for(int rank) const {
    return record_->aborted() && (!record_->provisional() || record_->cause()->failed_rank == rank);
  }

  void add(stream_queue& q) {
    q.number = created_++;
    streams_.push_back(&q);
  }
  void remove(stream_queue& q) { streams_.erase(std::find(streams_.begin(), streams_.end(), &q)); }
  void push(stream_queue& q, std::unique_ptr<command> c) {
    c->issued = ++issued_;
    q.push(std::move(c));
    pause(q.rank);
  }

 private:
  struct host_thread {
    std::condition_variable wake;
    bool entered = false, ended = false;
    bool absent = false;                          // with the mutex
    const std::function<bool()>* ready = nullptr; // while it waits
    const host::wait_site* site = nullptr;

    bool may_run() const { return !ended && (ready == nullptr || (*ready)()); }
  };
  host_thread& of(int rank) { return hosts_[static_cast<std::size_t>(rank)]; }

  // Everything that may happen next but that the host `me` goes on.
  void list(int me) {
    candidates_.clear();
    note_absences();
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      stream_queue& q = *streams_[i];
      if (const std::size_t n = q.choices(); n != 0)
        candidates_.push_back({false, q.rank, i, n, q.number, q.head().issued});
    }
    for (int r = 0; r < static_cast<int>(hosts_.size()); ++r)
      if (r != me && of(r).may_run()) candidates_.push_back({true, r, 0, 1, 0, 0});
  }
  void note_absences() {
    if (std::all_of(hosts_.begin(), hosts_.end(), [](const host_thread& h) { return h.entered || h.ended; }))
      return;
    const std::lock_guard lock(mutex_);
    for (std::size_t r = 0; r < hosts_.size(); ++r) {
      if (!hosts_[r].absent || hosts_[r].ended) continue;
      hosts_[r].ended = absence_noted_ = true;
      record_->leave(static_cast<int>(r));
    }
    if (absent_because_) record_->abort(*absent_because_);
  }
  // What happens next while the host `me` cannot go on; null when a failure had to be declared first.
  const candidate* draw(int me) {
    absence_noted_ = false;
    list(me);
    if (candidates_.empty()) list(me); // an exchange that was asked early has seen its peers only now
    if (!candidates_.empty()) return &candidates_[preference_.choose(random_, candidates_)];
    if (!std::exchange(absence_noted_, false)) nothing_can_happen();
    return nullptr;
  }
  void take(int me, candidate c) {
    if (!c.host) return run(c);
    std::unique_lock lock(mutex_);
    if (of(c.rank).absent) return; // it said so only now: nobody would take the token
    note({c.rank, "", "host", 0});
    token_ = c.rank;
    of(token_).wake.notify_one();
    of(me).wake.wait(lock, [&] { return token_ == me; });
  }
  void run(const candidate& c) {
    stream_queue& q = *streams_[c.which];
    note({q.rank, q.name, q.head().name, q.head().at.line});
    q.step(c.choices == 1 ? 0 : random_.below(c.choices));
  }
  void note(step s) {
    if (order_ != nullptr) order_->push_back(std::move(s));
  }

  // Fails the group, which lets waits end.
  void nothing_can_happen() {
    if (record_->aborted() && record_->provisional()) // nobody is left who could say it better
      return record_->confirm(record_->cause()->failed_rank);
    std::vector<const host::wait_site*> sites;
    for (const host_thread& h : hosts_)
      if (h.ready != nullptr && h.site != nullptr) sites.push_back(h.site);
    for (const stream_queue* q : streams_)
      if (q->site() != nullptr) sites.push_back(q->site());
    if (record_->aborted() || sites.empty())
      throw std::logic_error("plateau: seeded schedule: a host waits for something that cannot happen");
    const int ranks = static_cast<int>(hosts_.size());
    std::string text = "deadlock: no operation can run and no rank can go on:";
    int blamed = -1;
    for (const host::wait_site* s : sites) {
      std::string whom;
      for (int r = 0; r < ranks; ++r) {
        if (!s->awaits(r)) continue;
        if (record_->has_left(r)) return record_->abort(host::abort_record::left_alone(r, *s));
        whom += (whom.empty() ? " for rank " : ", ") + std::to_string(r);
        if (blamed < 0) blamed = r;
      }
      text += (s == sites.front() ? " rank " : "; rank ") + std::to_string(s->rank) + " " +
              host::abort_record::waits_in(*s) + (whom.empty() ? " for its own earlier exchanges" : whom);
    }
    record_->abort({failure::kind::collective, text, blamed < 0 ? sites.front()->rank : blamed,
                    sites.front()->operation, sites.front()->sequence});
  }

  random_numbers random_;
  preference preference_;
  std::vector<step>* order_;
  std::shared_ptr<host::abort_record> record_;
  testing::audit audit_;
  std::vector<stream_queue*> streams_;
  std::vector<candidate> candidates_;
  std::uint64_t created_ = 0, issued_ = 0;
  // The token, and what the threads that wait for it share.
  std::mutex mutex_;
  std::vector<host_thread> hosts_;
  std::optional<failure> absent_because_;
  bool absence_noted_ = false;
  int token_;
};

} // namespace testing
} // namespace plateau::inline v0
