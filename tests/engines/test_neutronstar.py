"""NeutronStar: full batches, whatever is fetched and whatever is computed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.baselines.neutronstar import Costs, choose_kept
from hopper.config import make_config
from hopper.config.engines import BASELINES
from hopper.engines import Request
from hopper.engines.checks import check_request
from hopper.errors import RequestError
from hopper.graph.directory import GraphDirectory
from hopper.partition import partition_graph

MODELS: dict[str, dict[str, Any]] = {
    "gcn": {"name": "gcn", "layers": 2, "hidden": 8, "dropout": 0.3},
    "sage": {"name": "sage", "layers": 3, "hidden": 12, "dropout": 0.3},
    "gat": {"name": "gat", "layers": 2, "hidden": 4, "heads": 2, "dropout": 0.3},
    "film": {"name": "film", "layers": 3, "hidden": 8},
}


def case_config(
    model: str, partitioned: Path, run_dir: Path, engine: str, ways: str = ""
) -> dict[str, Any]:
    return {
        "data": {"partitioned": str(partitioned)},
        "model": MODELS[model],
        "sampler": {"kind": "full"},
        "train": {
            "engine": BASELINES.get(engine, engine),
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


@pytest.mark.parametrize(
    ("change", "message"),
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
    change: dict[str, Any], message: str, community_graph: GraphDirectory, tmp_path: Path
) -> None:
    graph = partition_graph(community_graph, tmp_path / "parts", 2, "random")
    values = case_config("sage", tmp_path / "parts", tmp_path / "run", "neutronstar")
    for section, keys in change.items():
        values[section] = values.get(section, {}) | keys
    with pytest.raises(RequestError, match=message):
        check_request(Request(make_config(values), graph))
