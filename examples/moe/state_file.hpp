// SPDX-License-Identifier: Apache-2.0
//
// Weights and training state in one safetensors file: the fp32 masters under the published Mixtral names, and
// for a resumed run both moments under "first_moment." and "second_moment." + name. Rank 0 writes what the
// ranks of the first expert group send it, piece by piece, so that no rank holds a second copy; every rank
// reads its own part.
#pragma once

#include "safetensors.hpp"
#include "safetensors_writer.hpp"
#include "trainer.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace moe {

inline constexpr std::array<const char*, 3> state_prefixes{"", "first_moment.", "second_moment."};

// What must be the same when a run goes on, as text: shape, seed, data, schedule.
using state_metadata = std::map<std::string, std::string>;

// Throws input_error unless the file holds every parameter of the model in its shape; with `moments`, the
// moments too.
inline void check_state(const safetensors_reader& file, const model_config& c, bool moments) {
  for (const char* prefix : state_prefixes) {
    if (*prefix != '\0' && !moments) continue;
    const parameter_layout whole(c, {1, 1}, 0);
    for (const parameter_group* group : {&whole.shared, &whole.expert})
      for (const parameter& p : group->all()) file.find(prefix + p.name, p.shape());
  }
}

// The step after which the state was saved. Throws input_error when the file is no saved state, or one of
// another run.
inline std::int64_t check_metadata(const safetensors_reader& file, const state_metadata& expected) {
  const auto value = [&](const std::string& key) {
    const auto found = file.metadata().find(key);
    if (found == file.metadata().end())
      throw input_error{fmt::format("{}: has no '{}' in its metadata; expected a state written by --save",
                                    shown(file.path()), key)};
    return found->second;
  };
  for (const auto& [key, wanted] : expected)
    if (const std::string saved = value(key); saved != wanted)
      throw input_error{fmt::format("{}: was saved with {} {}; expected {}, as this run has",
                                    shown(file.path()), key, shown(saved), wanted)};
  const std::string text = value("step");
  std::int64_t step = -1;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), step);
  if (end.ec != std::errc{} || end.ptr != text.data() + text.size() || step < 0)
    throw input_error{
        fmt::format("{}: '{}' is no step; expected a whole number from 0", shown(file.path()), shown(text))};
  return step;
}

// Device memory of a trainer to and from the host, through one pinned buffer.
template <class Trainer> class state_mover {
 public:
  static constexpr index_t piece = index_t{1} << 20; // elements

  explicit state_mover(Trainer& trainer)
      : trainer_(&trainer), pinned_(trainer.backend().pinned(), piece, pl::tag::other),
        arrived_(trainer.backend().device(), piece, pl::tag::other), host_(static_cast<std::size_t>(piece)) {}

  // This rank's parameters, and its moments if the file has them to give. Then all ranks are ready to train.
  void load(const safetensors_reader& file, bool moments) {
    auto& t = *trainer_;
    t.optimizer().reset(t.stream());
    for (const parameter_group* group : {&t.model().layout().shared, &t.model().layout().expert})
      for (const parameter& p : group->all())
        for (int which = 0; which < (moments ? 3 : 1); ++which)
          read(file, state_prefixes[static_cast<std::size_t>(which)] + p.name, p, field(*group, p, which));
    t.optimizer().publish(t.stream());
    t.backend().wait(t.backend().record(t.stream()));
  }

  // Collective. Rank 0 writes the file; nothing is visible at `path` until it is whole. The caller closes the
  // step.
  void save(const std::string& path, const state_metadata& metadata) {
    auto& t = *trainer_;
    const bool writes = t.world().rank() == 0;
    std::optional<safetensors_writer> file;
    if (writes) file.emplace(path, whole_layout(), metadata);
    const parameter_layout& own = t.model().layout();
    for (const parameter& p : own.shared.all())
      for (int which = 0; which < 3; ++which) send(file, p, which, own.shared, 0);
    for (int owner = 0; owner < t.grid().expert_parallel; ++owner) {
      const parameter_layout theirs(t.model().config(), t.grid(), owner);
      for (std::size_t i = 0; i < theirs.expert.all().size(); ++i)
        for (int which = 0; which < 3; ++which) send(file, theirs.expert.all()[i], which, own.expert, owner);
    }
    if (writes) file->commit();
  }

 private:
  pl::view<float> field(const parameter_group& group, const parameter& p, int which) const {
    auto& optimizer = trainer_->optimizer();
    return which == 0 ? optimizer.master(group, p) : optimizer.moment(group, p, which);
  }
  std::vector<tensor_layout> whole_layout() const {
    const parameter_layout whole(trainer_->model().config(), {1, 1}, 0);
    std::vector<tensor_layout> all;
    for (const char* prefix : state_prefixes)
      for (const parameter_group* group : {&whole.shared, &whole.expert})
        for (const parameter& p : group->all())
          all.push_back({prefix + p.name, storage_type::f32, p.shape()});
    return all;
  }

  void read(const safetensors_reader& file, const std::string& name, const parameter& p, pl::view<float> to) {
    auto& t = *trainer_;
    for (index_t first = 0; first < to.n; first += piece) {
      const index_t n = std::min(piece, to.n - first);
      const auto staged = pinned_.all().sub(0, n);
      file.read_part(name, p.shape(), first, {host_.data(), static_cast<std::size_t>(n)});
      t.backend().host_task(
          t.stream(),
          [from = host_.data()](pl::view<float, pl::host_space> out) {
            std::copy(from, from + out.n, out.p);
          },
          pl::out(staged));
      t.backend().copy(t.stream(), pl::in(staged), pl::out(to.sub(first, n)));
      t.backend().wait(t.backend().record(t.stream())); // before host_ is filled again
    }
  }

  // One field of one parameter from its owner to rank 0 and into the file. Every rank calls it, for the
  // exchange.
  void send(std::optional<safetensors_writer>& file, const parameter& p, int which,
            const parameter_group& own, int owner) {
    auto& t = *trainer_;
    const bool mine = t.world().rank() == owner, writes = t.world().rank() == 0;
    const auto from = mine ? field(own, p, which) : pl::view<float>{};
    for (index_t first = 0; first < p.elements(); first += piece) {
      const index_t n = std::min(piece, p.elements() - first);
      auto part = mine ? from.sub(first, n) : arrived_.all().sub(0, n);
      if (owner != 0) {
        std::vector<pl::send_op> sends;
        std::vector<pl::receive_op> receives;
        if (mine) sends.push_back(pl::send_to(0, part));
        if (writes) receives.push_back(pl::receive_from(owner, part));
        t.world().exchange(t.stream(), sends, receives, "state to be saved");
      }
      if (!writes) continue;
      const auto staged = pinned_.all().sub(0, n);
      t.backend().copy(t.stream(), pl::in(part), pl::out(staged));
      t.backend().fetch(t.backend().record(t.stream()), pl::in(staged),
                        {host_.data(), static_cast<std::size_t>(n)}, "state to be saved", 0.0F);
      file->write(state_prefixes[static_cast<std::size_t>(which)] + p.name, first,
                  std::span<const float>(host_.data(), static_cast<std::size_t>(n)));
    }
  }

  Trainer* trainer_;
  pl::pinned_buffer<float, typename Trainer::backend_type> pinned_;
  pl::device_buffer<float, typename Trainer::backend_type> arrived_;
  std::vector<float> host_;
};

} // namespace moe
