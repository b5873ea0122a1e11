// SPDX-License-Identifier: Apache-2.0
//
// The parts that a linear cross-entropy takes of its workspace, in the order of the lines of its working set.
#pragma once

#include <plateau/collectives.hpp>
#include <plateau/config.hpp>
#include <plateau/ring/cross_entropy_plan.hpp>
#include <plateau/ring/cross_entropy_rows.hpp>
#include <plateau/ring/cross_entropy_steps.hpp>
#include <plateau/ring/cross_entropy_terms.hpp>
#include <plateau/ring/ring_reduce.hpp>
#include <plateau/scratch.hpp>
#include <plateau/view.hpp>

#include <array>
#include <type_traits>

namespace plateau::inline v0 {

namespace detail {

template <class Backend, class T, class Id> struct cross_entropy_memory {
  ring_buffers ring;
  view<float> strip, unit;
  std::array<view<float>, 2> logits{};
  std::array<view<T>, 2> gradient_tiles{};
  std::array<view<token_gradient>, 2> tile_tokens{};
  std::array<scratch_view, 2> scratch{};
  typename cross_entropy_forward<Backend, T, Id>::block_sums apart{};
  view<float> accumulator;
  view<token_sums> sums;
  scratch_view sum_scratch;
  view<float> class_sum;
  view<bad_target> bad;
  view<bad_target, typename Backend::host_memory::space> bad_on_host;

  template <class Phase>
  static cross_entropy_memory take(Phase& open, const cross_entropy_plan<Backend, T>& plan) {
    cross_entropy_memory m;
    const auto each = [&](auto f) {
      for (std::size_t slot = 0; slot < plan.tile_slots(); ++slot) f(slot);
    };
    const index_t elements = plan.tile_tokens() * plan.tile_columns();
    if (plan.shape.one_pass) {
      m.strip = open.template device<float>(plan.tile_tokens() * plan.shape.vocabulary);
      m.unit = open.template device<float>(1);
    } else {
      m.ring = ring_buffers::take(open, plan.layout(), plan.ranks);
      each([&](std::size_t slot) { m.logits[slot] = open.template device<float>(elements); });
    }
    if constexpr (std::is_same_v<T, float>)
      m.gradient_tiles = m.logits;
    else
      each([&](std::size_t slot) { m.gradient_tiles[slot] = open.template device<T>(elements); });
    if (plan.targets_of_a_tile())
      each([&](std::size_t slot) {
        m.tile_tokens[slot] = open.template device<token_gradient>(plan.tile_tokens());
      });
    each([&](std::size_t slot) {
      m.scratch[slot] = open.template device<unsigned char>(static_cast<index_t>(plan.scratch_bytes()));
    });
    if (plan.states_stand_apart()) {
      const index_t n = plan.shape.tokens * plan.blocks();
      m.apart.states = open.template device<token_state>(n);
      if (plan.shape.entropy) m.apart.spreads = open.template device<float>(n);
      if (plan.shape.argmax) m.apart.ids = open.template device<std::int64_t>(n);
    }
    if (plan.needs_accumulator())
      m.accumulator = open.template device<float>(plan.shape.tokens * plan.shape.hidden);
    m.sums = open.template device<token_sums>(token_sum_blocks);
    m.sum_scratch = open.template device<unsigned char>(
        static_cast<index_t>(reduce_scratch_bytes<double>(plan.ranks, plan.sum_options)));
    m.class_sum = open.template device<float>(1);
    m.bad = open.template device<bad_target>(1);
    m.bad_on_host = open.template pinned<bad_target>(1);
    return m;
  }
};

} // namespace detail

} // namespace plateau::inline v0
