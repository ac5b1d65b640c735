"""datatrove's pipeline from WARC files to kept documents: extraction, FineWeb's rules, MinHash, personal data. No language filter
and no URL filter: both need files from elsewhere, and Bessemer's run beside it has none.

    pip install "datatrove[processing,io]" spacy nltk xxhash trafilatura lxml_html_clean warcio
    python datatrove_build.py FOLDER_OF_WARC OUT TASKS

TASKS processes, each with its share of the files. Prints seconds and documents as JSON on the last line.
"""
import gzip
import json
import os
import sys
import time

from datatrove.executor.local import LocalPipelineExecutor
from datatrove.pipeline.dedup import MinhashDedupSignature
from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupBuckets, MinhashDedupCluster, MinhashDedupFilter
from datatrove.pipeline.extractors import Trafilatura
from datatrove.pipeline.filters import C4QualityFilter, FineWebQualityFilter, GopherQualityFilter, GopherRepetitionFilter
from datatrove.pipeline.formatters import PIIFormatter
from datatrove.pipeline.readers import JsonlReader, WarcReader
from datatrove.pipeline.writers.jsonl import JsonlWriter
from datatrove.utils.hashing import HashConfig

minhash = MinhashConfig(hash_config=HashConfig(hash_fc="sha1", precision=64), num_buckets=14, hashes_per_bucket=8, n_grams=5)


def run(pipeline, tasks, workers):
    LocalPipelineExecutor(pipeline=pipeline, tasks=tasks, workers=workers, skip_completed=False).run()


def main():
    source, out, tasks = sys.argv[1], sys.argv[2], int(sys.argv[3])
    start = time.perf_counter()
    run([
        WarcReader(source, glob_pattern="*.warc.gz"),
        Trafilatura(favour_precision=True),
        GopherRepetitionFilter(),
        GopherQualityFilter(),
        C4QualityFilter(filter_no_terminal_punct=False),
        FineWebQualityFilter(),
        JsonlWriter(f"{out}/filtered"),
    ], tasks, tasks)
    run([JsonlReader(f"{out}/filtered"), MinhashDedupSignature(output_folder=f"{out}/signatures", config=minhash)], tasks, tasks)
    run([MinhashDedupBuckets(input_folder=f"{out}/signatures", output_folder=f"{out}/buckets", config=minhash)], minhash.num_buckets, tasks)
    run([MinhashDedupCluster(input_folder=f"{out}/buckets", output_folder=f"{out}/remove", config=minhash)], 1, 1)
    run([
        JsonlReader(f"{out}/filtered"),
        MinhashDedupFilter(input_folder=f"{out}/remove"),
        PIIFormatter(),
        JsonlWriter(f"{out}/kept"),
    ], tasks, tasks)
    seconds = time.perf_counter() - start
    documents = text = 0
    for name in os.listdir(f"{out}/kept"):
        with gzip.open(f"{out}/kept/{name}", "rt", encoding="utf-8") as file:
            for line in file:
                documents += 1
                text += len(json.loads(line)["text"].encode())
    print(json.dumps({"tool": "datatrove", "seconds": seconds, "documents": documents, "bytes": text}))


# The workers import this file anew.
if __name__ == "__main__":
    main()
