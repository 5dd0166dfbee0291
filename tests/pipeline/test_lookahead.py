"""Rows that are kept for coming iterations: which, how many, and that they are the right ones."""

from __future__ import annotations

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


def read_all(trace: Trace, reach: int, room: int, requests: int = 1) -> tuple[int, KeptRows]:
    """Read a trace as a run does, an iteration in so many requests; returns how many rows were
    fetched."""
    kept = KeptRows(COUNT, 3, TABLE.dtype, room)
    fetched = 0

    def fetch(ids: NDArray[np.int64], out: NDArray[np.float32], places: NDArray[np.int64]) -> None:
        nonlocal fetched
        fetched += ids.size
        out[places] = TABLE[ids]

    foreseen = 0
    for turn, wanted in enumerate(trace):
        while foreseen < min(len(trace), turn + reach + 1):
            kept.foresee(foreseen, np.unique(np.array(trace[foreseen], np.int64)))
            foreseen += 1
        # In any order.
        ids = np.unique(np.array(wanted, np.int64))[::-1]
        kept.begin()
        for part in np.array_split(ids, requests):
            out = np.zeros((part.size, 3), TABLE.dtype)
            look_up(kept, part, out, np.arange(part.size), fetch)
            assert np.array_equal(out, TABLE[part])
        kept.end()
        assert kept.kept <= room
        soon = {node for later in trace[turn + 1 : turn + reach + 1] for node in later}
        held = set(np.flatnonzero(kept.find(np.arange(COUNT)) >= 0).tolist())
        assert held <= soon
        assert len(held) == kept.kept
    return fetched, kept


def fewest_fetches(trace: Trace, room: int) -> int:
    """Of a cache that may refuse rows, by trying every choice of what to keep."""
    best = {frozenset[int](): 0}
    for wanted in trace:
        following: dict[frozenset[int], int] = {}
        for held, cost in best.items():
            total = cost + len(set(wanted) - held)
            pool = sorted(held | set(wanted))
            for bits in range(1 << len(pool)):
                keep = frozenset(node for i, node in enumerate(pool) if bits >> i & 1)
                if len(keep) <= room:
                    following[keep] = min(following.get(keep, total), total)
        best = following
    return min(best.values())


traces = st.lists(st.lists(st.integers(0, 5), max_size=4), min_size=1, max_size=6)


@settings(deadline=None)
@given(traces, st.integers(0, 6), st.integers(0, 8))
def test_rows_are_right_and_none_is_kept_in_vain(trace: Trace, reach: int, room: int) -> None:
    fetched, kept = read_all(trace, reach, room, requests=2)
    assert kept.kept == 0
    assert fetched <= sum(len(set(each)) for each in trace)
    if reach == 0 or room == 0:
        assert fetched == sum(len(set(each)) for each in trace)


@settings(deadline=None)
@given(traces)
def test_with_room_for_all_and_all_foreseen_a_row_is_fetched_once(trace: Trace) -> None:
    fetched, _ = read_all(trace, len(trace), COUNT)
    assert fetched == len({node for each in trace for node in each})


@pytest.mark.parametrize("room", [1, 2, 3])
@settings(deadline=None)
@example(trace=[[2, 3], [0, 1, 2, 3], [0, 1]])
@given(trace=traces)
def test_nothing_better_could_be_kept(trace: Trace, room: int) -> None:
    fetched, _ = read_all(trace, len(trace), room)
    assert fetched == fewest_fetches(trace, room)
