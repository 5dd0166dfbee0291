"""Ranks that are threads: they train alike in turns and at once, and no wait is endless."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hopper.config import make_config
from hopper.engines import Request
from hopper.engines.assemble import make_schedule
from hopper.engines.build import make_engine, make_learnable
from hopper.errors import DeadlineExceeded
from hopper.features import PartitionedRows, open_graph
from hopper.graph import GraphDirectory
from hopper.partition import partition_graph
from hopper.rehearsal.clock import Link
from hopper.rehearsal.estimate import iteration_seconds
from hopper.rehearsal.measure import IterationCost, Spent
from hopper.rehearsal.world import ThreadCluster, World, run_ranks
from hopper.timing.run_log import RunLog

IN_TURNS = Link(10**9, 1e-4, 2)


@pytest.mark.parametrize("engine", ["hop", "cooperative"])
def test_an_engine_trains_alike_in_turns_and_at_once(
    engine: str, community_graph: GraphDirectory, tmp_path: Path
) -> None:
    partition_graph(community_graph, tmp_path / "parts", 2, "random")
    config = make_config(
        {
            "data": {"partitioned": str(tmp_path / "parts")},
            "model": {"layers": 2, "hidden": 8},
            "sampler": {"fanouts": [4, 3]},
            "train": {"engine": engine, "batch_size": 8, "dtype": "float64"},
            "hop": {"merge": "off"},
            "cluster": {"ranks_per_server": 2},
        }
    )
    request = Request(config, open_graph(config))
    schedule, one_at_a_time = make_schedule(request), threading.Lock()

    def train(cluster: ThreadCluster, rows: PartitionedRows) -> torch.Tensor:
        # Models are initialised from torch's own generator, which all threads share.
        with one_at_a_time:
            log, learnable = RunLog(clock=cluster.clock), make_learnable(request, cluster)
            engine = make_engine(request, cluster, rows, log, learnable)
        for iteration in range(2):
            plan = engine.plan_and_ask(schedule.batch(0, iteration))
            with rows.one_operation():
                inputs = engine.read(plan, rows)
            engine.train(plan, inputs)
        parameters = engine.models[0].packed.buffer.clone()
        engine.close()
        return parameters

    in_turns, at_once = World(request, IN_TURNS).run(train), World(request, None, 60).run(train)
    for parameters in (*in_turns, *at_once):
        assert torch.equal(parameters, in_turns[0])


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
        (fail, IN_TURNS, ValueError, "rank 1 cannot go on"),
        (leave, None, DeadlineExceeded, "meeting did not finish within 0.5 s"),
        (leave, IN_TURNS, RuntimeError, "all ranks wait for each other"),
    ],
)
def test_a_rank_that_fails_or_does_not_come_ends_the_others(
    work: Callable[[ThreadCluster], None], link: Link | None, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        run_ranks(4, 2, work, link, 0.5)


def cost(nbytes: int, **phases: float) -> IterationCost:
    """An iteration of one rank, whose phases compute and wait for a link as long."""
    spent = {name: Spent(2 * busy, busy) for name, busy in phases.items()}
    return IterationCost(spent, {"feature": nbytes}, 0)


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
def test_seconds_of_an_iteration(
    cores: float, is_pipelined: bool, nbytes: int, seconds: float
) -> None:
    busy, idle = cost(nbytes, plan=1, read=1, train=7), cost(nbytes, plan=1, read=3, train=3)
    ranks = [busy, idle, idle, idle]
    assert iteration_seconds(ranks, IN_TURNS, cores, is_pipelined=is_pipelined) == seconds


def test_a_message_takes_its_latency_and_its_bytes_once_the_last_rank_has_come() -> None:
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
    waited = run_ranks(4, 2, work, IN_TURNS)
    assert all(seconds * 0.9 < rank for rank in waited)
