// SPDX-License-Identifier: Apache-2.0
//
// The expert dispatch that the configuration asks for: uncapped, or by rounds.
#pragma once

#include "capped_dispatch.hpp"
#include "either.hpp"
#include "uncapped_dispatch.hpp"

#include <optional>
#include <variant>

namespace moe {

template <class Backend, class Communicator, class T> class chosen_dispatch {
  using stream = typename Backend::stream;
  using plain_type = uncapped_dispatch<Backend, Communicator, T>;
  using flat_type = capped_dispatch<Backend, Communicator, T>;
  using plain_plan = typename plain_type::plan_type;
  using flat_plan = typename flat_type::plan_type;

 public:
  using plan_type = std::variant<plain_plan, flat_plan>;
  static const routing_counts& counts_of(const plan_type& p) {
    return p.index() == 1 ? flat_type::counts_of(std::get<flat_plan>(p))
                          : plain_type::counts_of(std::get<plain_plan>(p));
  }

  struct layer_part {
    std::optional<typename plain_type::layer_part> plain;
    std::optional<typename flat_type::layer_part> flat;

    template <class Source> layer_part(Source& from, const model_config& c, const batch_limits& b) {
      if (c.flatten.dispatch)
        flat.emplace(from, c, b);
      else
        plain.emplace(from, c, b);
    }
    static std::size_t scratch_bytes(const model_config& c, const batch_limits& b) {
      return c.flatten.dispatch ? flat_type::layer_part::scratch_bytes(c, b)
                                : plain_type::layer_part::scratch_bytes(c, b);
    }
  };

  static std::optional<pl::reservation> promised(const model_config& c, const rank_grid& g,
                                                 const batch_limits& b) {
    return c.flatten.dispatch ? flat_type::promised(c, g, b) : plain_type::promised(c, g, b);
  }
  static pl::reservation reserve_for(const model_config& c, const rank_grid& g, const batch_limits& b,
                                     layer_pass pass) {
    return c.flatten.dispatch ? flat_type::reserve_for(c, g, b, pass)
                              : plain_type::reserve_for(c, g, b, pass);
  }

  static pl::reservation held_by(const model_config& c) {
    return c.flatten.dispatch ? flat_type::held_by(c) : plain_type::held_by(c);
  }

  chosen_dispatch(Backend& backend, Communicator& group, pl::workspace<Backend>& space, const model_config& c,
                  const rank_grid& g, const batch_limits& b)
      : one_(c.flatten.dispatch, backend, group, space, c, g, b) {}

  // As those of the one that was chosen.
  void plan(stream& s, pl::view<std::int32_t> ids, const layer_part& part, pl::scratch_view scratch,
            pl::view<float> load, plan_type& into) {
    if (one_.is_flat())
      one_.flat().plan(s, ids, *part.flat, scratch, load, held<flat_plan>(into));
    else
      one_.plain().plan(s, ids, *part.plain, scratch, load, held<plain_plan>(into));
  }
  template <class... Rest>
  void forward(stream& s, const plan_type& p, pl::view<std::int32_t> ids, const layer_part& part,
               Rest&&... rest) {
    if (one_.is_flat())
      one_.flat().forward(s, std::get<flat_plan>(p), ids, *part.flat, rest...);
    else
      one_.plain().forward(s, std::get<plain_plan>(p), ids, *part.plain, rest...);
  }
  template <class... Rest>
  void forward_again(stream& s, const plan_type& p, pl::view<std::int32_t> ids, const layer_part& part,
                     Rest&&... rest) {
    if (one_.is_flat())
      one_.flat().forward_again(s, std::get<flat_plan>(p), ids, *part.flat, rest...);
    else
      one_.plain().forward_again(s, std::get<plain_plan>(p), ids, *part.plain, rest...);
  }
  template <class... Rest>
  void backward(stream& s, const plan_type& p, pl::view<std::int32_t> ids, const layer_part& part,
                Rest&&... rest) {
    if (one_.is_flat())
      one_.flat().backward(s, std::get<flat_plan>(p), ids, *part.flat, rest...);
    else
      one_.plain().backward(s, std::get<plain_plan>(p), ids, *part.plain, rest...);
  }
  std::optional<dispatch_summary> summary() const {
    return one_.visit([](const auto& d) { return d.summary(); });
  }

 private:
  // A plan is filled again and again: its memory stays.
  template <class Plan> static Plan& held(plan_type& p) {
    return std::holds_alternative<Plan>(p) ? std::get<Plan>(p) : p.template emplace<Plan>();
  }

  either<plain_type, flat_type> one_;
};

} // namespace moe
