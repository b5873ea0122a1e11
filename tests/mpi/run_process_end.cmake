# SPDX-License-Identifier: Apache-2.0
#
# Runs the job of process_end.cpp: cmake -D LAUNCHER=<mpirun;flags...> -D PROGRAM=<path> -D WAY=<way> -D WHEN=<when>
# -D SAYS=<regex> -D TIMES=<n> -D FAILS=<bool> -P run_process_end.cmake. The job must end by itself, with an exit status
# that is not zero if it FAILS; at least TIMES of its lines must match SAYS; and no process of it may be left.

string(RANDOM LENGTH 12 token)
execute_process(COMMAND ${LAUNCHER} -n 4 "${PROGRAM}" "${WAY}" "${WHEN}" "${token}" TIMEOUT 90
                RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE errors)
set(output "${output}${errors}")
message("${output}\nexit status: ${status}")
if(status MATCHES "timeout")
  message(FATAL_ERROR "the job did not end")
endif()
if(FAILS AND status EQUAL 0)
  message(FATAL_ERROR "the job has lost a process, and its exit status is 0")
endif()
string(REGEX MATCHALL "${SAYS}" said "${output}")
list(LENGTH said times)
if(times LESS TIMES)
  message(FATAL_ERROR "${times} of at least ${TIMES} processes say: ${SAYS}")
endif()

# What has ended but has not been waited for yet shows without its arguments.
foreach(attempt RANGE 40)
  execute_process(COMMAND ps -eo stat=,args= OUTPUT_VARIABLE processes COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]*${token}[^\n]*" left "${processes}")
  if(NOT left)
    return()
  endif()
  execute_process(COMMAND "${CMAKE_COMMAND}" -E sleep 0.25)
endforeach()
message(FATAL_ERROR "still there: ${left}")
