"""Writes the tables of the English words of spaCy (MIT licence, Explosion GmbH), and words that it makes.

    python golden/english_words.py tables > crates/text/src/split/english/tables.rs
    python golden/english_words.py golden > crates/text/tests/english_words.json

Needs spacy. The tables are read out of `spacy.blank("en").tokenizer`: classes of characters, units, exceptions.
"""
import json
import random
import re
import sys

import spacy
from spacy.lang import char_classes as cc
from spacy.symbols import ORTH
from spacy.tokenizer import Tokenizer

nlp = spacy.blank("en")
nlp.add_pipe("sentencizer")
tokenizer = nlp.tokenizer
ALL = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def ranges(points):
    out = []
    for point in sorted(points):
        if out and out[-1][1] + 1 == point:
            out[-1][1] = point
        else:
            out.append([point, point])
    return out


def rows(items, width=108):
    line = "   "
    for item in items:
        if len(line) + len(item) + 2 > width:
            print(line)
            line = "   "
        line += f" {item},"
    if line.strip():
        print(line)


def emit(name, about, points):
    print(f"\n/// {about}\npub(super) const {name}: &[(u32, u32)] = &[")
    rows(f"(0x{a:x}, 0x{b:x})" for a, b in ranges(points))
    print("];")


def of_class(body):
    pattern = re.compile(f"[{body}]")
    return [c for c in ALL if pattern.match(chr(c))]


def singles(entries):
    return {ord(e.replace("\\", "")) for e in entries if len(e.replace("\\", "")) == 1}


def quoted(text):
    return json.dumps(text, ensure_ascii=False)


def tables():
    print("// Made by golden/english_words.py; do not edit.")
    print(f"//! Classes of characters, units and exceptions of spaCy {spacy.__version__} (MIT licence, Explosion GmbH).")
    emit("ALPHA", "Letters.", of_class(cc.ALPHA))
    emit("LOWER", "Lower-case letters and those of scripts without case.", of_class(cc.ALPHA_LOWER))
    emit("UPPER", "Upper-case letters and those of scripts without case.", of_class(cc.ALPHA_UPPER))
    emit("ICON", "Symbols that stand for themselves.", of_class(cc.ICONS))
    emit("QUOTE", "Quotation marks.", of_class(cc.CONCAT_QUOTES))
    prefixes = cc.LIST_PUNCT + ["…"] + cc.LIST_QUOTES + cc.LIST_CURRENCY + ["§", "%", "=", "—", "–"]
    emit("PREFIX", "Cut off the front.", singles(prefixes) | set(of_class(cc.ICONS)))
    suffixes = cc.LIST_PUNCT + ["…"] + cc.LIST_QUOTES + ["—", "–"]
    emit("SUFFIX", "Cut off the end.", singles(suffixes) | set(of_class(cc.ICONS)))
    dot = r"0-9{al}{e}{p}(?:{q})".format(al=cc.ALPHA_LOWER, e=r"%²\-\+", q=cc.CONCAT_QUOTES, p=cc.PUNCT)
    emit("BEFORE_DOT", "A full stop after one of these is cut off.", of_class(dot))
    units = [u.replace("\\", "") for u in cc.UNITS.split("|") + cc.CURRENCY.split("|")]
    print("\n/// Cut off after a digit.\npub(super) const UNITS: &[&str] = &[")
    rows(map(quoted, dict.fromkeys(units)))
    print("];")
    print("\n/// Texts with words of their own, and how many bytes each of these has; sorted.")
    print("pub(super) const EXCEPTIONS: &[(&str, &[u8])] = &[")
    found = []
    for text, parts in tokenizer.rules.items():
        if not text.strip():
            continue
        lengths = [len(part[ORTH].encode()) for part in parts]
        found.append((text.encode(), f"({quoted(text)}, &{lengths})"))
    rows(row for _, row in sorted(found))
    print("];")
    bare = Tokenizer(nlp.vocab, rules={}, prefix_search=tokenizer.prefix_search,
                     suffix_search=tokenizer.suffix_search, infix_finditer=tokenizer.infix_finditer,
                     url_match=tokenizer.url_match)
    print("\n/// Exceptions that the affix rules would cut, as cut by them, and into how many bytes the parts fall;")
    print("/// sorted by their first part.")
    print("pub(super) const REJOINED: &[(&str, &[u8])] = &[")
    found = []
    for text in tokenizer.rules:
        cut = tokenizer.find_prefix(text) or tokenizer.find_infix(text) or tokenizer.find_suffix(text)
        if cut and text.strip():
            parts = [t.text.encode() for t in bare(text)]
            if len(parts) > 1:
                found.append(((parts[0], text.encode()), f"({quoted(text)}, &{[len(p) for p in parts]})"))
    rows(row for _, row in sorted(found))
    print("];")


PIECES = (
    "the a I'm don't won't Don’t Mr. Mrs. U.S. e.g. i.e. a.m. 10am 5km 3.5km² 20% $5 US$5 5US$ 5$ €3,50 1,000.5 "
    "http://x.com/a?b=c www.example.com user@mail.co.uk 192.168.0.1 8.8.8.8 8.8.8.8:80/x example.com. foo.Bar foo.bar "
    "state-of-the-art dyn-o-mite 10-20 2*3 2^3 a*b --flag a--b a---b — – a—b 1–2 ... .... … …… x... ...x :) :-) "
    ":)) hello:) (hello) [x] {y} \"quoted\" 'single' ‘q’ “q” it's its It's he's He'll y'all 'cause 'em ’em cannot "
    "gonna and/or w/o c++ C++ a+b +5 5+ #tag @user snake_case _x_ CamelCase x:y a:b 1:2 a=b a/b <b> </b> <space> "
    "&amp; *bold* ~ a~b °C. 20°C. 20°F ©2020 ™ ® ✓ 😀 a😀b 漢字。 日本語 「x」 привет мир. 5кг café CAFÉ. OK. USA. "
    "vs. etc. Ph.D. St. Inc. x,y a,b, 1,2 ,, ;; !! ?! !? ¿qué? ¡no! <3 </3 ^_^ o_O (ಠ_ಠ) ¯\\(ツ)/¯ ' '' \" \\n \\t \\\") "
    "Id Im Ill. hes wed dont 's 'S ’s X's X’s XS's s' dogs' O'clock rock'n'roll 8) 8D xD =) (: (; ._. -_- "
    "mailto:a@b.de ftp://f.g/h x.y.z a.b file.txt lib.rs fn(x) foo(); x->y a::b std::vec::Vec<T> => != == && || "
    "0x1F 1e-5 -1 +1 +a 3rd 1st 12:30 p.m. 5p.m. 5pm 5mm 5m/s 5km/h 5K 5% 5%. 5²  x² A.B A.b a.B AB. Ab. ü. Ü. "
    "1. 1) (1) [1] a) **x** `code` ``` --- === ### | |-- \u200b \ufeffx a\u200bb Id. let's Let's lets"
).split(" ")
SPACES = [" ", " ", " ", " ", "\n", "  ", "\n\n", "\t", " \n", "\u00a0", "\r\n", "\u2003"]
CHARS = list("abzABZ019.,;:!?'\"()[]{}<>-–—_/\\+*^=&%$#@~|`°²€…’‘“”éÉжЖ漢あ।😀©\u0301") + ["'s", "...", "US$", "km", "://", "."]


def golden():
    rng = random.Random(7)
    texts = ["", " ", "  ", "\n", "a", " a", "a ", "  a  b  ", "Mr . x", "( :)", ": )", "a. \n b", "He 's"]
    for _ in range(420):
        texts.append("".join(rng.choice(PIECES) + rng.choice(SPACES) for _ in range(rng.randint(1, 9))))
    for _ in range(420):
        texts.append("".join(rng.choice(PIECES) for _ in range(rng.randint(2, 3))))
    for _ in range(420):
        texts.append("".join(rng.choice(CHARS) for _ in range(rng.randint(1, 8))))
    cases = []
    for text in texts:
        doc = nlp(text)
        words = [t.text.strip() for t in doc if t.text.strip()]
        cases.append([text, words, max(1, len(list(doc.sents)))])
    print("[")
    print(",\n".join(json.dumps(case, ensure_ascii=False) for case in cases))
    print("]")


{"tables": tables, "golden": golden}[sys.argv[1]]()
