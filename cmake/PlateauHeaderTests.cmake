# SPDX-License-Identifier: Apache-2.0
#
# Every public header stands alone: it is compiled by itself, twice in one translation unit, under macros that
# system headers are known to define. A second translation unit includes all headers at once; linking it with the
# others makes a function that lacks `inline` a duplicate symbol. The link is a partial one (ld -r), so that it
# reports duplicates and asks for no libraries.
#
# The headers go through the project's compiler, through clang++ where it is installed, and, as .cu files, through
# nvcc. A folder that needs a library of its own is left out where that library is missing.

find_program(PLATEAU_CLANG NAMES clang++ clang++-14 clang++-15 clang++-16 clang++-17 clang++-18)
find_program(PLATEAU_NVCC NAMES nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda/bin)
set(PLATEAU_NVCC_ARCHITECTURE "sm_80" CACHE STRING "The architecture for which nvcc compiles the headers")
mark_as_advanced(PLATEAU_CLANG PLATEAU_NVCC)

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

# plateau_header_sources(<variable> <extension> <headers ...>): one translation unit a header, and one for all.
function(plateau_header_sources variable extension)
  set(sources)
  set(all_includes "")
  foreach(PLATEAU_HEADER IN LISTS ARGN)
    string(REGEX REPLACE "[/.]" "_" name "${PLATEAU_HEADER}")
    set(source "${plateau_header_tests_dir}/${name}.${extension}")
    configure_file("${PROJECT_SOURCE_DIR}/cmake/header_test.cpp.in" "${source}" @ONLY)
    list(APPEND sources "${source}")
    string(APPEND all_includes "#include <${PLATEAU_HEADER}>\n")
  endforeach()
  file(CONFIGURE OUTPUT "${plateau_header_tests_dir}/all_headers.${extension}" CONTENT "${all_includes}")
  list(APPEND sources "${plateau_header_tests_dir}/all_headers.${extension}")
  set(${variable} "${sources}" PARENT_SCOPE)
endfunction()

# A ctest that finds its target up to date, or builds it and shows why it fails.
function(plateau_add_build_test name target)
  add_test(NAME ${name} COMMAND "${CMAKE_COMMAND}" --build "${PROJECT_BINARY_DIR}" --target ${target})
  set_tests_properties(${name} PROPERTIES LABELS headers RESOURCE_LOCK plateau_build_folder TIMEOUT 1200)
endfunction()

set(plateau_no_blas)
if(NOT TARGET plateau::blas)
  set(plateau_no_blas blas)
endif()
set(plateau_no_mpi)
if(NOT TARGET plateau::mpi)
  set(plateau_no_mpi mpi)
endif()
set(plateau_no_cuda)
if(NOT TARGET plateau::cuda)
  set(plateau_no_cuda cuda)
endif()
set(plateau_no_nccl)
if(NOT TARGET plateau::nccl)
  set(plateau_no_nccl nccl)
endif()

# --- the project's compiler -----------------------------------------------------------------------------------

plateau_header_selection(plateau_host_headers cuda nccl ${plateau_no_blas} ${plateau_no_mpi})
plateau_header_sources(plateau_host_header_sources cpp ${plateau_host_headers})
add_library(plateau_header_objects OBJECT ${plateau_host_header_sources})
target_link_libraries(plateau_header_objects PRIVATE plateau::plateau plateau_warnings)
if(TARGET plateau::blas)
  target_link_libraries(plateau_header_objects PRIVATE plateau::blas)
endif()
if(TARGET plateau::mpi)
  target_link_libraries(plateau_header_objects PRIVATE plateau::mpi)
endif()
add_custom_command(
  OUTPUT "${plateau_header_tests_dir}/linked_twice.o"
  COMMAND "${CMAKE_LINKER}" -r -o "${plateau_header_tests_dir}/linked_twice.o"
          "$<TARGET_OBJECTS:plateau_header_objects>"
  DEPENDS plateau_header_objects "$<TARGET_OBJECTS:plateau_header_objects>"
  COMMENT "Linking every header twice" COMMAND_EXPAND_LISTS VERBATIM)
add_custom_target(plateau_header_tests ALL DEPENDS "${plateau_header_tests_dir}/linked_twice.o")
plateau_add_build_test(headers.host plateau_header_tests)

# --- other compilers, called directly ---------------------------------------------------------------------------

# plateau_foreign_objects(<variable> <name> <sources> <command ...>): one object a source.
function(plateau_foreign_objects variable name sources)
  set(objects)
  foreach(source IN LISTS sources)
    cmake_path(GET source STEM LAST_ONLY stem)
    set(object "${plateau_header_tests_dir}/${name}/${stem}.o")
    add_custom_command(
      OUTPUT "${object}"
      COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${ARGN} -MD -MF "${object}.d" -c "${source}" -o "${object}"
      DEPENDS "${source}" DEPFILE "${object}.d"
      COMMENT "${name}: ${stem}" VERBATIM)
    list(APPEND objects "${object}")
  endforeach()
  file(MAKE_DIRECTORY "${plateau_header_tests_dir}/${name}")
  set(${variable} "${objects}" PARENT_SCOPE)
endfunction()

set(plateau_foreign_includes "-I${PROJECT_SOURCE_DIR}/include")
if(PLATEAU_OPENBLAS_INCLUDE_DIR)
  list(APPEND plateau_foreign_includes -isystem "${PLATEAU_OPENBLAS_INCLUDE_DIR}")
endif()
if(TARGET plateau::mpi)
  list(APPEND plateau_foreign_includes -DOMPI_SKIP_MPICXX=1 -DMPICH_SKIP_MPICXX=1)
  foreach(directory IN LISTS MPI_CXX_INCLUDE_DIRS)
    list(APPEND plateau_foreign_includes -isystem "${directory}")
  endforeach()
endif()

if(PLATEAU_CLANG AND NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  plateau_foreign_objects(plateau_clang_objects clang "${plateau_host_header_sources}"
                          "${PLATEAU_CLANG}" -std=c++20 ${plateau_warning_flags} ${plateau_foreign_includes})
  add_custom_target(plateau_clang_header_tests ALL DEPENDS ${plateau_clang_objects})
  plateau_add_build_test(headers.clang plateau_clang_header_tests)
elseif(NOT PLATEAU_CLANG)
  message(STATUS "plateau: headers are not compiled with clang: clang++ not found")
endif()

if(PLATEAU_NVCC)
  plateau_header_selection(plateau_nvcc_headers ${plateau_no_blas} ${plateau_no_mpi} ${plateau_no_cuda}
                           ${plateau_no_nccl})
  plateau_header_sources(plateau_nvcc_sources cu ${plateau_nvcc_headers})
  set(plateau_nvcc_command "${PLATEAU_NVCC}" -std=c++20 -arch=${PLATEAU_NVCC_ARCHITECTURE}
      -Werror=all-warnings ${plateau_foreign_includes})
  if(TARGET plateau::nccl)
    list(APPEND plateau_nvcc_command -isystem "${NCCL_INCLUDE_DIR}")
  endif()
  plateau_foreign_objects(plateau_nvcc_objects nvcc "${plateau_nvcc_sources}" ${plateau_nvcc_command})
  # Kernels are templates, which a header alone does not instantiate: tests/cuda/*.cu do, and are only compiled.
  file(GLOB plateau_kernel_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/cuda/*.cu")
  plateau_foreign_objects(plateau_kernel_objects nvcc_kernels "${plateau_kernel_sources}"
                          ${plateau_nvcc_command} "-I${CMAKE_CURRENT_SOURCE_DIR}")
  add_custom_command(
    OUTPUT "${plateau_header_tests_dir}/nvcc/linked_twice.o"
    COMMAND "${CMAKE_LINKER}" -r -o "${plateau_header_tests_dir}/nvcc/linked_twice.o" ${plateau_nvcc_objects}
    DEPENDS ${plateau_nvcc_objects}
    COMMENT "nvcc: linking every header twice" VERBATIM)
  set(plateau_in_all)
  if(PLATEAU_NVCC_TESTS)
    set(plateau_in_all ALL)
  endif()
  add_custom_target(plateau_nvcc_tests ${plateau_in_all}
                    DEPENDS "${plateau_header_tests_dir}/nvcc/linked_twice.o" ${plateau_kernel_objects})
  if(PLATEAU_NVCC_TESTS)
    plateau_add_build_test(headers.nvcc plateau_nvcc_tests)
  else()
    message(STATUS "plateau: headers are not compiled with nvcc (PLATEAU_NVCC_TESTS is OFF)")
  endif()
elseif(PLATEAU_NVCC_TESTS)
  message(FATAL_ERROR "plateau: PLATEAU_NVCC_TESTS is ON and nvcc was not found in PATH or /usr/local/cuda/bin")
else()
  message(STATUS "plateau: headers are not compiled with nvcc: nvcc not found")
endif()
