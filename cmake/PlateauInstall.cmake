# SPDX-License-Identifier: Apache-2.0
#
# Install rules, and the same package usable straight from the build tree (plateau_DIR=<build folder>).
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(plateau_package_dir "${CMAKE_INSTALL_DATADIR}/cmake/plateau")

install(TARGETS plateau EXPORT plateauTargets FILE_SET HEADERS)
install(EXPORT plateauTargets NAMESPACE plateau:: DESTINATION "${plateau_package_dir}")
export(EXPORT plateauTargets NAMESPACE plateau:: FILE "${PROJECT_BINARY_DIR}/plateauTargets.cmake")

configure_package_config_file(cmake/plateauConfig.cmake.in "${PROJECT_BINARY_DIR}/plateauConfig.cmake"
                              INSTALL_DESTINATION "${plateau_package_dir}")
# While the major version is 0, a new minor version may break its users.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/plateauConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
# What finds the optional libraries, beside the package file in the build tree as in the installed one.
set(plateau_find_files PlateauComponentBlas.cmake PlateauComponentMpi.cmake PlateauComponentCuda.cmake
                       PlateauComponentNccl.cmake FindNCCL.cmake)
foreach(file IN LISTS plateau_find_files)
  configure_file("cmake/${file}" "${PROJECT_BINARY_DIR}/${file}" COPYONLY)
endforeach()
list(TRANSFORM plateau_find_files PREPEND cmake/)

install(FILES "${PROJECT_BINARY_DIR}/plateauConfig.cmake"
              "${PROJECT_BINARY_DIR}/plateauConfigVersion.cmake"
              ${plateau_find_files}
        DESTINATION "${plateau_package_dir}")
if(EXISTS "${PROJECT_SOURCE_DIR}/LICENSE")
  install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DOCDIR}")
endif()
