"""Layers of typed graphs are computed and timed by all sides; by PyG where it is installed."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.layers.operators import AGGREGATION, PRODUCTS, SELECTION, OperatorCount
from benchmarks.layers.rates import Aggregation, Rates
from benchmarks.layers.sides import BY_RELATION, MERGED
from benchmarks.paper import hifuse_layers
from benchmarks.paper.cells import Grid
from benchmarks.paper.grid import Progress
from benchmarks.paper.hifuse_layers import PYG_ROLE
from benchmarks.paper.job import make_job, run_job
from benchmarks.paper.options import Options
from benchmarks.paper.page import PAGE_FILE
from benchmarks.paper.registry import EXPERIMENTS
from hopper.graph import EdgeType, GraphDirectory, GraphSchema, GraphWriter, Labels, NodeType
from hopper.graph.schema import Relation

NODES, EDGES = 40, 120
ROLES = {BY_RELATION, MERGED} | (
    {PYG_ROLE} if importlib.util.find_spec("torch_geometric") else set()
)


def make_graph(path: Path) -> GraphDirectory:
    """Write a graph of two node types and four relations."""
    relations = [
        *(Relation("a", "cites", "a"), Relation("a", "rev_cites", "a")),
        *(Relation("b", "writes", "a"), Relation("a", "rev_writes", "b")),
    ]
    schema = GraphSchema(
        name="typed",
        node_types={name: NodeType(NODES, 6, "float32") for name in ("a", "b")},
        relations={relation: EdgeType(EDGES) for relation in relations},
        target="a",
        labels={"a": Labels("class", 3)},
        splits={"train": 24, "val": 8, "test": 8},
    )
    generator = np.random.default_rng(3)
    with GraphWriter(path, schema) as writer:
        for relation in relations:
            writer.topology(relation, *generator.integers(0, NODES, (2, EDGES)))
        for name in ("a", "b"):
            writer.features(name)[:] = generator.standard_normal((NODES, 6), dtype=np.float32)
        writer.labels("a", generator.integers(0, 3, NODES))
        for name, first, stop in (("train", 0, 24), ("val", 24, 32), ("test", 32, 40)):
            writer.split(name, np.arange(first, stop))
    return GraphDirectory.open(path)


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Options:
    folder = tmp_path_factory.mktemp("hifuse")
    graph = make_graph(folder / "graph")
    return Options(
        out=folder,
        work=folder / "work",
        graphs=(str(graph.path),),
        batch_size=12,
        rounds=2,
        emulated=False,
    )


def run(name: str, options: Options, *models: str) -> dict[str, Any]:
    grid = Grid((), models, hidden=(8,), fanouts=((3, 2),), servers=(1,))
    experiment = replace(EXPERIMENTS[name], grid=grid)
    run_options = replace(options, out=options.out / name)
    job = make_job(experiment, run_options, Progress(lambda _: None, lambda _: None))
    result = run_job(job)
    assert (run_options.out / PAGE_FILE).is_file()
    # What is there is not measured again.
    assert run_job(job)["cells"] == result["cells"]
    return result


def test_all_sides_are_timed_and_compared_with_the_merged_one(options: Options) -> None:
    for cell in run("hifuse-fig7", options, "rgcn", "rgat")["cells"]:
        assert cell["problems"] == []
        assert set(cell["sides"]) == ROLES
        for side in cell["sides"].values():
            assert side["seconds"] >= max(side["prepare"], side["compute"]) > 0
        assert {ratio["baseline"] for ratio in cell["ratios"]} == ROLES - {MERGED}
        assert (cell["batches"], cell["roots"]) == (2, 24)


def test_merging_takes_fewer_operators(options: Options) -> None:
    for cell in run("hifuse-fig8", options, "rgcn", "rgat")["cells"]:
        counts = cell["operators"]
        assert set(counts) == ROLES
        assert counts[MERGED]["whole"] < counts[BY_RELATION]["whole"]
        for count in counts.values():
            assert count["whole"] > sum(count["forward"].values()) > 0


def test_rates_of_all_sides_stand_beside_those_of_the_machine(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Rates(1e12, 1e12)
    monkeypatch.setattr(hifuse_layers, "measure_machine", lambda: machine)
    (cell,) = run("hifuse-table3", options, "rgcn")["cells"]
    assert cell["machine_rates"] == machine._asdict()
    assert set(cell["rates"]) == ROLES
    # Of two batches of two hops: one sum of a hop, or one of each of its four relations.
    assert cell["rates"][MERGED]["calls"] == 4
    assert cell["rates"][BY_RELATION]["calls"] == 16
    for rates in cell["rates"].values():
        assert 0 < rates["arithmetic"] < rates["memory"]


def test_sides_that_differ_tell_no_speed_up(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hifuse_layers, "LIMIT", -1.0)
    (cell,) = run("hifuse-fig7", replace(options, rounds=1), "rgcn")["cells"]
    assert f"{BY_RELATION}: logits differ by" in cell["problems"][0]
    assert all(ratio["mean"] is None for ratio in cell["ratios"])


def test_operators_are_counted_by_what_they_do() -> None:
    rows, index = torch.randn(4, 3), torch.tensor([0, 2])
    with OperatorCount() as counter:
        # A view, a choice of rows by whole numbers, gathering, and a product.
        chosen = rows.t().t()[index + 1]
        chosen @ rows.t()
    assert counter.counts == {SELECTION: 1, AGGREGATION: 1, PRODUCTS: 1}


def test_rates_are_counted_work_per_second() -> None:
    rates = Aggregation([], operations=10, nbytes=80).rates(2.0)
    assert (rates.arithmetic, rates.memory) == (5.0, 40.0)
