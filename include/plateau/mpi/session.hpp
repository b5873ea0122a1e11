// SPDX-License-Identifier: Apache-2.0
//
// MPI from its initialisation to its end, for a program that does not see to that itself.
#pragma once

#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/mpi/check.hpp>

#include <cstdio>
#include <string>

namespace plateau::inline v0 {

namespace mpi {
// Throws config_error unless MPI is there and lets all threads call it.
inline void require_threads() {
  int initialized = 0, finalized = 0, level = 0;
  check(MPI_Initialized(&initialized), "MPI_Initialized");
  check(MPI_Finalized(&finalized), "MPI_Finalized");
  if (finalized != 0) throw config_error("plateau: MPI has been finalised, and cannot be initialised again");
  if (initialized == 0)
    throw config_error("plateau: MPI has not been initialised: make an mpi_session first, or call "
                       "MPI_Init_thread with MPI_THREAD_MULTIPLE");
  check(MPI_Query_thread(&level), "MPI_Query_thread");
  if (level == MPI_THREAD_MULTIPLE) return;
  const char* const name = level == MPI_THREAD_SINGLE     ? "MPI_THREAD_SINGLE"
                           : level == MPI_THREAD_FUNNELED ? "MPI_THREAD_FUNNELED"
                                                          : "MPI_THREAD_SERIALIZED";
  throw config_error(std::string("plateau: MPI was initialised with the thread level ") + name +
                     ", but MPI_THREAD_MULTIPLE is needed, since streams exchange on threads of their own: "
                     "let mpi_session initialise it, or ask MPI_Init_thread for that level");
}
} // namespace mpi

// Initialises MPI unless that has been done, and finalises what it has initialised. One at a time; it must
// outlive all communicators. Throws config_error when the library does not let all threads call it, or has
// been finalised before.
class mpi_session {
 public:
  mpi_session() : mpi_session(nullptr, nullptr) {}
  mpi_session(int& argc, char**& argv) : mpi_session(&argc, &argv) {}
  mpi_session(const mpi_session&) = delete;
  mpi_session& operator=(const mpi_session&) = delete;
  ~mpi_session() { finish(); }

 private:
  mpi_session(int* argc, char*** argv) {
    int initialized = 0, level = 0;
    mpi::check(MPI_Initialized(&initialized), "MPI_Initialized");
    if (initialized == 0) {
      mpi::check(MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
      ours_ = true;
    }
    try {
      mpi::require_threads();
    } catch (...) {
      finish();
      throw;
    }
  }
  void finish() noexcept {
    int finalized = 0;
    if (!ours_ || MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0) return;
    if (const int code = MPI_Finalize(); code != MPI_SUCCESS)
      std::fprintf(stderr, "plateau: MPI_Finalize failed with code %d\n", code);
  }
  bool ours_ = false;
};

} // namespace plateau::inline v0
