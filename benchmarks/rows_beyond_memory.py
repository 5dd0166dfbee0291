"""Rows of a mapped table that is larger than memory: as the kernel reads them, and each alone.

usage: python benchmarks/rows_beyond_memory.py --out DIR [--work DIR] [--rows 1000000]
[--memory 800M] [--rounds 5]

A table of float32 [rows, 600] lies in a file. A process in a cgroup that holds it, and the page
cache, to ``--memory`` reads 1,000 rows at a time, anywhere, for some seconds: mapped as it comes,
and as :func:`cache_server.mapped_tables.read_rows_alone` has it, which features, and rows that
feature servers send, are read by where memory does not hold them. Both take turns, in a new process
each.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console

from cache_server.mapped_tables import read_rows_alone
from hopper.bench.emulate.limits import bound_hosts, remove_limits
from hopper.bench.machine import commit, machine, tell_machine, versions
from hopper.bench.results import format_result
from hopper.bench.statistics import paired_ratio
from hopper.config.bounds import parse_size
from hopper.whole_files import write_text

WIDTH, AT_ONCE, SECONDS = 600, 1000, 8.0
SIDES = ("as mapped", "rows alone")


def make_table(file: Path, rows: int) -> None:
    """A table of ones."""
    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    table = np.lib.format.open_memmap(file, "w+", np.float32, (rows, WIDTH))
    for first in range(0, rows, 50_000):
        table[first : first + 50_000] = 1.0
    table.flush()


def forget(file: Path) -> None:
    """Have nothing of a file in memory, which whoever wrote it would have paid for."""
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(file: Path, side: str, seed: int) -> float:
    """Rows a second."""
    table = np.load(file, mmap_mode="r", allow_pickle=False)
    if side == SIDES[1] and not read_rows_alone(table):
        raise SystemExit(f"{file}: fits into memory; expected --rows larger than --memory")
    generator, begun, count = np.random.default_rng(seed), time.monotonic(), 0
    while time.monotonic() - begun < SECONDS:
        np.take(table, generator.integers(0, len(table), AT_ONCE), axis=0)
        count += AT_ONCE
    return count / (time.monotonic() - begun)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Rows a second by side and round."""
    memory, file = parse_size(options.memory, "--memory"), options.work / "rows.npy"
    make_table(file, options.rows)
    ((group,),) = bound_hosts(1, None, memory)
    rates: dict[str, list[float]] = {side: [] for side in SIDES}
    try:
        for number in range(options.rounds):
            for side in SIDES if number % 2 else SIDES[::-1]:
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
    ratio = paired_ratio(per_row[SIDES[0]], per_row[SIDES[1]])
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
        "times_faster": {"mean": ratio.mean, "low": ratio.low, "high": ratio.high},
    }


def page(result: dict[str, Any]) -> str:
    """What is shown of a result, in Markdown."""
    faster = result["times_faster"]
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
        "| how | rows a second, median |",
        "|---|---:|",
    ]
    lines += [f"| {s} | {np.median(rates):,.0f} |" for s, rates in result["rows_a_second"].items()]
    told = f"{faster['mean']:.1f} ({faster['low']:.1f} to {faster['high']:.1f})"
    return "\n".join([*lines, "", f"Rows alone: {told} times as many.", ""])


def draw(result: dict[str, Any], file: Path) -> None:
    """Medians as bars, on a logarithmic axis."""
    figure = Figure((7, 1.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    medians = {side: float(np.median(own)) for side, own in result["rows_a_second"].items()}
    axes.barh(list(medians)[::-1], list(medians.values())[::-1], color="tab:blue")
    axes.set_xscale("log")
    axes.set_xlabel("rows a second (logarithmic)")
    figure.savefig(file, dpi=110)


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
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
