"""Seconds of threads that share cores and of ranks that wait, compared with sums made by hand."""

from __future__ import annotations

import pytest

from hopper.rehearsal.overlap import Cores, overlapped_seconds
from hopper.train.iteration_cost import Spent


def costs(plan: float, read: float, train: float, waits: float = 0.0) -> dict[str, Spent]:
    """Processor seconds of each phase; reading waits for the link besides."""
    return {
        "plan": Spent(plan, plan),
        "read": Spent(read + waits, read),
        "train": Spent(train, train),
    }


MANY, ONE = Cores(8, 1, 1), Cores(1, 1, 1)


@pytest.mark.parametrize(
    ("cores", "is_pipelined", "waits", "seconds"),
    [
        (MANY, True, 5, 8),
        (MANY, False, 5, 16),
        (ONE, True, 0, 11),
        (ONE, False, 5, 16),
        (Cores(0.5, 1, 1), True, 0, 22),
        # Kernels of two threads: what they take of two cores.
        (Cores(2, 2, 1), True, 0, 11),
    ],
)
def test_one_rank(cores: Cores, is_pipelined: bool, waits: float, seconds: float) -> None:
    """It is the longest phase, or the sum of all work where there is only one core."""
    result = overlapped_seconds([costs(1, 3, 7, waits)], cores, is_pipelined=is_pipelined)
    assert result == pytest.approx(seconds)


def test_waiting_for_a_link_overlaps_with_work_only_in_part() -> None:
    """The seconds lie between the longest phase (16) and the sum of all phases (26)."""
    seconds = overlapped_seconds([costs(0, 4, 10, waits=12)], ONE, is_pipelined=True)
    assert 16.5 < seconds < 21


def test_ranks_wait_for_the_slowest() -> None:
    ranks = [costs(0, 1, 3), costs(0, 1, 9)]
    assert overlapped_seconds(ranks, MANY, is_pipelined=True) == pytest.approx(9)
    assert overlapped_seconds(ranks, ONE, is_pipelined=True) == pytest.approx(10)


def test_ranks_of_a_server_share_its_cores() -> None:
    """A rank uses the cores that another rank leaves idle."""
    shared = Cores(1, 1, 2)
    busy, idle = costs(0, 1, 9), costs(0, 0, 0)
    assert overlapped_seconds([busy, idle], shared, is_pipelined=True) == pytest.approx(10)
    assert overlapped_seconds([busy, busy], shared, is_pipelined=True) == pytest.approx(20)
    assert overlapped_seconds([busy] * 4, shared, is_pipelined=True) == pytest.approx(20)
