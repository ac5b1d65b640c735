"""Makes blog articles with themes that others wrote: collect_articles.py OUT WORK

The articles are sections of Debian's FAQ and Debian's founding texts (Debian package doc-debian), as Markdown: paragraphs, lists and
headings. Five site generators put each of them into the pages of 15 themes, with whatever these show around an article: menus,
lists of recent articles, tags and archives, author boxes, neighbours, licences, links to share. The gold is the text that was handed to the
generator, without the article's title. Every theme gets the same articles; `nameless` holds the same pages without
classes, identifiers and roles (collect_manuals.py). WORK holds what is installed; a second call uses it again.

Needs node, npm, jekyll with minima (apt-get install jekyll doc-debian), and in this Python: lxml, pelican, nikola, markdown, mkdocs-material.
"""
import glob, gzip, hashlib, json, os, re, shutil, subprocess, sys
from lxml import html as H
from collect_manuals import nameless

HEXO = "landscape next butterfly fluid redefine keep icarus stellar volantis kratos-rebirth".split()
RENDERERS = "hexo hexo-renderer-marked hexo-renderer-ejs hexo-renderer-pug hexo-renderer-stylus hexo-renderer-inferno " \
    "hexo-generator-index hexo-generator-archive hexo-generator-category hexo-generator-tag hexo-component-inferno inferno inferno-create-element"
ARTICLES = 40


def clean(text):
    # Characters that Markdown and templates would read as markup.
    return re.sub(r"\s+", " ", re.sub(r"[<>*_`\[\]{}|\\#~]", "", text)).strip()


def articles():
    """(title, blocks): a block is a kind (p, li, h) and its text."""
    found = []
    for path in sorted(glob.glob("/usr/share/doc/debian/FAQ/*.en.html")):
        for section in H.parse(path).getroot().xpath("//div[@class='section']"):
            heads = section.xpath("./div[@class='titlepage']//h2|./div[@class='titlepage']//h3")
            blocks = [("li" if e.getparent().tag == "li" else "h" if e.tag in ("h3", "h4") else "p", clean(e.text_content()))
                      for e in section.xpath(".//p|.//h3[not(ancestor::div[@class='titlepage'][1]/parent::*[@class='section'][1]=.)]")]
            if heads:
                found.append((clean(heads[0].text_content()), blocks))
    for path in sorted(glob.glob("/usr/share/doc/debian/*.gz")):
        if re.search(r"\.\d\.", path):  # Earlier versions of the same text.
            continue
        parts = [clean(p) for p in re.split(r"\n\s*\n", gzip.open(path, "rt", errors="replace").read())]
        found.append((parts[0][:80], [("h" if len(p) < 40 and p[-1:] not in ".:," else "p", p) for p in parts[1:60] if p]))
    long = lambda a: sum(len(t.split()) for _, t in a[1]) >= 150
    unique = {a[0]: a for a in found if a[0] and long(a)}
    order = sorted(unique.values(), key=lambda a: hashlib.sha256(a[0].encode()).digest())
    return [(re.sub(r"^[\d.]+\s*", "", title).replace('"', "'"), blocks) for title, blocks in order[:ARTICLES]]


def letters(text):
    return "".join(c for c in text.lower() if c.isalnum())


def markdown(blocks):
    return "\n\n".join({"p": "", "li": "- ", "h": "### "}[kind] + text for kind, text in blocks if text) + "\n"


def run(*command, cwd):
    env = {**os.environ, "NODE_NO_WARNINGS": "1"}
    subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.DEVNULL, env=env, timeout=900)


def fresh(path):
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path)
    return path


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write(text)


TAGS = ["packages", "releases", "community", "history"]


def front(i, title):
    return {"title": title, "date": f"2024-{1 + i % 12:02}-{1 + i % 27:02} 09:{i:02}:00", "tags": [TAGS[i % 4], TAGS[(i + 1) % 4]],
            "author": "Robin Example"}


def hexo(work, texts):
    base = f"{work}/hexo"
    if not os.path.exists(base + "/node_modules/hexo"):
        fresh(base)
        run("npm", "init", "-y", cwd=base)
        run("npm", "install", "--silent", *RENDERERS.split(), *[f"hexo-theme-{t}" for t in HEXO], cwd=base)
    package = json.load(open(base + "/package.json"))
    write(base + "/package.json", json.dumps({**package, "hexo": {"version": "8"}}))
    fresh(base + "/source")
    for i, (title, text) in enumerate(texts):
        head = {**front(i, title), "categories": [TAGS[i % 3]]}
        write(f"{base}/source/_posts/article-{i}.md",
              "---\n" + "".join(f"{k}: {json.dumps(v)}\n" for k, v in head.items()) + f"---\n\n{text}")
    for theme in HEXO:
        write(base + "/_config.yml", "title: Notes from the archive\nsubtitle: On free software\nauthor: Robin Example\nurl: https://blog.example\n"
              f"permalink: :title/\ntheme: {theme}\npublic_dir: public-{theme}\nper_page: 10\n")
        fresh(f"{base}/public-{theme}")
        if os.path.exists(base + "/db.json"):
            os.remove(base + "/db.json")
        try:
            run("npx", "hexo", "generate", "--silent", cwd=base)
        except subprocess.CalledProcessError as error:
            print(f"hexo {theme}: {error}")
            continue
        yield "hexo_" + theme.replace("-", "_"), lambda i: f"{base}/public-{theme}/article-{i}/index.html"


def pelican(work, texts):
    base = fresh(f"{work}/pelican")
    for i, (title, text) in enumerate(texts):
        head = front(i, title)
        write(f"{base}/content/article-{i}.md", f"Title: {title}\nDate: {head['date'][:16]}\nCategory: {TAGS[i % 3]}\nTags: {', '.join(head['tags'])}\n"
              f"Slug: article-{i}\nAuthor: Robin Example\n\n{text}")
    write(base + "/pelicanconf.py", "SITENAME = 'Notes from the archive'\nSITEURL = ''\nTIMEZONE = 'UTC'\nDEFAULT_LANG = 'en'\n"
          "LINKS = (('Debian', 'https://www.debian.org/'), ('Planet', 'https://planet.debian.org/'))\n"
          "SOCIAL = (('mastodon', 'https://social.example/@robin'), ('feed', '/feed.xml'))\nDISPLAY_PAGES_ON_MENU = True\n")
    for theme in ("notmyidea", "simple"):
        run(sys.executable, "-m", "pelican", "content", "-s", "pelicanconf.py", "-t", theme, "-o", f"out-{theme}", "-q", cwd=base)
        yield f"pelican_{theme}", lambda i: f"{base}/out-{theme}/article-{i}.html"


def nikola(work, texts):
    base = f"{work}/nikola"
    shutil.rmtree(base, ignore_errors=True)
    program = os.path.dirname(sys.executable) + "/nikola"
    run(program, "init", "-q", base, cwd=work)
    shutil.rmtree(base + "/posts", ignore_errors=True)
    for i, (title, text) in enumerate(texts):
        head = front(i, title)
        meta = f".. title: {title}\n.. slug: article-{i}\n.. date: {head['date']} UTC\n.. tags: {', '.join(head['tags'])}\n.. category: {TAGS[i % 3]}\n"
        write(f"{base}/posts/article-{i}.md", f"<!--\n{meta}-->\n\n{text}")
    conf = open(base + "/conf.py").read()
    for theme in ("bootblog4", "base"):
        write(base + "/conf.py", re.sub(r'^THEME = .*', f'THEME = "{theme}"', conf, flags=re.M) + f'\nOUTPUT_FOLDER = "out-{theme}"\n')
        run(program, "build", cwd=base)
        yield f"nikola_{theme}", lambda i: f"{base}/out-{theme}/posts/article-{i}/index.html"


def jekyll(work, texts):
    base = fresh(f"{work}/jekyll")
    write(base + "/_config.yml", "title: Notes from the archive\ntheme: minima\nauthor: Robin Example\npermalink: /:slug.html\nfuture: true\n")
    for i, (title, text) in enumerate(texts):
        head = front(i, title)
        write(f"{base}/_posts/{head['date'][:10]}-article-{i}.md", f"---\nlayout: post\ntitle: {json.dumps(title)}\ntags: {json.dumps(head['tags'])}\n---\n\n{text}")
    run("jekyll", "build", "-q", cwd=base)
    yield "jekyll_minima", lambda i: f"{base}/_site/article-{i}.html"


def main(out, work):
    work = os.path.abspath(work)
    os.makedirs(work, exist_ok=True)
    chosen = articles()
    texts = [(title, markdown(blocks)) for title, blocks in chosen]
    for variant in ("named", "nameless"):
        os.makedirs(f"{out}/{variant}", exist_ok=True)
    for generator in (hexo, pelican, nikola, jekyll):
        for name, page_of in generator(work, texts):
            count = 0
            for i, (_, blocks) in enumerate(chosen):
                if not os.path.exists(page_of(i)):
                    continue
                page, gold = open(page_of(i), "rb").read(), "\n".join(text for _, text in blocks)
                # A theme that leaves part of the article to a script has no gold.
                tree = H.fromstring(page, parser=H.HTMLParser(encoding="utf-8"))
                shown = letters(tree.text_content())
                if not all(letters(text) in shown for _, text in blocks):
                    continue
                count += 1
                for variant, html in (("named", page), ("nameless", nameless(tree))):
                    open(f"{out}/{variant}/articles-{name}-{i}.html", "wb").write(html)
                    open(f"{out}/{variant}/articles-{name}-{i}.txt", "w").write(gold)
            print(f"{name:24}{count:4} pages", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
