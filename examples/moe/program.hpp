// SPDX-License-Identifier: Apache-2.0
//
// The frame of main: how a command line becomes a run, on threads of this process or as one process of
// several, and how the program ends. Help and results end with 0, what the user can mend with 2, everything
// else with 1. Each failure is one line, once: where several processes fail the first of them says it, and
// they end with the same status.
#pragma once

#include "command_line.hpp"
#include "mpi_place.hpp"
#include "process_team.hpp"
#include "trouble.hpp"

#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <fmt/format.h>

namespace moe {

// Joins this process to the others that were started with it, calls the first function with its end of what
// joins them, and returns when that has ended everywhere. What it throws on any process ends all of them: the
// second function gets the cause on each, and is the last that is called.
using join_processes =
    std::function<void(std::chrono::seconds deadline, const std::function<void(process_communicator&)>& body,
                       const std::function<void(int rank, const std::string& cause)>& failed)>;

namespace detail {

// What --communicator asks for on a line that cannot be read as a whole.
inline communicator_choice communicator_on(const std::vector<std::string>& arguments) {
  constexpr std::string_view flag = "--communicator";
  communicator_choice choice = communicator_choice::automatic;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    std::string_view value;
    if (arguments[i] == flag && i + 1 < arguments.size())
      value = arguments[i + 1];
    else if (arguments[i].rfind(std::string(flag) + "=", 0) == 0)
      value = std::string_view(arguments[i]).substr(flag.size() + 1);
    for (const communicator_choice each : all_communicators)
      if (value == name_of(each)) choice = each;
  }
  return choice;
}

// Each process is one rank.
inline void take_ranks(options& o, int processes) {
  if (o.ranks_given && o.ranks != processes)
    throw input_error{
        fmt::format("--ranks {}: {} started, and {} one rank; expected --ranks {}, or none, or "
                    "--communicator threads for ranks that are threads",
                    o.ranks, processes == 1 ? "1 process was" : fmt::format("{} processes were", processes),
                    processes == 1 ? "is" : "each is", processes)};
  o.ranks = processes;
}

} // namespace detail

// `run(options, process_team&)` returns the status. `join`: empty in a program without MPI.
template <class Run>
int run_program(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err, Run run,
                const mpi_place& place = {}, const join_processes& join = {}) {
  const auto tell = [&](const trouble& t, bool here) {
    if (here) err << "moe_train: " << t.text << '\n' << std::flush;
    return t.status;
  };
  std::variant<options, help_text> parsed;
  auto unread = trouble_of([&] { parsed = read_flags(arguments); });
  options* const o = unread ? nullptr : std::get_if<options>(&parsed);
  const communicator_choice choice = o != nullptr ? o->communicator : detail::communicator_on(arguments);
  const bool one_of_several =
      choice == communicator_choice::mpi ||
      (choice == communicator_choice::automatic && place.launched && !(place.alone() && !join));
  const bool first = !one_of_several || place.first();
  if (!unread && o == nullptr) {
    if (first) out << std::get<help_text>(parsed).text;
    return 0;
  }
  // A dry run is one process's: the first predicts, the others have nothing to do.
  const bool dry = o != nullptr && o->dry_run;
  if (dry && one_of_several && !o->ranks_given && place.processes) o->ranks = *place.processes;
  if (!one_of_several || dry) {
    if (unread) return tell(*unread, first);
    int status = 0;
    const auto failed = trouble_of([&] {
      complete(*o, first);
      process_team alone;
      if (first) status = run(*o, alone);
    });
    return failed ? tell(*failed, first) : status;
  }
  if (!join)
    return tell(
        {2, choice == communicator_choice::mpi
                ? "--communicator mpi: this program was built without MPI; use --communicator threads, "
                  "or build it with MPI installed"
                : "started by an MPI launcher, but this program was built without MPI; use "
                  "--communicator threads for runs that know nothing of each other, or build it with "
                  "MPI installed"},
        first);

  int status = 1;
  bool told = false;
  const auto say = [&](const trouble& t, bool here) {
    if (!told) status = tell(t, here);
    told = true;
  };
  const auto body = [&](process_communicator& world) {
    process_team team(world);
    try {
      team.together([&] {
        if (unread) throw input_error{unread->text};
        detail::take_ranks(*o, team.size());
        complete(*o, team.first());
      });
      status = run(*o, team);
    } catch (const agreed_trouble& t) {
      say({t.status, t.what()}, team.first());
    }
  };
  const std::chrono::seconds deadline{o == nullptr ? options{}.deadline_seconds : o->deadline_seconds};
  const auto failed = trouble_of([&] {
    join(deadline, body, [&](int rank, const std::string& cause) { say({1, cause}, rank == 0); });
  });
  if (failed) say(*failed, first);
  return status;
}

} // namespace moe
