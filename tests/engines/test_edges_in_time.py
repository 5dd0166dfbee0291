"""Edges that are predicted in time: the gradient and the scores of one process, and nothing that a
link's time does not allow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hopper.config import make_config
from hopper.engines import Request
from hopper.engines.assemble import make_runner, make_schedule
from hopper.engines.checks import check_request
from hopper.errors import RequestError
from hopper.graph import GraphDirectory
from hopper.graph.importers import ImportOptions, RandomSplit
from hopper.graph.schema import Relation
from hopper.partition import PartitionedGraph, partition_graph
from hopper.timing.run_log import RunLog
from tests.graphs import draw_ends

pytestmark = pytest.mark.filterwarnings("ignore:split ")

TASKS: dict[bool, dict[str, Any]] = {
    True: {"decoder": "distmult", "negatives": "uniform", "num_negatives": 3, "candidates": 20},
    False: {"decoder": "bilinear", "dim": 5},
}
BUYS, SOLD, SENT = ("user", "buys", "item"), ("item", "sold_to", "user"), ("user", "sent", "user")


def make_graph(out: Path, *, typed: bool, are_links: bool) -> GraphDirectory:
    """Write what users buy, or what they send each other, each at some time."""
    generator = np.random.default_rng(8)

    relation, items = (BUYS, 30) if typed else (SENT, 50)
    pairs, when = draw_ends(generator, 50, items, 400), generator.integers(0, 12, 400)
    edges = {relation: pairs}
    if typed:
        edges |= {SOLD: pairs[::-1], ("user", "knows", "user"): draw_ends(generator, 50, 50, 120)}
    return GraphDirectory.from_arrays(
        out,
        edges,
        features={"user": generator.random((50, 4))}
        | ({"item": generator.random((30, 3))} if typed else {}),
        labels=None if are_links else {relation: generator.integers(0, 3, 400)},
        times={relation: when} | ({SOLD: when} if typed else {}),
        target=relation,
        options=ImportOptions(split=RandomSplit(0.7, 0.15, by_time=True)),
    )


def values_of(parts: Path, *, typed: bool, are_links: bool, pick: str) -> dict[str, Any]:
    train = {"batch_size": 9, "epochs": 1, "dtype": "float64", "seed": 3}
    values = {"data": {"partitioned": str(parts)}, "train": train}
    return values | sections_of(typed=typed, are_links=are_links, pick=pick)


def sections_of(*, typed: bool, are_links: bool, pick: str) -> dict[str, Any]:
    model = {"name": "rgcn" if typed else "sage", "layers": 2, "hidden": 8, "dropout": 0.2}
    sampler = {"kind": "temporal", "fanouts": [3, 2], "kind_options": {"pick": pick}}
    return {"model": model, "task": TASKS[are_links], "sampler": sampler}


def test_a_link_sees_what_was_there_and_not_what_is_predicted(tmp_path: Path) -> None:
    """At every hop it sees the purchases of an item that are not later than the link, without those
    that the batch predicts."""
    parts = tmp_path / "parts"
    directory = make_graph(tmp_path / "graph", typed=True, are_links=True)
    partition_graph(directory, parts, 2, "random")
    graph = PartitionedGraph.open(parts)
    config = make_config(values_of(parts, typed=True, are_links=True, pick="uniform"))
    request = Request(config, graph)
    trainer = make_runner(request, RunLog(None), 10**6, torch.device("cpu"))
    trainer.sampler.fanouts = (-1, -1)
    table = request.links.table
    roots = make_schedule(request).batch(0, 1).roots
    batch = set(zip(table.src[roots].tolist(), table.dst[roots].tolist(), strict=True))
    (subgraph,) = trainer.sample(roots, 0, 1)
    assert subgraph.pairs is not None
    versions = list(subgraph.pairs.versions.items())
    times = np.concatenate([trainer.sampler.times_of(name, ids) for name, ids in versions])
    for ends in (subgraph.pairs.heads, subgraph.pairs.tails):
        # Both ends of a link, and all that it is compared with, are at its time.
        assert (times[ends] == table.times[roots][:, None]).all()
    into, purchases = Relation(*BUYS), {}
    all_times = directory.times(into)
    links = {split: request.graph.links(split) for split in ("train", "val", "test")}
    held_out = {
        (int(u), int(v))
        for split in ("val", "test")
        for u, v in zip(links[split].src, links[split].dst, strict=True)
    }
    csc = directory.topology(into)
    for item in range(30):
        for place in range(csc.indptr[item], csc.indptr[item + 1]):
            user, when = int(csc.indices[place]), int(all_times[csc.edge_ids[place]])
            if (user, item) not in held_out:
                purchases.setdefault(item, []).append((user, when))
    originals = {node_type: graph.original_ids(node_type) for node_type in ("user", "item")}
    predicted = {(int(originals["user"][u]), int(originals["item"][v])) for u, v in batch}
    seen = 0
    for hop, sizes in zip(subgraph.hops, subgraph.sizes, strict=False):
        edges = hop[into]
        for row in range(sizes["item"]):
            item = int(originals["item"][subgraph.nodes["item"][row]])
            until = int(subgraph.times["item"][row])
            sources = edges.indices[edges.indptr[row] : edges.indptr[row + 1]]
            assert (subgraph.times["user"][sources] == until).all()
            drawn = sorted(originals["user"][subgraph.nodes["user"][sources]].tolist())
            there = [u for u, when in purchases.get(item, []) if when <= until]
            assert drawn == sorted(u for u in there if (u, item) not in predicted)
            seen += len(drawn)
    assert seen > 100


def test_edges_without_times_are_refused(tmp_path: Path) -> None:
    directory = GraphDirectory.from_arrays(
        tmp_path / "graph",
        {SENT: np.random.default_rng(0).integers(0, 20, (2, 90))},
        features={"user": np.ones((20, 2))},
        times={"user": np.arange(20)},
        target=SENT,
        options=ImportOptions(split=RandomSplit(0.7, 0.15)),
    )
    partition_graph(directory, tmp_path / "parts", 1)
    config = values_of(tmp_path / "parts", typed=False, are_links=True, pick="uniform")
    request = Request(make_config(config), PartitionedGraph.open(tmp_path / "parts"))
    with pytest.raises(RequestError, match="edges of user/sent/user have no times in"):
        check_request(request)
