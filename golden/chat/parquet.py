"""Chats as Parquet files as pyarrow writes them, and the same rows as JSON lines: python golden/chat/parquet.py crates/corpus/tests/data

messages.parquet has lists of structures with fields that other rows lack (null), texts.parquet columns of texts.
"""

import json
import sys

import pyarrow as pa
import pyarrow.parquet as pq

COLOURS = ["red", "green", "blue"]


def conversation(number):
    question, answer = f"hill {number}?", f"{COLOURS[number % 3]} 東京\n"
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    if number % 3 == 0:
        turns.insert(0, {"role": "system", "content": "Be brief."})
    if number % 4 == 0:
        turns[-1]["weight"] = 0
        turns += [{"role": "user", "content": "and?"}, {"role": "assistant", "content": "rain"}]
    return {"messages": turns, "source": f"made {number}"}


messages = [conversation(number) for number in range(30)]
# A row without an answer, which is left out, and one that equals another.
messages.append({"messages": [{"role": "user", "content": "hm"}], "source": "bad"})
messages.append(messages[1])
texts = [{"prompt": f"hill {number}?", "completion": COLOURS[number % 3]} for number in range(12)]
turn = pa.struct([("role", pa.string()), ("content", pa.string()), ("weight", pa.int64())])
schemas = {
    "messages": pa.schema([("source", pa.string()), ("messages", pa.list_(turn))]),
    "texts": pa.schema([("prompt", pa.large_string()), ("completion", pa.string())]),
}
for name, rows in [("messages", messages), ("texts", texts)]:
    table = pa.Table.from_pylist(rows, schema=schemas[name])
    pq.write_table(table, f"{sys.argv[1]}/chats-{name}.parquet", row_group_size=10, compression="zstd")
    with open(f"{sys.argv[1]}/chats-{name}.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
