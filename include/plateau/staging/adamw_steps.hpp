// SPDX-License-Identifier: Apache-2.0
//
// How often each tensor has been updated, on the device: a step that the device decides to skip counts for
// no tensor, and no host waits to hear of it. So the factors of a step are computed there too, in double, by
// operations that round alike everywhere.
#pragma once

#include <plateau/access.hpp>
#include <plateau/config.hpp>
#include <plateau/staging/adamw_kernel.hpp>
#include <plateau/staging/adamw_settings.hpp>
#include <plateau/staging/adamw_shape.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <algorithm>
#include <cstdint>
#include <span>

namespace plateau::inline v0 {

// A bit for each of a run of tensors, small enough to be a kernel's argument.
struct tensor_bits {
  static constexpr index_t most = 512;
  std::uint64_t bits[most / 64] = {};

  PLATEAU_HD bool has(index_t i) const { return (bits[i / 64] >> (i % 64) & 1) != 0; }
  void set(index_t i) { bits[i / 64] |= std::uint64_t{1} << (i % 64); }
};

// Over elements{n} of at most tensor_bits::most tensors: counts the step of those that take part, unless it
// is skipped, and says what its factors are. The others' are left as they are.
struct count_steps {
  adamw_group group{};
  tensor_bits part{}, decays{};

  PLATEAU_HD void operator()(index_t i, view<const float> control, // (2)
                             view<std::int64_t> steps,             // (n), updated
                             view<adamw_factors> factors) const {  // (n), updated
    if (!part.has(i)) return;
    if (control[1] == 0.0f) ++steps[i];
    // Of a step that is skipped nobody uses them; 1, as nothing divides by 0 then.
    const std::int64_t step = steps[i] > 0 ? steps[i] : 1;
    factors[i] = adamw_factors_of(group, step, decays.has(i));
  }
};

namespace detail::adamw {

// The tensors of one group at a time, as many as fit into a kernel's argument. Only enqueues.
template <class Backend>
void count(Backend& backend, typename Backend::stream& s, std::span<const adamw_tensor> tensors,
           const adamw_options& options, view<const float> control, view<std::int64_t> steps,
           view<adamw_factors> factors) {
  const auto all = static_cast<index_t>(tensors.size());
  for (index_t first = 0; first < all; first += tensor_bits::most) {
    const index_t n = std::min(tensor_bits::most, all - first);
    for (std::size_t g = 0; g < options.groups.size(); ++g) {
      count_steps kernel{options.groups[g], {}, {}};
      bool any = false;
      for (index_t i = 0; i < n; ++i) {
        const adamw_tensor& t = tensors[static_cast<std::size_t>(first + i)];
        if (static_cast<std::size_t>(t.group) != g || !options.has(first + i)) continue;
        any = true;
        kernel.part.set(i);
        if (t.decays) kernel.decays.set(i);
      }
      if (any)
        backend.launch(s, plateau::elements{n}, kernel, in(control), inout(steps.sub(first, n)),
                       some(factors.sub(first, n)));
    }
  }
}

} // namespace detail::adamw

} // namespace plateau::inline v0
