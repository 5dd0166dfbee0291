"""DistDGL is trained beside Hopper's engines on emulated hosts, and says what it cannot train.

DistDGL is run by copies of the tests' own interpreter. Skipped with the reason where it has no DGL,
or where network namespaces cannot be had.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.paper.baselines import EXPERIMENTS as BASELINES
from benchmarks.paper.cells import Grid
from benchmarks.paper.experiment import Experiment
from benchmarks.paper.grid import Progress
from benchmarks.paper.heta import RAF
from benchmarks.paper.hopgnn import ZERO
from benchmarks.paper.job import make_job, run_job
from benchmarks.paper.options import Options
from benchmarks.paper.page import PAGE_FILE
from benchmarks.peers import distdgl, peer, registry
from benchmarks.peers.distdgl import DistDGL
from hopper.bench.emulate.hosts import emulate_hosts
from hopper.bench.emulate.request import make_request
from hopper.config import make_config
from hopper.errors import RequestError
from hopper.graph import EdgeType, GraphDirectory, GraphSchema, GraphWriter, Labels, NodeType
from hopper.graph.schema import Relation

TEST_DISTDGL = DistDGL("own", "DistDGL of the tests", Path(sys.executable))
SILENT = Progress(lambda _: None, lambda _: None)


@pytest.fixture
def hosts() -> None:
    """Skip the test where DistDGL cannot be run."""
    if importlib.util.find_spec("dgl") is None:
        pytest.skip("no DGL here")
    with emulate_hosts(make_request(1)) as cluster:
        if not cluster.effective:
            pytest.skip(f"no emulated hosts here: {cluster.why_not}")


@pytest.fixture
def peer_name(monkeypatch: pytest.MonkeyPatch, forked_python: Path) -> str:
    """The name of a DistDGL that the tests' own interpreter runs."""
    peers = {**registry.PEERS, TEST_DISTDGL.name: replace(TEST_DISTDGL, python=forked_python)}
    for module in ("benchmarks.paper.grid", "benchmarks.paper.options"):
        monkeypatch.setattr(f"{module}.PEERS", peers)
    # Hopper divides by pymetis, which starts sooner. DistDGL has processes of its own.
    monkeypatch.setitem(sys.modules, "dgl", None)
    return TEST_DISTDGL.name


def make_experiment(name: str, sides: tuple[Any, ...]) -> Experiment:
    experiment = next(entry for entry in BASELINES if entry.name == name)
    grid = Grid((), experiment.grid.models[:1], hidden=(8,), fanouts=((4, 4),), servers=(2,))
    return replace(
        experiment,
        grid=replace(grid, models=("rgcn",) if "typed" in name else ("gat",)),
        sides=sides,
        comparisons=((sides[-1].role, TEST_DISTDGL.role),),
        draw=None,
        rounds=1,
        epochs=2,
    )


def make_options(graph: Path, tmp_path: Path, name: str) -> Options:
    return Options(
        out=tmp_path / "out",
        work=tmp_path / "work",
        graphs=(str(graph),),
        batch_size=16,
        iterations=2,
        servers=2,
        peers=(name,),
    )


def test_distdgl_runs_beside_zero_hop_on_one_node_type(
    hosts: None, peer_name: str, tiny_graph: Any, tmp_path: Path
) -> None:
    graph = tiny_graph.path.parent / "graph"
    job = make_job(
        make_experiment("baselines", (ZERO,)), make_options(graph, tmp_path, peer_name), SILENT
    )
    assert job.total_runs == 2
    result = run_job(job)
    check_result(result, tmp_path, {"graph-gat-8"})


def test_distdgl_runs_beside_raf_on_several_node_types(
    hosts: None, peer_name: str, tmp_path: Path
) -> None:
    """The graph has types with features and without, and a relation in each direction."""
    graph = make_typed_graph(tmp_path / "graph")
    options = make_options(graph.path, tmp_path, peer_name)
    result = run_job(make_job(make_experiment("baselines-typed", (RAF,)), options, SILENT))
    check_result(result, tmp_path, {"graph-rgcn-8"})


def check_result(result: dict[str, Any], tmp_path: Path, names: set[str]) -> None:
    assert {cell["name"] for cell in result["cells"]} == names
    for cell in result["cells"]:
        assert cell["problems"] == []
        (measured,) = cell["others"].values()
        assert measured["seconds"] > 0
        assert measured["iterations"] == 2
        assert measured["interface_bytes"] > 1000
        assert 0 <= measured["accuracy"] <= 1
        assert cell["ratios"][0]["baseline"] == TEST_DISTDGL.role
        assert cell["ratios"][0]["mean"] > 0
    page = (tmp_path / "out" / PAGE_FILE).read_text()
    assert f"| {TEST_DISTDGL.role} (own batches) |" in page
    assert TEST_DISTDGL.note in page


def make_typed_graph(path: Path) -> GraphDirectory:
    generator, counts = np.random.default_rng(0), {"author": 60, "paper": 90}
    relations = [
        Relation("author", "writes", "paper"),
        Relation("paper", "written_by", "author"),
        Relation("paper", "cites", "paper"),
    ]
    schema = GraphSchema(
        name="papers",
        node_types={"author": NodeType(60), "paper": NodeType(90, 5, "float32")},
        relations={relation: EdgeType(300) for relation in relations},
        target="paper",
        labels={"paper": Labels("class", 3)},
        splits={"train": 40, "val": 10, "test": 30},
    )
    with GraphWriter(path, schema) as writer:
        for relation in relations:
            ends = (generator.integers(0, counts[node_type], 300) for node_type in relation[::2])
            writer.topology(relation, *ends)
        writer.features("paper")[:] = generator.standard_normal((90, 5))
        writer.labels("paper", generator.integers(0, 3, 90))
        order = generator.permutation(90)
        for name, part in (("train", order[:40]), ("val", order[40:50]), ("test", order[50:80])):
            writer.split(name, np.sort(part))
    return GraphDirectory.open(path)


def test_graphsage_of_distdgl_has_the_widths_of_hoppers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its layers has one bias less."""
    dgl = pytest.importorskip("dgl")
    monkeypatch.syspath_prepend(str(Path(distdgl.__file__).parent))
    model = importlib.import_module("distdgl_models").make_model(
        {"model": "sage", "in_dim": 5, "hidden": 8, "heads": 1, "classes": 3, "fanouts": [4, 4]}
    )
    graph = dgl.graph(([0, 1, 2], [1, 2, 0]))
    assert model([graph, graph], torch.ones(3, 5)).shape == (3, 3)
    shapes = sorted(
        tuple(parameter.shape) for parameter in model.parameters() if parameter.dim() == 2
    )
    assert shapes == [(3, 8), (3, 8), (8, 5), (8, 5)]


@pytest.mark.parametrize("head", [False, True])
def test_rgcn_of_distdgl_has_a_head_where_hoppers_has(
    head: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("dgl")
    monkeypatch.syspath_prepend(str(Path(distdgl.__file__).parent))
    relations = [Relation("author", "writes", "paper"), Relation("paper", "written_by", "author")]
    model = importlib.import_module("distdgl_models").make_model(
        {
            "model": "rgcn",
            "target": "paper",
            "hidden": 8,
            "classes": 3,
            "fanouts": [4, 4],
            "types": {"author": {"dim": 0}, "paper": {"dim": 5}},
            "relations": relations,
            "head": head,
        }
    )
    # The paper's input projection; by layer two relations' matrices and two types' own; the head.
    last = (8, 8) if head else (3, 8)
    expected = [(8, 5), *[(8, 8)] * 4, *[last] * 4, *([(3, 8)] if head else [])]
    matrices = [tuple(parameter.shape) for parameter in model.parameters() if parameter.dim() == 2]
    # DGL's GraphConv keeps its matrices the other way round.
    assert sorted(map(sorted, matrices)) == sorted(map(sorted, expected))


def test_distdgl_says_why_it_cannot_train_a_configuration(tmp_path: Path) -> None:
    absent = replace(TEST_DISTDGL, python=tmp_path / "environments" / "distdgl" / "bin" / "python")
    config = lambda **words: make_config({"data": {"partitioned": "parts"}, **words})  # noqa: E731
    reason = absent.why_not(config(model={"name": "sage"}))
    assert reason == "run benchmarks/peers/make_environment.sh distdgl first"
    assert TEST_DISTDGL.why_not(config(model={"name": "film"})) == "it has no film here"
    full = config(model={"name": "sage"}, sampler={"kind": "full"})
    assert TEST_DISTDGL.why_not(full) == "it draws node-wise, and not full"
    based = config(model={"name": "rgcn", "bases": 2})
    assert str(TEST_DISTDGL.why_not(based)).startswith("its R-GCN has a matrix for each relation")
    pooled = config(model={"name": "sage", "aggregator": "pool"})
    assert TEST_DISTDGL.why_not(pooled) == "its GraphSAGE takes means, and not pool"
    with pytest.raises(RequestError, match=r"--peers: expected some of distdgl.*given 'dgl'"):
        Options(tmp_path, tmp_path, peers=("dgl",)).check()


def test_requirements_of_environments_name_the_versions_of_dgl() -> None:
    for version in distdgl.VERSIONS:
        name = version.python.relative_to(peer.ENVIRONMENTS).parts[0]
        lines = (peer.ENVIRONMENTS.parent / "requirements" / f"{name}.txt").read_text().splitlines()
        pinned = dict(line.split("==") for line in lines if "==" in line)
        assert {"dgl", "torch"} <= set(pinned)
        assert pinned["dgl"] in version.role
