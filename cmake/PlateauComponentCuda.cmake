# SPDX-License-Identifier: Apache-2.0
#
# The optional component `cuda`: plateau::plateau, the CUDA runtime, cuBLAS and CUB, for include/plateau/cuda/. The
# build tree and the installed package run this same file, so that both find CUDA by the same rule. It enables no
# language: the project that uses plateau::cuda compiles its own .cu files, with its own flags and architectures.
# Sets plateau_cuda_FOUND, and where that is false plateau_cuda_MISSING, which says why.

if(NOT TARGET plateau::cuda)
  find_package(CUDAToolkit QUIET)
  set(plateau_cuda_MISSING "")
  set(plateau_cub_target)
  if(CUDAToolkit_FOUND)
    # The toolkit's own copy first; it is not where CMake looks by itself.
    find_package(CCCL QUIET CONFIG COMPONENTS CUB libcudacxx HINTS "${CUDAToolkit_LIBRARY_DIR}/cmake")
    if(TARGET CCCL::CUB AND TARGET CCCL::libcudacxx)
      set(plateau_cub_target CCCL::CUB CCCL::libcudacxx)
    else()
      # Some distributions ship the headers without their CMake package.
      find_path(PLATEAU_CUB_INCLUDE_DIR NAMES cub/block/block_reduce.cuh
                HINTS ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES cccl)
      mark_as_advanced(PLATEAU_CUB_INCLUDE_DIR)
    endif()
  endif()
  if(NOT CUDAToolkit_FOUND AND CUDAToolkit_NVCC_EXECUTABLE)
    string(CONCAT plateau_cuda_MISSING "the CUDA toolkit of ${CUDAToolkit_NVCC_EXECUTABLE} has no cuda_runtime.h or "
                                       "no libcudart.so (install its development files or set CUDAToolkit_ROOT)")
  elseif(NOT CUDAToolkit_FOUND)
    string(CONCAT plateau_cuda_MISSING "no CUDA toolkit found (NVIDIA: cuda-toolkit; put its nvcc into PATH or set "
                                       "CUDAToolkit_ROOT)")
  elseif(CUDAToolkit_VERSION VERSION_LESS 12.4)
    string(CONCAT plateau_cuda_MISSING "CUDA 12.4 or newer is needed, and ${CUDAToolkit_BIN_DIR} is "
                                       "${CUDAToolkit_VERSION} (set CUDAToolkit_ROOT)")
  elseif(NOT TARGET CUDA::cublas OR NOT TARGET CUDA::cublasLt)
    string(CONCAT plateau_cuda_MISSING "no cuBLAS beside ${CUDAToolkit_LIBRARY_DIR} (NVIDIA: libcublas-dev; Debian: "
                                       "nvidia-cuda-dev; or set CUDAToolkit_ROOT)")
  elseif(NOT plateau_cub_target AND NOT PLATEAU_CUB_INCLUDE_DIR)
    string(CONCAT plateau_cuda_MISSING "no CUB in ${CUDAToolkit_INCLUDE_DIRS} (NVIDIA: cuda-cccl; Debian: libcub-dev; or "
                                       "set CCCL_DIR)")
  else()
    add_library(plateau::cuda INTERFACE IMPORTED GLOBAL)
    target_link_libraries(plateau::cuda INTERFACE plateau::plateau CUDA::cudart CUDA::cublas CUDA::cublasLt
                          ${plateau_cub_target})
    # C++20 where the target sets no standard: CUDA_STANDARD, or CXX_STANDARD, which CMake takes for CUDA as well. Not
    # as a compile feature, which is an error in a project without the CUDA language.
    string(CONCAT plateau_no_standard "$<NOT:$<BOOL:$<TARGET_PROPERTY:CUDA_STANDARD>>>,"
                                      "$<NOT:$<BOOL:$<TARGET_PROPERTY:CXX_STANDARD>>>")
    target_compile_options(plateau::cuda INTERFACE
                           "$<$<AND:$<COMPILE_LANGUAGE:CUDA>,${plateau_no_standard}>:-std=c++20>")
    # Before 3.25.2 CMake does not know that nvcc has C++20.
    if(CMAKE_VERSION VERSION_LESS 3.25.2 AND NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    endif()
  endif()
  if(plateau_cuda_MISSING AND NOT plateau_FIND_QUIETLY)
    message(STATUS "plateau: component cuda skipped: ${plateau_cuda_MISSING}")
  endif()
endif()
set(plateau_cuda_FOUND FALSE)
if(TARGET plateau::cuda)
  set(plateau_cuda_FOUND TRUE)
endif()
