"""Tokens of chats and masks of answers by Transformers.

    python golden/chat/masks.py DIRECTORY    # DIRECTORY/NAME.out.json from NAME.json, NAME.jinja, NAME.tokens.json, NAME.chats.json

For each chat: `text` and `spans` (characters of the bodies of `generation`), `ids` and `mask` of
`apply_chat_template(..., return_assistant_tokens_mask=True)`, and `typed_ids`, `typed_mask`: the same with special tokens that messages spell
as text. For these the special tokens are found in a rendering in which those of the messages are replaced by as many private-use characters;
the text between them is encoded by tokenizers with `encode_special_tokens`.

A special token that begins before an answer is not scored here. Transformers scores it where it takes white space behind it (`rstrip`) that
the answer begins with; `header` counts these chats.
"""

import json
import re
import sys
from pathlib import Path

from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

HIDDEN = "\ue123"


def each_text(value, change, key=None):
    """The value with its texts changed; names of fields, roles and types stay."""
    if isinstance(value, str):
        return value if key in ("role", "type") else change(value)
    if isinstance(value, list):
        return [each_text(item, change) for item in value]
    if isinstance(value, dict):
        return {k: each_text(v, change, k) for k, v in value.items()}
    return value


def masked(pieces, spans, special):
    """Scored tokens: those from the one with the first character of a span to the one with its last. `pieces` are ids with their characters."""
    mask, headers = [0] * len(pieces), 0
    for begin, end in spans:
        if begin == end:
            continue
        first = next(i for i, (_, b, e) in enumerate(pieces) if b <= begin < e)
        last = next(i for i, (_, b, e) in enumerate(pieces) if b <= end - 1 < e)
        if pieces[first][0] in special and pieces[first][1] < begin:
            headers, first = headers + 1, first + 1
        mask[first : last + 1] = [1] * (last + 1 - first)
    return mask, headers


def main(directory):
    for file in sorted(directory.glob("*.tokens.json")):
        name = file.name.removesuffix(".tokens.json")
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=str(directory / f"{name}.json"), clean_up_tokenization_spaces=False, **json.loads(file.read_text())
        )
        tokenizer.chat_template = (directory / f"{name}.jinja").read_text()
        added = json.loads((directory / f"{name}.json").read_text())["added_tokens"]
        special = {token["content"]: token for token in added if token["special"]}
        special_ids = {token["id"] for token in special.values()}
        pattern = re.compile("|".join(re.escape(t) for t in sorted(special, key=len, reverse=True)))
        made = []
        for chat in json.loads((directory / f"{name}.chats.json").read_text()):
            messages, tools = chat["messages"], chat.get("tools")
            out = tokenizer.apply_chat_template(
                messages, tools=tools, return_assistant_tokens_mask=True, return_dict=True, tokenize=True
            )
            arguments = {"chat_template": tokenizer.chat_template, "return_assistant_tokens_mask": True, **tokenizer.special_tokens_map}
            [text], [spans] = render_jinja_template([messages], tools=tools, **arguments)
            ids, mask = list(out["input_ids"]), list(out["assistant_masks"])
            whole = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            assert whole["input_ids"] == ids
            pieces = [(i, b, e) for i, (b, e) in zip(ids, whole["offset_mapping"])]
            own, headers = masked(pieces, spans, special_ids)
            if headers == 0:
                assert own == mask, (name, chat)
            # The same with special tokens of messages as text.
            def hide(text):
                return pattern.sub(lambda found: HIDDEN * len(found[0]), text)

            [neutral], [neutral_spans] = render_jinja_template(
                [each_text(messages, hide)], tools=each_text(tools, hide), **arguments
            )
            assert len(neutral) == len(text) and neutral_spans == spans
            backend = tokenizer.backend_tokenizer
            backend.encode_special_tokens = True
            pieces, at = [], 0

            def plain(begin, end):
                encoding = backend.encode(text[begin:end], add_special_tokens=False)
                pieces.extend((i, begin + b, begin + e) for i, (b, e) in zip(encoding.ids, encoding.offsets))

            for found in pattern.finditer(neutral):
                if found.start() > at:
                    plain(at, found.start())
                token, at = special[found[0]], found.end()
                while token["rstrip"] and at < len(text) and text[at].isspace():
                    at += 1
                pieces.append((token["id"], found.start(), at))
            if at < len(text):
                plain(at, len(text))
            backend.encode_special_tokens = False
            typed_mask, _ = masked(pieces, spans, special_ids)
            made.append(
                {"text": text, "spans": spans, "ids": ids, "mask": own, "header": headers,
                 "typed_ids": [i for i, _, _ in pieces], "typed_mask": typed_mask}
            )  # fmt: skip
        (directory / f"{name}.out.json").write_text(json.dumps(made))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
