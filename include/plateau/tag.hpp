// SPDX-License-Identifier: Apache-2.0
//
// What memory is for. Every byte that a metered resource gives out carries one of these tags, so that a peak
// can be taken apart: what each purpose held at the moment when the total, or one purpose, was highest.
#pragma once

#include <plateau/config.hpp>

#include <array>

namespace plateau::inline v0 {

enum class tag : unsigned char {
  parameters,  // weights in the compute type
  gradients,   // of parameters, accumulators included
  activations, // intermediates of a layer's forward and backward
  dispatch,    // rows on their way to experts and back, and the experts' intermediates
  vocabulary,  // logits and what is computed from them
  checkpoint,  // boundary inputs kept from forward to backward
  optimizer,   // master weights, moments
  workspace,   // reserved for operators, none of which is running
  other
};

inline constexpr std::array all_tags{tag::parameters, tag::gradients,  tag::activations,
                                     tag::dispatch,   tag::vocabulary, tag::checkpoint,
                                     tag::optimizer,  tag::workspace,  tag::other};
inline constexpr std::size_t tag_count = all_tags.size();

// A number of bytes for each tag, by its value.
using bytes_by_tag = std::array<std::size_t, tag_count>;

constexpr const char* name_of(tag t) {
  constexpr const char* names[] = {"parameters", "gradients", "activations", "dispatch", "vocabulary",
                                   "checkpoint", "optimizer", "workspace",   "other"};
  return names[static_cast<std::size_t>(t)];
}

} // namespace plateau::inline v0
