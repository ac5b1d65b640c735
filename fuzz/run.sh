#!/usr/bin/env bash
# Runs fuzz targets one at a time: run.sh [SECONDS [TARGET...]]. Ends with 1 if any of them found something.
set -u
cd "$(dirname "$0")/.."
seconds=${1:-60}
shift || true
targets=${*:-$(cargo fuzz list)}
[ -f fuzz/Cargo.lock ] || cp Cargo.lock fuzz/

# Folders of golden files that are seeds too, read only.
extra() {
  case $1 in
    image | audio) echo crates/media/tests/golden ;;
    fasttext) echo crates/score/tests/data/fasttext ;;
    kenlm_arpa | kenlm_binary) echo crates/score/tests/data/kenlm ;;
    profile) echo crates/rules/profiles ;;
    recipe) echo recipes ;;
  esac
}

# Files that readers take by their path lie in memory, and go when this ends.
TMPDIR=$(mktemp -d -p "$([ -d /dev/shm ] && echo /dev/shm || echo /tmp)")
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

failed=0
for target in $targets; do
  mkdir -p "fuzz/corpus/$target"
  seeds=$(extra "$target")
  [ -d "fuzz/seeds/$target" ] && seeds="$seeds fuzz/seeds/$target"
  echo "== $target"
  # shellcheck disable=SC2086  # folders without blanks
  cargo fuzz run -s none "$target" "fuzz/corpus/$target" $seeds -- \
    -max_total_time="$seconds" -max_len=65536 -rss_limit_mb=512 -timeout=10 -print_final_stats=1 || failed=1
done
exit $failed
