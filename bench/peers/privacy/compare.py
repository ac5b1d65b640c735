"""E-mail and IP addresses in a text, found by Bessemer and by datatrove: compare.py PRIVACY_SPEED TEXT [ROUNDS]

Prints MB/s of one core (median of ROUNDS) and how many places were found. A line of the text is a document for datatrove, as it formats
documents one by one; Bessemer's example looks at the text as a whole. datatrove replaces while it finds; Bessemer finds.
"""
import json
import re
import statistics
import subprocess
import sys
import time

from datatrove.pipeline.formatters import PIIFormatter

program, path = sys.argv[1:3]
rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 5
text = open(path, encoding="utf-8", errors="replace").read()
documents = text.split("\n")
size = len(text.encode())
out = subprocess.run([program, path, str(rounds)], check=True, capture_output=True, text=True).stdout
ours = {row["rules"]: row for row in map(json.loads, out.splitlines())}

formatter = PIIFormatter(email_replacement="<EMAIL>", ip_replacement="<IP>")
times = []
for _ in range(rounds):
    begun = time.perf_counter()
    replaced = [formatter.format(document) for document in documents]
    times.append(time.perf_counter() - begun)
before = len(re.findall("<EMAIL>|<IP>", text))
found = sum(len(re.findall("<EMAIL>|<IP>", document)) for document in replaced) - before
theirs = size / 1e6 / statistics.median(times)
print(f"{size / 1e6:.2f} MB, {len(documents)} lines")
print(f"{'datatrove':34}{theirs:10.1f} MB/s {found:8} places")
for name, row in ours.items():
    ratio = f"   {row['mb_per_s'] / theirs:.1f} times datatrove" if name == "datatrove" else ""
    print(f"{'bessemer, rules ' + name:34}{row['mb_per_s']:10.1f} MB/s {row['spans']:8} places{ratio}")
