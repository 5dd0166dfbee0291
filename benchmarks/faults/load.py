"""One feature server under the load of many clients: rate, latencies, memory, fairness."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from threading import Thread
from typing import Any, Final

import grpc
import numpy as np
import psutil

from benchmarks.faults.hostile_clients import LOCAL
from benchmarks.faults.outcomes import WRONG, Outcome
from benchmarks.faults.watched import serving
from benchmarks.rounds import Results
from cache_server.generated import features_pb2
from cache_server.store.shard import Shard
from cache_server.store.table import Table
from cache_server.wire import FETCH_ROWS

PROCESSES: Final = 4
CLIENTS: Final = (32, 128)
IDS: Final = 256
_DEADLINE: Final = 30.0
_PAUSE_SECONDS: Final = 0.01
_START_SECONDS: Final = 10.0
_MOST_GROWTH_MIB: Final = 256.0
"""of a loaded server's memory; it may hold four times as much in flight"""
_LEAST_FAIR: Final = 0.1
"""of the requests of the client that got most, the least that any client must get"""


class GoodClient:
    """Asks for rows over a connection of its own, one request after the other, and checks them.

    A request that the server refuses for lack of resources is repeated.

    Attributes
    ----------
    latencies: seconds. wrong: failures, and rows that were not asked for.
    """

    def __init__(self, address: str, folder: Path, seed: int, *, ids: int = IDS) -> None:
        self._ids, self._draw = ids, np.random.default_rng(seed)
        self._table = features_of(Shard.open(folder))
        self._channel = grpc.insecure_channel(address, LOCAL)
        grpc.channel_ready_future(self._channel).result(_DEADLINE)
        self.latencies: list[float] = []
        self.wrong: list[str] = []

    def run(self, goes_on: Callable[[], bool]) -> None:
        """Ask for rows for as long as it may."""
        stub, spec = self._channel.unary_stream(FETCH_ROWS), self._table.spec
        while goes_on() and not self.wrong:
            ids = spec.first_id + self._draw.integers(0, spec.count, self._ids)
            request = rows_request(self._table, ids).SerializeToString()
            begun = time.monotonic()
            answer = self._ask(stub, request)
            self.latencies.append(time.monotonic() - begun)
            if answer is not None and answer != rows_of(self._table, ids):
                self.wrong.append("other rows than were asked for")

    def _ask(self, stub: Any, request: bytes) -> bytes | None:
        while True:
            try:
                return read_chunks(stub(request, timeout=_DEADLINE))
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    self.wrong.append(f"{error.code().name}: {error.details()}")
                    return None
                time.sleep(_PAUSE_SECONDS)


def features_of(shard: Shard) -> Table:
    """Return the first table of node features of a server."""
    return next(table for table in shard.tables.values() if table.spec.kind == "features")


def rows_of(table: Table, ids: Any) -> bytes:
    """Return the rows that an answer must have."""
    rows = np.empty((ids.size, table.row_bytes), np.uint8)
    table.gather(table.local_rows(ids), rows)
    return rows.tobytes()


def rows_request(table: Table, ids: Any) -> features_pb2.FetchRowsRequest:
    """Make a valid request for rows."""
    spec = table.spec
    return features_pb2.FetchRowsRequest(
        kind=spec.kind, type=spec.type, ids=ids.astype("<i8").tobytes(), dtype=spec.dtype,
        dim=spec.dim,
    )  # fmt: skip


def read_chunks(answer: Any) -> bytes:
    """Return the bytes of an answer's chunks."""
    return b"".join(features_pb2.RowChunk.FromString(chunk).data for chunk in answer)


def load_server(
    folder: Path, partitioned: Path, seconds: float, seed: int, results: Results,
    all_clients: Sequence[int] = CLIENTS,
) -> Iterator[Outcome]:  # fmt: skip
    """Load server 0 of a partitioned directory with 32 clients, then 128.

    ``results`` gets answers a second, latencies, fairness (requests of the client with the fewest,
    over those of the one with the most) and the server's memory.
    """
    for clients in all_clients:
        with (
            serving(partitioned, 0, folder / "loaded.json") as (process, address),
            ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool,
        ):
            server = psutil.Process(process.pid)
            before = server.memory_info().rss / 2**20
            # All processes begin together.
            start, count = time.time() + _START_SECONDS, clients // PROCESSES
            words = (address, partitioned / "server-0", count, start, seconds)
            futures = [pool.submit(_ask_together, *words, seed + n) for n in range(PROCESSES)]
            reports = [future.result() for future in futures]
            memory = server.memory_info().rss / 2**20
        latencies = [one for report, _ in reports for one in report]
        wrong = [line for _, lines in reports for line in lines]
        counts = [len(one) for one in latencies]
        fairness = min(counts) / max(*counts, 1)
        if fairness < _LEAST_FAIR:
            wrong.append(f"fairness {fairness:.2f}, expected {_LEAST_FAIR}")
        if memory > before + _MOST_GROWTH_MIB:
            wrong.append(f"memory grew from {before:.0f} to {memory:.0f} MiB")
        facts = {"answers a second": sum(counts) / seconds, "fairness": fairness}
        for percent in (50, 99, 99.9):
            value = float(np.percentile(np.concatenate(latencies), percent))
            facts[f"p{percent:g} milliseconds"] = 1e3 * value
        facts["resident MiB"] = memory
        cell, right = f"load of {clients} clients", "right rows"
        results.add(cell, {}, facts=[("server", *fact) for fact in facts.items()])
        yield Outcome("load", cell, right, f"{WRONG}{wrong[0]}" if wrong else right, seconds)


def _ask_together(
    address: str, folder: Path, clients: int, start: float, seconds: float, seed: int
) -> tuple[list[list[float]], list[str]]:  # fmt: skip
    """Run clients in threads until a moment. Return the latencies of each, and what is wrong."""
    good = [GoodClient(address, folder, 1000 * seed + number) for number in range(clients)]
    time.sleep(max(0.0, start - time.time()))
    until = time.monotonic() + seconds
    threads = [
        Thread(target=client.run, args=(lambda: time.monotonic() < until,)) for client in good
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [client.latencies for client in good], [line for client in good for line in client.wrong]
