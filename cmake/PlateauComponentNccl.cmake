# SPDX-License-Identifier: Apache-2.0
#
# The optional component `nccl`: plateau::cuda and NCCL, for include/plateau/nccl/. The build tree and the installed
# package run this same file, so that both find NCCL by the same rule. Sets plateau_nccl_FOUND, and where that is
# false plateau_nccl_MISSING, which says why.

if(NOT TARGET plateau::nccl)
  # What cuda lacks is part of the line below.
  set(plateau_quiet "${plateau_FIND_QUIETLY}")
  set(plateau_FIND_QUIETLY TRUE)
  include("${CMAKE_CURRENT_LIST_DIR}/PlateauComponentCuda.cmake")
  set(plateau_FIND_QUIETLY "${plateau_quiet}")
  set(plateau_nccl_MISSING "")
  if(NOT plateau_cuda_FOUND)
    set(plateau_nccl_MISSING "it needs component cuda: ${plateau_cuda_MISSING}")
  else()
    # Ours, whatever FindNCCL.cmake the project has; the project's own path stays as it was.
    set(plateau_module_path "${CMAKE_MODULE_PATH}")
    set(CMAKE_MODULE_PATH "${CMAKE_CURRENT_LIST_DIR}")
    find_package(NCCL 2.18 QUIET MODULE)
    set(CMAKE_MODULE_PATH "${plateau_module_path}")
    if(NCCL_FOUND AND TARGET NCCL::nccl)
      add_library(plateau::nccl INTERFACE IMPORTED GLOBAL)
      target_link_libraries(plateau::nccl INTERFACE plateau::cuda NCCL::nccl)
    elseif(NCCL_VERSION)
      string(CONCAT plateau_nccl_MISSING "NCCL 2.18 or newer with its library is needed; ${NCCL_INCLUDE_DIR}/nccl.h is "
                                         "${NCCL_VERSION}, the library is ${NCCL_LIBRARY} (set NCCL_ROOT)")
    else()
      set(plateau_nccl_MISSING "no nccl.h found (NVIDIA: libnccl-dev; elsewhere set NCCL_ROOT)")
    endif()
  endif()
  if(plateau_nccl_MISSING AND NOT plateau_FIND_QUIETLY)
    message(STATUS "plateau: component nccl skipped: ${plateau_nccl_MISSING}")
  endif()
endif()
set(plateau_nccl_FOUND FALSE)
if(TARGET plateau::nccl)
  set(plateau_nccl_FOUND TRUE)
endif()
