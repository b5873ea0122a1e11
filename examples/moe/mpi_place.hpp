// SPDX-License-Identifier: Apache-2.0
//
// Whether this process was started by an MPI launcher, and as which of how many: known from the environment,
// before MPI is asked.
#pragma once

#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

namespace moe {

struct mpi_place {
  bool launched = false;
  std::optional<int> processes, rank; // where the launcher tells

  // Of several one speaks for all.
  bool first() const { return rank.value_or(0) == 0; }
  bool alone() const { return !launched || processes == 1; }
};

// `variable(name)`: its value, or nullptr, as std::getenv.
template <class Variable> mpi_place mpi_place_of(Variable variable) {
  const auto number = [&](const char* name) -> std::optional<int> {
    const char* const text = variable(name);
    if (text == nullptr) return std::nullopt;
    const std::string_view all(text);
    int value = -1;
    const auto end = std::from_chars(all.data(), all.data() + all.size(), value);
    if (end.ec != std::errc{} || end.ptr != all.data() + all.size() || value < 0) return std::nullopt;
    return value;
  };
  constexpr const char* known[][2] = {{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"}, // Open MPI
                                      {"PMI_SIZE", "PMI_RANK"},                         // MPICH, Intel MPI
                                      {"MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"}};  // MVAPICH2
  for (const auto& [size, rank] : known)
    if (const auto processes = number(size)) return {true, processes, number(rank)};
  if (const auto rank = number("PMIX_RANK")) return {true, std::nullopt, rank}; // srun --mpi=pmix and others
  return {};
}

inline mpi_place mpi_place_here() {
  return mpi_place_of([](const char* name) { return std::getenv(name); });
}

} // namespace moe
