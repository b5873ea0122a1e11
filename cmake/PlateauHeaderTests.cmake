# SPDX-License-Identifier: Apache-2.0
#
# Every public header stands alone: it is compiled by itself, twice in one translation unit, under macros that
# system headers are known to define. One more translation unit includes all headers at once; linking it with the
# others makes a function that lacks `inline` a duplicate symbol. The link is a partial one (ld -r), so that it
# reports duplicates and asks for no libraries.
#
# Alone they go through the project's compiler. What another compiler would add are the errors and warnings of its
# own, and these show in two translation units as well, of all headers in one order and in the other: clang++ gets
# them here where it is installed (the preset `clang` gives it each header alone), nvcc in PlateauCudaTests.cmake.
# A folder that needs a library of its own is left out where that library is missing.

find_program(PLATEAU_CLANG NAMES clang++ clang++-14 clang++-15 clang++-16 clang++-17 clang++-18)
mark_as_advanced(PLATEAU_CLANG)

set(plateau_header_tests_dir "${CMAKE_CURRENT_BINARY_DIR}/headers")

# plateau_header_selection(<variable> <folder to leave out> ...): headers relative to include/.
function(plateau_header_selection variable)
  set(selected)
  foreach(header IN LISTS plateau_headers)
    cmake_path(RELATIVE_PATH header BASE_DIRECTORY "${PROJECT_SOURCE_DIR}/include")
    # plateau/mpi/world.hpp and plateau/mpi.hpp, which includes that folder, are both of mpi.
    string(REGEX REPLACE "^plateau/([^/.]+).*$" "\\1" folder "${header}")
    if(NOT folder IN_LIST ARGN)
      list(APPEND selected "${header}")
    endif()
  endforeach()
  set(${variable} "${selected}" PARENT_SCOPE)
endfunction()

# plateau_header_sources(<variable> <headers ...>): one translation unit a header, and one for all.
function(plateau_header_sources variable)
  set(sources)
  foreach(header IN LISTS ARGN)
    string(REGEX REPLACE "[/.]" "_" name "${header}")
    set(PLATEAU_INCLUDES "#include <${header}>")
    set(source "${plateau_header_tests_dir}/${name}.cpp")
    configure_file("${PROJECT_SOURCE_DIR}/cmake/header_test.cpp.in" "${source}" @ONLY)
    list(APPEND sources "${source}")
  endforeach()
  set(${variable} "${sources};${plateau_header_tests_dir}/forward.cpp" PARENT_SCOPE)
endfunction()

# Writes forward.<extension> and backward.<extension>: all headers, from the first and from the last.
function(plateau_all_headers extension)
  foreach(order IN ITEMS forward backward)
    list(JOIN ARGN ">\n#include <" PLATEAU_INCLUDES)
    set(PLATEAU_INCLUDES "#include <${PLATEAU_INCLUDES}>")
    configure_file("${PROJECT_SOURCE_DIR}/cmake/header_test.cpp.in" "${plateau_header_tests_dir}/${order}.${extension}"
                   @ONLY)
    list(REVERSE ARGN)
  endforeach()
endfunction()

# A ctest that finds its target up to date, or builds it and shows why it fails.
function(plateau_add_build_test name target)
  add_test(NAME ${name} COMMAND "${CMAKE_COMMAND}" --build "${PROJECT_BINARY_DIR}" --target ${target})
  set_tests_properties(${name} PROPERTIES LABELS headers RESOURCE_LOCK plateau_build_folder TIMEOUT 1200)
endfunction()

# The folders whose library is missing, and the targets of those whose library is here.
set(plateau_missing_folders)
set(plateau_present_components plateau::plateau)
foreach(component IN ITEMS blas mpi cuda nccl)
  if(TARGET plateau::${component})
    list(APPEND plateau_present_components plateau::${component})
  else()
    list(APPEND plateau_missing_folders ${component})
  endif()
endforeach()

# --- the project's compiler -----------------------------------------------------------------------------------

plateau_header_selection(plateau_present_headers ${plateau_missing_folders})
plateau_all_headers(cpp ${plateau_present_headers})
plateau_header_sources(plateau_header_test_sources ${plateau_present_headers})
add_library(plateau_header_objects OBJECT ${plateau_header_test_sources})
target_link_libraries(plateau_header_objects PRIVATE plateau_warnings ${plateau_present_components})
# What there is to optimise is in the programs that use them.
target_compile_options(plateau_header_objects PRIVATE -O0)
add_custom_command(
  OUTPUT "${plateau_header_tests_dir}/linked_twice.o"
  COMMAND "${CMAKE_LINKER}" -r -o "${plateau_header_tests_dir}/linked_twice.o"
          "$<TARGET_OBJECTS:plateau_header_objects>"
  DEPENDS plateau_header_objects "$<TARGET_OBJECTS:plateau_header_objects>"
  COMMENT "Linking every header twice" COMMAND_EXPAND_LISTS VERBATIM)
add_custom_target(plateau_header_tests ALL DEPENDS "${plateau_header_tests_dir}/linked_twice.o")
plateau_add_build_test(headers.host plateau_header_tests)

# --- clang++, called directly -------------------------------------------------------------------------------------

if(PLATEAU_CLANG AND NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  set(plateau_clang_command "${PLATEAU_CLANG}" -std=c++20 ${plateau_warning_flags} "-I${PROJECT_SOURCE_DIR}/include")
  if(TARGET plateau::blas)
    list(APPEND plateau_clang_command -isystem "${PLATEAU_OPENBLAS_INCLUDE_DIR}")
  endif()
  if(TARGET plateau::mpi)
    list(APPEND plateau_clang_command -DOMPI_SKIP_MPICXX=1 -DMPICH_SKIP_MPICXX=1)
    foreach(directory IN LISTS MPI_CXX_INCLUDE_DIRS)
      list(APPEND plateau_clang_command -isystem "${directory}")
    endforeach()
  endif()
  if(TARGET plateau::cuda)
    list(APPEND plateau_clang_command -isystem "${CUDAToolkit_INCLUDE_DIRS}")
  endif()
  if(TARGET plateau::nccl)
    list(APPEND plateau_clang_command -isystem "${NCCL_INCLUDE_DIR}")
  endif()
  file(MAKE_DIRECTORY "${plateau_header_tests_dir}/clang")
  set(plateau_clang_objects)
  foreach(order IN ITEMS forward backward)
    set(source "${plateau_header_tests_dir}/${order}.cpp")
    set(object "${plateau_header_tests_dir}/clang/${order}.o")
    add_custom_command(
      OUTPUT "${object}"
      COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${plateau_clang_command} -MD -MF "${object}.d" -c "${source}" -o "${object}"
      DEPENDS "${source}" DEPFILE "${object}.d" COMMENT "clang: all headers, ${order}" VERBATIM)
    list(APPEND plateau_clang_objects "${object}")
  endforeach()
  add_custom_target(plateau_clang_header_tests ALL DEPENDS ${plateau_clang_objects})
  plateau_add_build_test(headers.clang plateau_clang_header_tests)
elseif(NOT PLATEAU_CLANG)
  message(STATUS "plateau: headers are not compiled with clang: clang++ not found")
endif()
