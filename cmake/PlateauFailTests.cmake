# SPDX-License-Identifier: Apache-2.0
#
# Programs that must not compile, and the sentence their author must see. tests/fail/<name>.cpp begins with
# comment lines:
#   // expect: <sentence>     must be in the compiler's output; may be given several times
#   // flags: <options>       optional: further compiler options
#   // control:               optional: with -DPLATEAU_FAIL_TEST_CONTROL (and without the flags) the file must
#                             compile, so that it cannot fail for another reason
#   // only: <compiler>       optional, g++ or clang++: the other one has nothing to say here, and is not asked
# Each file goes through the project's compiler and through clang++ where it is installed.

set(plateau_fail_compilers "${CMAKE_CXX_COMPILER}")
set(plateau_fail_names host)
if(PLATEAU_CLANG AND NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  list(APPEND plateau_fail_compilers "${PLATEAU_CLANG}")
  list(APPEND plateau_fail_names clang)
endif()

file(GLOB plateau_fail_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/fail/*.cpp")
foreach(source IN LISTS plateau_fail_sources)
  cmake_path(GET source STEM name)
  foreach(compiler compiler_name IN ZIP_LISTS plateau_fail_compilers plateau_fail_names)
    add_test(NAME "fail.${name}.${compiler_name}"
             COMMAND "${CMAKE_COMMAND}" "-DCOMPILER=${compiler}" "-DSOURCE=${source}"
                     "-DINCLUDES=${PROJECT_SOURCE_DIR}/include|${CMAKE_CURRENT_SOURCE_DIR}"
                     -P "${PROJECT_SOURCE_DIR}/cmake/run_fail_test.cmake")
    set_tests_properties("fail.${name}.${compiler_name}" PROPERTIES LABELS fail TIMEOUT 120)
  endforeach()
endforeach()
