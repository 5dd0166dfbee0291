"""One gradient on typed graphs: every engine that moves rows against one process.

Engines that compute with a model in parts (cooperative, zero_hop in passes) train every model, with
learnable rows or on features alone; those that move whole rows or models train some of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pairwise import pairwise
from safetensors.numpy import load_file

from hopper.bench.parity import check_engine, read_recorded
from hopper.config import Config, make_config
from hopper.engines import Request
from hopper.engines.assemble import make_model
from hopper.engines.checks import check_request
from hopper.engines.reference import Reference
from hopper.errors import RequestError
from hopper.graph import GraphDirectory
from hopper.hetero.learnable import first_rows
from hopper.hetero.sparse_optimizers import OPTIMIZERS
from hopper.models.relation_layer import RelationLayer
from hopper.models.relational import HGNN
from hopper.partition import PartitionedGraph, partition_graph

from .typed_cases import COUNTS, EDGES, LEARNABLE, MODELS, TRAIN, WITH_FEATURES, make_graph

TrainCases = Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]]

ENGINES: dict[str, dict[str, Any]] = {
    "model_centric": {"train": {"engine": "model_centric"}},
    "zero_hop in passes": {"train": {"engine": "zero_hop", "micro_batch": 5}},
    "locality": {"train": {"engine": "locality"}},
    "hop": {"train": {"engine": "hop"}},
    "hop, no pregather": {"train": {"engine": "hop"}, "hop": {"pregather": False}},
    "cooperative": {"train": {"engine": "cooperative"}},
}
# The others are trained with learnable rows, where papers have features.
ON_FEATURES = [name for name in MODELS if name not in ("rgat", "hgt", "rgcn in blocks")]
# Engines that move whole rows or whole models know nothing of what these compute: some models tell.
# Those that divide what a model computes train every one.
WITH_MODELS: dict[str, Sequence[str]] = {
    "model_centric": ("sehgnn", "own, mean of present"),
    "zero_hop in passes": ON_FEATURES,
    "hop": ("nars", "own, relations apart"),
    "cooperative": ON_FEATURES,
}


@pytest.fixture(scope="module")
def typed_graph(tmp_path_factory: pytest.TempPathFactory) -> GraphDirectory:
    return make_graph(tmp_path_factory.mktemp("typed") / "graph", tuple(COUNTS))


@pytest.fixture(scope="module")
def bare_graph(tmp_path_factory: pytest.TempPathFactory) -> GraphDirectory:
    """The same graph, with two types that have no features."""
    return make_graph(tmp_path_factory.mktemp("bare") / "graph", WITH_FEATURES)


def case_config(
    engine: str, model: str, kind: str, partitioned: Path, run_dir: Path
) -> dict[str, Any]:
    options = ENGINES[engine]
    return {
        "data": {"partitioned": str(partitioned)},
        "model": MODELS[model],
        "sampler": {"kind": kind, "fanouts": [3, 2, 2][: MODELS[model]["layers"]]},
        "train": TRAIN | {"iterations_per_epoch": 2, "run_dir": str(run_dir)} | options["train"],
        "hop": {"merge": "off"} | options.get("hop", {}),
        "learnable": LEARNABLE,
    }


# Other numbers of ranks: with learnable rows, below.
@pytest.mark.parametrize(("servers", "ranks_per_server"), [(2, 1)])
def test_engines_compute_the_gradient_of_one_process(
    servers: int,
    ranks_per_server: int,
    typed_graph: GraphDirectory,
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: TrainCases,
    tmp_path: Path,
) -> None:
    chosen = [(engine, model, "node") for engine, models in WITH_MODELS.items() for model in models]
    chosen += [("zero_hop in passes", model, "labor") for model in ("rgcn", "rgat", "hgt")]
    division = typed_graph, servers, ranks_per_server
    compare(chosen, division, serve_partitions, train_cases, tmp_path)


WORLDS = [(1, 1), (2, 1), (2, 2)]
# Every two of a world, an engine and a model meet, not all three.
WITH_LEARNABLE_ROWS = pairwise(WORLDS, ENGINES, ("rgcn", "rgat", "hgt"))
WITH_LEARNABLE_ROWS += [
    ((2, 1), "cooperative", "rgcn in blocks"),
    ((2, 2), "zero_hop in passes", "rgcn in blocks"),
]


@pytest.mark.parametrize(("servers", "ranks_per_server"), WORLDS)
def test_learnable_rows_are_those_of_one_process(
    servers: int,
    ranks_per_server: int,
    bare_graph: GraphDirectory,
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: TrainCases,
    tmp_path: Path,
) -> None:
    chosen = [
        (engine, model, "node")
        for world, engine, model in WITH_LEARNABLE_ROWS
        if world == (servers, ranks_per_server)
    ]
    division = bare_graph, servers, ranks_per_server
    compare(chosen, division, serve_partitions, train_cases, tmp_path)
    # Fetched, updated and saved, each row by one rank.
    for number in range(len(chosen)):
        shards = [
            load_file(tmp_path / str(number) / f"learnable-rank-{rank}.safetensors")
            for rank in range(servers * ranks_per_server)
        ]
        for name in ("author", "field"):
            ids = np.concatenate([shard[f"{name}.ids"] for shard in shards])
            assert sorted(ids) == list(range(COUNTS[name]))
        check_updates(
            tmp_path / str(number) / "gradients", PartitionedGraph.open(tmp_path / "parts")
        )


def check_updates(recorded: Path, graph: PartitionedGraph) -> None:
    """Assert that rows begin as specified, and that the first update is the optimiser's."""
    first, second = read_recorded(recorded)
    for name in ("author", "field"):
        key = f"learnable.{name}"
        ids, later = (record.parameters[f"{key}.ids"].numpy() for record in (first, second))
        originals = np.ascontiguousarray(graph.original_ids(name)[ids])
        rows = first.parameters[key].numpy()
        assert np.array_equal(rows, first_rows(5, name, originals, 6))
        start = torch.from_numpy(rows)
        optimizer = OPTIMIZERS["adam"](LEARNABLE["learning_rate"])
        records = torch.stack((start, start * 0, start * 0), 1)
        optimizer.step(records, first.gradients[key] + LEARNABLE["l2"] * start)
        table = torch.zeros(COUNTS[name], 6, dtype=torch.float64)
        table[ids] = records[:, 0]
        both = np.intersect1d(ids, later)
        assert both.size
        updated = second.parameters[key][np.searchsorted(later, both)]
        assert torch.allclose(updated, table[both], rtol=0, atol=1e-12)


def test_a_resumed_run_goes_on_bit_for_bit(
    bare_graph: GraphDirectory,
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: TrainCases,
    tmp_path: Path,
) -> None:
    partition_graph(bare_graph, tmp_path / "parts", 2, "random")
    addresses = serve_partitions(tmp_path / "parts", 2)

    def case(
        folder: str,
        epochs: int,
        resume: bool = False,
        storage: str = "memory",
        policy: str = "none",
    ) -> dict[str, Any]:
        values = case_config("zero_hop in passes", "rgcn", "node", tmp_path / "parts", Path())
        values["train"] |= {
            "epochs": epochs,
            "evaluate_every": 1,
            "iterations_per_epoch": 3,
            "checkpoint_every": 2,
            "resume": resume,
            "record_gradients": [],
            "run_dir": str(tmp_path / folder),
        }
        values["learnable"] = LEARNABLE | {"storage": storage}
        values["cache"] = {"policy": policy, "size": "30%", "decline": False}
        return values | {"cluster": {"servers": addresses, "ranks_per_server": 1}}

    cases = [
        case("whole", 2),
        case("halted", 1),
        case("halted", 2, resume=True),
        case("mapped", 1, storage="mmap"),
        case("mapped", 2, resume=True, storage="mmap"),
        case("cached", 1, storage="mmap", policy="lru"),
        case("cached", 2, resume=True, storage="mmap", policy="hotness"),
        case("in host memory", 2, storage="host", policy="hotness+penalty"),
    ]
    full_run, _, resumed, _, mapped, lru, cached, hosted = train_cases(cases, 2, tmp_path)
    for result in (resumed, mapped, cached, hosted):
        assert (result["losses"], result["val"]) == (full_run["losses"], full_run["val"])
    # Features of other servers, too, are looked for.
    for result in (lru, cached, hosted):
        assert result["lookups"].keys() == {"author", "field", "nobody", "paper"}
        assert result["lookups"]["author"][1]
    assert cached["lookups"]["author"][0]
    assert not list((tmp_path / "mapped").glob(".learnable*"))
    for rank in range(2):
        name = f"learnable-rank-{rank}.safetensors"
        runs = ("whole", "halted", "mapped", "cached")
        assert len({(tmp_path / run / name).read_bytes() for run in runs}) == 1
        files = list((tmp_path / "whole").glob(f"checkpoints/learnable-rank-{rank}-step-*"))
        assert len(files) >= 2


def test_one_norm_bounds_parameters_and_learnable_rows(
    bare_graph: GraphDirectory,
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: TrainCases,
    tmp_path: Path,
) -> None:
    losses = {}
    for servers in (1, 2):
        parts = tmp_path / f"{servers}"
        partition_graph(bare_graph, parts, servers, "random")
        addresses = serve_partitions(parts, servers)
        cases = []
        for clip in (0.0, 0.2):
            run_dir = tmp_path / f"{servers}-{clip}"
            values = case_config("zero_hop in passes", "rgcn", "node", parts, run_dir)
            values["train"] |= {"batch_size": 8 // servers, "clip_norm": clip, "evaluate_every": 0}
            # An update that depends on the gradient's size.
            values["train"] |= {"optimizer": "sgd", "learning_rate": 0.1, "record_gradients": []}
            values["learnable"] = LEARNABLE | {"optimizer": "sgd", "learning_rate": 0.5}
            values["cluster"] = {"servers": addresses, "ranks_per_server": 1}
            cases.append(values)
        results = train_cases(cases, servers, tmp_path / f"ranks-{servers}")
        losses[servers] = [case["losses"] for case in results]
    free, bounded = losses[1]
    assert losses[2][1] == pytest.approx(bounded, rel=1e-9)
    assert losses[2][0] == pytest.approx(free, rel=1e-9)
    assert free[0] == bounded[0]
    assert free[1] != pytest.approx(bounded[1], rel=1e-3)


def compare(
    chosen: list[tuple[str, str, str]],
    division: tuple[GraphDirectory, int, int],
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: TrainCases,
    tmp_path: Path,
) -> None:
    """Train cases, and assert that gradients, losses and scores are those of one process."""
    graph_directory, servers, ranks_per_server = division
    world = servers * ranks_per_server
    partitioned = tmp_path / "parts"
    partition_graph(graph_directory, partitioned, servers, "random")
    addresses = serve_partitions(partitioned, servers) if servers > 1 else []
    cases = {}
    for number, (engine, model, kind) in enumerate(chosen):
        config = case_config(engine, model, kind, partitioned, tmp_path / str(number))
        config["cluster"] = {"servers": addresses, "ranks_per_server": ranks_per_server}
        cases[engine, model, kind] = config
    results = train_cases(list(cases.values()), world, tmp_path)
    curves: dict[tuple[str, str], tuple[list[float], list[float]]] = {}
    for (case, values), result in zip(cases.items(), results, strict=True):
        config = make_config(values)
        graph = PartitionedGraph.open(config.data.partitioned)
        recorded = read_recorded(Path(config.train.run_dir) / "gradients")
        learned = [name for name in recorded[0].gradients if name.startswith("learnable.")]
        bare = [name for name, kind in graph.schema.node_types.items() if not kind.feature_dim]
        assert learned == [f"learnable.{name}" for name in sorted(bare)]
        assert all(moment.gradients[name].any() for moment in recorded for name in learned)
        reference = Reference(config, graph, world)
        parity = check_engine(", ".join(case), "float64", reference, recorded)
        assert parity.gradient_difference < 1e-10, parity
        assert parity.loss_difference < 1e-10, parity
        engine, model, kind = case
        if engine == "cooperative" and model == "rgcn" and world > 1:
            # Both ways of sending have to be among those compared.
            spans = "".join(
                file.read_text() for file in Path(config.train.run_dir).glob("spans/*.jsonl")
            )
            assert re.search(r'"sums_from": \[\d', spans)
            assert result["bytes"]["partial"] > 0
        if engine != "locality":
            losses, scores = curves.setdefault((model, kind), (result["losses"], result["val"]))
            assert result["losses"] == pytest.approx(losses, rel=1e-9), case
            assert result["val"] == scores, case


@pytest.fixture(scope="module")
def on_one_server(
    typed_graph: GraphDirectory, tmp_path_factory: pytest.TempPathFactory
) -> PartitionedGraph:
    return partition_graph(typed_graph, tmp_path_factory.mktemp("one") / "parts", 1, "random")


@pytest.mark.parametrize("name", MODELS)
def test_only_parameters_of_empty_types_and_relations_never_learn(
    name: str, on_one_server: PartitionedGraph, tmp_path: Path
) -> None:
    """A parameter that never gets a gradient would pass every comparison."""
    graph = on_one_server
    config = make_config(case_config("model_centric", name, "node", graph.path, tmp_path))
    model = make_model(Request(config, graph))
    assert isinstance(model, HGNN)
    # What begins at zero would hide what it multiplies.
    parameters = {
        name: value.detach() + 0.1 * (value == 0) for name, value in model.named_parameters()
    }
    _, gradients = Reference(config, graph, 1).gradient(0, 0, parameters)
    empty = {f"inputs.{model.types.index('nobody')}."}
    for index, layer in enumerate(model.layers):
        assert isinstance(layer, RelationLayer)
        empty |= {
            f"layers.{index}.aggregations.{place}."
            for place, relation in enumerate(layer.relations)
            if not EDGES[relation]
        }
        if "nobody" in layer.types:
            empty.add(f"layers.{index}.updates.{layer.types.index('nobody')}.")
        if hasattr(layer, "projections"):
            types = sorted({node_type for r in layer.relations for node_type in (r.src, r.dst)})
            empty.add(f"layers.{index}.projections.{types.index('nobody')}.")
    idle = [name for name, value in gradients.items() if not value.any()]
    assert [name for name in idle if not any(name.startswith(start) for start in empty)] == []


def typed_config(folder: Path, **sampler: Any) -> Config:
    return make_config(
        {
            "data": {"partitioned": str(folder)},
            "model": {"name": "rgcn", "layers": 1},
            "sampler": sampler,
        }
    )


def test_what_typed_models_cannot_sample_is_refused(
    bare_graph: GraphDirectory, tmp_path: Path
) -> None:
    parts = partition_graph(bare_graph, tmp_path / "parts", 1, "random")
    check_request(Request(typed_config(parts.path, fanouts=[3]), parts))
    with pytest.raises(RequestError, match=r"sampler\.kind: 'layer' .* expected node or labor"):
        check_request(Request(typed_config(parts.path, kind="layer", layer_sizes=[4]), parts))
    values = typed_config(parts.path, fanouts=[3]).model_dump()
    values["train"]["engine"] = "hop"
    several = make_config(values | {"hop": values["hop"] | {"replicas": "independent"}})
    with pytest.raises(RequestError, match="replicas: node type 'author', 'field' has"):
        check_request(Request(several, parts))
