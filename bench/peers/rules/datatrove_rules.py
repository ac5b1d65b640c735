"""datatrove's FineWeb rule chain on a JSON-lines file, as examples/rules.rs does it: a verdict a document on standard
output, the speed of one core on standard error.

    pip install datatrove spacy nltk xxhash
    python datatrove_rules.py FILE.jsonl [REPEAT]

The filters are called one after the other on each document, as its pipeline does, without reading, writing or logging.
"""
import json
import statistics
import sys
import time

import xxhash
from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)

filters = [
    GopherRepetitionFilter(),
    GopherQualityFilter(),
    C4QualityFilter(filter_no_terminal_punct=False),
    FineWebQualityFilter(),
]


def judge(text):
    document = Document(text=text, id="")
    for rule in filters:
        try:
            result = rule.filter(document)
        except ZeroDivisionError:
            # Upstream stops the job here; the profile has no value for the rule.
            return "error", document.text
        if isinstance(result, tuple) and not result[0]:
            return result[1], None
        if result is False:
            return "dropped", None
    return None, document.text


with open(sys.argv[1], encoding="utf-8") as file:
    texts = [json.loads(line)["text"] for line in file]
repeat = int(sys.argv[2]) if len(sys.argv) > 2 else 1
size = sum(len(text.encode()) for text in texts)
judge(texts[0])
seconds = []
for _ in range(repeat):
    start = time.perf_counter()
    verdicts = [judge(text) for text in texts]
    seconds.append(time.perf_counter() - start)
for reason, text in verdicts:
    print(f"drop {reason}" if reason else f"keep {xxhash.xxh64_hexdigest(text.encode())}")
median = statistics.median(seconds)
print(json.dumps({"tool": "datatrove", "documents": len(texts), "bytes": size, "seconds": median,
                  "mb_per_s": size / median / 1e6}), file=sys.stderr)
