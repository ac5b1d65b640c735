"""Runs the same training steps in Bessemer, PyTorch, candle and burn, in turn, and prints a table of ratios.

python compare.py --bessemer target/release/bessemer-bench --python VENV/bin/python [--candle step-candle] [--burn step-burn]

Every contestant gets the initial weights and tokens of `bessemer-bench step --dump`, so the losses must agree. Each run
stands between two probes of multiply-adds (`bessemer-bench peak`); a run whose probes are more than a few percent under
the best one of the session is tried again and, if that does not help, marked. Medians are over the steps of all kept
runs' medians; rounds go through all contestants before one comes again.
"""
import argparse
import datetime
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
# Keeps glibc from giving every large tensor back to the system.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "8589934592", "MALLOC_TRIM_THRESHOLD_": "17179869184"}
JOBS = {
    "gpt2": "--model gpt2-124m --batch 4 --seq 256",
    "baby": "--model gpt2 --layers 6 --width 384 --heads 6 --vocab 8192 --context 256 --batch 16 --seq 256",
}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bessemer", required=True)
    parser.add_argument("--python", help="a Python with torch and safetensors; PyTorch is left out without it")
    parser.add_argument("--candle", help="the step-candle program")
    parser.add_argument("--burn", help="the step-burn program")
    parser.add_argument("--jobs", default="gpt2,baby")
    parser.add_argument("--only", default="", help="only these, separated by semicolons: whole names, or parts of names")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tries", type=int, default=2, help="runs in a round, at most, until one is undisturbed")
    parser.add_argument("--minutes", type=float, default=9.0, help="no run of a later round begins after this")
    parser.add_argument("--tolerance", type=float, default=4.0, help="percent that a probe may be under the best one")
    parser.add_argument("--patience", type=float, default=10.0, help="seconds to wait before a run for the machine to be quiet")
    parser.add_argument("--out", type=pathlib.Path, help="write everything measured as JSON")
    parser.add_argument("--into", type=pathlib.Path, help="put the tables into this page, between <!-- step --> and <!-- /step -->")
    return parser.parse_args()


class Contestant:
    """A command line; `slow` ones run once, with fewer steps."""

    def __init__(self, name, kind, command, malloc=False, slow=False):
        self.name, self.kind, self.command, self.slow = name, kind, command, slow
        self.environment = MALLOC if malloc else {}
        self.runs, self.problem = [], None

    def kept(self):
        return [r for r in self.runs if r["clean"]] or self.runs


def default_engine(bessemer):
    """The engine of matrix products that the program takes if none is named."""
    tiny = "step --layers 1 --width 32 --heads 1 --vocab 64 --context 8 --batch 1 --seq 8 --steps 1 --warmup 0 --json --quiet"
    return json.loads(subprocess.run([bessemer, *tiny.split()], check=True, capture_output=True).stdout)["engine"]


def contestants(args, job, dump):
    steps = ["--steps", str(args.steps), "--warmup", "2", "--threads", str(args.threads)]
    ours = [args.bessemer, "step", *JOBS[job].split(), *steps, "--json", "--quiet"]
    found = [
        Contestant("bessemer f32", "f32", ours),
        Contestant("bessemer f32, matmul high", "reduced", [*ours, "--matmul", "high"]),
        Contestant("bessemer f32, matmul medium", "reduced", [*ours, "--matmul", "medium"]),
        Contestant("bessemer bf16 storage, matmul highest", "reduced", [*ours, "--dtype", "bf16"]),
        Contestant("bessemer bf16 storage, matmul medium", "reduced", [*ours, "--dtype", "bf16", "--matmul", "medium"]),
    ]
    if default_engine(args.bessemer) != "fma":
        # The step of a processor without a matrix unit, on this one.
        found.insert(1, Contestant("bessemer f32, engine fma", "f32", [*ours, "--engine", "fma"]))
        if "avx512_fp16" in pathlib.Path("/proc/cpuinfo").read_text():
            found.append(Contestant("bessemer f32, engine fp16", "reduced", [*ours, "--engine", "fp16"]))
    if args.python:
        torch = [args.python, str(HERE / "torch_step.py"), "--dump", dump, *steps]
        for mode in ("eager", "compile"):
            found.append(Contestant(f"torch f32 {mode}", "f32", [*torch, "--mode", mode]))
            found.append(Contestant(f"torch f32 {mode}, malloc", "f32", [*torch, "--mode", mode], malloc=True))
        for name, more in [
            ("bf16 autocast", ["--dtype", "bf16"]),
            ("matmul medium", ["--matmul", "medium"]),
            ("matmul high", ["--matmul", "high"]),
        ]:
            found.append(Contestant(f"torch {name} compile, malloc", "reduced", [*torch, "--mode", "compile", *more], malloc=True))
    for name, program in [("candle f32", args.candle), ("burn f32 (flex)", args.burn)]:
        if program:
            found.append(Contestant(name, "f32", [program, dump, "2", "1"], slow=True))
    return chosen(found, [w.strip() for w in args.only.split(";") if w.strip()])


def chosen(found, wanted):
    """Contestants of these names; what is nobody's whole name takes all whose names contain it."""
    names = {c.name for c in found}
    parts = [w for w in wanted if w not in names]
    for part in parts:
        if not any(part in name for name in names):
            sys.exit(f"--only: nobody is called {part!r}; here are: {'; '.join(sorted(names))}")
    return [c for c in found if not wanted or c.name in wanted or any(p in c.name for p in parts)]


class Machine:
    """The probe, and the best value that it has seen."""

    def __init__(self, args):
        probe = [args.bessemer, "peak", "--seconds", "0.5", "--json"]
        self.command = [*probe, "--threads", str(args.threads)]
        self.tolerance, self.patience = args.tolerance / 100, args.patience
        # Cores are taken to scale: where one is busy all the time, probes of all of them would set too low a bar.
        alone = json.loads(subprocess.run([*probe, "--threads", "1"], check=True, capture_output=True).stdout)
        self.best = 0.98 * args.threads * alone["gflops_best"]

    def probe(self):
        gflops = json.loads(subprocess.run(self.command, check=True, capture_output=True).stdout)["gflops"]
        self.best = max(self.best, gflops)
        return gflops

    def settle(self):
        """A probe from before a run: waits a while for other programs to leave the cores."""
        until = time.monotonic() + self.patience
        while True:
            gflops = self.probe()
            if self.clean([gflops]) or time.monotonic() > until:
                return gflops

    def clean(self, probes):
        return min(probes) >= (1 - self.tolerance) * self.best


def run(contestant, machine, threads):
    """One run between two probes. Returns None if the program refuses."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
    environment = {**os.environ, **{n: str(threads) for n in names}, **contestant.environment}
    before = machine.settle()
    try:
        done = subprocess.run(contestant.command, env=environment, capture_output=True, text=True, timeout=400)
    except subprocess.TimeoutExpired:
        contestant.problem = "took more than 400 s"
        return None
    if done.returncode != 0:
        contestant.problem = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return None
    text = done.stdout
    result = json.loads(text[text.index("{"):])
    result["probes"] = [before, machine.probe()]
    return result


def measure(args, job, machine, begun):
    work = tempfile.mkdtemp(prefix="bessemer-step-")
    try:
        dump = str(pathlib.Path(work) / "dump")
        first = [args.bessemer, "step", *JOBS[job].split(), "--steps", "1", "--warmup", "0", "--quiet", "--json"]
        subprocess.run([*first, "--dump", dump], check=True, capture_output=True)
        found = contestants(args, job, dump)
        for number in range(args.rounds):
            for c in found:
                late = time.monotonic() - begun > 60 * args.minutes
                if c.problem or (number > 0 and (c.slow or late)):
                    continue
                for _ in range(args.tries):
                    result = run(c, machine, args.threads)
                    if result is None:
                        print(f"{job}: {c.name}: {c.problem}", file=sys.stderr)
                        break
                    c.runs.append(result)
                    good = machine.clean(result["probes"])
                    print(
                        f"{job}: {c.name}: {result['tokens_per_s']:.0f} tokens/s, probes "
                        f"{result['probes'][0]:.0f} {result['probes'][1]:.0f}{'' if good else ' (disturbed)'}",
                        file=sys.stderr,
                    )
                    if good or c.slow or time.monotonic() - begun > 60 * args.minutes:
                        break
        return found
    finally:
        shutil.rmtree(work)


def summary(contestant):
    kept = contestant.kept()
    return {
        "name": contestant.name,
        "kind": contestant.kind,
        "tokens_per_s": statistics.median(r["tokens_per_s"] for r in kept),
        "best": max(r["tokens_per_s_best"] for r in kept),
        "rss": min(r["peak_rss_bytes"] for r in kept),
        "losses": kept[0]["losses"],
        "runs": len(contestant.runs),
        "kept": sum(r["clean"] for r in contestant.runs),
    }


def difference(a, b):
    return max(abs(x - y) for x, y in zip(a, b))


def table(job, found, args):
    """The rows of a job, with ratios to the best PyTorch in f32, and the lines that show them."""
    rows = [summary(c) for c in found if c.runs]
    if not rows:
        return rows, []
    lines = []
    torch = [r for r in rows if r["name"].startswith("torch f32")]
    rival = max(torch, key=lambda r: r["tokens_per_s"]) if torch else rows[0]
    least = min((r["rss"] for r in torch), default=rows[0]["rss"])
    lines.append(f"\n### {job}: `bessemer-bench step {JOBS[job]}`, {args.threads} threads\n")
    lines.append(f"| contestant | tokens/s, median | best | / {rival['name']} | peak RSS GB | / least of torch f32 | loss differs by | clean runs |")
    lines.append("|---|---|---|---|---|---|---|---|")
    for r in rows:
        differs = difference(r["losses"], rows[0]["losses"])
        lines.append(
            f"| {r['name']} | {r['tokens_per_s']:.0f} | {r['best']:.0f} | {r['tokens_per_s'] / rival['tokens_per_s']:.2f} "
            f"| {r['rss'] / 1e9:.2f} | {r['rss'] / least:.2f} | {differs:.1e} | {r['kept']}/{r['runs']} |"
        )
    for c in found:
        if c.problem:
            lines.append(f"\n{c.name} did not run: {c.problem}")
    return rows, lines


def replace_block(path, name, text):
    """Puts `text` between the page's comments `<!-- name -->` and `<!-- /name -->`."""
    page, begin, end = path.read_text(), f"<!-- {name} -->", f"<!-- /{name} -->"
    if begin not in page or end not in page:
        sys.exit(f"{path} has no {begin} ... {end}")
    path.write_text(page[: page.index(begin) + len(begin)] + "\n" + text.strip() + "\n" + page[page.index(end):])


def main():
    args = parse()
    begun = time.monotonic()
    machine = Machine(args)
    for _ in range(4):
        machine.probe()
    measured = {job: measure(args, job, machine, begun) for job in args.jobs.split(",")}
    # What counts as clean is known when the best probe is.
    for found in measured.values():
        for c in found:
            for r in c.runs:
                r["clean"] = machine.clean(r["probes"])
    doctor = subprocess.run([args.bessemer, "doctor", "--json"], check=True, capture_output=True).stdout
    facts = json.loads(doctor)
    lines = [
        f"{datetime.date.today()}, {facts['processor']}, {args.threads} threads, f32 multiply-adds {machine.best:.0f} GFLOP/s at best. "
        f"\"Clean runs\": those whose probes were at most {args.tolerance:g} % below it; where there is none, all runs count."
    ]
    results = {}
    for job, found in measured.items():
        results[job], more = table(job, found, args)
        lines += more
    print("\n".join(lines))
    if args.into:
        replace_block(args.into, "step", "\n".join(lines))
    if args.out:
        runs = {job: {c.name: c.runs for c in found} for job, found in measured.items()}
        args.out.write_text(json.dumps({"machine": facts, "best_probe": machine.best, "summary": results, "runs": runs}, indent=1))
    print(f"\n{(time.monotonic() - begun) / 60:.1f} minutes")


if __name__ == "__main__":
    main()
