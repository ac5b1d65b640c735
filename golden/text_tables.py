"""Writes crates/text/src/unicode/tables.rs: the classes of characters that Python and datatrove use.

    python golden/text_tables.py > crates/text/src/unicode/tables.rs

Needs datatrove and spacy; run with Python 3.11 (Unicode 14), whose `unicodedata` the tables then equal.
"""
import unicodedata

from datatrove.utils.text import PUNCTUATION, TERMINAL_PUNCTUATION
from spacy.pipeline import Sentencizer

SURROGATES = range(0xD800, 0xE000)
ALL = [c for c in range(0x110000) if c not in SURROGATES]


def ranges(points):
    out = []
    for point in sorted(points):
        if out and out[-1][1] + 1 == point:
            out[-1][1] = point
        else:
            out.append([point, point])
    return out


def emit(name, about, points):
    pairs = [f"(0x{a:x}, 0x{b:x})" for a, b in ranges(points)]
    print(f"\n/// {about}\npub(crate) const {name}: &[(u32, u32)] = &[")
    line = "   "
    for pair in pairs:
        if len(line) + len(pair) + 2 > 108:
            print(line)
            line = "   "
        line += f" {pair},"
    print(line)
    print("];")


def category(*prefixes):
    return [c for c in ALL if unicodedata.category(chr(c)).startswith(prefixes)]


print("// Made by golden/text_tables.py; do not edit.")
print(f"//! Ranges of code points, first and last included: Unicode {unicodedata.unidata_version}.")
emit("PUNCTUATION", "datatrove's PUNCTUATION.", {ord(c) for c in PUNCTUATION})
emit("TERMINAL", "datatrove's TERMINAL_PUNCTUATION.", {ord(c) for c in TERMINAL_PUNCTUATION})
emit("SENTENCIZER", "Characters that end a sentence for spaCy's sentencizer.",
     {ord(c) for c in Sentencizer.default_punct_chars})
emit("MARK_NONSPACING", "General category Mn.", category("Mn"))
emit("DIGIT", "General category Nd.", category("Nd"))
emit("LETTER", "General categories L*: what Python's `str.isalpha` calls alphabetic.", category("L"))
emit("PUNCTUATION_CATEGORY", "General categories P*.", category("P"))
emit("SPACE", "What Python's `str.isspace` calls white space.", [c for c in ALL if chr(c).isspace()])
assert len(TERMINAL_PUNCTUATION) == 159
