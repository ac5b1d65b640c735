"""Write crates/tokenizer/src/pretokenize/unicode_ranges.rs.

The ranges of \\p{L}, \\p{N} and \\s are asked of the regular-expression engine inside Hugging Face `tokenizers`,
because that engine is what our pre-tokenizers must agree with; tiktoken's engine is asked too and must agree.

    python generate_unicode_ranges.py > ../../../crates/tokenizer/src/pretokenize/unicode_ranges.rs
"""
import sys
import tiktoken
import tokenizers
from tokenizers import Regex, pre_tokenizers

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
TEXT = "".join(map(chr, CODE_POINTS))


def hf_members(negated):
    split = pre_tokenizers.Split(Regex(negated + "+"), "removed")
    return sorted(ord(c) for piece, _ in split.pre_tokenize_str(TEXT) for c in piece)


def tiktoken_members(positive):
    ranks = {bytes([b]): b for b in range(256)}
    encoding = tiktoken.Encoding("probe", pat_str=positive, mergeable_ranks=ranks, special_tokens={})
    return sorted(map(ord, bytes(encoding.encode_ordinary(TEXT)).decode()))


def ranges(members):
    out = []
    for c in members:
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


print("//! Unicode 16 ranges behind `\\p{L}`, `\\p{N}` and `\\s`. Generated, do not edit: see")
print("//! `bench/peers/tokenizer/generate_unicode_ranges.py`, which asks the regular-expression engines of")
print(f"//! Hugging Face `tokenizers` {tokenizers.__version__} and of tiktoken (both answer alike).")
print("//!")
print("//! Kept as a file of ours, not taken from a dependency, so that a Unicode update elsewhere cannot change the")
print("//! token ids of a trained tokenizer.")
for name, what, negated, positive in [
    ("LETTERS", r"General category L (`\p{L}`)", r"\P{L}", r"\p{L}"),
    ("NUMBERS", r"General category N (`\p{N}`)", r"\P{N}", r"\p{N}"),
    ("WHITESPACE", r"Property White_Space (`\s`)", r"\S", r"\s"),
]:
    members = hf_members(negated)
    if members != tiktoken_members(positive):
        sys.exit(f"the two engines disagree about {positive}")
    rows = ranges(members)
    print(f"\n/// {what}: {len(members)} code points, first and last of each range.")
    print("#[rustfmt::skip]")
    print(f"pub(super) static {name}: [(u32, u32); {len(rows)}] = [")
    line = "   "
    for a, b in rows:
        item = f" (0x{a:X}, 0x{b:X}),"
        if len(line) + len(item) > 110:
            print(line)
            line = "   "
        line += item
    print(line)
    print("];")
