#!/bin/bash
# Pictures and sounds: Bessemer beside Pillow and, where PYTHON has it, transformers, same files, one thread each, taking turns.
#
#   bench/peers/media/compare.sh PYTHON [ROUNDS]
#
# PYTHON has pillow and numpy. EXAMPLES names a folder with the example `media_bench` that is built already.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../../.."
examples=${EXAMPLES:-${CARGO_TARGET_DIR:-target}/release/examples}
[ -n "${EXAMPLES:-}" ] || cargo build --release -q -p bessemer-media --example media_bench
taskset -c 0 "$1" "$here/compare.py" "$examples/media_bench" "${2:-5}"
