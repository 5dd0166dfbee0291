"""Rows of a mapped table that is larger than memory: as the kernel reads them, and as Hopper does.

usage: python benchmarks/rows_beyond_memory.py --out DIR [--work DIR] [--rows 1000000]
[--memory 800M] [--rounds 5]

A table of float32 [rows, 600] lies in a file. A process in a cgroup that holds it, and the page
cache, to ``--memory`` reads 10,000 rows at a time, anywhere, for some seconds: mapped as it comes;
each alone (:func:`cache_server.mapped_tables.read_rows_alone`); and alone and asked for ahead
(:func:`cache_server.read_ahead.read_ahead`), as features are read, and rows that feature servers
send, where memory does not hold them. Beside them, what the disk itself does: blocks of 4 KiB of
the same file, anywhere, past the page cache, by 64 threads. All take turns, in a new process each.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console

from cache_server.mapped_tables import read_rows_alone
from cache_server.read_ahead import read_ahead
from hopper.bench.emulate.limits import bound_hosts, remove_limits
from hopper.bench.machine import commit, machine, tell_machine, versions
from hopper.bench.results import format_result
from hopper.config.bounds import parse_size
from hopper.paired_ratio import paired_ratio
from hopper.palette import hex_of
from hopper.whole_files import write_text

WIDTH, AT_ONCE, SECONDS = 600, 10_000, 8.0
MAPPED, ALONE, AHEAD, DISK = SIDES = ("as mapped", "rows alone", "read ahead", "the disk, 4 KiB")
THREADS, BLOCK = 64, 4096


def make_table(file: Path, rows: int) -> None:
    """Write a table of ones."""
    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    table = np.lib.format.open_memmap(file, "w+", np.float32, (rows, WIDTH))
    for first in range(0, rows, 50_000):
        table[first : first + 50_000] = 1.0
    table.flush()


def forget(file: Path) -> None:
    """Drop a file from the page cache, so that whoever wrote it does not pay for its reads."""
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(file: Path, side: str, seed: int) -> float:
    """Read rows one by one or ahead. Return the rows a second, or blocks."""
    if side == DISK:
        return read_blocks(file, seed)
    table = np.load(file, mmap_mode="r", allow_pickle=False)
    if side != MAPPED and not read_rows_alone(table):
        raise SystemExit(f"{file}: fits into memory; expected --rows larger than --memory")
    read_ahead(np.ones((2, 2)), np.zeros(1, np.int64))  # compiled
    generator, begun, count = np.random.default_rng(seed), time.monotonic(), 0
    while time.monotonic() - begun < SECONDS:
        rows = generator.integers(0, len(table), AT_ONCE)
        # Reads that wait for each other take long, so look at the clock often.
        for chunk in np.array_split(rows, 1 if side == AHEAD else 50):
            if side == AHEAD:
                read_ahead(table, chunk)
            np.take(table, chunk, axis=0)
            count += chunk.size
            if time.monotonic() - begun >= SECONDS:
                break
    return count / (time.monotonic() - begun)


def read_blocks(file: Path, seed: int) -> float:
    """Read random blocks. Return the blocks a second."""
    disk = os.open(file, os.O_RDONLY | os.O_DIRECT)
    blocks, stop = file.stat().st_size // BLOCK, time.monotonic() + SECONDS

    def work(number: int) -> int:
        generator, count = np.random.default_rng((seed, number)), 0
        with mmap.mmap(-1, BLOCK) as memory:  # begins where a block may
            while time.monotonic() < stop:
                for block in generator.integers(0, blocks, 100).tolist():
                    os.preadv(disk, [memory], block * BLOCK)
                count += 100
        return count

    with ThreadPoolExecutor(THREADS) as pool:
        return sum(pool.map(work, range(THREADS))) / SECONDS


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return the rows a second by side and round."""
    memory, file = parse_size(options.memory, "--memory"), options.work / "rows.npy"
    make_table(file, options.rows)
    ((group,),) = bound_hosts(1, None, memory)
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    try:
        for number in range(options.rounds):
            for side in SIDES[number % 4 :] + SIDES[: number % 4]:
                forget(file)
                command = [sys.executable, __file__, "--read", str(file), side, str(number)]
                enter = f'echo $$ > "{group}/cgroup.procs" && exec "$@"'
                done = subprocess.run(
                    ["sh", "-c", enter, "sh", *command], capture_output=True, text=True, check=True
                )
                rates[side].append(float(json.loads(done.stdout)))
    finally:
        remove_limits()
        file.unlink()
    per_row = {side: [1 / rate for rate in rates[side]] for side in SIDES}
    ratios = {side: paired_ratio(per_row[side], per_row[AHEAD]) for side in SIDES if side != AHEAD}
    return {
        "schema": 1,
        "benchmark": "rows_beyond_memory",
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "rows": options.rows,
        "table_bytes": options.rows * WIDTH * 4,
        "bound_bytes": memory,
        "rounds": options.rounds,
        "rows_a_second": rates,
        "read_ahead_to": {
            side: {"mean": ratio.mean, "low": ratio.low, "high": ratio.high}
            for side, ratio in ratios.items()
        },
    }


def page(result: dict[str, Any]) -> str:
    """Write a page of the result, in Markdown."""
    lines = [
        "# Rows of a table larger than memory",
        "",
        "`python benchmarks/rows_beyond_memory.py --out DIR`",
        "",
        f"- {result['date']}, commit `{result['commit'][:12]}`; {tell_machine(result['machine'])}",
        f"- {result['rows']:,} rows of {WIDTH} float32, {result['table_bytes'] / 2**20:,.0f} MiB; "
        f"process and page cache in {result['bound_bytes'] / 2**20:,.0f} MiB; "
        f"{result['rounds']} rounds of {SECONDS:g} s, {AT_ONCE:,} rows at a time",
        "",
        "![Rows a second](picture.webp)",
        "",
        "| how | rows (blocks) a second, median | read ahead: times as many |",
        "|---|---:|---:|",
    ]
    for side, rates in result["rows_a_second"].items():
        ratio = result["read_ahead_to"].get(side)
        ratio_cell = (
            f"{ratio['mean']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})" if ratio else ""
        )
        lines.append(f"| {side} | {np.median(rates):,.0f} | {ratio_cell} |")
    pages = 1 + (WIDTH * 4 - 4) / BLOCK
    ratio_cell = f"A row lies on {pages:.2f} blocks on average, and all of them are read."
    return "\n".join([*lines, "", ratio_cell, ""])


def draw(result: dict[str, Any], file: Path) -> None:
    """Draw medians as bars, on a logarithmic axis."""
    figure = Figure((7, 1.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    medians = {side: float(np.median(rates)) for side, rates in result["rows_a_second"].items()}
    axes.barh(list(medians)[::-1], list(medians.values())[::-1], color=hex_of("blue"))
    axes.set_xscale("log")
    axes.set_xlabel("rows a second (logarithmic)")
    figure.savefig(file, dpi=110)


def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--work", type=Path, default=Path("rows-beyond-memory-work"))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--memory", default="800M", help="of the process and its page cache")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--read", nargs=3, metavar=("FILE", "SIDE", "SEED"), help="one side")
    options = parser.parse_args(argv)
    if options.read:
        file, side, seed = options.read
        print(read(Path(file), side, int(seed)))
        return 0
    if options.out is None:
        parser.error("--out: expected a directory")
    result = measure(options)
    options.out.mkdir(parents=True, exist_ok=True)
    write_text(options.out / "result.json", format_result(result))
    write_text(options.out / "README.md", page(result))
    draw(result, options.out / "picture.webp")
    options.work.rmdir()
    Console().print(page(result), markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
