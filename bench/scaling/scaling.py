"""Tokens a second over sequence length and model size, beside what the machine allows; writes a table and a picture.

python bench/scaling/scaling.py --bessemer target/release/bessemer --csv scaling.csv --svg docs/pictures/scaling.svg
python bench/scaling/scaling.py --from-csv scaling.csv --svg docs/pictures/scaling.svg      (draws again, measures nothing)

bessemer-bench (cargo build --release -p bessemer-bench) is expected beside bessemer.

The bound is the time that a step's products take at the measured f32 multiply-add peak (attention counted as causal, half
of the square) plus the time that AdamW's 28 bytes a parameter take at the measured read bandwidth. Nothing that computes
in f32 can be faster; reduced products may.
"""
import argparse
import csv
import json
import math
import pathlib
import subprocess
import sys

SMALL = "--model gpt2 --layers 6 --width 384 --heads 6 --vocab 8192"
LENGTHS = [256, 512, 1024, 2048, 4096, 8192]
TOKENS = 8192
# Name, sizes, sequences of 256 tokens, timed steps.
SIZES = [
    ("10M", "--model gpt2 --layers 6 --width 320 --heads 5 --vocab 8192", 4, 4),
    ("30M", "--model gpt2 --layers 8 --width 512 --heads 8 --vocab 8192", 4, 4),
    ("124M", "--model gpt2-124m", 4, 3),
    ("355M", "--model gpt2-355m", 4, 2),
    ("774M", "--model gpt2-774m", 2, 1),
    ("1.1B", "--model gpt2-774m --layers 36 --width 1536 --heads 24", 2, 1),
]
FIELDS = ["sweep", "name", "matmul", "parameters", "seq", "batch", "tokens_per_s", "gflops", "peak_gflops",
          "bound_tokens_per_s", "share_of_bound", "peak_rss_bytes"]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bessemer")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--matmul", default="highest,medium")
    parser.add_argument("--sweeps", default="length,size")
    parser.add_argument("--csv", type=pathlib.Path)
    parser.add_argument("--svg", type=pathlib.Path)
    parser.add_argument("--from-csv", type=pathlib.Path)
    parser.add_argument("--into", type=pathlib.Path, help="put the tables into this page, between <!-- scaling --> and <!-- /scaling -->")
    args = parser.parse_args()
    if not args.from_csv and not args.bessemer:
        parser.error("give --bessemer to measure, or --from-csv to draw what was measured")
    return args


def jobs(sweeps):
    """(sweep, name, arguments)."""
    if "length" in sweeps:
        for t in LENGTHS:
            yield "length", str(t), f"{SMALL} --context {t} --seq {t} --batch {TOKENS // t} --warmup 1 --steps 2"
    if "size" in sweeps:
        for name, model, batch, steps in SIZES:
            yield "size", name, f"{model} --seq 256 --batch {batch} --warmup 1 --steps {steps}"


def measure(args):
    doctor = subprocess.run([args.bessemer, "doctor", "--json"], check=True, capture_output=True).stdout
    bandwidth = json.loads(doctor)["read_bytes_per_s"]
    bench = pathlib.Path(args.bessemer).with_name("bessemer-bench")
    rows = []
    for matmul in args.matmul.split(","):
        for sweep, name, text in jobs(args.sweeps.split(",")):
            command = [bench, "step", *text.split(), "--threads", str(args.threads), "--matmul", matmul]
            done = subprocess.run([*command, "--json", "--quiet"], capture_output=True, text=True)
            if done.returncode != 0:
                print(f"{sweep} {name} {matmul}: {done.stderr.strip()}", file=sys.stderr)
                continue
            rows.append(row(sweep, name, matmul, json.loads(done.stdout), bandwidth))
            r = rows[-1]
            print(f"{sweep} {name} {matmul}: {r['tokens_per_s']:.0f} tokens/s, {100 * r['share_of_bound']:.0f} % of the bound", file=sys.stderr)
    return rows


def row(sweep, name, matmul, r, bandwidth):
    tokens = r["batch"] * r["seq"]
    peak = max(r["peak_gflops"])
    full = r["gflops"] * 1e9 / r["tokens_per_s"]  # model FLOPs of a token, attention as the full square
    causal = full - 6 * r["layers"] * r["width"] * r["seq"]
    seconds = tokens * causal / (peak * 1e9) + 28 * r["parameters"] / bandwidth
    bound = tokens / seconds
    return {
        "sweep": sweep, "name": name, "matmul": matmul, "parameters": r["parameters"], "seq": r["seq"], "batch": r["batch"],
        "tokens_per_s": round(r["tokens_per_s"], 2), "gflops": round(r["gflops"], 1), "peak_gflops": round(peak, 1),
        "bound_tokens_per_s": round(bound, 2), "share_of_bound": round(r["tokens_per_s"] / bound, 3),
        "peak_rss_bytes": r["peak_rss_bytes"],
    }


def table(rows):
    lines = []
    for sweep, head in [("length", "T"), ("size", "parameters")]:
        mine = [r for r in rows if r["sweep"] == sweep]
        if not mine:
            continue
        lines.append(f"\n| {head} | batch | matmul | tokens/s | bound | % of bound | peak memory GB |\n|---|---|---|---|---|---|---|")
        for r in mine:
            lines.append(
                f"| {r['name']} | {r['batch']} x {r['seq']} | {r['matmul']} | {r['tokens_per_s']:,.0f} "
                f"| {r['bound_tokens_per_s']:,.0f} | {100 * r['share_of_bound']:.0f} | {r['peak_rss_bytes'] / 1e9:.2f} |"
            )


    return "\n".join(lines).strip()


def replace_block(path, name, text):
    """Puts `text` between the page's comments `<!-- name -->` and `<!-- /name -->`."""
    page, begin, end = path.read_text(), f"<!-- {name} -->", f"<!-- /{name} -->"
    if begin not in page or end not in page:
        sys.exit(f"{path} has no {begin} ... {end}")
    path.write_text(page[: page.index(begin) + len(begin)] + "\n" + text + "\n" + page[page.index(end):])


STYLE = """
svg{--a:#1552e5;--b:#e67503;--c:#15523f;--ink:#222;--soft:#444;--grid:#ddd;--bound:#999;--page:#fff}
@media (prefers-color-scheme:dark){svg{--a:#a0bcf6;--b:#e78329;--c:#6affe2;--ink:#e6e9ed;--soft:#9aa4af;--grid:#282e36;--bound:#777;--page:#14171b}}
.t{font:13px system-ui,sans-serif;fill:var(--soft)}.h{font:600 14px system-ui,sans-serif;fill:var(--ink)}.g{stroke:var(--grid)}
.bound{stroke:var(--bound);fill:none;stroke-width:1.5;stroke-dasharray:5 4}.page{fill:var(--page)}
.m0{stroke:var(--a);fill:none;stroke-width:2}.m1{stroke:var(--b);fill:none;stroke-width:2}.m2{stroke:var(--c);fill:none;stroke-width:2}
.d0,.c0{fill:var(--a)}.d1,.c1{fill:var(--b)}.d2,.c2{fill:var(--c)}
"""


def panel(rows, left, title, x_of, label):
    """Tokens a second over x, both logarithmic."""
    width, top, bottom = 380, 56, 330
    xs = [math.log(x_of(r)) for r in rows]
    ys = [math.log10(v) for r in rows for v in (r["tokens_per_s"], r["bound_tokens_per_s"])]
    low, high = math.floor(min(ys) * 3) / 3, math.ceil(max(ys) * 3) / 3
    span = max(max(xs) - min(xs), 1e-9)
    px = lambda r: left + 30 + (width - 70) * (math.log(x_of(r)) - min(xs)) / span
    py = lambda v: bottom - (bottom - top) * (math.log10(v) - low) / (high - low)
    out = [f'<text class="h" x="{left}" y="24">{title}</text>']
    for e in range(math.floor(low), math.ceil(high) + 1):
        for m in (1, 2, 5):
            if low <= math.log10(m * 10.0**e) <= high:
                y = py(m * 10.0**e)
                text = f"{m * 10**e:,}" if e >= 0 else f"{m * 10.0**e:g}"
                out.append(f'<line class="g" x1="{left}" x2="{left + width - 10}" y1="{y:.1f}" y2="{y:.1f}"/>')
                out.append(f'<text class="t" x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    modes = list(dict.fromkeys(r["matmul"] for r in rows))
    first = [r for r in rows if r["matmul"] == modes[0]]
    near = [b is not None and px(b) - px(a) < 44 for a, b in zip(first, [*first[1:], None])]
    for i, r in enumerate(first):
        # Two names that would touch lean away from each other.
        anchor = "end" if near[i] else "start" if i and near[i - 1] else "middle"
        x = px(r) + {"end": 11, "start": -11, "middle": 0}[anchor]
        out.append(f'<text class="t" x="{x:.1f}" y="{bottom + 20}" text-anchor="{anchor}">{r["name"]}</text>')
    out.append(f'<text class="t" x="{left + width / 2 - 5}" y="{bottom + 42}" text-anchor="middle">{label}</text>')
    line = lambda mine, key: " ".join(f"{px(r):.1f},{py(r[key]):.1f}" for r in mine)
    out.append(f'<polyline class="bound" points="{line(first, "bound_tokens_per_s")}"/>')
    for i, mode in enumerate(modes):
        mine = [r for r in rows if r["matmul"] == mode]
        out.append(f'<polyline class="m{i % 3}" points="{line(mine, "tokens_per_s")}"/>')
        for r in mine:
            x, y = px(r), py(r["tokens_per_s"])
            out.append(f'<circle class="d{i % 3}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>')
            # The first mode's figures stand under its line, the others' above theirs.
            at = y + 18 if i == 0 else y - 9
            out.append(f'<text class="t c{i % 3}" x="{x:.1f}" y="{at:.1f}" text-anchor="middle">{100 * r["share_of_bound"]:.0f}%</text>')
    return out


def draw(rows, path):
    panels = []
    if any(r["sweep"] == "length" for r in rows):
        mine = [r for r in rows if r["sweep"] == "length"]
        panels += panel(mine, 70, "tokens/s over sequence length (14M)", lambda r: r["seq"], "tokens of a sequence")
    if any(r["sweep"] == "size" for r in rows):
        mine = [r for r in rows if r["sweep"] == "size"]
        panels += panel(mine, 540, "tokens/s over model size (T = 256)", lambda r: r["parameters"], "parameters")
    modes = list(dict.fromkeys(r["matmul"] for r in rows))
    x = 70
    legend = []
    for i, mode in enumerate([*modes, "bound"]):
        kind = "bound" if mode == "bound" else f"m{i % 3}"
        text = "f32 multiply-add peak and memory bandwidth" if mode == "bound" else f"matmul {mode}"
        legend.append(f'<line class="{kind}" x1="{x}" x2="{x + 28}" y1="396" y2="396"/><text class="t" x="{x + 36}" y="400">{text}</text>')
        x += 60 + 8 * len(text)
    body = "\n".join(panels + legend)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 940 416" width="940" height="416" role="img" '
        f'aria-label="Tokens a second over sequence length and model size">\n<style>{STYLE}</style>\n'
        f'<rect class="page" width="940" height="416"/>\n{body}\n</svg>\n'
    )


def read(path):
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    words = ("sweep", "name", "matmul")
    return [{k: v if k in words else float(v) if "." in v else int(v) for k, v in r.items()} for r in rows]


def main():
    args = parse()
    rows = read(args.from_csv) if args.from_csv else measure(args)
    if not rows:
        sys.exit("nothing was measured")
    if args.csv:
        with open(args.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    print(table(rows))
    if args.into:
        picture = ""
        if args.svg:
            place = args.svg.resolve().relative_to(args.into.resolve().parent)
            picture = f"![Tokens a second over sequence length and model size, beside the bound]({place})\n\n"
        replace_block(args.into, "scaling", picture + table(rows))
    if args.svg:
        draw(rows, args.svg)


if __name__ == "__main__":
    main()
