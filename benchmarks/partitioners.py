"""Partitions by several methods side by side: seconds, memory, cut, locality, bytes; DGL's too.

usage: python -m benchmarks.partitioners --out DIR [--servers 2,4,8] [--methods metis,stream,random]
           [--memory-limit SIZE] [--locality-roots N] [PRESET:SCALE | GRAPH ...]

Presets are made in a temporary folder of --out and removed afterwards, and so is every partition.
``--methods`` also knows ``meta``, ``ray:N`` (random, by tasks of Ray, N at a time; it has to write
what ``random`` does) and ``dgl-random`` and ``dgl-metis``, which are DGL's ``partition_graph``. A
cell is a graph and a number of servers. Lines have the seconds until everything is on the disk,
those of deciding where nodes go (``assign seconds``), the most MiB of all processes at once, pages
of mapped files apart (``own MiB``), and of each method the share of edges cut, the imbalance of
nodes (most over mean), R_micro, and the MiB that no hard link saves.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.processes import HOPPER, run_measured
from benchmarks.rounds import Results, make_parser, take_turns
from hopper.graph.synthesise import make
from hopper.partition.checksums import read_division

DEFAULT = ["arxiv-like:1", "products-like:0.2", "uk-like:0.1"]
BASELINE = "metis"
DGL = Path(__file__).parent / "peers" / "distdgl_partition.py"


class Partitioner:
    """Divides a graph by a method, and keeps what the last division was."""

    def __init__(
        self, graph: Path, method: str, servers: int, work: Path, words: list[str]
    ) -> None:
        self._graph, self._out, self._log = graph, work / "parts", work / "partition.log"
        self.division = ""
        self.facts: dict[str, float] = {}
        if method.startswith("dgl-"):
            self._command = [sys.executable, str(DGL), str(graph), str(self._out)]
            self._command += [method.removeprefix("dgl-"), str(servers)]
            return
        name, _, workers = method.partition(":")
        self._command = [*HOPPER, "partition", str(graph), "--out", str(self._out), "--json"]
        self._command += ["--servers", str(servers), "--method", "random" if workers else name]
        # Dividing whole relations measures no locality, and needs no memory that grows.
        self._command += words if name != "meta" else []
        self._command += ["--on", "ray", "--workers", workers] if workers else []

    def __call__(self, part: int = 0) -> dict[str, float]:
        """Divide once, and remove what was written."""
        try:
            measured = run_measured(self._command, self._log)
            os.sync()
            log = self._log.read_text()
            phases = re.findall(r"^(?!number|write|measure)\w.*: ([\d.]+) s$", log, re.MULTILINE)
            if "--json" in self._command:
                measured["assign seconds"] = sum(map(float, phases))
                self.division = read_division(self._out)
                start = log.index("\n{") + 1 if "\n{" in log else 0
                self._describe(json.JSONDecoder().raw_decode(log, start)[0])
        finally:
            shutil.rmtree(self._out, ignore_errors=True)
        return measured

    def _describe(self, description: dict[str, Any]) -> None:
        # A hard link to the graph's file takes no space.
        linked = {file.stat().st_ino for file in self._graph.rglob("*")}
        files = {file.stat() for file in self._out.rglob("*") if file.is_file()}
        self.facts = {
            "edge cut": description["edge_cut"],
            "imbalance of nodes": description["balance"]["nodes"],
            "written MiB": sum(f.st_size for f in files if f.st_ino not in linked) / 2**20,
        }
        if description.get("locality"):
            self.facts["R_micro"] = description["locality"]["micrograph"]


def compare(
    results: Results, graph: Path, servers: int, methods: Sequence[str], words: list[str],
    rounds: int, work: Path,
) -> None:  # fmt: skip
    """Measure a cell, and add it to the results."""
    sides = {method: Partitioner(graph, method, servers, work, words) for method in methods}
    measured = take_turns(sides, rounds, warm_up=0)
    against = {method: [BASELINE] for method in methods if method != BASELINE and BASELINE in sides}
    facts = [(method, *fact) for method, side in sides.items() for fact in side.facts.items()]
    results.add(f"{graph.name}, {servers} servers", measured, against, facts)
    same = {side.division for method, side in sides.items() if re.match("random|ray:", method)}
    if len(same) > 1:
        raise SystemExit("ray: its division is not that of random")


def open_graph(name: str, folder: Path) -> Path:
    """Return the graph directory of a path, or make one of a preset and scale."""
    if Path(name).is_dir():
        return Path(name)
    preset, _, scale = name.partition(":")
    make(preset, folder / name, scale=float(scale or 1))
    return folder / name


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("graphs", nargs="*", metavar="PRESET:SCALE", default=DEFAULT)
    parser.add_argument("--servers", default="4")
    parser.add_argument("--methods", default="metis,stream,random")
    parser.add_argument("--memory-limit", metavar="SIZE", help="as of hopper partition")
    parser.add_argument("--locality-roots", default="2000", metavar="N", help="0: no locality")
    options = parser.parse_args(arguments)
    results = Results("partitioners", options.out)
    words = ["--locality-roots", options.locality_roots]
    words += ["--memory-limit", options.memory_limit] if options.memory_limit else []
    for name in options.graphs:
        with tempfile.TemporaryDirectory(dir=options.out) as folder:
            graph = open_graph(name, Path(folder))
            for servers in options.servers.split(","):
                compare(results, graph, int(servers), options.methods.split(","), words,
                        options.rounds, Path(folder))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
