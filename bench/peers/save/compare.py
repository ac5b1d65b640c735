"""Saves and loads the same tensors with Bessemer, torch.save and torch.distributed.checkpoint, in one run on one disk.

python compare.py --bessemer target/release/bessemer-bench --python VENV/bin/python --dir DIR [--rounds 3] [-- --model gpt2-124m ...]

`bessemer-bench save --keep` trains a few steps and leaves a checkpoint in DIR; PYTHON (torch, safetensors) takes its tensors and saves
them with torch.save, torch.distributed.checkpoint.save and async_save. torch.save does not sync its file, so it is timed with and without;
torch.distributed.checkpoint syncs its files. Reads are cold: cached pages are dropped before each. Both parts write and read as many
plain bytes, so that rates compare although they do not run at the same moment. DIR needs room for three checkpoints.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

PIECE = 4 << 20


def evict(path):
    """Drops the cached pages of a file or of all files below a directory."""
    path = pathlib.Path(path)
    for file in [path] if path.is_file() else [f for f in path.rglob("*") if f.is_file()]:
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def timed(work):
    begun = time.perf_counter()
    result = work()
    return time.perf_counter() - begun, result


def sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def plain_write(path, total):
    piece, left = os.urandom(PIECE), total
    with open(path, "wb", buffering=0) as file:
        while left > 0:
            left -= file.write(piece[: min(left, PIECE)])
        os.fsync(file.fileno())


def plain_read(path):
    with open(path, "rb", buffering=0) as file:
        while file.read(PIECE):
            pass


def measure(checkpoint, folder, rounds):
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file

    tensors = {}
    for file in sorted(pathlib.Path(checkpoint).glob("*.safetensors")):
        tensors.update({name: tensor.clone() for name, tensor in load_file(file).items()})
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
    found = {}

    def note(name, seconds):
        found.setdefault(name, []).append(seconds)

    for _ in range(rounds):
        plain, pickle, dcp_dir, async_dir = (folder / n for n in ("plain", "torch.pt", "dcp", "dcp-async"))
        note("plain write, synced", timed(lambda: plain_write(plain, total))[0])
        evict(plain)
        note("plain read", timed(lambda: plain_read(plain))[0])
        plain.unlink()
        wrote, _ = timed(lambda: torch.save(tensors, pickle))
        synced, _ = timed(lambda: sync(pickle))
        note("torch.save, not synced", wrote)
        note("torch.save, synced", wrote + synced)
        evict(pickle)
        note("torch.load", timed(lambda: torch.load(pickle, weights_only=True))[0])
        pickle.unlink()
        note("torch.distributed.checkpoint.save", timed(lambda: dcp.save(tensors, checkpoint_id=str(dcp_dir)))[0])
        evict(dcp_dir)
        into = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
        note("torch.distributed.checkpoint.load", timed(lambda: dcp.load(into, checkpoint_id=str(dcp_dir)))[0])
        assert all(torch.equal(into[name], tensor) for name, tensor in tensors.items())
        del into
        shutil.rmtree(dcp_dir)
        begun = time.perf_counter()
        future = dcp.async_save(tensors, checkpoint_id=str(async_dir))
        note("async_save, until it returns", time.perf_counter() - begun)
        future.result()
        note("async_save, until durable", time.perf_counter() - begun)
        shutil.rmtree(async_dir)
    dist.destroy_process_group()
    print(json.dumps({"bytes": total, "torch": torch.__version__, "seconds": found}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bessemer", default="target/release/bessemer-bench")
    parser.add_argument("--python", default=sys.executable, help="a Python with torch and safetensors")
    parser.add_argument("--dir", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", nargs=2, metavar=("CHECKPOINT", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("rest", nargs="*", help="of `bessemer-bench save`")
    args = parser.parse_args()
    if args.measure:
        return measure(args.measure[0], pathlib.Path(args.measure[1]), args.rounds)
    args.dir.mkdir(parents=True, exist_ok=True)
    rounds = ["--rounds", str(args.rounds)]
    ours = [args.bessemer, "save", "--keep", "--json", "--quiet", "--dir", str(args.dir), *rounds, *args.rest]
    ours = json.loads(subprocess.run(ours, check=True, stdout=subprocess.PIPE, text=True).stdout)
    kept = pathlib.Path(ours["directory"])
    try:
        with tempfile.TemporaryDirectory(dir=args.dir) as folder:
            command = [args.python, __file__, "--measure", str(kept / "checkpoints" / "step-00000001"), folder, *rounds]
            theirs = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])
    finally:
        shutil.rmtree(kept)
    print(f"{ours['model']}\n{ours['bytes'] / 2**20:.0f} MiB; torch {theirs['torch']}; medians of {args.rounds} rounds\n")
    print(f"| what | seconds | MiB/s | of plain, same process |\n|---|---|---|---|")
    seconds, total = ours["seconds"], ours["bytes"]

    def row(name, taken, size, plain=None):
        share = f"{100 * plain / taken:.0f} %" if plain else ""
        print(f"| {name} | {taken:.3f} | {size / taken / 2**20:.0f} | {share} |")

    row("Bessemer: plain write, synced", seconds["plain_write"], total)
    row("Bessemer: plain write past the page cache, synced", seconds["direct_write"], total)
    row("Bessemer: save, training waits", seconds["save"], total, seconds["plain_write"])
    row("Bessemer: save beside training, until durable", seconds["background"], total, seconds["plain_write"])
    row("Bessemer: of it training waits", seconds["stall"], total)
    row("Bessemer: plain read", seconds["plain_read"], total)
    row("Bessemer: load, every byte verified", seconds["load"], total, seconds["plain_read"])
    medians = {name: statistics.median(all) for name, all in theirs["seconds"].items()}
    for name, taken in medians.items():
        reading = "load" in name
        plain = None if name.startswith("plain") or "returns" in name else medians["plain read" if reading else "plain write, synced"]
        row(f"PyTorch: {name}", taken, theirs["bytes"], plain)
    print(f"\nBessemer's steps beside a save: {seconds['step_beside']:.3f} s, without {seconds['step']:.3f} s ({100 * ours['slowdown']:+.1f} %, {ours['steps_beside']} steps)")


main()
