"""Writes the small inputs in seeds/ that fuzzing begins with: `python3 fuzz/make_seeds.py`.

Those of images, audio, fastText, KenLM and SentencePiece come from the tests of their crates; the targets of shard files make their own.
"""

import bz2
import gzip
import io
import json
import pathlib
import struct
import tarfile

HERE = pathlib.Path(__file__).parent / "seeds"

PAGE = (
    "<!doctype html><html lang=en><head><meta charset=utf-8><title>A page</title></head><body><nav><a href=/>Home</a></nav>"
    "<article><h1>Steel</h1><p>Blowing air through molten iron burns what is too much in it &amp; leaves steel.</p>"
    "<ul><li>one<li>two</ul><table><tr><td>a<td>b</table><pre>x\n y</pre></article><footer>&copy; 2024</footer></body></html>"
).encode()


def put(target, name, data):
    path = HERE / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())


def record(kind, block, extra=""):
    head = (
        f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Record-ID: <urn:uuid:00000000-0000-4000-8000-000000000001>\r\n"
        f"WARC-Date: 2024-01-02T03:04:05Z\r\nWARC-Target-URI: http://example.com/\r\n{extra}Content-Length: {len(block)}\r\n\r\n"
    )
    return head.encode() + block + b"\r\n\r\n"


def http(body, fields=""):
    return f"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n{fields}\r\n".encode() + body


response = record("response", http(PAGE), "Content-Type: application/http; msgtype=response\r\n")
conversion = record("conversion", b"Plain text of a page.\n", "Content-Type: text/plain\r\n")
put("warc", "plain", response + conversion)
put("warc", "gzip", gzip.compress(response, mtime=0) + gzip.compress(conversion, mtime=0))
put("warc_build", "plain", b"\0" + response + conversion)
put("warc_build", "gzip", b"\1" + gzip.compress(response, mtime=0) + gzip.compress(conversion, mtime=0))
put("html", "page", PAGE)
put("html", "latin1", "<meta charset=iso-8859-1><p>Stra\u00dfe, \u00e9t\u00e9</p>".encode("latin-1"))
put("http", "gzip", http(gzip.compress(PAGE, mtime=0), "Content-Encoding: gzip\r\n"))
put("http", "chunked", http(b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n\r\n", "Transfer-Encoding: chunked\r\n"))
put("url", "urls", "example.co.uk casino free\nhttps://user@www.Example.co.uk:80/2024/01/02/free-casino?q=1#x\nhttp://[::1]/\n8.8.8.8/x\n")

LINES = '{"text": "A first document, long enough.", "id": 1}\n{"text": null}\nno JSON\n{"text": "\\u00e9\\ud83d\\ude00"}\n'
put("jsonl", "plain", b"\0" + LINES.encode())
put("jsonl", "gzip", b"\1" + gzip.compress(LINES.encode(), mtime=0) + gzip.compress(LINES.encode(), mtime=0))
CALL = '{"type": "function", "function": {"name": "f", "arguments": "{\\"x\\": 1}"}}'
put("chat_rows", "openai", '{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "<|im_end|>"}]}, {"role": "assistant", "content": null, "tool_calls": [' + CALL + ']}, {"role": "tool", "content": "r"}, {"role": "assistant", "content": "a", "weight": 1}], "tools": [{"name": "f"}]}\n')
put("chat_rows", "sharegpt", '{"system": "s", "conversations": [{"from": "human", "value": "<|im_"}, {"from": "gpt", "value": "end|>"}]}\n')
put("chat_rows", "others", '{"instruction": "a", "input": "b", "output": "c", "history": [["d", "e"]]}\n\n{"prompt": "|im_end|>", "completion": "{{ x }}"}\n{"text": 1}\n')
put("judge_texts", "items", b"\0" + b'{"id": "a", "prompt": "p", "texts": {"one": "x", "two": {"text": "y", "log_probability": -1.5}}}\n')
put("judge_texts", "sheet", b"\1" + b'task,prompt,left,right,choice\n0:1:0,,y,x,left\n1:0:1,"a ""b""",u,v,\n')
put("serve_request", "completion", b"\0" + b'{"prompt": ["the ", "fox"], "max_tokens": 3, "logprobs": 2, "echo": true, "n": 2, "stop": ["."], "logit_bias": {"5": -1}}')
put("serve_request", "ids", b"\0" + b'{"prompt": [[1, 2, 3], [4]], "temperature": 0, "stream": true, "stream_options": {"include_usage": true}}')
put("serve_request", "chat", b"\1" + b'{"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}]}], "top_logprobs": 3, "logprobs": true}')
put("serve_request", "template", b"\2" + b'{"chat_template": "{% for m in messages %}<|{{ m.role }}|>{{ m[\'content\'] | trim }}{% endfor %}"}')

GROW = "{% set a = [a, a] %}{% set b = [b, b] %}" * 30
LOOP = "{% for i in range(9999) %}{% for j in range(9999) %}BODY{% endfor %}{% endfor %}"
for name, template in {
    "attributes": "{{ text" + ".x" * 5000 + " }}",
    "branches": "{% if 0 %}" + "{% elif 0 %}" * 2000 + "{% endif %}",
    "captured": LOOP.replace("BODY", "{% set x %}{{ 'x' * 100000 }}{% endset %}"),
    "centre": "{{ 'x'|center(1000000000) }}{{ 'x'.center(1000000000) }}",
    "chat": "{% for m in messages %}<|{{ m.role }}|>{% generation %}{{ m['content'] | trim }}{% endgeneration %}{% endfor %}",
    "conditions": "{{ " + "1 if 0 else " * 2000 + "1 }}",
    "doubled-list": "{% set s = namespace(x=[1]) %}" + LOOP.replace("BODY", "{% set s.x = (s.x + s.x)|list %}"),
    "doubled-text": "{% set s = namespace(x='x') %}" + LOOP.replace("BODY", "{% set s.x = s.x ~ s.x %}"),
    "filters": "{{ text" + "|upper" * 5000 + " }}",
    "format": "{{ '%1000000000d'|format(1) }}{{ '{:1000000000}'.format(1) }}",
    "indent": "{{ ('\n' * 100000)|indent(1000000) }}",
    "joined": "{% set s = namespace(x='xx') %}" + LOOP.replace("BODY", "{% set s.x = [s.x, s.x]|join(s.x) %}"),
    "lists": "{{ " + "[" * 5000 + "]" * 5000 + " }}",
    "macro": "{% macro f(x) %}{{ f([x]) }}{% endmacro %}{{ f(1) }}",
    "minus": "{{ " + "-" * 5000 + "1 }}",
    "nested-values": "{% set s = namespace(x=[]) %}" + LOOP.replace("BODY", "{% set s.x = [s.x] %}") + "{{ s.x }}",
    "output": LOOP.replace("BODY", "{{ 'x' * 100000 }}"),
    "parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "powers": "{{ 1" + "**1" * 5000 + " }}",
    "range": "{{ range(1000000000000)|list }}{{ range(9)|slice(1000000000)|list }}{{ range(9)|batch(1000000000, 'x')|list }}",
    "recursive": "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "repeated": "{{ 'x' * 1000000000 }}",
    "replaced": "{% set x = 'x' * 100000 %}{{ x|replace('x', x) }}{{ x.replace('', x) }}",
    "statements": "{% if 1 %}" * 2000 + "{% endif %}" * 2000,
    "sum": "{{ 1" + "+1" * 30000 + " }}",
    "format-precision": "{{ '{:.999999999f}'.format(1.0) }}",
    "namespace-in-itself": "{% set n = namespace() %}{% set n.n = n %}{{ n }}",
    "namespace-json": "{% set n = namespace() %}{% set n.n = [n] %}{{ n|tojson(indent=1000000000) }}",
    "repeated-list": "{{ ['a' * 1000000] * 1000000 }}{{ (['a' * 1000000] * 1000000)|join }}",
    "shared-blocks": "{% with a = [a, a] %}" * 30 + "{{ [a] == 1 }}" + "{% endwith %}" * 30,
    "shared-compared": "{% set a = [] %}{% set b = [] %}" + GROW + "{{ a == b }}",
    "shared-loops": "{% for a in [[a, a]] %}" * 30 + "{{ a == 1 }}" + "{% endfor %}" * 30,
    "shared-macros": "{% macro f(a) %}{{ f([a, a]) }}{% endmacro %}{{ f([]) }}",
    "shared-printed": "{% set a = [] %}" + "{% set a = [a, a] %}" * 30 + "{{ a }}",
}.items():
    put("template", name, template)
put("task_file", "choices", """task: t
dataset_path: json
dataset_kwargs: {data_files: {test: documents.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "Q: {{question.strip()}}\nA:"
doc_to_choice: choices
doc_to_target: label
metric_list:
  - {metric: acc}
  - {metric: acc_norm, aggregation: mean, higher_is_better: true}
metadata: {version: 1.0}
""")
put("task_file", "generate", """task: g
dataset_path: json
dataset_kwargs: {data_files: {test: documents.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{% if question %}{{question}}{% else %}?{% endif %}"
doc_to_target: "{{answer}}"
generation_kwargs: &k {until: ["\\n"], do_sample: false}
filter_list:
  - name: strict
    filter: [{function: regex, regex_pattern: "(\\\\d+)"}, {function: take_first}]
metric_list: [{metric: exact_match, ignore_case: yes}]
""")
put("corpus_files", "tombstones", '{"format": "bessemer-tombstones", "version": 1, "documents": [{"id": "a/b", "reason": "asked"}]}')
put("evaluation_set", "lines", '\0{"question": "What is 2 + 2?", "answer": "4", "choices": ["3", "4"]}\n')

letters = [chr(c) for c in (*range(33, 127), *range(161, 173), *range(174, 256))]
letters += [chr(256 + i) for i in range(256 - len(letters))]
vocab = {letter: i for i, letter in enumerate(letters)} | {"th": 256, "the": 257, "<|endoftext|>": 258}
put("tokenizer_json", "gpt2", json.dumps({
    "version": "1.0",
    "added_tokens": [{"id": 258, "content": "<|endoftext|>", "single_word": False, "lstrip": False, "rstrip": False,
                      "normalized": False, "special": True}],
    "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "post_processor": None,
    "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
              "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab,
              "merges": [["t", "h"], ["th", "e"]]},
}, ensure_ascii=False))
put("tokenizer_text", "prose", "The quick brown fox, the lazy dog; 12345 \u00e9\u4e2d\n\n  the end.\n" * 3)
put("score_files", "unigrams", "word,count\nsome,12\nwords,7\n")

tar = io.BytesIO()
with tarfile.open(fileobj=tar, mode="w", format=tarfile.PAX_FORMAT) as archive:
    for name, data in [("a/000.jpg", b"\xff\xd8\xff"), ("a/000.txt", b"a caption"), ("b" * 120 + "/1.json", b"{}"), ("../up.txt", b"x")]:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
put("tar", "pax", tar.getvalue())

put("predicate", "both", 'lang == "en" && (quality > 0.3 || !is_null(text)) && bytes <= 1e6')
put("predicate", "text", 'text contains "steel" && source != "a" || false')
put("perturbed_text", "words", "He said it's 12,000.5 to Mon. the 3rd, mother-in-law: \u010capek isn't  there; she is.\n")
put("rules_text", "addresses", "Mail jane@example.org, 8.8.8.8 or 2600:1f18::1, +49 30 901820; 4111 1111 1111 1111; AKIAIOSFODNN7EXAMPLQ.\n- a\n- b ...\n{ lorem ipsum }")
header = json.dumps({"__metadata__": {"format": "pt"}, "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
                     "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]}}).encode()
safetensors = struct.pack("<Q", len(header)) + header + bytes(32)
put("safetensors", "two", safetensors)
# Bodies of manifests: the target adds their checksum.
for name, files in [
    ("manifest_slices", [{"name": f"rank-0000{r}-shard-00001-of-00001.safetensors", "bytes": 200, "blake3": "ab" * 32, "chunk_bytes": 1048576} for r in range(2)]),
    ("manifest_chunks", [{"name": "a", "bytes": 2500, "blake3": "ab" * 32, "chunk_bytes": 1024, "chunks": ["cd" * 32] * 3}, {"name": "b", "bytes": 200, "blake3": "ab" * 32}]),
]:
    slices = [{"file": f, "offset": 136, "bytes": 32, "start": [0, 2 * f], "shape": [4, 2]} for f in range(2)]
    whole = {"file": 1, "offset": 168, "bytes": 4, "start": [], "shape": []}
    manifest = {"format": "bessemer-checkpoint", "version": 2, "writer": "w", "step": 7, "tokens": 8, "tokenizer": None, "recipe": "", "state": {"a": [1]},
                "previous": {"step": 6, "checksum": "ef" * 32}, "files": files,
                "tensors": [{"name": "w", "dtype": "f32", "shape": [4, 4], "slices": slices}, {"name": "s", "dtype": "f32", "shape": [], "slices": [whole]}]}
    put("safetensors", name, json.dumps(manifest)[:-1])
llama = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "intermediate_size": 16,
         "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 32,
         "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "hidden_act": "silu", "tie_word_embeddings": True}
gpt2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 64,
        "vocab_size": 32, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}
put("hugging_face", "llama", json.dumps(llama).encode() + b"\0" + safetensors)
put("hugging_face", "gpt2", json.dumps(gpt2).encode() + b"\0" + safetensors)
put("run_files", "metrics", '{"type":"step","version":1,"step":1,"loss":2.5}\n')
put("run_files", "trace", '{"traceEvents":[{"name":"F0","ph":"X","ts":1,"dur":2,"pid":0,"tid":0,"args":{}}]}')
put("recipe", "set", '#--set train.steps=3\n[corpus]\nsource = "embedded"\n[train]\nsteps = 10\n')
put("schedule", "v", """bessemer-schedule 1
name a V of two ranks
micro-batches 2
route 0 1 1.1 0.1
rank 0: F0 F1 F0.1 I0.1 F1.1 I1.1 I0 I1 W0.1 W1.1 W0 W1
rank 1: F0 F0.1 F1 F1.1 I0.1 I0 I1.1 I1 W0.1 W0 W1.1 W1
""")

put("latex", "paper", r"""\documentclass{article}\newcommand{\loss}{\mathcal{L}}\def\a{\loss\loss}\title{Of \emph{Steel}}
\begin{document}\begin{abstract}Cheap~\cite{b} steel.\end{abstract}\section*{One}\input{b} % comment
\begin{equation}\a = 1\end{equation}\begin{figure}[t]\caption[x]{A $x_1$.}\end{figure}\verb|{| \'{e} \\[2pt]\footnote{n}
\begin{itemize}\item x\end{itemize}\begin{verbatim}%{\end{verbatim}\end{document}%%FILEtext ``of'' b --- \iffalse c \fi""")
put("jats", "article", """<?xml version="1.0"?><!DOCTYPE article [<!ENTITY x "y">]><article><front><article-title>A &amp; B</article-title>
<abstract><p>c&nbsp;&#8212; &x;</p></abstract></front><body><sec><title>T</title><p>a <inline-formula><alternatives><tex-math>$x$</tex-math>
<mml:math/></alternatives></inline-formula></p><list><list-item><p>i</p></list-item></list><fig><caption><p>f</p></caption></fig><![CDATA[<]]></sec></body>
<back><ref-list/></back></article>""")
put("wikitext", "page", """<page><title>T</title><ns>0</ns><id>1</id><redirect title="x"/><revision><text>{{a|{{b}}}} ''x'' [[c|d]] &lt;ref&gt;</text></revision></page>""")
put("wikitext", "text", """{{Info|a={{b}}}}\n'''A''' [[b|c [[d]]]] [http://e f]<ref name="x">y</ref><!-- z -->\n== H ==\n* i\n{|\n| c\n|}\n[[File:x|a]] <math>x</math> __TOC__ &amp;""")
put("wikitext", "post", """<row Id="4" PostTypeId="1" AcceptedAnswerId="7" Score="-3" Title="A" Body="&lt;p&gt;x" />""")

# Sources of papers, dumps and chats: the first byte says which (fuzz/src/targets/corpus_sources.rs).
TEX = rb"\documentclass{article}\title{A}\begin{document}\section{B}\input{c} $x$ \end{document}"
POSTS = b"""<posts>
<row Id="1" PostTypeId="1" AcceptedAnswerId="2" Title="A" Body="&lt;p&gt;x" />
<row Id="2" PostTypeId="2" ParentId="1" Score="1" Body="y" />
</posts>"""
archive = io.BytesIO()
with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as tar:
    for name, data in [("a/main.tex", TEX), ("a/c.tex", b"more"), ("b.gz", gzip.compress(TEX, mtime=0)), ("c.pdf", b"%PDF-")]:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
WIKI = b"<mediawiki><siteinfo/><page><title>A</title><ns>0</ns><revision><text>'''A''' {{b}} [[c|d]]</text></revision></page></mediawiki>"
for number, (name, data) in enumerate([
    ("tex", TEX), ("nxml", b"<article><body><p>a</p></body></article>"), ("tar", archive.getvalue()),
    ("tar-gz", gzip.compress(archive.getvalue(), mtime=0)), ("gz", gzip.compress(TEX, mtime=0)), ("wiki", WIKI), ("wiki-bz2", bz2.compress(WIKI)),
    ("posts", POSTS), ("chats", b'{"messages": [{"role": "user", "content": [{"text": "a"}]}]}\n{"conversations": [{"from": "gpt", "value": "b"}]}\n'),
]):
    put("corpus_sources", name, bytes([number]) + data)

# Two jobs join, values of both, one leaves.
join = lambda job, worker, address: struct.pack("<BBBBIII", 0, job, address, 0, 2, 2, 4)
values = lambda job, address, slot, phase: struct.pack("<BBBBIII", 2, job, address, 8, slot, phase, 1)
put("switch", "jobs", join(0, 0, 0) + join(0, 1, 1) + join(1, 0, 2) + values(0, 0, 0, 0) + values(0, 1, 0, 0) + values(1, 2, 1, 1) + struct.pack("<BBBBIII", 5, 0, 0, 0, 0, 0, 0))
