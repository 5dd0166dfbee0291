"""OpenMP's settings of ranks: threads that wait give way only where cores are shared."""

from __future__ import annotations

import pytest

from hopper.train.rank_processes import thread_settings


@pytest.mark.parametrize(
    ("ranks", "threads", "expected"),
    [
        (2, 0, {"OMP_NUM_THREADS": "4"}),
        (3, 0, {"OMP_NUM_THREADS": "2"}),
        (2, 3, {"OMP_NUM_THREADS": "3"}),
        (8, 1, {"OMP_NUM_THREADS": "1"}),
        (2, 5, {"OMP_NUM_THREADS": "5", "OMP_WAIT_POLICY": "PASSIVE"}),
        (9, 0, {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}),
    ],
)
def test_they_follow_the_cores(
    ranks: int, threads: int, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    assert thread_settings(ranks, threads) == expected


def test_what_is_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setenv("OMP_NUM_THREADS", "6")
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert thread_settings(2, 0) == {"OMP_NUM_THREADS": "6"}
    assert thread_settings(2, 5) == {"OMP_NUM_THREADS": "6", "OMP_WAIT_POLICY": "ACTIVE"}
