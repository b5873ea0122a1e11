# SPDX-License-Identifier: Apache-2.0
#
# Other people's projects, in miniature: they take Plateau with add_subdirectory, with find_package from an install
# tree, and with find_package from the build tree, and have a program for each component that is here; the reference
# model is built the way somebody who copied its folder would build it. The last, and Plateau's own tree, are also
# built on a machine without any optional library, or what CMake takes for one. Each is configured, built and run by
# ctest; what needs a GPU or nvcc is in the preset `cuda`, and there compiled and linked only.

set(plateau_consumer_dir "${CMAKE_CURRENT_BINARY_DIR}/consumer")
set(plateau_consumer_prefix "${plateau_consumer_dir}/prefix")
set(plateau_consumer_source "${CMAKE_CURRENT_SOURCE_DIR}/consumer")
set(plateau_consumer_cache "-DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}"
    "-DCMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER}" "-DCMAKE_BUILD_TYPE=Debug"
    "-DCMAKE_CXX_FLAGS_DEBUG=-O0")
set(plateau_consumer_no_libraries -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON -DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=ON
    -DPLATEAU_OPENBLAS_LIBRARY=OFF)

# plateau_consumer_test(<name> <source folder> <target> <label> [cache entries ...]
#                      [TEST_COMMAND command ...])
function(plateau_consumer_test name source target label)
  cmake_parse_arguments(PARSE_ARGV 4 test "" "" "TEST_COMMAND")
  set(test_command)
  if(test_TEST_COMMAND)
    set(test_command --test-command ${test_TEST_COMMAND})
  endif()
  add_test(NAME consumer.${name}
           COMMAND "${CMAKE_CTEST_COMMAND}" --build-and-test "${source}" "${plateau_consumer_dir}/${name}"
                   --build-generator "${CMAKE_GENERATOR}" --build-target ${target}
                   --build-options ${plateau_consumer_cache} ${test_UNPARSED_ARGUMENTS}
                   ${test_command})
  set_tests_properties(consumer.${name} PROPERTIES LABELS "${label}" TIMEOUT 900)
endfunction()

# A list that survives being one argument of a command.
set(plateau_consumer_components)
foreach(component IN ITEMS blas mpi cuda nccl)
  if(TARGET plateau::${component})
    list(APPEND plateau_consumer_components ${component})
  endif()
endforeach()
list(JOIN plateau_consumer_components "," plateau_consumer_components)

# --- add_subdirectory, the install tree, the build tree ---------------------------------------------------------------

# plateau_consumer(<name> [cache entries ...]): the project of tests/consumer, all its programs, and two of them run.
function(plateau_consumer name)
  plateau_consumer_test(${name} "${plateau_consumer_source}" all consumer ${ARGN}
                        "-DCONSUMER_EXPECT=${plateau_consumer_components}"
                        TEST_COMMAND "${plateau_consumer_dir}/${name}/consumer")
  if(TARGET plateau::mpi AND MPIEXEC_EXECUTABLE)
    add_test(NAME consumer.${name}_mpi
             COMMAND "${MPIEXEC_EXECUTABLE}" ${MPIEXEC_NUMPROC_FLAG} 2 "${plateau_consumer_dir}/${name}/consumer_mpi")
    set_tests_properties(consumer.${name} PROPERTIES FIXTURES_SETUP plateau_consumer_${name})
    set_tests_properties(consumer.${name}_mpi PROPERTIES LABELS consumer TIMEOUT 120 PROCESSORS 2
                         ENVIRONMENT "${plateau_mpi_environment}" FIXTURES_REQUIRED plateau_consumer_${name})
  endif()
endfunction()

plateau_consumer(add_subdirectory "-DPLATEAU_SOURCE_DIR=${PROJECT_SOURCE_DIR}")

if(PLATEAU_INSTALL)
  add_test(NAME consumer.install
           COMMAND "${CMAKE_COMMAND}" --install "${PROJECT_BINARY_DIR}" --prefix "${plateau_consumer_prefix}")
  # A prefix left by an earlier run could hold headers that are no longer installed.
  add_test(NAME consumer.clean COMMAND "${CMAKE_COMMAND}" -E rm -rf "${plateau_consumer_prefix}")
  set_tests_properties(consumer.clean PROPERTIES LABELS consumer FIXTURES_SETUP plateau_clean_prefix)
  set_tests_properties(consumer.install PROPERTIES LABELS consumer FIXTURES_REQUIRED plateau_clean_prefix
                       FIXTURES_SETUP plateau_install_tree)
  plateau_consumer(install_tree "-Dplateau_ROOT=${plateau_consumer_prefix}")
  plateau_consumer(build_tree "-Dplateau_DIR=${PROJECT_BINARY_DIR}")
  set_tests_properties(consumer.install_tree PROPERTIES FIXTURES_REQUIRED plateau_install_tree)
endif()

# --- without any optional library -------------------------------------------------------------------------------------

plateau_consumer_test(no_libraries "${PROJECT_SOURCE_DIR}" unit_view_test "consumer;slow"
                      -DPLATEAU_BUILD_BENCH=OFF -DPLATEAU_BUILD_EXAMPLES=OFF ${plateau_consumer_no_libraries}
                      TEST_COMMAND "${plateau_consumer_dir}/no_libraries/tests/unit/unit_view_test")
if(PLATEAU_INSTALL AND TARGET moe_train)
  # By clang++ where it is here, as g++ compiles the program in the build itself.
  set(plateau_moe_alone_compiler)
  if(PLATEAU_CLANG)
    list(JOIN plateau_warning_flags " " plateau_moe_alone_flags)
    set(plateau_moe_alone_compiler "-DCMAKE_CXX_COMPILER=${PLATEAU_CLANG}" "-DCMAKE_CXX_FLAGS=${plateau_moe_alone_flags}")
  endif()
  plateau_consumer_test(moe_alone "${PROJECT_SOURCE_DIR}/examples/moe" moe_train "consumer;slow"
                        "-Dplateau_ROOT=${plateau_consumer_prefix}" ${plateau_consumer_no_libraries}
                        ${plateau_moe_alone_compiler})
  # Not as a --test-command: ctest would take --help for itself.
  add_test(NAME consumer.moe_alone_help COMMAND "${plateau_consumer_dir}/moe_alone/moe_train" --help)
  # It takes longest by far: first, so that it is not left alone at the end.
  set_tests_properties(consumer.moe_alone PROPERTIES FIXTURES_REQUIRED plateau_install_tree
                       FIXTURES_SETUP plateau_moe_alone COST 100)
  set_tests_properties(consumer.moe_alone_help PROPERTIES LABELS "consumer;slow" TIMEOUT 60
                       FIXTURES_REQUIRED plateau_moe_alone)
endif()

# --- with nvcc --------------------------------------------------------------------------------------------------------

if(PLATEAU_CUDA AND TARGET plateau::cuda)
  list(GET CMAKE_CUDA_ARCHITECTURES 0 plateau_first_architecture)
  set(plateau_consumer_cuda -DCONSUMER_CUDA=ON "-DCMAKE_CUDA_COMPILER=${CMAKE_CUDA_COMPILER}"
      "-DCMAKE_CUDA_ARCHITECTURES=${plateau_first_architecture}")
  plateau_consumer_test(cuda_add_subdirectory "${plateau_consumer_source}" consumer_cuda "consumer;cuda"
                        "-DPLATEAU_SOURCE_DIR=${PROJECT_SOURCE_DIR}" ${plateau_consumer_cuda})
  if(PLATEAU_INSTALL)
    plateau_consumer_test(cuda_install_tree "${plateau_consumer_source}" consumer_cuda "consumer;cuda"
                          "-Dplateau_ROOT=${plateau_consumer_prefix}" ${plateau_consumer_cuda})
    set_tests_properties(consumer.cuda_install_tree PROPERTIES FIXTURES_REQUIRED plateau_install_tree)
  endif()
endif()
