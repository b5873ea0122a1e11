# SPDX-License-Identifier: Apache-2.0
#
# Other people's projects, in miniature: they take Plateau with add_subdirectory, with find_package from an install
# tree, and with find_package from the build tree; the reference model is built the way somebody who copied its
# folder would build it. Each is configured, built and run by ctest.

set(plateau_consumer_dir "${CMAKE_CURRENT_BINARY_DIR}/consumer")
set(plateau_consumer_prefix "${plateau_consumer_dir}/prefix")
set(plateau_consumer_cache "-DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER}"
    "-DCMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER}" "-DCMAKE_BUILD_TYPE=Release")

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

set(plateau_consumer_source "${CMAKE_CURRENT_SOURCE_DIR}/consumer")
set(plateau_consumer_has_blas OFF)
if(TARGET plateau::blas)
  set(plateau_consumer_has_blas ON)
endif()

plateau_consumer_test(add_subdirectory "${plateau_consumer_source}" consumer consumer
                      "-DPLATEAU_SOURCE_DIR=${PROJECT_SOURCE_DIR}"
                      TEST_COMMAND "${plateau_consumer_dir}/add_subdirectory/consumer")

if(PLATEAU_INSTALL)
  add_test(NAME consumer.install
           COMMAND "${CMAKE_COMMAND}" --install "${PROJECT_BINARY_DIR}" --prefix "${plateau_consumer_prefix}")
  # A prefix left by an earlier run could hold headers that are no longer installed.
  add_test(NAME consumer.clean COMMAND "${CMAKE_COMMAND}" -E rm -rf "${plateau_consumer_prefix}")
  set_tests_properties(consumer.clean PROPERTIES LABELS consumer FIXTURES_SETUP plateau_clean_prefix)
  set_tests_properties(consumer.install PROPERTIES LABELS consumer FIXTURES_REQUIRED plateau_clean_prefix
                       FIXTURES_SETUP plateau_install_tree)
  plateau_consumer_test(install_tree "${plateau_consumer_source}" consumer consumer
                        "-Dplateau_ROOT=${plateau_consumer_prefix}"
                        "-DCONSUMER_EXPECT_BLAS=${plateau_consumer_has_blas}"
                        TEST_COMMAND "${plateau_consumer_dir}/install_tree/consumer")
  plateau_consumer_test(build_tree "${plateau_consumer_source}" consumer consumer
                        "-Dplateau_DIR=${PROJECT_BINARY_DIR}"
                        "-DCONSUMER_EXPECT_BLAS=${plateau_consumer_has_blas}"
                        TEST_COMMAND "${plateau_consumer_dir}/build_tree/consumer")
  set_tests_properties(consumer.install_tree PROPERTIES FIXTURES_REQUIRED plateau_install_tree)
  if(TARGET moe_train)
    plateau_consumer_test(moe_alone "${PROJECT_SOURCE_DIR}/examples/moe" moe_train "consumer;slow"
                          "-Dplateau_ROOT=${plateau_consumer_prefix}" -DCMAKE_BUILD_TYPE=Debug)
    # Not as a --test-command: ctest would take --help for itself.
    add_test(NAME consumer.moe_alone_help COMMAND "${plateau_consumer_dir}/moe_alone/moe_train" --help)
    set_tests_properties(consumer.moe_alone PROPERTIES FIXTURES_REQUIRED plateau_install_tree
                         FIXTURES_SETUP plateau_moe_alone)
    set_tests_properties(consumer.moe_alone_help PROPERTIES LABELS "consumer;slow" TIMEOUT 60
                         FIXTURES_REQUIRED plateau_moe_alone)
  endif()
endif()
