"""Learnable rows under engines that move rows, and what of a typed model learns."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from hopper.bench.parity import read_recorded
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

from .conftest import ENGINES, CheckEngines, merged
from .typed_cases import COUNTS, EDGES, LEARNABLE, MODELS, TRAIN, WITH_FEATURES, make_graph

TrainCases = Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def typed_graph(tmp_path_factory: pytest.TempPathFactory) -> GraphDirectory:
    return make_graph(tmp_path_factory.mktemp("typed") / "graph", tuple(COUNTS))


@pytest.fixture(scope="module")
def bare_graph(tmp_path_factory: pytest.TempPathFactory) -> GraphDirectory:
    """The same graph, with two types that have no features."""
    return make_graph(tmp_path_factory.mktemp("bare") / "graph", WITH_FEATURES)


def sections_of(model: str, kind: str) -> dict[str, Any]:
    return {
        "model": MODELS[model],
        "sampler": {"kind": kind, "fanouts": [3, 2, 2][: MODELS[model]["layers"]]},
        "train": TRAIN | {"iterations_per_epoch": 2, "evaluate_every": 1},
        "learnable": LEARNABLE,
    }


def case_config(
    engine: str, model: str, kind: str, partitioned: Path, run_dir: Path
) -> dict[str, Any]:
    run = {"data": {"partitioned": str(partitioned)}, "train": {"run_dir": str(run_dir)}}
    hop = {"hop": {"merge": "off"}}
    return merged(hop, sections_of(model, kind), ENGINES[engine], run)


def test_learnable_rows_are_fetched_updated_and_saved_each_by_one_rank(
    bare_graph: GraphDirectory, check_engines: CheckEngines
) -> None:
    engines = ("model_centric", "zero_hop in passes", "hop, no pregather", "cooperative")
    cases = {(engine,): sections_of("rgcn", "node") for engine in engines}
    for (engine,), trained in check_engines(bare_graph, cases, 2, 2).items():
        run_dir = Path(trained.values["train"]["run_dir"])
        shards = [load_file(run_dir / f"learnable-rank-{rank}.safetensors") for rank in range(4)]
        for name in ("author", "field"):
            ids = np.concatenate([shard[f"{name}.ids"] for shard in shards])
            assert sorted(ids) == list(range(COUNTS[name]))
        check_updates(
            run_dir / "gradients", PartitionedGraph.open(trained.values["data"]["partitioned"])
        )
        if engine == "cooperative":
            # Both ways of sending have to be among those compared.
            spans = "".join(file.read_text() for file in run_dir.glob("spans/*.jsonl"))
            assert re.search(r'"sums_from": \[\d', spans)
            assert trained.result["bytes"]["partial"] > 0


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
