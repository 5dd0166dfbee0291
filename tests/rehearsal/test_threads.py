"""Ranks that are threads: no wait is endless, and messages take time on their clocks."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hopper.config import make_config
from hopper.errors import DeadlineExceeded
from hopper.rehearsal.clock import Link, MessageCost
from hopper.rehearsal.estimate import IterationCost, _count_waiting, iteration_seconds
from hopper.rehearsal.world import ThreadCluster, run_ranks

LINK = Link(10**9, 1e-4, 2)


def fail(cluster: ThreadCluster) -> None:
    """Rank 1 fails while others wait for it."""
    if cluster.rank == 1:
        raise ValueError("rank 1 cannot go on")
    cluster.arrive("meeting")


def leave(cluster: ThreadCluster) -> None:
    """Rank 1 does not come."""
    if cluster.rank != 1:
        cluster.arrive("meeting")


@pytest.mark.parametrize(
    ("work", "link", "error", "text"),
    [
        (fail, None, ValueError, "rank 1 cannot go on"),
        (fail, LINK, ValueError, "rank 1 cannot go on"),
        (leave, None, DeadlineExceeded, "meeting did not finish within 0.25 s"),
        (leave, LINK, DeadlineExceeded, "meeting did not finish within 0.25 s"),
    ],
)
def test_a_rank_that_fails_or_does_not_come_ends_the_others(work, link, error, text):
    with pytest.raises(error, match=text):
        run_ranks(4, 2, work, link, 0.25)


@pytest.mark.parametrize(
    ("cores", "is_pipelined", "nbytes", "seconds"),
    [
        # The slowest rank's longest phase, and the sum of the slowest ranks' phases.
        (8, True, 0, 14),
        (8, False, 0, 2 + 6 + 14),
        # The two ranks of a server compute for 16 seconds.
        (1, True, 0, 16),
        (0.5, False, 0, 32),
        # Its link carries the bytes of both.
        (8, True, 2 * 10**9, 32),
    ],
)
def test_seconds_of_an_iteration(cores, is_pipelined, nbytes, seconds):
    """Phases compute and wait for a link as long."""
    phases = [(2, 2, 14), *[(2, 6, 6)] * 3]
    ranks = [IterationCost(each, sum(each) / 2, {"feature": nbytes}, 0) for each in phases]
    assert iteration_seconds(ranks, LINK, cores, is_pipelined=is_pipelined) == seconds


@pytest.mark.parametrize(("depth", "plans", "rows"), [(0, 10, 7), (3, 30, 4 * 7)])
def test_what_waits_in_a_pipeline_takes_memory(depth, plans, rows):
    config = {"data": {"partitioned": "x"}, "pipeline": {"depth": depth, "reads": 2}}
    costs = [IterationCost((), 0, {"feature": nbytes}, 3 + nbytes) for nbytes in (5, 7)]
    request: Any = SimpleNamespace(config=make_config(config))
    assert _count_waiting(request, costs) == (plans, rows)


def test_a_message_takes_processors_by_number_and_by_bytes():
    assert MessageCost(0.5, 0.25).of(3, 8) == 3.5


def test_a_message_takes_its_latency_and_its_bytes_once_the_last_rank_has_come():
    """Over links of 1 Gbit/s, in a world whose processors take no time."""

    def work(cluster: ThreadCluster) -> float:
        clock = cluster.rank_clock
        assert clock is not None
        begun = clock.read() - clock.busy()
        # A ring of two servers has two steps, with half of the bytes each.
        cluster.all_reduce(torch.zeros(10**6, dtype=torch.uint8), "gradient", "adding")
        # Both ranks of a server send 10 kB to each rank of the other one, and 20 kB here.
        rows = [torch.zeros(10_000, dtype=torch.uint8)] * 4
        cluster.exchange(rows, [10_000] * 4, "partial", "exchanging")
        return clock.read() - clock.busy() - begun

    seconds = 2 * (1e-4 + 0.5e6 * 8 / 1e9) + 1e-4 + 4 * 10_000 * 8 / 1e9
    # Ranks wait for what others compute besides.
    waited = run_ranks(4, 2, work, LINK)
    assert all(seconds * 0.9 < rank for rank in waited)
