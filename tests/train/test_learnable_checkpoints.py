"""Learnable rows are saved as changes, and restored from any checkpoint that is kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from hopper.cluster import Cluster
from hopper.errors import RequestError
from hopper.hetero.learnable import LearnableRows, LearnableTable, Learning, TableShare
from hopper.hetero.row_storage import MappedStorage, MemoryStorage, RowStorage
from hopper.partition import PartitionBook
from hopper.partition.placement import Placement
from hopper.train.checkpoint_files import CheckpointFiles
from hopper.train.learnable_checkpoints import LearnableCheckpoints

COUNTS = {"author": 90, "field": 30}
DIM = 4
IDENTITY = {"seed": 1}


CLUSTER = Cluster(0, 1, 1, torch.device("cpu"), 1.0)


def make_rows(storage: RowStorage, optimizer: str = "adam") -> LearnableRows:
    book = PartitionBook(1, {name: [0, count] for name, count in COUNTS.items()})
    learning = Learning(DIM, torch.float64, 1, optimizer, 0.1, keeps=True)
    return LearnableRows(
        CLUSTER,
        [
            TableShare(
                LearnableTable(name, name, np.array([0, count]), (name,)),
                learning,
                np.arange(count),
                Placement(book, 1),
                CLUSTER,
                storage,
            )
            for name, count in COUNTS.items()
        ],
    )


def make_checkpoints(run_dir: Path, rows: LearnableRows) -> LearnableCheckpoints:
    return LearnableCheckpoints(CheckpointFiles(run_dir), CLUSTER, rows, IDENTITY, keep=2)


def state_of(rows: LearnableRows, with_kept: bool) -> dict[str, Tensor]:
    return {key: value for table in rows for key, value in table.state(with_kept).items()}


def train_once(rows: LearnableRows, generator: np.random.Generator) -> None:
    wanted = {
        name: [generator.choice(count, int(generator.integers(0, 6)), replace=False)]
        for name, count in COUNTS.items()
    }
    fetched = rows.fetch(rows.ask(wanted, "here"), "here")
    for name, (ids,) in wanted.items():
        fetched.of(name, ids).square().sum().backward()
    fetched.push()
    fetched.step()


def copy_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in state.items()}


def have_state(rows: LearnableRows, expected: Mapping[str, Tensor]) -> bool:
    state = state_of(rows, "kept.author" in expected)
    return state.keys() == expected.keys() and all(
        torch.equal(state[name], value) for name, value in expected.items()
    )


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("kind", ["memory", "mmap", "held", "held, recent"])
def test_training_resumes_from_either_of_two_kept_checkpoints(
    kind: str, optimizer: str, tmp_path: Path
) -> None:
    """Training is interrupted at random steps, also between saving the rows and the checkpoint that
    names their file."""
    generator = np.random.default_rng(5)

    def start() -> tuple[LearnableRows, LearnableCheckpoints]:
        storage: RowStorage = MemoryStorage(torch.device("cpu"))
        if kind != "memory":
            storage = MappedStorage(tmp_path / "rows")
        rows = make_rows(storage, optimizer)
        for table in rows:
            if kind.startswith("held"):
                table.hold(8, np.arange(4, 12) if kind == "held" else None)
        return rows, make_checkpoints(tmp_path / "run", rows)

    (tmp_path / "run").mkdir()
    rows, checkpoints = start()
    saved: dict[int, dict[str, Tensor]] = {}
    sizes, step, best = [], 0, False
    for turn in range(60):
        train_once(rows, generator)
        if turn % 7 == 5:
            for table in rows:
                table.keep()
            best = True
        if turn % 2:
            continue
        step += 1
        checkpoints.collect(step, best)()
        saved[step] = copy_state(state_of(rows, best))
        newest = CheckpointFiles(tmp_path / "run").learnable(0, step)
        sizes.append(newest.stat().st_size)
        if generator.random() < 0.4:
            resumed_step = step - int(step > 1 and generator.random() < 0.5)
            rows, checkpoints = start()
            checkpoints.load(resumed_step, "kept.author" in saved[resumed_step])
            assert have_state(rows, saved[resumed_step])
            step, best = resumed_step, "kept.author" in saved[resumed_step]
        if generator.random() < 0.1 and best:
            for table in rows:
                table.go_back()
            assert torch.equal(rows["author"].records.rows, state_of(rows, True)["kept.author"])
    full_size = sum(value.numel() * value.element_size() for value in saved[1].values())
    assert sizes[0] > full_size
    # Few rows change in a step; now and then all are written.
    assert sum(size > full_size for size in sizes) < len(sizes) / 2
    assert sum(size > full_size for size in sizes) > 2
    assert min(sizes) < full_size / 3


def test_missing_files_and_those_of_another_model_are_refused(tmp_path: Path) -> None:
    rows = make_rows(MemoryStorage(torch.device("cpu")))
    checkpoints = make_checkpoints(tmp_path, rows)
    for step in (1, 2, 3):
        train_once(rows, np.random.default_rng(step))
        checkpoints.collect(step, False)()
    sgd_rows = make_rows(MemoryStorage(torch.device("cpu")), "sgd")
    with pytest.raises(RequestError, match="of another model"):
        make_checkpoints(tmp_path, sgd_rows).load(3, False)
    CheckpointFiles(tmp_path).learnable(0, 1).unlink()
    with pytest.raises(RequestError, match=r"rank-0-step-1\.safetensors: no such file"):
        make_checkpoints(tmp_path, make_rows(MemoryStorage(torch.device("cpu")))).load(3, False)
    make_checkpoints(tmp_path, rows).forget_all()
    assert list((tmp_path / "checkpoints").iterdir()) == []
