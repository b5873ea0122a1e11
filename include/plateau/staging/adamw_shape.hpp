// SPDX-License-Identifier: Apache-2.0
//
// What a streamed AdamW is made for: tensors, buckets, and which side updates. And what it is told with each
// step.
#pragma once

#include <plateau/config.hpp>
#include <plateau/digest.hpp>
#include <plateau/error.hpp>
#include <plateau/math.hpp>
#include <plateau/staging/adamw_settings.hpp>
#include <plateau/staging/bucket_plan.hpp>
#include <plateau/staging/staging_shape.hpp>

#include <cstdio>
#include <span>
#include <string>

namespace plateau::inline v0 {

enum class update_on : unsigned char { device, host };

// A tensor, or the part of one that this rank updates; it may have no elements.
struct adamw_tensor {
  index_t elements = 0;
  int group = 0;      // of the settings
  bool decays = true; // gains and biases usually do not
  // Whether its gradient enters the global norm on this rank: true where each rank has another part, and on
  // one of the ranks that have the same.
  bool counts = true;
};

struct adamw_shape {
  index_t bucket_elements = 0; // at most
  int slots = 3;               // 1 to 4
  update_on where = update_on::device;
  int host_threads = 1; // with update_on::host

  // Throws config_error for what cannot work.
  void check() const {
    staging_shape{bucket_elements, slots}.check();
    if (host_threads < 1)
      throw config_error("plateau: streamed_adamw: host_threads must be at least 1, got " +
                         std::to_string(host_threads));
  }
  void add_to(digest& d) const { d.add(where); }
  std::string text() const {
    return std::string("update on the ") + (where == update_on::host ? "host" : "device");
  }
};

// The same on all ranks, but `present`.
struct adamw_options {
  std::span<const adamw_group> groups{}; // settings of this step, as many as the tensors name
  double clip = 0;                       // largest norm of all gradients; 0: no clipping
  // Of each tensor, whether it has a gradient in this step; empty: all have. State, parameter and count of
  // one that has none keep their bits, and what lies in its place among the gradients is not looked at.
  std::span<const unsigned char> present{};

  bool has(index_t tensor) const { return present.empty() || present[static_cast<std::size_t>(tensor)] != 0; }
  // Throws config_error naming value and group.
  void check(std::span<const adamw_tensor> tensors) const {
    for (std::size_t g = 0; g < groups.size(); ++g) groups[g].check(static_cast<index_t>(g));
    if (!is_finite(clip) || clip < 0)
      throw config_error("plateau: adamw: clip is " + std::to_string(clip) +
                         "; expected a finite number of at least 0, where 0 turns clipping off");
    if (!present.empty() && present.size() != tensors.size())
      throw config_error("plateau: streamed_adamw: `present` has " + std::to_string(present.size()) +
                         " entries, but there are " + std::to_string(tensors.size()) + " tensors");
    for (std::size_t t = 0; t < tensors.size(); ++t)
      if (tensors[t].group < 0 || static_cast<std::size_t>(tensors[t].group) >= groups.size())
        throw config_error("plateau: streamed_adamw: tensor " + std::to_string(t) + " is of group " +
                           std::to_string(tensors[t].group) + ", but the step has settings for " +
                           std::to_string(groups.size()) + " groups");
  }
};

namespace detail::adamw {

// f(first, count, counts) for each longest run of elements of tensors that take part and count alike.
template <class F>
void for_each_run(const bucket_plan& plan, std::span<const adamw_tensor> tensors,
                  const adamw_options& options, F f) {
  const auto n = static_cast<index_t>(tensors.size());
  for (index_t t = 0; t < n;) {
    const index_t first = t;
    const bool counts = tensors[static_cast<std::size_t>(t)].counts;
    while (t < n && options.has(t) && tensors[static_cast<std::size_t>(t)].counts == counts) ++t;
    const index_t count = plan.first_of(t) - plan.first_of(first);
    if (count != 0) f(plan.first_of(first), count, counts);
    if (t == first) ++t;
  }
}

} // namespace detail::adamw

} // namespace plateau::inline v0
