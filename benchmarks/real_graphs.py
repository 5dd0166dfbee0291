"""Accuracy on real citation and co-purchase graphs, every engine on the same seeds.

usage: python -m benchmarks.real_graphs --data DIR --out DIR [--rounds 5] [--only NAME,...]

DIR holds cora, ms_academic_cs, amazon_computers, imdb_magnn, acm_heco, aifb and mutag in the npy
layout of docs/reference/graph-directory.md. Cora uses its official split; the others 20 training
and 30 validation nodes per class drawn at random, the rest for testing, a new draw for every seed,
on the largest connected component (the protocol of Shchur et al., "Pitfalls of Graph Neural Network
Evaluation", 2018). IMDB uses the split of MAGNN, whose paper reports F1 of embeddings instead. Two
servers, METIS (raf: divided by relation), one rank each, all neighbours.

A cell is a data set and a model, a round is a seed. Lines have an engine's median test accuracy,
and what the source of the data reports (``published``).
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from benchmarks.rounds import Results, make_parser
from hopper.bench.train_process import train_in_process
from hopper.graph import GraphDirectory
from hopper.graph.importers import GraphTables, ImportOptions, RandomSplit, write_tables
from hopper.graph.importers.npy import read_npy
from hopper.graph.importers.tables import array_features
from hopper.hetero.divide import divide_graph

ENGINES = ("model_centric", "hop", "zero_hop", "cooperative")
TYPED = (*ENGINES, "raf")
EXACT = ("zero_hop", "raf")
RUN_SECONDS = 1200.0
BAG_OF_WORDS = ImportOptions(row_normalize=True)
COUNTS = ImportOptions(symmetrize=True)
SHARES = ImportOptions(symmetrize=True, row_normalize=True)
REVERSED = ImportOptions(add_reverse="all")
CROSS = ImportOptions(add_reverse="cross-type", row_normalize=True)
NO_FEATURES = {"model.hidden": 16, "model.dropout": 0.0}
PER_RELATION = NO_FEATURES | {"learnable.tables": "per_relation", "model.input_weights": False}


class Case(NamedTuple):
    """A data set and a model; ``published`` is the accuracy that its source reports, if it does."""

    data: str
    model: str
    published: float | None
    options: ImportOptions
    epochs: int
    weight_decay: float = 5e-4
    engines: tuple[str, ...] = ENGINES
    random_split: bool = False
    keys: Mapping[str, Any] = MappingProxyType({})
    """of the configuration, beside those of all cases"""

    @property
    def name(self) -> str:
        """What it is called: its data set, and tables of learnable rows that are not tied."""
        return self.data + ("-per_relation" if "learnable.tables" in self.keys else "")


CASES = (
    Case("cora", "gcn", 0.815, BAG_OF_WORDS, 100),
    Case("ms_academic_cs", "gcn", 0.911, BAG_OF_WORDS, 40, random_split=True),
    Case("ms_academic_cs", "sage", 0.913, BAG_OF_WORDS, 40, random_split=True),
    # Rounding grows over these runs; in float32 the engines end up to 0.2 points apart.
    Case("amazon_computers", "gcn", 0.826, COUNTS, 150, random_split=True,
         keys={"train.dtype": "float64"}),
    Case("amazon_computers", "sage", 0.824, SHARES, 150, 0.0, random_split=True,
         keys={"train.dtype": "float64"}),
    Case("imdb_magnn", "rgcn", None, BAG_OF_WORDS, 30, engines=TYPED),
    Case("imdb_magnn", "rgat", None, BAG_OF_WORDS, 30, engines=TYPED, keys={"model.heads": 4}),
    Case("imdb_magnn", "hgt", None, BAG_OF_WORDS, 30, engines=TYPED, keys={"model.heads": 4}),
    Case("acm_heco", "rgcn", None, CROSS, 30, engines=TYPED),
    # Without features; official splits. Published figures of R-GCN, ESWC 2018, Table 2, with its
    # widths, epochs, learning rate and L2 penalties, of rows too.
    Case("aifb", "rgcn", 0.958, REVERSED, 50, 0.0, TYPED, keys=NO_FEATURES),
    # The published one reads one-hot vectors: every relation has rows of its own, which are those
    # of its matrix. (6 / (nodes + width)) ** 0.5 bounds them at first, as Glorot's rule has it.
    Case("aifb", "rgcn", 0.958, REVERSED, 50, 0.0, EXACT,
         keys=PER_RELATION | {"learnable.deviation": 0.0166}),
    Case("mutag", "rgcn", 0.732, REVERSED, 50, engines=EXACT,
         keys=PER_RELATION | {"learnable.deviation": 0.0086}),
)  # fmt: skip


def keep_largest_component(tables: GraphTables) -> None:
    """Leave out nodes outside of the largest connected component, as the protocol of the published
    figure does (Shchur et al., section 4); the graph has one node type and no splits."""
    ((name, nodes),), ((relation, edges),) = tables.nodes.items(), tables.edges.items()
    assert nodes.features is not None
    assert nodes.labels is not None
    shape = (nodes.count, nodes.count)
    graph = coo_array((np.ones(edges.count, np.int8), (edges.src, edges.dst)), shape=shape)
    _, component = connected_components(graph, directed=False)
    kept = component == np.bincount(component).argmax()
    number, inside = np.cumsum(kept) - 1, kept[edges.src]
    features = np.concatenate([rows for _, rows in nodes.features.chunks()])[kept]
    kind, labels = nodes.labels
    tables.nodes[name] = dataclasses.replace(
        nodes,
        count=len(features),
        features=array_features(features),
        labels=(kind, labels[kept]),
    )
    src, dst = (number[ends[inside]] for ends in (edges.src, edges.dst))
    tables.edges[relation] = dataclasses.replace(edges, count=src.size, src=src, dst=dst)


def run_case(case: Case, seed: int, source: Path, work: Path) -> dict[str, float]:
    """Train a case. Return the test accuracy by engine."""
    folder = work / f"{case.name}-{case.model}-{seed}"
    split = RandomSplit.parse("random:20:30") if case.random_split else None
    options = dataclasses.replace(case.options, split=split, seed=seed)
    tables = read_npy(source / case.data)
    if case.data == "amazon_computers":
        keep_largest_component(tables)
    write_tables(tables, folder / "graph", options)
    graph = GraphDirectory.open(folder / "graph")
    divide_graph(graph, folder / "parts", 2)
    if "raf" in case.engines:
        divide_graph(graph, folder / "by-relation", 2, "meta", layers=2)
    config = folder / "config.toml"
    config.touch()
    accuracy = {}
    for engine in case.engines:
        keys: dict[str, Any] = {
            "data.partitioned": folder / ("by-relation" if engine == "raf" else "parts"),
            "sampler.fanouts": "[-1, -1]", "train.batch_size": 1024, "train.learning_rate": 0.01,
            "train.evaluate_every": 10, "model.layers": 2, "model.name": case.model,
            "model.hidden": 64, "model.dropout": 0.5,
            "train.engine": engine, "train.epochs": case.epochs, "train.seed": seed,
            "train.weight_decay": case.weight_decay, "learnable.l2": case.weight_decay,
        } | dict(case.keys)  # fmt: skip
        words = [f"--{key}={str(value).lower() if isinstance(value, bool) else value}"
                 for key, value in keys.items()]  # fmt: skip
        name = f"{case.name}, {case.model}, {engine}, seed {seed}"
        summary = train_in_process(name, config, folder / engine, words, RUN_SECONDS)
        accuracy[engine] = float(summary["scores"]["test"]["accuracy"])
    return accuracy


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", metavar="NAME,...", help="data sets; default: all")
    options = parser.parse_args(arguments)
    names = list(dict.fromkeys(case.name for case in CASES))
    only = options.only.split(",") if options.only else names
    if unknown := sorted(set(only) - set(names)):
        parser.error(f"--only: expected some of {names}, given {unknown}")
    results = Results("real-graphs", options.out)
    with tempfile.TemporaryDirectory(prefix="real-graphs-") as work:
        for case in (case for case in CASES if case.name in only):
            runs = [run_case(case, s, options.data, Path(work)) for s in range(options.rounds)]
            measured = {engine: {"test accuracy": np.array([[run[engine]] for run in runs])}
                        for engine in case.engines}  # fmt: skip
            facts = [("published", "test accuracy", case.published)] if case.published else []
            results.add(f"{case.name}, {case.model}", measured, facts=facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
