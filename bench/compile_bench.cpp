// SPDX-License-Identifier: Apache-2.0
//
// How long a file takes to compile that includes <plateau/plateau.hpp> and nothing else: seconds on the wall
// and of the processor, with the compiler that built this program.
#include "table.hpp"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <sys/resource.h>
#include <unistd.h>

namespace {

double child_seconds() {
  rusage u{};
  getrusage(RUSAGE_CHILDREN, &u);
  return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

} // namespace

int main(int, char** argv) {
  bench::table table(argv);
  char folder[] = "/tmp/plateau_compile_XXXXXX";
  if (mkdtemp(folder) == nullptr) return 1;
  const std::string source = std::string(folder) + "/include.cpp",
                    object = std::string(folder) + "/include.o";
  const std::string command = fmt::format("'{}' -std=c++20 -O2 '-I{}' -c '{}' -o '{}'",
                                          PLATEAU_BENCH_COMPILER, PLATEAU_BENCH_INCLUDE, source, object);
  std::ofstream(source) << "#include <plateau/plateau.hpp>\n";
  bench::series s;
  for (int i = 0; i < 12; ++i) {
    const double before = child_seconds(), begun = bench::seconds_now();
    if (std::system(command.c_str()) != 0) {
      fmt::print("failed: {}\n", command);
      return 1;
    }
    if (i == 0) continue; // files come from the disk
    s.wall.push_back(bench::seconds_now() - begun);
    s.processor.push_back(child_seconds() - before);
  }
  table.row("#include <plateau/plateau.hpp>, seconds", s.in(1), bench::goal::at_most(1.5));
  std::remove(source.c_str());
  std::remove(object.c_str());
  rmdir(folder);
}
