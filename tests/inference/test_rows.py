"""Scoring a split layer by layer, in chunks where memory bounds them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from hopper.cluster.cluster import Cluster
from hopper.config import make_config
from hopper.engines import Request
from hopper.engines.assemble import make_full_sampler, make_model
from hopper.features import PartitionedRows
from hopper.graph import EdgeType, GraphDirectory, GraphSchema, GraphWriter, Labels, NodeType
from hopper.graph.block import Block
from hopper.graph.schema import Relation
from hopper.hetero.learnable import LearnableRows
from hopper.inference import Inference, RowSpace, Scene, Wanted, make_inference
from hopper.inference.layer_wise import LayerWise
from hopper.models import run_model
from hopper.partition import PartitionedGraph, partition_graph
from hopper.tasks import find_target

WRITES, CITES = Relation("author", "writes", "paper"), Relation("paper", "cites", "paper")


@pytest.fixture
def graph(tmp_path: Path) -> PartitionedGraph:
    generator = np.random.default_rng(0)
    schema = GraphSchema(
        name="papers",
        node_types={"author": NodeType(40, 3, "float32"), "paper": NodeType(90, 5, "float32")},
        relations={WRITES: EdgeType(200), CITES: EdgeType(300)},
        target="paper",
        labels={"paper": Labels("class", 3)},
        splits={"train": 30, "val": 50},
    )
    with GraphWriter(tmp_path / "graph", schema) as writer:
        writer.topology(WRITES, generator.integers(0, 40, 200), generator.integers(0, 90, 200))
        writer.topology(CITES, generator.integers(0, 90, 300), generator.integers(0, 90, 300))
        for name, kind in schema.node_types.items():
            rows = writer.features(name)
            rows[:] = generator.standard_normal((kind.count, kind.feature_dim or 0))
        writer.labels("paper", generator.integers(0, 3, 90))
        order = generator.permutation(90)
        writer.split("train", np.sort(order[:30]))
        writer.split("val", np.sort(order[30:80]))
    return partition_graph(GraphDirectory.open(tmp_path / "graph"), tmp_path / "parts", 1, "random")


def inference_of(
    model: dict[str, object], graph: PartitionedGraph, chunk_bytes: int = 1 << 20
) -> tuple[Request, Inference]:
    config = make_config(
        {
            "data": {"partitioned": str(graph.path)},
            "model": {"layers": 2, "hidden": 8} | model,
            "sampler": {"fanouts": [2, 2]},
            "train": {"dtype": "float64"},
        }
    )
    cluster = Cluster(0, 1, 1, torch.device("cpu"), 1.0)
    request, rows = Request(config, graph), PartitionedRows(graph, 0, None)
    classes = find_target(config, graph.schema).width
    learnable = LearnableRows(cluster)
    scene = Scene(request, cluster, rows, torch.float64, learnable, classes, chunk_bytes)
    return request, make_inference(scene, make_model(request))


@pytest.mark.parametrize(
    "options",
    [
        {"name": "rgat"},
        # Three classes are narrower than the rows that a layer reads.
        {"name": "rgat", "hidden": 16, "heads": 1, "merge": False},
        {"name": "rgcn"},
        # Input rows of three numbers are narrower than hidden rows.
        {"name": "hgt", "hidden": 8, "heads": 2},
    ],
)
def test_layers_in_chunks_score_like_whole_neighbourhoods(
    options: dict[str, object], graph: PartitionedGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, inference = inference_of(options, graph)
    model = make_model(request).eval()
    with torch.no_grad():
        ids, logits = inference.rows(model, inference.split("val"))
        rows = PartitionedRows(graph, 0, None)
        subgraph = make_full_sampler(request, 0).sample(ids, 0, 0)
        inputs = {
            name: torch.from_numpy(rows.gather("features", name, nodes)).double()
            for name, nodes in subgraph.nodes.items()
        }
        expected = run_model(model, subgraph.typed_blocks(), inputs)
    assert sorted(graph.original_ids("paper")[ids]) == sorted(
        graph.original_ids("paper")[graph.global_ids("paper")[graph.split("val")]]
    )
    assert torch.allclose(logits, expected, rtol=0, atol=1e-12)
    chunks: list[int] = []
    new_rows = LayerWise._new_rows

    def count_rows(self: LayerWise, *arguments: Any) -> torch.Tensor:
        rows = new_rows(self, *arguments)
        chunks.append(len(rows))
        return rows

    monkeypatch.setattr(LayerWise, "_new_rows", count_rows)
    inference = inference_of(options, graph, chunk_bytes=2048)[1]
    with torch.no_grad():
        chunked_ids, chunked_logits = inference.rows(model, inference.split("val"))
    assert len(chunks) > 10
    assert min(chunks) > 0
    np.testing.assert_array_equal(ids, chunked_ids)
    assert torch.allclose(logits, chunked_logits, rtol=0, atol=1e-12)


class Interrupted(Exception):
    """Stands in for a signal."""


@pytest.mark.parametrize("output", ["logits", "embeddings"])
@pytest.mark.parametrize("name", ["rgcn", "hgt"])
def test_rows_in_files_equal_those_in_memory_after_interruptions(
    name: str, output: Literal["logits", "embeddings"], graph: PartitionedGraph, tmp_path: Path
) -> None:
    """After each interruption no piece is made again, and the bits are the same."""
    request, inference = inference_of({"name": name}, graph, chunk_bytes=2048)
    model = make_model(request).eval()
    wanted = Wanted("all", np.arange(90), output)
    with torch.no_grad():
        ids, expected = inference.rows(model, wanted)
    assert expected.shape == (90, 3 if output == "logits" else 8)
    pieces_made: list[tuple[str, int]] = []

    def interrupt(table: str, done: int, pieces: int) -> None:
        pieces_made.append((table, done))
        raise Interrupted

    for _ in range(500):
        space = RowSpace(tmp_path / "rows", on_piece=interrupt)
        try:
            with torch.no_grad():
                ids_in_files, rows_in_files = inference.rows(model, wanted, space)
        except Interrupted:
            continue
        break
    else:
        pytest.fail("it never came to an end")
    assert len(pieces_made) == len(set(pieces_made)) > 10
    np.testing.assert_array_equal(ids, ids_in_files)
    assert torch.equal(rows_in_files, expected)


def test_a_model_without_layers_scores_by_whole_neighbourhoods(
    community_graph: GraphDirectory, tmp_path: Path
) -> None:
    parts = partition_graph(community_graph, tmp_path / "parts", 1, "random")
    request, inference = inference_of({"name": "gcn"}, parts)
    model = make_model(request).eval()
    with torch.no_grad():
        ids, by_layers = inference.rows(model, inference.split("val"))
        ids_again, by_forward = inference.rows(NoLayers(model), inference.split("val"))
    np.testing.assert_array_equal(ids, ids_again)
    assert torch.allclose(by_layers, by_forward, rtol=0, atol=1e-12)


class NoLayers(torch.nn.Module):
    """A model of which nothing is known but its ``forward()``."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, blocks: Sequence[Block], x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(blocks, x)
        return logits
