"""Draws by weight and with replacement under every engine: the gradient of one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pairwise import pairwise

from hopper.config import make_config
from hopper.engines import Request
from hopper.engines.checks import check_request
from hopper.engines.unused import describe_unused
from hopper.errors import RequestError
from hopper.graph import GraphDirectory
from hopper.graph.importers import ImportOptions, RandomSplit
from hopper.partition import PartitionedGraph, partition_graph

from .exactness import assert_exact

pytestmark = pytest.mark.filterwarnings("ignore:split drawn")

TrainCases = Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]]

ENGINES: dict[str, dict[str, Any]] = {
    "model_centric": {"train": {"engine": "model_centric"}},
    "zero_hop in passes": {"train": {"engine": "zero_hop", "micro_batch": 7}},
    "hop, one step merged": {"train": {"engine": "hop"}, "hop": {"merge": 1}},
    "cooperative": {"train": {"engine": "cooperative"}},
    "naive": {"train": {"engine": "naive"}},
    "p3": {"train": {"engine": "p3"}},
}
BY_ONE_TYPE = ("naive", "p3")
SAMPLERS: dict[str, dict[str, Any]] = {
    "by weight": {"kind": "weighted"},
    "by weight, unbiased": {"kind": "weighted", "kind_options": {"unbiased": True}},
    "by weight, unbiased, again": {
        "kind": "weighted",
        "kind_options": {"unbiased": True, "replace": True},
    },
    "with replacement": {"kind": "replacement"},
}
MODELS: dict[str, dict[str, Any]] = {
    "sage": {"name": "sage", "layers": 2, "hidden": 8, "dropout": 0.2},
    "gat": {"name": "gat", "layers": 2, "hidden": 4, "heads": 2},
    "gcn": {"name": "gcn", "layers": 2, "hidden": 8},
    "rgcn": {"name": "rgcn", "layers": 2, "hidden": 8},
    "rgat": {"name": "rgat", "layers": 2, "hidden": 4, "heads": 2},
    "hgt": {"name": "hgt", "layers": 2, "hidden": 8, "heads": 2},
}
RATES = ("reader", "rates", "book")
# (method, servers, ranks of each, topology)
DIVISIONS = [
    ("metis", 2, 1, "replicated"),
    ("random", 2, 2, "replicated"),
    ("random", 3, 1, "partitioned"),
]
# Engines that compute a layer in parts meet every way of drawing and every model of one type, on
# several ranks of a server in every third case.
OF_ONE_TYPE = [
    (DIVISIONS[number % 3 == 2], *case)
    for number, case in enumerate(
        pairwise(("cooperative", "naive", "p3"), SAMPLERS, ("sage", "gat", "gcn"))
    )
]
# The others meet every way of drawing with several types, below.
OF_ONE_TYPE += [
    (DIVISIONS[1], "model_centric", "by weight", "sage"),
    (DIVISIONS[1], "zero_hop in passes", "by weight, unbiased, again", "gcn"),
    (DIVISIONS[1], "hop, one step merged", "with replacement", "gat"),
]
# Of others' edges servers tell no probability, but to the engine that asks for none.
OF_ONE_TYPE += [
    (DIVISIONS[2], engine, sampler, model)
    for engine, sampler, model in (
        ("model_centric", "by weight", "sage"),
        ("zero_hop in passes", "with replacement", "gat"),
        ("cooperative", "by weight, unbiased", "gat"),
        ("cooperative", "by weight, unbiased, again", "gcn"),
        ("naive", "by weight", "gat"),
    )
]


# Whether the target is a link; every two of it, an engine, a way of drawing and a model meet.
OF_SEVERAL_TYPES = pairwise(
    (False, True),
    [engine for engine in ENGINES if engine not in BY_ONE_TYPE],
    SAMPLERS,
    ("rgcn", "rgat", "hgt"),
)


@pytest.fixture(scope="module")
def one_type(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator = np.random.default_rng(5)
    out = tmp_path_factory.mktemp("weighted") / "graph"
    GraphDirectory.from_arrays(
        out,
        generator.integers(0, 150, (2, 1800)),
        features=generator.random((150, 6)),
        labels=generator.integers(0, 4, 150),
        edge_weights=np.exp(generator.normal(0, 2, 1800)),
        options=ImportOptions(split=RandomSplit(0.5, 0.2)),
    )
    return out


def make_library(out: Path, *, links: bool) -> Path:
    """Write readers and books. Ratings have weights, acquaintances have none."""
    generator = np.random.default_rng(5)

    def ends(sources: int, destinations: int, edges: int) -> np.ndarray:
        return np.stack(
            [generator.integers(0, sources, edges), generator.integers(0, destinations, edges)]
        )

    rates, weights = ends(60, 45, 400), np.exp(generator.normal(0, 2, 400))
    GraphDirectory.from_arrays(
        out,
        {
            RATES: rates,
            ("book", "rated_by", "reader"): rates[::-1],
            ("reader", "knows", "reader"): ends(60, 60, 300),
        },
        features={"reader": generator.random((60, 4)), "book": generator.random((45, 5))},
        labels=None if links else {"book": generator.integers(0, 3, 45)},
        edge_weights={RATES: weights, ("book", "rated_by", "reader"): weights},
        target=RATES if links else "book",
        options=ImportOptions(split=RandomSplit(0.6, 0.2)),
    )
    return out


def values_of(parts: Path, sampler: dict[str, Any], model: str, **train: Any) -> dict[str, Any]:
    return {
        "data": {"partitioned": str(parts)},
        "model": MODELS[model],
        "sampler": {"fanouts": [3, 2]} | sampler,
        "train": {"batch_size": 9, "epochs": 1, "dtype": "float64", "seed": 3} | train,
    }


def compare(
    chosen: list[tuple[str, str, str]],
    source: Path,
    parts: Path,
    world: tuple[int, int],
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: TrainCases,
    folder: Path,
) -> None:
    servers, ranks_per_server = world
    addresses, configs = serve_partitions(parts, servers), []
    by_dimension, of_columns = folder / "by-dimension", list[str]()
    if any(engine == "p3" for engine, _, _ in chosen):
        graph = GraphDirectory.open(source)
        partition_graph(graph, by_dimension, servers, "random", features="by-dimension")
        of_columns = serve_partitions(by_dimension, servers)
    for number, (engine, sampler, model) in enumerate(chosen):
        options, divided = ENGINES[engine], engine == "p3"
        run = {
            "evaluate_every": 0,
            "record_gradients": [0, 1],
            "iterations_per_epoch": 2,
            "run_dir": str(folder / str(number)),
        }
        configs.append(
            values_of(
                by_dimension if divided else parts,
                SAMPLERS[sampler],
                model,
                **run,
                **options["train"],
            )
            | {
                "hop": {"merge": "off"} | options.get("hop", {}),
                "cluster": {
                    "servers": of_columns if divided else addresses,
                    "ranks_per_server": ranks_per_server,
                },
            }
        )
    train_cases(configs, servers * ranks_per_server, folder / "world")
    for values, case in zip(configs, chosen, strict=True):
        assert_exact(values, servers * ranks_per_server, ", ".join(case))


@pytest.mark.parametrize(("method", "servers", "ranks_per_server", "topology"), DIVISIONS)
def test_one_type(
    method: str,
    servers: int,
    ranks_per_server: int,
    topology: str,
    one_type: Path,
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: TrainCases,
    tmp_path: Path,
) -> None:
    parts = tmp_path / "parts"
    graph = GraphDirectory.open(one_type)
    partition_graph(graph, parts, servers, method, topology=topology, backend="pymetis")
    here = (method, servers, ranks_per_server, topology)
    chosen = [(case[1], case[2], case[3]) for case in OF_ONE_TYPE if case[0] == here]
    graph_and_world = one_type, parts, (servers, ranks_per_server)
    compare(chosen, *graph_and_world, serve_partitions, train_cases, tmp_path)


@pytest.mark.parametrize("links", [False, True])
def test_several_types(
    links: bool,
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: TrainCases,
    tmp_path: Path,
) -> None:
    parts = tmp_path / "parts"
    graph = GraphDirectory.open(make_library(tmp_path / "graph", links=links))
    partition_graph(graph, parts, 2, "random")
    chosen = [(case[1], case[2], case[3]) for case in OF_SEVERAL_TYPES if case[0] == links]
    compare(chosen, graph.path, parts, (2, 1), serve_partitions, train_cases, tmp_path)


def test_missing_weights_are_refused_and_unused_weights_are_reported(
    one_type: Path, tmp_path: Path
) -> None:
    partition_graph(GraphDirectory.open(one_type), tmp_path / "parts", 1)
    graph = PartitionedGraph.open(tmp_path / "parts")
    request = Request(make_config(values_of(tmp_path / "parts", {}, "sage")), graph)
    assert describe_unused(request) == [
        'not used: weights of node/edge/node: only sampler.kind = "weighted" reads them'
    ]
    by_weight = make_config(values_of(tmp_path / "parts", SAMPLERS["by weight"], "sage"))
    assert describe_unused(Request(by_weight, graph)) == []
    GraphDirectory.from_arrays(
        tmp_path / "plain",
        [[0, 1], [1, 0]],
        features=[[1.0], [2.0]],
        labels=[0, 1],
        splits={"train": [0, 1]},
    )
    partition_graph(GraphDirectory.open(tmp_path / "plain"), tmp_path / "none", 1)
    values = values_of(tmp_path / "none", SAMPLERS["by weight"], "sage")
    with pytest.raises(RequestError, match=r"draws by weights of edges, and the model reads no"):
        check_request(Request(make_config(values), PartitionedGraph.open(tmp_path / "none")))
