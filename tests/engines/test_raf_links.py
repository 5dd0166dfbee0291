"""Edges predicted of graphs that are divided by relation: the gradient is that of one process."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pairwise import pairwise

from hopper.config import make_config
from hopper.engines import Request
from hopper.engines.assemble import make_runner
from hopper.errors import RequestError
from hopper.graph import GraphDirectory
from hopper.graph.importers import ImportOptions, RandomSplit
from hopper.graph.schema import Relation
from hopper.hetero.rooted import root_name
from hopper.hetero.write_partition import partition_by_relation
from hopper.partition import PartitionedGraph, partition_graph
from hopper.run_log import RunLog

from .exactness import assert_exact
from .typed_cases import MODELS

pytestmark = pytest.mark.filterwarnings("ignore:split ")

TrainCases = Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]]

KNOWS, LIKES = ("person", "knows", "person"), ("person", "likes", "person")
BORROWS, WROTE = ("reader", "borrows", "book"), ("author", "wrote", "book")
COUNTS = {"person": 70, "group": 12, "reader": 60, "book": 45, "author": 20}
TASKS: dict[str, dict[str, Any]] = {
    "distmult, uniform": {"decoder": "distmult", "negatives": "uniform", "num_negatives": 3},
    "dot, joint": {"decoder": "dot", "negatives": "joint", "num_negatives": 5},
    "mlp, in batch": {"decoder": "mlp", "negatives": "in_batch", "num_negatives": 4},
    "rotate, by degree": {
        "decoder": "rotate",
        "negatives": "degree",
        "num_negatives": 3,
        "corrupt": "tail",
    },
    "not left out": {"decoder": "complex", "exclude": False, "corrupt": "head"},
}
LABELS: dict[str, Any] = {"decoder": "bilinear", "dim": 5}
OF_PARTS = ("rgcn", "rgat", "hgt", "own, mean of present", "own, relations apart")
# (servers, ranks of each). Four relations lead into ends: with five servers there are replicas.
WORLDS = [(2, 1), (2, 2), (3, 1), (5, 1)]
# On two servers every model meets both graphs, each time with another task; elsewhere every two of
# a world, a graph and a model meet, not all three.
CHOSEN = {
    WORLDS[0]: [
        *(("people", *pair) for pair in zip(OF_PARTS, TASKS, strict=True)),
        *(("library", *pair) for pair in zip(OF_PARTS, (*TASKS, *TASKS)[1:], strict=False)),
        *(("labels", model, "labels") for model in ("rgcn", "own, mean of present")),
        ("links in time", "rgat", "distmult, uniform"),
        ("labels in time", "rgat", "labels"),
    ],
    **{world: [] for world in WORLDS[1:]},
}
for world, name, model in pairwise(
    WORLDS[1:], ("people", "library", "labels"), ("rgat", "hgt", "own, relations apart")
):
    CHOSEN[world].append((name, model, "labels" if name == "labels" else "distmult, uniform"))
CHOSEN[2, 2].append(("links in time", "rgat", "distmult, uniform"))
CHOSEN[3, 1].append(("labels in time", "rgat", "labels"))
# What else is trained, in some world each.
THREE_LAYERS, ONE_FINISHES, BY_WEIGHT = "three layers", "one finishes", "by weight"
MORE = {
    (2, 1): (THREE_LAYERS, BY_WEIGHT),
    (2, 2): (ONE_FINISHES,),
    (3, 1): (THREE_LAYERS,),
    (5, 1): (ONE_FINISHES,),
}


def ends(source: str, destination: str, edges: int) -> np.ndarray:
    generator = np.random.default_rng(edges)
    return np.stack(
        [generator.integers(0, COUNTS[node_type], edges) for node_type in (source, destination)]
    )


def write_graph(
    out: Path,
    edges: dict[tuple[str, str, str], np.ndarray],
    targets: list[tuple[str, str, str]],
    *,
    labelled: bool = False,
    is_timed: bool = False,
) -> GraphDirectory:
    """Write a graph of some relations, with weights. Groups and authors have no features."""
    types = {end for src, _, dst in edges for end in (src, dst)}
    widths = {"person": 6, "reader": 4, "book": 5}
    generator = np.random.default_rng(1)
    features = {
        node_type: generator.random((COUNTS[node_type], widths[node_type]))
        for node_type in types & {*widths}
    }
    return GraphDirectory.from_arrays(
        out,
        edges,
        features=features,
        labels={target: edges[target].sum(0) % 3 for target in targets} if labelled else None,
        edge_weights={relation: 0.5 + pairs.sum(0) % 7 for relation, pairs in edges.items()},
        times={relation: pairs.sum(0) % 9 for relation, pairs in edges.items()}
        if is_timed
        else None,
        counts={node_type: COUNTS[node_type] for node_type in sorted(types)},
        target=targets,
        options=ImportOptions(split=RandomSplit(0.7, 0.15, by_time=is_timed)),
    )


def make_people(out: Path) -> GraphDirectory:
    """All ends are people: who knows whom, in both directions, and who likes whom."""
    knows, belongs = ends("person", "person", 180), ends("person", "group", 130)
    edges = {
        KNOWS: knows,
        ("person", "known_by", "person"): knows[::-1],
        LIKES: ends("person", "person", 120),
        ("person", "in", "group"): belongs,
        ("group", "has", "person"): belongs[::-1],
    }
    return write_graph(out, edges, [KNOWS, LIKES])


def make_library(out: Path, *, labelled: bool = False, is_timed: bool = False) -> GraphDirectory:
    """Ends are readers, books and authors; no relation leads to authors."""
    borrows = ends("reader", "book", 260)
    edges = {
        BORROWS: borrows,
        ("book", "lent_to", "reader"): borrows[::-1],
        WROTE: ends("author", "book", 90),
        ("reader", "knows", "reader"): ends("reader", "reader", 150),
    }
    return write_graph(out, edges, [BORROWS, WROTE], labelled=labelled, is_timed=is_timed)


MAKE: dict[str, Callable[[Path], GraphDirectory]] = {
    "people": make_people,
    "library": make_library,
    "labels": lambda out: make_library(out, labelled=True),
    "links in time": lambda out: make_library(out, is_timed=True),
    "labels in time": lambda out: make_library(out, labelled=True, is_timed=True),
}


def case_config(
    graph: Path, model: str, task: dict[str, Any], run_dir: Path, per_server: int, **train: Any
) -> dict[str, Any]:
    return {
        "data": {"partitioned": str(graph)},
        "model": MODELS[model],
        "sampler": {"fanouts": [3, 2, 2][: MODELS[model]["layers"]]}
        | ({"kind": "temporal"} if "in time" in graph.name else {}),
        "task": task,
        "train": {
            "engine": "raf",
            "batch_size": 9,
            "epochs": 1,
            "learning_rate": 0.01,
            "dtype": "float64",
            "evaluate_every": 0,
            "record_gradients": [0, 1],
            "iterations_per_epoch": 2,
            "run_dir": str(run_dir),
            "seed": 3,
        }
        | train,
        "learnable": {"dim": 6},
        "hop": {"merge": "off"},
        "cluster": {"ranks_per_server": per_server},
    }


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, GraphDirectory]:
    folder = tmp_path_factory.mktemp("graphs")
    return {name: make(folder / name) for name, make in MAKE.items()}


@pytest.mark.parametrize(("servers", "ranks_per_server"), WORLDS)
def test_its_gradient_is_that_of_one_process(
    servers: int,
    ranks_per_server: int,
    graphs: dict[str, GraphDirectory],
    train_cases: TrainCases,
    tmp_path: Path,
) -> None:
    """Some servers have no relation into some type of ends, and some have replicas."""
    for name, graph in graphs.items():
        partition_by_relation(graph, tmp_path / name, servers, 3)
    configs = [
        case_config(
            *(tmp_path / name, model, LABELS if task == "labels" else TASKS[task]),
            *(tmp_path / str(number), ranks_per_server),
        )
        for number, (name, model, task) in enumerate(CHOSEN[servers, ranks_per_server])
    ]
    for name, model in (
        (THREE_LAYERS, "rgcn in blocks"),
        (ONE_FINISHES, "rgcn"),
        (BY_WEIGHT, "rgat"),
    ):
        if name in MORE[servers, ranks_per_server]:
            args = tmp_path / "library", model, TASKS["dot, joint"], tmp_path / name
            values = case_config(*args, ranks_per_server)
            if name == ONE_FINISHES:
                values["raf"] = {"reduce": "designated"}
            if name == BY_WEIGHT:
                values["sampler"]["kind"] = "weighted"
            configs.append(values)
    world = servers * ranks_per_server
    results = train_cases(configs, world, tmp_path / "world")
    for values, result in zip(configs, results, strict=True):
        assert_exact(values, world)
        assert result["rows"]["remote"] == 0


@pytest.mark.parametrize(
    ("servers", "names"),
    [(2, ("people", "labels")), (3, ("library", "links in time"))],
)
def test_losses_and_scores_are_those_of_other_engines(
    servers: int,
    names: tuple[str, ...],
    graphs: dict[str, GraphDirectory],
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: TrainCases,
    tmp_path: Path,
) -> None:
    """Links are ranked among all nodes but the known ones, wherever these are stored."""
    configs = []
    for name in names:
        graph = graphs[name]
        task = LABELS if "labels" in name else TASKS["distmult, uniform"]
        partition_by_relation(graph, tmp_path / f"{name} raf", servers, 2)
        partition_graph(graph, tmp_path / f"{name} zero_hop", servers, "random")
        addresses = serve_partitions(tmp_path / f"{name} zero_hop", servers)
        for engine in ("raf", "zero_hop"):
            args = tmp_path / f"{name} {engine}", "rgcn", task, tmp_path / f"{name} by {engine}"
            values = case_config(*args, 1, engine=engine, evaluate_every=1)
            values["cluster"]["servers"] = addresses
            configs.append(values)
    results = train_cases(configs, servers, tmp_path / "world")
    for raf, zero_hop in zip(results[::2], results[1::2], strict=True):
        assert raf["losses"] == pytest.approx(zero_hop["losses"], rel=1e-9)
        assert raf["val"] == pytest.approx(zero_hop["val"], rel=1e-9)
        assert None not in raf["val"]


def test_links_of_other_splits_are_stored_nowhere_even_reversed(
    graphs: dict[str, GraphDirectory], tmp_path: Path
) -> None:
    graph = graphs["people"]
    parts = partition_by_relation(graph, tmp_path / "parts", 3, 2)
    by_node = partition_graph(graph, tmp_path / "by node", 1)
    knows, turned = Relation(*KNOWS), Relation("person", "known_by", "person")
    assert parts.reverse_relations(knows) == by_node.reverse_relations(knows) == [turned]
    for relation in graph.schema.relations:
        copies = [parts.topology(relation)]
        copies += [
            parts.topology(relation, server)
            for server, partition in enumerate(parts.partitions)
            if relation in partition.relations
        ]
        for copy in copies:
            np.testing.assert_array_equal(copy.indptr, by_node.topology(relation).indptr)
            np.testing.assert_array_equal(copy.edge_ids, by_node.topology(relation).edge_ids)
    assert parts.schema.relations[turned].count < graph.schema.relations[turned].count
    assert parts.links("val").count == graph.links("val").count


@pytest.mark.parametrize("name", MAKE)
def test_a_server_reads_its_own_folder_and_what_all_have(
    name: str, graphs: dict[str, GraphDirectory], tmp_path: Path
) -> None:
    """A machine without the folders of other servers leaves out edges, and finds known links."""
    parts = partition_by_relation(graphs[name], tmp_path / "parts", 3, 2)
    task = LABELS if "labels" in name else TASKS["distmult, uniform"]
    config = make_config(case_config(parts.path, "rgcn", task, tmp_path / "run", 1))
    drawn = []
    for server in range(3):
        folder = tmp_path / f"machine {server}"
        shutil.copytree(parts.path, folder)
        for other_server in {0, 1, 2} - {server}:
            shutil.rmtree(folder / f"server-{other_server}")
        request = Request(config, PartitionedGraph.open(folder))
        trainer = make_runner(request, RunLog(None), 100, torch.device("cpu"), server=server)
        assert trainer.links is not None
        left_out = trainer.links.excluded((0, 1))
        stored_relations = request.graph.partitions[server].relations
        # Both targets, and, of people, what tells one of them the other way round.
        revealing = {Relation(*words) for words in (KNOWS, LIKES, BORROWS, WROTE)}
        revealing |= {
            relation for relation in stored_relations if relation.rel in ("known_by", "lent_to")
        }
        assert set(left_out) == (set() if "labels" in name else stored_relations & revealing)
        roots = trainer.links.pairs(trainer.links.batch((0, 1)).roots, 0, 1).versions
        stored = {
            node_type: ids
            for node_type, ids in roots.items()
            if node_type in root_types(request, server)
        }
        drawn.append(
            trainer.sampler.sample_versions(
                {root_name(node_type): ids for node_type, ids in stored.items()}, 0, 1
            )
        )
        for relation in request.schema.target_relations:
            assert request.graph.topology(relation).indices.size
    assert all(subgraph.num_edges for subgraph in drawn)


def root_types(request: Request, server: int) -> set[str]:
    return {relation.dst for relation in request.graph.partitions[server].roots}


def test_weights_count_what_ends_of_every_type_sample(
    graphs: dict[str, GraphDirectory], tmp_path: Path
) -> None:
    parts = partition_by_relation(
        graphs["library"], tmp_path / "parts", 2, 2, weights_fanouts=[2, 2]
    )
    weights = parts.description["meta"]["weights"]
    assert set(weights) == {
        *("reader/borrows/book", "author/wrote/book"),
        *("book/lent_to/reader", "reader/knows/reader"),
    }
    assert all(weight > 0 for weight in weights.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "book"}, r"^--target: edges of reader/borrows/book, author/wrote/book are"),
        ({"server_memory": 10_000}, r"^--server-memory: only graphs whose nodes are predicted"),
        ({"metapaths": [["borrows"]]}, r"metapaths: metapaths start from one type"),
    ],
)
def test_what_cannot_be_divided_is_refused(
    options: dict[str, Any], message: str, graphs: dict[str, GraphDirectory], tmp_path: Path
) -> None:
    with pytest.raises(RequestError, match=message):
        partition_by_relation(graphs["library"], tmp_path / "parts", 2, 2, **options)
    assert not (tmp_path / "parts").exists()
