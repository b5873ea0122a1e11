// SPDX-License-Identifier: Apache-2.0
//
// From what the ranks of a dry run did to when they would have done it on some machine.
#pragma once

#include <plateau/config.hpp>
#include <plateau/dry_run/hardware.hpp>
#include <plateau/dry_run/program.hpp>
#include <plateau/dry_run/run_dry.hpp>
#include <plateau/dry_run/solve.hpp>
#include <plateau/error.hpp>

#include <string>
#include <vector>

namespace plateau::inline v0 {

// The timeline of the ranks on a machine; ranks that others stand for have none of their own. The same ranks
// may be asked for any number of machines. Where the run failed, the timeline says why and nothing else.
// Throws config_error for figures that no machine can have, and for a run that recorded no programs.
inline dry::timeline predict(const dry_ranks& ran, const hardware& machine, dry::solve_options options = {}) {
  for (const auto& r : ran.recorders)
    if (!r->options().record_program)
      throw config_error("plateau: predict: " + std::string(r->owner()) +
                         " has recorded no program: leave dry_options::record_program on");
  std::vector<const dry::rank_program*> programs;
  dry::fold alike;
  std::vector<int> number(ran.recorders.size()); // of the program of each rank that has one
  for (std::size_t r = 0; r < ran.recorders.size(); ++r) {
    if (ran.stands_for[r] != static_cast<int>(r)) continue;
    number[r] = static_cast<int>(programs.size());
    programs.push_back(&ran.recorders[r]->program());
  }
  for (const int first : ran.stands_for) alike.program_of.push_back(number[static_cast<std::size_t>(first)]);
  dry::timeline t = dry::solve(programs, alike, machine, options);
  if (ran.cause && t.trouble.empty()) { // of a rank that another stands for
    t = {};
    t.trouble =
        collective_error(ran.cause->failed_rank, ran.cause->operation, ran.cause->sequence, ran.cause->text)
            .what();
  }
  return t;
}

} // namespace plateau::inline v0
