# SPDX-License-Identifier: Apache-2.0
#
# Libraries of the tests, examples and benches; the library itself needs none. System packages come first;
# only what is missing is fetched, at a pinned release.
include(FetchContent)

set(FETCHCONTENT_QUIET OFF)
set(plateau_dependencies)

# plateau_dependency(<package> <target> <git repository> <tag> [CMake variables to set off ...])
macro(plateau_dependency package target repository tag)
  if(NOT TARGET ${target})
    foreach(plateau_switch IN ITEMS ${ARGN})
      set(${plateau_switch} OFF CACHE INTERNAL "")
    endforeach()
    FetchContent_Declare(${package} GIT_REPOSITORY ${repository} GIT_TAG ${tag} GIT_SHALLOW ON SYSTEM
                         FIND_PACKAGE_ARGS)
    list(APPEND plateau_dependencies ${package})
  endif()
endmacro()

if(PLATEAU_BUILD_TESTS OR PLATEAU_BUILD_EXAMPLES OR PLATEAU_BUILD_BENCH)
  plateau_dependency(fmt fmt::fmt https://github.com/fmtlib/fmt.git 9.1.0)
endif()
if(PLATEAU_BUILD_TESTS OR PLATEAU_BUILD_EXAMPLES)
  plateau_dependency(CLI11 CLI11::CLI11 https://github.com/CLIUtils/CLI11.git v2.3.2)
  plateau_dependency(nlohmann_json nlohmann_json::nlohmann_json https://github.com/nlohmann/json.git v3.11.2)
endif()
if(PLATEAU_BUILD_TESTS)
  plateau_dependency(doctest doctest::doctest https://github.com/doctest/doctest.git v2.4.11
                     DOCTEST_WITH_TESTS DOCTEST_WITH_MAIN_IN_STATIC_LIB)
endif()
if(PLATEAU_BUILD_BENCH)
  plateau_dependency(benchmark benchmark::benchmark https://github.com/google/benchmark.git v1.7.1
                     BENCHMARK_ENABLE_TESTING BENCHMARK_ENABLE_INSTALL)
endif()
if(plateau_dependencies)
  FetchContent_MakeAvailable(${plateau_dependencies})
endif()
