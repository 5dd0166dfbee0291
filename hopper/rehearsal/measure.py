"""Measures what messages take of this machine's processors over its loopback interface."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
from hopper.engines import Request
from hopper.partition.description import server_folder
from hopper.rehearsal.clock import MessageCost

_WAIT: Final = timedelta(seconds=60)
_MOST_ROWS: Final = 1 << 15
_MOST_RANKS: Final = 16
_MEASUREMENTS: Final = 5


def measure_between_ranks(ranks: int) -> MessageCost:
    """Measure gloo's messages between as many ranks as a run has, or 16, all in this process.

    A rank that exchanges with many others at once takes less of a processor for each of them.
    """
    count, store = min(max(2, ranks), _MOST_RANKS), HashStore()
    with ThreadPoolExecutor(count) as pool:
        groups: list[Any] = list(
            pool.map(lambda rank: dist.ProcessGroupGloo(store, rank, count, _WAIT), range(count))
        )

    def exchange(nbytes: int) -> None:
        sent, parts = torch.zeros(count, nbytes, dtype=torch.uint8), [1] * count
        works = [one.alltoall_base(torch.empty_like(sent), sent, parts, parts) for one in groups]
        for work in works:
            work.wait(_WAIT)

    return _measure(exchange, 64, (1 << 22) // count, ends=2 * count * (count - 1))


def measure_rows(request: Request) -> MessageCost:
    """Measure requests to a feature server, both ends together, without encoding and decoding,
    which a rehearsal does itself; 0 if the request reads no rows of other servers."""
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
    """Measure an action with two sizes of messages, whose ends share its processor time.

    The least of several measurements counts, since other processes only ever add to it.
    """

    def seconds(nbytes: int, repeats: int) -> float:
        act(nbytes)
        found = []
        for _ in range(_MEASUREMENTS):
            begun = time.process_time()
            for _ in range(repeats):
                act(nbytes)
            found.append((time.process_time() - begun) / repeats / ends)
        return min(found)

    message = seconds(small, 10)
    return MessageCost(message, max(0.0, seconds(large, 1) - message) / max(1, large - small))
