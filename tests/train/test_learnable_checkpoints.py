"""Rows saved as changes, and restored from any of the checkpoints that are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hopper.errors import RequestError
from hopper.hetero.learnable import LearnableRows, LearnableTable
from hopper.hetero.row_storage import MappedStorage, MemoryStorage, RowStorage
from hopper.partition import PartitionBook
from hopper.partition.placement import Placement
from hopper.train.learnable_checkpoints import LearnableCheckpoints

COUNTS = {"author": 90, "field": 30}
DIM = 4
IDENTITY = {"seed": 1}


class Alone:
    """A cluster of one rank."""

    rank, world, ranks_per_server = 0, 1, 1
    device = torch.device("cpu")

    def all_gather(self, tensor: Tensor, *_: Any) -> Tensor:
        return tensor[None]

    def exchange(self, parts: Sequence[Tensor], *_: Any) -> list[Tensor]:
        return list(parts)

    def arrive(self, *_: Any) -> None:
        pass


def make(storage: RowStorage, optimizer: str = "adam") -> LearnableRows:
    tables = [
        LearnableTable(name, name, np.array([0, count]), (name,)) for name, count in COUNTS.items()
    ]
    graph: Any = SimpleNamespace(original_ids=lambda name: np.arange(COUNTS[name]))
    cluster: Any = Alone()
    book = PartitionBook(1, {name: [0, count] for name, count in COUNTS.items()})
    return LearnableRows(
        graph,
        Placement(book, 1),
        cluster,
        tables,
        DIM,
        torch.float64,
        1,
        optimizer,
        0.1,
        storage,
        keeps=True,
    )


def files(run_dir: Path, rows: LearnableRows) -> LearnableCheckpoints:
    cluster: Any = Alone()
    return LearnableCheckpoints(run_dir, cluster, rows, IDENTITY)


def train(rows: LearnableRows, generator: np.random.Generator) -> None:
    wanted = {
        name: [generator.choice(count, int(generator.integers(0, 6)), replace=False)]
        for name, count in COUNTS.items()
    }
    fetched = rows.fetch(wanted, "here")
    for name, (ids,) in wanted.items():
        fetched.of(name, ids).square().sum().backward()
    rows.push(fetched, "here")
    rows.step()


def copied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in state.items()}


def same(rows: LearnableRows, expected: Mapping[str, Tensor]) -> bool:
    found = rows.state("kept.author" in expected)
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], value) for name, value in expected.items()
    )


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("kind", ["memory", "mmap", "held", "held, recent"])
def test_any_of_the_last_two_can_be_gone_on_from(kind: str, optimizer: str, tmp_path: Path) -> None:
    """Killed at random moments, also between the rows' file and the checkpoint that names it."""
    generator = np.random.default_rng(5)

    def started() -> tuple[LearnableRows, LearnableCheckpoints]:
        storage: RowStorage = MemoryStorage(torch.device("cpu"))
        if kind != "memory":
            storage = MappedStorage(tmp_path / "rows")
        rows = make(storage, optimizer)
        if kind == "held, recent":
            rows.hold(dict.fromkeys(COUNTS, 8), None)
        elif kind == "held":
            rows.hold(dict.fromkeys(COUNTS, 8), dict.fromkeys(COUNTS, np.arange(4, 12)))
        return rows, files(tmp_path / "run", rows)

    (tmp_path / "run").mkdir()
    rows, checkpoints = started()
    saved: dict[int, dict[str, Tensor]] = {}
    sizes, step, best = [], 0, False
    for moment in range(60):
        train(rows, generator)
        if moment % 7 == 5:
            rows.keep()
            best = True
        if moment % 2:
            continue
        step += 1
        checkpoints.save(step, best)
        saved[step] = copied(rows.state(best))
        newest = tmp_path / "run" / f"checkpoint-learnable-rank-0-step-{step}.safetensors"
        sizes.append(newest.stat().st_size)
        if generator.random() < 0.4:
            named = step - int(step > 1 and generator.random() < 0.5)
            rows, checkpoints = started()
            checkpoints.load(named, "kept.author" in saved[named])
            assert same(rows, saved[named])
            step, best = named, "kept.author" in saved[named]
        if generator.random() < 0.1 and best:
            rows.go_back()
            assert torch.equal(rows.records["author"].rows, rows.state(True)["kept.author"])
    whole = sum(value.numel() * value.element_size() for value in saved[1].values())
    assert sizes[0] > whole
    # Few rows change in a step; now and then all are written.
    assert sum(size > whole for size in sizes) < len(sizes) / 2
    assert sum(size > whole for size in sizes) > 2
    assert min(sizes) < whole / 3


def test_what_is_missing_or_of_another_run_is_told(tmp_path: Path) -> None:
    rows = make(MemoryStorage(torch.device("cpu")))
    checkpoints = files(tmp_path, rows)
    for step in (1, 2, 3):
        train(rows, np.random.default_rng(step))
        checkpoints.save(step, False)
    other = make(MemoryStorage(torch.device("cpu")), "sgd")
    with pytest.raises(RequestError, match="of another model"):
        files(tmp_path, other).load(3, False)
    (tmp_path / "checkpoint-learnable-rank-0-step-1.safetensors").unlink()
    with pytest.raises(RequestError, match=r"rank-0-step-1\.safetensors: no such file"):
        files(tmp_path, make(MemoryStorage(torch.device("cpu")))).load(3, False)
    files(tmp_path, rows).forget_all()
    assert list(tmp_path.iterdir()) == []
