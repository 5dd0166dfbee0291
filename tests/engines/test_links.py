"""Links: every engine that predicts them computes the gradient of one process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pairwise import pairwise

from hopper.config import make_config
from hopper.engines import Request
from hopper.engines.assemble import (
    make_group_trainer,
    make_link_batches,
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
from hopper.run_log import RunLog

from .exactness import assert_exact

pytestmark = pytest.mark.filterwarnings("ignore:split drawn")

TrainCases = Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]]

ENGINES: dict[str, dict[str, Any]] = {
    "model_centric": {"train": {"engine": "model_centric"}},
    "zero_hop in passes": {"train": {"engine": "zero_hop", "micro_batch": 7}},
    "hop": {"train": {"engine": "hop"}, "hop": {"merge": 0}},
    "hop, one step merged": {"train": {"engine": "hop"}, "hop": {"merge": 1}},
    "cooperative": {"train": {"engine": "cooperative"}},
    "locality": {"train": {"engine": "locality"}},
}
ONE_TYPE = {
    "sage": {"name": "sage", "layers": 2, "hidden": 8, "dropout": 0.2},
    "gat": {"name": "gat", "layers": 2, "hidden": 4, "heads": 2, "dropout": 0.2},
    "gcn": {"name": "gcn", "layers": 2, "hidden": 8},
}
SEVERAL_TYPES = {
    "rgcn": {"name": "rgcn", "layers": 2, "hidden": 8, "dropout": 0.2},
    "rgcn with a head": {"name": "rgcn", "layers": 2, "hidden": 8, "head": True},
    "rgat": {"name": "rgat", "layers": 2, "hidden": 4, "heads": 2},
    "hgt": {"name": "hgt", "layers": 2, "hidden": 8, "heads": 2},
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
LABELS: dict[str, dict[str, Any]] = {"labels": {"decoder": "bilinear", "dim": 5}}
DIVIDING: dict[str, dict[str, Any]] = {
    engine: {"train": {"engine": engine}} for engine in ("naive", "p3")
}
LOSSES = {"mlp, in batch": "bpr", "rotate, by degree": "margin"}
MOVING = ("model_centric", "zero_hop in passes", "hop, one step merged", "cooperative")
# (method, servers, ranks of each)
DIVISIONS = [("metis", 2, 1), ("random", 2, 2), ("metis", 3, 1)]
# Every two of a division, an engine, a model and a task meet, not all four; engines whose groups
# are those of another in other steps meet each division once.
OF_ONE_TYPE = pairwise(DIVISIONS, MOVING, ONE_TYPE, TASKS)
OF_ONE_TYPE += [
    (division, engine, "sage", "dot, joint")
    for division, engine in zip(DIVISIONS, ("hop", "locality", "hop"), strict=True)
]
WORLDS = [(2, 1), (2, 2)]
# Engines that divide what a model computes train every one; to the others models are whole.
OF_SEVERAL_TYPES = pairwise(
    WORLDS,
    ("zero_hop in passes", "cooperative"),
    [*((model, "distmult, uniform") for model in SEVERAL_TYPES), ("rgcn", "rotate, by degree")],
)
OF_SEVERAL_TYPES += pairwise(
    WORLDS,
    ("model_centric", "hop, one step merged"),
    [("rgcn", "rotate, by degree"), ("hgt", "distmult, uniform")],
)


@pytest.fixture(scope="module")
def link_graph(community_graph: GraphDirectory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the community graph with its edges as links."""
    topology = community_graph.topology(Relation("item", "near", "item"))
    dst = np.repeat(np.arange(topology.in_degrees.size), np.diff(topology.indptr))
    out = tmp_path_factory.mktemp("near") / "graph"
    GraphDirectory.from_arrays(
        out,
        {("item", "near", "item"): np.stack([topology.indices, dst])},
        features={"item": np.asarray(community_graph.features("item"))},
        target=("item", "near", "item"),
        options=ImportOptions(split=RandomSplit(0.8, 0.1)),
    )
    return out


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Readers, books and authors; what is lent, and who wrote what, are predicted together."""
    generator = np.random.default_rng(5)

    def ends(sources: int, destinations: int, edges: int) -> np.ndarray:
        return np.stack(
            [generator.integers(0, sources, edges), generator.integers(0, destinations, edges)]
        )

    lent, wrote = ends(60, 45, 260), ends(20, 45, 90)
    out = tmp_path_factory.mktemp("library") / "graph"
    GraphDirectory.from_arrays(
        out,
        {
            ("reader", "borrows", "book"): lent,
            ("book", "lent_to", "reader"): lent[::-1],
            ("author", "wrote", "book"): wrote,
            ("reader", "knows", "reader"): ends(60, 60, 150),
        },
        features={"reader": generator.random((60, 4)), "book": generator.random((45, 5))},
        counts={"author": 20},
        target=[("reader", "borrows", "book"), ("author", "wrote", "book")],
        options=ImportOptions(split=RandomSplit(0.8, 0.1)),
    )
    return out


def case_config(
    engine: str, model: dict[str, Any], task: str, parts: Path, run_dir: Path, **train: Any
) -> dict[str, Any]:
    options = (ENGINES | DIVIDING)[engine]
    return {
        "data": {"partitioned": str(parts)},
        "model": model,
        "sampler": {"fanouts": [3, 2]},
        "task": (TASKS | LABELS)[task],
        "train": {
            "batch_size": 9,
            "epochs": 1,
            "learning_rate": 0.01,
            "dtype": "float64",
            "loss": LOSSES.get(task, "auto"),
            "evaluate_every": 0,
            "record_gradients": [0, 1],
            "iterations_per_epoch": 2,
            "run_dir": str(run_dir),
            "seed": 3,
        }
        | options["train"]
        | train,
        "hop": {"merge": "off"} | options.get("hop", {}),
    }


def compare(
    chosen: list[tuple[str, dict[str, Any], str]],
    parts: Path,
    world: tuple[int, int],
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: TrainCases,
    folder: Path,
) -> None:
    servers, ranks_per_server = world
    addresses = serve_partitions(parts, servers) if servers > 1 else []
    configs = [
        case_config(engine, model, task, parts, folder / str(number))
        | {"cluster": {"servers": addresses, "ranks_per_server": ranks_per_server}}
        for number, (engine, model, task) in enumerate(chosen)
    ]
    ranks = servers * ranks_per_server
    for config in configs:
        if config["hop"]["merge"] != "off":
            config["hop"]["merge"] = min(config["hop"]["merge"], ranks - 1)
    train_cases(configs, ranks, folder / "world")
    for config in configs:
        assert_exact(config, ranks)


@pytest.mark.parametrize(("method", "servers", "ranks_per_server"), DIVISIONS)
def test_one_type(
    method: str,
    servers: int,
    ranks_per_server: int,
    link_graph: Path,
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: TrainCases,
    tmp_path: Path,
) -> None:
    parts = tmp_path / "parts"
    partition_graph(GraphDirectory.open(link_graph), parts, servers, method, backend="pymetis")
    here = (method, servers, ranks_per_server)
    chosen = [
        (engine, ONE_TYPE[model], task)
        for division, engine, model, task in OF_ONE_TYPE
        if division == here
    ]
    parts_and_world = parts, (servers, ranks_per_server)
    compare(chosen, *parts_and_world, serve_partitions, train_cases, tmp_path)


@pytest.mark.parametrize(("servers", "ranks_per_server"), WORLDS)
def test_several_types(
    servers: int,
    ranks_per_server: int,
    library: Path,
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: TrainCases,
    tmp_path: Path,
) -> None:
    parts = tmp_path / "parts"
    partition_graph(GraphDirectory.open(library), parts, servers, "random")
    chosen = [
        (engine, SEVERAL_TYPES[model], task)
        for world, engine, (model, task) in OF_SEVERAL_TYPES
        if world == (servers, ranks_per_server)
    ]
    parts_and_world = parts, (servers, ranks_per_server)
    compare(chosen, *parts_and_world, serve_partitions, train_cases, tmp_path)


def test_negatives_from_a_file(
    link_graph: Path,
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: TrainCases,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    graph, parts = GraphDirectory.open(link_graph), tmp_path / "parts"
    partition_graph(graph, parts, 2, "random")
    links = graph.schema.splits["train"]
    file = tmp_path / "train.npy"
    np.save(file, np.random.default_rng(1).integers(0, 300, (links, 2, 3)))
    task = {"decoder": "dot", "fixed_negatives": {"train": str(file)}}
    monkeypatch.setitem(TASKS, "from a file", task)
    chosen = [(engine, ONE_TYPE["sage"], "from a file") for engine in MOVING]
    compare(chosen, parts, (2, 1), serve_partitions, train_cases, tmp_path)
    request = Request(
        make_config(case_config(*chosen[0], parts, tmp_path / "run")), PartitionedGraph.open(parts)
    )
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
def divided(library: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """The library on one, two and four servers, its nodes divided differently each time."""
    folder, graph = tmp_path_factory.mktemp("divided"), GraphDirectory.open(library)
    for servers in (1, 2, 4):
        partition_graph(graph, folder / str(servers), servers, "random", seed=servers)
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
    trainer = make_group_trainer(request, RunLog(None), 10**6, torch.device("cpu"))
    trainer.sampler.fanouts = (-1, -1)
    table, relations = request.links.table, request.schema.target_relations
    roots = make_schedule(request).batch(0, 1).roots
    left_out = {
        (relations[table.relations[root]], int(table.src[root]), int(table.dst[root]))
        for root in roots
    }
    turned = Relation("book", "lent_to", "reader")
    left_out |= {(turned, v, u) for relation, u, v in left_out if relation.rel == "borrows"}
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
    into = Relation("reader", "borrows", "book")
    topology = request.graph.topology(into)
    for book in subgraph.nodes["book"][: subgraph.sizes[0]["book"]].tolist():
        sources = topology.indices[topology.indptr[book] : topology.indptr[book + 1]].tolist()
        remaining = {(into, u, book) for u in sources} - left_out
        assert remaining == {edge for edge in drawn if edge[0] == into and edge[2] == book}


@pytest.mark.parametrize(
    ("engine", "servers", "ranks_per_server"), [("naive", 2, 2), ("naive", 3, 1), ("p3", 2, 1)]
)
def test_engines_that_divide_the_first_layer(
    engine: str,
    servers: int,
    ranks_per_server: int,
    link_graph: Path,
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: TrainCases,
    tmp_path: Path,
) -> None:
    """They train links, and edges whose labels are predicted."""
    links, relation = GraphDirectory.open(link_graph), Relation("item", "near", "item")
    topology = links.topology(relation)
    dst = np.repeat(np.arange(topology.in_degrees.size), np.diff(topology.indptr))
    labelled = GraphDirectory.from_arrays(
        tmp_path / "labelled",
        {relation: np.stack([topology.indices, dst])},
        features={"item": np.asarray(links.features("item"))},
        labels={relation: (np.asarray(topology.indices) + dst) % 3},
        target=relation,
        options=ImportOptions(split=RandomSplit(0.8, 0.1)),
    )
    features: Any = "by-dimension" if engine == "p3" else "by-node"
    configs = []
    for graph, trained in (
        (links, (("sage", "mlp, in batch"), ("gat", "dot, joint"))),
        (labelled, (("gcn", "labels"),)),
    ):
        parts = tmp_path / f"parts of {graph.path.name}"
        partition_graph(graph, parts, servers, "random", features=features)
        cluster = {
            "servers": serve_partitions(parts, servers),
            "ranks_per_server": ranks_per_server,
        }
        for model, task in trained:
            run_dir = tmp_path / f"{graph.path.name} {model}"
            values = case_config(engine, ONE_TYPE[model], task, parts, run_dir)
            configs.append(values | {"cluster": cluster})
    world = servers * ranks_per_server
    train_cases(configs, world, tmp_path / "world")
    for values in configs:
        assert_exact(values, world)


FULL_BATCHES: list[tuple[str, dict[str, Any]]] = [
    ("links", {"num_negatives": 2}),
    ("links", {"num_negatives": 2, "exclude": False, "negatives": "uniform"}),
    ("labels", {"decoder": "bilinear", "dim": 5}),
]
# Every two of a world, a way and a task meet, not all three.
OF_FULL_BATCHES = pairwise(
    [(2, 1), (2, 2), (3, 1)], ("hybrid", "fetch", "recompute"), range(len(FULL_BATCHES))
)


@pytest.mark.parametrize(("servers", "ranks_per_server"), [(2, 1), (2, 2), (3, 1)])
def test_full_batches(
    servers: int,
    ranks_per_server: int,
    community_graph: GraphDirectory,
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: TrainCases,
    tmp_path: Path,
) -> None:
    """All training links, or all edges with labels, are one batch.

    Every epoch draws other negatives. Rows that an earlier epoch fetched are not fetched again.
    """
    topology = community_graph.topology(Relation("item", "near", "item"))
    ranks = servers * ranks_per_server
    dst = np.repeat(np.arange(topology.in_degrees.size), np.diff(topology.indptr))
    ends = np.stack([topology.indices, dst])
    features, labels = np.asarray(community_graph.features("item")), ends.sum(0) % 3
    order = np.random.default_rng(2).permutation(dst.size)
    # Some edges are in no split: they are read, whatever is trained.
    splits = {"train": order[:200], "val": order[200:260], "test": order[260:300]}
    relation = ("item", "near", "item")
    for name, labels_of_edges in (("links", None), ("labels", {relation: labels})):
        graph = GraphDirectory.from_arrays(
            tmp_path / name,
            *({relation: ends}, {"item": features}, labels_of_edges, splits),
            target=relation,
        )
        partition_graph(graph, tmp_path / f"{name} divided", servers, "random")
    addresses = {
        name: serve_partitions(tmp_path / f"{name} divided", servers)
        for name in ("links", "labels")
    }
    configs = []
    for world, way, number in OF_FULL_BATCHES:
        if world != (servers, ranks_per_server):
            continue
        name, task = FULL_BATCHES[number]
        values = case_config(
            "cooperative", ONE_TYPE["gat"], "labels", *(tmp_path / f"{name} divided", tmp_path)
        )
        values["sampler"], values["task"] = {"kind": "full"}, task
        values["cluster"] = {"servers": addresses[name], "ranks_per_server": ranks_per_server}
        values["train"] |= {
            "engine": "neutronstar",
            "engine_options": {"dependencies": way},
            "epochs": 3,
            "run_dir": str(tmp_path / str(len(configs))),
        }
        configs.append(values)
    train_cases(configs, ranks, tmp_path / "world")
    for values in configs:
        assert_exact(values, ranks)
        lines = (Path(values["train"]["run_dir"]) / "epochs.jsonl").read_text().splitlines()
        fetched = [json.loads(line)["bytes"]["feature"] for line in lines]
        way = values["train"]["engine_options"]["dependencies"]
        assert (fetched[0] > 0) == (way == "recompute") or way == "hybrid"
        # Later epochs fetch what no epoch before has read.
        assert fetched[2] < max(1, fetched[0] / 4)


def test_a_full_batch_leaves_edges_to_read(link_graph: Path, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    partition_graph(GraphDirectory.open(link_graph), parts, 2, "random")
    values = case_config("cooperative", ONE_TYPE["sage"], "dot, joint", parts, tmp_path / "run")
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
            {"train": {"engine": "neutronstar"}},
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
