"""From tables to a partitioned directory in bounded memory, beside DGL's partition_graph.

usage: python -m benchmarks.construction --out DIR [--edges 100000000] [--memory 2G]
           [--methods random,stream,ray:2,dgl-random] [--servers 4]

Tables of nodes and edges with integer ids are made, in Parquet and in CSV (20 edges a node,
destinations skewed, no features), and tables of a fifth as many edges whose ids are texts in no
order, which are joined. ``hopper dataset import`` reads each under ``--memory-limit``; the first
graph is then divided by every method as partitioners.py does, DGL's without a limit. Lines have
seconds, the most MiB of all processes at once, and those that are not of files (``own MiB``).
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.partitioners import compare
from benchmarks.processes import HOPPER, run_measured
from benchmarks.rounds import Results, make_parser, positive, take_turns

BLOCK = 1 << 20
DEGREE = 20
IMPORTS = ("parquet", "csv", "parquet, ids are texts")


def make_tables(folder: Path, kind: str, edges: int, *, texts: bool) -> None:
    """Write a table of nodes and one of edges, whose destinations are skewed."""
    import pyarrow
    from pyarrow import csv, parquet

    nodes, generator = max(1, edges // DEGREE), np.random.default_rng(0)
    names: Any = pyarrow.array(np.arange(nodes))
    if texts:
        names = pyarrow.array([f"node-{node}" for node in generator.permutation(nodes).tolist()])
    folder.mkdir(parents=True)

    def open_table(name: str, columns: Sequence[str]) -> Any:
        schema = pyarrow.schema([(column, names.type) for column in columns])
        file = str(folder / f"{name}.{kind}")
        return csv.CSVWriter(file, schema) if kind == "csv" else parquet.ParquetWriter(file, schema)

    with open_table("nodes", ["id"]) as table:
        table.write_table(pyarrow.table({"id": names}))
    with open_table("edges", ["src", "dst"]) as table:
        for start in range(0, edges, BLOCK):
            count = min(BLOCK, edges - start)
            src = generator.integers(0, nodes, count)
            dst = (generator.random(count) ** 2 * nodes).astype(np.int64)
            table.write_table(pyarrow.table({"src": names.take(src), "dst": names.take(dst)}))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--edges", type=positive, default=100_000_000)
    parser.add_argument("--memory", default="2G", help="--memory-limit of all but DGL")
    parser.add_argument("--methods", default="random,stream", help="of partitioners.py")
    parser.add_argument("--servers", type=positive, default=4)
    options = parser.parse_args(arguments)
    results, limit = Results("construction", options.out), ["--memory-limit", options.memory]

    def read(name: str, graph: Path) -> dict[str, float]:
        kind, tables = name.split(",")[0], work / name
        if not tables.exists():
            edges = options.edges // (5 if "texts" in name else 1)
            make_tables(tables, kind, edges, texts="texts" in name)
        command = [*HOPPER, "dataset", "import", kind, str(tables), "--out", str(graph), *limit]
        shutil.rmtree(graph, ignore_errors=True)
        return run_measured(command, work / "import.log")

    with tempfile.TemporaryDirectory(dir=options.out) as folder:
        work = Path(folder)
        graph = work / f"{options.edges} edges in {options.memory}"
        sides = {name: (lambda _, name=name: read(name, work / "graph")) for name in IMPORTS}
        results.add(f"import, {graph.name}", take_turns(sides, options.rounds, warm_up=0))
        read(IMPORTS[0], graph)
        for name in ("graph", *IMPORTS):
            shutil.rmtree(work / name)
        words = ["--locality-roots", "0", *limit]
        compare(results, graph, options.servers, options.methods.split(","), words, options.rounds,
                work)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
