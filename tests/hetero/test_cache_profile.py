"""Counting visits, what a missing byte costs, and keeping both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hopper.errors import GraphError
from hopper.hetero import presample
from hopper.hetero.cache_plan import TypeProfile
from hopper.hetero.cache_profile import CacheProfile, load_profile, profile_file, save_profile
from hopper.hetero.presample import VisitCounter, Visited, miss_penalty

PROFILE = CacheProfile(
    {"seed": 1},
    9,
    {
        "paper": TypeProfile(28, 90, np.array([3, 4]), np.array([1, 7]), 1.5e-9),
        "author": TypeProfile(6, 41, np.empty(0, np.int64), np.empty(0, np.int64)),
    },
)


def test_visits_are_counted_by_iteration() -> None:
    counter = VisitCounter({"a": 5, "b": 1})
    counter.add({"a": np.array([1, 3]), "b": np.array([0])})
    counter.add({"a": np.array([3]), "b": np.empty(0, np.int64)})
    counter.add({"a": np.empty(0, np.int64)})
    assert counter.iterations == 3
    found = counter.list_visited("a")
    assert found.ids.tolist() == [1, 3]
    assert found.visits.tolist() == [1, 2]
    assert counter.list_visited("b").visits.tolist() == [1]


def test_penalty_is_the_median_time_of_a_typical_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    """60 visits in 10 iterations: six rows of 25 bytes at a time, others each time as far as there
    are. The first fetch is not counted; of 2, 4 and 9 seconds the median is 4."""
    moments = iter(np.cumsum([0, 50, 0, 2, 0, 9, 0, 4]).tolist())
    monkeypatch.setattr(presample, "perf_counter", lambda: next(moments))
    asked: list[np.ndarray[Any, Any]] = []
    visited = Visited(np.arange(0, 100, 5), np.full(20, 3))
    assert miss_penalty(asked.append, visited, 10, 25) == pytest.approx(4 / (6 * 25))
    assert len(asked) == 4
    assert [ids.tolist() for ids in asked] == [
        [0, 15, 30, 50, 65, 80],
        [0, 15, 30, 50, 65, 80],
        [5, 20, 35, 55, 70, 85],
        [10, 25, 40, 60, 75, 90],
    ]


def test_penalty_of_few_rows() -> None:
    """At least one row is fetched, and never more than were visited; of none, none."""
    asked: list[np.ndarray[Any, Any]] = []
    assert miss_penalty(asked.append, Visited(np.array([4]), np.array([1])), 100, 8) > 0
    assert [ids.tolist() for ids in asked] == [[4]] * 4
    empty = np.empty(0, np.int64)
    assert miss_penalty(asked.append, Visited(empty, empty), 100, 8) == 0.0
    assert len(asked) == 4


def test_a_profile_comes_back(tmp_path: Path) -> None:
    path = profile_file(tmp_path, PROFILE.made_for, 1)
    save_profile(PROFILE, path)
    assert [each.name for each in path.parent.iterdir()] == ["rank-1.npz"]
    found = load_profile(path)
    assert (found.made_for, found.iterations) == (PROFILE.made_for, PROFILE.iterations)
    assert list(found.types) == ["paper", "author"]
    for name, known in PROFILE.types.items():
        own = found.types[name]
        assert (own.row_bytes, own.rows, own.penalty) == (
            known.row_bytes,
            known.rows,
            known.penalty,
        )
        assert np.array_equal(own.ids, known.ids)
        assert np.array_equal(own.visits, known.visits)


def test_another_configuration_has_another_file(tmp_path: Path) -> None:
    assert profile_file(tmp_path, {"seed": 1}, 0) == profile_file(tmp_path, {"seed": 1}, 0)
    assert profile_file(tmp_path, {"seed": 1}, 0).parent != (
        profile_file(tmp_path, {"seed": 2}, 0).parent
    )


def test_damaged_profiles(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.npz"
    with pytest.raises(GraphError, match="no such profile; `hopper cache profile` makes one"):
        load_profile(path)
    save_profile(PROFILE, path)
    content = path.read_bytes()
    for damaged in (b"", b"no archive", content[: len(content) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(GraphError, match=r"rank-0\.npz: not a profile of visits"):
            load_profile(path)
    np.savez(path, other=np.zeros(1))
    with pytest.raises(GraphError, match="not a profile of visits"):
        load_profile(path)
