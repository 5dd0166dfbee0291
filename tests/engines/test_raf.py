"""Relation-aggregation-first training computes the gradient of one process.

On two servers every model trains, on features or on learnable rows; in other worlds every two of a
world, a model and a graph meet.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pairwise import pairwise
from safetensors.numpy import load_file

from hopper.cluster import Cluster
from hopper.config import make_config
from hopper.engines import Request
from hopper.engines.assemble import make_model
from hopper.engines.sharded_parameters import ShardedParameters, servers_of_parameters
from hopper.errors import ExactnessError
from hopper.graph import GraphDirectory
from hopper.hetero.write_partition import partition_by_relation
from hopper.migrate.flat_model import FlatModel
from hopper.models.relational import HGNN
from hopper.partition import PartitionedGraph, partition_graph
from hopper.train.checkpoint_files import CheckpointFiles

from .exactness import assert_exact
from .typed_cases import LEARNABLE, MODELS, TRAIN, WIDTHS, WITH_FEATURES, make_graph

TrainCases = Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]]

MORE_MODELS: dict[str, dict[str, Any]] = {
    "rgcn without root weight": {"name": "rgcn", "layers": 2, "hidden": 8, "root_weight": False},
    "rgat with a head": {"name": "rgat", "layers": 2, "hidden": 8, "heads": 2, "head": True},
    "own, mean, without root weight": {
        **MODELS["own, mean of present"],
        "combine": "mean",
        "root_weight": False,
    },
    "hgt, three layers": {"name": "hgt", "layers": 3, "hidden": 8, "heads": 2, "dropout": 0.2},
}
ALL_MODELS = MODELS | MORE_MODELS
# Each combination of what is exchanged; all models on two servers.
ELSEWHERE = ("rgcn", "hgt, three layers", "rgcn without root weight", "own, relations apart")
FEATURED, BARE = "features", "learnable rows"
# (servers, ranks of each). Four root relations: with five servers some are replicated.
WORLDS = [(2, 1), (3, 1), (5, 1), (2, 2), (1, 2)]
# Every two of a world, a model and a graph meet, not all three. On two servers learnable rows meet
# all models but those that read their inputs as another one does; papers have features there, too.
# These, and variants of models, meet a graph where all types have features.
READ_AS_ANOTHER = ("rgcn of bases", "rgcn in blocks", "hgt, one layer")
CHOSEN = {
    WORLDS[0]: [
        *((FEATURED, model) for model in (*READ_AS_ANOTHER, *MORE_MODELS)),
        *((BARE, model) for model in MODELS if model not in READ_AS_ANOTHER),
    ],
    **{world: [] for world in WORLDS[1:]},
}
for world, model, graph in pairwise(WORLDS[1:], ELSEWHERE, (FEATURED, BARE)):
    CHOSEN[world].append((graph, model))
# What else is trained, in two worlds each: with replicas, ranks without a root; what only draws
# that no layer reads would find, which is read all the same, and whose moments age.
WITHOUT_ROOTS, UNREAD, ONE_FINISHES, LABOR = "no root", "unread", "one finishes", "labor"
MORE = {
    (2, 1): (UNREAD, LABOR),
    (3, 1): (ONE_FINISHES,),
    (5, 1): (WITHOUT_ROOTS, UNREAD),
    (2, 2): (WITHOUT_ROOTS, ONE_FINISHES, LABOR),
    (1, 2): (),
}


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, GraphDirectory]:
    folder = tmp_path_factory.mktemp("typed")
    return {
        FEATURED: make_graph(folder / "featured", tuple(WIDTHS)),
        BARE: make_graph(folder / "bare", WITH_FEATURES),
    }


def case(
    graph: str, model: str, engine: str, folder: Path, ranks_per_server: int, number: int,
    **train: Any,
) -> dict[str, Any]:  # fmt: skip
    layers = ALL_MODELS[model]["layers"]
    parts = "by relation" if engine == "raf" else "by node"
    return {
        "data": {"partitioned": str(folder / f"{graph} {parts}")},
        "model": ALL_MODELS[model],
        "sampler": {"fanouts": [3, 2, 2][:layers]},
        "train": TRAIN | {"engine": engine, "run_dir": str(folder / f"run {number}")} | train,
        "hop": {"merge": "off"},
        "learnable": LEARNABLE,
        "cluster": {"ranks_per_server": ranks_per_server},
    }


@pytest.mark.parametrize(("servers", "ranks_per_server"), WORLDS)
def test_its_gradient_is_that_of_one_process(
    servers: int,
    ranks_per_server: int,
    graphs: dict[str, GraphDirectory],
    train_cases: TrainCases,
    tmp_path: Path,
) -> None:
    for name, graph in graphs.items():
        partition_by_relation(graph, tmp_path / f"{name} by relation", servers, layers=3)
    chosen: list[tuple[str, str, dict[str, Any]]] = [
        (name, model, {}) for name, model in CHOSEN[servers, ranks_per_server]
    ]
    more = MORE[servers, ranks_per_server]
    if WITHOUT_ROOTS in more:
        chosen.append((FEATURED, "hgt", {"batch_size": 1}))
    raf = [
        case(name, model, "raf", tmp_path, ranks_per_server, number, **train)
        for number, (name, model, train) in enumerate(chosen)
    ]
    for name, graph, model in (
        (UNREAD, BARE, "rgcn without root weight"),
        (ONE_FINISHES, FEATURED, "hgt"),
        (LABOR, BARE, "rgat"),
    ):
        if name in more:
            values = case(graph, model, "raf", tmp_path, ranks_per_server, len(raf))
            if name == UNREAD:
                values["sampler"]["fanouts"] = [1, 3]
            elif name == ONE_FINISHES:
                values["raf"] = {"reduce": "designated"}
            else:
                values["sampler"]["kind"] = "labor"
            raf.append(values)
    world = servers * ranks_per_server
    for values in raf:
        values["train"]["iterations_per_epoch"] = 2
        # On two servers every model scores.
        values["train"]["evaluate_every"] = int((servers, ranks_per_server) == WORLDS[0])
    for values, result in zip(raf, train_cases(raf, world, tmp_path), strict=True):
        check(values, result, world)


def check(values: dict[str, Any], result: dict[str, Any], world: int) -> None:
    """Assert that gradients and losses are those of one process, and no feature crossed a link."""
    config = make_config(values)
    graph = PartitionedGraph.open(config.data.partitioned)
    assert_exact(values, world)
    bare = [name for name, kind in graph.schema.node_types.items() if not kind.feature_dim]
    assert result["rows"]["remote"] == 0
    assert bare or result["bytes"]["feature"] == 0
    assert result["bytes"]["partial"] > 0 or graph.book.servers == 1


def test_losses_and_scores_are_those_of_other_engines(
    graphs: dict[str, GraphDirectory],
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: TrainCases,
    tmp_path: Path,
) -> None:
    for name, graph in graphs.items():
        partition_by_relation(graph, tmp_path / f"{name} by relation", 2, layers=3)
        partition_graph(graph, tmp_path / f"{name} by node", 2, "random")
    addresses = {name: serve_partitions(tmp_path / f"{name} by node", 2) for name in graphs}
    chosen = [(FEATURED, "rgcn"), (BARE, "rgat"), (FEATURED, "hgt"), (BARE, "hgt")]
    cases = []
    for engine in ("raf", "zero_hop"):
        for name, model in chosen:
            # With a bound that counts, and moments that every update depends on.
            more = {"epochs": 2, "clip_norm": 0.3, "weight_decay": 0.01, "checkpoint_every": 100}
            if (name, model) == chosen[-1]:
                # The model of a run that scores nothing is the last one.
                more["evaluate_every"] = 0
            values = case(name, model, engine, tmp_path, 1, len(cases), **more)
            values["cluster"]["servers"] = addresses[name]
            cases.append(values)
    results = train_cases(cases, 2, tmp_path)
    for number, (raf, zero_hop) in enumerate(
        zip(results[: len(chosen)], results[len(chosen) :], strict=True)
    ):
        assert raf["losses"] == pytest.approx(zero_hop["losses"], rel=1e-9)
        assert raf["val"] == zero_hop["val"]
        is_scored = number < len(chosen) - 1
        assert [score is not None for score in raf["val"]] == 2 * [is_scored]
        # What stayed with one server is in the files all the same.
        runs = [tmp_path / f"run {number + offset}" for offset in (0, len(chosen))]
        for file in ("best.safetensors", CheckpointFiles(runs[0]).newest.relative_to(runs[0])):
            tensors, zero_hop_tensors = (load_file(run / file) for run in runs)
            assert tensors.keys() == zero_hop_tensors.keys()
            for key, value in zero_hop_tensors.items():
                assert tensors[key] == pytest.approx(value, rel=1e-7, abs=1e-9), (number, file, key)
        assert raf["bytes"]["gradient"] < zero_hop["bytes"]["gradient"]


def test_what_servers_send_does_not_grow_with_their_ranks(
    graphs: dict[str, GraphDirectory], train_cases: TrainCases, tmp_path: Path
) -> None:
    """With more ranks on a server, losses and bytes of gradients are the same.

    A server adds up the weights of its relations alone, and one rank of each server adds up those
    that all have. A bound on the norm of the gradient takes effect.
    """
    partition_by_relation(graphs[FEATURED], tmp_path / f"{FEATURED} by relation", 2, layers=3)
    results = []
    for ranks in (1, 2):
        more = {"epochs": 2, "clip_norm": 0.3, "weight_decay": 0.01, "batch_size": 8 // ranks}
        values = case(FEATURED, "rgcn", "raf", tmp_path, ranks, ranks, **more)
        results += train_cases([values], 2 * ranks, tmp_path)
    one_rank, two_ranks = results
    assert two_ranks["losses"] == pytest.approx(one_rank["losses"], rel=1e-9)
    assert two_ranks["val"] == one_rank["val"]
    assert two_ranks["bytes"]["gradient"] == one_rank["bytes"]["gradient"] > 0


def test_a_parameter_that_another_server_uses_too_is_named() -> None:
    """A shared parameter that is taken for a server's own would lose a part of its gradient."""
    model = torch.nn.Linear(3, 2)
    packed = FlatModel(model)
    cluster = Cluster(0, 2, 1, torch.device("cpu"), 1.0)
    shards = ShardedParameters(packed, cluster, {"weight": 1})
    assert shards.numbers_apart == 6
    packed.gradients[4] = 0.5
    with pytest.raises(ExactnessError, match=r"parameter weight belongs .* and server 0 computed"):
        shards.sum_gradients("summing")


def test_parameters_of_what_one_server_stores_are_its_own(
    graphs: dict[str, GraphDirectory], tmp_path: Path
) -> None:
    parts = partition_by_relation(graphs[FEATURED], tmp_path / "parts", 4, layers=2)
    values = case(FEATURED, "rgcn", "raf", tmp_path, 1, 0)
    config = make_config(values | {"data": {"partitioned": str(parts.path)}})
    model = make_model(Request(config, parts))
    assert isinstance(model, HGNN)
    servers = servers_of_parameters(model, parts.partitions, ["paper"])
    everyone = {0, 1, 2, 3}
    first, last = model.relation_layer(0), model.relation_layer(1)
    for place, relation in enumerate(last.relations):
        holders = {s for s, partition in enumerate(parts.partitions) if relation in partition.roots}
        assert servers[f"layers.1.aggregations.{place}.weight.weight"] == holders
        assert holders
    assert any(len(homes) == 1 for homes in servers.values())
    for name in ("paper", "field"):
        users = servers[f"inputs.{model.types.index(name)}.weight"]
        holders = {
            s for s, partition in enumerate(parts.partitions) if name in partition.node_types
        }
        assert users == (everyone if name == "paper" else holders)
    assert all(
        servers[f"layers.{index}.updates.{layer.types.index('paper')}.linear.bias"] == everyone
        for index, layer in enumerate((first, last))
    )


def test_a_resumed_run_goes_on_bit_for_bit(
    graphs: dict[str, GraphDirectory], train_cases: TrainCases, tmp_path: Path
) -> None:
    partition_by_relation(graphs[BARE], tmp_path / f"{BARE} by relation", 2, layers=3)

    def configure(folder: str, epochs: int, resume: bool = False) -> dict[str, Any]:
        values = case(BARE, "rgat", "raf", tmp_path, 1, 0, epochs=epochs, resume=resume)
        more = {"checkpoint_every": 2, "record_gradients": [], "run_dir": str(tmp_path / folder)}
        return values | {"train": values["train"] | more}

    cases = [configure("whole", 2), configure("halted", 1), configure("halted", 2, resume=True)]
    full_run, _, resumed = train_cases(cases, 2, tmp_path)
    assert resumed["losses"] == full_run["losses"]
    assert resumed["val"] == full_run["val"]
    for rank in range(2):
        name = f"learnable-rank-{rank}.safetensors"
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "halted" / name).read_bytes()
