# SPDX-License-Identifier: Apache-2.0
#
# What nvcc compiles: every public header under it, and tests/cuda/*.cu. Of those, <name>_contract.cu and
# <name>_check.cu become programs with a doctest main and entries of ctest labelled `cuda`, which are skipped where
# there is no GPU; a .cpp file of the same name belongs to the program. Every other file is compiled only. A test
# reads what ptxas said of each kernel and fails if one spills registers to memory. The target plateau_cuda_tests
# builds all of it.

add_custom_target(plateau_cuda_tests)

# The host half of a .cu file is compiled with our warnings, except those that object to what nvcc makes of it: line
# markers, and parentheses around every pointer to a member.
set(plateau_cuda_host_warnings ${plateau_warning_flags} -Wno-parentheses)
list(REMOVE_ITEM plateau_cuda_host_warnings -Wpedantic -Werror)
list(JOIN plateau_cuda_host_warnings "," plateau_cuda_host_warnings)
add_library(plateau_cuda_warnings INTERFACE)
target_compile_options(plateau_cuda_warnings INTERFACE
                       "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${plateau_cuda_host_warnings}>")
if(PLATEAU_WERROR)
  target_compile_options(plateau_cuda_warnings INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>")
endif()

set(plateau_cuda_recorded)

# plateau_record_kernels(<target>): what ptxas says of the target's kernels goes beside its objects.
function(plateau_record_kernels target)
  set_target_properties(${target} PROPERTIES
                        CUDA_COMPILER_LAUNCHER "sh;${PROJECT_SOURCE_DIR}/cmake/record_kernels.sh")
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=-v>")
  set(plateau_cuda_recorded ${plateau_cuda_recorded} ${target} PARENT_SCOPE)
endfunction()

# --- every header -------------------------------------------------------------------------------------------------

# All in one order and in the other; each alone is the host compiler's task (PlateauHeaderTests.cmake). Linked together,
# so that a function that lacks `inline` is a duplicate here too.
plateau_all_headers(cu ${plateau_present_headers})
file(CONFIGURE OUTPUT "${plateau_header_tests_dir}/main.cpp" CONTENT "int main() {}\n")
add_executable(plateau_cuda_headers "${plateau_header_tests_dir}/forward.cu" "${plateau_header_tests_dir}/backward.cu"
               "${plateau_header_tests_dir}/main.cpp")
target_link_libraries(plateau_cuda_headers PRIVATE plateau_cuda_warnings ${plateau_present_components})
# There is no kernel in them that another architecture would show.
list(GET CMAKE_CUDA_ARCHITECTURES 0 plateau_first_architecture)
set_target_properties(plateau_cuda_headers PROPERTIES CUDA_ARCHITECTURES "${plateau_first_architecture}")
add_dependencies(plateau_cuda_tests plateau_cuda_headers)

# --- tests/cuda -----------------------------------------------------------------------------------------------------

# The kernels of these are those of other files, which show what a second architecture makes of them.
set(PLATEAU_CUDA_LARGE_ARCHITECTURES "" CACHE STRING
    "What the training program and the largest programs of tests/cuda are compiled for, if not for all architectures")

file(GLOB plateau_cuda_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/cuda/*.cu")
add_library(plateau_cuda_main STATIC cuda_main.cpp)
target_link_libraries(plateau_cuda_main PUBLIC doctest::doctest PRIVATE plateau::cuda plateau_warnings)
foreach(source IN LISTS plateau_cuda_sources)
  cmake_path(GET source STEM name)
  set(target "cuda_${name}")
  if(name MATCHES "^nccl" AND NOT TARGET plateau::nccl)
    message(STATUS "plateau: tests/cuda/${name}.cu skipped: component nccl not found")
    continue()
  endif()
  if(name MATCHES "_(contract|check)$")
    file(GLOB beside CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/cuda/${name}.cpp")
    add_executable(${target} "${source}" ${beside})
    set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_CURRENT_BINARY_DIR}/cuda")
    target_link_libraries(${target} PRIVATE plateau_cuda_main)
    add_test(NAME "cuda.${name}" COMMAND ${target})
    set_tests_properties("cuda.${name}" PROPERTIES LABELS cuda TIMEOUT ${PLATEAU_TEST_TIMEOUT} SKIP_RETURN_CODE 77
                         FAIL_REGULAR_EXPRESSION "test cases: +0 " RESOURCE_LOCK plateau_gpu)
  else()
    add_library(${target} OBJECT "${source}")
  endif()
  target_include_directories(${target} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
  target_link_libraries(${target} PRIVATE plateau_cuda_warnings ${plateau_present_components})
  if(TARGET plateau_moe_test)
    target_link_libraries(${target} PRIVATE plateau_moe_test)
  endif()
  # fmt 9 does not compile under nvcc in C++20 without it.
  target_compile_definitions(${target} PRIVATE FMT_USE_CONSTEXPR=1)
  if(PLATEAU_CUDA_LARGE_ARCHITECTURES AND name MATCHES "^(dispatch|memory|model|nccl.*|offload|ring|ring_attention|training)_check$")
    set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES "${PLATEAU_CUDA_LARGE_ARCHITECTURES}")
  endif()
  plateau_record_kernels(${target})
  add_dependencies(plateau_cuda_tests ${target})
endforeach()

# --- registers, spills and shared memory ----------------------------------------------------------------------------

if(TARGET moe_runs)
  get_target_property(moe_run_sources moe_runs SOURCES)
  if(moe_run_sources MATCHES "\\.cu(;|$)")
    target_link_libraries(moe_runs PRIVATE plateau_cuda_warnings)
    if(PLATEAU_CUDA_LARGE_ARCHITECTURES)
      set_target_properties(moe_runs PROPERTIES CUDA_ARCHITECTURES "${PLATEAU_CUDA_LARGE_ARCHITECTURES}")
    endif()
    plateau_record_kernels(moe_runs)
    add_dependencies(plateau_cuda_tests moe_train)
  endif()
endif()

# --- without a device ------------------------------------------------------------------------------------------------

# Whatever this machine has is hidden: one sentence and a status, no crash.
if(TARGET moe_train)
  add_test(NAME cuda.moe_train_without_device
           COMMAND sh "${PROJECT_SOURCE_DIR}/cmake/expect_refusal.sh" 1
                   "^moe_train: --backend cuda: no CUDA device: " "$<TARGET_FILE:moe_train>" --backend cuda)
  set_tests_properties(cuda.moe_train_without_device PROPERTIES LABELS cuda TIMEOUT 60
                       ENVIRONMENT "CUDA_VISIBLE_DEVICES=-1")
endif()
add_test(NAME cuda.gpu_check_without_device
         COMMAND sh "${PROJECT_SOURCE_DIR}/cmake/expect_refusal.sh" 3 "^gpu-check: no GPU that CUDA can use: "
                 "${PROJECT_SOURCE_DIR}/scripts/gpu-check")
set_tests_properties(cuda.gpu_check_without_device PROPERTIES LABELS cuda TIMEOUT 60
                     ENVIRONMENT "CUDA_VISIBLE_DEVICES=-1;gpu_check_folder=${PROJECT_BINARY_DIR}/gpu_check_test")

# One test reads what was recorded beside these objects.
set(plateau_cuda_objects "")
foreach(target IN LISTS plateau_cuda_recorded)
  string(APPEND plateau_cuda_objects "$<JOIN:$<TARGET_OBJECTS:${target}>,\n>\n")
endforeach()
file(GENERATE OUTPUT "${PROJECT_BINARY_DIR}/kernel_objects.txt" CONTENT "${plateau_cuda_objects}")
add_test(NAME cuda.kernel_resources
         COMMAND sh "${PROJECT_SOURCE_DIR}/cmake/kernel_resources.sh" "${PROJECT_BINARY_DIR}/kernel_objects.txt"
                 "${PROJECT_BINARY_DIR}/kernel_resources.txt")
set_tests_properties(cuda.kernel_resources PROPERTIES LABELS cuda TIMEOUT 60)
