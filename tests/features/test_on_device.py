"""Rows cached on a device, against plain indexing: NumPy always, CuPy where there is one."""

from threading import RLock
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hopper.device.array_module import array_module
from hopper.features import DeviceRows, RowKind
from hopper.features.row_cache import RecentRows, RowCache

NODES, DIM = 40, 3


class Table:
    """A source that remembers what it was asked for."""

    def __init__(self, dtype: str) -> None:
        self.rows = np.random.default_rng(0).standard_normal((NODES, DIM)).astype(dtype)
        self.requested: list[int] = []

    def gather(self, kind: RowKind, node_type: str, ids: NDArray[np.int64]) -> NDArray[Any]:
        assert (kind, node_type) in (("features", "paper"), ("features", "author"))
        self.requested += ids.tolist()
        return self.rows[ids]


def make_device_rows(
    device: torch.device, table: Table, room: int, kind: type[RowCache]
) -> DeviceRows:
    module: ModuleType = array_module(device.type)
    cache = kind(NODES, room, DIM, table.rows.dtype, module)
    if kind is RowCache:
        ids = np.random.default_rng(1).permutation(NODES)[:room]
        cache.put(module.asarray(ids), module.asarray(table.rows[ids]))
    return DeviceRows(device, {"paper": cache}, RLock())


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("kind", [RowCache, RecentRows])
@pytest.mark.parametrize("room", [0, 1, 9, NODES])
def test_rows_are_those_of_the_table(device, room, kind, dtype):
    """Ids repeat in any order, and the source is asked only for rows that are not cached."""
    table, generator = Table(dtype), np.random.default_rng(room)
    device_rows = make_device_rows(device, table, room, kind)
    lookups = 0
    for size in (0, 1, 17, 60, 5):
        ids = generator.integers(0, NODES, size)
        missing = ids[np.isin(ids, device_rows.absent("paper", ids))]
        table.requested = []
        rows = device_rows.read(table, "paper", ids)
        assert rows.device.type == device.type
        assert np.array_equal(rows.cpu().numpy(), table.rows[ids])
        assert table.requested == missing.tolist()
        lookups += size
    hits, misses = device_rows.take_lookups()["paper"]
    assert hits + misses == lookups
    assert (hits == 0) == (room == 0)
    assert device_rows.take_lookups()["paper"] == (0, 0)


def test_other_types_are_copied(device):
    """Rows of other types are copied as they are stored, without lookups."""
    table = Table("float32")
    device_rows = make_device_rows(device, table, 5, RowCache)
    ids = np.array([3, 3, 0])
    assert np.array_equal(device_rows.read(table, "author", ids).cpu().numpy(), table.rows[ids])
    assert device_rows.absent("author", ids).tolist() == [3, 3, 0]
    assert device_rows.take_lookups() == {"paper": (0, 0)}
