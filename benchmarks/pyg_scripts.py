"""Scripts in PyG's idiom under Hopper's loaders, and under a sampler in memory.

usage: python -m benchmarks.pyg_scripts --data DIR --out DIR [--rounds 10] [--only NAME,...]
           [--epochs N]

DIR holds amazon_computers, cora, imdb_magnn and acm_heco in the npy layout of
docs/reference/graph-directory.md. Each script runs twice a seed; what differs is its loader. The
one in memory draws by the same definition, uniformly and once a node, with NumPy's generator. A
cell is a script, a round is a seed. Lines have the accuracy on test nodes, or of links the share of
test links that score higher than a random pair. Each seed's scores are kept in a file in OUT/cells,
with machine, commit and seconds of processor time; the same command goes on where it stopped.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    dropout,
    layer_norm,
)
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import HGTConv, SAGEConv, to_hetero

from benchmarks.rounds import Results, make_parser, positive
from hopper.bench.machine import commit, machine
from hopper.files.whole_files import write_text
from hopper.graph import GraphDirectory
from hopper.graph.importers import ImportOptions, RandomSplit, import_graph
from hopper.graph.schema import Relation
from hopper.partition import partition_graph
from hopper.pyg import LinkNeighborLoader, NeighborLoader

FANOUTS, BATCH, HIDDEN = [5, 5], 64, 32
Ids = NDArray[np.int64]


class MemoryLoader:
    """Batches of nodes or links of a graph in memory, as PyG's documentation describes them.

    Parameters
    ----------
    roots: ids of nodes of the target type, or [2, n] of links of the only relation.
    times: by node, for draws in time: only neighbors that are not later than the root.
    """

    def __init__(
        self,
        graph: GraphDirectory,
        roots: Tensor,
        *,
        shuffle: bool = False,
        seed: int = 0,
        times: Ids | None = None,
    ) -> None:
        self._graph, self._roots, self._shuffle, self._times = graph, roots, shuffle, times
        self._generator = np.random.default_rng(seed)
        self._topologies = {r: graph.topology(r) for r in graph.schema.relations}
        self._features = {
            name: torch.from_numpy(np.array(graph.features(name), np.float32))
            for name, kind in graph.schema.node_types.items()
            if kind.feature_dim
        }
        labels = graph.labels(graph.schema.target_type())
        self._labels = None if labels is None else torch.from_numpy(np.array(labels))

    def __iter__(self) -> Iterator[Any]:
        count = self._roots.shape[-1]
        order = torch.arange(count)
        if self._shuffle:
            order = torch.from_numpy(self._generator.permutation(count))
        for places in order.split(BATCH):
            yield self._links(places) if self._roots.ndim == 2 else self._nodes(places)

    def _nodes(self, places: Tensor) -> Any:
        roots, target = self._roots[places], self._graph.schema.target_type()
        batch = self._batch({target: roots.numpy()})
        store = batch[target] if isinstance(batch, HeteroData) else batch
        assert self._labels is not None
        store.y, store.batch_size = self._labels[roots], len(roots)
        batch.loss_scale = 1 / len(roots)
        return batch

    def _links(self, places: Tensor) -> Any:
        """Return links and as many random pairs."""
        positive, (name,) = self._roots[:, places], self._graph.schema.node_types
        count = self._graph.schema.node_types[name].count
        negative = torch.from_numpy(self._generator.integers(0, count, tuple(positive.shape)))
        pairs = torch.cat([positive, negative], 1)
        roots, index = pairs.unique(return_inverse=True)
        batch = self._batch({name: roots.numpy()})
        batch.edge_label_index = index
        batch.edge_label = torch.cat([torch.ones(len(places)), torch.zeros(len(places))])
        batch.loss_scale = 1 / (2 * len(places))
        return batch

    def _batch(self, roots: dict[str, Ids]) -> Any:
        """Expand roots hop by hop; every node once, at the hop after it was found."""
        schema = self._graph.schema
        types = list(schema.node_types)
        # A row is a node, or with times a node and the time of the root that it is for.
        keys = {name: roots.get(name, np.empty(0, np.int64)) for name in types}
        if self._times is not None:
            keys = {n: self._times[ids] * schema.count_of(n) + ids for n, ids in keys.items()}
        firsts = dict.fromkeys(types, 0)
        edges: dict[Relation, list[Ids]] = {relation: [] for relation in schema.relations}
        for fanout in FANOUTS:
            new = {name: keys[name][firsts[name] :] for name in types}
            starts, firsts = firsts, {name: keys[name].size for name in types}
            for relation in schema.relations:
                source, row = self._draw(relation, new[relation.dst], fanout)
                known = np.concatenate([keys[relation.src], source])
                values, first, inverse = np.unique(known, return_index=True, return_inverse=True)
                rank = np.argsort(np.argsort(first))
                keys[relation.src] = values[np.argsort(first)]
                columns = rank[inverse[known.size - source.size :]]
                edges[relation].append(np.stack([columns, row + starts[relation.dst]]))
        typed = len(types) > 1
        data: Any = HeteroData() if typed else Data()
        for name in types:
            store = data[name] if typed else data
            store.n_id = torch.from_numpy(keys[name] % schema.count_of(name))
            if name in self._features:
                store.x = self._features[name][store.n_id]
        for relation, parts in edges.items():
            store = data[tuple(relation)] if typed else data
            store.edge_index = torch.from_numpy(np.concatenate(parts, 1))
        return data

    def _draw(self, relation: Relation, keys: Ids, fanout: int) -> tuple[Ids, Ids]:
        """Return the keys of drawn sources, and the place in ``keys`` of each one's destination."""
        topology, schema = self._topologies[relation], self._graph.schema
        nodes = keys % schema.count_of(relation.dst)
        first, degrees = topology.indptr[nodes], np.diff(topology.indptr)[nodes]
        row = np.repeat(np.arange(nodes.size), degrees)
        within = np.arange(row.size) - np.repeat(np.cumsum(degrees) - degrees, degrees)
        source = np.asarray(topology.indices, np.int64)[first[row] + within]
        if self._times is not None:
            root_times = keys[row] // schema.count_of(relation.dst)
            there = self._times[source] <= root_times
            row, source = row[there], source[there]
            source = source + root_times[there] * schema.count_of(relation.src)
        order = np.lexsort((self._generator.random(row.size), row))
        row, source = row[order], source[order]
        counts = np.bincount(row, minlength=nodes.size)
        place = np.arange(row.size) - np.repeat(np.cumsum(counts) - counts, counts)
        return source[place < fanout], row[place < fanout]


class Sage(nn.Module):
    """GraphSAGE of two layers."""

    def __init__(self, out_dim: int, in_dim: Any = -1) -> None:
        super().__init__()
        self.first, self.second = SAGEConv(in_dim, HIDDEN), SAGEConv(in_dim, out_dim)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        rows = dropout(self.first(x, edge_index).relu(), 0.3, self.training)
        return self.second(rows, edge_index)


class Hgt(nn.Module):
    """Two layers of HGT; types without features have learned rows."""

    def __init__(self, graph: GraphDirectory, out_dim: int) -> None:
        super().__init__()
        kinds = graph.schema.node_types
        self.inputs = nn.ModuleDict(
            {
                name: nn.LazyLinear(HIDDEN)
                if kind.feature_dim
                else nn.Embedding(kind.count, HIDDEN)
                for name, kind in kinds.items()
            }
        )
        metadata = list(kinds), [tuple(relation) for relation in graph.schema.relations]
        self.layers = nn.ModuleList([HGTConv(HIDDEN, HIDDEN, metadata, 2) for _ in FANOUTS])
        self.head = nn.Linear(HIDDEN, out_dim)

    def forward(self, batch: HeteroData, target: str) -> Tensor:
        rows = {
            name: layer(batch[name].n_id if isinstance(layer, nn.Embedding) else batch[name].x)
            for name, layer in self.inputs.items()
        }
        for layer in self.layers:
            new = layer(rows, batch.edge_index_dict)
            rows |= {name: x for name, x in new.items() if x is not None}
        return self.head(rows[target])


@dataclass(frozen=True)
class Source:
    """A graph, its parts, and which loader a script is given."""

    graph: GraphDirectory
    parts: Path
    in_memory: bool
    seed: int
    epochs: int

    def nodes(self, split: str, *, in_time: bool = False) -> Any:
        """Return a loader of a split's nodes; those to train come in random order."""
        target, shuffle = self.graph.schema.target_type(), split == "train"
        if self.in_memory:
            ids = torch.from_numpy(np.array(self.graph.split(split)))
            times = np.array(self.graph.times(target)) if in_time else None
            return MemoryLoader(self.graph, ids, shuffle=shuffle, seed=self.seed, times=times)
        time_attr = "time" if in_time else None
        return NeighborLoader(
            self.parts, FANOUTS, (target, split), batch_size=BATCH, shuffle=shuffle,
            seed=self.seed, time_attr=time_attr,
        )  # fmt: skip

    def links(self, pairs: Tensor, *, shuffle: bool) -> Any:
        """Return a loader of links and as many random pairs."""
        if self.in_memory:
            return MemoryLoader(self.graph, pairs, shuffle=shuffle, seed=self.seed)
        return LinkNeighborLoader(
            self.parts, FANOUTS, pairs, neg_sampling="binary", batch_size=BATCH, shuffle=shuffle,
            seed=self.seed,
        )  # fmt: skip


def train_nodes(
    source: Source, model: nn.Module, call: Callable[[Any], Tensor], **how: bool
) -> float:
    """Train on nodes, and return the accuracy on test nodes."""
    target, correct = source.graph.schema.target_type(), []
    loader = source.nodes("train", **how)
    with torch.no_grad():
        call(next(iter(loader)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for _ in range(source.epochs):
        for batch in loader:
            store = batch[target] if isinstance(batch, HeteroData) else batch
            optimizer.zero_grad()
            out = call(batch)[: store.batch_size]
            (cross_entropy(out, store.y, reduction="sum") * batch.loss_scale).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        for batch in source.nodes("test", **how):
            store = batch[target] if isinstance(batch, HeteroData) else batch
            correct += (call(batch)[: store.batch_size].argmax(1) == store.y).tolist()
    return float(np.mean(correct))


def sage(source: Source) -> float:
    """SAGE."""
    model = Sage(_classes(source))
    # Rows of this data set have some 270 ones: without a norm they saturate the first layer.
    return train_nodes(source, model, lambda b: model(layer_norm(b.x, b.x.shape[1:]), b.edge_index))


def sage_in_time(source: Source) -> float:
    """SAGE on draws in time."""
    model = Sage(_classes(source))
    call = lambda b: model(b.x, b.edge_index)  # noqa: E731
    return train_nodes(source, model, call, in_time=True)


def typed_sage(source: Source) -> float:
    """SAGE that ``to_hetero`` makes typed."""
    schema = source.graph.schema
    metadata = list(schema.node_types), [tuple(relation) for relation in schema.relations]
    model = to_hetero(Sage(_classes(source), (-1, -1)), metadata)
    target = schema.target_type()
    return train_nodes(source, model, lambda b: model(b.x_dict, b.edge_index_dict)[target])


def hgt(source: Source) -> float:
    """HGTConv."""
    model, target = Hgt(source.graph, _classes(source)), source.graph.schema.target_type()
    return train_nodes(source, model, lambda b: model(b, target))


def links(source: Source) -> float:
    """Dot products of SAGE's rows; a tenth of the edges is for the test."""
    topology = source.graph.topology(next(iter(source.graph.schema.relations)))
    edges = torch.from_numpy(
        np.stack([np.asarray(topology.indices, np.int64), topology.list_destinations()])
    )
    order = torch.randperm(edges.shape[1], generator=torch.Generator().manual_seed(source.seed))
    stop = edges.shape[1] // 10
    model, wins = Sage(HIDDEN), []

    def score(batch: Any) -> Tensor:
        rows = model(batch.x, batch.edge_index)
        return (rows[batch.edge_label_index[0]] * rows[batch.edge_label_index[1]]).sum(1)

    loader = source.links(edges[:, order[stop:]], shuffle=True)
    with torch.no_grad():
        score(next(iter(loader)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(source.epochs):
        for batch in loader:
            optimizer.zero_grad()
            loss = binary_cross_entropy_with_logits(score(batch), batch.edge_label, reduction="sum")
            (loss * batch.loss_scale).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        for batch in source.links(edges[:, order[:stop]], shuffle=False):
            scores = score(batch)
            is_link = batch.edge_label > 0
            wins += (scores[is_link][:, None] > scores[~is_link]).float().mean(1).tolist()
    return float(np.mean(wins))


class Lightning(pytorch_lightning.LightningModule):
    """SAGE for a trainer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.correct: list[bool] = []

    def training_step(self, batch: Data) -> Tensor:
        out = self.model(batch.x, batch.edge_index)[: batch.batch_size]
        return cross_entropy(out, batch.y, reduction="sum") * batch.loss_scale

    def test_step(self, batch: Data) -> None:
        out = self.model(batch.x, batch.edge_index)[: batch.batch_size]
        self.correct += (out.argmax(1) == batch.y).tolist()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01, weight_decay=5e-4)


def lightning(source: Source) -> float:
    """SAGE under a trainer of Lightning."""
    width = source.graph.schema.node_types[source.graph.schema.target_type()].feature_dim
    assert width is not None
    module = Lightning(Sage(_classes(source)))
    batch = next(iter(source.nodes("train")))
    with torch.no_grad():
        module.model(batch.x, batch.edge_index)
    trainer = pytorch_lightning.Trainer(
        accelerator="cpu", max_epochs=source.epochs, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, source.nodes("train"))
    trainer.test(module, source.nodes("test"), verbose=False)
    return float(np.mean(module.correct))


SCRIPTS: dict[str, tuple[str, Callable[[Source], float], int]] = {
    "SAGE": ("amazon_computers", sage, 30),
    "to_hetero": ("imdb_magnn", typed_sage, 15),
    "HGTConv": ("acm_heco", hgt, 30),
    "links": ("cora", links, 4),
    "in time": ("cora", sage_in_time, 30),
    "Lightning": ("cora", lightning, 30),
}
"""by name: a data set, a script, and its number of epochs"""
SIDES = ("hopper.pyg", "in memory")


def make_graph(data: str, source: Path, out: Path, seed: int, *, timed: bool) -> GraphDirectory:
    """Import a data set with a split of its own for each seed, and times if they are drawn in."""
    split = RandomSplit.parse("random:20:30") if data == "amazon_computers" else None
    options = ImportOptions(
        symmetrize=data in ("amazon_computers", "cora"), split=split, seed=seed,
        add_reverse="cross-type" if data == "acm_heco" else "",
        row_normalize=data != "amazon_computers",
    )  # fmt: skip
    folder = source / data
    if timed:
        folder = out.with_name(f"{out.name}-timed")
        shutil.copytree(source / data, folder, copy_function=shutil.copyfile)
        count = np.load(source / data / "label__node.npy").size
        times = np.random.default_rng(1).integers(0, 100, count)
        np.save(folder / "time__node.npy", times)
        facts = json.loads((folder / "meta.json").read_text())
        facts["node_types"]["node"]["time_file"] = "time__node.npy"
        write_text(folder / "meta.json", json.dumps(facts))
    import_graph("npy", str(folder), out, options)
    return GraphDirectory.open(out)


def _classes(source: Source) -> int:
    labels = source.graph.schema.target_labels
    assert labels is not None
    return labels.classes


def score(name: str, seed: int, epochs: int, data: Path, work: Path) -> dict[str, float]:
    """Run both versions of a script with a seed, and return their scores."""
    set_name, script, _ = SCRIPTS[name]
    graph = make_graph(set_name, data, work / "graph", seed, timed=name == "in time")
    partition_graph(graph, work / "parts", 2)
    scores = {}
    for side in SIDES:
        torch.manual_seed(seed)
        scores[side] = script(Source(graph, work / "parts", side == "in memory", seed, epochs))
    return scores


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = make_parser(__doc__, rounds=10)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", metavar="NAME,...", help="scripts; default: all")
    parser.add_argument("--epochs", type=positive, help="default: as many as each script has")
    options = parser.parse_args(arguments)
    only = options.only.split(",") if options.only else list(SCRIPTS)
    if unknown := sorted(set(only) - set(SCRIPTS)):
        parser.error(f"--only: expected some of {list(SCRIPTS)}, given {unknown}")
    results, cells = Results("pyg-scripts", options.out), options.out / "cells"
    cells.mkdir(exist_ok=True)
    for name in only:
        epochs = options.epochs or SCRIPTS[name][2]
        stamp = {"machine": machine(), "commit": commit(), "epochs": epochs}
        scores: dict[str, list[list[float]]] = {side: [] for side in SIDES}
        for seed in range(options.rounds):
            file = cells / f"pyg-scripts-{name.replace(' ', '-')}-{seed}.json"
            kept = json.loads(file.read_text()) if file.exists() else {}
            if {key: kept.get(key) for key in stamp} != stamp:
                begun = time.process_time()
                with tempfile.TemporaryDirectory(prefix="pyg-scripts-") as work:
                    found = score(name, seed, epochs, options.data, Path(work))
                kept = {**stamp, "seconds": time.process_time() - begun, "scores": found}
                write_text(file, json.dumps(kept, indent=1))
            for side, values in scores.items():
                values.append([kept["scores"][side]])
        measured = {side: {"score": np.array(values)} for side, values in scores.items()}
        cell = f"{name}, {SCRIPTS[name][0]}"
        results.add(cell, measured, against={"hopper.pyg": ["in memory"]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
