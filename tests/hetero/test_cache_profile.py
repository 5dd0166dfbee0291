"""Counting visits, measuring what a missing byte costs, and saving both."""

from typing import Any

import numpy as np
import pytest

from hopper.errors import GraphError
from hopper.features.cache_plan import TypeProfile
from hopper.hetero import presample
from hopper.hetero.cache_profile import CacheProfile, load_profile, profile_file, save_profile
from hopper.hetero.presample import VisitCounter, Visited, miss_penalty

PROFILE = CacheProfile(
    {"seed": 1},
    9,
    {
        "paper": TypeProfile(28, 90, np.array([3, 4]), np.array([1, 7]), np.array([1.5e-9, 2])),
        "author": TypeProfile(6, 41, np.empty(0, np.int64), np.empty(0, np.int64)),
    },
)


def test_visits_are_counted_by_iteration():
    counter = VisitCounter({"a": 5, "b": 1})
    counter.add({"a": np.array([1, 3]), "b": np.array([0])})
    counter.add({"a": np.array([3]), "b": np.empty(0, np.int64)})
    counter.add({"a": np.empty(0, np.int64)})
    assert counter.iterations == 3
    visited = counter.list_visited("a")
    assert visited.ids.tolist() == [1, 3]
    assert visited.visits.tolist() == [1, 2]
    assert counter.list_visited("b").visits.tolist() == [1]


def test_penalty_is_the_median_time_of_a_typical_fetch(monkeypatch):
    """60 visits in 10 iterations make six rows of 25 bytes a fetch.

    Each fetch reads other rows as long as there are any. The first fetch is not counted, and the
    median of 2, 4 and 9 seconds is 4.
    """
    moments = iter(np.cumsum([0, 50, 0, 2, 0, 9, 0, 4]).tolist())
    monkeypatch.setattr(presample, "perf_counter", lambda: next(moments))
    fetched_ids: list[np.ndarray[Any, Any]] = []
    visited = Visited(np.arange(0, 100, 5), np.full(20, 3))
    assert miss_penalty(fetched_ids.append, visited, 10, 25) == pytest.approx(4 / (6 * 25))
    assert [ids.tolist() for ids in fetched_ids] == [
        [0, 15, 30, 50, 65, 80],
        [0, 15, 30, 50, 65, 80],
        [5, 20, 35, 55, 70, 85],
        [10, 25, 40, 60, 75, 90],
    ]


def test_penalty_of_few_rows():
    """At least one row is fetched, and never more than were visited. Without visits none is."""
    fetched_ids: list[np.ndarray[Any, Any]] = []
    assert miss_penalty(fetched_ids.append, Visited(np.array([4]), np.array([1])), 100, 8) > 0
    assert [ids.tolist() for ids in fetched_ids] == [[4]] * 4
    empty = np.empty(0, np.int64)
    assert miss_penalty(fetched_ids.append, Visited(empty, empty), 100, 8) == 0.0
    assert len(fetched_ids) == 4


def test_a_saved_profile_is_loaded_unchanged(tmp_path):
    path = profile_file(tmp_path, PROFILE.made_for, 1)
    save_profile(PROFILE, path)
    assert [file.name for file in path.parent.iterdir()] == ["rank-1.npz"]
    profile = load_profile(path)
    assert (profile.made_for, profile.iterations) == (PROFILE.made_for, PROFILE.iterations)
    assert list(profile.types) == ["paper", "author"]
    for name, expected in PROFILE.types.items():
        for field in ("row_bytes", "rows", "ids", "visits", "penalty"):
            np.testing.assert_array_equal(
                *(getattr(of, field) for of in (profile.types[name], expected))
            )


def test_damaged_profiles(tmp_path):
    path = tmp_path / "rank-0.npz"
    advice = "no such profile; `hopper inspect cache CONFIG --profile` makes one"
    with pytest.raises(GraphError, match=advice):
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
