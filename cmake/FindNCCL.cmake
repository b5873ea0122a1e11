# SPDX-License-Identifier: Apache-2.0
#
# NCCL, which ships no CMake package: defines NCCL::nccl, NCCL_VERSION (read from nccl.h), NCCL_INCLUDE_DIR and
# NCCL_LIBRARY. Looks below NCCL_ROOT, NCCL_HOME, the CUDA toolkit where that was found before, and where CMake looks
# by itself.

find_path(NCCL_INCLUDE_DIR NAMES nccl.h
          HINTS ENV NCCL_HOME PATH_SUFFIXES include)
find_path(NCCL_INCLUDE_DIR NAMES nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} PATHS /usr/local/cuda/include)
# The library that belongs to the header comes first; wheels have no libnccl.so beside libnccl.so.2.
if(NCCL_INCLUDE_DIR)
  cmake_path(GET NCCL_INCLUDE_DIR PARENT_PATH plateau_nccl_prefix)
endif()
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2
             HINTS ENV NCCL_HOME ${plateau_nccl_prefix} PATH_SUFFIXES lib lib64)
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${CUDAToolkit_LIBRARY_DIR} PATHS /usr/local/cuda/lib64)
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)

unset(NCCL_VERSION)
if(NCCL_INCLUDE_DIR)
  file(STRINGS "${NCCL_INCLUDE_DIR}/nccl.h" plateau_nccl_lines
       REGEX "^#define[ \t]+NCCL_(MAJOR|MINOR|PATCH)[ \t]+[0-9]+")
  list(TRANSFORM plateau_nccl_lines REPLACE "^#define[ \t]+NCCL_[A-Z]+[ \t]+([0-9]+).*$" "\\1")
  list(JOIN plateau_nccl_lines "." NCCL_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR VERSION_VAR NCCL_VERSION)

if(NCCL_FOUND AND NOT TARGET NCCL::nccl)
  add_library(NCCL::nccl UNKNOWN IMPORTED)
  set_target_properties(NCCL::nccl PROPERTIES IMPORTED_LOCATION "${NCCL_LIBRARY}")
  target_include_directories(NCCL::nccl SYSTEM INTERFACE "${NCCL_INCLUDE_DIR}")
endif()
