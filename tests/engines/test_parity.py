"""One gradient: every engine against one process, on the same roots and draws.

Each world trains all cases in one set of ranks. Guards against: means of means, wrong divisors,
forgotten or doubled groups, draws or dropout that depend on placement, deadlocks of ranks without
roots.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pairwise import pairwise

from hopper.bench.parity import check_engine, read_recorded
from hopper.config import make_config
from hopper.engines.reference import Reference
from hopper.graph.directory import GraphDirectory
from hopper.partition import PartitionedGraph, partition_graph

from .exactness import assert_exact

TrainCases = Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]]

ENGINES: dict[str, dict[str, Any]] = {
    "model_centric": {"train": {"engine": "model_centric"}},
    "zero_hop": {"train": {"engine": "zero_hop"}},
    "locality": {"train": {"engine": "locality"}},
    "cooperative": {"train": {"engine": "cooperative"}},
    "zero_hop in passes": {"train": {"engine": "zero_hop", "micro_batch": 5}},
    "hop": {"train": {"engine": "hop"}},
    "hop, gradients only": {"train": {"engine": "hop"}, "hop": {"migrate": "gradients"}},
    "hop, no pregather": {"train": {"engine": "hop"}, "hop": {"pregather": False}},
    "hop, one step merged": {"train": {"engine": "hop"}, "hop": {"merge": 1}},
    "hop, one step left": {"train": {"engine": "hop"}, "hop": {"merge": "all but one"}},
    "hop, merged at random": {
        "train": {"engine": "hop"},
        "hop": {"merge": 1, "merge_selection": "random", "migrate": "gradients"},
    },
}
MODELS: dict[str, dict[str, Any]] = {
    "gcn": {"name": "gcn", "layers": 2, "hidden": 8, "dropout": 0.3},
    "sage": {"name": "sage", "layers": 3, "hidden": 8, "dropout": 0.3},
    "gat": {"name": "gat", "layers": 2, "hidden": 4, "heads": 3, "dropout": 0.3},
    "deepgcn": {"name": "deepgcn", "layers": 3, "hidden": 8, "dropout": 0.3},
    "film": {"name": "film", "layers": 3, "hidden": 8, "dropout": 0.3},
    "pool": {"name": "sage", "aggregator": "pool", "layers": 2, "hidden": 8, "dropout": 0.3},
    "lstm": {"name": "sage", "aggregator": "lstm", "layers": 2, "hidden": 8, "dropout": 0.3},
}
SAMPLERS: dict[str, dict[str, Any]] = {
    "node": {"kind": "node", "fanouts": [4, 3, 2]},
    "full": {"kind": "full"},
    "labor": {"kind": "labor", "fanouts": [4, 3, 2]},
    "layer": {"kind": "layer", "layer_sizes": [60, 40, 30]},
    # One or two nodes of the whole graph a hop: most frontiers stay empty.
    "empty frontiers": {"kind": "layer", "layer_sizes": [2, 1, 1]},
}
TRAINING_NODES = 83
WORLDS = [(1, 1), (2, 1), (2, 2), (3, 1), (4, 1)]
BATCHES = ("ordinary", "smaller than the ranks")


def case_config(
    case: tuple[str, str, str, str], partitioned: Path, run_dir: Path, world: int
) -> dict[str, Any]:
    engine, model, batch, sampler = case
    layers = MODELS[model]["layers"]
    sampling = {
        key: value[:layers] if isinstance(value, list) else value
        for key, value in SAMPLERS[sampler].items()
    }
    batch_size, recorded = 16, [0, 1]
    if batch == "smaller than the ranks":
        # The second iteration has what is left: fewer roots than there are ranks.
        batch_size = min(TRAINING_NODES // world, TRAINING_NODES - 1)
    options = ENGINES[engine]
    hop = {"merge": "off"} | options.get("hop", {})
    if hop["merge"] != "off":
        hop["merge"] = min(world - 1, 1 if hop["merge"] == 1 else world)
    return {
        "data": {"partitioned": str(partitioned)},
        "model": MODELS[model],
        "sampler": sampling,
        "train": {
            "batch_size": batch_size,
            # A whole epoch is one iteration of the full batch.
            "epochs": 2 if sampler == "full" else 1,
            "learning_rate": 0.01,
            "weight_decay": 0.001,
            "clip_norm": 1.0,
            "dtype": "float64",
            "evaluate_every": 0,
            "record_gradients": recorded,
            "iterations_per_epoch": recorded[-1] + 1,
            "run_dir": str(run_dir),
            "seed": 3,
        }
        | options["train"],
        "hop": hop,
    }


# Several ranks a server see theirs as METIS made it, their nodes dealt in turn or by locality.
METHODS = ("metis", "another")
# These compute with a model in ways of their own, so every one of them meets every model.
OF_MODELS = ("model_centric", "zero_hop in passes", "cooperative", "hop")
# Of the others, every two of a world, an engine, a model and a sampler of these meet.
CASES = pairwise(WORLDS, OF_MODELS, MODELS, SAMPLERS, BATCHES, METHODS)
CASES += pairwise(
    [(2, 1), (3, 1), (2, 2)],
    [engine for engine in ENGINES if engine not in OF_MODELS],
    ("sage", "gat", "deepgcn"),
    ("node", "labor", "empty frontiers"),
    BATCHES,
    METHODS,
)
"""Every engine meets each size of batch and each way to divide a graph; worlds, models and samplers
as said above."""


def method_of(world: tuple[int, int], method: str) -> str:
    """Return how nodes are divided in a world. One server is one division."""
    if method == "metis" or world == (1, 1):
        return "metis"
    return "random" if world[1] == 1 else "two levels"


@pytest.fixture(scope="module")
def partitions(
    community_graph: GraphDirectory, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[int, str], Path]:
    folder = tmp_path_factory.mktemp("partitions")
    paths = {}
    for servers, method in itertools.product((1, 2, 3, 4), ("metis", "random")):
        path = folder / f"{method}-{servers}"
        partition_graph(community_graph, path, servers, method, backend="pymetis")
        paths[servers, method] = path
    path = folder / "two-levels"
    partition_graph(community_graph, path, 2, backend="pymetis", ranks_per_server=2)
    paths[2, "two levels"] = path
    return paths


def test_rounding_on_the_wire_halves_bytes_and_stays_near(
    partitions: dict[tuple[int, str], Path],
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: TrainCases,
    tmp_path: Path,
) -> None:
    partitioned = partitions[2, "random"]
    cluster = {"servers": serve_partitions(partitioned, 2), "ranks_per_server": 1}
    cases = []
    for wire in ("exact", "bfloat16", "float16"):
        case = ("cooperative", "gat", "ordinary", "node")
        values = case_config(case, partitioned, tmp_path / wire, 2)
        values["train"] |= {"dtype": "float32"}
        cases.append(values | {"cluster": cluster, "cooperative": {"wire": wire}})
    exact, *rounded = train_cases(cases, 2, tmp_path)
    # Eight times the dtype's relative rounding: several roundings add up on the way.
    limits = {"bfloat16": 8 * 2**-8, "float16": 8 * 2**-11}
    for values, result in zip(cases[1:], rounded, strict=True):
        config = make_config(values)
        recorded = read_recorded(Path(config.train.run_dir) / "gradients")
        reference = Reference(config, PartitionedGraph.open(config.data.partitioned), 2)
        overall = check_engine("cooperative", "float32", reference, recorded).gradients[0].overall
        assert 1e-6 < overall < limits[config.cooperative.wire]
        assert result["bytes"]["partial"] * 2 == exact["bytes"]["partial"]


def test_rows_rounded_between_servers_take_fewer_bytes_and_stay_near(
    partitions: dict[tuple[int, str], Path],
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: TrainCases,
    tmp_path: Path,
) -> None:
    partitioned = partitions[2, "random"]
    servers = {"servers": serve_partitions(partitioned, 2), "ranks_per_server": 1}
    forms = [("stored", "hop"), ("int8", "hop"), ("bfloat16", "model_centric")]
    cases = []
    for form, engine in forms:
        case = (engine, "sage", "ordinary", "node")
        values = case_config(case, partitioned, tmp_path / form, 2)
        values["train"] |= {"dtype": "float32"}
        cases.append(values | {"cluster": servers | {"feature_wire": form}})
    stored, *rounded = train_cases(cases, 2, tmp_path)
    assert rounded[0]["bytes"]["feature"] < 0.7 * stored["bytes"]["feature"]
    limits = {"int8": 0.1, "bfloat16": 0.05}
    for values, (form, engine) in zip(cases[1:], forms[1:], strict=True):
        config = make_config(values)
        recorded = read_recorded(Path(config.train.run_dir) / "gradients")
        reference = Reference(config, PartitionedGraph.open(config.data.partitioned), 2)
        overall = check_engine(engine, "float32", reference, recorded).gradients[0].overall
        assert 1e-6 < overall < limits[form]
        summary = json.loads((Path(config.train.run_dir) / "summary.json").read_text())
        assert not summary["exact"]
        assert summary["feature_wire"]["form"] == form
        assert 0 < summary["feature_wire"]["error"]["item"]["relative"] < 2**-7


@pytest.mark.parametrize(("servers", "ranks_per_server"), WORLDS)
def test_every_engine_computes_the_gradient_of_one_process(
    servers: int,
    ranks_per_server: int,
    partitions: dict[tuple[int, str], Path],
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: TrainCases,
    tmp_path: Path,
) -> None:
    world = servers * ranks_per_server
    cases, addresses = {}, {}
    for case_world, *case, method in CASES:
        if case_world != (servers, ranks_per_server):
            continue
        method = method_of(case_world, method)
        partitioned = partitions[servers, method]
        if partitioned not in addresses:
            addresses[partitioned] = serve_partitions(partitioned, servers) if servers > 1 else []
        name = "/".join((method, *case))
        engine, model, sampler, batch = case
        run_dir = tmp_path / name.replace(" ", "_")
        config = case_config((engine, model, batch, sampler), partitioned, run_dir, world)
        config["cluster"] = {
            "servers": addresses[partitioned],
            "ranks_per_server": ranks_per_server,
        }
        cases[name] = config
    train_cases(list(cases.values()), world, tmp_path)

    for name, values in cases.items():
        assert_exact(values, world, name)
