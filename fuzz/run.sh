#!/usr/bin/env bash
# Runs fuzz targets under libFuzzer, as many at a time as there are processors: run.sh [SECONDS [TARGET...]]. Ends with 1 if any of them found something.
# Needs a C++ compiler for libFuzzer; the Rust compiler may be a stable one, because no sanitizer is used.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
shift || true

# The versions that the program is built with; libFuzzer's own is added to them.
[ -f fuzz/engine/Cargo.lock ] || cp Cargo.lock fuzz/engine/
host=$(rustc -vV | sed -n 's/^host: //p')
target_dir=${CARGO_TARGET_DIR:-fuzz/engine}/fuzz-target
list=$(cargo run -q --locked -p bessemer-fuzz --example list)
# Coverage for libFuzzer. With --target, build scripts and macros go without it.
RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares" \
  cargo build -q --release --manifest-path fuzz/engine/Cargo.toml --target "$host" --target-dir "$target_dir"
engine=$target_dir/$host/release/bessemer-fuzz-engine

# Files that readers take by their path lie in memory, and go when this ends.
TMPDIR=$(mktemp -d -p "$([ -d /dev/shm ] && echo /dev/shm || echo /tmp)")
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

# Runs one target; prints its numbers, or the end of its log.
run_target() {
  local target=$1 log=$TMPDIR/log-$1 folders
  mkdir -p "fuzz/corpus/$target" "fuzz/artifacts/$target"
  # What is found is kept in the first folder; the others are read only.
  folders="fuzz/corpus/$target $(awk -v name="$target" '$1 == name { $1 = ""; print }' <<< "$list")"
  [ -d "fuzz/seeds/$target" ] && folders="$folders fuzz/seeds/$target"
  local status=0
  # shellcheck disable=SC2086  # folders without blanks
  BESSEMER_FUZZ_TARGET=$target "$engine" -seed=1 -max_total_time="$seconds" -max_len=65536 -rss_limit_mb=1024 -timeout=10 \
    -artifact_prefix="fuzz/artifacts/$target/" -print_final_stats=1 $folders > "$log" 2>&1 || status=1
  # Printed at once: several targets run at the same time.
  echo "== $target
$(if [ $status = 0 ]; then grep -E 'number_of_executed_units|peak_rss_mb' "$log"; else tail -n 40 "$log"; fi)"
  return $status
}
export -f run_target
export seconds list engine

# shellcheck disable=SC2086  # names without blanks
printf '%s\n' ${*:-$(cut -d ' ' -f 1 <<< "$list")} | xargs -P "$(nproc)" -I {} bash -c 'run_target {}' || exit 1
