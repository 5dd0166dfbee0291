"""Links: every engine that predicts them computes the gradient of one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pairwise import pairwise

from hopper.config import make_config
from hopper.config.engines import BASELINES
from hopper.engines import Request
from hopper.engines.assemble import (
    make_link_batches,
    make_runner,
    make_sampler,
    make_schedule,
)
from hopper.engines.checks import check_request
from hopper.engines.unused import describe_unused
from hopper.errors import ConfigError, RequestError
from hopper.graph import GraphDirectory
from hopper.graph.importers import ImportOptions, RandomSplit
from hopper.graph.schema import Relation
from hopper.partition import PartitionedGraph, partition_graph
from hopper.timing.run_log import RunLog
from tests.graphs import RATED, RATES, WROTE, make_library

from .conftest import CheckEngines, merged

pytestmark = pytest.mark.filterwarnings("ignore:split drawn")

ONE_TYPE = {
    "sage": {"name": "sage", "layers": 2, "hidden": 8, "dropout": 0.2},
    "gat": {"name": "gat", "layers": 2, "hidden": 4, "heads": 2, "dropout": 0.2},
    "gcn": {"name": "gcn", "layers": 2, "hidden": 8},
}
TASKS: dict[str, dict[str, Any]] = {
    "dot, joint": {"decoder": "dot", "negatives": "joint", "num_negatives": 5},
    "distmult, uniform": {"decoder": "distmult", "negatives": "uniform", "num_negatives": 3},
    "mlp, in batch": {"decoder": "mlp", "negatives": "in_batch", "num_negatives": 4},
    "rotate, by degree": {
        "decoder": "rotate",
        "negatives": "degree",
        "num_negatives": 3,
        "corrupt": "tail",
    },
    "dot, own": {"decoder": "dot", "negatives": "own_parts:Strides", "num_negatives": 3},
    "complex, not left out": {"decoder": "complex", "exclude": False, "corrupt": "head"},
}
LABELS: dict[str, Any] = {"decoder": "bilinear", "dim": 5}
NEAR = Relation("item", "near", "item")
LOSSES = {"mlp, in batch": "bpr", "rotate, by degree": "margin"}
MOVING = ("model_centric", "zero_hop in passes", "hop, one step merged", "cooperative")


@pytest.fixture(scope="module")
def link_graph(
    community_graph: GraphDirectory, tmp_path_factory: pytest.TempPathFactory
) -> GraphDirectory:
    """The community graph with its edges as links."""
    return GraphDirectory.from_arrays(
        tmp_path_factory.mktemp("near") / "links",
        {NEAR: ends_of(community_graph)},
        features={"item": np.asarray(community_graph.features("item"))},
        target=NEAR,
        options=ImportOptions(split=RandomSplit(0.8, 0.1)),
    )


def ends_of(community_graph: GraphDirectory) -> np.ndarray:
    topology = community_graph.topology(NEAR)
    dst = np.repeat(np.arange(topology.in_degrees.size), np.diff(topology.indptr))
    return np.stack([topology.indices, dst])


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> GraphDirectory:
    """A library whose ratings, and who wrote what, are predicted together."""
    return make_library(tmp_path_factory.mktemp("library") / "graph", [RATES, WROTE])


def sections_of(model: dict[str, Any], task: str) -> dict[str, Any]:
    train = {"learning_rate": 0.01, "loss": LOSSES.get(task, "auto")}
    return {"model": model, "task": TASKS[task], "train": train}


def values_of(parts: Path, *case: Any) -> dict[str, Any]:
    train = {"batch_size": 9, "epochs": 1, "engine": "model_centric"}
    return merged({"data": {"partitioned": str(parts)}, "train": train}, sections_of(*case))


def test_negatives_from_a_file(
    link_graph: GraphDirectory, check_engines: CheckEngines, tmp_path: Path
) -> None:
    links = link_graph.schema.splits["train"]
    file = tmp_path / "train.npy"
    np.save(file, np.random.default_rng(1).integers(0, 300, (links, 2, 3)))
    task = {"decoder": "dot", "fixed_negatives": {"train": str(file)}}
    sections = {"model": ONE_TYPE["sage"], "task": task}
    trained = check_engines(link_graph, {(engine,): sections for engine in MOVING}, 2)
    config = make_config(trained["model_centric",].values)
    request = Request(config, PartitionedGraph.open(config.data.partitioned))
    batches, stored = make_link_batches(request, make_sampler(request)), np.load(file)
    assert batches is not None
    roots = make_schedule(request).batch(0, 0).roots
    pairs = batches.pairs(roots, 0, 0)
    originals = request.graph.original_ids("item")[pairs.versions["item"]]
    np.testing.assert_array_equal(originals[pairs.tails[:, 1:4]], stored[roots, 0])
    np.testing.assert_array_equal(originals[pairs.heads[:, 4:]], stored[roots, 1])
    for changed, expected in (
        (stored[:, :1], r"task\.fixed_negatives\.train: .*expected integers of shape"),
        (
            stored + 300,
            r"expected original ids of item in \[0, 300\) in the place of a tail, given",
        ),
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


@pytest.fixture(scope="module")
def divided(library: GraphDirectory, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The library on one, two and four servers, its nodes divided differently each time."""
    folder = tmp_path_factory.mktemp("divided")
    for servers in (1, 2, 4):
        partition_graph(library, folder / str(servers), servers, "random", seed=servers)
    return {servers: folder / str(servers) for servers in (1, 2, 4)}


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


FULL_BATCHES: list[tuple[str, dict[str, Any]]] = [
    ("links", {"num_negatives": 2}),
    ("links", {"num_negatives": 2, "exclude": False, "negatives": "uniform"}),
    ("labels", LABELS),
]
# Every two of a world, a way and a task meet, not all three.
OF_FULL_BATCHES = pairwise(
    [(2, 1), (3, 1)], ("hybrid", "fetch", "recompute"), range(len(FULL_BATCHES))
)


@pytest.mark.parametrize("world", [(2, 1), (3, 1)])
def test_full_batches(
    world: tuple[int, int],
    community_graph: GraphDirectory,
    check_engines: CheckEngines,
    tmp_path: Path,
) -> None:
    """All training links, or all edges with labels, are one batch.

    Every epoch draws other negatives. Rows that an earlier epoch fetched are not fetched again.
    """
    ends = ends_of(community_graph)
    order = np.random.default_rng(2).permutation(ends.shape[1])
    # Some edges are in no split: they are read, whatever is trained.
    splits = {"train": order[:200], "val": order[200:260], "test": order[260:300]}
    for name, labels in (("links", None), ("labels", {NEAR: ends.sum(0) % 3})):
        graph = GraphDirectory.from_arrays(
            tmp_path / name,
            {NEAR: ends},
            {"item": np.asarray(community_graph.features("item"))},
            labels,
            splits,
            target=NEAR,
        )
        cases = {
            ("neutronstar", way, str(number)): {
                "model": ONE_TYPE["gat"],
                "sampler": {"kind": "full"},
                "task": FULL_BATCHES[number][1],
                "train": {"engine_options": {"dependencies": way}, "epochs": 3},
            }
            for here, way, number in OF_FULL_BATCHES
            if here == world and FULL_BATCHES[number][0] == name
        }
        for (_, way, _), trained in check_engines(graph, cases, *world).items():
            lines = Path(trained.values["train"]["run_dir"], "epochs.jsonl").read_text()
            fetched = [json.loads(line)["bytes"]["feature"] for line in lines.splitlines()]
            assert (fetched[0] > 0) == (way == "recompute") or way == "hybrid"
            # Later epochs fetch what no epoch before has read.
            assert fetched[2] < max(1, fetched[0] / 4)


def test_a_full_batch_leaves_edges_to_read(link_graph: GraphDirectory, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    partition_graph(link_graph, parts, 2, "random")
    values = values_of(parts, ONE_TYPE["sage"], "dot, joint")
    values["sampler"] = {"kind": "full"}
    graph = PartitionedGraph.open(parts)
    with pytest.raises(RequestError, match=r"^task\.exclude: .* leaves no edge of .* to read"):
        check_request(Request(make_config(values), graph))
    values["task"] |= {"exclude": False}
    check_request(Request(make_config(values), graph))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"train": {"engine": "raf"}}, "train.engine: "),
        (
            {"train": {"engine": BASELINES["neutronstar"]}},
            "train.engine: neutronstar knows no node types",
        ),
        ({"sampler": {"kind": "labor"}}, "sampler.kind: links are predicted"),
        ({"task": {"kind": "node"}}, "task.kind: the graph's target is"),
        ({"model": {"name": "nars", "layers": 1, "hidden": 8}}, "model.name: links are predicted"),
    ],
)
def test_wrong_requests_are_refused(
    changes: dict[str, Any], expected: str, divided: dict[int, Path]
) -> None:
    parts = divided[2]
    values: dict[str, Any] = {
        "data": {"partitioned": str(parts)},
        "model": {"name": "rgcn", "layers": 2, "hidden": 8},
    }
    for section, keys in changes.items():
        values[section] = keys if section == "model" else values.get(section, {}) | keys
    with pytest.raises(RequestError) as error:
        check_request(Request(make_config(values), PartitionedGraph.open(parts)))
    assert str(error.value).startswith(expected), str(error.value)


def test_links_need_a_graph_that_has_them(community_graph: GraphDirectory, tmp_path: Path) -> None:
    partition_graph(community_graph, tmp_path / "parts", 1)
    config = make_config(
        {"data": {"partitioned": str(tmp_path / "parts")}, "task": {"kind": "link"}}
    )
    with pytest.raises(RequestError, match="imported with --target RELATION"):
        check_request(Request(config, PartitionedGraph.open(tmp_path / "parts")))
    values = {"data": {"partitioned": str(tmp_path / "parts")}, "task": {"decoder": "mlp"}}
    graph = PartitionedGraph.open(tmp_path / "parts")
    trials: dict[str, Any] = {"replicas": "independent", "trials": [{"task.decoder": "mlp"}]}
    swept = make_config(values | {"hop": trials, "train": {"engine": "hop"}})
    with pytest.raises(RequestError, match=r"hop\.trials: task\.decoder: the model predicts"):
        check_request(Request(swept, graph))
    request = Request(make_config(values), graph)
    assert describe_unused(request) == ["not used: task.decoder: nodes are predicted, not links"]
