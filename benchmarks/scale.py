"""From tables of a billion edges to trained models and embeddings, step by step, on one machine.

usage: python -m benchmarks.scale --out DIR [--edges 1000000000] [--servers 16] [--memory 4G]
           [--host-memory 1G] [--method stream] [--dgl 20000000,100000000]

Ten edges a node, three quarters of them within communities of 10,000, and 16 features in float16.
Steps are: tables in Parquet; ``hopper dataset import`` and ``hopper partition`` under
``--memory-limit``; twenty iterations by ``zero_hop`` and by ``cooperative`` on emulated hosts of
``--host-memory`` each, joined by 1 Gbit/s, with an evaluation of 10,000 nodes; embeddings of 10,000
nodes; DGL's ``partition_graph`` on graphs of ``--dgl`` edges. Each step is written to steps.json
when it is done. After an interruption run the command again: it runs the steps that are not there,
or have failed. What later steps do not need is removed. Lines have the seconds of each step, the
MiB that all processes had at once, pages of mapped files apart (``own MiB``), and what it wrote
(``disk MiB``). Needs root.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.partitioners import DGL
from benchmarks.processes import HOPPER, bounded_group, run_measured
from benchmarks.rounds import Results, make_parser, positive
from benchmarks.train_memory import BLOCK, CLASSES, COMMUNITY, DEGREE, iter_edges
from hopper.bench.emulate.hosts import emulate_hosts
from hopper.bench.emulate.request import make_request
from hopper.bench.emulate.train import train_on_hosts
from hopper.files.whole_files import write_text
from hopper.process.signal_handlers import end_on_signals

ENGINES = ("zero_hop", "cooperative")
WIDTH, EVALUATED, PREDICTED, ROOTS = 16, 10_000, 10_000, 1000
LIMIT_SECONDS = 3600.0


def make_tables(folder: Path, edges: int) -> None:
    """Write a table of nodes and one of edges."""
    import pyarrow
    from pyarrow import parquet

    nodes, generator = edges // DEGREE, np.random.default_rng(0)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    splits = pyarrow.array(["train", "val", None])
    ends = pyarrow.schema([("src", pyarrow.int32()), ("dst", pyarrow.int32())])
    columns: dict[str, Any] = {"id": pyarrow.int32(), "label": pyarrow.int8()}
    columns |= {"split": splits.type, "x": pyarrow.list_(pyarrow.float32(), WIDTH)}
    names = pyarrow.schema(list(columns.items()))
    with parquet.ParquetWriter(folder / "nodes.parquet", names) as table:
        for first in range(0, nodes, BLOCK):
            ids = np.arange(first, min(nodes, first + BLOCK), dtype=np.int32)
            labels = (ids // COMMUNITY % CLASSES).astype(np.int8)
            rows = generator.integers(-8, 8, (ids.size, WIDTH)) / 8 + labels[:, np.newaxis] / 8
            chance = generator.random(ids.size)
            # A fiftieth of the nodes trains.
            split = np.select([chance < 0.02, chance > 1 - EVALUATED / nodes], [0, 1], 2)
            flat = pyarrow.array(rows.ravel().astype(np.float32))
            x = pyarrow.FixedSizeListArray.from_arrays(flat, WIDTH)
            values = [ids, labels, splits.take(pyarrow.array(split)), x]
            table.write_table(pyarrow.table(values, schema=names))
    with parquet.ParquetWriter(folder / "edges__node__to__node.parquet", ends) as table:
        for pair in iter_edges(nodes, generator):
            values = [end.astype(np.int32) for end in pair]
            table.write_table(pyarrow.table(values, schema=ends))


def train(parts: str, run_dir: str, engine: str, hosts: str, memory: str) -> None:
    """Train on emulated hosts; in a process of its own, whose memory is measured."""
    run = Path(run_dir)
    run.mkdir(parents=True, exist_ok=True)
    words = [f"--data.partitioned={parts}", "--model.name=sage", "--model.layers=2"]
    words += ["--model.hidden=64", "--sampler.fanouts=[10, 10]", f"--train.engine={engine}"]
    words += [f"--train.batch_size={ROOTS}", "--train.epochs=2", "--train.iterations_per_epoch=10"]
    words += ["--train.evaluate_every=2"]
    (run / "empty.toml").touch()
    with (
        end_on_signals(),
        emulate_hosts(make_request(int(hosts), "1gbit", None, memory)) as cluster,
    ):
        if not cluster.effective:
            sys.exit(f"emulated hosts: {cluster.why_not}")
        train_on_hosts(cluster, engine, run / "empty.toml", run, words, LIMIT_SECONDS)


class Steps:
    """The steps that are done, with what was measured of each."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._file = folder, folder / "steps.json"
        self.done: dict[str, dict[str, Any]] = {}
        if self._file.exists():
            self.done = json.loads(self._file.read_text())

    def run(self, name: str, call: Callable[[], dict[str, float]], wrote: str = "") -> None:
        """Run a step unless it is done; ``wrote`` is the folder whose size is told."""
        if name in self.done and "error" not in self.done[name]:
            return
        print(f"{name} ...", flush=True)
        try:
            entry: dict[str, Any] = call()
        except SystemExit as error:
            entry = {"error": str(error)}
        if wrote:
            files = (self.folder / wrote).rglob("*")
            entry["disk MiB"] = sum(f.stat().st_size for f in files if f.is_file()) / 2**20
        print(f"{name}: {entry}", flush=True)
        self.done[name] = entry
        write_text(self._file, json.dumps(self.done, indent=1))

    def remove(self, name: str) -> None:
        """Remove a folder that no later step needs."""
        shutil.rmtree(self.folder / name, ignore_errors=True)


def run_steps(options: Any, steps: Steps) -> None:
    """Run those steps that are not done."""
    work, limit = steps.folder, ["--memory-limit", options.memory]

    def call(*words: str | Path, hopper: bool = True) -> Callable[[], dict[str, float]]:
        command = [*(HOPPER if hopper else [sys.executable]), *map(str, words)]
        return lambda: run_measured(command, work / "log")

    code = "import sys; from benchmarks.scale import {0}; {0}({1})"
    tables = code.format("make_tables", f"__import__('pathlib').Path(sys.argv[1]), {options.edges}")
    steps.run("tables", call("-c", tables, work / "tables", hopper=False), "tables")
    source: list[str | Path] = [work / "tables", "--out", work / "graph"]
    steps.run("import", call("dataset", "import", "parquet", *source, *limit), "graph")
    steps.remove("tables")
    words = ["--servers", options.servers, "--topology", "partitioned", "--locality-roots", "0"]
    words += ["--feature-dtype", "float16", "--method", options.method]
    divide = call("partition", work / "graph", "--out", work / "parts", *words, *limit)
    steps.run("partition", divide, "parts")
    steps.remove("graph")
    for engine in ENGINES:
        run = work / engine
        command = [str(work / "parts"), str(run), engine, options.servers, options.host_memory]

        def train_once(run: Path = run, command: list[str] = command) -> dict[str, float]:
            shutil.rmtree(run, ignore_errors=True)
            measured = call("-c", code.format("train", "*sys.argv[1:]"), *command, hopper=False)()
            lines = (run / "epochs.jsonl").read_text().splitlines()
            return measured | {"epoch seconds": json.loads(lines[-1])["seconds"]}

        steps.run(f"train {engine}", train_once)
    np.save(work / "shard.npy", np.arange(PREDICTED))
    predicted: list[str | Path] = ["--what", "embeddings", "--nodes", work / "shard.npy"]
    predict = call("predict", work / ENGINES[0], "--out", work / "embeddings", *predicted)
    steps.run("predict", predict, "embeddings")
    for edges in map(int, filter(None, options.dgl.split(","))):
        steps.run(
            f"DGL, {edges / 10**6:g} million edges",
            partial(divide_by_dgl, work, edges),
        )


def divide_by_dgl(work: Path, edges: int) -> dict[str, float]:
    """Divide a graph of so many edges by DGL's partition_graph, with METIS."""
    make_tables(work / "tables", edges)
    graph = work / "smaller"
    shutil.rmtree(graph, ignore_errors=True)
    words = [str(work / "tables"), "--out", str(graph)]
    run_measured([*HOPPER, "dataset", "import", "parquet", *words], work / "log")
    command = [sys.executable, str(DGL), str(graph), str(work / "dgl"), "metis", "16"]
    try:
        # Without a bound the machine might run out of memory as a whole.
        with bounded_group(int(0.85 * psutil.virtual_memory().total)) as group:
            return run_measured(command, work / "log", group=group)
    finally:
        for folder in (graph, work / "tables", work / "dgl"):
            shutil.rmtree(folder, ignore_errors=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--edges", type=positive, default=1_000_000_000)
    parser.add_argument("--servers", default="16")
    parser.add_argument("--memory", default="4G", help="--memory-limit of import and partition")
    parser.add_argument("--host-memory", default="1G", help="of each emulated host")
    parser.add_argument("--method", default="stream")
    parser.add_argument("--dgl", default="20000000,100000000", metavar="EDGES,...")
    options = parser.parse_args(arguments)
    steps = Steps(options.out)
    results = Results("scale", options.out)
    run_steps(options, steps)
    cell = f"{options.edges / 10**6:g} million edges, {options.servers} servers"
    facts = [
        (step, measure, value)
        for step, entry in steps.done.items()
        for measure, value in entry.items()
        if measure != "error"
    ]
    results.add(cell, {}, facts=facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
