"""One feature server under the load of many clients: rate, latencies, memory, fairness."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
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
from benchmarks.faults.running import serving
from benchmarks.rounds import Results
from cache_server.generated import features_pb2
from cache_server.security import Security
from cache_server.shard import Shard
from cache_server.table import Table
from cache_server.wire import FETCH_ROWS
from hopper.errors import RequestError

PROCESSES: Final = 4
CLIENTS: Final = (32, 128)
IDS: Final = 256
_DEADLINE: Final = 30.0
_PAUSE_SECONDS: Final = 0.01
_LEAST_FAIR: Final = 0.1
"""of the requests of the client that got most, the least that any client must get"""
EXPECTED: Final = "right rows"


class GoodClient:
    """Asks for rows over a connection of its own, one request after the other, and checks them.

    A request that the server refuses for lack of resources is repeated.

    Attributes
    ----------
    latencies: seconds. wrong: failures, and rows that were not asked for.
    """

    def __init__(
        self, address: str, folder: Path, seed: int, *, ids: int = IDS, authority: str = ""
    ) -> None:
        self._ids, self._draw = ids, np.random.default_rng(seed)
        self._table = features_of(Shard.open(folder))
        credentials = Security(tls_ca=authority).channel_credentials()
        self._channel = (
            grpc.insecure_channel(address, LOCAL)
            if credentials is None
            else grpc.secure_channel(address, credentials, LOCAL)
        )
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
    folder: Path, partitioned: Path, seconds: float, seed: int, results: Results
) -> Iterator[Outcome]:
    """Load server 0 of a partitioned directory with 32 clients, then 128, without TLS and with it.

    ``results`` gets answers a second, latencies, fairness (requests of the client with the fewest,
    over those of the one with the most) and the server's memory.
    """
    certificates = _issue(folder)
    for tls in (False, True):
        words = [f"--{key}={file}" for key, file in certificates.items()] if tls else []
        authority = str(folder / "ca.pem") if tls else ""
        for clients in CLIENTS:
            with serving(partitioned, 0, folder / "loaded.json", *words) as (process, address):
                server, count = psutil.Process(process.pid), clients // PROCESSES
                context = get_context("spawn")
                with ProcessPoolExecutor(PROCESSES, mp_context=context) as pool:
                    # All processes begin together.
                    start = time.time() + 5.0
                    reports = [
                        pool.submit(_ask_together, address, partitioned / "server-0", count,
                                    start, seconds, seed * PROCESSES + n, authority)
                        for n in range(PROCESSES)
                    ]  # fmt: skip
                    latencies = [one for report in reports for one in report.result()[0]]
                    wrong = [line for report in reports for line in report.result()[1]]
                memory = server.memory_info().rss / 2**20
            counts = [len(one) for one in latencies]
            fairness = min(counts) / max(*counts, 1)
            if fairness < _LEAST_FAIR:
                wrong.append(f"fairness {fairness:.2f}, expected {_LEAST_FAIR}")
            milliseconds = 1e3 * np.concatenate(latencies)
            cell = f"{clients} clients{', TLS' if tls else ''}"
            facts = {"answers a second": sum(counts) / seconds, "fairness": fairness}
            facts |= {f"p{p:g} milliseconds": float(np.percentile(milliseconds, p))
                      for p in (50, 99, 99.9)}  # fmt: skip
            facts["resident MiB"] = memory
            results.add(cell, {}, facts=[("server", *fact) for fact in facts.items()])
            outcome = f"{WRONG}{wrong[0]}" if wrong else EXPECTED
            yield Outcome("load", cell, EXPECTED, outcome, seconds)


def _ask_together(
    address: str, folder: Path, clients: int, start: float, seconds: float, seed: int,
    authority: str,
) -> tuple[list[list[float]], list[str]]:  # fmt: skip
    """Run clients in threads until a moment. Return the latencies of each, and what is wrong."""
    os.environ["OMP_NUM_THREADS"] = "1"
    good = [
        GoodClient(address, folder, seed * 1000 + number, authority=authority)
        for number in range(clients)
    ]
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


def _issue(folder: Path) -> dict[str, Path]:
    """Issue a certificate for this machine. Return its files by option of the server."""
    try:
        import trustme
    except ImportError as error:
        raise RequestError(
            "bench faults: --load needs trustme for its certificates: pip install trustme"
        ) from error
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1", "localhost")
    files = {key: folder / f"{key}.pem" for key in ("tls-certificate", "tls-key")}
    authority.cert_pem.write_to_path(folder / "ca.pem")
    certificate.private_key_pem.write_to_path(files["tls-key"])
    for number, blob in enumerate(certificate.cert_chain_pems):
        blob.write_to_path(files["tls-certificate"], append=number > 0)
    return files
