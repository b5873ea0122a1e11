// SPDX-License-Identifier: Apache-2.0
//
// The row kernel of log-sum-exp, as a user writes it, at each level of this CPU: nanoseconds an element, on
// one thread, rows as long as the vocabulary of byte pairs. The same with the standard library's exp shows
// why kernels do not call that.
#include "table.hpp"

#include <plateau/host/cpu_dispatch.hpp>
#include <plateau/math.hpp>
#include <plateau/team.hpp>
#include <plateau/view.hpp>

#include <cmath>

namespace {

using plateau::index_t;

struct vector_exp {
  float operator()(float x) const { return plateau::exp(x); }
};
struct library_exp {
  float operator()(float x) const { return std::exp(x); }
};

template <class Exp> struct log_sum_exp {
  template <class Team>
  PLATEAU_HD void operator()(Team& team, index_t r, plateau::tile<const float> x, // (rows, columns)
                             plateau::view<float> out) const {                    // (rows)
    const float* row = x.row(r);
    const float largest =
        team.reduce(x.cols, plateau::lowest<float>(), plateau::maximum{}, [=](index_t i) { return row[i]; });
    const float sum =
        team.reduce(x.cols, 0.0f, plateau::plus{}, [=](index_t i) { return Exp{}(row[i] - largest); });
    team.once([&] { out[r] = largest + ::logf(sum); });
  }
};

template <class Exp> bench::spread ns_per_element(plateau::cpu_level level, index_t rows, index_t columns) {
  const bench::touched_buffer<float> x(static_cast<std::size_t>(rows * columns));
  const bench::touched_buffer<float> out(static_cast<std::size_t>(rows));
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = static_cast<float>(i * 2654435761u % 4096) / 256.0f - 8.0f;
  const double elements = static_cast<double>(rows * columns);
  const auto run = [&] {
    plateau::host::run_rows(level, 0, rows, log_sum_exp<Exp>{},
                            plateau::tile<const float>{x.data(), rows, columns, columns},
                            plateau::view<float>{out.data(), rows});
    bench::keep(out[0]);
  };
  return bench::alone(101, run).in(elements * 1e-9);
}

} // namespace

int main(int, char** argv) {
  bench::table table(argv);
  constexpr index_t rows = 4, columns = 65'536;
  using level = plateau::cpu_level;
  for (const level each : {level::baseline, level::avx2, level::avx512}) {
    if (!plateau::cpu_supports(each)) continue;
    table.row(fmt::format("log-sum-exp, {}, ns an element", plateau::cpu_level_name(each)),
              ns_per_element<vector_exp>(each, rows, columns),
              each == level::avx2 ? bench::goal::at_most(0.5) : bench::goal{});
  }
  table.row("log-sum-exp with std::exp, widest level, ns an element",
            ns_per_element<library_exp>(plateau::detect_cpu_level(), rows, columns));
}
