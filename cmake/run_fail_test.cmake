# SPDX-License-Identifier: Apache-2.0
#
# cmake -DCOMPILER=... -DSOURCE=... -DINCLUDES=dir|dir -P run_fail_test.cmake: one test of PlateauFailTests.cmake.
cmake_minimum_required(VERSION 3.25)

# Characters that CMake's lists would stumble over, replaced alike in what is expected and in what is printed.
function(plain variable text)
  string(REPLACE ";" "<semicolon>" text "${text}")
  string(REPLACE "[" "<bracket" text "${text}")
  string(REPLACE "]" "bracket>" text "${text}")
  set(${variable} "${text}" PARENT_SCOPE)
endfunction()

file(READ "${SOURCE}" text)
plain(text "${text}")
string(REPLACE "\n" ";" lines "${text}")
set(expected)
set(flags)
set(has_control FALSE)
set(only)
foreach(line IN LISTS lines)
  if(line MATCHES "^// expect: (.+)$")
    list(APPEND expected "${CMAKE_MATCH_1}")
  elseif(line MATCHES "^// flags: (.+)$")
    separate_arguments(flags UNIX_COMMAND "${CMAKE_MATCH_1}")
  elseif(line MATCHES "^// only: (.+)$")
    set(only "${CMAKE_MATCH_1}")
  elseif(line MATCHES "^// control:")
    set(has_control TRUE)
  endif()
endforeach()
if(NOT expected)
  message(FATAL_ERROR "${SOURCE}: no line '// expect: <sentence>'")
endif()

string(REPLACE "|" ";" includes "${INCLUDES}")
list(TRANSFORM includes PREPEND "-I")
# No echo of source lines: the sentence must come from the compiler, not from the comment that expects it.
set(no_echo -fno-diagnostics-show-caret)
set(this g++)
execute_process(COMMAND "${COMPILER}" --version OUTPUT_VARIABLE version)
if(version MATCHES "clang")
  set(no_echo -fno-caret-diagnostics)
  set(this clang++)
endif()
if(only AND NOT only STREQUAL this)
  message(STATUS "${SOURCE}: only ${only} is asked")
  return()
endif()
# -S, not -fsyntax-only, with which g++ leaves templates uninstantiated.
set(command "${COMPILER}" -std=c++20 -S -o /dev/null ${no_echo} ${includes})

if(has_control)
  execute_process(COMMAND ${command} -DPLATEAU_FAIL_TEST_CONTROL "${SOURCE}"
                  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${SOURCE}: its control (-DPLATEAU_FAIL_TEST_CONTROL) must compile and does not:\n${output}")
  endif()
endif()

execute_process(COMMAND ${command} ${flags} "${SOURCE}"
                RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(result EQUAL 0)
  message(FATAL_ERROR "${SOURCE}: compiled, and must not")
endif()
plain(plain_output "${output}")
foreach(sentence IN LISTS expected)
  string(FIND "${plain_output}" "${sentence}" place)
  if(place EQUAL -1)
    message(FATAL_ERROR "${SOURCE}: did not compile, as it should, but without the sentence\n"
                        "  ${sentence}\nThe compiler said:\n${output}")
  endif()
endforeach()
