"""Partitions by several methods side by side: locality, cut, balance, time and memory.

usage: python benchmarks/partitioners.py --out DIR [--servers 2,4,8] [--methods metis,stream,random]
                                         [--memory-limit SIZE] [--costs-only] [--rounds R]
                                         [PRESET:SCALE | GRAPH ...]

Presets are made in a temporary folder of --out and removed afterwards, and so is every partition.
Seconds run until everything is on the disk. With --costs-only locality is not measured, and the
methods take turns for R rounds: what dividing whole relations (method meta) is compared by.
Memory is polled every 20 ms, METIS's own process included, and split into what is the process's
own and what are pages of mapped files, which the kernel drops when memory is short. Writes
``partitioners.json``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil
from rich.console import Console
from rich.table import Table

from hopper.bench.machine import commit, machine, versions
from hopper.bench.results import format_result
from hopper.whole_files import write_text

DEFAULT = ("arxiv-like:1", "products-like:0.2", "uk-like:0.1")
_POLL = 0.02


@dataclass
class MemoryPeaks:
    """Peaks since the last phase ended, and those of every phase that has."""

    private: int = 0
    mapped: int = 0
    phases: dict[str, dict[str, float]] = field(default_factory=dict)

    def poll(self, process: psutil.Process) -> None:
        """Sample the memory of a process and of its children."""
        private = mapped = 0
        try:
            for member in [process, *process.children(recursive=True)]:
                memory = member.memory_info()
                mapped += memory.shared
                private += memory.rss - memory.shared
        except psutil.NoSuchProcess:
            return
        self.private, self.mapped = max(self.private, private), max(self.mapped, mapped)

    def close(self, line: str) -> None:
        """Store a phase, whose end the line "name: seconds s" tells."""
        name, _, seconds = line.strip().rpartition(": ")
        if name and seconds.endswith(" s"):
            self.phases[name] = {
                "seconds": float(seconds[:-2]),
                "own_mib": round(self.private / 2**20, 1),
                "mapped_mib": round(self.mapped / 2**20, 1),
            }
            self.private = self.mapped = 0


def partition(graph: Path, method: str, servers: int, out: Path, *options: str) -> dict[str, Any]:
    """Run ``hopper partition`` once and remove what it wrote.

    Raises
    ------
    RuntimeError: it failed; its last words are quoted.
    """
    command = [sys.executable, "-m", "hopper.cli", "partition", str(graph), "--servers"]
    command += [str(servers), "--method", method, "--out", str(out), "--json", *options]
    peaks, words, start = MemoryPeaks(), [], time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None

        def listen(lines: IO[bytes]) -> None:
            for line in lines:
                words.append(line.decode())
                peaks.close(words[-1])

        listener = threading.Thread(target=listen, args=(process.stderr,))
        listener.start()
        watched_process = psutil.Process(process.pid)
        while process.poll() is None:
            peaks.poll(watched_process)
            time.sleep(_POLL)
        listener.join()
        printed = process.stdout.read()
    os.sync()
    seconds = time.perf_counter() - start
    files = [file.stat() for file in out.rglob("*") if file.is_file()]
    # A hard link is not counted as a second file.
    linked = {file.stat().st_ino for file in graph.rglob("*") if file.is_file()}
    sizes = {file.st_ino: file.st_size for file in files if file.st_ino not in linked}
    shutil.rmtree(out, ignore_errors=True)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}: {words[-1:]}")
    description = json.loads(printed)
    keys = ("edge_cut", "balance", "locality", "memory_estimate_bytes", "backend")
    return {
        "method": method,
        "servers": servers,
        "seconds": round(seconds, 2),
        "own_mib": max(phase["own_mib"] for phase in peaks.phases.values()),
        "assign_seconds": assign_seconds(peaks.phases),
        "phases": peaks.phases,
        "stored_bytes": sum(file.st_size for file in files),
        "written_bytes": sum(sizes.values()),
        **{name: description.get(name) for name in keys},
    }


def prepare(name: str, folder: Path) -> Path:
    """Open the graph directory of a path, or make one of a preset and scale."""
    if Path(name).is_dir():
        return Path(name)
    preset, _, scale = name.partition(":")
    graph = folder / preset
    command = [sys.executable, "-m", "hopper.cli", "dataset", "make", preset, "--scale", scale]
    subprocess.run([*command, "--out", str(graph)], check=True, stdout=subprocess.DEVNULL)
    return graph


def assign_seconds(phases: dict[str, dict[str, float]]) -> float:
    """Return the seconds that deciding where nodes go takes, without writing and measuring."""
    overhead = ("number", "write", "measure")
    assigned = (phase["seconds"] for name, phase in phases.items() if not name.startswith(overhead))
    return round(sum(assigned), 1)


def show(results: dict[str, list[dict[str, Any]]]) -> None:
    """Print a row for each partition."""
    table = Table(title="partitions")
    headings = (
        "R_micro %",
        "R_sub %",
        "cut %",
        "nodes",
        "train",
        "edges",
        "assign s",
        "all s",
        "own MiB",
    )
    for heading in ("graph", "servers", "method", *headings):
        table.add_column(heading, justify="left" if heading in ("graph", "method") else "right")
    for graph, runs in results.items():
        for run in runs:
            locality, balance = run["locality"] or {}, run["balance"]
            table.add_row(
                graph,
                str(run["servers"]),
                run["method"],
                *(
                    f"{100 * locality[key]:.1f}" if key in locality else "-"
                    for key in ("micrograph", "subgraph")
                ),
                f"{100 * run['edge_cut']:.1f}",
                *(f"{balance[key]:.3f}" for key in ("nodes", "train", "edges")),
                f"{run['assign_seconds']:.1f}",
                f"{run['seconds']:.1f}",
                f"{run['own_mib']:.0f}",
            )
    # No column may be cut short, even if output is piped.
    Console(width=max(Console().width, 120)).print(table)


def main() -> None:
    """Measure, print a table, and write partitioners.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graphs", nargs="*", metavar="PRESET:SCALE", default=DEFAULT)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--servers", default="4")
    parser.add_argument("--methods", default="metis,stream,random")
    parser.add_argument("--memory-limit", metavar="SIZE", help="as of hopper partition")
    parser.add_argument("--costs-only", action="store_true", help="seconds and memory alone")
    parser.add_argument("--rounds", type=int, default=1, metavar="R", help="of every method")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    of_nodes = ["--memory-limit", arguments.memory_limit] if arguments.memory_limit else []
    if arguments.costs_only:
        of_nodes += ["--locality-roots", "0"]
    results: dict[str, list[dict[str, Any]]] = {}
    for name in arguments.graphs:
        with tempfile.TemporaryDirectory(dir=arguments.out) as temporary:
            graph = prepare(name, Path(temporary))
            # Paths of this machine do not belong into a result.
            results[Path(name).name] = [
                partition(
                    graph,
                    method,
                    int(servers),
                    Path(temporary) / "parts",
                    # Dividing relations measures no locality, and needs no memory that grows.
                    *([] if method == "meta" else of_nodes),
                )
                for _ in range(arguments.rounds)
                for servers in arguments.servers.split(",")
                for method in arguments.methods.split(",")
            ]
    show(results)
    report = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "versions": versions(),
        "machine": machine(),
        "graphs": results,
    }
    write_text(arguments.out / "partitioners.json", format_result(report))


if __name__ == "__main__":
    main()
