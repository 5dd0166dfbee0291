"""NeutronStar: full batches, whatever is fetched and whatever is computed again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pairwise import pairwise

from hopper.config import make_config
from hopper.engines import Request
from hopper.engines.checks import check_request
from hopper.errors import RequestError
from hopper.graph.directory import GraphDirectory
from hopper.partials import Costs, choose_kept, keep_all_or_none
from hopper.partition import partition_graph

from .exactness import assert_exact

TrainCases = Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]]
MODELS: dict[str, dict[str, Any]] = {
    "gcn": {"name": "gcn", "layers": 2, "hidden": 8, "dropout": 0.3},
    "sage": {"name": "sage", "layers": 3, "hidden": 12, "dropout": 0.3},
    "gat": {"name": "gat", "layers": 2, "hidden": 4, "heads": 2, "dropout": 0.3},
    "film": {"name": "film", "layers": 3, "hidden": 8},
}
WAYS = ("hybrid", "fetch", "recompute")
WORLDS = [(1, 1), (3, 1), (2, 2)]
# Every two of a world, a model and a way meet, not all three.
CASES = pairwise(WORLDS, MODELS, WAYS)


def case_config(
    model: str, partitioned: Path, run_dir: Path, engine: str, ways: str = ""
) -> dict[str, Any]:
    return {
        "data": {"partitioned": str(partitioned)},
        "model": MODELS[model],
        "sampler": {"kind": "full"},
        "train": {
            "engine": engine,
            "engine_options": {"dependencies": ways} if ways else {},
            "epochs": 2,
            "evaluate_every": 2,
            "learning_rate": 0.01,
            "dtype": "float64",
            "record_gradients": [0, 1],
            "run_dir": str(run_dir),
            "seed": 3,
        },
    }


@pytest.mark.parametrize(("servers", "ranks_per_server"), WORLDS)
def test_its_gradient_is_that_of_one_process(
    servers: int,
    ranks_per_server: int,
    community_graph: GraphDirectory,
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: TrainCases,
    tmp_path: Path,
) -> None:
    parts, world = tmp_path / "parts", servers * ranks_per_server
    partition_graph(community_graph, parts, servers, "random")
    cluster = {
        "servers": serve_partitions(parts, servers) if servers > 1 else [],
        "ranks_per_server": ranks_per_server,
    }
    cases = {}
    chosen = [each[1:] for each in CASES if each[0] == (servers, ranks_per_server)]
    # For the losses and scores, the same under another engine. Every model is hybrid in a world.
    compared = [model for model, ways in chosen if ways == "hybrid"]
    for model, ways in [*((model, "") for model in compared), *chosen]:
        engine = "neutronstar" if ways else "cooperative"
        folder = tmp_path / f"{model}-{ways or engine}"
        values = case_config(model, parts, folder, engine, ways)
        cases[model, ways] = values | {"cluster": cluster}
    found = dict(zip(cases, train_cases(list(cases.values()), world, tmp_path), strict=True))
    for (model, ways), values in cases.items():
        own = found[model, ways]
        assert_exact(values, world, f"{model}, {ways}")
        if model in compared:
            assert own["losses"] == pytest.approx(found[model, ""]["losses"], rel=1e-9)
            assert own["val"][-1] == pytest.approx(found[model, ""]["val"][-1], rel=1e-9)
        if world == 1:
            continue
        # Of the last epoch: features of other servers have been read in the first.
        assert own["bytes"]["feature"] == 0
        assert (own["bytes"]["partial"] == 0) == (ways == "recompute")
    model = next(model for model, ways in chosen if ways == "hybrid")
    hybrid = Path(cases[model, "hybrid"]["train"]["run_dir"])
    lines = (hybrid / "epochs.jsonl").read_text().splitlines()
    decided = [json.loads(line)["decisions"] for line in lines]
    # Per hop what a destination, an edge and a row of another rank take, and a projection.
    assert len(decided[0]["dependency_costs"]) == 3 * MODELS[model]["layers"] + 1
    assert decided[0] == decided[-1]


def test_what_takes_less_is_chosen(community_graph: GraphDirectory) -> None:
    (relation,) = community_graph.schema.relations
    topology = community_graph.topology(relation)
    own = np.arange(300) < 100
    everywhere = Costs(0.0, (0.0,) * 3, (0.0,) * 3, (1.0,) * 3)
    nowhere = Costs(2.0, (0.0,) * 3, (0.0,) * 3, (1.0,) * 3)
    for costs, keep in ((everywhere, True), (nowhere, False)):
        for mask, plain in zip(
            choose_kept(topology, own, costs), keep_all_or_none(own, 3, keep=keep), strict=True
        ):
            assert np.array_equal(mask, plain)
            assert not mask[own].any()
    # Projections are cheap, and edges dear: rows of nodes with many are fetched.
    kept = choose_kept(topology, own, Costs(0.1, (0.0,) * 2, (0.2,) * 2, (1.0,) * 2))
    degrees = np.diff(topology.indptr)
    assert np.array_equal(kept[1], ~own)
    near = own.copy()
    for node in np.flatnonzero(own):
        near[topology.indices[topology.indptr[node] : topology.indptr[node + 1]]] = True
    for node in np.flatnonzero(~own):
        sources = topology.indices[topology.indptr[node] : topology.indptr[node + 1]]
        takes = 0.1 + 0.2 * degrees[node] + 0.1 * np.count_nonzero(~near[sources])
        assert kept[0][node] == (takes <= 1.0)
    assert 0 < kept[0].sum() < (~own).sum()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"sampler": {"kind": "node"}},
            r'^sampler.kind: .* expected "full", or "temp.* given "node", ',
        ),
        ({"model": {"name": "rgcn"}}, r"^train.engine: neutronstar knows no node types"),
        ({"learnable": {"types": ["item"]}}, r"^learnable.types: neutronstar keeps input rows"),
    ],
)
def test_what_it_cannot_train_is_refused(
    change: dict[str, Any], told: str, community_graph: GraphDirectory, tmp_path: Path
) -> None:
    graph = partition_graph(community_graph, tmp_path / "parts", 2, "random")
    values = case_config("sage", tmp_path / "parts", tmp_path / "run", "neutronstar")
    for section, own in change.items():
        values[section] = values.get(section, {}) | own
    with pytest.raises(RequestError, match=told):
        check_request(Request(make_config(values), graph))
