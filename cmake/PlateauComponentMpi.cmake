# SPDX-License-Identifier: Apache-2.0
#
# The optional component `mpi`: plateau::plateau and an MPI library, for include/plateau/mpi/. The build tree and
# the installed package run this same file, so that both find MPI by the same rule. Sets plateau_mpi_FOUND, and
# where that is false plateau_mpi_MISSING, which says why.

if(NOT TARGET plateau::mpi)
  find_package(MPI QUIET COMPONENTS CXX)
  set(plateau_mpi_MISSING "")
  if(NOT MPI_CXX_FOUND)
    set(plateau_mpi_MISSING "no MPI found (Debian: libopenmpi-dev; elsewhere set MPI_HOME or MPI_CXX_COMPILER)")
  elseif(MPI_CXX_VERSION AND MPI_CXX_VERSION VERSION_LESS 3.1)
    string(CONCAT plateau_mpi_MISSING "MPI 3.1 or newer is needed, and ${MPI_CXX_COMPILER} belongs to MPI "
                                      "${MPI_CXX_VERSION} (set MPI_HOME or MPI_CXX_COMPILER)")
  else()
    add_library(plateau::mpi INTERFACE IMPORTED GLOBAL)
    target_link_libraries(plateau::mpi INTERFACE plateau::plateau MPI::MPI_CXX)
    # Only the C interface is used. The C++ one, gone since MPI 3, would cost compile time and warnings.
    target_compile_definitions(plateau::mpi INTERFACE OMPI_SKIP_MPICXX=1 MPICH_SKIP_MPICXX=1)
  endif()
  if(plateau_mpi_MISSING AND NOT plateau_FIND_QUIETLY)
    message(STATUS "plateau: component mpi skipped: ${plateau_mpi_MISSING}")
  endif()
endif()
set(plateau_mpi_FOUND FALSE)
if(TARGET plateau::mpi)
  set(plateau_mpi_FOUND TRUE)
endif()
