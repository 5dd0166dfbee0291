"""Links, and labels of edges: the pairs of a batch, and what is drawn for them.

The gradients are in test_conformance.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hopper.config import make_config
from hopper.engines import Request
from hopper.engines.assemble import (
    make_link_batches,
    make_runner,
    make_sampler,
    make_schedule,
)
from hopper.engines.checks import check_request
from hopper.errors import ConfigError, GraphError, RequestError
from hopper.graph import GraphDirectory
from hopper.graph.importers import ImportOptions, RandomSplit
from hopper.graph.schema import Labels, Relation
from hopper.graph.write import GraphWriter
from hopper.partition import PartitionedGraph, partition_graph
from hopper.timing.run_log import RunLog
from tests.graphs import RATED, RATES, RATINGS, WROTE, draw_ends, make_library

from .conftest import merged
from .exactness import assert_exact
from .features import GRAPHS, World, case_of

pytestmark = pytest.mark.filterwarnings("ignore:split ")

BUYS, SOLD = ("user", "buys", "item"), ("item", "sold_to", "user")


@pytest.fixture(scope="module")
def divided(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """A library on one, two and four servers, its nodes divided differently each time.

    Its ratings, and who wrote what, are predicted together.
    """
    folder = tmp_path_factory.mktemp("divided")
    library = make_library(folder / "graph", [RATES, WROTE])
    for servers in (1, 2, 4):
        partition_graph(library, folder / str(servers), servers, "random", seed=servers)
    return {servers: folder / str(servers) for servers in (1, 2, 4)}


@pytest.mark.parametrize("engine", ["model_centric", "cooperative"])
def test_negatives_from_a_file(
    engine: str,
    train_cases: Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]],
    tmp_path: Path,
) -> None:
    case = case_of("links", engine, World(2, 1), 0, "sage")
    parts = case.divide(GRAPHS["links"](tmp_path / "graph"), tmp_path / "parts")
    file, links = tmp_path / "train.npy", parts.schema.splits["train"]
    np.save(file, np.random.default_rng(1).integers(0, 300, (links, 2, 3)))
    values = case.values(parts, tmp_path / "run")
    values["task"] = {"decoder": "dot", "fixed_negatives": {"train": str(file)}}
    train_cases([values], 2, tmp_path)
    assert_exact(values, 2)
    request = Request(make_config(values), parts)
    batches, stored = make_link_batches(request, make_sampler(request)), np.load(file)
    assert batches is not None
    roots = make_schedule(request).batch(0, 0).roots
    pairs = batches.pairs(roots, 0, 0)
    originals = request.graph.original_ids("item")[pairs.versions["item"]]
    np.testing.assert_array_equal(originals[pairs.tails[:, 1:4]], stored[roots, 0])
    np.testing.assert_array_equal(originals[pairs.heads[:, 4:]], stored[roots, 1])
    out_of_range = r"expected original ids of item in \[0, 300\) in the place of a tail, given"
    for changed, expected in (
        (stored[:, :1], r"task\.fixed_negatives\.train: .*expected integers of shape"),
        (stored + 300, out_of_range),
    ):
        np.save(file, changed)
        with pytest.raises(RequestError, match=expected):
            check_request(request)


def batches_of(parts: Path, **task: Any) -> tuple[Request, Any]:
    config = make_config(
        {
            "data": {"partitioned": str(parts)},
            "model": {"name": "rgcn", "layers": 2, "hidden": 8},
            "task": task,
            "train": {"batch_size": 20, "engine": "zero_hop"},
        }
    )
    request = Request(config, PartitionedGraph.open(parts))
    return request, make_link_batches(request, make_sampler(request))


@pytest.mark.parametrize(
    "negatives", ["uniform", "joint", "in_batch", "degree", "own_parts:Strides"]
)
def test_pairs_do_not_depend_on_the_partition(negatives: str, divided: dict[int, Path]) -> None:
    results = []
    for servers, parts in divided.items():
        # As many links in all.
        request, batches = batches_of(parts, negatives=negatives, num_negatives=4)
        request = request.under(
            request.config.model_copy(
                update={
                    "train": request.config.train.model_copy(update={"batch_size": 40 // servers})
                }
            )
        )
        batches = make_link_batches(request, make_sampler(request))
        roots = make_schedule(request).batch(1, 2).roots
        pairs = batches.pairs(roots, 1, 2)
        originals = np.concatenate(
            [request.graph.original_ids(name)[ids] for name, ids in pairs.versions.items()]
        )
        results.append((originals[pairs.heads], originals[pairs.tails], pairs.labels))
        assert set(np.unique(pairs.labels)) <= {-1.0, 0.0, 1.0}
        assert (pairs.labels[:, 0] == 1).all()
    for result in results[1:]:
        for expected, array in zip(results[0], result, strict=True):
            np.testing.assert_array_equal(expected, array)


def test_own_negatives_that_are_no_nodes_are_refused(divided: dict[int, Path]) -> None:
    own = {"negatives": "own_parts:Strides", "negatives_options": {"beyond": 100}}
    request, batches = batches_of(divided[1], **own)
    roots = make_schedule(request).batch(0, 0).roots
    with pytest.raises(
        ConfigError, match=r"own_parts:Strides: expected original ids of (book|reader)"
    ):
        batches.pairs(roots, 0, 0)


def test_no_edge_that_a_batch_predicts_is_drawn(divided: dict[int, Path]) -> None:
    request, _batches = batches_of(divided[1])
    trainer = make_runner(request, RunLog(None), 10**6, torch.device("cpu"))
    trainer.sampler.fanouts = (-1, -1)
    table, relations = request.links.table, request.schema.target_relations
    roots = make_schedule(request).batch(0, 1).roots
    left_out = {
        (relations[table.relations[root]], int(table.src[root]), int(table.dst[root]))
        for root in roots
    }
    turned = RATED
    left_out |= {(turned, v, u) for relation, u, v in left_out if relation == RATES}
    (subgraph,) = trainer.sample(roots, 0, 1)
    drawn: set[tuple[Relation, int, int]] = set()
    for hop in subgraph.hops:
        for relation, edges in hop.items():
            dst = np.repeat(np.arange(edges.indptr.size - 1), np.diff(edges.indptr))
            ends = subgraph.nodes[relation.src][edges.indices], subgraph.nodes[relation.dst][dst]
            drawn |= {(relation, *pair) for pair in zip(*(e.tolist() for e in ends), strict=True)}
    assert drawn
    assert not drawn & left_out
    # Every other edge into a root is.
    into = RATES
    topology = request.graph.topology(into)
    for book in subgraph.nodes["book"][: subgraph.sizes[0]["book"]].tolist():
        sources = topology.indices[topology.indptr[book] : topology.indptr[book + 1]].tolist()
        remaining = {(into, u, book) for u in sources} - left_out
        assert remaining == {edge for edge in drawn if edge[0] == into and edge[2] == book}


def test_a_full_batch_leaves_edges_to_read(tmp_path: Path) -> None:
    ends = np.random.default_rng(0).integers(0, 40, (2, 300))
    graph = GraphDirectory.from_arrays(
        tmp_path / "graph",
        {("item", "near", "item"): ends},
        features={"item": np.ones((40, 3))},
        target=("item", "near", "item"),
        options=ImportOptions(split=RandomSplit(0.8, 0.1)),
    )
    parts = partition_graph(graph, tmp_path / "parts", 2, "random")
    values = {"data": {"partitioned": str(parts.path)}, "sampler": {"kind": "full"}}
    with pytest.raises(RequestError, match=r"^task\.exclude: .* leaves no edge of .* to read"):
        check_request(Request(make_config(values), parts))
    kept = {"task": {"exclude": False}}
    check_request(Request(make_config(merged(values, kept)), parts))


def test_a_link_sees_what_was_there_and_not_what_is_predicted(tmp_path: Path) -> None:
    """At every hop it sees the purchases of an item that are not later than the link, without those
    that the batch predicts."""
    generator = np.random.default_rng(8)
    pairs, when = draw_ends(generator, 50, 30, 400), generator.integers(0, 12, 400)
    directory = GraphDirectory.from_arrays(
        tmp_path / "graph",
        {
            BUYS: pairs,
            SOLD: pairs[::-1],
            ("user", "knows", "user"): generator.integers(0, 50, (2, 120)),
        },
        features={"user": generator.random((50, 4)), "item": generator.random((30, 3))},
        times={BUYS: when, SOLD: when},
        target=BUYS,
        options=ImportOptions(split=RandomSplit(0.7, 0.15, by_time=True)),
    )
    graph = partition_graph(directory, tmp_path / "parts", 2, "random")
    values = {"model": {"name": "rgcn", "layers": 2, "hidden": 8}, "train": {"batch_size": 9}}
    values |= {"sampler": {"kind": "temporal", "fanouts": [3, 2]}, "task": {"num_negatives": 3}}
    config = make_config(values | {"data": {"partitioned": str(graph.path)}})
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


def library_of_labels(out: Path) -> GraphDirectory:
    """Write a library in which edges to books have classes, but for some of them."""
    generator = np.random.default_rng(6)
    labels = {RATES: generator.integers(-1, 4, RATINGS), WROTE: generator.integers(-1, 3, 90)}
    return make_library(out, [RATES, WROTE], labels=labels)


def test_a_partition_keeps_all_edges_and_the_labels_of_splits(tmp_path: Path) -> None:
    graph = library_of_labels(tmp_path / "graph")
    assert graph.schema.predicted == "edge"
    assert graph.schema.target_labels == Labels("class", 4)
    stored = np.concatenate([graph.labels(relation) for relation in (RATES, WROTE)])
    for servers in (1, 3):
        parts = tmp_path / str(servers)
        partition_graph(graph, parts, servers, "random")
        partitioned = PartitionedGraph.open(parts)
        for relation, kind in graph.schema.relations.items():
            assert partitioned.topology(relation).indices.size == kind.count
        for split in ("train", "val", "test"):
            links = partitioned.links(split)
            assert links.labels is not None
            np.testing.assert_array_equal(links.labels, stored[links.ids])
            # Those without labels are in no split.
            assert links.count
            assert links.labels.min() >= 0


def test_labels_of_target_relations_have_to_agree(tmp_path: Path) -> None:
    graph = library_of_labels(tmp_path / "graph")
    labels = dict(graph.schema.labels) | {WROTE: Labels("float", 1)}
    broken = graph.schema.__class__(**vars(graph.schema) | {"labels": labels})
    with (
        pytest.raises(GraphError, match="target: expected edges of all target relations"),
        GraphWriter(tmp_path / "broken", broken),
    ):
        pass
    with pytest.raises(GraphError, match=r"labels of reader/rates/book: expected 3, one for each"):
        GraphDirectory.from_arrays(
            tmp_path / "short", {RATES: [[0, 1, 1], [0, 0, 1]]}, labels={RATES: [1, 0]}
        )
