// SPDX-License-Identifier: Apache-2.0
//
// Who is who among recorded programs: which program stands for a member of a group, and where the k-th
// exchange of a group is in each program. Groups are known by their path, which is the same on all ranks;
// their members each rank has listed itself.
#pragma once

#include <plateau/config.hpp>
#include <plateau/dry_run/program.hpp>
#include <plateau/error.hpp>

#include <algorithm>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <vector>

namespace plateau::inline v0::dry {

// For each rank of the outermost communicator, the place among the programs of the one that stands for it.
// Empty: each rank has a program of its own.
struct fold {
  std::vector<int> program_of;
};

using program_list = std::span<const rank_program* const>;

class group_table {
 public:
  // Keeps the programs' addresses. Throws config_error when the fold does not fit them.
  group_table(program_list programs, const fold& f) : programs_(programs.begin(), programs.end()) {
    set_fold(f);
    const std::size_t n = programs_.size();
    path_.resize(n);
    group_.resize(n);
    exchanges_.resize(n);
    host_exchanges_.resize(n);
    std::map<std::string, std::uint32_t> numbers;
    for (std::size_t p = 0; p < n; ++p)
      for (const group_record& g : programs_[p]->groups) {
        path_[p].push_back(numbers.try_emplace(g.path, numbers.size()).first->second);
        for (const int member : g.members)
          if (member < 0 || member >= ranks())
            throw config_error("plateau: solve: group '" + g.path + "' of rank " + std::to_string(rank(p)) +
                               " has rank " + std::to_string(member) + ", but there are programs for " +
                               std::to_string(ranks()) + " ranks");
      }
    paths_ = numbers.size();
    for (std::size_t p = 0; p < n; ++p) {
      group_[p].assign(paths_, -1);
      for (std::size_t g = 0; g < path_[p].size(); ++g) group_[p][path_[p][g]] = static_cast<int>(g);
      list_records(programs_[p]->exchanges, p, exchanges_[p]);
      list_records(programs_[p]->host_exchanges, p, host_exchanges_[p]);
    }
  }

  program_list programs() const { return programs_; }
  std::size_t paths() const { return paths_; }
  int ranks() const { return static_cast<int>(program_of_.size()); }
  bool folded() const { return programs_.size() < program_of_.size(); }
  int rank(std::size_t program) const { return programs_[program]->rank; }
  // How many ranks a program stands for.
  std::uint64_t stands_for(std::size_t program) const { return weight_[program]; }
  std::size_t program_of(int rank) const {
    return static_cast<std::size_t>(program_of_[static_cast<std::size_t>(rank)]);
  }

  std::uint32_t path_of(std::size_t program, std::uint32_t group) const { return path_[program][group]; }
  // The group with this path, nullptr where the program knows none.
  const group_record* group(std::size_t program, std::size_t path) const {
    const int g = group_[program][path];
    return g < 0 ? nullptr : &programs_[program]->groups[static_cast<std::size_t>(g)];
  }
  // The records of the program's exchanges, or host exchanges, of this path, in their order.
  std::span<const std::uint32_t> exchanges(std::size_t program, std::size_t path) const {
    return exchanges_[program][path];
  }
  std::span<const std::uint32_t> host_exchanges(std::size_t program, std::size_t path) const {
    return host_exchanges_[program][path];
  }
  // The other programs that stand for members of a group, ascending.
  std::vector<std::uint32_t> others(std::size_t program, std::size_t path) const {
    std::vector<std::uint32_t> list;
    if (const group_record* g = group(program, path))
      for (const int member : g->members)
        if (program_of(member) != program) list.push_back(static_cast<std::uint32_t>(program_of(member)));
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
    return list;
  }

 private:
  void set_fold(const fold& f) {
    program_of_ = f.program_of;
    if (program_of_.empty()) {
      program_of_.resize(programs_.size());
      std::iota(program_of_.begin(), program_of_.end(), 0);
    }
    weight_.assign(programs_.size(), 0);
    for (const int p : program_of_) {
      if (p < 0 || static_cast<std::size_t>(p) >= programs_.size())
        throw config_error("plateau: solve: a rank is folded into program " + std::to_string(p) + " of " +
                           std::to_string(programs_.size()));
      ++weight_[static_cast<std::size_t>(p)];
    }
    for (std::size_t p = 0; p < programs_.size(); ++p)
      if (rank(p) < 0 || rank(p) >= ranks() || program_of(rank(p)) != p)
        throw config_error("plateau: solve: program " + std::to_string(p) + " is that of rank " +
                           std::to_string(rank(p)) + ", which it does not stand for");
  }
  template <class Record>
  void list_records(const std::vector<Record>& records, std::size_t p,
                    std::vector<std::vector<std::uint32_t>>& by_path) const {
    by_path.resize(paths_);
    for (std::size_t i = 0; i < records.size(); ++i) {
      auto& list = by_path[path_[p][records[i].group]];
      if (records[i].index != list.size())
        throw config_error("plateau: solve: rank " + std::to_string(rank(p)) + " has exchange " +
                           std::to_string(records[i].index) + " of a group where number " +
                           std::to_string(list.size()) + " comes next");
      list.push_back(static_cast<std::uint32_t>(i));
    }
  }

  std::vector<const rank_program*> programs_;
  std::vector<int> program_of_;
  std::vector<std::uint64_t> weight_;
  std::size_t paths_ = 0;
  std::vector<std::vector<std::uint32_t>> path_;                                    // by program, group
  std::vector<std::vector<int>> group_;                                             // by program, path
  std::vector<std::vector<std::vector<std::uint32_t>>> exchanges_, host_exchanges_; // by program, path
};

// "'all_to_all' at file:line" of an instruction.
inline std::string text_of(const rank_program& p, const instruction& i) {
  if (i.name >= p.labels.size()) return "''";
  const label& l = p.labels[i.name];
  return "'" + std::string(l.name) + "'" + l.at.text();
}
// The same of the instruction that points to a record; searched for, since only errors ask.
inline std::string text_of_record(const rank_program& p, action what, std::uint32_t record) {
  for (const instruction& i : p.instructions)
    if (i.what == what && i.index == record) return text_of(p, i);
  return "''";
}
inline std::string text_of_path(const std::string& path) {
  return path.empty() ? std::string("the outermost communicator") : "communicator '" + path + "'";
}

} // namespace plateau::inline v0::dry
