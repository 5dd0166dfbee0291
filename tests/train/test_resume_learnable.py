"""A rank that is killed takes nothing with it that the last checkpoint had."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from hopper.graph import EdgeType, GraphDirectory, GraphSchema, GraphWriter, Labels, NodeType
from hopper.graph.schema import Relation
from hopper.partition import partition_graph

COUNTS = {"author": 60, "paper": 90}
EDGES = {Relation("author", "writes", "paper"): 300, Relation("paper", "cites", "paper"): 300}
RGCN = "--model.name=rgcn"
MAPPED = (RGCN, "--learnable.storage=mmap", "--cache.policy=benefit", "--cache.size=30%")
ON_DISK = (*MAPPED, "--cache.decline=false")


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """Papers with features, authors without."""
    generator = np.random.default_rng(0)
    schema = GraphSchema(
        name="papers",
        node_types={"author": NodeType(60), "paper": NodeType(90, 5, "float32")},
        relations={relation: EdgeType(count) for relation, count in EDGES.items()},
        target="paper",
        labels={"paper": Labels("class", 3)},
        splits={"train": 40, "val": 30},
    )
    with GraphWriter(tmp_path / "graph", schema) as writer:
        for relation, count in EDGES.items():
            ends = (generator.integers(0, COUNTS[each], count) for each in (relation.src, "paper"))
            writer.topology(relation, *ends)
        writer.features("paper")[:] = generator.standard_normal((90, 5))
        writer.labels("paper", generator.integers(0, 3, 90))
        order = generator.permutation(90)
        writer.split("train", np.sort(order[:40]))
        writer.split("val", np.sort(order[40:70]))
    graph = GraphDirectory.open(tmp_path / "graph")
    return partition_graph(graph, tmp_path / "parts", 2, "random").path


@pytest.fixture
def typed_runs(runs: Any, parts: Path, tmp_path: Path) -> Iterator[Any]:
    own = type(runs)(parts, tmp_path)
    yield own
    own.kill()


def test_a_killed_rank_loses_nothing(typed_runs: Any) -> None:
    options = {"engine": "zero_hop", "checkpoint_every": 3}
    run = typed_runs.train("killed", *ON_DISK, epochs=10_000, **options)
    file = run.run_dir / "checkpoint.safetensors"

    def place() -> dict[str, Any]:
        with safe_open(str(file), framework="numpy") as checkpoint:
            return dict(json.loads(checkpoint.metadata()["facts"])["progress"])

    run.await_condition(lambda: file.exists() and place()["epoch"] >= 2, "checkpoint")
    run.ranks()[1].kill()
    assert run.finish() == 1
    run.assert_nothing_remains()
    assert "was killed by SIGKILL" in run.stderr
    epochs = place()["epoch"] + 2
    resumed = typed_runs.finished("killed", *ON_DISK, epochs=epochs, resume=True, **options)
    whole = typed_runs.finished("in memory", RGCN, epochs=epochs, engine="zero_hop")
    assert len(whole.losses()) == epochs
    assert resumed.losses() == whole.losses()
    assert [each["val"] for each in resumed.epochs()] == [each["val"] for each in whole.epochs()]
    hits, misses = map(sum, zip(*resumed.epochs()[-1]["lookups"].values(), strict=True))
    assert hits > 0
    assert misses > 0


def test_a_cache_of_what_lies_in_memory_anyhow_is_declined(typed_runs: Any) -> None:
    """The records are tiny, so the kernel keeps their file; features of the other server are
    held."""
    run = typed_runs.finished("declined", *MAPPED, epochs=2, engine="zero_hop")
    assert "cache: declined for learnable rows: their records on disk" in run.stdout
    assert set(run.epochs()[-1]["lookups"]) == {"paper"}
    whole = typed_runs.finished("in memory too", RGCN, epochs=2, engine="zero_hop")
    assert run.losses() == whole.losses()
