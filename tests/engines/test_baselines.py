"""The engines of papers are plug-ins: what they import, who finds them, and what they divide."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.baselines.naive import CarriedActivations
from benchmarks.baselines.neutronstar import Costs, choose_kept
from benchmarks.baselines.split_layer import split_layer
from hopper.bench import contender
from hopper.bench.contender import Contender
from hopper.config import make_config
from hopper.config.engines import BASELINES
from hopper.engines import ENGINE_CLASSES, find_engine
from hopper.errors import ConfigError, RequestError
from hopper.features import LocalRows, PartitionedRows, RemoteRows
from hopper.graph.block import Block, Nodes
from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import Relation
from hopper.models import GNN, Layer
from hopper.models.gat import GATLayer
from hopper.partition import PartitionedGraph, partition_graph
from hopper.partition.by_node import divide_columns
from hopper.partition.layout import Columns

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "howto" / "plug-ins.md"
PLUG_INS = [*sorted(REPOSITORY.glob("benchmarks/baselines/*.py")), "examples/nearest_rows.py"]


def public_modules() -> list[str]:
    """The modules that the page lets an engine import."""
    table = PAGE.read_text(encoding="utf-8").split("| package or module |")[1].split("\n\n")[0]
    return re.findall(r"`(hopper[\w.]*)`[,| ]", table)


@pytest.mark.parametrize("file", PLUG_INS, ids=lambda file: Path(file).stem)
def test_an_engine_from_outside_imports_what_the_page_names(file: Path | str) -> None:
    allowed = public_modules()
    assert len(allowed) > 10
    tree = ast.parse((REPOSITORY / file).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert not any(alias.name.startswith("hopper") for alias in node.names)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hopper"):
            module = str(node.module)
            # Of the engines only the modules that are named, of other packages all.
            is_engine = module.startswith("hopper.engines")
            below = [name for name in allowed if module == name or module.startswith(f"{name}.")]
            assert module in allowed if is_engine else below, f"{file}:{node.lineno}: {module}"
            assert not any(alias.name.startswith("_") for alias in node.names), node.lineno


@pytest.mark.parametrize("name", BASELINES)
def test_a_comparison_takes_short_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    side = Contender.parse(f"{name}:train.epochs=2")
    assert (side.label, side.engine) == (f"{name}:train.epochs=2", name)
    config = side.configure(make_config({"data": {"partitioned": "parts"}}))
    assert find_engine(config).kind.spec.name == name
    assert name not in ENGINE_CLASSES
    assert side.exact(make_config({"data": {"partitioned": "parts"}}))


def test_elsewhere_one_line_says_where_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"train\.engine: naive is a baseline, which only a chec"):
        make_config({"data": {"partitioned": "parts"}, "train": {"engine": "naive"}})
    monkeypatch.setattr(contender, "_CHECKOUT", tmp_path)
    with pytest.raises(RequestError, match=r"^--engines: p3 is a baseline, which only a checkout"):
        Contender.parse("p3:partitioned=parts")


@pytest.fixture(scope="module")
def divided(
    community_graph: GraphDirectory, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int, str], Path]:
    """Divide the community graph over servers, its features by node or by dimension."""
    folder, paths = tmp_path_factory.mktemp("divided"), {}

    def divide(servers: int, features: Any) -> Path:
        key = servers, features
        if key not in paths:
            paths[key] = folder / f"{features}-{servers}"
            partition_graph(community_graph, paths[key], servers, "random", features=features)
        return paths[key]

    return divide


def test_a_server_stores_its_columns_of_all_nodes(
    community_graph: GraphDirectory,
    divided: Callable[[int, str], Path],
    serve_partitions: Callable[[Path, int], list[str]],
) -> None:
    graph = PartitionedGraph.open(divided(3, "by-dimension"))
    by_node = PartitionedGraph.open(divided(3, "by-node"))
    assert [columns.width for columns in divide_columns(10, 3)] == [3, 3, 4]
    assert np.array_equal(graph.original_ids("item"), by_node.original_ids("item"))
    features = np.asarray(community_graph.features("item"))[graph.original_ids("item")]
    for server, (first, stop) in enumerate(divide_columns(10, 3)):
        assert np.array_equal(graph.features("item", server), features[:, first:stop])
        assert np.array_equal(
            graph.labels("item", server),
            np.asarray(community_graph.labels("item"))[graph.original_ids("item")],
        )
    remote = RemoteRows(graph, serve_partitions(graph.path, 3), 60)
    try:
        rows, ids = PartitionedRows(graph, 1, remote), np.array([5, 250, 17])
        assert np.array_equal(rows.whole("item", ids).to_tensor().numpy(), features[ids])
        assert np.array_equal(
            LocalRows(graph, 1).gather("features", "item", ids), features[ids, 3:6]
        )
    finally:
        remote.close()


class Plain(GNN):
    """A model whose first layer does not say which weights multiply its rows."""

    def __init__(self) -> None:
        super().__init__([Layer()])


def test_a_first_layer_that_tells_no_weights_is_refused() -> None:
    with pytest.raises(RequestError, match=r"^train.engine: p3 .* Plain does not"):
        split_layer(Plain(), Columns(0, 3), "p3")


def test_a_first_layer_that_reads_destination_rows_is_refused() -> None:
    class Reading(GATLayer):
        def input_weights(self) -> Mapping[str, int]:
            return super().input_weights()

        def update(self, h_dst: torch.Tensor, combined: torch.Tensor) -> torch.Tensor:
            return super().update(h_dst, combined) + h_dst.sum()

    model = GNN([Reading(3, 2, 1, concat=True)])
    split = split_layer(model, Columns(0, 3), "p3")
    zero, starts = torch.zeros(1, dtype=torch.int64), torch.tensor([0, 1])
    node = Nodes("item", zero, zero + 1)
    block = Block(1, 1, starts, zero, Relation("item", "near", "item"), zero, node, node)
    with pytest.raises(RequestError, match=r"^train.engine: no server has all rows"):
        split.logits([block], {"sources": torch.zeros(1, 2)})


@pytest.mark.parametrize(
    ("servers", "options", "message"),
    [
        (11, {}, r"^features: by-dimension wants a column a server .* 'item' has 10 for 11"),
        (2, {"topology": "partitioned"}, r"^features: by-dimension wants topology replicated"),
        (2, {"features": "by-colour"}, r"^features: expected by-node or by-dimension, given"),
    ],
)
def test_impossible_divisions_by_dimension_are_refused(
    servers: int,
    options: dict[str, Any],
    message: str,
    community_graph: GraphDirectory,
    tmp_path: Path,
) -> None:
    arguments = {"features": "by-dimension"} | options
    with pytest.raises(RequestError, match=message):
        partition_graph(community_graph, tmp_path / "out", servers, "random", **arguments)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("places", [2, 3, 4])
def test_rows_come_home_and_gradients_reach_who_made_them(places: int) -> None:
    made_by = np.random.default_rng(places).integers(0, places, 12)
    shapes = {"sums": (5, 2), "rows": (12, 3), "own": (4, 1)}
    rows_by_place = [
        {
            kind: torch.full((count, width), 10.0**place)
            * (torch.from_numpy(made_by[:count] == place)[:, None] if kind != "sums" else 1)
            for kind, (count, width) in shapes.items()
        }
        for place in range(places)
    ]
    total = {kind: sum(rows[kind] for rows in rows_by_place) for kind in shapes}

    def make_carried() -> CarriedActivations:
        arguments = shapes, made_by, places, {"sums"}, torch.float32, torch.device("cpu")
        return CarriedActivations(*arguments)

    carried, numbers = make_carried(), []
    for place in range(places):
        carried.add(rows_by_place[place])
        step, next_carried = place + 1, make_carried()
        packed, room = carried.pack(step), next_carried.room(step)
        assert packed.shape == room.shape
        numbers.append(packed.numel())
        next_carried.unpack(step, packed)
        carried = next_carried
    assert all(torch.equal(carried.rows[kind], total[kind]) for kind in shapes)
    assert numbers == sorted(numbers)
    assert numbers[-1] == sum(count * width for count, width in shapes.values())
    # On the way back travel gradients, each to the place that made its row.
    for step in range(places + 1, 2 * places):
        next_carried = make_carried()
        next_carried.unpack(step, carried.pack(step))
        place = 2 * places - step
        for kind in ("rows", "own"):
            is_own = torch.from_numpy(made_by[: shapes[kind][0]] == place)
            assert torch.equal(next_carried.rows[kind][is_own], total[kind][is_own])
            is_left_behind = torch.from_numpy(made_by[: shapes[kind][0]] > place)
            assert not next_carried.rows[kind][is_left_behind].any()
        assert torch.equal(next_carried.rows["sums"], total["sums"])
        carried = next_carried


def test_the_cheaper_dependency_is_chosen(community_graph: GraphDirectory) -> None:
    (relation,) = community_graph.schema.relations
    topology = community_graph.topology(relation)
    is_own = np.arange(300) < 100
    everywhere = Costs(0.0, (0.0,) * 3, (0.0,) * 3, (1.0,) * 3)
    nowhere = Costs(2.0, (0.0,) * 3, (0.0,) * 3, (1.0,) * 3)
    for costs, keep in ((everywhere, True), (nowhere, False)):
        for mask in choose_kept(topology, is_own, costs):
            assert np.array_equal(mask, ~is_own & keep)
    # Projections are cheap, and edges dear: rows of nodes with many are fetched.
    masks = choose_kept(topology, is_own, Costs(0.1, (0.0,) * 2, (0.2,) * 2, (1.0,) * 2))
    degrees = np.diff(topology.indptr)
    assert np.array_equal(masks[1], ~is_own)
    near = is_own.copy()
    for node in np.flatnonzero(is_own):
        near[topology.indices[topology.indptr[node] : topology.indptr[node + 1]]] = True
    for node in np.flatnonzero(~is_own):
        sources = topology.indices[topology.indptr[node] : topology.indptr[node + 1]]
        takes = 0.1 + 0.2 * degrees[node] + 0.1 * np.count_nonzero(~near[sources])
        assert masks[0][node] == (takes <= 1.0)
    assert 0 < masks[0].sum() < (~is_own).sum()
