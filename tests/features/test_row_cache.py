"""Caches of rows by id, and rows that ranks read through them, against plain indexing.

Arrays are those of NumPy, and those of CuPy where there is a device.
"""

from threading import RLock
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hopper.device.array_module import array_module
from hopper.errors import ConfigError
from hopper.features import DeviceRows, RowKind
from hopper.features.row_cache import RecentRows, RowCache

NODES = 50


def _table(module: ModuleType, dtype: str, dim: int) -> Any:
    return module.asarray(np.random.default_rng(1).standard_normal((NODES, dim)).astype(dtype))


def _to_numpy(array: Any) -> np.ndarray[Any, Any]:
    return np.asarray(array.get() if hasattr(array, "get") else array)


@pytest.mark.parametrize("room", [0, 1, 7, NODES])
@pytest.mark.parametrize(("dtype", "dim"), [("float32", 3), ("float16", 5), ("float64", 1)])
def test_cached_rows_equal_plain_indexing(module, room, dtype, dim):
    """Rows put in pieces and read in random order equal those of plain indexing, bit for bit."""
    generator = np.random.default_rng(room)
    table = _table(module, dtype, dim)
    cache = RowCache(NODES, room, dim, dtype, module)
    cached_ids = generator.permutation(NODES)[:room]
    for ids in np.array_split(cached_ids, 3):
        cache.put(module.asarray(ids), table[module.asarray(ids)])
    assert np.array_equal(_to_numpy(cache.cached_ids), cached_ids)
    for size in (0, 1, 30):
        ids = generator.integers(0, NODES, size)
        slots = cache.find(module.asarray(ids))
        is_cached = _to_numpy(slots) >= 0
        assert np.array_equal(is_cached, np.isin(ids, cached_ids))
        out = module.full((size + 2, dim), -1, dtype)
        places = module.asarray(generator.permutation(size + 2)[:size][is_cached])
        cache.copy(slots[module.asarray(is_cached)], out, places)
        copied = _to_numpy(out)
        assert np.array_equal(copied[_to_numpy(places)], _to_numpy(table)[ids[is_cached]])
        unfilled = np.setdiff1d(np.arange(size + 2), _to_numpy(places))
        assert (copied[unfilled] == -1).all()


def test_more_rows_than_there_is_room_for_are_refused(module):
    cache = RowCache(NODES, 2, 1, "float32", module)
    with pytest.raises(ValueError, match="room for 2 more rows, given 3"):
        cache.put(module.arange(3), module.zeros((3, 1), "float32"))


def test_ids_of_no_node_are_not_cached(module):
    cache = RowCache(NODES, 1, 1, "float32", module)
    cache.put(module.asarray([NODES - 1]), module.zeros((1, 1), "float32"))
    for ids in ([-1, NODES - 1], [NODES]):
        assert (_to_numpy(cache.find(module.asarray(ids))) == -1).all()


@pytest.mark.parametrize("room", [0, 1, 5, 20, NODES])
def test_the_least_recently_requested_rows_are_evicted(module, room):
    """Ask for random rows, with repeats, and for more rows than there is room for.

    A cached row is the right one, and an evicted row was asked for no later than those that stay.
    """
    generator = np.random.default_rng(room)
    table = _table(module, "float32", 4)
    cache = RecentRows(NODES, room, 4, "float32", module)
    asked_at = np.full(NODES, -1)
    cached_before: set[int] = set()
    for moment in range(200):
        ids = generator.integers(0, NODES, int(generator.integers(0, 12)))
        on_device, requested = module.asarray(ids), set(ids.tolist())
        slots = cache.find(on_device)
        is_cached = _to_numpy(slots) >= 0
        assert set(ids[is_cached].tolist()) == requested & cached_before
        out = module.zeros((ids.size, 4), "float32")
        gaps = module.asarray(np.flatnonzero(~is_cached))
        cache.copy(slots[module.asarray(is_cached)], out, module.asarray(np.flatnonzero(is_cached)))
        out[gaps] = table[on_device[gaps]]
        cache.take_missed(on_device[gaps], out, gaps)
        assert np.array_equal(_to_numpy(out), _to_numpy(table)[ids])
        is_cached = _to_numpy(cache.find(module.arange(NODES))) >= 0
        cached_after = set(np.flatnonzero(is_cached).tolist())
        assert len(cached_after) == min(room, len(cached_before | requested))
        assert cached_after <= cached_before | requested
        if len(requested) <= room:
            assert requested <= cached_after
        evicted, kept = cached_before - cached_after, cached_before & cached_after - requested
        if evicted and kept:
            assert asked_at[list(evicted)].max() <= asked_at[list(kept)].min()
        asked_at[ids] = moment
        cached_before = cached_after


def test_array_modules():
    assert array_module("cpu") is np
    try:
        import cupy
    except ImportError:
        with pytest.raises(ConfigError, match="pip install cupy-cuda13x"):
            array_module("cuda")
    else:
        assert array_module("cuda") is cupy


# Rows cached on a device

DIM = 3


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
