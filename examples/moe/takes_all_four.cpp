// SPDX-License-Identifier: Apache-2.0
//
// takes_all_four: four configurations, each led by another peak, really trained under one limit each: refused
// with any three peaks flattened, run with all four. Prints the table, says how every run ended, and draws it
// with --svg FILE. Ends with 1 where it does not take all four.
#include "takes_all_four.hpp"
#include "atomic_file.hpp"
#include "input_error.hpp"
#include "takes_all_four_svg.hpp"

#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace {

std::string cell(const moe::refused_run& run) {
  const auto tag = run.furthest();
  if (!tag) return run.trained ? "trains" : "another error";
  std::string text =
      fmt::format("{} {} of {}", plateau::name_of(*tag), moe::detail::mebibytes(run.facts->wanted(*tag)),
                  moe::detail::mebibytes(run.facts->promised[static_cast<std::size_t>(*tag)]));
  if (run.facts->asked_by != *tag) text += fmt::format(" ({} asked)", plateau::name_of(run.facts->asked_by));
  return text;
}

// Unlimited, one step each: every step holds the same.
moe::four_peaks measured(const moe::four_case& c) {
  moe::options o = c.config;
  o.stop_after = 1;
  const auto peak = [&](const moe::flatten_set& flatten) {
    o.flatten = flatten;
    return moe::highest_total(moe::train_case(o));
  };
  moe::four_peaks peaks;
  peaks.none = peak({});
  for (std::size_t i = 0; i < peaks.without.size(); ++i) peaks.without[i] = peak(moe::all_but(i));
  peaks.all = peak(moe::all_flattened());
  return peaks;
}

void tell(const moe::four_case& c, const moe::four_outcome& o) {
  const auto mib = [](std::uint64_t bytes) { return moe::detail::mebibytes(bytes); };
  const moe::four_prediction& p = o.predicted;
  std::cout << fmt::format("{} leads ({}): limit {} MiB, {:.0f}% above the {} that all four flattened hold; "
                           "nothing flattened holds {}\n",
                           moe::flatten_rows[c.leader].name, c.why, mib(o.limit),
                           100 * (static_cast<double>(o.limit) / static_cast<double>(p.all) - 1), mib(p.all),
                           mib(p.none));
  for (std::size_t i = 0; i < o.without.size(); ++i)
    std::cout << fmt::format(
        "  without {:<10} {:>5} MiB, {:>3.0f}% above the limit; refused on rank {}: {}\n",
        moe::flatten_rows[i].name, mib(p.without[i]),
        100 * (static_cast<double>(p.without[i]) / static_cast<double>(o.limit) - 1), o.without[i].rank,
        cell(o.without[i]));
  std::cout << fmt::format("  in full, without {}: {}\n", moe::flatten_rows[c.leader].name,
                           o.without[c.leader].error);
  if (o.all.trained)
    std::cout << fmt::format("  all four           {:>5} MiB; {} steps, loss {:.4f} to {:.4f}\n",
                             mib(moe::highest_device_peak(*o.all.trained)), o.all.trained->losses.size(),
                             o.all.trained->losses.front(), o.all.trained->losses.back());
  std::cout << std::flush;
}

std::string table(const std::vector<moe::four_case>& cases, const std::vector<moe::four_outcome>& outcomes) {
  std::string text = "| led by | limit | all four |";
  std::string rule = "|---|---:|---:|";
  for (const moe::flatten_row& row : moe::flatten_rows) {
    text += fmt::format(" without {} |", row.name);
    rule += "---|";
  }
  text += '\n' + rule + '\n';
  for (std::size_t i = 0; i < cases.size(); ++i) {
    text += fmt::format("| {} | {} | {} |", moe::flatten_rows[cases[i].leader].name,
                        moe::detail::mebibytes(outcomes[i].limit),
                        outcomes[i].all.trained
                            ? moe::detail::mebibytes(moe::highest_device_peak(*outcomes[i].all.trained)) +
                                  ", trains"
                            : std::string("refused"));
    for (const moe::refused_run& run : outcomes[i].without) text += fmt::format(" {} |", cell(run));
    text += '\n';
  }
  return text;
}

int run(const std::string& svg) {
  std::vector<moe::four_case> cases;
  std::vector<moe::four_outcome> outcomes;
  std::vector<moe::four_peaks> peaks;
  std::vector<std::string> wrong;
  for (const moe::four_case& c : moe::four_cases()) {
    cases.push_back(c);
    outcomes.push_back(moe::run_four(c));
    tell(c, outcomes.back());
    for (const std::string& each : moe::complaints(c, outcomes.back())) wrong.push_back(each);
    if (!svg.empty()) peaks.push_back(measured(c));
  }
  std::cout
      << "\nMiB; of each refusal the tag that was furthest over its flattened promise, what it would have "
         "held and what is promised.\n\n"
      << table(cases, outcomes) << std::flush;
  if (!svg.empty()) moe::write_result_file(svg, moe::four_picture(cases, outcomes, peaks));
  for (const std::string& each : wrong) std::cerr << "takes_all_four: " << each << '\n';
  return wrong.empty() ? 0 : 1;
}

} // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (!arguments.empty() && (arguments.size() != 2 || arguments[0] != "--svg")) {
    std::cerr << "takes_all_four: expected nothing or --svg FILE\n";
    return 2;
  }
  try {
    if (!arguments.empty()) moe::check_result_file(arguments[1]);
    return run(arguments.empty() ? std::string() : arguments[1]);
  } catch (const std::exception& error) {
    std::cerr << "takes_all_four: " << error.what() << '\n';
    return 1;
  }
}
