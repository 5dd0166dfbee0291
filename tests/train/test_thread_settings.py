"""Settings of OpenMP for ranks: waiting threads sleep only if there are too few cores."""

from __future__ import annotations

import pytest

from hopper.process.thread_settings import thread_settings


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
def test_settings_follow_from_the_number_of_cores(
    ranks: int, threads: int, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    assert thread_settings(ranks, threads) == expected


def test_variables_of_the_user_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setenv("OMP_NUM_THREADS", "6")
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert thread_settings(2, 0) == {"OMP_NUM_THREADS": "6"}
    assert thread_settings(2, 5) == {"OMP_NUM_THREADS": "6", "OMP_WAIT_POLICY": "ACTIVE"}
