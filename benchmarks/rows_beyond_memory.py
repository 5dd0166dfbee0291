"""Rows of a mapped table that is larger than memory: as the kernel reads them, and as Hopper does.

usage: python -m benchmarks.rows_beyond_memory --out DIR [--rows 1000000] [--memory 800M]

A table of float32 [rows, 600] lies in a file. A process in a cgroup that holds it, and the page
cache, to ``--memory`` reads 10,000 rows at a time, anywhere, for some seconds: mapped as it comes;
by ``index_select`` of a mapped tensor, as PyG and GraphBolt 2.1 read features on disk; each alone
(:func:`cache_server.store.mapped_rows.read_rows_alone`); and alone and asked for ahead
(:func:`cache_server.store.read_ahead.take_ahead`), as features are read, and rows that feature
servers send, where memory does not hold them. Beside them, what the disk itself does: blocks of
4 KiB of the same file, anywhere, past the page cache, by 64 threads (a row lies on 1.6 blocks on
average). All take turns, in a new process each. A line has the microseconds of a row, or of a
block.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from benchmarks.processes import bounded_group, in_group
from benchmarks.rounds import Results, make_parser, positive, take_turns
from cache_server.store.mapped_rows import read_rows_alone
from cache_server.store.read_ahead import take_ahead
from hopper.config.bounds import parse_size

WIDTH, AT_ONCE = 600, 10_000
SIDES = ("as mapped", "a mapped tensor", "rows alone", "read ahead", "the disk, 4 KiB")
MAPPED, TENSOR, ALONE, AHEAD, DISK = SIDES
THREADS, BLOCK = 64, 4096


def make_table(file: Path, rows: int) -> None:
    """Write a table of ones."""
    table = np.lib.format.open_memmap(file, "w+", np.float32, (rows, WIDTH))
    for first in range(0, rows, 50_000):
        table[first : first + 50_000] = 1.0
    table.flush()


def forget(file: Path) -> None:
    """Drop a file from the page cache, so that whoever wrote it does not pay for its reads."""
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(file: Path, side: str, seed: int, seconds: float) -> float:
    """Read rows one by one or ahead. Return the rows a second, or blocks."""
    if side == DISK:
        return read_blocks(file, seed, seconds)
    # Nothing is written. But torch warns of arrays that cannot be.
    table = np.load(file, mmap_mode="c" if side == TENSOR else "r", allow_pickle=False)
    if side in (ALONE, AHEAD) and not read_rows_alone(table):
        raise SystemExit(f"{file}: fits into memory; expected --rows larger than --memory")
    take_ahead(np.ones((2, 2)), np.zeros(1, np.int64), np.empty((1, 2)))  # compiled
    generator, begun, count = np.random.default_rng(seed), time.monotonic(), 0
    while time.monotonic() - begun < seconds:
        rows = generator.integers(0, len(table), AT_ONCE)
        # Reads that wait for each other take long, so look at the clock often.
        for chunk in np.array_split(rows, 1 if side == AHEAD else 50):
            if side == AHEAD:
                take_ahead(table, chunk, np.empty((chunk.size, WIDTH), np.float32))
            elif side == TENSOR:
                torch.from_numpy(table).index_select(0, torch.from_numpy(chunk))
            else:
                np.take(table, chunk, axis=0)
            count += chunk.size
            if time.monotonic() - begun >= seconds:
                break
    return count / (time.monotonic() - begun)


def read_blocks(file: Path, seed: int, seconds: float) -> float:
    """Read random blocks. Return the blocks a second."""
    disk = os.open(file, os.O_RDONLY | os.O_DIRECT)
    blocks, stop = file.stat().st_size // BLOCK, time.monotonic() + seconds

    def work(number: int) -> int:
        generator, count = np.random.default_rng((seed, number)), 0
        with mmap.mmap(-1, BLOCK) as memory:  # begins where a block may
            while time.monotonic() < stop:
                for block in generator.integers(0, blocks, 100).tolist():
                    os.preadv(disk, [memory], block * BLOCK)
                count += 100
        return count

    with ThreadPoolExecutor(THREADS) as pool:
        return sum(pool.map(work, range(THREADS))) / seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--rows", type=positive, default=1_000_000)
    parser.add_argument("--memory", default="800M", help="of the process and its page cache")
    parser.add_argument("--seconds", type=float, default=8.0, help="of a side in a round")
    options = parser.parse_args(arguments)
    memory, seeds = parse_size(options.memory, "--memory"), iter(range(10**6))
    results = Results("rows-beyond-memory", options.out)

    def measure(side: str) -> dict[str, float]:
        forget(file)
        words = f"Path({str(file)!r}), {side!r}, {next(seeds)}, {options.seconds}"
        code = f"from benchmarks.rows_beyond_memory import *; print(read({words}))"
        command = in_group([sys.executable, "-c", code], group)
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        return {"microseconds": 1e6 / float(done.stdout)}

    with tempfile.TemporaryDirectory(dir=options.out) as folder, bounded_group(memory) as group:
        file = Path(folder) / "rows.npy"
        make_table(file, options.rows)
        sides = {side: (lambda _, side=side: measure(side)) for side in SIDES}
        measured = take_turns(sides, options.rounds, warm_up=0)
    cell = f"{options.rows * WIDTH * 4 / 2**20:.0f} MiB in {memory / 2**20:.0f} MiB"
    results.add(cell, measured, {AHEAD: [MAPPED, TENSOR, ALONE, DISK]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
