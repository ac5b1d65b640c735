"""Writes WARC files of pages to build a corpus of: manuals that are on this machine as they are, and prose laid out as articles.

    python make_warc.py OUT FILES PAGES DOCUMENTS.jsonl [FOLDER ...]

DOCUMENTS.jsonl is what ../rules/corpus.py writes; the folders are searched for *.html below 200 kB. Half of the pages are from the folders (as
far as they go), the others are these documents, or paragraphs
of them drawn at random, in one of four layouts with menus, related links and footers. One article in eight comes
twice with some words changed, one in ten holds an e-mail address and an IP address. Every record is a gzip member of its own,
as in Common Crawl's files. The same arguments give the same bytes.
"""
import gzip
import html
import json
import os
import random
import re
import sys

out, parts, wanted, documents = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
rng = random.Random(7)

manuals = []
for root in sys.argv[5:]:
    for folder, folders, files in os.walk(root):
        folders.sort()
        manuals += [os.path.join(folder, name) for name in sorted(files)
                    if name.endswith(".html") and os.path.getsize(os.path.join(folder, name)) < 200_000]
rng.shuffle(manuals)

WORDS = "home news world science culture sport travel video podcast about contact archive subscribe help terms privacy jobs".split()


def links(number, prefix):
    items = "".join(
        f'<li class="{prefix}-item"><a href="/{prefix}/{i}" data-track="{prefix}:{i}">{rng.choice(WORDS).title()} {rng.choice(WORDS)}</a></li>'
        for i in range(number))
    return f'<ul class="{prefix}-list">{items}</ul>'


def article(text):
    paragraphs = [p for p in text.split("\n") if p.strip()]
    if rng.random() < 0.1:
        paragraphs.insert(0, f"Write to {rng.choice(WORDS)}.{rng.choice(WORDS)}@newsroom-{rng.randrange(99)}.com or to the host 81.{rng.randrange(1, 250)}.17.{rng.randrange(1, 250)}.")
    title = html.escape(" ".join(paragraphs[0].split()[:9]) if paragraphs else "Untitled")
    body = "".join(
        f"<h2>{html.escape(p)}</h2>" if len(p) < 40 and rng.random() < 0.2 else f"<p>{html.escape(p)}</p>\n" for p in paragraphs)
    layout = rng.randrange(4)
    main = [
        f'<main><article class="post"><h1>{title}</h1>{body}</article></main>',
        f'<div id="content" class="story-body"><h1>{title}</h1><div class="share">{links(5, "share")}</div>{body}</div>',
        f'<div class="wrap"><div class="col-8"><h1>{title}</h1>{body}</div></div>',
        f'<section role="main"><h1>{title}</h1><span class="byline">By a reporter</span>{body}</section>',
    ][layout]
    scripts = "<script>" + "window.dataLayer=window.dataLayer||[];function track(e){dataLayer.push({event:e,at:Date.now()})}" * rng.randrange(5, 60) + "</script>"
    return (f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{".a{margin:0;padding:0 1em}" * 100}</style>{scripts}</head>'
            f'<body><header><nav>{links(rng.randrange(8, 30), "menu")}</nav></header>{main}'
            f'<aside class="related">{links(rng.randrange(5, 25), "related")}</aside><footer>{links(12, "footer")}<p>All rights reserved.</p></footer></body></html>')


def again(text):
    words = text.split(" ")
    for _ in range(max(1, len(words) // 200)):
        words[rng.randrange(len(words))] = rng.choice(WORDS)
    return " ".join(words)


def prose(text):
    """Paragraphs of sentences: code, tables and lists are left out."""
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        words = re.sub(r"\[([^\]]*)\](\([^)]*\))?|[`*_]", r"\1", paragraph).split()
        plain = sum(bool(re.fullmatch(r"[\"'(]*[A-Za-z][A-Za-z'-]*[)\"',.;:!?]*", word)) for word in words)
        if len(words) >= 25 and plain >= 0.9 * len(words) and words[-1][-1] in ".!?":
            found.append(" ".join(words))
    return found


# An article of four is a document as it is; the others are paragraphs of prose, drawn at random.
texts, pool = [], {}
with open(documents, encoding="utf-8") as file:
    for line in file:
        text = json.loads(line)["text"]
        texts.append(text)
        pool.update(dict.fromkeys(prose(text)))
pool = list(pool)
rng.shuffle(texts)
del texts[wanted // 8:]
while len(texts) < wanted // 2:
    enough = rng.choice([100, 200, 200, 400, 400, 800, 1500])
    taken = []
    while sum(len(paragraph.split()) for paragraph in taken) < enough:
        taken.append(rng.choice(pool))
    texts.append("\n".join(taken))
rng.shuffle(texts)
pages = []
for text in texts:
    pages.append(article(text).encode())
    if rng.random() < 0.125:
        pages.append(article(again(text)).encode())
articles = pages[: wanted - min(len(manuals), wanted // 2)]
pages = list(articles)
for path in manuals:
    if len(pages) >= wanted:
        break
    with open(path, "rb") as file:
        pages.append(file.read())
rng.shuffle(pages)



def member(file, kind, fields, body):
    head = f"WARC/1.0\r\nWARC-Type: {kind}\r\n" + "".join(f"{key}: {value}\r\n" for key, value in fields)
    head += f"Content-Length: {len(body)}\r\n\r\n"
    file.write(gzip.compress(head.encode() + body + b"\r\n\r\n", 6, mtime=0))


os.makedirs(out, exist_ok=True)
stored = 0
for index in range(parts):
    with open(os.path.join(out, f"pages-{index:05d}.warc.gz"), "wb") as file:
        member(file, "warcinfo", [("WARC-Date", "2024-01-01T00:00:00Z"), ("Content-Type", "application/warc-fields")], b"software: make_warc\r\n")
        for number in range(index, len(pages), parts):
            page = pages[number]
            http = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: %d\r\n\r\n" % len(page) + page
            member(file, "response", [
                ("WARC-Target-URI", f"https://site-{number % 997}.example.org/pages/{number}.html"),
                ("WARC-Date", "2024-01-01T00:00:00Z"),
                ("WARC-Record-ID", f"<urn:uuid:00000000-0000-4000-8000-{number:012d}>"),
                ("Content-Type", "application/http; msgtype=response"),
            ], http)
        stored += file.tell()
print(f"{len(pages)} pages, {len(articles)} of them articles, {sum(map(len, pages))} bytes of HTML, {stored} bytes of WARC in {parts} files")
