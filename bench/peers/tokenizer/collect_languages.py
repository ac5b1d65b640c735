"""Gather translated messages of the programs on this machine into one flat folder: text of many scripts to measure on.

    python collect_languages.py FOLDER [KILOBYTES_PER_SCRIPT] [LOCALES]

Reads the message catalogs (`*.mo`) below LOCALES (/usr/share/locale), except the lists of names of iso-codes. A message counts for the
script of most of its letters beyond ASCII; one without such letters counts for Latin. A message is taken once a language. Documents hold
messages of one language, a line each, about 4 kB; those of different scripts take turns, so that each part of the folder is as mixed as the whole.
"""
import gettext
import sys
import unicodedata
from collections import Counter, defaultdict
from itertools import zip_longest
from pathlib import Path

DOCUMENT = 4_000
# Names of characters begin with the script, except these.
SAME_SCRIPT = {"HIRAGANA": "CJK", "KATAKANA": "CJK", "KATAKANA-HIRAGANA": "CJK", "FULLWIDTH": None, "HALFWIDTH": None, "MODIFIER": None}


def script(message):
    letters = Counter()
    for c in message:
        if ord(c) >= 0x80 and unicodedata.category(c)[0] == "L":
            first = unicodedata.name(c, "UNKNOWN").split()[0]
            letters[SAME_SCRIPT.get(first, first)] += 1
    letters.pop(None, None)
    return letters.most_common(1)[0][0] if letters else "LATIN"


def messages(locales):
    """Language and message, each once, in an order that depends on names alone."""
    seen = set()
    for path in sorted(locales.glob("*/LC_MESSAGES/*.mo")):
        # Languages with a character set in their name repeat those without.
        language = path.parent.parent.name
        if path.name.startswith("iso") or "." in language:
            continue
        try:
            with path.open("rb") as file:
                catalog = gettext.GNUTranslations(file)._catalog
        except (OSError, ValueError, LookupError):
            continue
        for key, message in catalog.items():
            if key and isinstance(message, str) and message and (language, message) not in seen:
                seen.add((language, message))
                yield language, message


def main():
    target = Path(sys.argv[1])
    limit = int(float(sys.argv[2]) * 1e3) if len(sys.argv) > 2 else 400_000
    locales = Path(sys.argv[3]) if len(sys.argv) > 3 else Path("/usr/share/locale")
    by_language = defaultdict(list)
    for language, message in messages(locales):
        by_language[script(message), language].append(message)
    documents = defaultdict(list)
    sizes = Counter()
    for name in sorted({name for name, _ in by_language}):
        # Languages of a script take turns, a document each, until there is enough of the script.
        queues = [iter(by_language[key]) for key in sorted(by_language) if key[0] == name]
        while queues and sizes[name] < limit:
            for queue in list(queues):
                lines, size = [], 0
                for message in queue:
                    lines.append(message)
                    size += len(message.encode()) + 1
                    if size >= DOCUMENT:
                        break
                else:
                    queues.remove(queue)
                if lines and sizes[name] < limit:
                    documents[name].append("\n".join(lines) + "\n")
                    sizes[name] += size
    # Scripts of which there is hardly any text are characters in texts of other scripts.
    documents = {name: parts for name, parts in documents.items() if sizes[name] >= 20_000}
    target.mkdir(parents=True, exist_ok=True)
    count = 0
    for turn in zip_longest(*documents.values()):
        for text in turn:
            if text is not None:
                (target / f"{count:06}.txt").write_text(text, encoding="utf-8")
                count += 1
    total = sum(sizes[name] for name in documents)
    print(f"{count} files, {total / 1e6:.1f} MB, {len(documents)} scripts: "
          + ", ".join(f"{name.lower()} {sizes[name] // 1000}" for name in documents) + " kB")


if __name__ == "__main__":
    main()
