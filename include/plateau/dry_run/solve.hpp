// SPDX-License-Identifier: Apache-2.0
//
// Gives virtual times to what ranks of a dry run have recorded. All meetings are matched first: who meets
// whom, and whether the sizes fit. Then the ranks' clocks run. A rank that waits for nobody runs by itself to
// its next exchange; one that does is not let past the earliest event of the others, so nothing from outside
// ever falls into its past. The result depends on the programs, the hardware and the options alone: the same
// bits on every run.
//
//   a rank             host and streams beside one another; see rank_clock.hpp
//   an operation       its time alone, stretched by what runs beside it; see cost.hpp
//   an exchange        begins when the rank's peers have posted theirs; see exchange_match.hpp. Two exchanges
//                      of one rank share its links; that slows this rank, not its peers
//   a host exchange    the latest of the hosts, and host_exchange_seconds x ceil(log2(members))
//   folded ranks       one program stands for all ranks of its class, whose times are its times
#pragma once

#include <plateau/config.hpp>
#include <plateau/dry_run/cost.hpp>
#include <plateau/dry_run/deadlock.hpp>
#include <plateau/dry_run/exchange_match.hpp>
#include <plateau/dry_run/group_table.hpp>
#include <plateau/dry_run/hardware.hpp>
#include <plateau/dry_run/program.hpp>
#include <plateau/dry_run/rank_clock.hpp>
#include <plateau/dry_run/rank_queue.hpp>
#include <plateau/dry_run/rank_trace.hpp>
#include <plateau/dry_run/timeline.hpp>
#include <plateau/error.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace plateau::inline v0::dry {

struct solve_options {
  std::uint64_t perturb_seed = 0;
  double perturb = 0;  // every cost times 1 +- at most this, by the seed, the rank and the operation; below 1
  bool events = false; // fill timeline::events
};

// What made the ranks fail, if any did: a rank's own failure before the echoes of it on others.
inline std::optional<std::string> first_failure(program_list programs) {
  const rank_program* first = nullptr;
  int first_order = 3;
  for (const rank_program* p : programs) {
    if (!p->ended_by) continue;
    const failure& f = *p->ended_by;
    const int order = f.what != failure::kind::collective ? 0 : f.failed_rank == p->rank ? 1 : 2;
    if (order >= first_order) continue;
    first = p;
    first_order = order;
  }
  if (first == nullptr) return std::nullopt;
  const failure& f = *first->ended_by;
  if (f.what != failure::kind::collective)
    return "rank " + std::to_string(first->rank) + " failed: " + f.text;
  return std::string(collective_error(f.failed_rank, f.operation, f.sequence, f.text).what());
}

class solver {
 public:
  solver(const group_table& table, const cost_model& model, const exchange_match& match,
         const solve_options& options)
      : table_(table), model_(model), match_(match), queue_(table.programs().size()) {
    const std::size_t n = table.programs().size();
    clocks_.reserve(n);
    exchanges_.resize(n);
    host_exchanges_.resize(n);
    others_.resize(n);
    for (std::size_t p = 0; p < n; ++p) {
      const rank_program& program = *table.programs()[p];
      if (options.events) traces_.push_back(std::make_unique<rank_trace>(program.rank));
      clocks_.emplace_back(program, model, perturbation{options.perturb_seed, options.perturb},
                           options.events ? traces_[p].get() : nullptr);
      exchanges_[p].resize(program.exchanges.size());
      host_exchanges_[p].resize(program.host_exchanges.size());
      for (std::size_t path = 0; path < table.paths(); ++path) others_[p].push_back(table.others(p, path));
      queue_.set(p, clocks_[p].next_event());
    }
  }

  timeline run() {
    while (queue_.first_time() < rank_clock::never) {
      const std::size_t p = queue_.first();
      queue_.set(p, rank_clock::never);
      clocks_[p].run(queue_.first_time(), rank_meeting{*this, p});
      queue_.set(p, clocks_[p].next_event());
    }
    timeline result;
    result.complete =
        std::all_of(clocks_.begin(), clocks_.end(), [](const rank_clock& c) { return c.finished(); });
    if (!result.complete) result.trouble = deadlock_explainer(table_, clocks_).text();
    for (rank_clock& c : clocks_) {
      result.ranks.push_back(c.times());
      result.seconds = std::max(result.seconds, result.ranks.back().seconds);
    }
    if (!traces_.empty()) result.events.streams.push_back("host");
    for (const auto& t : traces_) t->append_to(result.events);
    return result;
  }

 private:
  // One rank's part in an exchange or host exchange.
  struct meeting {
    double posted = -1;        // when; not yet, if negative
    double latest = 0;         // of those who have come
    std::uint32_t missing = 0; // peers, once posted
    std::uint16_t stream = 0;
  };
  struct rank_meeting {
    solver& all;
    std::size_t program;
    void exchange_posted(std::uint32_t record, std::uint16_t stream, double at) {
      all.exchange_posted(program, record, stream, at);
    }
    void host_exchange_posted(std::uint32_t record, double at) {
      all.host_exchange_posted(program, record, at);
    }
  };

  // Enters p's post at `at`. Calls met(q) for each program whose peers have all come by that, p perhaps.
  template <class Find, class Met>
  static void enter(meeting& mine, double at, std::size_t p, std::span<const std::uint32_t> peers, Find find,
                    Met met) {
    mine.posted = mine.latest = at;
    for (const std::uint32_t q : peers) {
      meeting& theirs = find(q);
      if (theirs.posted < 0) {
        ++mine.missing;
        continue;
      }
      mine.latest = std::max(mine.latest, theirs.posted);
      theirs.latest = std::max(theirs.latest, at);
      if (--theirs.missing == 0) met(q, theirs);
    }
    if (mine.missing == 0) met(p, mine);
  }
  void exchange_posted(std::size_t p, std::uint32_t record, std::uint16_t stream, double at) {
    const exchange_record& r = table_.programs()[p]->exchanges[record];
    const std::uint32_t path = table_.path_of(p, r.group);
    meeting& mine = exchanges_[p][record];
    mine.stream = stream;
    enter(
        mine, at, p, match_.peers_of(p, match_.exchanges[p][record]),
        [&](std::size_t q) -> meeting& { return exchanges_[q][table_.exchanges(q, path)[r.index]]; },
        [&](std::size_t q, const meeting& m) {
          const exchange_load& load = match_.exchanges[q][table_.exchanges(q, path)[r.index]].load;
          clocks_[q].begin_exchange(m.stream, m.latest, model_.exchange(load),
                                    static_cast<std::uint64_t>(load.node_out + load.network_out));
          if (q != p) queue_.set(q, clocks_[q].next_event());
        });
  }
  void host_exchange_posted(std::size_t p, std::uint32_t record, double at) {
    const host_exchange_record& r = table_.programs()[p]->host_exchanges[record];
    const std::uint32_t path = table_.path_of(p, r.group);
    const double seconds = model_.host_exchange_seconds(table_.group(p, path)->members.size());
    enter(
        host_exchanges_[p][record], at, p, others_[p][path],
        [&](std::size_t q) -> meeting& {
          return host_exchanges_[q][table_.host_exchanges(q, path)[r.index]];
        },
        [&](std::size_t q, const meeting& m) {
          clocks_[q].resume_host(m.latest, seconds);
          if (q != p) queue_.set(q, clocks_[q].next_event());
        });
  }

  const group_table& table_;
  const cost_model& model_;
  const exchange_match& match_;
  rank_queue queue_;
  std::vector<std::unique_ptr<rank_trace>> traces_;
  std::vector<rank_clock> clocks_;                               // by program
  std::vector<std::vector<meeting>> exchanges_, host_exchanges_; // by program, record
  std::vector<std::vector<std::vector<std::uint32_t>>> others_;  // by program, path
};

// Throws config_error for an impossible hardware, a perturbation outside [0, 1), or a fold that does not fit
// the programs. What is wrong with the programs themselves is the timeline's trouble.
inline timeline solve(program_list programs, const fold& f, const hardware& machine,
                      const solve_options& options = {}) {
  const cost_model model(machine);
  if (!(options.perturb >= 0 && options.perturb < 1))
    throw config_error("plateau: solve: costs perturbed by +-" + std::to_string(options.perturb) +
                       ", expected 0 or more and less than 1");
  timeline result;
  if (auto failed = first_failure(programs)) { // their programs may have holes
    result.trouble = std::move(*failed);
    return result;
  }
  const group_table table(programs, f);
  const exchange_match match = match_exchanges(table, model);
  result.trouble = match.trouble.empty() ? match_host_exchanges(table) : match.trouble;
  if (!result.trouble.empty()) return result;
  return solver(table, model, match, options).run();
}

} // namespace plateau::inline v0::dry
