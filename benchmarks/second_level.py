"""A server's nodes dealt to its ranks in turn, against by locality.

``python benchmarks/second_level.py --graph GRAPH --out DIR sage.toml`` divides a graph over hosts,
once for each number of ranks a host with a second level, and compares every engine on both with
``hopper bench ab``, in turns. ``summary.jsonl`` has a line for each: input rows that a rank reads
in an iteration, each once a pass, those that are fetched among them, seconds, and bytes by cause.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from hopper.graph.directory import GraphDirectory
from hopper.partition import partition_graph

ENGINES = "model_centric,hop,zero_hop,cooperative,locality,naive"


def divide(graph: GraphDirectory, folder: Path, hosts: int, ranks: int) -> Path:
    """The graph over the hosts, with a second level for so many ranks; made once."""
    out = folder / ("in-turn" if ranks == 1 else f"by-locality-{ranks}")
    if not out.exists():
        partition_graph(graph, out, hosts, ranks_per_server=ranks)
    return out


def compare(options: argparse.Namespace, parts: dict[int, Path], ranks: int) -> Path:
    """Measure every engine on both placements; the folder of the results.

    Raises
    ------
    CalledProcessError: the comparison failed, or found gradients that differ.
    """
    contenders = options.engines.split(",")
    if ranks > 1:
        contenders += [f"{name}:partitioned={parts[ranks]}" for name in contenders]
    out: Path = options.out / f"ranks-{ranks}"
    command = [sys.executable, "-m", "hopper.cli", "bench", "ab", str(options.config)]
    command += ["--engines", ",".join(contenders), "--out", str(out)]
    command += ["--rounds", str(options.rounds)]
    if options.link_rate != "loopback":
        command += ["--emulate", str(options.hosts), "--link-rate", options.link_rate]
    command += [f"--data.partitioned={parts[1]}", f"--cluster.ranks_per_server={ranks}"]
    subprocess.run(command + options.overrides, check=True)
    return out


def summarise(results: dict[str, Any], ranks: int, hosts: int) -> Iterator[dict[str, Any]]:
    """A line for each engine and placement: means over rounds and epochs but the first, where there
    are several."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for run in results["runs"]:
        epochs = run["epochs"]
        runs.setdefault(run["label"], []).extend(epochs[1:] or epochs)
    for label, epochs in runs.items():
        turns = hosts * ranks
        rows = {
            kind: fmean(each["rows"][kind] / each["iterations"] / turns for each in epochs)
            for kind in ("local", "remote_unique")
        }
        yield {
            "contender": label,
            "ranks_per_host": ranks,
            "rows_a_rank": round(sum(rows.values()), 1),
            "fetched_a_rank": round(rows["remote_unique"], 1),
            "epoch_seconds": round(fmean(each["seconds"] for each in epochs), 4),
            "bytes": {
                cause: round(fmean(each["bytes"][cause] for each in epochs))
                for cause in epochs[0]["bytes"]
            },
        }


def parse() -> tuple[argparse.Namespace, list[str]]:
    """The options, and what overrides keys of the configuration."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--graph", type=Path, required=True, help="graph directory")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks", default="1,2,4", help="of a host, one after the other")
    parser.add_argument("--engines", default=ENGINES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--link-rate", default="1gbit", help="loopback: no emulated hosts")
    return parser.parse_known_args()


def main() -> int:
    """The command line."""
    options, options.overrides = parse()
    graph = GraphDirectory.open(options.graph)
    options.out.mkdir(parents=True)
    numbers = [int(each) for each in options.ranks.split(",")]
    parts = {each: divide(graph, options.out, options.hosts, each) for each in {1, *numbers}}
    with (options.out / "summary.jsonl").open("w") as summary:
        for ranks in numbers:
            folder = compare(options, parts, ranks)
            results = json.loads((folder / "results.json").read_text())
            for line in summarise(results, ranks, options.hosts):
                print(json.dumps(line), file=summary, flush=True)
                print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
