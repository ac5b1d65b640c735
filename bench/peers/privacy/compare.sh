#!/bin/bash
# Personal data in text: Bessemer beside datatrove's PIIFormatter, same text, one core each, one run.
#
#   bench/peers/privacy/compare.sh PYTHON TEXT [ROUNDS]
#
# PYTHON has datatrove. With the rules of datatrove both replace the same; what else is looked for has no peer and is told beside.
# EXAMPLES names a folder with the example `privacy_speed` that is built already.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=$1; text=$(realpath "$2"); rounds=${3:-5}
cd "$here/../../.."
examples=${EXAMPLES:-${CARGO_TARGET_DIR:-target}/release/examples}
[ -n "${EXAMPLES:-}" ] || cargo build --release -q -p bessemer-privacy --example privacy_speed
taskset -c 0 "$python" "$here/compare.py" "$examples/privacy_speed" "$text" "$rounds"
