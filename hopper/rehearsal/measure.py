"""Measures an iteration of an engine in a rehearsal, and what messages take of this machine's
processors over its loopback interface."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from cache_server.client import FeatureClient
from cache_server.client.in_process import InProcessClient, open_servicers
from cache_server.service.server import FeatureServer
from cache_server.store.shard import Shard
from hopper.cluster.traffic import Cause
from hopper.engines import Request, TrainStep
from hopper.micrograph.route import GlobalBatch
from hopper.partition.description import server_folder
from hopper.rehearsal.clock import MessageCost
from hopper.rehearsal.world import ThreadCluster

PHASES: Final = ("plan", "read", "train")
"""The phases of an iteration, which the pipeline runs in separate threads."""
_WAIT: Final = timedelta(seconds=60)
_MOST_ROWS: Final = 1 << 15


@dataclass(frozen=True)
class Spent:
    """The seconds on a rank's clock that a phase took, and the processor seconds among them."""

    seconds: float
    busy: float


@dataclass(frozen=True)
class IterationCost:
    """What an iteration took of one rank, with its phases one after the other.

    Attributes
    ----------
    phases: time by phase, of :data:`PHASES`.
    sent: bytes sent, by cause.
    plan_bytes: approximate size of the plan.
    """

    phases: dict[str, Spent]
    sent: dict[Cause, int]
    plan_bytes: int


def measure_iteration(
    engine: TrainStep[Any, Any],
    cluster: ThreadCluster,
    batch: GlobalBatch,
    watched: AbstractContextManager[object],
) -> IterationCost:
    """Train one global batch, as a run without a pipeline does, once every rank has come.

    Parameters
    ----------
    watched: the model is trained within it.
    """
    clock, rows = cluster.rank_clock, engine.state.rows
    assert clock is not None
    phases: dict[str, Spent] = {}

    @contextmanager
    def phase(name: str) -> Iterator[None]:
        """Measure a phase, which begins when every rank has ended the one before."""
        cluster.settle()
        seconds, busy = clock.read(), clock.busy()
        yield
        phases[name] = Spent(clock.read() - seconds, clock.busy() - busy)

    cluster.arrive(f"trying engine {engine.name}")
    cluster.traffic.take()
    with phase("plan"):
        plan = engine.plan_and_ask(batch)
    nbytes = plan.nbytes
    with phase("read"), rows.one_operation():
        inputs = engine.read(plan, rows)
    with phase("train"), watched:
        engine.train(plan, inputs)
    return IterationCost(phases, cluster.traffic.take(), nbytes)


def measure_between_ranks() -> MessageCost:
    """Measure gloo's messages between two ranks of this process."""
    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        ranks: list[Any] = list(
            pool.map(lambda rank: dist.ProcessGroupGloo(store, rank, 2, _WAIT), range(2))
        )

    def exchange(nbytes: int) -> None:
        """Send as many bytes from either rank to the other one."""
        sent = torch.zeros(2, nbytes, dtype=torch.uint8)
        works = [rank.alltoall_base(torch.empty_like(sent), sent, [1, 1], [1, 1]) for rank in ranks]
        for work in works:
            work.wait(_WAIT)

    # Each rank sends a message and receives one: the exchange has four ends.
    return _measure(exchange, 64, 1 << 22, ends=4)


def measure_rows(request: Request) -> MessageCost:
    """Measure requests to a feature server, both ends together.

    The time for encoding and decoding messages is subtracted, since a rehearsal spends it itself.
    The cost is 0 if the request reads no rows of other servers.
    """
    graph = request.graph
    table = next(iter(request.reads.feature_tables.values()), None)
    has_sources = bool(request.config.data.features)
    if table is None or has_sources or graph.book.servers < 2 or not graph.layout.reads_remote_rows:
        return MessageCost()
    servicer = open_servicers([server_folder(graph.path, 0)])[0]
    server = FeatureServer(servicer.shard, "127.0.0.1:0")
    server.start()
    with (
        FeatureClient([server.address]) as over_network,
        InProcessClient([servicer], ["this process"]) as in_process,
    ):
        network = _measure_fetches(over_network, servicer.shard, table)
        encoding = _measure_fetches(in_process, servicer.shard, table)
    server.stop(1.0)
    return MessageCost(
        max(0.0, network.message - encoding.message), max(0.0, network.byte - encoding.byte)
    )


def _measure_fetches(client: FeatureClient, shard: Shard, table: str) -> MessageCost:
    spec = shard.table("features", table).spec
    dtype, rows = np.dtype(spec.dtype), min(_MOST_ROWS, spec.count)
    width = spec.dim * dtype.itemsize

    def fetch(nbytes: int) -> None:
        ids = np.arange(spec.first_id, spec.first_id + max(1, nbytes // width))
        out = np.empty((ids.size, spec.dim), dtype)
        client.fetch_rows("features", table, {0: ids}, out, {0: slice(None)})

    return _measure(fetch, 1, rows * width, ends=1)


def _measure(act: Callable[[int], None], small: int, large: int, ends: int) -> MessageCost:
    """Measure an action with two sizes of messages, whose ends share its processor time."""

    def seconds(nbytes: int, repeats: int) -> float:
        act(nbytes)
        begun = time.process_time()
        for _ in range(repeats):
            act(nbytes)
        return (time.process_time() - begun) / repeats / ends

    message = seconds(small, 50)
    return MessageCost(message, max(0.0, seconds(large, 5) - message) / max(1, large - small))
