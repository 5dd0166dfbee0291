"""Measures this machine: processor time of messages, and the speed-up by several cores."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore

from cache_server.client import FeatureClient
from cache_server.client.in_process import InProcessClient, open_servicers
from cache_server.service.server import FeatureServer
from cache_server.store.shard import Shard
from hopper.engines import Request
from hopper.partition.file_names import server_folder
from hopper.rehearsal.link import MessageCost

_SMALL, _LARGE = 64, 1 << 22
"""bytes of the measured messages"""
_REPEATS: Final = {_SMALL: 100, _LARGE: 5}
_ENDS: Final = 4
"""ends of the messages in an exchange of two ranks: each sends one and receives one"""
_WAIT: Final = timedelta(seconds=60)
_LARGE_ROWS: Final = 1 << 15


def measure_between_ranks() -> MessageCost:
    """Measure gloo's messages between two ranks of this process over the loopback interface."""
    store = PrefixStore("messages", HashStore())
    ranks: list[Any] = [None, None]

    def join(rank: int) -> None:
        ranks[rank] = dist.ProcessGroupGloo(store, rank, len(ranks), _WAIT)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    def exchange(nbytes: int) -> None:
        """Send as many bytes from every rank to every other one."""
        sent = torch.zeros(len(ranks), nbytes, dtype=torch.uint8)
        received = [torch.empty_like(sent) for _ in ranks]
        works = [
            rank.alltoall_base(into, sent, [1, 1], [1, 1])
            for rank, into in zip(ranks, received, strict=True)
        ]
        for work in works:
            work.wait(_WAIT)

    return _cost(exchange, _SMALL, _LARGE, _REPEATS, _ENDS)


def measure_rows(request: Request) -> MessageCost:
    """Measure requests to a feature server over the loopback interface, both ends together.

    The time for encoding and decoding messages is subtracted, since a rehearsal spends it itself.
    The cost is 0 if the request reads no rows of other servers.
    """
    graph = request.graph
    table = next(iter(request.reads.feature_tables.values()), None)
    has_sources = bool(request.config.data.features)
    if table is None or has_sources or graph.book.servers < 2 or not graph.layout.reads_remote_rows:
        return MessageCost(0.0, 0.0)
    servicer = open_servicers([server_folder(graph.path, 0)])[0]
    server = FeatureServer(servicer.shard, "127.0.0.1:0")
    server.start()
    costs = []
    with (
        FeatureClient([server.address]) as over_network,
        InProcessClient([servicer], ["this process"]) as in_process,
    ):
        for client in (over_network, in_process):
            costs.append(_fetch_cost(client, servicer.shard, table))
    server.stop(1.0)
    network, encoding = costs
    return MessageCost(
        max(0.0, network.message - encoding.message), max(0.0, network.byte - encoding.byte)
    )


def _fetch_cost(client: FeatureClient, shard: Shard, table: str) -> MessageCost:
    spec = shard.table("features", table).spec
    rows = min(_LARGE_ROWS, spec.count)
    dtype = np.dtype(spec.dtype)
    width = spec.dim * dtype.itemsize

    def fetch(nbytes: int) -> None:
        count = max(1, min(rows, nbytes // width))
        ids = np.arange(spec.first_id, spec.first_id + count)
        out = np.empty((count, spec.dim), dtype)
        client.fetch_rows("features", table, {0: ids}, out, {0: slice(None)})

    large = rows * width
    return _cost(fetch, 1, large, {1: 30, large: 5}, 1)


def _cost(
    act: Callable[[int], None], small: int, large: int, repeats: dict[int, int], ends: int
) -> MessageCost:
    """Measure an action with two sizes, and return its cost per message and per byte.

    Parameters
    ----------
    ends: how many ends of messages share the measured time.
    """
    seconds = {}
    for nbytes in (small, large):
        act(nbytes)
        begun = time.process_time()
        for _ in range(repeats[nbytes]):
            act(nbytes)
        seconds[nbytes] = (time.process_time() - begun) / repeats[nbytes] / ends
    byte = max(0.0, (seconds[large] - seconds[small]) / max(1, large - small))
    return MessageCost(seconds[small], byte)


def measure_parallel(work: Callable[[int], None], threads: int) -> float:
    """Measure the share of some work that ``threads`` cores divide among them (Amdahl's law).

    Parameters
    ----------
    work: does the work with the number of threads that it is called with.
    """
    seconds = {}
    for count in (1, threads):
        work(count)
        begun = time.perf_counter()
        work(count)
        seconds[count] = time.perf_counter() - begun
    saved = 1 - seconds[threads] / seconds[1]
    return min(1.0, max(0.0, saved / (1 - 1 / threads)))
