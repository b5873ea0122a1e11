# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# The parts of scripts/gpu-check. A new one is one line of the table, and a function below it where the check is
# more than a program. To be sourced, after scripts/lib/common.sh.

gpu_check_build="${gpu_check_build:-$plateau_root/build/gpu}"
gpu_check_folder="${gpu_check_folder:-$plateau_root/build/gpu_check}" # logs and results
export gpu_check_build gpu_check_folder

# programs_like <pattern>: the programs that the build makes of tests/cuda/<pattern>.cu.
programs_like() {
  local source
  for source in "$plateau_root"/tests/cuda/$1.cu; do
    source="${source##*/}"
    printf 'cuda_%s ' "${source%.cu}"
  done
}

# part | quick or long | seconds after which it is stopped | packages it needs | programs it runs | how.
# A part passes with status 0 and is left out with 77; its last line "note: ..." goes into the table.
moe_packages="doctest fmt CLI11 nlohmann_json"
part_table=(
  "backend      | quick |  90 | doctest       | cuda_backend_contract cuda_backend_check cuda_scratch_model_check cuda_extern_template_check | run_programs"
  "communicator | quick |  90 | doctest       | cuda_communicator_contract       | run_programs"
  "kernels      | quick |  90 | $moe_packages | $(programs_like 'kernels_*_check') | run_programs"
  "dispatch     | quick |  90 | doctest       | cuda_dispatch_check cuda_nccl_dispatch_check | check_dispatch"
  "staging      | quick |  90 | doctest       | cuda_staging_check cuda_staging_adamw_check cuda_sharded_adamw_check cuda_nccl_adamw_check | run_programs"
  "ring         | quick |  90 | doctest       | cuda_ring_check cuda_ring_attention_check cuda_nccl_ring_check | run_programs"
  "offload      | quick |  60 | doctest       | cuda_offload_check               | run_programs"
  "model        | quick |  90 | $moe_packages | cuda_model_check                 | run_programs"
  "training     | long  |  90 | $moe_packages | cuda_training_check              | run_programs"
  "losses       | quick | 120 | $moe_packages | moe_train                        | check_losses"
  "memory       | quick | 120 | $moe_packages | cuda_memory_check moe_train      | check_memory"
  "rates        | quick |  90 |               |                                  | check_rates"
  "nccl         | quick |  60 | doctest       | cuda_nccl_check                  | check_nccl"
  "memcheck     | long  | 150 | $moe_packages | cuda_kernels_norm_check cuda_kernels_router_check moe_train | check_memcheck"
)

part_names() {
  local line
  local -a names=()
  for line in "${part_table[@]}"; do names+=("${line%%[ |]*}"); done
  printf '%s' "${names[*]}"
}

# part_field <part> <number of the column>
part_field() {
  local line field
  for line in "${part_table[@]}"; do
    if [[ "${line%%[ |]*}" != "$1" ]]; then continue; fi
    field="$(cut -d '|' -f "$2" <<<"$line")"
    xargs <<<"$field" # without the blanks of the table
    return 0
  done
  return 1
}
programs_of() { part_field "$1" 5; }

# missing_for <part>: why it cannot be built here; nothing if it can. gpu_check_missing lists packages.
missing_for() {
  local package
  for package in $(part_field "$1" 4); do
    if [[ " ${gpu_check_missing:-} " == *" $package "* ]]; then
      printf 'needs %s\n' "$package"
      return 0
    fi
  done
}

# run_part <part>: what scripts/gpu-check --run-part does, in a process that can be stopped.
run_part() {
  part="$1"
  "$(part_field "$part" 6)"
}

note() { printf 'note: %s\n' "$*" >&2; }

# program <name>: where the build put it.
program() {
  local found
  found="$(find "$gpu_check_build" -type f -name "$1" -perm -u+x | head -n 1)"
  if [[ -z "$found" ]]; then
    note "$1 was not built; see build.log"
    return 1
  fi
  printf '%s\n' "$found"
}

# All programs of the part, even after one has failed.
run_programs() {
  local name path failed=
  for name in $(programs_of "$part"); do
    path="$(program "$name")" || {
      failed+=" $name (not built)"
      continue
    }
    printf '+ %s\n' "$path"
    "$path" || failed+=" $name"
  done
  if [[ -n "$failed" ]]; then
    note "failed:$failed"
    return 1
  fi
}

# kernels_of <program>: how many kernels its .cu file has, for each architecture that it was compiled for.
kernels_of() {
  find "$gpu_check_build" -path "*/$1.dir/*" -name '*.ptxas' -exec cat {} + | grep -c 'Compiling entry function'
}
# compile_seconds_of <program>: of its .cu file, where Ninja has built it; nothing elsewhere.
compile_seconds_of() {
  awk -v target="/$1.dir/" 'index($4, target) && $4 ~ /\.cu\.o$/ { ms = $2 - $1 } END { if (ms) printf "%.0f", ms / 1000 }' \
    "$gpu_check_build/.ninja_log" 2>/dev/null
}
# Its kernels are instantiated for each type of row that travels, so their number and the time that they take to compile
# are told.
check_dispatch() {
  run_programs || return 1
  local seconds
  seconds="$(compile_seconds_of cuda_dispatch_check)"
  note "$(kernels_of cuda_dispatch_check) kernels${seconds:+, compiled in $seconds s}"
}

# What needs NCCL is not built where CMake has found none.
check_nccl() {
  if grep -Eq '^NCCL_(LIBRARY|INCLUDE_DIR):[^=]*=.*-NOTFOUND$' "$gpu_check_build/CMakeCache.txt" 2>/dev/null; then
    note "NCCL is not here"
    return 77
  fi
  run_programs
}

# --- moe_train --------------------------------------------------------------------------------------------------

# The tree's own text: a machine may lack the licence texts that moe_train reads by itself.
moe_text() {
  cat "$plateau_root"/LICENSE "$plateau_root"/*.md "$plateau_root"/docs/*.md >"$gpu_check_folder/text"
  printf '%s\n' "$gpu_check_folder/text"
}
# moe <name> <flags ...>: the results in <name>.json.
moe() {
  local name="$1" train
  shift
  train="$(program moe_train)"
  printf '+ moe_train %s\n' "$*"
  "$train" --data "$(moe_text)" --json "$gpu_check_folder/$name.json" "$@"
}
losses_of() {
  awk '/"losses": \[/ { on = 1; next } on && /\]/ { exit } on { gsub(/[ ,]/, ""); print }' "$gpu_check_folder/$1.json"
}
peaks_of() {
  sed -n '/"peaks": \[/,/"evaluation_peak_bytes_total"/p' "$gpu_check_folder/$1.json" | sed '$d'
}

# The first step is the same computation from the same weights: apart from how sums are grouped it has the host's
# loss, to twice what the number of ranks does to that and one unit of fp32. How far later steps are apart is told;
# what is allowed there is checked by training_check, which knows what a rounding of the weights does.
check_losses() {
  local flags=(--layers 2 --hidden 64 --intermediate 128 --context 32 --batch 8 --steps 12)
  moe host4 "${flags[@]}" --ranks 4
  moe host2 "${flags[@]}" --ranks 2
  moe cuda4 "${flags[@]}" --ranks 4 --backend cuda
  moe cuda1 "${flags[@]}" --ranks 1 --backend cuda
  moe bf16 "${flags[@]}" --ranks 4 --backend cuda --dtype bf16
  grep -q '"backend": "cuda"' "$gpu_check_folder/cuda4.json"
  paste <(losses_of host4) <(losses_of host2) <(losses_of cuda4) <(losses_of cuda1) <(losses_of bf16) |
    tee "$gpu_check_folder/losses.txt"
  local verdict
  verdict="$(awk '
    function size(x) { return x < 0 ? -x : x }
    function unit(x) { return 2 ^ (int(log(x) / log(2)) - 23) }
    NF != 5 { bad = 1 }
    NR == 1 {
      allowed = 2 * size($1 - $2) + unit($1)
      first = size($3 - $1) > size($4 - $1) ? size($3 - $1) : size($4 - $1)
      begin = $5
    }
    NR > 1 { host += ($1 - $2) ^ 2; cuda += ($3 - $1) ^ 2 }
    { last = $5 }
    END {
      printf "first step %.2e from the host (allowed %.2e); 11 more %.1e (2 host ranks from 4: %.1e)",
        first, allowed, sqrt(cuda / (NR - 1)), sqrt(host / (NR - 1))
      exit bad || NR != 12 || !(first <= allowed) || !(last < begin)
    }' "$gpu_check_folder/losses.txt")" || {
    note "FAILED: $verdict"
    return 1
  }
  note "$verdict"
}

# The bytes that the meters count are those of the dry run, on every rank; memory_check holds the meters to what
# the driver says.
check_memory() {
  local flags=(--layers 3 --hidden 128 --context 64 --batch 8 --stop-after 1 --routing "hot:0.75,1+ragged" --ranks 4)
  local dtype different=
  for dtype in fp32 bf16; do
    moe "measured_$dtype" "${flags[@]}" --dtype "$dtype" --backend cuda
    moe "predicted_$dtype" "${flags[@]}" --dtype "$dtype" --backend cuda --dry-run
    diff <(peaks_of "measured_$dtype") <(peaks_of "predicted_$dtype") || different+=" $dtype"
    if [[ "$(peaks_of "measured_$dtype" | wc -l)" -lt 100 ]]; then different+=" (no peaks)"; fi
  done
  if [[ -n "$different" ]]; then
    note "the dry run has other peaks:$different"
    return 1
  fi
  part=memory
  local path
  path="$(program cuda_memory_check)"
  "$path" | tee "$gpu_check_folder/memory_check.txt"
  note "$(sed -n 's/^.*driver: /driver: /p' "$gpu_check_folder/memory_check.txt" | tail -n 1)"
}

# Built here, since it needs nothing but CUDA, whatever else is missing.
check_rates() {
  local libraries
  libraries="$(dirname "$(command -v nvcc)")/../lib64"
  nvcc -std=c++20 -O2 "-arch=sm_${gpu_check_architecture:-90}" "-I$plateau_root/include" \
    -o "$gpu_check_folder/gpu_rates_check" "$plateau_root/tests/cuda/gpu_rates_check.cu" -lcublas \
    -Xlinker -rpath -Xlinker "$libraries"
  "$gpu_check_folder/gpu_rates_check" "$gpu_check_folder/rates.json"
}

# A short subset: the sanitizer makes everything many times slower.
check_memcheck() {
  local tool=compute-sanitizer path
  if ! have_command "$tool"; then tool="$(dirname "$(command -v nvcc)")/compute-sanitizer"; fi
  if ! have_command "$tool"; then
    note "compute-sanitizer is not here"
    return 77
  fi
  local -a checked=("$tool" --tool memcheck --error-exitcode 9 --print-limit 20)
  for path in cuda_kernels_norm_check cuda_kernels_router_check; do
    path="$(program "$path")"
    "${checked[@]}" "$path"
  done
  path="$(program moe_train)"
  "${checked[@]}" "$path" --data "$(moe_text)" --backend cuda --ranks 2 --layers 1 --hidden 32 --intermediate 32 \
    --context 16 --batch 4 --vocabulary 65536 --steps 2
}
