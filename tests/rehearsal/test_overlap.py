"""Threads that share cores, and ranks that wait for each other: against sums by hand."""

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
    """The longest phase, or all work where there are no cores for more."""
    found = overlapped_seconds([costs(1, 3, 7, waits)], cores, is_pipelined=is_pipelined)
    assert found == pytest.approx(seconds)


def test_what_waits_for_a_link_is_slowed_down_by_what_works_beside_it() -> None:
    """Neither the longest phase (16) nor all that there is, one after the other (26)."""
    found = overlapped_seconds([costs(0, 4, 10, waits=12)], ONE, is_pipelined=True)
    assert 16.5 < found < 21


def test_ranks_wait_for_the_slowest() -> None:
    ranks = [costs(0, 1, 3), costs(0, 1, 9)]
    assert overlapped_seconds(ranks, MANY, is_pipelined=True) == pytest.approx(9)
    assert overlapped_seconds(ranks, ONE, is_pipelined=True) == pytest.approx(10)


def test_ranks_of_a_server_share_its_cores() -> None:
    """What one leaves the other has."""
    shared = Cores(1, 1, 2)
    busy, idle = costs(0, 1, 9), costs(0, 0, 0)
    assert overlapped_seconds([busy, idle], shared, is_pipelined=True) == pytest.approx(10)
    assert overlapped_seconds([busy, busy], shared, is_pipelined=True) == pytest.approx(20)
    assert overlapped_seconds([busy] * 4, shared, is_pipelined=True) == pytest.approx(20)
