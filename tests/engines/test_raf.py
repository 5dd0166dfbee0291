"""Relation-aggregation-first training beside another engine: the same run, fewer bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file

from hopper.cluster.cluster import Cluster
from hopper.config import make_config
from hopper.engines import Request
from hopper.engines.assemble import make_model
from hopper.engines.sharded_parameters import ShardedParameters, servers_of_parameters
from hopper.errors import ExactnessError
from hopper.graph import GraphDirectory
from hopper.hetero.divide import partition_by_relation
from hopper.migrate.flat_model import FlatModel
from hopper.models.relational import HGNN
from hopper.partition import partition_graph
from hopper.train.checkpoint_files import CheckpointFiles

from .typed_cases import LEARNABLE, MODELS, TRAIN, WIDTHS, WITH_FEATURES, make_graph

TrainCases = Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]]

FEATURED, BARE = "features", "learnable rows"


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
    layers = MODELS[model]["layers"]
    parts = "by relation" if engine == "raf" else "by node"
    return {
        "data": {"partitioned": str(folder / f"{graph} {parts}")},
        "model": MODELS[model],
        "sampler": {"fanouts": [3, 2, 2][:layers]},
        "train": TRAIN | {"engine": engine, "run_dir": str(folder / f"run {number}")} | train,
        "hop": {"merge": "off"},
        "learnable": LEARNABLE,
        "cluster": {"ranks_per_server": ranks_per_server},
    }


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
