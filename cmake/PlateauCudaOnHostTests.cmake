# SPDX-License-Identifier: Apache-2.0
#
# Tests of the CUDA backend that run without CUDA and without a GPU: tests/cuda_on_host/<name>_test.cpp is compiled
# by the host's compiler against the stand-in for CUDA's libraries in tests/support/cuda_stand_in, which says what
# it shows and what it cannot. As nvcc does, the compiler is told __CUDACC__ and given cuda_runtime.h by itself.
# To be included by tests/CMakeLists.txt, behind plateau_test_folder.

find_package(Threads REQUIRED)

add_library(plateau_cuda_stand_in INTERFACE)
target_include_directories(plateau_cuda_stand_in BEFORE INTERFACE
                           "${CMAKE_CURRENT_SOURCE_DIR}/support/cuda_stand_in/include")
target_compile_definitions(plateau_cuda_stand_in INTERFACE __CUDACC__)
target_compile_options(plateau_cuda_stand_in INTERFACE "SHELL:-include cuda_runtime.h")
target_link_libraries(plateau_cuda_stand_in INTERFACE Threads::Threads)

plateau_test_folder(cuda_on_host plateau_cuda_stand_in)
# The thread sanitizer's reports are what it looks for.
if(TEST cuda_on_host.stand_in_races)
  set_tests_properties(cuda_on_host.stand_in_races PROPERTIES ENVIRONMENT "TSAN_OPTIONS=halt_on_error=0:exitcode=0")
endif()
