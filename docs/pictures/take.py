#!/usr/bin/env python3
"""Takes one picture out of a report.html as an SVG file of its own.

    python3 docs/pictures/take.py runs/quickstart/report.html "Loss over step" > docs/pictures/quickstart-loss.svg

The picture and its style are those of the report; this only puts the one into the other.
"""
import re
import sys

page = open(sys.argv[1], encoding="utf-8").read()
style = re.search(r"<style>.*?</style>", page, re.S).group(0)
# The rules of the page that do not concern pictures are left behind.
rules = re.findall(r"(?::root\{[^}]*\}|@media [^{]*\{:root\{[^}]*\}\}|svg\.plot[^{]*\{[^}]*\})", style)
svg = next(s for s in re.findall(r"<svg.*?</svg>", page, re.S) if f'aria-label="{sys.argv[2]}"' in s)
start, rest = svg.split(">", 1)
rules = "".join(dict.fromkeys(rules)).replace(":root", "svg.plot") + "svg.plot{background:var(--page)}"
print(f'<?xml version="1.0" encoding="UTF-8"?>\n{start}><style>{rules}</style>{rest}')
