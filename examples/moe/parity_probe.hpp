// SPDX-License-Identifier: Apache-2.0
//
// Looks at two trainers of one rank between the parts of a step: the losses of tokens, and the gradients as
// the update will see them, summed over ranks, one piece of one tensor at a time. It has a backend of its
// own, so that the meters of the trainers show what they hold without it.
#pragma once

#include "parameter_layout.hpp"
#include "parameters.hpp"
#include "parity.hpp"

#include <plateau/access.hpp>
#include <plateau/close_step.hpp>
#include <plateau/collectives.hpp>
#include <plateau/kernels.hpp>
#include <plateau/resource.hpp>
#include <plateau/view.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace moe {

template <class Backend, class Communicator, class Trainer> class parity_probe {
  using host_view = pl::view<float, pl::host_space>;

 public:
  static constexpr index_t piece = index_t{1} << 18; // elements

  // Reserves three pieces and the scratch of a sum over ranks. All must outlive it; `world` is all ranks, and
  // used by nobody else. The two trainers' streams must be done whenever a function is called.
  parity_probe(Backend& backend, Communicator& world, Trainer& first, Trainer& second)
      : backend_(&backend), world_(&world), trainers_{&first, &second},
        whole_(parameter_layout::whole(first.model().config())),
        summed_(backend.device(), piece, pl::tag::other),
        scratch_(backend.device(), static_cast<index_t>(pl::reduce_scratch_bytes<float>(world.size())),
                 pl::tag::other),
        arrived_{pl::pinned_buffer<float, Backend>(backend.pinned(), piece, pl::tag::other),
                 pl::pinned_buffer<float, Backend>(backend.pinned(), piece, pl::tag::other)},
        stream_(backend.make_stream("parity")) {}

  std::vector<std::string> tensors() const {
    std::vector<std::string> names;
    for (const parameter_group* group : whole_.groups())
      for (const parameter& p : group->all()) names.push_back(p.name);
    return names;
  }

  // Adds this rank's tokens of the micro-batch that both have just run.
  void add_tokens(token_differences& to) {
    const pl::view<float> losses[] = {trainers_[0]->model().token_losses(),
                                      trainers_[1]->model().token_losses()};
    for (index_t done = 0; done < losses[0].n; done += piece) {
      const index_t n = std::min(piece, losses[0].n - done);
      for (std::size_t i = 0; i < 2; ++i)
        backend_->copy(stream_, pl::in(pl::view<const float>(losses[i].sub(done, n))),
                       pl::out(arrived_[i].all().sub(0, n)));
      backend_->wait(backend_->record(stream_));
      to.add(arrived(0, n), arrived(1, n));
    }
  }
  // Those of all ranks. Collective.
  token_differences of_all_ranks(const token_differences& mine) {
    const std::int64_t words[3] = {std::bit_cast<std::int64_t>(mine.largest),
                                   std::bit_cast<std::int64_t>(mine.squares), mine.tokens};
    std::vector<std::int64_t> all(3 * static_cast<std::size_t>(world_->size()));
    world_->host_exchange(words, all, "losses of tokens");
    token_differences sum;
    for (std::size_t r = 0; r < all.size(); r += 3)
      sum.add({std::bit_cast<double>(all[r]), std::bit_cast<double>(all[r + 1]), all[r + 2]});
    return sum;
  }

  // The gradients between backward and update, by tensor; on rank 0, nothing elsewhere. Collective.
  std::vector<gradient_difference> gradients() {
    std::vector<gradient_difference> all;
    for (const parameter_group* group : whole_.groups())
      for (const parameter& p : group->all()) {
        gradient_difference sums;
        for (index_t first = 0; first < p.elements(); first += piece) {
          const index_t n = std::min(piece, p.elements() - first);
          for (std::size_t i = 0; i < 2; ++i) sum_over_ranks(*trainers_[i], p.name, first, n, i);
          backend_->wait(backend_->record(stream_));
          if (world_->rank() == 0) sums.add(arrived(0, n), arrived(1, n));
        }
        if (world_->rank() == 0) all.push_back(sums);
      }
    pl::close_step(*backend_, *world_, stream_);
    return all;
  }

  // The second trainer goes on from the weights and the state of the first, which has every value that it
  // holds of a tensor in one place.
  void take_over() {
    Trainer &from = *trainers_[0], &to = *trainers_[1];
    const host_view staged = arrived_[0].all();
    for (const parameter_group* group : to.model().layout().groups())
      for (const parameter& p : group->all()) {
        const auto [theirs, source] = part_of(from, p.name);
        for (int which = 0; which < 3; ++which)
          for (index_t done = 0; done < p.elements(); done += piece) {
            const auto part = staged.sub(0, std::min(piece, p.elements() - done));
            from.optimizer().get(from.stream(), *theirs, *source, which,
                                 p.first_element() - source->first_element() + done, part);
            from.backend().wait(from.backend().record(from.stream()));
            to.optimizer().put(to.stream(), *group, p, which, done, part);
            to.backend().wait(to.backend().record(to.stream()));
          }
      }
  }

 private:
  std::span<const float> arrived(std::size_t i, index_t n) const {
    return {arrived_[i].all().p, static_cast<std::size_t>(n)};
  }
  // What a rank has of a tensor; null where it has nothing.
  static std::pair<const parameter_group*, const parameter*> part_of(Trainer& t, const std::string& name) {
    for (const parameter_group* group : t.model().layout().groups())
      for (const parameter& p : group->all())
        if (p.name == name) return {group, &p};
    return {nullptr, nullptr};
  }
  // Elements [first, first + n) of the gradient of a whole tensor, in the i-th pinned piece. A rank that has
  // none of them adds zeros, which leaves the order of the sum and its bits as the update has them.
  void sum_over_ranks(Trainer& t, const std::string& name, index_t first, index_t n, std::size_t i) {
    const pl::view<float> sum = summed_.all().sub(0, n);
    const auto [group, p] = part_of(t, name);
    const index_t from = p == nullptr ? n : std::clamp<index_t>(p->first_element() - first, 0, n);
    const index_t to =
        p == nullptr ? n : std::clamp<index_t>(p->first_element() + p->elements() - first, from, n);
    if (to - from != n) backend_->launch(stream_, pl::elements{n}, pl::fill<float>{0}, pl::out(sum));
    if (from != to) {
      const index_t at = p->offset + first + from - p->first_element();
      const auto into = pl::out(sum.sub(from, to - from));
      auto& gradients = t.model().gradients();
      if (t.model().config().flatten.optimizer)
        backend_->copy(stream_,
                       pl::in(pl::view<const float, pl::host_space>(
                           gradients.flat().home(group->kind()).sub(at, to - from))),
                       into);
      else
        backend_->copy(stream_,
                       pl::in(pl::view<const float>(gradients.plain().of(group->kind()).sub(at, to - from))),
                       into);
    }
    pl::all_reduce(*backend_, *world_, stream_, pl::inout(sum), scratch_.all(), {}, "gradients compared");
    backend_->copy(stream_, pl::in(pl::view<const float>(sum)), pl::out(arrived_[i].all().sub(0, n)));
  }

  Backend* backend_;
  Communicator* world_;
  std::array<Trainer*, 2> trainers_;
  parameter_layout whole_;
  pl::device_buffer<float, Backend> summed_;
  pl::device_buffer<unsigned char, Backend> scratch_;
  std::array<pl::pinned_buffer<float, Backend>, 2> arrived_;
  typename Backend::stream stream_; // the last: it must have ended before the memory that it uses goes
};

} // namespace moe
