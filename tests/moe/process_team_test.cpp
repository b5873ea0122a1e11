// SPDX-License-Identifier: Apache-2.0
//
// Processes of one run, played by threads: what any of them finds wrong ends all of them alike and is said
// once; what they were given differently is named with both values; what they have to say reaches rank 0.
#include "gather.hpp"
#include "mpi_place.hpp"
#include "process_team.hpp"
#include "program.hpp"
#include "scratch_folder.hpp"
#include "words.hpp"

#include <plateau/run_ranks.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using moe::process_communicator;
using moe::process_team;
using moe_test::has;
using moe_test::message_of;

namespace {

// f(team) on each of `ranks`.
template <class F> void on_teams(int ranks, F f) {
  plateau::run_ranks(ranks, [&](plateau::thread_communicator& comm) {
    process_communicator world(&comm);
    process_team team(world);
    f(team);
  });
}

struct ending {
  int status = -1;
  std::string out, err;
  bool ran = false;
};

using line = std::vector<std::string>;

// One program for each line, each told that it is one of several.
std::vector<ending> programs(const std::vector<line>& lines,
                             const std::function<int(const moe::options&, process_team&)>& run,
                             bool with_mpi = true) {
  const int n = static_cast<int>(lines.size());
  auto group = plateau::thread_communicator::make_group(n, {.deadline = std::chrono::seconds(20)});
  std::vector<ending> ends(lines.size());
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r)
    threads.emplace_back([&, r] {
      ending& end = ends[static_cast<std::size_t>(r)];
      plateau::thread_communicator& comm = group[static_cast<std::size_t>(r)];
      const moe::join_processes join = [&](std::chrono::seconds, const auto& body, const auto& failed) {
        process_communicator world(&comm);
        try {
          body(world);
        } catch (...) {
          comm.abort(plateau::failure::current());
          failed(r, message_of<plateau::error>([&] { comm.cause()->raise(); }));
        }
        comm.leave();
        if (const auto cause = comm.cause()) cause->raise();
      };
      std::ostringstream out, err;
      end.status = moe::run_program(
          lines[static_cast<std::size_t>(r)], out, err,
          [&](const moe::options& o, process_team& team) {
            end.ran = true;
            return run(o, team);
          },
          moe::mpi_place{true, n, r}, with_mpi ? join : moe::join_processes{});
      end.out = out.str();
      end.err = err.str();
    });
  for (std::thread& t : threads) t.join();
  return ends;
}

int succeed(const moe::options&, process_team&) { return 0; }

// All have this status, and the first says this and nothing else.
void check_end(const std::vector<ending>& ends, int status, const std::string& said) {
  for (std::size_t r = 0; r < ends.size(); ++r) {
    CAPTURE(r);
    CHECK(ends[r].status == status);
    CHECK(ends[r].err == (r == 0 ? "moe_train: " + said + "\n" : ""));
    CHECK(ends[r].out.empty());
  }
}

} // namespace

TEST_CASE("words: what was put is taken; what ends too early is told") {
  moe::word_writer to;
  const std::string odd("a\0b \xff", 5);
  for (const std::string& text : {std::string(), std::string("12345678"), odd}) to.put(text);
  to.put(-3);
  to.put(std::numeric_limits<std::uint64_t>::max());
  to.put(-0.1);
  to.put(true);
  moe::word_reader from(to.words());
  CHECK(from.text().empty());
  CHECK(from.text() == "12345678");
  CHECK(from.text() == odd);
  CHECK(from.number() == -3);
  CHECK(from.number<std::uint64_t>() == std::numeric_limits<std::uint64_t>::max());
  CHECK(from.real() == -0.1);
  CHECK(from.number<bool>());
  CHECK(from.empty());
  CHECK(has(message_of<std::runtime_error>([&] { from.number(); }), "ends too early"));
  const std::vector<std::int64_t> cut{100, 0};
  CHECK(has(message_of<std::runtime_error>([&] { moe::word_reader(cut).text(); }), "ends too early"));
}

TEST_CASE("words of every rank reach rank 0, long and short ones, none too") {
  for (const int ranks : {1, 3}) {
    const auto words_of = [](int r, std::size_t longest) {
      std::vector<std::int64_t> words(r == 1 ? 0 : longest / (r == 2 ? 2 : 1));
      std::iota(words.begin(), words.end(), 1000 * r);
      return words;
    };
    plateau::run_ranks(ranks, [&](plateau::thread_communicator& comm) {
      for (const std::size_t longest :
           {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{200'003}}) {
        const auto all = moe::gather_words(comm, words_of(comm.rank(), longest), "words");
        if (comm.rank() != 0) {
          CHECK(all.empty());
          continue;
        }
        REQUIRE(all.size() == static_cast<std::size_t>(comm.size()));
        for (int r = 0; r < comm.size(); ++r) CHECK(all[static_cast<std::size_t>(r)] == words_of(r, longest));
      }
    });
  }
}

TEST_CASE("a team of one calls functions and is not in the way") {
  process_team alone;
  CHECK(alone.first());
  CHECK(message_of<moe::input_error>([&] { alone.together([] { throw moe::input_error("bad"); }); }) ==
        "bad");
  int called = 0;
  alone.on_first([&] { ++called; });
  alone.agree_on({{"--seed", "1"}});
  CHECK(called == 1);
}

TEST_CASE("what fails on one fails on all, and they can go on together") {
  on_teams(3, [](process_team& team) {
    const auto said = [&](auto f) {
      int status = 0;
      const std::string text = message_of<moe::agreed_trouble>([&] {
        try {
          team.together(f);
        } catch (const moe::agreed_trouble& t) {
          status = t.status;
          throw;
        }
      });
      return std::to_string(status) + " " + text;
    };
    CHECK(said([] {}) == "0 ");
    CHECK(said([] { throw moe::input_error("no file"); }) == "2 no file");
    CHECK(said([&] {
            if (team.rank() >= 1) throw moe::output_error("full " + std::to_string(team.rank()));
          }) == "1 rank 1: full 1");
    CHECK(said([&] {
            if (team.rank() == 0) throw plateau::config_error("shape");
          }) == "2 shape");
    CHECK(said([&] {
            if (team.rank() == 2) throw moe::input_error(std::string(100'000, 'x'));
          }).size() < 5000);
    int called = 0;
    team.on_first([&] { ++called; });
    CHECK(called == (team.first() ? 1 : 0));
  });
}

TEST_CASE("what differs is named with both values, by the rank that is not like the others") {
  on_teams(3, [](process_team& team) {
    const auto said = [&](const std::vector<moe::named_value>& values) {
      return message_of<moe::agreed_trouble>([&] { team.agree_on(values); });
    };
    const int r = team.rank();
    CHECK(said({{"--seed", "1"}, {"--lr", "0.1"}}).empty());
    CHECK(said({{"--seed", "1"}, {"--lr", r == 1 ? "0.2" : "0.1"}, {"--clip", std::to_string(r)}}) ==
          "--lr: rank 1 has 0.2, rank 0 has 0.1; expected the same on all ranks");
    CHECK(said({{"--seed", r == 0 ? "2" : "1"}}) ==
          "--seed: rank 0 has 2, rank 1 has 1; expected the same on all ranks");
    for (const bool shorter : {false, true}) {
      std::vector<moe::named_value> values{{"--seed", "1"}};
      if (r == 2 && shorter) values.clear();
      if (r == 2 && !shorter) values = {{"--sead", "1"}};
      CHECK(has(said(values), "different versions"));
    }
    CHECK(said({{"--seed", "1"}}).empty());
  });
}

TEST_CASE("a launcher is known by what it leaves in the environment") {
  using variables = std::map<std::string, std::string>;
  const auto place_of = [](const variables& all) {
    return moe::mpi_place_of([&](const char* name) -> const char* {
      const auto found = all.find(name);
      return found == all.end() ? nullptr : found->second.c_str();
    });
  };
  CHECK_FALSE(place_of({}).launched);
  CHECK_FALSE(place_of({{"PMI_SIZE", "many"}, {"PMIX_RANK", "-1"}}).launched);
  CHECK(place_of({}).first());
  for (const auto& [size, rank] :
       {std::pair{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"}, std::pair{"PMI_SIZE", "PMI_RANK"}}) {
    const moe::mpi_place place = place_of({{size, "4"}, {rank, "3"}});
    CHECK(place.launched);
    CHECK(place.processes == 4);
    CHECK(place.rank == 3);
    CHECK_FALSE(place.first());
    CHECK_FALSE(place.alone());
    CHECK(place_of({{size, "1"}, {rank, "0"}}).alone());
  }
  const moe::mpi_place unknown = place_of({{"PMIX_RANK", "2"}});
  CHECK(unknown.launched);
  CHECK_FALSE(unknown.processes.has_value());
  CHECK_FALSE(unknown.alone());
}

TEST_CASE("processes: as many ranks as there are, one voice, one status") {
  const auto good =
      programs({{}, {}, {"--communicator", "mpi"}}, [](const moe::options& o, process_team& team) {
        CHECK(o.ranks == 3);
        CHECK(team.size() == 3);
        team.on_first([] { throw moe::output_error("full"); });
        return 0;
      });
  check_end(good, 1, "full");
  for (const ending& end : programs({{"--ranks", "2"}, {}}, succeed)) CHECK(end.status == 0);
  check_end(programs({{"--ranks", "4"}, {"--ranks=4"}}, succeed), 2,
            "--ranks 4: 2 processes were started, and each is one rank; expected --ranks 2, or none, or "
            "--communicator threads for ranks that are threads");
  check_end(programs({{"--ranks", "1"}, {}}, succeed), 2,
            "--ranks 1: 2 processes were started, and each is one rank; expected --ranks 2, or none, or "
            "--communicator threads for ranks that are threads");
  check_end(programs({{}, {"--seed"}}, succeed), 2, "rank 1: --seed: expected a value after it");
  check_end(programs({{"--seed"}, {"--seed"}}, succeed), 2, "--seed: expected a value after it");
  check_end(programs({{"--expert-parallel", "3"}, {"--expert-parallel", "3"}}, succeed), 2,
            "--expert-parallel 3: expected a divisor of --ranks 2");
}

TEST_CASE("a process that fails while others compute: all end with its cause, said once") {
  const auto ends = programs({{}, {}}, [](const moe::options&, process_team& team) {
    if (team.rank() == 1) throw std::runtime_error("lost its GPU");
    std::int64_t all[2];
    team.world()->host_exchange(std::vector<std::int64_t>{1}, all, "a sum");
    return 0;
  });
  for (const ending& end : ends) CHECK(end.status == 1);
  CHECK(has(ends[0].err, "moe_train: rank 1 failed in its own code"));
  CHECK(has(ends[0].err, "lost its GPU"));
  CHECK(std::count(ends[0].err.begin(), ends[0].err.end(), '\n') == 1);
  CHECK(ends[1].err.empty());
}

TEST_CASE("help and dry runs are the first process's alone; threads are asked for by name") {
  for (const ending& end : programs({{"--help"}, {"--help"}}, succeed)) {
    CHECK(end.status == 0);
    CHECK_FALSE(end.ran);
  }
  CHECK(has(programs({{"--help"}, {"--help"}}, succeed)[0].out, "--communicator"));
  CHECK(programs({{"--help"}, {"--help"}}, succeed)[1].out.empty());

  const line dry{"--dry-run", "--routing", "balanced"};
  const auto predicted = programs({dry, dry, dry}, [](const moe::options& o, process_team& team) {
    CHECK(o.ranks == 3);
    CHECK(team.size() == 1);
    return 0;
  });
  CHECK(predicted[0].ran);
  for (std::size_t r = 1; r < 3; ++r) {
    CHECK(predicted[r].status == 0);
    CHECK_FALSE(predicted[r].ran);
  }
  line wide = dry;
  wide.insert(wide.end(), {"--ranks", "64"});
  programs({wide, wide}, [](const moe::options& o, process_team&) {
    CHECK(o.ranks == 64);
    return 0;
  });
  check_end(programs({{"--dry-run"}, {"--dry-run"}}, succeed), 2,
            "--dry-run: there is no data to route; expected --routing with a scenario, such as balanced");

  const line threads{"--communicator", "threads"};
  for (const ending& end : programs({threads, threads}, [](const moe::options&o, process_team&team) {
         CHECK(o.ranks == 4);
         CHECK(team.size() == 1);
         return 0;
       }))
    CHECK(end.ran);
}

TEST_CASE("without MPI: processes are refused, a single one is not") {
  check_end(
      programs({{}, {}}, succeed, false), 2,
      "started by an MPI launcher, but this program was built without MPI; use --communicator threads for "
      "runs that know nothing of each other, or build it with MPI installed");
  check_end(
      programs({{"--communicator", "mpi"}}, succeed, false), 2,
      "--communicator mpi: this program was built without MPI; use --communicator threads, or build it with "
      "MPI installed");
  const auto single = programs(
      {{}}, [](const moe::options& o, process_team&) { return o.ranks == 4 ? 0 : 1; }, false);
  CHECK(single[0].status == 0);
  CHECK(single[0].ran);
}
