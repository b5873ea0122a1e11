# SPDX-License-Identifier: Apache-2.0
#
# Settings of Plateau's own programs. Users of the library never see them: they sit on the target
# plateau_warnings, which our tests, examples and benches link.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(PROJECT_IS_TOP_LEVEL)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
  endif()
  if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
    find_program(PLATEAU_CCACHE ccache)
    mark_as_advanced(PLATEAU_CCACHE)
    if(PLATEAU_CCACHE)
      set(CMAKE_CXX_COMPILER_LAUNCHER "${PLATEAU_CCACHE}")
    endif()
  endif()
endif()

# Sign conversions are allowed: extents are signed, and the standard containers' sizes are not.
set(plateau_warning_flags -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion)
if(PLATEAU_WERROR)
  list(APPEND plateau_warning_flags -Werror)
endif()
add_library(plateau_warnings INTERFACE)
# Not for the .cu files of a target that has both: nvcc knows other flags.
target_compile_options(plateau_warnings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${plateau_warning_flags}>")
