#!/bin/bash
# The FineWeb rule chain: Bessemer beside datatrove, same documents, one core each, one run.
#
#   bench/peers/rules/compare.sh PYTHON [DOCUMENTS] [TEXT ...]
#
# PYTHON has datatrove, spacy, nltk and xxhash. Prints both speeds, their ratio, and how many verdicts differ (reason, and
# the text that is kept); the first of these are listed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=$1; documents=${2:-2000}; shift; shift || true
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
"$python" "$here/corpus.py" "$work/documents.jsonl" "$documents" "$@"
cd "$here/../../.."
cargo build --release -q -p bessemer-rules --example rules
rules=${CARGO_TARGET_DIR:-target}/release/examples/rules
taskset -c 0 "$rules" "$work/documents.jsonl" fineweb 9 > "$work/bessemer" 2> "$work/bessemer.json"
taskset -c 0 "$python" "$here/datatrove_rules.py" "$work/documents.jsonl" 1 > "$work/datatrove" 2> "$work/datatrove.log"
tail -1 "$work/datatrove.log" > "$work/datatrove.json"
"$python" - "$work" <<'PYTHON'
import collections, json, sys
work = sys.argv[1]
ours, theirs = (json.load(open(f"{work}/{tool}.json")) for tool in ("bessemer", "datatrove"))
for result in (ours, theirs):
    print(f"{result['tool']:10} {result['documents']} documents, {result['bytes'] / 1e6:.1f} MB, "
          f"{result['seconds']:.3f} s, {result['mb_per_s']:.2f} MB/s a core")
print(f"ratio      {ours['mb_per_s'] / theirs['mb_per_s']:.1f}")
a, b = (open(f"{work}/{tool}").read().splitlines() for tool in ("bessemer", "datatrove"))
different = [(i, x, y) for i, (x, y) in enumerate(zip(a, b)) if x != y]
print(f"verdicts   {len(a)} and {len(b)}, {len(different)} differ")
for i, x, y in different[:20]:
    print(f"  document {i}: bessemer {x}, datatrove {y}")
print("reasons   ", dict(collections.Counter(line.split()[1] if line.startswith("drop") else "kept" for line in b).most_common()))
PYTHON
