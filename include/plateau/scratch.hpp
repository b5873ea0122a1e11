// SPDX-License-Identifier: Apache-2.0
//
// Scratch: bytes that an operation may use while it runs. The caller owns them, whoever needs some says how
// much beforehand (`..._scratch_bytes`), and one check refuses what is too small or not aligned.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/view.hpp>

#include <cstdint>
#include <string>

namespace plateau::inline v0 {

// Contents are undefined before and after. Aligned to scratch_alignment, as buffers, parts of a workspace and
// everything that operator new gives are.
using scratch_view = view<unsigned char, device_space>;

inline constexpr std::size_t scratch_alignment = 16;

// Throws config_error when the scratch has fewer than `needed` bytes, or does not begin at a multiple of
// scratch_alignment; an operation that needs none takes anything. `at` is the place of the call, `owner` the
// rank, for the error.
inline void check_scratch(const char* operation, std::size_t needed, scratch_view scratch,
                          source_line at = {}, const char* owner = "") {
  if (scratch.bytes() < needed)
    throw config_error(error_prefix(owner) + operation + ": needs " + std::to_string(needed) +
                       " bytes of scratch, got " + std::to_string(scratch.bytes()) +
                       ": ask its scratch_bytes first" + at.text());
  const auto address = reinterpret_cast<std::uintptr_t>(scratch.p);
  if (needed != 0 && address % scratch_alignment != 0)
    throw config_error(error_prefix(owner) + operation + ": its scratch begins " +
                       std::to_string(address % scratch_alignment) + " bytes behind a multiple of " +
                       std::to_string(scratch_alignment) + ": cut scratch at multiples of that" + at.text());
}

} // namespace plateau::inline v0
