// SPDX-License-Identifier: Apache-2.0
//
// The command line in process: every flag, every rule, and the three ways to end.

#include "command_line.hpp"
#include "program.hpp"
#include "scratch_folder.hpp"

#include <doctest/doctest.h>

#include <sstream>
#include <stdexcept>

using namespace moe;
using moe_test::has;
using moe_test::message_of;
using moe_test::scratch_folder;
using arguments = std::vector<std::string>;

namespace {

options parsed(const arguments& line) { return std::get<options>(parse_command_line(line)); }

struct ending {
  int status;
  std::string out, err;
};

ending ending_of(
    const arguments& line, const std::function<int(const options&)>& run = [](const auto&) { return 0; }) {
  std::ostringstream out, err;
  const int status = run_program(line, out, err, [&](const options& o, process_team&) { return run(o); });
  return {status, out.str(), err.str()};
}

struct wrong_line {
  arguments line;
  std::string part; // of the message
};

} // namespace

TEST_CASE("the defaults are possible, and every flag arrives") {
  const options none = parsed({});
  CHECK(none.ranks == 4);
  CHECK(none.warmup_steps() == 20);
  CHECK(none.last_step() == none.steps);
  CHECK_FALSE(none.vocabulary.has_value());
  const options o = parsed({"--ranks",
                            "6",
                            "--expert-parallel=3",
                            "--layers",
                            "5",
                            "--hidden",
                            "96",
                            "--heads",
                            "6",
                            "--kv-heads",
                            "3",
                            "--experts",
                            "9",
                            "--top-k",
                            "3",
                            "--intermediate",
                            "40",
                            "--context",
                            "33",
                            "--batch",
                            "7",
                            "--accumulate",
                            "2",
                            "--steps",
                            "50",
                            "--stop-after",
                            "20",
                            "--lr",
                            "1e-4",
                            "--warmup",
                            "0",
                            "--clip",
                            "0.5",
                            "--seed",
                            "99",
                            "--dtype",
                            "bf16",
                            "--data",
                            "d",
                            "--vocabulary",
                            "50257",
                            "--weights",
                            "w",
                            "--routing",
                            "hot:0.5,2",
                            "--balance-weight",
                            "0.01",
                            "--flatten",
                            "none",
                            "--memory-limit",
                            "1.5MiB",
                            "--json",
                            "-",
                            "--tied",
                            "--gemm",
                            "builtin",
                            "--rope-theta",
                            "1e6",
                            "--norm-epsilon",
                            "1e-6",
                            "--deadline",
                            "7"});
  CHECK(o.ranks == 6);
  CHECK(o.expert_ranks() == 3);
  CHECK(o.rope_theta == 1e6);
  CHECK(o.norm_epsilon == 1e-6);
  CHECK(o.deadline_seconds == 7);
  CHECK(o.layers == 5);
  CHECK(o.hidden == 96);
  CHECK(o.heads == 6);
  CHECK(o.head_size() == 16);
  CHECK(o.kv_heads == 3);
  CHECK(o.experts == 9);
  CHECK(o.top_k == 3);
  CHECK(o.intermediate == 40);
  CHECK(o.context == 33);
  CHECK(o.batch == 7);
  CHECK(o.accumulate == 2);
  CHECK(o.steps == 50);
  CHECK(o.last_step() == 20);
  CHECK(o.learning_rate == 1e-4);
  CHECK(o.warmup_steps() == 0);
  CHECK(o.clip == 0.5);
  CHECK(o.seed == 99);
  CHECK(o.dtype == compute_type::bf16);
  CHECK(o.data == "d");
  CHECK(o.vocabulary == 50257);
  CHECK(o.weights == "w");
  CHECK(std::holds_alternative<plateau::routing::hot>(o.routing.routes.value()));
  CHECK(o.balance_weight == 0.01);
  CHECK(o.memory_limit_bytes == 1572864);
  CHECK(o.json == "-");
  CHECK(o.tied);
  CHECK(o.gemm == gemm_choice::builtin);
  CHECK(parsed({"--layers", "3", "--layers", "4"}).layers == 4); // the last one counts
  CHECK(parsed({"--resume", "r"}).resume == "r");
}

TEST_CASE("without --expert-parallel any number of ranks and experts is possible") {
  CHECK(parsed({}).expert_ranks() == 2);
  CHECK(parsed({"--ranks", "1"}).expert_ranks() == 1);
  CHECK(parsed({"--ranks", "3"}).expert_ranks() == 1);
  CHECK(parsed({"--ranks", "6"}).expert_ranks() == 2);
  CHECK(parsed({"--experts", "7"}).expert_ranks() == 1);
  CHECK(parsed({"--ranks", "3", "--experts", "9", "--expert-parallel", "3"}).expert_ranks() == 3);
}

TEST_CASE("one file is not written twice, and what is read is not written; a state may replace itself") {
  const scratch_folder folder;
  const std::string a = folder.file("a"), again = folder.file("./a");
  moe_test::write_file(a, "");
  std::filesystem::create_symlink("a", folder.file("link"));
  for (const std::string& other : {a, again, folder.file("link")})
    for (const arguments& line : {arguments{"--save", a, "--json", other},
                                  {"--save", a, "--data", other},
                                  {"--save", a, "--weights", other},
                                  {"--json", a, "--data", other},
                                  {"--json", a, "--weights", other},
                                  {"--json", a, "--resume", other}}) {
      const auto end = ending_of(line);
      CHECK(end.status == 2);
      CHECK_MESSAGE(has(end.err, line[0] + " and " + line[2] + ": expected two files, got " + other),
                    end.err);
    }
  CHECK(ending_of({"--save", a, "--resume", again}).status == 0);
  CHECK(ending_of({"--json", "-", "--data", "-"}).status == 0); // that of --json is no file
  CHECK(folder.entries() == 2);
}

TEST_CASE("the parameters of a model that is known: Mixtral 8x7B") {
  const options o = parsed({"--layers", "32", "--hidden", "4096", "--heads", "32", "--kv-heads", "8",
                            "--intermediate", "14336", "--vocabulary", "32000"});
  CHECK(parameter_count(o, 32000) == 46'702'792'704.0); // as published
  options tied = o;
  tied.tied = true;
  CHECK(parameter_count(o, 32000) - parameter_count(tied, 32000) == 32000.0 * 4096);
}

TEST_CASE("every wrong line is one sentence with the flag and what was expected") {
  const std::vector<wrong_line> lines{
      {{"--foo"}, "--foo: unknown"},
      {{"foo"}, "foo: unknown"},
      {{"--layer", "3"}, "--layer: unknown"},
      {{"-x"}, "-x: unknown"},
      {{"--tied=3"}, "--tied: expected no value"},
      {{"--dry-run=3"}, "--dry-run: expected no value"},
      {{"--layers"}, "--layers: expected a value"},
      {{"--layers", ""}, "--layers: expected a whole number from 1 to 4096, got ''"},
      {{"--layers", "0"}, "got '0'"},
      {{"--layers", "-1"}, "got '-1'"},
      {{"--layers", "2.5"}, "got '2.5'"},
      {{"--layers", "2x"}, "got '2x'"},
      {{"--layers", " 2"}, "got ' 2'"},
      {{"--layers", "99999999999999999999"}, "got '99999999999999999999'"},
      {{"--layers", "--heads", "4"}, "--layers: expected a whole number from 1 to 4096, got '--heads'"},
      {{"--ranks", "0"}, "--ranks: expected"},
      {{"--ranks", "3", "--expert-parallel", "2"}, "--expert-parallel 2: expected a divisor of --ranks 3"},
      {{"--experts", "7", "--expert-parallel", "2"},
       "--expert-parallel 2: expected a divisor of --experts 7"},
      {{"--deadline", "0"}, "--deadline: expected a whole number from 1"},
      {{"--rope-theta", "0.5"}, "--rope-theta: expected a number from 1 to 1000000000000, got '0.5'"},
      {{"--norm-epsilon", "0"}, "--norm-epsilon: expected a number from 1e-12 to 1, got '0'"},
      {{"--heads", "3"}, "--heads 3: expected a divisor of --hidden 128"},
      {{"--kv-heads", "3"}, "--kv-heads 3: expected a divisor of --heads 4"},
      {{"--kv-heads", "8"}, "--kv-heads 8: expected a divisor of --heads 4"},
      {{"--heads", "128"}, "--heads 128: makes heads of 1"},
      {{"--hidden", "12"}, "makes heads of 3 (--hidden 12); expected an even size"},
      {{"--top-k", "9"}, "--top-k 9: expected at most --experts 8"},
      {{"--top-k", "0"}, "--top-k: expected"},
      {{"--top-k", "17", "--experts", "32"}, "--top-k: expected a whole number from 1 to 16, got '17'"},
      {{"--batch", "0"}, "--batch: expected"},
      {{"--batch", "2", "--accumulate", "3"}, "--accumulate 3: expected at most --batch 2"},
      {{"--steps", "0"}, "--steps: expected"},
      {{"--steps", "5", "--stop-after", "6"}, "--stop-after 6: expected at most --steps 5"},
      {{"--steps", "5", "--warmup", "6"}, "--warmup 6: expected at most --steps 5"},
      {{"--lr", "nan"}, "--lr: expected a number from 0 to 1000, got 'nan'"},
      {{"--lr", "-1"}, "got '-1'"},
      {{"--lr", "inf"}, "got 'inf'"},
      {{"--lr", "1e999"}, "got '1e999'"},
      {{"--clip", "-0.5"}, "--clip: expected"},
      {{"--seed", "-1"}, "--seed: expected"},
      {{"--dtype", "fp16"}, "--dtype: expected fp32 or bf16, got 'fp16'"},
      {{"--backend", "gpu"}, "--backend: expected host or cuda, got 'gpu'"},
      {{"--backend", "cuda", "--gemm", "blas"}, "--gemm blas and --backend cuda: expected one of them"},
      {{"--gemm", "mkl"}, "--gemm: expected builtin or blas, got 'mkl'"},
      {{"--vocabulary", "1"}, "--vocabulary: expected"},
      {{"--vocabulary", "16777217"}, "--vocabulary: expected"},
      {{"--context", "0"}, "--context: expected"},
      {{"--memory-limit", "64"}, ""}, // bytes: fine
      {{"--memory-limit", "64MiBs"},
       "--memory-limit: expected a size such as 512KiB, 64MiB or 1.5GiB, got '64MiBs'"},
      {{"--memory-limit", "0"}, "--memory-limit: expected"},
      {{"--flatten", "all"}, ""},
      {{"--flatten", "all", "--compare"}, ""},
      {{"--compare", "--no-compare"}, ""},
      {{"--flatten", "all", "--parity", "--compare", "--memory-limit", "1GiB"}, ""},
      {{"--compare"}, "--compare: nothing is flattened"},
      {{"--flatten", "all", "--compare", "--flatten", "none"}, "--compare: nothing is flattened"},
      {{"--no-compare", "--compare"}, "--compare: nothing is flattened"},
      {{"--parity"}, "--parity: nothing is flattened"},
      {{"--flatten", "all", "--compare=yes"}, "--compare: expected no value"},
      {{"--flatten", "all", "--parity=1"}, "--parity: expected no value"},
      {{"--flatten", "all", "--parity-weights", "own"}, "--parity-weights: expected only with --parity"},
      {{"--flatten", "all", "--compare", "--parity-tensors", "all"},
       "--parity-tensors: expected only with --parity"},
      {{"--flatten", "all", "--parity", "--parity-weights", "theirs"},
       "--parity-weights: expected own or same, got 'theirs'"},
      {{"--flatten", "all", "--parity", "--parity-tensors", ""},
       "--parity-tensors: expected worst or all, got ''"},
      {{"--flatten", "all", "--parity", "--parity-weights"}, "--parity-weights: expected a value"},
      {{"--flatten", "all", "--parity", "--dry-run", "--routing", "balanced"},
       "--parity: expected without --dry-run"},
      {{"--flatten", "all", "--parity", "--save", "s"}, "--save: expected without --parity"},
      {{"--flatten", "all", "--parity", "--trace", "t"}, "--trace: expected without --parity"},
      {{"--flatten", "all", "--parity", "--svg", "s"}, "--svg: expected without --parity"},
      {{"--flatten", "all", "--parity", "--record-routing", "r"},
       "--record-routing: expected without --parity"},
      // What only the other run could not be.
      {{"--flatten", "vocabulary", "--vocabulary", "16777216", "--context", "16777216", "--layers", "1",
        "--hidden", "2", "--heads", "1", "--kv-heads", "1", "--batch", "8"},
       ""},
      {{"--flatten", "vocabulary", "--vocabulary", "16777216", "--context", "16777216", "--layers", "1",
        "--hidden", "2", "--heads", "1", "--kv-heads", "1", "--batch", "8", "--compare"},
       "--compare: with nothing flattened, --batch, --context, --vocabulary: make an array"},
      {{"--bucket", "1MiB"}, "--bucket: expected only with --flatten optimizer"},
      {{"--zero1"}, "--zero1: expected only with --flatten optimizer"},
      {{"--flatten", "optimizer", "--bucket", "15"}, "--bucket 15: expected at least 16, the bytes of one"},
      {{"--flatten", "optimizer", "--slots", "5"}, "--slots: expected"},
      {{"--flatten", "optimizer", "--update-on", "gpu"}, "--update-on: expected device or host, got 'gpu'"},
      {{"--flatten", "checkpoint", "--host-budget", "0"}, ""},
      {{"--host-budget", "1GiB"}, "--host-budget: expected only with --flatten checkpoint"},
      {{"--flatten", "checkpoint", "--host-budget", "-1"}, "--host-budget: expected a size"},
      {{"--flatten", "checkpoint", "--keep-every", "3"}, ""},
      {{"--keep-every", "3"}, "--keep-every: expected only with --flatten checkpoint"},
      {{"--flatten", "checkpoint", "--keep-every", "0"},
       "--keep-every: expected a whole number from 1 to 1048576, got '0'"},
      {{"--ranks", "4", "--sequence-parallel", "2", "--key-hop-rows", "8"}, ""},
      {{"--ranks", "4", "--sequence-parallel", "3"},
       "--sequence-parallel 3: expected a divisor of --ranks 4"},
      {{"--ranks", "4", "--sequence-parallel", "0"},
       "--sequence-parallel: expected a whole number from 1 to 256, got '0'"},
      {{"--ranks", "4", "--sequence-parallel", "4", "--context", "7"},
       "--context 7: expected at least 8, twice --sequence-parallel 4: a rank has one part of the front and "
       "one "
       "of the back of each sequence"},
      {{"--ranks", "4", "--sequence-parallel", "4", "--context", "8"}, ""},
      {{"--ranks", "2", "--sequence-parallel", "2", "--hidden", "1024", "--heads", "2"},
       "--heads 2: makes heads of 512 (--hidden 1024); expected at most 256 with --sequence-parallel"},
      {{"--key-hop-rows", "8"}, "--key-hop-rows: expected only with --sequence-parallel above 1"},
      {{"--ranks", "4", "--sequence-parallel", "2", "--routing", "zero-rank:1"}, ""},
      {{"--ranks", "4", "--sequence-parallel", "2", "--routing", "zero-rank:3"},
       "expected 0 to 1, of 2 ranks; with --sequence-parallel 2 these are groups"},
      {{"--flatten", "vocabulary,dispatch"}, ""},
      {{"--vocabulary-tile", "8x8"}, "--vocabulary-tile: expected only with --flatten vocabulary"},
      {{"--flatten", "dispatch", "--hop-rows", "8"}, "--hop-rows: expected only with --flatten vocabulary"},
      {{"--rotate", "auto"}, "--rotate: expected only with --flatten vocabulary"},
      {{"--flatten", "vocabulary", "--vocabulary-tile", "1024"},
       "--vocabulary-tile: expected TOKENSxVOCABULARY, such as 1024x2048, got '1024'"},
      {{"--flatten", "vocabulary", "--vocabulary-tile", "0x8"},
       "--vocabulary-tile: expected a whole number from 1 to 16777216, got '0'"},
      {{"--flatten", "vocabulary", "--vocabulary-tile", "8x"}, "--vocabulary-tile: expected a whole number"},
      {{"--flatten", "vocabulary", "--hop-rows", "0"},
       "--hop-rows: expected a whole number from 1 to 16777216, got '0'"},
      {{"--flatten", "vocabulary", "--rotate", "sideways"},
       "--rotate: expected auto, activations or weights, got 'sideways'"},
      {{"--flatten", "dispatch,dispatch"}, ""},
      {{"--flatten", "despatch"},
       "--flatten: expected none, all or a comma list of dispatch, vocabulary, checkpoint, optimizer, got "
       "'despatch'"},
      {{"--dispatch-cap", "64"}, "--dispatch-cap: expected only with --flatten dispatch"},
      {{"--dispatch-slots", "2"}, "--dispatch-slots: expected only with --flatten dispatch"},
      {{"--placement", "native"}, "--placement: expected only with --flatten dispatch"},
      {{"--foreign-experts", "1"}, "--foreign-experts: expected only with --flatten dispatch"},
      {{"--flatten", "dispatch", "--dispatch-cap", "0"},
       "--dispatch-cap: expected a whole number from 1 to 1073741824, got '0'"},
      {{"--flatten", "dispatch", "--dispatch-cap", "64x"}, "--dispatch-cap: expected a whole number"},
      {{"--flatten", "dispatch", "--dispatch-cap", "x64"}, "--dispatch-cap: expected a whole number"},
      {{"--flatten", "dispatch", "--dispatch-slots", "4"},
       "--dispatch-slots: expected a whole number from 1 to 3, got '4'"},
      {{"--flatten", "dispatch", "--placement", "random"},
       "--placement: expected native, least-loaded or published, got 'random'"},
      {{"--flatten", "dispatch", "--placement", "native", "--foreign-experts", "1"},
       "--foreign-experts: expected only with --placement least-loaded"},
      {{"--flatten", "dispatch", "--foreign-experts", "-1"}, "--foreign-experts: expected a whole number"},
      {{"--flatten", "none,dispatch"}, "--flatten: expected none, all or a comma list"},
      {{"--flatten", "dispatch,"}, "--flatten: expected none, all or a comma list"},
      {{"--flatten", ""}, "--flatten: expected none, all or a comma list"},
      {{"--routing", "cold"}, "--routing: expected learned"},
      {{"--routing", "hot:0.9,9"},
       "--routing hot:0.9,9: expected at most as many hot experts as --experts (8)"},
      {{"--ranks", "1", "--routing", "learned+zero-rank:0"},
       "--routing learned+zero-rank:0: zero_rank.rank: 0 is the only one of 1 ranks"},
      {{"--routing", "zero-rank:4"},
       "--routing zero-rank:4: zero_rank.rank: 4 does not exist; expected 0 to 3, of 4 ranks"},
      {{"--weights", "a", "--resume", "b"}, "--weights and --resume: expected one of them"},
      {{"--save", "a", "--json", "a"}, "--save and --json: expected two files"},
      {{"--save", ""}, "--save: expected the name of a file"},
      {{"--save", "/no/such/folder/x"}, "/no/such/folder/x: cannot be written (No such file or directory)"},
      {{"--json", "/no/such/folder/x"}, "/no/such/folder/x: cannot be written"},
      {{"--save", "/dev/null"}, "/dev/null: not a regular file"},
      {{"--save", "/"}, "/: not a regular file"},
      {{"--hidden", "1048576", "--intermediate", "1048576", "--experts", "65536", "--layers", "4096"},
       "parameters"},
      {{"--context", "16777216", "--batch", "16777216"},
       "--batch, --context, --vocabulary: make an array of 4.61e+18 activations on a rank; expected at most "
       "2.81e+14"},
      {{"--context", "16777216", "--batch", "16777216", "--hidden", "131072", "--experts", "2", "--layers",
        "7"},
       "--layers, --batch, --context, --hidden: make an array"},
      {{"--context", "16777216", "--batch", "8192", "--vocabulary", "256", "--data", "d", "--experts",
        "65536"},
       "--batch, --context, --experts: make an array"},
      {{"--context", "16777216", "--batch", "65536", "--vocabulary", "256", "--data", "d", "--top-k", "8",
        "--intermediate", "1048576"},
       "--batch, --context, --top-k, --expert-parallel, --hidden, --intermediate: make an array"},
  };
  for (const auto& [line, part] : lines) {
    const auto end = ending_of(line);
    if (part.empty()) {
      CHECK(end.status == 0);
      continue;
    }
    CHECK(end.status == 2);
    CHECK(end.out.empty());
    CHECK(end.err.rfind("moe_train: ", 0) == 0);
    CHECK_MESSAGE(has(end.err, part), end.err);
    CHECK(end.err.find('\n') == end.err.size() - 1);
  }
  if (!has_blas) CHECK(has(ending_of({"--gemm", "blas"}).err, "built without BLAS; use --gemm builtin"));
  if (!has_cuda) {
    const ending end = ending_of({"--backend", "cuda"});
    CHECK(end.status == 2);
    CHECK(has(end.err, "--backend cuda: this program was built without CUDA; use --backend host"));
    CHECK(has(end.err, "cmake --preset cuda"));
  }
}

TEST_CASE("a dry run of --backend cuda is possible without CUDA, and is of an H200 unless it is told") {
  CHECK(parsed({}).backend == backend_choice::host);
  CHECK(parsed({}).hardware_name() == "this-host");
  const arguments cuda{"--backend", "cuda", "--dry-run", "--routing", "balanced"};
  CHECK(parsed(cuda).backend == backend_choice::cuda);
  CHECK(parsed(cuda).hardware_name() == "h200");
  arguments told = cuda;
  told.insert(told.end(), {"--hardware", "this-host"});
  CHECK(parsed(told).hardware_name() == "this-host");
}

TEST_CASE("the dispatch by rounds: one cap for both sides, or two, and who computes an expert's rows") {
  const auto plain = parsed({"--flatten", "dispatch"});
  CHECK(plain.flatten.dispatch);
  CHECK_FALSE(plain.flatten.vocabulary);
  CHECK(plain.dispatch().send_cap_rows == 4096);
  CHECK(plain.dispatch().receive_cap_rows == 4096);
  CHECK(plain.dispatch().slots == 2);
  CHECK(plain.dispatch().placement == moe::expert_placement::least_loaded);
  CHECK(plain.dispatch().foreign_experts == 2);
  const auto one = parsed(
      {"--flatten", "dispatch", "--dispatch-cap", "96", "--dispatch-slots", "3", "--foreign-experts", "5"});
  CHECK(one.dispatch().send_cap_rows == 96);
  CHECK(one.dispatch().receive_cap_rows == 96);
  CHECK(one.dispatch().slots == 3);
  CHECK(one.dispatch().foreign_experts == 5);
  const auto two = parsed({"--flatten", "dispatch", "--dispatch-cap", "128x64", "--placement", "native"});
  CHECK(two.dispatch().send_cap_rows == 128);
  CHECK(two.dispatch().receive_cap_rows == 64);
  CHECK(two.dispatch().placement == moe::expert_placement::native);
  CHECK(parsed({"--flatten", "dispatch", "--placement", "published"}).dispatch().placement ==
        moe::expert_placement::published);
}

TEST_CASE("the loss without logits: its tile, what moves, and how many rows at a time") {
  const auto plain = parsed({"--flatten", "vocabulary"});
  CHECK(plain.flatten.vocabulary);
  CHECK_FALSE(plain.flatten.dispatch);
  CHECK(plain.loss().tile_tokens == 1024);
  CHECK(plain.loss().tile_vocabulary == 2048);
  CHECK(plain.loss().hop_rows == 1024);
  CHECK(plain.loss().rotate == plateau::rotation::automatic);
  const auto told = parsed({"--flatten", "vocabulary,dispatch", "--vocabulary-tile", "64x96", "--hop-rows",
                            "32", "--rotate", "weights"});
  CHECK((told.flatten.dispatch && told.flatten.vocabulary));
  CHECK(told.loss().tile_tokens == 64);
  CHECK(told.loss().tile_vocabulary == 96);
  CHECK(told.loss().hop_rows == 32);
  CHECK(told.loss().rotate == plateau::rotation::weights);
}

TEST_CASE("parsing leaves nothing behind") {
  const scratch_folder folder;
  parsed({"--save", folder.file("s"), "--json", folder.file("j")});
  CHECK(folder.entries() == 0);
  CHECK(parsed({"--json", "/dev/null"}).json == "/dev/null"); // results may go to a device
}

TEST_CASE("help names every flag and ends with 0") {
  const auto end = ending_of({"--help"}, [](const auto&) { return 7; });
  CHECK(end.status == 0);
  CHECK(end.err.empty());
  for (const char* flag : {"--ranks",
                           "--expert-parallel",
                           "--sequence-parallel",
                           "--key-hop-rows",
                           "--layers",
                           "--hidden",
                           "--heads",
                           "--kv-heads",
                           "--experts",
                           "--top-k",
                           "--intermediate",
                           "--context",
                           "--batch",
                           "--accumulate",
                           "--steps",
                           "--stop-after",
                           "--lr",
                           "--warmup",
                           "--clip",
                           "--seed",
                           "--dtype",
                           "--data",
                           "--vocabulary",
                           "--weights",
                           "--routing",
                           "--balance-weight",
                           "--flatten",
                           "--memory-limit",
                           "--save",
                           "--resume",
                           "--json",
                           "--help",
                           "--tied",
                           "--gemm",
                           "--dispatch-cap",
                           "--dispatch-slots",
                           "--placement",
                           "--foreign-experts",
                           "--hop-rows",
                           "--vocabulary-tile",
                           "--rotate",
                           "--backend",
                           "--rope-theta",
                           "--norm-epsilon",
                           "--deadline"})
    CHECK_MESSAGE(has(end.out, flag), flag);
  for (const char* flag : {"--compare", "--no-compare", "--parity", "--parity-weights", "--parity-tensors"})
    CHECK_MESSAGE(has(end.out, flag), flag);
  std::istringstream lines{end.out};
  for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 110);
}

TEST_CASE("failures of the run itself") {
  CHECK(ending_of({}, [](const auto&) { return 0; }).status == 0);
  const auto bad = ending_of({}, [](const auto&) -> int { throw input_error{"x: bad"}; });
  CHECK(bad.status == 2);
  CHECK(bad.err == "moe_train: x: bad\n");
  const auto impossible = ending_of({}, [](const auto&) -> int { throw plateau::config_error{"model: no"}; });
  CHECK(impossible.status == 2);
  CHECK(impossible.err == "moe_train: model: no\n");
  const auto lost = ending_of({}, [](const auto&) -> int { throw output_error{"y: full"}; });
  CHECK(lost.status == 1);
  CHECK(lost.err == "moe_train: y: full\n");
}

TEST_CASE("sizes") {
  CHECK(parse_bytes("-", "1") == 1);
  CHECK(parse_bytes("-", "512KiB") == 524'288);
  CHECK(parse_bytes("-", "64MiB") == 67'108'864);
  CHECK(parse_bytes("-", "1.5GiB") == 1'610'612'736);
  CHECK(parse_bytes("-", "10MB") == 10'000'000);
  CHECK(parse_bytes("-", "2TiB") == 2'199'023'255'552);
  for (const char* text :
       {"", "MiB", "-1MiB", "1 MiB", "1mib", "nan", "inf", "1e3", "0.5", "0", "9999999999TiB", "0x10"})
    CHECK_THROWS_AS(parse_bytes("-", text), input_error);
  CHECK(human_bytes(0) == "0 B");
  CHECK(human_bytes(1023) == "1023 B");
  CHECK(human_bytes(1024) == "1.00 KiB");
  CHECK(human_bytes(12'939'428) == "12.3 MiB");
  CHECK(human_bytes((1u << 20) - 1) == "1.00 MiB");
  CHECK(human_bytes(std::uint64_t{5000} << 40) == "5000 TiB");
}
