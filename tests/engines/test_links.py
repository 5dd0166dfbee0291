"""Links, and labels of edges: the pairs of a batch, and what is drawn for them.

The gradients are in test_conformance.py.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from hopper.config import make_config
from hopper.engines import Request
from hopper.engines.assemble import make_link_batches, make_runner, make_sampler, make_schedule
from hopper.engines.checks import check_request
from hopper.errors import ConfigError, GraphError, RequestError
from hopper.graph import GraphDirectory, GraphWriter, Labels, Relation
from hopper.graph.importers import ImportOptions, RandomSplit
from hopper.partition import PartitionedGraph, partition_graph
from hopper.timing.run_log import RunLog

from .conftest import Divided, assert_exact
from .features import World, case_of, merged
from .graphs import BORROWS, WROTE

pytestmark = pytest.mark.filterwarnings("ignore:split ")


@pytest.mark.parametrize("engine", ["model_centric", "cooperative"])
def test_negatives_from_a_file(engine, train, divided, tmp_path):
    case = replace(case_of("links", engine, World(2, 1), 0, "sage"), sections={})
    parts, file = divided(case), tmp_path / "train.npy"
    stored = np.random.default_rng(1).integers(0, 300, (parts.schema.splits["train"], 2, 3))
    np.save(file, stored)
    task = {"decoder": "dot", "fixed_negatives": {"train": str(file)}}
    [run] = train([(case, {"task": task})])
    assert_exact(run.values, 2)
    request, batches = batches_of(parts, **task)
    roots = make_schedule(request).batch(0, 0).roots
    pairs = batches.pairs(roots, 0, 0)
    originals = request.graph.original_ids("item")[pairs.versions["item"]]
    np.testing.assert_array_equal(originals[pairs.tails[:, 1:4]], stored[roots, 0])
    np.testing.assert_array_equal(originals[pairs.heads[:, 4:]], stored[roots, 1])
    # By degree, a node weighs its number of training links to the power of 3/4.
    weights = batches_of(parts, negatives="degree")[1]._negatives._weights["item"]
    ends = np.concatenate([request.links.table.src, request.links.table.dst])
    degrees = np.bincount(request.graph.original_ids("item")[ends], minlength=300)
    np.testing.assert_allclose(np.diff(weights, prepend=0), degrees**0.75 * 2**16, atol=1)
    out_of_range = r"expected original ids of item in \[0, 300\) in the place of a tail, given"
    for changed, expected in (
        (stored[:, :1], r"task\.fixed_negatives\.train: .*expected integers of shape"),
        (stored + 1, out_of_range),
    ):
        np.save(file, changed)
        with pytest.raises(RequestError, match=expected):
            check_request(request)


def batches_of(
    parts: PartitionedGraph, batch_size: int = 20, kind: str = "node", **task: Any
) -> tuple[Request, Any]:
    typed = len(parts.schema.relations) > 1
    values = {
        "data": {"partitioned": str(parts.path)},
        "model": {"name": "rgcn" if typed else "sage", "layers": 2, "hidden": 8},
        "sampler": {"kind": kind, "fanouts": [3, 2]},
        "task": task,
        "train": {"batch_size": batch_size, "engine": "zero_hop"},
    }
    request = Request(make_config(values), parts)
    return request, make_link_batches(request, make_sampler(request))


def library_on(servers: int, divided: Divided) -> PartitionedGraph:
    return divided(case_of("links of several types", "model_centric", World(servers, 1)))


def test_own_negatives_that_are_no_nodes_are_refused(divided):
    own = {"negatives": "own_parts:Strides", "negatives_options": {"beyond": 100}}
    request, batches = batches_of(library_on(1, divided), **own)
    roots = make_schedule(request).batch(0, 0).roots
    expected = r"own_parts:Strides: expected original ids of (book|reader)"
    with pytest.raises(ConfigError, match=expected):
        batches.pairs(roots, 0, 0)


@pytest.mark.parametrize("feature", ["links of several types", "links of several types in time"])
def test_no_edge_that_a_batch_predicts_is_drawn(feature, divided):
    """In time, both ends of a link, and all that it is compared with, are at its time."""
    is_timed = "in time" in feature
    request, _ = batches_of(
        divided(case_of(feature, "model_centric", World(1, 1))),
        kind="temporal" if is_timed else "node",
    )
    trainer = make_runner(request, RunLog(None), 10**6, torch.device("cpu"))
    trainer.sampler.fanouts = (-1, -1)
    table, relations = request.links.table, request.schema.target_relations
    roots = make_schedule(request).batch(0, 1).roots
    # Another iteration leaves out other edges.
    trainer.sample(make_schedule(request).batch(0, 0).roots, 0, 0)
    left_out = {
        (relations[table.relations[root]], int(table.src[root]), int(table.dst[root]))
        for root in roots
    }
    into, turned = Relation(*BORROWS), Relation("book", "lent_to", "reader")
    left_out |= {(turned, v, u) for relation, u, v in left_out if relation == into}
    (subgraph,) = trainer.sample(roots, 0, 1)
    drawn: set[tuple[Relation, int, int]] = set()
    for hop in subgraph.hops:
        for relation, edges in hop.items():
            dst = np.repeat(np.arange(edges.indptr.size - 1), np.diff(edges.indptr))
            ends = subgraph.nodes[relation.src][edges.indices], subgraph.nodes[relation.dst][dst]
            drawn |= {(relation, *pair) for pair in zip(*(e.tolist() for e in ends), strict=True)}
    assert drawn
    assert not drawn & left_out
    if is_timed:
        assert subgraph.pairs is not None
        versions = subgraph.pairs.versions.items()
        times = np.concatenate([trainer.sampler.times_of(name, ids) for name, ids in versions])
        for of_links in (subgraph.pairs.heads, subgraph.pairs.tails):
            assert (times[of_links] == table.times[roots][:, None]).all()
        return
    # Every other edge into a root is.
    topology = request.graph.topology(into)
    for book in subgraph.nodes["book"][: subgraph.sizes[0]["book"]].tolist():
        sources = topology.indices[topology.indptr[book] : topology.indptr[book + 1]].tolist()
        remaining = {(into, u, book) for u in sources} - left_out
        assert remaining == {edge for edge in drawn if edge[0] == into and edge[2] == book}


def test_a_full_batch_leaves_edges_to_read(tmp_path):
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


def test_a_partition_keeps_all_edges_and_the_labels_of_splits(graph_of, divided):
    graph = graph_of("library of labels")
    assert graph.schema.predicted == "edge"
    assert graph.schema.target_labels == Labels("class", 3)
    stored = np.concatenate([graph.labels(Relation(*words)) for words in (BORROWS, WROTE)])
    assert stored.min() < 0
    for servers in (1, 3):
        parts = divided(case_of("labels of several types", "hop", World(servers, 1)))
        for relation, kind in graph.schema.relations.items():
            assert parts.topology(relation).indices.size == kind.count
        for split in ("train", "val", "test"):
            links = parts.links(split)
            assert links.labels is not None
            np.testing.assert_array_equal(links.labels, stored[links.ids])
            # Those without labels are in no split.
            assert links.count
            assert links.labels.min() >= 0


def test_labels_of_target_relations_have_to_agree(graph_of, tmp_path):
    schema = graph_of("library of labels").schema
    labels = dict(schema.labels) | {Relation(*WROTE): Labels("float", 1)}
    broken = schema.__class__(**vars(schema) | {"labels": labels})
    with (
        pytest.raises(GraphError, match="target: expected edges of all target relations"),
        GraphWriter(tmp_path / "broken", broken),
    ):
        pass
    with pytest.raises(GraphError, match=r"labels of reader/borrows/book: expected 3, one for"):
        GraphDirectory.from_arrays(
            tmp_path / "short", {BORROWS: [[0, 1, 1], [0, 0, 1]]}, labels={BORROWS: [1, 0]}
        )
