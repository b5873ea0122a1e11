# SPDX-License-Identifier: Apache-2.0
#
# PLATEAU_TEST_GROUPS: several test files of a folder are one program. What a test costs to compile is mostly what it
# instantiates, and its neighbours instantiate the same: together they take about half the time. For ctest
# nothing changes: each file remains a test of its own name, label and limit, by doctest's filter of source files.
#
# A group is a generated source: what its files include comes first, and then each file in a namespace of its own, in
# which those includes have nothing left to do. A file that does not bear that is a program by itself, as all are
# without the option: one with other directives than includes, or that declares something of a namespace outside, or
# whose test cases are in a header.

option(PLATEAU_TEST_GROUPS "Compile tests that are neighbours as one program" OFF)
set(PLATEAU_TEST_GROUP_FILES 8 CACHE STRING "Files of a group, at most")
# Those with flags, definitions or objects of their own, or that ask for the names of their types, as <folder>.<name>.
set(plateau_ungrouped_tests "^moe.combinations$;^unit.(adamw_update|kernel_name|math_as_written)$")

# plateau_groupable(<variable> <folder.name> <source>)
function(plateau_groupable variable name source)
  set(${variable} FALSE PARENT_SCOPE)
  if(NOT PLATEAU_TEST_GROUPS)
    return()
  endif()
  # The includes, and which files can be in a group, are read here.
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${source}")
  plateau_matches(alone "${name}" ${plateau_ungrouped_tests})
  file(STRINGS "${source}" others
       REGEX "^ *#|^template (<>|class|struct) .*::|^template <>$|operator (new|delete)[^a-z]*\\(")
  list(FILTER others EXCLUDE REGEX "^#include [<\"][^>\"]*[>\"]")
  # Test cases of a header are of no file of the group.
  cmake_path(GET source PARENT_PATH own_folder)
  file(STRINGS "${source}" lines REGEX "^#include \"")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "^#include \"([^\"]*)\".*$" "\\1" header "${line}")
    foreach(folder IN ITEMS "${CMAKE_CURRENT_SOURCE_DIR}" "${own_folder}")
      if(EXISTS "${folder}/${header}")
        file(STRINGS "${folder}/${header}" cases REGEX "^TEST_CASE")
        list(APPEND others ${cases})
      endif()
    endforeach()
  endforeach()
  if(NOT alone AND NOT others)
    set(${variable} TRUE PARENT_SCOPE)
  endif()
endfunction()

# plateau_group_source(<file to write> <sources ...>)
function(plateau_group_source output)
  set(includes)
  set(parts)
  foreach(source IN LISTS ARGN)
    cmake_path(GET source PARENT_PATH folder)
    cmake_path(GET source STEM name)
    file(STRINGS "${source}" lines REGEX "^#include ")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE "^#include ([<\"][^>\"]*[>\"]).*$" "\\1" header "${line}")
      string(REPLACE "\"" "" file "${header}")
      if(NOT header STREQUAL file AND EXISTS "${folder}/${file}")
        set(header "\"${folder}/${file}\"")
      endif()
      list(APPEND includes "#include ${header}")
    endforeach()
    string(APPEND parts "namespace group_of_${name} {\n#include \"${source}\"\n}\n")
  endforeach()
  list(REMOVE_DUPLICATES includes)
  list(JOIN includes "\n" includes)
  file(CONFIGURE OUTPUT "${output}" CONTENT "${includes}\n${parts}" @ONLY)
endfunction()

# plateau_group_kind(<variable> <name> <flags> <source>): a name for what all files of a group must have in common, the
# libraries and flags; and whether operator new is replaced, since a sanitizer then sees less of it.
function(plateau_group_kind variable name flags source)
  string(REPLACE "-O" "_O" kind "group${flags}")
  if(name MATCHES "_blas$")
    string(APPEND kind "_blas")
  endif()
  if(name MATCHES "^moe_")
    string(PREPEND kind "moe_")
  endif()
  file(STRINGS "${source}" counts REGEX "support/counted_new.hpp" LIMIT_COUNT 1)
  if(counts)
    string(APPEND kind "_counted")
  endif()
  set(${variable} "${kind}" PARENT_SCOPE)
endfunction()

# plateau_test_groups(<folder> <kind> <flags> <sources> <libraries ...>): the programs, and a test of each file.
function(plateau_test_groups folder kind flags sources)
  # In groups of one size, in the order of their names, by which neighbours are alike.
  list(LENGTH sources files)
  set(limit "${PLATEAU_TEST_GROUP_FILES}")
  if(folder STREQUAL "moe")
    # Eight tests of the model take 3 GB of g++ without optimisation, more with it, and clang++ twice that.
    set(limit 4)
    if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT flags STREQUAL "-O0")
      set(limit 3)
    endif()
  endif()
  math(EXPR groups "(${files} + ${limit} - 1) / ${limit}")
  foreach(group RANGE 1 ${groups})
    math(EXPR first "(${group} - 1) * ${files} / ${groups}")
    math(EXPR count "${group} * ${files} / ${groups} - ${first}")
    list(SUBLIST sources ${first} ${count} group_sources)
    set(target "${folder}_${kind}_${group}")
    set(group_source "${CMAKE_CURRENT_BINARY_DIR}/groups/${target}.cpp")
    plateau_group_source("${group_source}" ${group_sources})
    plateau_test_program(${target} ${folder} ${kind} "${group_source}" ${ARGN})
    target_compile_options(${target} PRIVATE ${flags})
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # It takes what is included for a header, which must not have unnamed namespaces.
      target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
    endif()
    # The first also runs whatever is of no file of the group, so that nothing can be lost.
    list(TRANSFORM group_sources REPLACE "^.*/([^/]+)$" "*/${folder}/\\1" OUTPUT_VARIABLE patterns)
    list(POP_FRONT patterns)
    set(patterns_left ${patterns})
    list(JOIN patterns "," patterns)
    set(choice)
    if(patterns)
      set(choice "--source-file-exclude=${patterns}")
    endif()
    foreach(source IN LISTS group_sources)
      cmake_path(GET source STEM name)
      string(REGEX REPLACE "_test$" "" test_name "${name}")
      plateau_add_test("${folder}.${test_name}" "${folder}" ${target} ${choice})
      list(POP_FRONT patterns_left pattern)
      set(choice "--source-file=${pattern}")
    endforeach()
  endforeach()
endfunction()
