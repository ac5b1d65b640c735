"""The model that KenLM's lmplz estimates from crates/score/tests/data/kenlm/small.txt and one more line.

    python golden/score/lmplz.py path/to/lmplz

writes crates/score/tests/data/kenlm/lmplz.arpa. lmplz is compiled from the sources of KenLM (LGPL; nothing of it is kept here),
with Boost's program_options and thread:

    g++ -O1 -DNDEBUG -DKENLM_MAX_ORDER=6 -I. $(ls util/*.cc util/double-conversion/*.cc util/stream/*.cc lm/*.cc lm/common/*.cc \\
      lm/builder/*.cc | grep -v -e _test.cc -e _main.cc -e benchmark) lm/builder/lmplz_main.cc -lboost_program_options -lboost_thread -lboost_system

The line ends with a word that comes once and last: lmplz counts the last n-gram of every order, in the order of its last words, by how often it
was seen and not by its adjusted count (adjust_counts.cc, the loop behind the main one), which moves the discounts of a small text.
Here the two are the same.
"""

import pathlib
import subprocess
import sys

DATA = pathlib.Path(__file__).parents[2] / "crates/score/tests/data/kenlm"
text = (DATA / "small.txt").read_text(encoding="utf-8") + "aardvark\n"
command = [sys.argv[1], "-o", "4", "--discount_fallback", "-S", "200M"]
result = subprocess.run(command, input=text, text=True, check=True, capture_output=True)
(DATA / "lmplz.arpa").write_text(result.stdout, encoding="utf-8")
