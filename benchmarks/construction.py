"""From tables to a partitioned directory in bounded memory, beside GraphBolt's and DGL's own.

usage: python -m benchmarks.construction --out DIR [--edges 100000000] [--memory 2G]
           [--sources parquet,csv,texts,graphbolt] [--methods random,stream,ray:2,dgl-random]
           [--servers 4]

Tables of nodes and edges with integer ids are made, in Parquet and in CSV (20 edges a node,
destinations skewed, no features), and Parquet of a fifth as many edges whose ids are texts in no
order, which are joined. ``hopper dataset import`` reads each under ``--memory-limit``. GraphBolt
prepares the same edges as its ``OnDiskDataset`` of NumPy arrays, in the environment that
peers/make_environment.sh makes. The first graph is then divided by every method as partitioners.py
does, DGL's without a limit. Lines have seconds, the most MiB of all processes at once, those that
are not of files (``own MiB``), and the MiB that were written.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.partitioners import compare
from benchmarks.peers.distdgl import environment_of
from benchmarks.processes import HOPPER, run_measured
from benchmarks.rounds import Results, make_parser, positive, take_turns

BLOCK = 1 << 20
DEGREE = 20
_GRAPHBOLT = Path(__file__).parent / "peers" / "graphbolt_dataset.py"


def iter_edges(edges: int, generator: np.random.Generator) -> Iterator[tuple[Any, Any]]:
    """Iterate over sources and skewed destinations, in blocks."""
    nodes = max(1, edges // DEGREE)
    for start in range(0, edges, BLOCK):
        count = min(BLOCK, edges - start)
        src = generator.integers(0, nodes, count)
        yield src, (generator.random(count) ** 2 * nodes).astype(np.int64)


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
        for src, dst in iter_edges(edges, generator):
            table.write_table(pyarrow.table({"src": names.take(src), "dst": names.take(dst)}))


def make_dataset(folder: Path, edges: int) -> None:
    """Write the same edges as a dataset of GraphBolt."""
    folder.mkdir(parents=True)
    ends = np.lib.format.open_memmap(folder / "edges.npy", "w+", np.int64, (2, edges))
    first = 0
    for block in iter_edges(edges, np.random.default_rng(0)):
        ends[:, first : first + len(block[0])] = block
        first += len(block[0])
    ends.flush()
    metadata = {
        "dataset_name": "construction",
        "graph": {
            "nodes": [{"num": max(1, edges // DEGREE)}],
            "edges": [{"format": "numpy", "path": "edges.npy"}],
        },
        "feature_data": [],
        "tasks": [],
    }
    # What is JSON is YAML too.
    (folder / "metadata.yaml").write_text(json.dumps(metadata))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--edges", type=positive, default=100_000_000)
    parser.add_argument("--memory", default="2G", help="--memory-limit of all but DGL")
    parser.add_argument("--sources", default="parquet,csv,texts", help="what is made and imported")
    parser.add_argument("--methods", default="random,stream", help="of partitioners.py")
    parser.add_argument("--servers", type=positive, default=4)
    options = parser.parse_args(arguments)
    results, limit = Results("construction", options.out), ["--memory-limit", options.memory]

    def read(name: str, graph: Path) -> dict[str, float]:
        source, texts = work / name, name == "texts"
        kind = "parquet" if texts else name
        command = [*HOPPER, "dataset", "import", kind, str(source), "--out", str(graph), *limit]
        if name == "graphbolt":
            graph = source / "preprocessed"
            command = [str(environment_of(name)), str(_GRAPHBOLT), str(source)]
        if not source.exists():
            if name == "graphbolt":
                make_dataset(source, options.edges)
            else:
                make_tables(source, kind, options.edges // (5 if texts else 1), texts=texts)
        shutil.rmtree(graph, ignore_errors=True)
        measured = run_measured(command, work / "import.log")
        sizes = [file.stat().st_size for file in graph.rglob("*") if file.is_file()]
        return measured | {"written MiB": sum(sizes) / 2**20}

    with tempfile.TemporaryDirectory(dir=options.out) as folder:
        work = Path(folder)
        graph = work / f"{options.edges} edges in {options.memory}"
        sources = options.sources.split(",")
        sides = {name: (lambda _, name=name: read(name, work / "graph")) for name in sources}
        results.add(f"import, {graph.name}", take_turns(sides, options.rounds, warm_up=0))
        read("parquet", graph)
        for name in ("graph", *sources):
            shutil.rmtree(work / name, ignore_errors=True)
        words = ["--locality-roots", "0", *limit]
        compare(results, graph, options.servers, options.methods.split(","), words, options.rounds,
                work)  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
