"""Rows kept by id, against plain indexing: NumPy always, CuPy where there is a device."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from hopper.array_module import array_module
from hopper.errors import ConfigError
from hopper.hetero.row_cache import RecentRows, RowCache

NODES = 50


def _module(name: str) -> ModuleType:
    if name == "numpy":
        return np
    cupy: ModuleType = pytest.importorskip("cupy")
    if not cupy.cuda.is_available():
        pytest.skip("no CUDA device")
    return cupy


@pytest.fixture(params=["numpy", "cupy"])
def module(request: pytest.FixtureRequest) -> ModuleType:
    return _module(request.param)


def _table(module: ModuleType, dtype: str, dim: int) -> Any:
    return module.asarray(np.random.default_rng(1).standard_normal((NODES, dim)).astype(dtype))


def _to_numpy(array: Any) -> np.ndarray[Any, Any]:
    return np.asarray(array.get() if hasattr(array, "get") else array)


@pytest.mark.parametrize("room", [0, 1, 7, NODES])
@pytest.mark.parametrize(("dtype", "dim"), [("float32", 3), ("float16", 5), ("float64", 1)])
def test_rows_come_back_as_they_were_put(
    module: ModuleType, room: int, dtype: str, dim: int
) -> None:
    """Put in random pieces, read in random order: what plain indexing gives, bit for bit."""
    generator = np.random.default_rng(room)
    table = _table(module, dtype, dim)
    cache = RowCache(NODES, room, dim, dtype, module)
    kept = generator.permutation(NODES)[:room]
    for part in np.array_split(kept, 3):
        cache.put(module.asarray(part), table[module.asarray(part)])
    assert np.array_equal(_to_numpy(cache.cached_ids), kept)
    for size in (0, 1, 30):
        ids = generator.integers(0, NODES, size)
        slots = cache.find(module.asarray(ids))
        here = _to_numpy(slots) >= 0
        assert np.array_equal(here, np.isin(ids, kept))
        out = module.full((size + 2, dim), -1, dtype)
        places = module.asarray(generator.permutation(size + 2)[:size][here])
        cache.copy(slots[module.asarray(here)], out, places)
        found = _to_numpy(out)
        assert np.array_equal(found[_to_numpy(places)], _to_numpy(table)[ids[here]])
        rest = np.setdiff1d(np.arange(size + 2), _to_numpy(places))
        assert (found[rest] == -1).all()


def test_no_room_for_more(module: ModuleType) -> None:
    cache = RowCache(NODES, 2, 1, "float32", module)
    with pytest.raises(ValueError, match="room for 2 more rows, given 3"):
        cache.put(module.arange(3), module.zeros((3, 1), "float32"))


def test_ids_of_no_node_are_not_here(module: ModuleType) -> None:
    cache = RowCache(NODES, 1, 1, "float32", module)
    cache.put(module.asarray([NODES - 1]), module.zeros((1, 1), "float32"))
    for ids in ([-1, NODES - 1], [NODES]):
        assert (_to_numpy(cache.find(module.asarray(ids))) == -1).all()


@pytest.mark.parametrize("room", [0, 1, 5, 20, NODES])
def test_least_recently_asked_for_rows_make_room(module: ModuleType, room: int) -> None:
    """Over random requests, with repeats, and of more rows than there is room for: what is found
    is the right row, and what goes was asked for no later than what stays."""
    generator = np.random.default_rng(room)
    table = _table(module, "float32", 4)
    cache = RecentRows(NODES, room, 4, "float32", module)
    asked_at = np.full(NODES, -1)
    before: set[int] = set()
    for moment in range(200):
        ids = generator.integers(0, NODES, int(generator.integers(0, 12)))
        on_device, wanted = module.asarray(ids), set(ids.tolist())
        slots = cache.find(on_device)
        here = _to_numpy(slots) >= 0
        assert set(ids[here].tolist()) == wanted & before
        out = module.zeros((ids.size, 4), "float32")
        gaps = module.asarray(np.flatnonzero(~here))
        cache.copy(slots[module.asarray(here)], out, module.asarray(np.flatnonzero(here)))
        out[gaps] = table[on_device[gaps]]
        cache.take_missed(on_device[gaps], out, gaps)
        assert np.array_equal(_to_numpy(out), _to_numpy(table)[ids])
        after = set(np.flatnonzero(_to_numpy(cache.find(module.arange(NODES))) >= 0).tolist())
        assert len(after) == min(room, len(before | wanted))
        assert after <= before | wanted
        if len(wanted) <= room:
            assert wanted <= after
        gone, stayed = before - after, before & after - wanted
        if gone and stayed:
            assert asked_at[list(gone)].max() <= asked_at[list(stayed)].min()
        asked_at[ids] = moment
        before = after


def test_evicts_the_oldest(module: ModuleType) -> None:
    table = _table(module, "float32", 2)
    cache = RecentRows(NODES, 3, 2, "float32", module)

    def ask(*ids: int) -> list[int]:
        wanted = module.asarray(ids)
        slots = cache.find(wanted)
        here = _to_numpy(slots) >= 0
        out = module.zeros((len(ids), 2), "float32")
        cache.copy(slots[module.asarray(here)], out, module.asarray(np.flatnonzero(here)))
        gaps = module.asarray(np.flatnonzero(~here))
        out[gaps] = table[wanted[gaps]]
        cache.take_missed(wanted[gaps], out, gaps)
        return [int(each) for each, found in zip(ids, here, strict=True) if found]

    assert ask(1) == []
    assert ask(2) == []
    assert ask(3) == []
    assert ask(1) == [1]
    assert ask(4) == []
    assert ask(2) == []
    assert ask(1, 2, 4) == [1, 2, 4]
    assert ask(3) == []


def test_array_modules() -> None:
    assert array_module("cpu") is np
    try:
        import cupy
    except ImportError:
        with pytest.raises(ConfigError, match=r"pip install 'hopper-gnn\[gpu\]'"):
            array_module("cuda")
    else:
        assert array_module("cuda") is cupy
