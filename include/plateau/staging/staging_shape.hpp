// SPDX-License-Identifier: Apache-2.0
//
// How large a bucket is and how many are on the device at a time: what a staging pipeline's memory follows
// from, whatever the number of elements that pass through it.
#pragma once

#include <plateau/config.hpp>
#include <plateau/error.hpp>
#include <plateau/resource.hpp>

#include <algorithm>
#include <string>

namespace plateau::inline v0 {

// Where updates run: on a stream of the pipeline's own, or on the one that `run` is given.
enum class staging_compute : unsigned char { own_stream, callers_stream };

struct staging_shape {
  static constexpr int most_slots = 4;

  index_t bucket_elements = 0; // at most; of each field
  // 1: nothing overlaps. 2: as fast as more where the way out takes as long as the way in and the update is
  // short beside both. 3: each of the three stages has a bucket. 4: where stages vary in length.
  int slots = 3;
  staging_compute compute = staging_compute::own_stream;

  // Throws config_error with what cannot work.
  void check() const {
    const auto refuse = [](const char* what, index_t got) {
      throw config_error("plateau: staging_pipeline: " + std::string(what) + ", got " + std::to_string(got));
    };
    if (slots < 1 || slots > most_slots) refuse("slots must be 1, 2, 3 or 4", slots);
    if (bucket_elements < 1) refuse("bucket_elements must be at least 1", bucket_elements);
  }
};

// Bytes of one bucket, all streamed fields together, where nobody says otherwise: 32 MiB, whose copies take a
// hundred times as long as it takes to begin them, while three slots are less than 100 MiB; less for a small
// state, so that all slots together are at most an eighth of it.
inline constexpr std::size_t usual_bucket_bytes = std::size_t{32} << 20;
constexpr std::size_t default_bucket_bytes(std::size_t state_bytes, int slots) {
  return std::min(usual_bucket_bytes, state_bytes / (8 * static_cast<std::size_t>(slots)));
}

// How many elements fit into bucket_bytes, at bytes_per_element of all streamed fields; a multiple of
// part_alignment where there are that many, so that slots begin where copies are fastest and rounding adds
// nothing. Throws config_error when not even one fits.
inline index_t bucket_elements_for(std::size_t bucket_bytes, std::size_t bytes_per_element) {
  const std::size_t most = bytes_per_element == 0 ? bucket_bytes : bucket_bytes / bytes_per_element;
  if (most == 0)
    throw config_error("plateau: staging_pipeline: a bucket of " + std::to_string(bucket_bytes) +
                       " bytes is smaller than one element of all streamed fields, which has " +
                       std::to_string(bytes_per_element) + " bytes: make bucket_bytes larger");
  return static_cast<index_t>(most < part_alignment ? most : most / part_alignment * part_alignment);
}

} // namespace plateau::inline v0
