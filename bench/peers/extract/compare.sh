#!/bin/bash
# Main text of web pages: Bessemer beside trafilatura (Python), same pages, one core each, one run: quality and MB/s.
#
#   bench/peers/extract/compare.sh PYTHON [PAGES]
#
# PYTHON has trafilatura, lxml and lxml_html_clean. PAGES is a folder of X.html and X.txt; without it the pages are collected (pip downloads
# one source package). EXAMPLES names a folder with the example `extract` that is built already.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=$1
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
pages=${2:-$work/pages}
[ -d "$pages" ] || "$python" "$here/collect_pages.py" "$pages"
pages=$(cd "$pages" && pwd)
cd "$here/../../.."
examples=${EXAMPLES:-${CARGO_TARGET_DIR:-target}/release/examples}
[ -n "${EXAMPLES:-}" ] || cargo build --release -q -p bessemer-web --example extract
for how in main plain; do
  taskset -c 0 "$examples/extract" $how "$work/$how" "$pages"/*.html
done
taskset -c 0 "$python" "$here/compare.py" "$pages" "bessemer, main text=$work/main" "bessemer, all visible text=$work/plain"
