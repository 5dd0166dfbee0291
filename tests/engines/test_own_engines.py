"""Engines from outside, those of papers among them.

What they import, who finds them, their options, and what they divide.
"""

import ast
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.baselines.neutronstar import Costs, choose_kept
from hopper.bench import contender
from hopper.bench.contender import Contender
from hopper.cluster.cluster import Cluster
from hopper.config import make_config
from hopper.config.engines import BASELINES
from hopper.engines import ENGINE_CLASSES, Request, find_engine
from hopper.engines.build import make_engine, make_learnable
from hopper.engines.checks import check_request
from hopper.errors import ConfigError, RequestError
from hopper.features import PartitionedRows
from hopper.micrograph.samplers import find_sampler
from hopper.timing.run_log import RunLog

from .features import World, case_of, merged
from .graphs import NEAR

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "howto" / "plug-ins.md"
PLUG_INS = [*sorted(REPOSITORY.glob("benchmarks/baselines/*.py")), "examples/nearest_rows.py"]


def public_modules() -> list[str]:
    """The modules that the page lets an engine import."""
    table = PAGE.read_text(encoding="utf-8").split("| package or module |")[1].split("\n\n")[0]
    return re.findall(r"`(hopper[\w.]*)`[,| ]", table)


@pytest.mark.parametrize("file", PLUG_INS, ids=lambda file: Path(file).stem)
def test_an_engine_from_outside_imports_what_the_page_names(file):
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
def test_a_comparison_takes_short_names(name, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    side = Contender.parse(f"{name}:train.epochs=2")
    assert (side.label, side.engine) == (f"{name}:train.epochs=2", name)
    config = side.configure(make_config({"data": {"partitioned": "parts"}}))
    assert find_engine(config).kind.spec.name == name
    assert name not in ENGINE_CLASSES
    assert side.exact(make_config({"data": {"partitioned": "parts"}}))


def test_elsewhere_one_line_says_where_they_are(monkeypatch, tmp_path):
    with pytest.raises(ConfigError, match=r"train\.engine: naive is a baseline, which only a chec"):
        make_config({"data": {"partitioned": "parts"}, "train": {"engine": "naive"}})
    monkeypatch.setattr(contender, "_CHECKOUT", tmp_path)
    with pytest.raises(RequestError, match=r"^--engines: p3 is a baseline, which only a checkout"):
        Contender.parse("p3:partitioned=parts")


def test_options_have_the_types_of_the_constructors_annotations(divided, tmp_path):
    """A list of the configuration becomes the tuple that the class asks for."""
    case = case_of("node", "model_centric", World(1, 1))
    parts = divided(case)
    own = {"train": {"engine": "own_parts:Pairs", "engine_options": {"bounds": [2, 5]}}}
    request = Request(make_config(merged(case.values(parts, tmp_path), own)), parts)
    check_request(request)
    cluster = Cluster(0, 1, 1, torch.device("cpu"), 1.0)
    rows = PartitionedRows(parts, 0, None)
    made = make_engine(request, cluster, rows, RunLog(), make_learnable(request, cluster))
    assert made.engine.bounds == (2, 5)  # type: ignore[attr-defined]


def test_options_of_a_sampler_from_outside_reach_it(graph_of):
    graph = graph_of("learned")
    topologies = {relation: graph.topology(relation) for relation in graph.schema.relations}
    ids = {name: np.arange(kind.count) for name, kind in graph.schema.node_types.items()}
    edges = []
    for plug_in in (find_sampler("drop_edge:DropEdge", {"keep": 0.5}), find_sampler("node", {})):
        sampler = plug_in.kind(topologies, ids, "paper", [3, 2], 7, **plug_in.options)
        edges.append(sampler.sample(np.arange(40), 1, 4).hops[0].values())
    kept, drawn = (sum(relation.indices.size for relation in hop) for hop in edges)
    assert 0.2 < kept / drawn < 0.8


def test_the_cheaper_dependency_is_chosen(graph_of):
    topology = graph_of("items").topology(NEAR)
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
