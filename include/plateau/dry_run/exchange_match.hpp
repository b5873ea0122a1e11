// SPDX-License-Identifier: Apache-2.0
//
// Who meets whom in the exchanges of recorded programs, what each rank's links carry, and how long that takes
// alone. The k-th send a -> b and the k-th receive of b from a in one exchange must have one size; what does
// not fit is named with both lines. Where ranks are folded, what the ranks of one class send to another must
// be what those receive, in sum.
//
// An exchange of a rank begins when all peers with which it shares bytes have posted theirs, and lasts as
// long as the longest flow that touches the rank. A flow lasts as long as all that its sender sends, or its
// receiver receives, in the same exchange on links of the same kind (in the node or across), whichever is
// more, plus the latency.
#pragma once

#include <plateau/config.hpp>
#include <plateau/dry_run/cost.hpp>
#include <plateau/dry_run/group_table.hpp>
#include <plateau/dry_run/program.hpp>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace plateau::inline v0::dry {

struct matched_exchange {
  exchange_load load;
  std::size_t first_peer = 0; // in peers
  std::uint32_t peers = 0;
};

struct exchange_match {
  std::string trouble;                                  // empty if all exchanges match
  std::vector<std::vector<matched_exchange>> exchanges; // by program, record
  std::vector<std::vector<std::uint32_t>> peers;        // by program: programs that it waits for, in runs

  std::span<const std::uint32_t> peers_of(std::size_t program, const matched_exchange& e) const {
    return {peers[program].data() + e.first_peer, e.peers};
  }
};

class exchange_matcher {
 public:
  exchange_matcher(const group_table& table, const cost_model& model) : table_(table), model_(model) {}

  exchange_match run() {
    const std::size_t n = table_.programs().size();
    result_.exchanges.resize(n);
    result_.peers.resize(n);
    slots_.resize(n);
    flows_.resize(n);
    names_.resize(n);
    for (std::size_t p = 0; p < n; ++p) {
      const rank_program& program = *table_.programs()[p];
      result_.exchanges[p].resize(program.exchanges.size());
      names_[p].resize(program.exchanges.size(), "");
      for (const instruction& i : program.instructions)
        if (i.what == action::exchange && i.name < program.labels.size())
          names_[p][i.index] = program.labels[i.name].name;
    }
    for (std::size_t path = 0; path < table_.paths() && result_.trouble.empty(); ++path) {
      std::size_t most = 0;
      for (std::size_t p = 0; p < n; ++p) most = std::max(most, table_.exchanges(p, path).size());
      for (std::size_t k = 0; k < most && result_.trouble.empty(); ++k) match(path, k);
    }
    return std::move(result_);
  }

 private:
  // What a program has with the ranks of one program, itself perhaps, in one exchange. Digests depend on the
  // sizes of the messages and their order.
  struct flow {
    std::uint32_t program = 0;
    bool to_node = false, to_network = false, from_node = false, from_network = false;
    std::uint64_t sent = 0, received = 0, send_digest = 0, receive_digest = 0;
  };

  void match(std::size_t path, std::size_t k) {
    taking_part_.clear();
    for (std::size_t p = 0; p < flows_.size(); ++p) {
      flows_[p].clear();
      if (k >= table_.exchanges(p, path).size()) continue;
      taking_part_.push_back(p);
      gather(p, path, k);
    }
    for (const std::size_t p : taking_part_)
      if (!check_name(p, path, k)) return;
    for (const std::size_t p : taking_part_)
      for (const flow& f : flows_[p])
        if (!check(p, f, path, k)) return;
    for (const std::size_t p : taking_part_) finish(p, path, k);
  }

  matched_exchange& matched(std::size_t p, std::size_t path, std::size_t k) {
    return result_.exchanges[p][table_.exchanges(p, path)[k]];
  }
  const exchange_record& record(std::size_t p, std::size_t path, std::size_t k) const {
    return table_.programs()[p]->exchanges[table_.exchanges(p, path)[k]];
  }

  void gather(std::size_t p, std::size_t path, std::size_t k) {
    const exchange_record& r = record(p, path, k);
    const group_record& g = *table_.group(p, path);
    exchange_load& load = matched(p, path, k).load;
    load = {};
    for (const message& m : r.sends) {
      if (m.bytes == 0) continue;
      const auto bytes = static_cast<double>(m.bytes);
      const int peer = g.members[static_cast<std::size_t>(m.peer)];
      flow& f = flow_to(p, peer);
      f.sent += m.bytes;
      f.send_digest = (f.send_digest + m.bytes + 1) * digest_factor;
      if (m.peer == g.rank)
        load.self += bytes;
      else if (model_.same_node(table_.rank(p), peer))
        f.to_node = true, load.node_out += bytes;
      else
        f.to_network = true, load.network_out += bytes;
    }
    for (const message& m : r.receives) {
      if (m.bytes == 0) continue;
      const auto bytes = static_cast<double>(m.bytes);
      const int peer = g.members[static_cast<std::size_t>(m.peer)];
      flow& f = flow_to(p, peer);
      f.received += m.bytes;
      f.receive_digest = (f.receive_digest + m.bytes + 1) * digest_factor;
      if (m.peer == g.rank) continue;
      if (model_.same_node(table_.rank(p), peer))
        f.from_node = true, load.node_in += bytes;
      else
        f.from_network = true, load.network_in += bytes;
    }
    const auto by_program = [](const flow& a, const flow& b) { return a.program < b.program; };
    for (const flow& f : flows_[p]) slots_[f.program] = 0;
    if (!std::is_sorted(flows_[p].begin(), flows_[p].end(), by_program))
      std::sort(flows_[p].begin(), flows_[p].end(), by_program);
  }
  flow& flow_to(std::size_t p, int peer) {
    const std::size_t q = table_.program_of(peer);
    std::uint32_t& slot = slots_[q];
    if (slot == 0) {
      flows_[p].push_back({});
      flows_[p].back().program = static_cast<std::uint32_t>(q);
      slot = static_cast<std::uint32_t>(flows_[p].size());
    }
    return flows_[p][slot - 1];
  }
  flow flow_back(std::size_t from, std::size_t to) const {
    const auto& list = flows_[from];
    const auto at = std::lower_bound(list.begin(), list.end(), to,
                                     [](const flow& f, std::size_t q) { return f.program < q; });
    return at != list.end() && at->program == to ? *at : flow{};
  }

  // Whether it is what the group's first member calls it: ranks' threads compare, too, but only where none is
  // far ahead.
  bool check_name(std::size_t p, std::size_t path, std::size_t k) {
    const group_record& g = *table_.group(p, path);
    const std::size_t q = table_.program_of(g.members.front());
    if (q == p || k >= table_.exchanges(q, path).size()) return true;
    const char* mine = names_[p][table_.exchanges(p, path)[k]];
    const char* theirs = names_[q][table_.exchanges(q, path)[k]];
    if (mine == theirs || std::strcmp(mine, theirs) == 0) return true;
    result_.trouble = "plateau: dry run: ranks issue operations in different orders: exchange " +
                      std::to_string(k) + " of " + text_of_path(g.path) + " is " + exchange_text(q, path, k) +
                      " on rank " + std::to_string(table_.rank(q)) + ", but " + exchange_text(p, path, k) +
                      " on rank " + std::to_string(table_.rank(p));
    return false;
  }
  bool check(std::size_t p, const flow& f, std::size_t path, std::size_t k) {
    const std::size_t q = f.program;
    const flow back = flow_back(q, p);
    if (table_.folded()) {
      const std::uint64_t mine = table_.stands_for(p), theirs = table_.stands_for(q);
      if (mine * f.sent == theirs * back.received && mine * f.received == theirs * back.sent) return true;
      result_.trouble =
          "plateau: dry run: the ranks that were folded are not alike: in exchange " + std::to_string(k) +
          " of " + text_of_path(table_.group(p, path)->path) + ", " + class_text(p, path, k) + ", " +
          std::to_string(mine * f.sent) + " bytes are sent to and " + std::to_string(mine * f.received) +
          " expected from those of " + class_text(q, path, k) + ", which expect " +
          std::to_string(theirs * back.received) + " and send " + std::to_string(theirs * back.sent);
      return false;
    }
    if (f.send_digest != back.receive_digest) return explain(p, q, path, k);
    if (f.receive_digest != back.send_digest) return explain(q, p, path, k);
    return true;
  }
  std::string class_text(std::size_t p, std::size_t path, std::size_t k) const {
    return "the " + std::to_string(table_.stands_for(p)) + " ranks like rank " +
           std::to_string(table_.rank(p)) + " (" + exchange_text(p, path, k) + ")";
  }
  std::string exchange_text(std::size_t p, std::size_t path, std::size_t k) const {
    const auto list = table_.exchanges(p, path);
    if (k < list.size()) return text_of_record(*table_.programs()[p], action::exchange, list[k]);
    std::string text = "has issued " + std::to_string(list.size()) + " exchanges there";
    if (!list.empty())
      text += ", the last " + text_of_record(*table_.programs()[p], action::exchange, list.back());
    return text;
  }
  static std::vector<std::size_t> sizes_of(const std::vector<message>& list, const group_record& g,
                                           int rank) {
    std::vector<std::size_t> sizes;
    for (const message& m : list)
      if (g.members[static_cast<std::size_t>(m.peer)] == rank) sizes.push_back(m.bytes);
    return sizes;
  }
  // Names the first send of p, or receive of q, that does not fit. Always false.
  bool explain(std::size_t p, std::size_t q, std::size_t path, std::size_t k) {
    std::vector<std::size_t> sends, receives;
    if (k < table_.exchanges(p, path).size())
      sends = sizes_of(record(p, path, k).sends, *table_.group(p, path), table_.rank(q));
    if (k < table_.exchanges(q, path).size())
      receives = sizes_of(record(q, path, k).receives, *table_.group(q, path), table_.rank(p));
    std::size_t j = 0;
    while (j < sends.size() && j < receives.size() && sends[j] == receives[j]) ++j;
    const std::string from = "rank " + std::to_string(table_.rank(p)),
                      to = "rank " + std::to_string(table_.rank(q));
    const group_record* g = table_.group(p, path) != nullptr ? table_.group(p, path) : table_.group(q, path);
    std::string text = "plateau: dry run: exchange " + std::to_string(k) + " of " + text_of_path(g->path);
    if (j < sends.size() && j < receives.size())
      text += ": send " + std::to_string(j) + " of " + from + " to " + to + " has " +
              std::to_string(sends[j]) + " bytes, the receive of " + to + " that it meets expects " +
              std::to_string(receives[j]);
    else if (j < sends.size())
      text += ": send " + std::to_string(j) + " of " + from + " to " + to + " (" + std::to_string(sends[j]) +
              " bytes) is received by nobody";
    else
      text += ": receive " + std::to_string(j) + " of " + to + " from " + from + " (" +
              std::to_string(receives[j]) + " bytes) is sent by nobody";
    result_.trouble =
        text + "; " + from + ": " + exchange_text(p, path, k) + "; " + to + ": " + exchange_text(q, path, k);
    return false;
  }

  void finish(std::size_t p, std::size_t path, std::size_t k) {
    matched_exchange& mine = matched(p, path, k);
    exchange_load& load = mine.load;
    load.seconds = model_.self_flow(load.self);
    scratch_.clear();
    for (const flow& f : flows_[p]) {
      const exchange_load& other = matched(f.program, path, k).load;
      double longest = 0;
      if (f.to_node) longest = std::max(longest, model_.node_flow(load.node_out, other.node_in));
      if (f.from_node) longest = std::max(longest, model_.node_flow(other.node_out, load.node_in));
      if (f.to_network) longest = std::max(longest, model_.network_flow(load.network_out, other.network_in));
      if (f.from_network)
        longest = std::max(longest, model_.network_flow(other.network_out, load.network_in));
      load.seconds = std::max(load.seconds, longest);
      if (f.program != p) scratch_.push_back(f.program);
    }
    // Programs meet the same peers again and again: the last list serves as long as it is the same.
    auto& pool = result_.peers[p];
    const std::size_t n = scratch_.size();
    if (pool.size() < n || !std::equal(scratch_.begin(), scratch_.end(), pool.end() - static_cast<long>(n)))
      pool.insert(pool.end(), scratch_.begin(), scratch_.end());
    mine.first_peer = pool.size() - n;
    mine.peers = static_cast<std::uint32_t>(n);
  }

  static constexpr std::uint64_t digest_factor = 0x9e3779b97f4a7c15u;
  const group_table& table_;
  const cost_model& model_;
  exchange_match result_;
  std::vector<std::vector<flow>> flows_;        // by program
  std::vector<std::uint32_t> slots_;            // by program: place in the flows being gathered, from 1
  std::vector<std::vector<const char*>> names_; // by program, record
  std::vector<std::size_t> taking_part_;
  std::vector<std::uint32_t> scratch_;
};

inline exchange_match match_exchanges(const group_table& table, const cost_model& model) {
  return exchange_matcher(table, model).run();
}

// Empty if every host exchange of a group has been called by all its members.
inline std::string match_host_exchanges(const group_table& table) {
  for (std::size_t p = 0; p < table.programs().size(); ++p)
    for (std::size_t path = 0; path < table.paths(); ++path) {
      const auto mine = table.host_exchanges(p, path);
      for (const std::uint32_t q : table.others(p, path)) {
        const auto theirs = table.host_exchanges(q, path);
        const auto back = table.others(q, path);
        if (!theirs.empty() && !std::binary_search(back.begin(), back.end(), p))
          return "plateau: dry run: " + text_of_path(table.group(p, path)->path) + " of rank " +
                 std::to_string(table.rank(p)) + " has rank " + std::to_string(table.rank(q)) +
                 ", or one like it, but not the other way round: the ranks that were folded are not alike";
        if (theirs.size() >= mine.size()) continue;
        const auto name = [&](std::size_t program, std::uint32_t record) {
          return text_of_record(*table.programs()[program], action::host_exchange, record);
        };
        return "plateau: dry run: host exchange " + std::to_string(theirs.size()) + " of " +
               text_of_path(table.group(p, path)->path) + ": rank " + std::to_string(table.rank(p)) +
               " calls " + name(p, mine[theirs.size()]) + ", rank " + std::to_string(table.rank(q)) +
               " has called only " + std::to_string(theirs.size()) +
               (theirs.empty() ? std::string() : ", the last " + name(q, theirs.back()));
      }
    }
  return {};
}

} // namespace plateau::inline v0::dry
