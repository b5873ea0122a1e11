# SPDX-License-Identifier: Apache-2.0
#
# The CUDA language for Plateau's own .cu files (PLATEAU_CUDA; the preset `cuda`). The library and its components
# enable no language. Compiles everywhere that nvcc is, GPU or not.

if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(PLATEAU_NVCC NAMES nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATH_SUFFIXES bin PATHS /usr/local/cuda/bin)
  mark_as_advanced(PLATEAU_NVCC)
  if(NOT PLATEAU_NVCC)
    message(FATAL_ERROR "plateau: PLATEAU_CUDA is ON and there is no nvcc in PATH, below CUDA_HOME or in "
                        "/usr/local/cuda/bin; set CUDACXX, or build without -DPLATEAU_CUDA=ON")
  endif()
  set(CMAKE_CUDA_COMPILER "${PLATEAU_NVCC}")
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  set(CMAKE_CUDA_ARCHITECTURES 80 90)
endif()
enable_language(CUDA)
