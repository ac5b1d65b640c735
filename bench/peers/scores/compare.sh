#!/bin/bash
# Scores of documents: Bessemer beside fastText and KenLM, same models, same text, one core each, one run.
#
#   bench/peers/scores/compare.sh PYTHON TEXT [ROUNDS] [LMPLZ]
#
# PYTHON has fasttext-wheel, kenlm and numpy; a line of TEXT is a document. LMPLZ is KenLM's trainer (golden/score/lmplz.py says how to build it);
# without it only its scores are compared. EXAMPLES names a folder with the example `throughput`, BESSEMER the program, built already.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=$1; text=$(realpath "$2"); rounds=${3:-5}; lmplz=${4:+$(realpath "$4")}
cd "$here/../../.."
release=${CARGO_TARGET_DIR:-target}/release
examples=${EXAMPLES:-$release/examples}; bessemer=${BESSEMER:-$release/bessemer}
[ -n "${EXAMPLES:-}" ] || cargo build --release -q -p bessemer-score --example throughput
[ -n "${BESSEMER:-}" ] || cargo build --release -q -p bessemer
taskset -c 0 "$python" "$here/compare.py" "$bessemer" "$examples/throughput" "$text" "$rounds" $lmplz
