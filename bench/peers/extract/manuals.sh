#!/bin/bash
# Main text of manuals: Bessemer beside trafilatura, Resiliparse and jusText, on pages as they are and without names.
#
#   bench/peers/extract/manuals.sh PYTHON [DEBS]
#
# PYTHON has trafilatura, lxml and lxml_html_clean, and possibly resiliparse and justext. DEBS keeps the packages that
# are downloaded (Debian or Ubuntu, apt-get and dpkg). EXAMPLES names a folder with the example `extract` that is built
# already.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=$1
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
debs=${2:-$work/debs}
mkdir -p "$debs"
debs=$(cd "$debs" && pwd)
"$python" "$here/collect_manuals.py" "$work/pages" "$debs"
cd "$here/../../.."
examples=${EXAMPLES:-${CARGO_TARGET_DIR:-target}/release/examples}
[ -n "${EXAMPLES:-}" ] || cargo build --release -q -p bessemer-web --example extract
for variant in named nameless; do
  echo "$variant"
  taskset -c 0 "$examples/extract" main "$work/$variant" "$work/pages/$variant"/*.html
  taskset -c 0 "$python" "$here/compare.py" "$work/pages/$variant" "bessemer, main text=$work/$variant" --parts
done
