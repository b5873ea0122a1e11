# SPDX-License-Identifier: Apache-2.0
#
# Tests between processes: tests/mpi/<name>_test.cpp is run by mpiexec with each number of processes that it is given
# below; a test case that needs more is skipped and says so. Other programs there are run by scripts.

if(NOT TARGET plateau::mpi)
  return()
endif()

add_custom_target(plateau_mpi_tests)
add_library(plateau_mpi_main STATIC "${CMAKE_CURRENT_SOURCE_DIR}/mpi/mpi_main.cpp")
target_link_libraries(plateau_mpi_main PUBLIC plateau::mpi doctest::doctest PRIVATE plateau_warnings)

# More processes than cores, in a container too, are all right for a test. Other MPI libraries ignore these.
set(plateau_mpi_environment OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
                            OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_orte_base_help_aggregate=1)

function(plateau_mpi_program target source)
  add_executable(${target} "${CMAKE_CURRENT_SOURCE_DIR}/mpi/${source}")
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/mpi")
  target_include_directories(${target} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
  target_link_libraries(${target} PRIVATE plateau::mpi plateau_warnings ${ARGN})
  add_dependencies(plateau_mpi_tests ${target})
endfunction()

# plateau_mpi_test(<name> <numbers of processes ...>)
function(plateau_mpi_test name)
  set(target mpi_${name}_test)
  plateau_mpi_program(${target} ${name}_test.cpp plateau_mpi_main)
  foreach(processes IN LISTS ARGN)
    add_test(NAME "mpi.${name}_${processes}"
             COMMAND "${MPIEXEC_EXECUTABLE}" ${MPIEXEC_NUMPROC_FLAG} ${processes} ${MPIEXEC_PREFLAGS}
                     "$<TARGET_FILE:${target}>")
    set_tests_properties("mpi.${name}_${processes}" PROPERTIES
                         LABELS mpi TIMEOUT ${PLATEAU_TEST_TIMEOUT} PROCESSORS ${processes}
                         ENVIRONMENT "${plateau_mpi_environment}" FAIL_REGULAR_EXPRESSION "test cases: +0 ")
  endforeach()
endfunction()

plateau_mpi_test(lists 1)
plateau_mpi_test(contract 1 2 3 4 5 6)
plateau_mpi_test(communicator 1 2 4)
plateau_mpi_test(dispatch 1 2 4)
plateau_mpi_test(ring 1 2 4)
# Between machines messages behave otherwise than in shared memory: large ones move only while both sides poll.
add_test(NAME mpi.communicator_2_tcp
         COMMAND "${MPIEXEC_EXECUTABLE}" ${MPIEXEC_NUMPROC_FLAG} 2 ${MPIEXEC_PREFLAGS}
                 "$<TARGET_FILE:mpi_communicator_test>")
set_tests_properties(mpi.communicator_2_tcp PROPERTIES
                     LABELS mpi TIMEOUT ${PLATEAU_TEST_TIMEOUT} PROCESSORS 2
                     ENVIRONMENT "${plateau_mpi_environment};OMPI_MCA_btl=self,tcp"
                     FAIL_REGULAR_EXPRESSION "test cases: +0 ")
plateau_mpi_test(documentation 2)

# Programs that use MPI in the wrong order get a sentence.
plateau_mpi_program(mpi_session_end session_end.cpp)
function(plateau_mpi_session_test order expected)
  add_test(NAME "mpi.session_${order}"
           COMMAND "${MPIEXEC_EXECUTABLE}" ${MPIEXEC_NUMPROC_FLAG} 1 ${MPIEXEC_PREFLAGS}
                   "$<TARGET_FILE:mpi_session_end>" ${order})
  set_tests_properties("mpi.session_${order}" PROPERTIES
                       LABELS mpi TIMEOUT ${PLATEAU_TEST_TIMEOUT} ENVIRONMENT "${plateau_mpi_environment}"
                       PASS_REGULAR_EXPRESSION "${expected}" FAIL_REGULAR_EXPRESSION "not refused")
endfunction()
plateau_mpi_session_test(none "refused: plateau: MPI has not been initialised: make an mpi_session first")
plateau_mpi_session_test(funneled "level MPI_THREAD_FUNNELED, but.*level MPI_THREAD_FUNNELED, but.*by it: 0")
plateau_mpi_session_test(twice "by it: 1.*refused: plateau: MPI has been finalised")
plateau_mpi_session_test(users "by it: 0")

# P4: a process that throws, exits without a word, is killed or stopped. mpiexec ends a job itself when it notices
# that a process is gone; with Open MPI's recovery it does not, so that what is seen is what the library does. (With
# it the exit status of mpirun is 0 whatever happens, even after MPI_Abort.)
plateau_mpi_program(mpi_process_end process_end.cpp)
function(plateau_mpi_end_test way when by says times)
  set(name "mpi.P4_process_${way}_${when}_${by}")
  set(environment ${plateau_mpi_environment})
  set(fails TRUE)
  if(by STREQUAL "library")
    list(APPEND environment OMPI_MCA_orte_enable_recovery=1)
    set(fails FALSE)
  endif()
  add_test(NAME "${name}"
           COMMAND "${CMAKE_COMMAND}" "-DLAUNCHER=${MPIEXEC_EXECUTABLE};${MPIEXEC_PREFLAGS}"
                   "-DPROGRAM=$<TARGET_FILE:mpi_process_end>" -DWAY=${way} -DWHEN=${when} "-DSAYS=${says}"
                   -DTIMES=${times} -DFAILS=${fails} -P "${CMAKE_CURRENT_SOURCE_DIR}/mpi/run_process_end.cmake")
  set_tests_properties("${name}" PROPERTIES
                       LABELS mpi TIMEOUT ${PLATEAU_TEST_TIMEOUT} PROCESSORS 4 ENVIRONMENT "${environment}")
endfunction()

set(plateau_mpi_thrown "ended with: rank 1 failed in its own code after '[a-z_]+' .operation [56].: label 7 of token 3")
set(plateau_mpi_silent "rank 1 failed in [^\n]*rank 1, which takes part in nothing; [^\n]*the job is aborted")
execute_process(COMMAND "${MPIEXEC_EXECUTABLE}" --version OUTPUT_VARIABLE plateau_mpi_version ERROR_QUIET)
foreach(when IN ITEMS between meanwhile)
  plateau_mpi_end_test(throws ${when} mpiexec "${plateau_mpi_thrown}" 1)
  plateau_mpi_end_test(exits ${when} mpiexec "." 0)
  plateau_mpi_end_test(killed ${when} mpiexec "." 0)
  plateau_mpi_end_test(stopped ${when} mpiexec "${plateau_mpi_silent}" 1)
  if(plateau_mpi_version MATCHES "Open ?MPI|OpenRTE")
    plateau_mpi_end_test(throws ${when} library "${plateau_mpi_thrown}" 4)
    plateau_mpi_end_test(exits ${when} library "${plateau_mpi_silent}" 1)
    plateau_mpi_end_test(killed ${when} library "${plateau_mpi_silent}" 1)
  endif()
endforeach()
