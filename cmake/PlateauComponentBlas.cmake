# SPDX-License-Identifier: Apache-2.0
#
# The optional component `blas`: plateau::plateau and OpenBLAS with its cblas.h. The build tree and the installed
# package run this same file, so that both find OpenBLAS by the same rule. Sets plateau_blas_FOUND.

if(NOT TARGET plateau::blas)
  find_package(PkgConfig QUIET)
  if(PkgConfig_FOUND)
    pkg_check_modules(plateau_openblas_pc QUIET openblas)
  endif()
  # openblas_config.h, not cblas.h: on Debian the plain cblas.h may belong to another BLAS.
  find_path(PLATEAU_OPENBLAS_INCLUDE_DIR NAMES openblas_config.h
            HINTS ${plateau_openblas_pc_INCLUDE_DIRS}
            PATH_SUFFIXES openblas-pthread openblas openblas-openmp openblas-serial
                          ${CMAKE_LIBRARY_ARCHITECTURE}/openblas-pthread
                          ${CMAKE_LIBRARY_ARCHITECTURE}/openblas-openmp
                          ${CMAKE_LIBRARY_ARCHITECTURE}/openblas-serial)
  find_library(PLATEAU_OPENBLAS_LIBRARY NAMES openblas openblasp
               HINTS ${plateau_openblas_pc_LIBRARY_DIRS} PATH_SUFFIXES openblas-pthread)
  mark_as_advanced(PLATEAU_OPENBLAS_INCLUDE_DIR PLATEAU_OPENBLAS_LIBRARY)
  if(PLATEAU_OPENBLAS_INCLUDE_DIR AND PLATEAU_OPENBLAS_LIBRARY
     AND EXISTS "${PLATEAU_OPENBLAS_INCLUDE_DIR}/cblas.h")
    add_library(plateau::blas INTERFACE IMPORTED GLOBAL)
    target_link_libraries(plateau::blas INTERFACE plateau::plateau "${PLATEAU_OPENBLAS_LIBRARY}")
    target_include_directories(plateau::blas SYSTEM INTERFACE "${PLATEAU_OPENBLAS_INCLUDE_DIR}")
    set(plateau_blas_MISSING "")
  else()
    set(plateau_blas_MISSING "no OpenBLAS with cblas.h found (Debian: libopenblas-dev)")
    if(NOT plateau_FIND_QUIETLY)
      message(STATUS "plateau: component blas skipped: ${plateau_blas_MISSING}")
    endif()
  endif()
endif()
set(plateau_blas_FOUND FALSE)
if(TARGET plateau::blas)
  set(plateau_blas_FOUND TRUE)
endif()
