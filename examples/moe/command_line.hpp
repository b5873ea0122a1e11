// SPDX-License-Identifier: Apache-2.0
//
// The command line of moe_train: its flags, grouped as --help shows them. Flags may repeat; the last one
// counts, so that a script's defaults can be overruled by what is appended.
#pragma once

#include "atomic_file.hpp"
#include "input_error.hpp"
#include "model_config.hpp"
#include "option_rules.hpp"
#include "options.hpp"
#include "parse_text.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace moe {

struct help_text {
  std::string text;
};

namespace detail {

class flag_table {
 public:
  explicit flag_table(CLI::App& app) : app_{app} {}
  void group(std::string name) { group_ = std::move(name); }

  void flag(const std::string& name, const std::string& argument, const std::string& help,
            const std::string& default_text, std::function<void(const std::string&)> take) {
    auto* option = app_.add_option_function<std::string>(name, std::move(take), help);
    option->type_name(argument)->group(group_)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    if (!default_text.empty()) option->default_str(default_text);
  }

  template <class Integer>
  void integer(const std::string& name, Integer& target, std::int64_t lowest, std::int64_t highest,
               const std::string& help) {
    flag(name, "N", help, fmt::format("{}", target),
         [&target, name, lowest, highest](const std::string& text) {
           target = static_cast<Integer>(parse_integer(name, text, lowest, highest));
         });
  }

  void integer(const std::string& name, std::optional<std::int64_t>& target, std::int64_t lowest,
               std::int64_t highest, const std::string& help) {
    flag(name, "N", help, "", [&target, name, lowest, highest](const std::string& text) {
      target = parse_integer(name, text, lowest, highest);
    });
  }

  void real(const std::string& name, double& target, double lowest, double highest, const std::string& help) {
    flag(name, "X", help, fmt::format("{}", target),
         [&target, name, lowest, highest](const std::string& text) {
           target = parse_real(name, text, lowest, highest);
         });
  }

  template <class Choice>
  static Choice parse_choice(const std::string& name, const std::string& text, Choice first, Choice second) {
    if (text != name_of(first) && text != name_of(second))
      throw input_error{
          fmt::format("{}: expected {} or {}, got '{}'", name, name_of(first), name_of(second), shown(text))};
    return text == name_of(first) ? first : second;
  }

  template <class Choice>
  void choice(const std::string& name, Choice& target, Choice first, Choice second, const std::string& help) {
    flag(name, fmt::format("{}|{}", name_of(first), name_of(second)), help, std::string{name_of(target)},
         [&target, name, first, second](const std::string& text) {
           target = parse_choice(name, text, first, second);
         });
  }

  template <class Choice>
  void choice(const std::string& name, std::optional<Choice>& target, Choice first, Choice second,
              const std::string& help) {
    flag(name, fmt::format("{}|{}", name_of(first), name_of(second)), help, std::string{name_of(first)},
         [&target, name, first, second](const std::string& text) {
           target = parse_choice(name, text, first, second);
         });
  }

  // Its opposite is "--no-" + name.
  void toggle(const std::string& name, bool& target, const std::string& help) {
    app_.add_flag("--" + name + ",!--no-" + name, target, help)->group(group_)->disable_flag_override();
  }

  void path(const std::string& name, std::string& target, const std::string& help) {
    flag(name, "FILE", help, "", [&target, name](const std::string& text) {
      if (text.empty()) throw input_error{fmt::format("{}: expected the name of a file, got none", name)};
      target = text;
    });
  }

 private:
  CLI::App& app_;
  std::string group_;
};

inline void add_flags(CLI::App& app, options& o) {
  flag_table flags{app};
  flags.group("Ranks");
  flags.flag("--ranks", "N",
             "ranks, each with a device of its own; with\n--communicator mpi as many as processes",
             fmt::format("{}", o.ranks), [&o](const std::string& text) {
               o.ranks = parse_integer("--ranks", text, 1, 256);
               o.ranks_given = true;
             });
  flags.flag("--communicator", "auto|threads|mpi",
             "ranks are threads, or processes started by\nmpirun; auto asks how the program was started",
             std::string{name_of(o.communicator)}, [&o](const std::string& text) {
               const auto found =
                   std::find_if(all_communicators.begin(), all_communicators.end(),
                                [&](communicator_choice each) { return text == name_of(each); });
               if (found == all_communicators.end())
                 throw input_error{
                     fmt::format("--communicator: expected auto, threads or mpi, got '{}'", shown(text))};
               o.communicator = *found;
             });
  flags.integer("--expert-parallel", o.expert_parallel, 1, 256,
                "ranks that share one set of experts;\nelse 2 where that divides ranks and experts, or 1");
  flags.integer("--sequence-parallel", o.sequence_parallel, 1, 256,
                "ranks that share each sequence, with attention around\nthe ring of them");
  flags.choice("--backend", o.backend, backend_choice::host, backend_choice::cuda,
               "what computes: CPU threads, or GPUs (rank r on\nGPU r modulo their number)");
  flags.integer("--deadline", o.deadline_seconds, 1, 1'000'000,
                "seconds without progress on any rank after which the run fails");

  flags.group("Model");
  flags.integer("--layers", o.layers, 1, 4096, "layers");
  flags.integer("--hidden", o.hidden, 1, 1 << 20, "width of the model");
  flags.integer("--heads", o.heads, 1, 1 << 16, "attention heads");
  flags.integer("--kv-heads", o.kv_heads, 1, 1 << 16, "heads of keys and values");
  flags.integer("--experts", o.experts, 1, 1 << 16, "experts of a layer");
  flags.integer("--top-k", o.top_k, 1, top_k_limit, "experts of a token");
  flags.integer("--intermediate", o.intermediate, 1, 1 << 20, "width of an expert");
  flags.integer("--vocabulary", o.vocabulary, 2, vocabulary_limit,
                "distinct tokens; else 65536, as pairs of bytes have");
  flags.real("--rope-theta", o.rope_theta, 1, 1e12,
             "base of the rotary angles; Mixtral was trained with 1e6");
  flags.real("--norm-epsilon", o.norm_epsilon, 1e-12, 1, "added to the mean square by RMSNorm");
  app.add_flag("--tied", o.tied, "use the embedding as output projection")
      ->group("Model")
      ->disable_flag_override();

  flags.flag("--attention-tile", "QxK", "positions of queries and keys in one tile of attention",
             fmt::format("{}x{}", o.attention_queries, o.attention_keys),
             [&o](const std::string& text) { parse_attention_tile("--attention-tile", text, o); });

  flags.flag("--key-hop-rows", "ROWS",
             "keys that move around the ranks of a sequence at a time,\nwith --sequence-parallel",
             fmt::format("{}", o.sequence().hop_rows), [&o](const std::string& text) {
               o.key_hop_rows = parse_integer("--key-hop-rows", text, 1, 1 << 24);
             });

  flags.group("Training");
  flags.integer("--context", o.context, 1, 1 << 24, "tokens of a sequence");
  flags.integer("--batch", o.batch, 1, 1 << 24, "sequences of a step, over all ranks");
  flags.integer("--accumulate", o.accumulate, 1, 1 << 20, "micro-batches of a step");
  flags.integer("--steps", o.steps, 1, 1'000'000'000, "steps of the schedule");
  flags.integer("--stop-after", o.stop_after, 1, 1'000'000'000, "stop after this step, on the same schedule");
  flags.real("--lr", o.learning_rate, 0, 1000, "highest learning rate");
  flags.integer("--warmup", o.warmup, 0, 1'000'000'000, "steps of warm-up; else a tenth of all, at most 20");
  flags.real("--clip", o.clip, 0, 1e30, "largest gradient norm; 0 does not clip");
  flags.real("--balance-weight", o.balance_weight, 0, 1e6,
             "weight of the load-balancing loss;\nwith --accumulate the mean of the micro-batches' own");
  flags.integer("--seed", o.seed, 0, INT64_MAX, "seed of weights and batches");
  flags.choice("--dtype", o.dtype, compute_type::fp32, compute_type::bf16, "type of the computation");
  flags.choice("--gemm", o.gemm, gemm_choice::builtin, gemm_choice::blas, "matrix products");

  flags.group("Memory and routing");
  const dispatch_settings d = o.dispatch();
  flags.flag("--flatten", "LIST", "none, all, or of dispatch,vocabulary,checkpoint,optimizer", "none",
             [&o](const std::string& text) { o.flatten = parse_flatten("--flatten", text); });
  flags.flag("--dispatch-cap", "ROWS",
             "most rows out of, and into, a rank in one round of --flatten dispatch;\n"
             "OUTxIN for two caps",
             fmt::format("{}", d.send_cap_rows),
             [&o](const std::string& text) { parse_dispatch_cap("--dispatch-cap", text, o); });
  flags.flag(
      "--dispatch-slots", "N", "rounds in flight, 1 to 3", fmt::format("{}", d.slots),
      [&o](const std::string& text) { o.dispatch_slots = parse_integer("--dispatch-slots", text, 1, 3); });
  flags.flag(
      "--placement", "native|least-loaded|published",
      "who computes an expert's rows: its own rank,\nor the ranks with fewest, bounded or as published",
      std::string{name_of(d.placement)},
      [&o](const std::string& text) { o.placement = parse_placement("--placement", text); });
  flags.flag("--foreign-experts", "N", "most experts of other ranks on a rank, with least-loaded",
             fmt::format("{}", d.foreign_experts), [&o](const std::string& text) {
               o.foreign_experts = parse_integer("--foreign-experts", text, 0, 1 << 16);
             });
  const loss_settings l = o.loss();
  flags.flag("--vocabulary-tile", "TxV",
             "tokens and vocabulary of the logits that exist at a time,\nwith --flatten vocabulary",
             fmt::format("{}x{}", l.tile_tokens, l.tile_vocabulary),
             [&o](const std::string& text) { parse_vocabulary_tile("--vocabulary-tile", text, o); });
  flags.flag("--hop-rows", "ROWS", "rows that move around the ring of ranks at a time",
             fmt::format("{}", l.hop_rows),
             [&o](const std::string& text) { o.hop_rows = parse_integer("--hop-rows", text, 1, 1 << 24); });
  flags.flag("--rotate", "auto|activations|weights",
             "what moves around the ring: what has fewer bytes,\nor one of the two",
             std::string{name_of(l.rotate)},
             [&o](const std::string& text) { o.rotate = parse_rotation("--rotate", text); });
  flags.flag(
      "--host-budget", "SIZE",
      "pinned bytes of a rank for parked inputs of layers,\nwith --flatten checkpoint; 0: none is parked",
      "what they take", [&o](const std::string& text) {
        o.host_budget_bytes = text == "0" ? 0 : parse_bytes("--host-budget", text);
      });
  flags.flag("--keep-every", "N",
             "layers of which one input outlives forward, with --flatten checkpoint;\nthe others' forward "
             "runs once more",
             fmt::format("{}", o.checkpoint().keep_every), [&o](const std::string& text) {
               o.keep_every = parse_integer("--keep-every", text, 1, 1 << 20);
             });
  const optimizer_settings s = o.optimizer();
  flags.flag("--bucket", "SIZE",
             "bytes of state and gradients that pass through the device at a time,\nwith --flatten optimizer",
             "64MiB, less for a small state",
             [&o](const std::string& text) { o.bucket_bytes = parse_bytes("--bucket", text); });
  flags.flag("--slots", "N", "buckets on the device, 1 to 4", fmt::format("{}", s.slots),
             [&o](const std::string& text) { o.slots = parse_integer("--slots", text, 1, 4); });
  flags.flag("--update-on", "device|host", "who updates the state in host memory",
             std::string{name_of(s.where)},
             [&o](const std::string& text) { o.update_on = parse_update_on("--update-on", text); });
  app.add_flag("--zero1", o.zero1,
               "each rank keeps its part of the optimizer's state,\nwith --flatten optimizer");
  flags.flag("--routing", "SCENARIO",
             "learned, or forced: balanced, hot:FRACTION,EXPERTS, zipf:S,\nor all-to-one, which is the first "
             "top-k experts;\nrotating:FRACTION,EXPERTS; counts:FILE (CSV or JSON);\nbehind a '+', or alone "
             "with balanced routes: ragged, zero-rank:RANK",
             o.routing.text, [&o](const std::string& text) { o.routing = parse_routing("--routing", text); });
  flags.flag("--memory-limit", "SIZE", "device bytes of a rank, such as 64MiB; over it the run ends", "",
             [&o](const std::string& text) { o.memory_limit_bytes = parse_bytes("--memory-limit", text); });

  flags.group("Flattened beside unflattened: twice the same training, where --flatten is given");
  flags.toggle("compare", o.compare,
               "train first with nothing flattened, then as asked, and show\nboth side by side; files and "
               "--memory-limit are those of\nthe flattened run");
  flags.toggle("parity", o.parity,
               "both at once, in lock step: after every step what they\ndiffer in, by token and by gradient");
  flags.choice("--parity-weights", o.parity_weights, parity_start::own, parity_start::same,
               "each goes on with its own weights, or the flattened one\nstarts each step from those of the "
               "other, moments included");
  flags.choice("--parity-tensors", o.parity_tensors, parity_rows::worst, parity_rows::all,
               "of each kind of tensor the worst gradient, or all tensors;\n--json has all");

  flags.group("Dry run: peaks and time of a step without data, on a machine that need not be here");
  app.add_flag("--dry-run", o.dry_run, "predict instead of train; needs a forced --routing")
      ->group("Dry run: peaks and time of a step without data, on a machine that need not be here")
      ->disable_flag_override();
  flags.flag("--hardware", "NAME", "h200, this-host (measured in a second or two), or a JSON file",
             "this-host; with --backend cuda h200", [&o](const std::string& text) { o.hardware = text; });
  flags.integer("--dry-step", o.dry_step, 1, 1'000'000'000,
                "which step, where the routing differs from step to step");
  flags.flag("--check-order", "on|off", "whether the order of streams is checked", "on",
             [&o](const std::string& text) {
               if (text != "on" && text != "off")
                 throw input_error{fmt::format("--check-order: expected on or off, got '{}'", shown(text))};
               o.check_order = text == "on";
             });
  flags.flag("--perturb", "X[,SEED]", "every cost times 1 - X to 1 + X, by chance", "0",
             [&o](const std::string& text) { parse_perturb("--perturb", text, o); });
  app.add_flag("--growth", o.growth,
               "also tell the bytes for each more token, layer, ...,\nbeside those with nothing flattened")
      ->group("Dry run: peaks and time of a step without data, on a machine that need not be here")
      ->disable_flag_override();

  flags.group("Files");
  flags.path("--data", o.data, "text or llm.c tokens; else the system's licence texts");
  flags.path("--weights", o.weights, "start from these weights (safetensors, names of Mixtral)");
  flags.path("--resume", o.resume, "go on from a saved state");
  flags.path("--save", o.save, "save the state after the last step");
  flags.path("--json", o.json, "write the results; - is standard output");
  flags.path("--trace", o.trace, "write what ran when (Chrome trace JSON: open it in Perfetto)");
  flags.path("--svg", o.svg, "draw memory over time");
  flags.path("--record-routing", o.record_routing,
             "write the rows of each expert (CSV), for --routing counts:FILE");
}

} // namespace detail

// `arguments` without the program's name. Nothing is checked but each flag by itself. Throws input_error.
inline std::variant<options, help_text> read_flags(const std::vector<std::string>& arguments) {
  options o;
  CLI::App app{"Trains a small mixture-of-experts transformer and shows where its memory peaks lie.",
               "moe_train"};
  app.get_formatter()->column_width(34);
  app.set_help_flag("-h,--help", "show this text")->group("Help");
  detail::add_flags(app, o);
  try {
    app.parse(std::vector<std::string>{arguments.rbegin(), arguments.rend()}); // CLI11 takes them last first
  } catch (const CLI::CallForHelp&) {
    return help_text{app.help()};
  } catch (const CLI::ExtrasError&) {
    throw input_error{fmt::format("{}: unknown; expected one of the flags that --help lists",
                                  shown(app.remaining().empty() ? "argument" : app.remaining().front()))};
  } catch (const CLI::ArgumentMismatch& error) {
    // Starts with the flag that lacks a value, or, without its dashes, with one that was given one.
    const std::string_view what = error.what();
    const std::string_view flag = what.substr(0, what.find_first_of(": "));
    const bool value_missing = flag.substr(0, 2) == "--";
    throw input_error{fmt::format("{}{}: expected {}", value_missing ? "" : "--", flag,
                                  value_missing ? "a value after it" : "no value")};
  } catch (const CLI::ParseError& error) {
    throw input_error{shown(error.what())};
  }
  return o;
}

// Throws input_error unless the flags fit each other and, on the process that `writes`, what is to be written
// can be.
inline void complete(const options& o, bool writes = true) {
  check(o);
  if (!writes) return;
  // A run that cannot save its results is lost; better to know before it starts.
  if (!o.save.empty()) check_writable(o.save);
  if (!o.json.empty() && o.json != "-") check_result_file(o.json);
  for (const std::string* path : {&o.trace, &o.svg, &o.record_routing})
    if (!path->empty()) check_result_file(*path);
}

// Both. Nothing is written.
inline std::variant<options, help_text> parse_command_line(const std::vector<std::string>& arguments) {
  auto parsed = read_flags(arguments);
  if (const options* o = std::get_if<options>(&parsed)) complete(*o);
  return parsed;
}

} // namespace moe
