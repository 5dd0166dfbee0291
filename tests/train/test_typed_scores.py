"""Scoring a split in several passes, where memory bounds them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hopper.cluster import Cluster
from hopper.config import make_config
from hopper.engines import Request
from hopper.engines.assemble import make_full_sampler, make_model
from hopper.features import PartitionedRows
from hopper.graph import EdgeType, GraphDirectory, GraphSchema, GraphWriter, Labels, NodeType
from hopper.graph.schema import Relation
from hopper.hetero.learnable import LearnableRows
from hopper.models import Objective
from hopper.partials import TypedPlan, TypedPlanner
from hopper.partition import PartitionedGraph, partition_graph
from hopper.train import typed_evaluate
from hopper.train.evaluate import Scene
from hopper.train.typed_evaluate import TypedEvaluator

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


def test_several_passes_score_like_one(
    graph: PartitionedGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(
        {
            "data": {"partitioned": str(graph.path)},
            "model": {"name": "rgat", "layers": 2, "hidden": 8},
            "sampler": {"fanouts": [2, 2]},
            "train": {"dtype": "float64"},
        }
    )
    model = make_model(Request(config, graph)).eval()
    cluster = Cluster(0, 1, 1, torch.device("cpu"), 1.0)
    passes: list[int] = []
    plans: list[int] = []
    made, planned = typed_evaluate.TypedForward.logits, TypedPlanner.plan

    def counted(self: typed_evaluate.TypedForward, plan: object, *rest: object) -> torch.Tensor:
        passes.append(plan.roots)  # type: ignore[attr-defined]
        return made(self, plan, *rest)  # type: ignore[arg-type]

    def noted(self: TypedPlanner, roots: np.ndarray, epoch: int, iteration: int) -> TypedPlan:
        plans.append(roots.size)
        return planned(self, roots, epoch, iteration)

    monkeypatch.setattr(typed_evaluate.TypedForward, "logits", counted)
    monkeypatch.setattr(TypedPlanner, "plan", noted)

    def scores() -> tuple[np.ndarray, torch.Tensor]:
        passes.clear()
        rows = PartitionedRows(graph, 0, None)
        request = Request(config, graph)
        learnable = LearnableRows(cluster)
        scene = Scene(request, cluster, rows, Objective("class"), torch.float64, learnable)
        evaluator = TypedEvaluator(scene, make_full_sampler(request, 0))
        with torch.no_grad():
            found = evaluator.logits(model, "val")
            first = len(passes)
            plans.clear()
            evaluator.logits(model, "val")
        # What was found to fit is where the next split begins: nothing is planned in vain.
        assert plans == passes[first:]
        return found

    ids, whole = scores()
    assert passes == [50, 50]
    monkeypatch.setattr(typed_evaluate, "MOST_EDGES", 400)
    monkeypatch.setattr(typed_evaluate, "FEW_ROOTS", 40)
    again, parts = scores()
    assert len(passes) > 6
    assert sum(passes) == 100
    np.testing.assert_array_equal(ids, again)
    assert torch.allclose(whole, parts, rtol=0, atol=1e-12)
