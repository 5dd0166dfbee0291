"""Rows held on a device, against plain indexing: NumPy always, CuPy where there is a device."""

from __future__ import annotations

from threading import RLock
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hopper.array_module import array_module
from hopper.features import DeviceRows, RowKind
from hopper.hetero.row_cache import RecentRows, RowCache

NODES, DIM = 40, 3


class Table:
    """A source that remembers what it was asked for."""

    def __init__(self, dtype: str) -> None:
        self.rows = np.random.default_rng(0).standard_normal((NODES, DIM)).astype(dtype)
        self.asked: list[int] = []

    def gather(self, kind: RowKind, node_type: str, ids: NDArray[np.int64]) -> NDArray[Any]:
        assert (kind, node_type) in (("features", "paper"), ("features", "author"))
        self.asked += ids.tolist()
        return self.rows[ids]


def make(device: torch.device, table: Table, room: int, kind: type[RowCache]) -> DeviceRows:
    module: ModuleType = array_module(device.type)
    cache = kind(NODES, room, DIM, table.rows.dtype, module)
    if kind is RowCache:
        ids = np.random.default_rng(1).permutation(NODES)[:room]
        cache.put(module.asarray(ids), module.asarray(table.rows[ids]))
    return DeviceRows(device, {"paper": cache}, RLock())


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("kind", [RowCache, RecentRows])
@pytest.mark.parametrize("room", [0, 1, 9, NODES])
def test_rows_are_those_of_the_table(
    device: torch.device, room: int, kind: type[RowCache], dtype: str
) -> None:
    """With repeats and in any order; the source is asked for the missing ones alone."""
    table, generator = Table(dtype), np.random.default_rng(room)
    held = make(device, table, room, kind)
    looked_for = 0
    for size in (0, 1, 17, 60, 5):
        ids = generator.integers(0, NODES, size)
        missing = ids[np.isin(ids, held.absent("paper", ids))]
        table.asked = []
        read = held.read(table, "paper", ids)
        assert read.device.type == device.type
        assert np.array_equal(read.cpu().numpy(), table.rows[ids])
        assert table.asked == missing.tolist()
        looked_for += size
    hits, misses = held.take_lookups()["paper"]
    assert hits + misses == looked_for
    assert (hits == 0) == (room == 0)
    assert held.take_lookups()["paper"] == (0, 0)


def test_other_types_are_copied(device: torch.device) -> None:
    """Each as it is stored, and nothing is looked for."""
    table = Table("float32")
    held = make(device, table, 5, RowCache)
    ids = np.array([3, 3, 0])
    assert np.array_equal(held.read(table, "author", ids).cpu().numpy(), table.rows[ids])
    assert held.absent("author", ids).tolist() == [3, 3, 0]
    assert held.take_lookups() == {"paper": (0, 0)}
