"""Edges predicted of graphs that are divided by relation: what a server stores and draws."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hopper.config import make_config
from hopper.engines import Request
from hopper.engines.assemble import make_runner
from hopper.errors import RequestError
from hopper.graph import GraphDirectory
from hopper.graph.schema import Relation
from hopper.hetero.divide import partition_by_relation
from hopper.hetero.rooted import root_name
from hopper.partition import PartitionedGraph, partition_graph
from hopper.timing.run_log import RunLog

from .typed_cases import BORROWS, KNOWS, LIKES, MODELS, WROTE, make_library, make_people

pytestmark = pytest.mark.filterwarnings("ignore:split ")


UNIFORM = {"decoder": "distmult", "negatives": "uniform", "num_negatives": 3}
LABELS: dict[str, Any] = {"decoder": "bilinear", "dim": 5}


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
    task = LABELS if "labels" in name else UNIFORM
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
