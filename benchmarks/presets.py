"""What presets cost to make and to partition, and the locality that METIS finds in them.

usage: python benchmarks/presets.py --out DIR [PRESET:SCALE ...]

For every preset: time and peak memory of ``hopper dataset make``; for 2, 4 and 8 servers time, peak
memory and memory estimate of ``hopper partition``, and R_micro for two layers of fanout 10 and ten
layers of fanout 2 (HopGNN, Table 1, gives no fanout for its ten layers). Writes ``presets.json``.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hopper.bench.machine import commit, machine, versions
from hopper.bench.results import format_result
from hopper.micrograph.locality import measure_locality
from hopper.partition import PartitionedGraph
from hopper.whole_files import write_text

DEFAULT = ("arxiv-like:1", "products-like:0.2", "uk-like:0.2", "in-like:0.2", "it-like:0.005")
SERVERS = (2, 4, 8)
LAYERS = {"2L": (10, 10), "10L": (2,) * 10}
ROOTS = {"2L": 2000, "10L": 300}


def time_command(*arguments: str) -> dict[str, float]:
    """Run a ``hopper`` command. Return its seconds and the peak memory of its largest process.

    Raises
    ------
    RuntimeError: it failed; its own words are quoted.
    """
    command = [sys.executable, "-m", "hopper.cli", *arguments]
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        # wait4 tells the peak memory of the command or, if larger, of a process it waited for.
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - start
        if process.returncode != 0:
            errors.seek(0)
            words = errors.read()
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {words}")
    return {"seconds": round(seconds, 2), "peak_rss_mib": round(usage.ru_maxrss / 1024, 1)}


def measure(preset: str, scale: float, folder: Path) -> dict[str, Any]:
    """Make a preset at a scale, and measure what that takes."""
    graph = folder / "graph"
    usage = time_command("dataset", "make", preset, "--scale", str(scale), "--out", str(graph))
    row: dict[str, Any] = {
        "preset": preset,
        "scale": scale,
        "make": usage,
        "bytes_on_disk": sum(p.stat().st_size for p in graph.rglob("*.npy")),
        "partitions": [],
    }
    for servers in SERVERS:
        parts = folder / f"parts-{servers}"
        done = time_command(
            *("partition", str(graph), "--servers", str(servers), "--out", str(parts), "--json"),
            *("--locality-roots", "10"),
        )
        partitioned = PartitionedGraph.open(parts)
        description = partitioned.description
        row["partitions"].append(
            {
                "servers": servers,
                **done,
                "edge_cut": description["edge_cut"],
                "balance": description["balance"],
                "memory_estimate_mib": round(description["memory_estimate_bytes"] / 2**20, 1),
                "micrograph_locality": {
                    name: measure_locality(partitioned, fanouts, roots=ROOTS[name]).micrograph
                    for name, fanouts in LAYERS.items()
                },
            }
        )
    return row


def run(out: Path, presets: list[str]) -> None:
    """Measure every preset in a process of its own, and write ``out/presets.json``."""
    console = Console()
    rows = []
    for text in presets:
        preset, _, scale = text.partition(":")
        with tempfile.TemporaryDirectory(prefix="presets-") as folder:
            rows.append(measure(preset, float(scale or 1), Path(folder)))
        show(console, rows[-1:])
    result = {
        "schema": 1,
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "presets": rows,
    }
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "presets.json", format_result(result))


def show(console: Console, rows: list[dict[str, Any]]) -> None:
    """Print a line for each partition."""
    table = Table("preset", "make, s", "servers", "partition, s", "edge cut", *LAYERS)
    for row in rows:
        for partition in row["partitions"]:
            table.add_row(
                f"{row['preset']} {row['scale']:g}",
                f"{row['make']['seconds']:.1f}",
                str(partition["servers"]),
                f"{partition['seconds']:.1f}",
                f"{partition['edge_cut']:.1%}",
                *(f"{value:.1%}" for value in partition["micrograph_locality"].values()),
            )
    console.print(table)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("presets", nargs="*", metavar="PRESET:SCALE", default=list(DEFAULT))
    options = parser.parse_args()
    run(options.out, options.presets)
    return 0


if __name__ == "__main__":
    sys.exit(main())
