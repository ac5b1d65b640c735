"""Gather .rs and .md files of the cargo registry into one flat folder, as text to measure on.

    python collect_corpus.py FOLDER [MEGABYTES] [REGISTRY_SOURCES]
"""
import sys
from pathlib import Path

target = Path(sys.argv[1])
limit = int(float(sys.argv[2]) * 1e6) if len(sys.argv) > 2 else 100_000_000
registry = Path(sys.argv[3]) if len(sys.argv) > 3 else Path.home() / ".cargo/registry/src"
target.mkdir(parents=True, exist_ok=True)
total = count = 0
for path in sorted(p for p in registry.rglob("*") if p.suffix in (".rs", ".md") and p.is_file()):
    data = path.read_bytes()
    if not 200 <= len(data) <= 500_000:
        continue
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        continue
    (target / f"{count:06}{path.suffix}").write_bytes(data)
    total += len(data)
    count += 1
    if total >= limit:
        break
print(f"{count} files, {total / 1e6:.1f} MB")
