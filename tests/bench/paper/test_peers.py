"""DistDGL is trained beside Hopper's engines on emulated hosts, and says what it cannot train.

DistDGL is run by the tests' own interpreter. Skipped with the reason where it has no DGL, or where
network namespaces cannot be had.
"""

import importlib
import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.paper.ab import measure_ab
from benchmarks.paper.experiment import Experiment, Grid, load_experiments
from benchmarks.paper.job import run_job
from benchmarks.peers import distdgl
from benchmarks.peers.distdgl import DistDGL
from hopper.bench.emulate.hosts import emulate_hosts
from hopper.bench.emulate.request import make_request
from hopper.config import make_config

from .conftest import start_job

PEER = "DistDGL of the tests"
TEST_DISTDGL = DistDGL("own", PEER, Path(sys.executable))


@pytest.fixture
def hosts() -> None:
    """Skip the test where DistDGL cannot be run."""
    if importlib.util.find_spec("dgl") is None:
        pytest.skip("no DGL here")
    with emulate_hosts(make_request(1)) as cluster:
        if not cluster.effective:
            pytest.skip(f"no emulated hosts here: {cluster.why_not}")


@pytest.fixture
def _has_peer(monkeypatch) -> None:
    """Let "own" stand for a DistDGL that the tests' own interpreter runs."""
    peers = {**distdgl.PEERS, TEST_DISTDGL.name: TEST_DISTDGL}
    monkeypatch.setattr("benchmarks.paper.job.PEERS", peers)


def run_beside(own: str, model: str, graph: Path, folder: Path) -> dict[str, Any]:
    """Train an engine and DistDGL over two emulated hosts; returns the content of the cell's
    file."""
    grid = Grid(graphs=(), models=(model,), hidden=(8,), fanouts=((4, 4),), servers=(2,))
    experiment = Experiment(
        name="tiny", title="A tiny grid", grid=grid, sides={"hopper": own, PEER: "own"},
        comparisons={PEER: ("hopper",)}, rounds=1, epochs=2, iterations=2,
        report=("epoch seconds", "interface MB"), words=("--train.evaluate_every={epochs}",),
    )  # fmt: skip
    job = start_job(experiment, graph, folder, emulated=True)
    job.check()
    (entry,) = run_job(job, measure_ab)
    return entry


def check_entry(entry: dict[str, Any]) -> None:
    assert entry["problems"] == []
    measured = entry["values"][PEER]
    assert measured["epoch seconds"][0] > 0
    assert measured["interface MB"] > 0.001
    assert len(measured["test accuracy"]) == len(measured["epoch seconds"])
    assert all(0 <= score <= 1 for score in measured["test accuracy"])
    assert entry["record"]["notes"] == [TEST_DISTDGL.note]
    rows = [row for row in entry["rows"] if row.baseline == PEER]
    measures = [(row.side, row.measure) for row in rows]
    assert measures == [("hopper", "epoch seconds"), ("hopper", "interface MB")]
    assert all(row.ratio > 0 for row in rows)


@pytest.mark.usefixtures("hosts", "_has_peer")
def test_distdgl_runs_beside_raf_on_several_node_types(typed_graph, tmp_path):
    check_entry(run_beside("raf:partitioned={meta}", "rgcn", typed_graph.path, tmp_path))


@pytest.mark.usefixtures("_has_peer")
def test_a_system_that_cannot_train_a_cell_is_left_out(tiny_graph, tmp_path, monkeypatch):
    """On loopback, and where its environment is not made."""
    experiment = load_experiments()["baselines"]
    job = start_job(experiment, tiny_graph.path.parent / "graph", tmp_path, emulated=True)
    (cell, *_) = job.cells
    assert set(job.why_not(cell).values()) == {"it has no gcn here"}
    on_loopback = replace(job, emulated=False).why_not(cell)
    assert set(on_loopback.values()) == {"it is trained over emulated hosts alone"}
    # A cell that was measured without a system is measured again once the system can train it.
    before = job.asked(cell)
    monkeypatch.setattr(DistDGL, "why_not", lambda *_: None)
    assert job.asked(cell) != before


def typed(head: bool) -> dict[str, Any]:
    """Return an R-GCN's job, with a linear classifier behind the last layer or without."""
    relations = [["author", "writes", "paper"], ["paper", "written_by", "author"]]
    types = {"author": {"dim": 0}, "paper": {"dim": 5}}
    more = {"target": "paper", "types": types, "relations": relations, "head": head}
    return {"model": "rgcn", "hidden": 8, "classes": 3, "fanouts": [4, 4], **more}


SAGE = {"model": "sage", "in_dim": 5, "hidden": 8, "heads": 1, "classes": 3, "fanouts": [4, 4]}


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (SAGE, [(5, 8), (5, 8), (3, 8), (3, 8)]),
        # The paper's input projection; by layer two relations' matrices and two types' own.
        (typed(head=False), [(5, 8), *[(8, 8)] * 4, *[(3, 8)] * 4]),
        (typed(head=True), [(5, 8), *[(8, 8)] * 8, (3, 8)]),
    ],
    ids=["sage", "rgcn", "rgcn with a head"],
)
def test_models_of_distdgl_have_the_widths_of_hoppers(job, expected, monkeypatch):
    pytest.importorskip("dgl")
    monkeypatch.syspath_prepend(str(Path(distdgl.__file__).parent))
    model = importlib.import_module("distdgl_models").make_model(job)
    # DGL's GraphConv keeps its matrices the other way round.
    shapes = [tuple(sorted(p.shape)) for p in model.parameters() if p.dim() == 2]
    assert sorted(shapes) == sorted(expected)


def test_distdgl_says_why_it_cannot_train_a_configuration(tmp_path):
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


def test_requirements_of_environments_name_the_versions_of_dgl():
    requirements = distdgl.ENVIRONMENTS.with_name("requirements")
    for version in distdgl.PEERS.values():
        name = version.python.relative_to(distdgl.ENVIRONMENTS).parts[0]
        lines = (requirements / f"{name}.txt").read_text().splitlines()
        pinned = dict(line.split("==") for line in lines if "==" in line)
        assert {"dgl", "torch"} <= set(pinned)
        assert pinned["dgl"] in version.role
