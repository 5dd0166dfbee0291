"""Requests that no client of ours sends, to a feature server that has to answer the others."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np
import psutil

from benchmarks.faults.hostile_clients import LOCAL, HostileClients
from benchmarks.faults.load import GoodClient, read_chunks
from benchmarks.faults.malformed_requests import UNKNOWN, Requests
from benchmarks.faults.outcomes import WRONG, Outcome
from benchmarks.faults.watched import serving
from benchmarks.rounds import Results
from cache_server.generated import features_pb2
from cache_server.store.shard import Shard
from cache_server.wire import METHODS, STREAMS

CLIENTS: Final = 4
_LIMIT: Final = 30.0
_SETTLE_SECONDS: Final = 2.0
_GOOD_IDS: Final = 20
_MOST_GROWTH_MIB: Final = 8.0
"""between the last two fifths of the requests, at the lowest of each"""
_SETTLED: Final = 5000
"""requests after which a server's memory has settled"""
_LARGE_IDS: Final = 20_000
_ANSWERS: Final = {
    grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.RESOURCE_EXHAUSTED,
}  # fmt: skip
"""how a request may end; others mean that nobody answered it"""
_GOOD: Final = "a client with valid requests"


def send_bad_requests(
    partitioned: Path, count: int, seed: int, results: Results, alone_seconds: float = 5.0
) -> Iterator[Outcome]:
    """Send requests to server 0 of a directory with partitioned topology, one in ten of them good.

    Hostile clients and one with valid requests alone are there meanwhile. ``results`` gets the
    latter's latencies, by itself and beside all others, and what the server holds before and after.
    """
    begun, facts = time.monotonic(), list[tuple[str, str, float]]()
    with serving(partitioned, 0, partitioned / "port.json") as (process, address):
        server, shard = psutil.Process(process.pid), Shard.open(partitioned / "server-0")
        good = GoodClient(address, partitioned / "server-0", seed + CLIENTS, ids=_GOOD_IDS)
        with _asking(good):
            time.sleep(alone_seconds)
        facts += _tell_latencies("by itself", good)
        facts += (before := _state("before", server))
        clients = [_Client(address, Requests(shard, seed + number)) for number in range(CLIENTS)]
        request = Requests(shard, seed).good()[0]
        with HostileClients(address, request, _enlarge(request), seed).running(), _asking(good):
            memory = _run_clients(clients, count, process, server)
        facts += _tell_latencies("beside the others", good)
        time.sleep(_SETTLE_SECONDS)
        wrong = [("requests", line) for client in clients for line in client.wrong]
        if (answered := sum(client.answered for client in clients)) < count // CLIENTS * CLIENTS:
            wrong.append(("requests", f"only {answered} of {count} were sent"))
        wrong += [(_GOOD, line) for line in good.wrong]
        if process.poll() is None:
            facts += (after := _state("after", server))
            if growth := _find_growth(memory, count):
                wrong.append(("memory", growth))
            if after[1][2] > before[1][2] + 2 * CLIENTS:
                wrong.append(("open files", f"{after[1][2]:g} after, {before[1][2]:g} before"))
            process.send_signal(signal.SIGTERM)
        errors = process.communicate(timeout=_LIMIT)[1]
        if process.returncode != 0 or errors:
            wrong.append(("its end", f"ended with {process.returncode}: {errors!r:.300}"))
    results.add("bad requests", {}, facts=facts)
    seconds = time.monotonic() - begun
    for kind in sorted({kind for client in clients for kind in client.statuses}):
        statuses = sum((client.statuses.get(kind, Counter()) for client in clients), Counter[str]())
        answers = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items()))
        slowest = max(client.slowest for client in clients)
        yield Outcome(f"request: {kind}", "a server", "answered", f"answered: {answers}", slowest)
    yield Outcome("bad requests", _GOOD, "right rows", "right rows", seconds)
    for target, line in wrong:
        yield Outcome("bad requests", target, "right rows", f"{WRONG}{line}", seconds)


@contextmanager
def _asking(client: GoodClient) -> Iterator[None]:
    """Let a client ask while the context lasts."""
    ended = threading.Event()
    thread = threading.Thread(target=client.run, args=(lambda: not ended.is_set(),))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _tell_latencies(when: str, client: GoodClient) -> list[tuple[str, str, float]]:
    milliseconds, client.latencies = 1e3 * np.array(client.latencies), []
    return [
        (f"a valid client {when}", f"p{p} milliseconds", float(np.percentile(milliseconds, p)))
        for p in (50, 99)
    ]


def _state(when: str, server: psutil.Process) -> list[tuple[str, str, float]]:
    resident = server.memory_info().rss / 2**20
    return [
        (f"the server {when}", "threads", server.num_threads()),
        (f"the server {when}", "open files", server.num_fds()),
        (f"the server {when}", "resident MiB", resident),
    ]


def _run_clients(
    clients: list[_Client], count: int, process: subprocess.Popen[str], server: psutil.Process
) -> list[tuple[int, float]]:
    """Let clients send their requests. Return the server's memory in MiB over time."""
    share = count // CLIENTS
    threads = [threading.Thread(target=client.run, args=(share,)) for client in clients]
    memory: list[tuple[int, float]] = []
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.05)
        if process.poll() is None:
            done = sum(client.answered for client in clients)
            memory.append((done, server.memory_info().rss / 2**20))
    return memory


def _find_growth(memory: list[tuple[int, float]], count: int) -> str:
    """Say if memory grows. It goes up and down by what is in flight, and settles with time."""
    fifths = [[rss for done, rss in memory if n <= 5 * done / count <= n + 1] for n in (3, 4)]
    growth = min(fifths[1], default=0.0) - min(fifths[0], default=0.0)
    if count < _SETTLED or not all(fifths) or growth <= _MOST_GROWTH_MIB:
        return ""
    return f"grew by {growth:.1f} MiB from the fourth fifth to the last"


def _enlarge(request: bytes) -> bytes:
    """Make a request that asks for the first rows of another one many times."""
    message = features_pb2.FetchRowsRequest.FromString(request)
    message.ids = message.ids[:8] * _LARGE_IDS
    return bytes(message.SerializeToString())


class _Client:
    """Sends requests over a connection of its own and looks at the answers."""

    def __init__(self, address: str, requests: Requests) -> None:
        self._address, self._requests = address, requests
        self.answered, self.slowest = 0, 0.0
        self.statuses: dict[str, Counter[str]] = {}
        self.wrong: list[str] = []

    def run(self, count: int) -> None:
        """Send requests, one after the other."""
        with grpc.insecure_channel(self._address, LOCAL) as channel:
            calls = {
                name: (channel.unary_stream if name in STREAMS else channel.unary_unary)(name)
                for name in (*METHODS, UNKNOWN)
            }
            for _ in range(count):
                self._send(calls)

    def _send(self, calls: dict[str, Any]) -> None:
        kind, method, request, expected = self._requests.draw()
        begun = time.monotonic()
        status, answer = grpc.StatusCode.OK, None
        try:
            reply = calls[method](request, timeout=_LIMIT)
            answer = list(reply) if method in STREAMS else reply
        except grpc.RpcError as error:
            status = error.code()
        self.slowest = max(self.slowest, time.monotonic() - begun)
        self.statuses.setdefault(kind, Counter())[status.name] += 1
        self.answered += 1
        if status not in _ANSWERS:
            self.wrong.append(f"{kind}: {method} ended with {status.name}")
        # Above its limits a server refuses valid requests too.
        refused = status is grpc.StatusCode.RESOURCE_EXHAUSTED
        if expected is not None and not refused and read_chunks(answer or []) != expected:
            self.wrong.append(f"{kind}: {status.name}, or rows that were not asked for")
