"""Rows that are kept for coming iterations: which ones, how many, and with which values."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hopper.features.cached import look_up
from hopper.pipeline.lookahead import KeptRows

COUNT = 12
TABLE = np.random.default_rng(1).standard_normal((COUNT, 3)).astype(np.float32)
Trace = list[list[int]]


def count_kept(cache: KeptRows) -> int:
    """The number of rows that a cache keeps now."""
    return int(np.count_nonzero(cache._id_in >= 0))


def read_all(trace: Trace, reach: int, room: int, requests: int = 1) -> tuple[int, KeptRows]:
    """Read a trace as a run does, each iteration in ``requests`` parts.

    Returns how many rows were fetched, and the cache.
    """
    cache = KeptRows(COUNT, 3, TABLE.dtype, room)
    fetched = 0

    def fetch(ids: NDArray[np.int64], out: NDArray[np.float32], places: NDArray[np.int64]) -> None:
        nonlocal fetched
        fetched += ids.size
        out[places] = TABLE[ids]

    foreseen = 0
    for turn, ids_read in enumerate(trace):
        while foreseen < min(len(trace), turn + reach + 1):
            cache.foresee(foreseen, np.unique(np.array(trace[foreseen], np.int64)))
            foreseen += 1
        # In any order.
        ids = np.unique(np.array(ids_read, np.int64))[::-1]
        cache.begin()
        for part in np.array_split(ids, requests):
            out = np.zeros((part.size, 3), TABLE.dtype)
            look_up(cache, part, out, np.arange(part.size), fetch)
            assert np.array_equal(out, TABLE[part])
        cache.end()
        assert count_kept(cache) <= room
        needed_soon = {node for later in trace[turn + 1 : turn + reach + 1] for node in later}
        kept_nodes = set(np.flatnonzero(cache.find(np.arange(COUNT)) >= 0).tolist())
        assert kept_nodes <= needed_soon
        assert len(kept_nodes) == count_kept(cache)
    return fetched, cache


def fewest_fetches(trace: Trace, room: int) -> int:
    """The least number of fetches of any cache with ``room`` rows, by trying all choices."""
    costs = {frozenset[int](): 0}
    for ids_read in trace:
        next_costs: dict[frozenset[int], int] = {}
        for kept, cost in costs.items():
            total = cost + len(set(ids_read) - kept)
            candidates = sorted(kept | set(ids_read))
            for bits in range(1 << len(candidates)):
                keep = frozenset(node for i, node in enumerate(candidates) if bits >> i & 1)
                if len(keep) <= room:
                    next_costs[keep] = min(next_costs.get(keep, total), total)
        costs = next_costs
    return min(costs.values())


traces = st.lists(st.lists(st.integers(0, 5), max_size=4), min_size=1, max_size=6)


@settings(deadline=None)
@given(traces, st.integers(0, 6), st.integers(0, 8))
def test_rows_are_right_and_only_needed_ones_are_kept(trace, reach, room):
    fetched, cache = read_all(trace, reach, room, requests=2)
    assert count_kept(cache) == 0
    assert fetched <= sum(len(set(iteration)) for iteration in trace)
    if reach == 0 or room == 0:
        assert fetched == sum(len(set(iteration)) for iteration in trace)


@settings(deadline=None)
@given(traces)
def test_with_room_for_all_and_all_foreseen_a_row_is_fetched_once(trace):
    fetched, _ = read_all(trace, len(trace), COUNT)
    assert fetched == len({node for iteration in trace for node in iteration})


@pytest.mark.parametrize("room", [1, 2, 3])
@settings(deadline=None)
@example(trace=[[2, 3], [0, 1, 2, 3], [0, 1]])
@given(trace=traces)
def test_no_cache_of_the_same_size_fetches_less(trace, room):
    fetched, _ = read_all(trace, len(trace), room)
    assert fetched == fewest_fetches(trace, room)
