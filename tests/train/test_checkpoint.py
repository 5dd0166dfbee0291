"""Checkpoints without runs: what they restore, and which runs they refuse."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hopper.cluster import Cluster
from hopper.config import make_config
from hopper.engines.optimizer import Adam, Optimizer
from hopper.errors import RequestError
from hopper.graph.directory import GraphDirectory
from hopper.migrate.flat_model import FlatModel
from hopper.partition import PartitionedGraph, partition_graph
from hopper.train import tensor_file
from hopper.train.checkpoint import (
    Progress,
    find_moves,
    load_training,
    run_identity,
    save_training,
    training_state,
)
from hopper.train.results import EPOCHS_FILE, keep_epochs_before
from hopper.train.tensor_file import read_facts, save_tensors


@pytest.fixture(scope="module")
def partitions(
    community_graph: GraphDirectory, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, PartitionedGraph]:
    folder = tmp_path_factory.mktemp("parts")
    return {
        name: partition_graph(community_graph, folder / name, 2, "random", seed=seed)
        for name, seed in (("one", 0), ("other", 1))
    }


def identity(graph: PartitionedGraph, ranks: int = 2, **train: Any) -> dict[str, Any]:
    train = {"engine": "hop", "batch_size": 32} | train
    config = make_config({"data": {"partitioned": str(graph.path)}, "train": train})
    return run_identity(config, graph, Cluster(0, ranks, ranks // 2, torch.device("cpu"), 1.0))


def train_one_step() -> tuple[FlatModel, Optimizer]:
    torch.manual_seed(0)
    packed = FlatModel(torch.nn.Linear(3, 2))
    packed.gradients.normal_()
    optimizer = Optimizer(packed, Adam(packed.parameters), learning_rate=0.1)
    optimizer.step()
    return packed, optimizer


def test_what_was_saved_is_restored(
    partitions: dict[str, PartitionedGraph], tmp_path: Path
) -> None:
    packed, optimizer = train_one_step()
    file, saved_identity = tmp_path / "checkpoint.safetensors", identity(partitions["one"])
    progress = Progress(epoch=2, iteration=3, step=11, losses=[0.1 + 0.2], best_score=0.5)
    save_training(file, saved_identity, training_state(packed, optimizer), asdict(progress))
    restored = FlatModel(torch.nn.Linear(3, 2))
    restored_optimizer = Optimizer(restored, Adam(restored.parameters), learning_rate=0.1)
    facts = load_training(file, saved_identity, training_state(restored, restored_optimizer))
    assert Progress(**facts) == progress
    for model in (packed, restored):
        model.gradients.fill_(0.3)
    optimizer.step()
    restored_optimizer.step()
    assert torch.equal(packed.parameters, restored.parameters)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"ranks": 4}, "the roots of an iteration"),
        ({"engine": "locality"}, "whether the engine is exact"),
        ({"seed": 1}, "train.seed"),
        ({"learning_rate": 0.5}, "train.learning_rate"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(
    change: dict[str, Any],
    key: str,
    partitions: dict[str, PartitionedGraph],
    tmp_path: Path,
) -> None:
    packed, optimizer = train_one_step()
    file, state = tmp_path / "checkpoint.safetensors", training_state(packed, optimizer)
    save_training(file, identity(partitions["one"]), state, asdict(Progress()))
    with pytest.raises(RequestError, match=f"cannot resume: {key} was"):
        load_training(file, identity(partitions["one"], **change), state)


def test_a_run_of_an_inexact_engine_resumes_on_the_same_division_only(
    partitions: dict[str, PartitionedGraph], tmp_path: Path
) -> None:
    packed, optimizer = train_one_step()
    file, state = tmp_path / "checkpoint.safetensors", training_state(packed, optimizer)
    for engine in ("locality", "hop"):
        options = {"engine": engine}
        save_training(file, identity(partitions["one"], **options), state, asdict(Progress(step=4)))
        for change, key in (
            ({"graph": "other"}, "the division of the graph"),
            ({"ranks": 4, "batch_size": 16}, "train.batch_size"),
        ):
            graph = partitions[change.pop("graph", "one")]
            changed_identity = identity(graph, **options | change)
            if engine == "hop":
                assert load_training(file, changed_identity, state)["step"] == 4
                continue
            with pytest.raises(RequestError, match=f"cannot resume: {key} was"):
                load_training(file, changed_identity, state)


def test_keys_that_an_old_checkpoint_lacks_have_their_defaults(
    partitions: dict[str, PartitionedGraph], tmp_path: Path
) -> None:
    packed, optimizer = train_one_step()
    file, state = tmp_path / "checkpoint.safetensors", training_state(packed, optimizer)
    older_identity = identity(partitions["one"])
    del older_identity["train.clip_norm"]
    save_training(file, older_identity, state, asdict(Progress(step=4)))
    assert load_training(file, identity(partitions["one"]), state)["step"] == 4
    with pytest.raises(RequestError, match=r"train\.clip_norm was 0\.0, now it is 2\.0"):
        load_training(file, identity(partitions["one"], clip_norm=2.0), state)


def test_half_a_line_of_epochs_is_dropped(tmp_path: Path) -> None:
    (tmp_path / EPOCHS_FILE).write_text('{"epoch": 0}\n{"epoch": 1}\n{"epoch": 2, "lo')
    assert keep_epochs_before(tmp_path, 2) == [{"epoch": 0}, {"epoch": 1}]
    assert (tmp_path / EPOCHS_FILE).read_text() == '{"epoch": 0}\n{"epoch": 1}\n'


def test_safetensors_reads_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_file, "_VALUES_AT_ONCE", 7)
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "rows": torch.randn(11, 3, generator=generator, dtype=torch.float64),
        "turned": torch.randn(4, 5, generator=generator).t(),
        "half": torch.randn(9, generator=generator).to(torch.bfloat16),
        "mask": torch.tensor([True, False, True]),
        "steps": torch.tensor(5),
        "one": torch.tensor([3]).expand(1),
        "none": torch.empty(0, 3),
    }
    save_tensors(tmp_path / "tensors.safetensors", tensors, {"epoch": 3})
    loaded = load_file(tmp_path / "tensors.safetensors")
    assert loaded.keys() == tensors.keys()
    for name, value in tensors.items():
        assert loaded[name].dtype == value.dtype
        assert torch.equal(loaded[name], value)
    restored = {name: torch.zeros_like(value) for name, value in tensors.items()}
    save_training(tmp_path / "state.safetensors", {}, tensors, {"step": 3})
    assert load_training(tmp_path / "state.safetensors", {}, restored) == {"step": 3}
    assert all(torch.equal(restored[name], value) for name, value in tensors.items())
    restored["rows"] = torch.zeros(3, 11)
    with pytest.raises(RequestError, match=r"rows: expected shape \(3, 11\), found \(11, 3\)"):
        load_training(tmp_path / "state.safetensors", {}, restored)


def test_a_run_does_not_go_on_with_moved_columns(partitions: dict[str, PartitionedGraph]) -> None:
    now, file = identity(partitions["one"]), Path("step-1.safetensors")
    tiers = [{"name": "tier", "categories": ["bronze", "gold"]}]
    moved = [{"name": "tier", "categories": ["gold", "platinum"]}]
    match = r"cannot resume: node: column 'tier' has the categories \[gold, platinum\]; the run was"
    with pytest.raises(RequestError, match=match):
        find_moves(
            file,
            now | {"columns of features": {"node": tiers}, "the graph": "before"},
            now | {"columns of features": {"node": moved}, "the graph": "now"},
        )
    old = {key: value for key, value in now.items() if key != "columns of features"}
    assert find_moves(file, old, now) == []


def test_a_category_called_nan_stays_a_text(tmp_path: Path) -> None:
    identity = {"columns": {"node": [{"name": "tier", "categories": ["inf", "nan"]}]}}
    facts = {"identity": identity, "progress": {"losses": [math.inf, 1.0]}}
    save_tensors(tmp_path / "step-1.safetensors", {"x": torch.zeros(1)}, facts)
    assert read_facts(tmp_path / "step-1.safetensors") == facts
