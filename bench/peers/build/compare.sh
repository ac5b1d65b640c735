#!/bin/bash
# A whole corpus build, from WARC files to kept documents: Bessemer beside datatrove, same files, one run, as many
# processes or threads of each as said.
#
#   bench/peers/build/compare.sh PYTHON THREADS [ROUNDS] [PAGES] [FOLDER ...]
#
# PYTHON has datatrove[processing,io], spacy, nltk, xxhash, trafilatura, lxml_html_clean and warcio. FOLDERs hold *.html files of manuals; without
# any, those of the Rust toolchain are taken. BESSEMER names a program that is built already; BEFORE one of an older
# commit, timed besides in alternating order.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=$1; threads=$2; rounds=${3:-3}; pages=${4:-8000}; shift $(( $# < 4 ? $# : 4 ))
if [ $# = 0 ]; then
  html=$(rustc --print sysroot)/share/doc/rust/html
  set -- "$html"/{book,reference,nomicon,rust-by-example,alloc,cargo,clippy,error_codes} "$html"/std/{collections,io,net,fs,path,process,thread}
fi
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
"$python" "$here/../rules/corpus.py" "$work/documents.jsonl" 40000
"$python" "$here/make_warc.py" "$work/warc" "$threads" "$pages" "$work/documents.jsonl" "$@"
cd "$here/../../.."
[ -n "${BESSEMER:-}" ] || { cargo build --release -q; BESSEMER=${CARGO_TARGET_DIR:-target}/release/bessemer; }
build() { # PROGRAM NAME ROUND
  rm -rf "$work/runs"
  local begun ended
  begun=$(date +%s.%N)
  "$1" corpus build "$here/bessemer.toml" --set corpus.path="$work/warc" --set run.dir="$work/runs" --set run.threads="$threads" -q --json > "$work/$2.json"
  ended=$(date +%s.%N)
  echo "$2 $(echo "$ended - $begun" | bc)" >> "$work/times"
}
for round in $(seq "$rounds"); do
  if [ -n "${BEFORE:-}" ] && [ $((round % 2)) = 0 ]; then build "$BEFORE" before; fi
  build "$BESSEMER" bessemer
  if [ -n "${BEFORE:-}" ] && [ $((round % 2)) = 1 ]; then build "$BEFORE" before; fi
done
"$python" "$here/datatrove_build.py" "$work/warc" "$work/datatrove" "$threads" > "$work/datatrove.log" 2>&1 || { tail "$work/datatrove.log"; exit 1; }
"$python" - "$work" <<'PYTHON'
import collections, json, statistics, sys
work = sys.argv[1]
times = collections.defaultdict(list)
for line in open(f"{work}/times"):
    name, seconds = line.split()
    times[name].append(float(seconds))
theirs = json.loads(open(f"{work}/datatrove.log").read().splitlines()[-1])
times["datatrove"].append(theirs["seconds"])
for name, seconds in times.items():
    print(f"{name:10} {statistics.median(seconds):8.2f} s (median of {len(seconds)}, {min(seconds):.2f} to {max(seconds):.2f})")
ours = statistics.median(times["bessemer"])
for name in ("before", "datatrove"):
    if name in times:
        print(f"bessemer is {statistics.median(times[name]) / ours:.2f} times as fast as {name}")
print(f"datatrove kept {theirs['documents']} documents, {theirs['bytes']} bytes")
PYTHON
"$BESSEMER" corpus stats "$work/runs/quickstart" | head -3
