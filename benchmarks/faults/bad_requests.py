"""Requests that no client of ours sends, to a feature server that has to answer the others."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc
import psutil

from benchmarks.faults.good_client import GoodClient
from benchmarks.faults.senseless import STREAMS, UNKNOWN, Requests
from benchmarks.faults.serving import serving
from benchmarks.faults.strangers import LOCAL, Strangers
from cache_server.generated import features_pb2
from cache_server.shard import Shard
from cache_server.wire import CHECK, DESCRIBE

CLIENTS: Final = 4
_SAMPLES: Final = 60
_LIMIT: Final = 30.0
_ALONE_SECONDS: Final = 5.0
_SETTLE_SECONDS: Final = 2.0
_MOST_GROWTH_MIB: Final = 8.0
"""between two fifths of the requests, at the lowest of each"""
_LARGE_IDS: Final = 20_000
_ANSWERS: Final = {
    grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.RESOURCE_EXHAUSTED,
}  # fmt: skip
"""how a request may end; others mean that nobody answered it"""


def send_bad_requests(
    partitioned: Path, count: int, seed: int, advance: Callable[[int], None]
) -> dict[str, Any]:
    """Send requests to server 0 of a partitioned directory, one in ten of them a good one.

    Parameters
    ----------
    partitioned: with partitioned topology.
    advance: told how many have been answered since the last time.

    Returns
    -------
    Counts by kind and status, memory over time in MiB, latencies of a client that sends good
    requests alone, by itself and beside all the others, and ``wrong``, a line each.
    """
    with serving(partitioned, 0, partitioned / "port.json") as (process, address):
        result = _abuse(process, address, partitioned, count, seed, advance)
        process.send_signal(signal.SIGTERM)
        begun = time.monotonic()
        try:
            errors = process.communicate(timeout=_LIMIT)[1]
        except subprocess.TimeoutExpired:
            errors = "it did not end"
        result["end"] = {"exit_code": process.returncode, "seconds": time.monotonic() - begun}
        if process.returncode != 0 or errors:
            result["wrong"].append(f"ended with {process.returncode}: {errors!r:.300}")
    return result


def _abuse(
    process: subprocess.Popen[str],
    address: str,
    partitioned: Path,
    count: int,
    seed: int,
    advance: Callable[[int], None],
) -> dict[str, Any]:
    shard = Shard.open(partitioned / "server-0")
    watched = psutil.Process(process.pid)
    good = GoodClient(address, shard, seed + CLIENTS)
    with good.running():
        time.sleep(_ALONE_SECONDS)
    beside = {"by itself": good.latencies()}
    before = _state(watched)
    clients = [_Client(address, Requests(shard, seed + index)) for index in range(CLIENTS)]
    request = Requests(shard, seed).good()[0]
    strangers = Strangers(address, request, _large(request), seed)
    begun = time.monotonic()
    try:
        with good.running():
            memory = _await_clients(clients, count, process, watched, advance)
    finally:
        strangers.end()
    seconds = time.monotonic() - begun
    beside["beside the others"] = good.latencies()
    wrong = [line for client in (*clients, good) for line in client.wrong]
    time.sleep(_SETTLE_SECONDS)
    if process.poll() is not None:
        wrong.append(f"the server ended with {process.returncode}")
        after = dict.fromkeys(before, 0)
    else:
        after = _state(watched)
        memory.append((count, after["rss_mib"]))
    growth = _growth(memory, count)
    wrong += _find_growth(growth, before, after)
    by_kind: dict[str, Counter[str]] = {}
    for client in clients:
        for kind, statuses in client.statuses.items():
            by_kind.setdefault(kind, Counter()).update(statuses)
    return {
        "requests": sum(client.answered for client in clients),
        "connections": strangers.connections,
        "floods": strangers.floods,
        "slow_readers": strangers.readers,
        "requests_per_second": count / seconds,
        "statuses": {
            kind: dict(sorted(counts.items())) for kind, counts in sorted(by_kind.items())
        },
        "slowest_seconds": max(client.slowest for client in clients),
        "memory_mib": [[answered, round(rss, 1)] for answered, rss in memory],
        "growth_mib": round(growth, 1),
        "before": before,
        "after": after,
        "beside": beside,
        "wrong": wrong,
    }


def _await_clients(
    clients: list[_Client],
    count: int,
    process: subprocess.Popen[str],
    watched: psutil.Process,
    advance: Callable[[int], None],
) -> list[tuple[int, float]]:
    """Let clients send their requests. Return the server's memory in MiB over time."""
    threads = [
        threading.Thread(target=client.run, args=(count // CLIENTS,), name="client")
        for client in clients
    ]
    memory: list[tuple[int, float]] = []
    for thread in threads:
        thread.start()
    done = 0
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.05)
        now = sum(client.answered for client in clients)
        advance(now - done)
        done = now
        if done >= len(memory) * count / _SAMPLES and process.poll() is None:
            memory.append((done, watched.memory_info().rss / 2**20))
    advance(count - done)
    return memory


def _growth(memory: list[tuple[int, float]], count: int) -> float:
    """MiB. It goes up and down by what is in flight, and the allocator takes its time to settle."""
    lowest = [
        min((rss for answered, rss in memory if first <= answered / count * 5 <= first + 1),
            default=0.0)
        for first in (3, 4)
    ]  # fmt: skip
    return lowest[1] - lowest[0]


def _find_growth(growth: float, before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Describe memory and open files that the server still holds when all requests have been
    answered."""
    wrong = []
    if growth > _MOST_GROWTH_MIB:
        wrong.append(f"memory grew by {growth:.1f} MiB from the fourth fifth to the last")
    if after["files"] > before["files"] + 2 * CLIENTS:
        wrong.append(f"{after['files']} open files, of which {before['files']} were there before")
    return wrong


def _state(watched: psutil.Process) -> dict[str, Any]:
    return {
        "threads": watched.num_threads(),
        "files": watched.num_fds(),
        "rss_mib": round(watched.memory_info().rss / 2**20, 1),
    }


def _large(request: bytes) -> bytes:
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
        """Send ``count`` requests, one after the other."""
        with grpc.insecure_channel(self._address, LOCAL) as channel:
            calls = {
                name: (channel.unary_stream if name in STREAMS else channel.unary_unary)(name)
                for name in (*STREAMS, DESCRIBE, CHECK, UNKNOWN)
            }
            for _ in range(count):
                self._send(calls)

    def _send(self, calls: dict[str, Any]) -> None:
        kind, method, request, expected = self._requests.draw()
        begun = time.monotonic()
        status, answer = grpc.StatusCode.OK, None
        try:
            answer = calls[method](request, timeout=_LIMIT)
            answer = list(answer) if method in STREAMS else answer
        except grpc.RpcError as error:
            status = error.code()
        seconds = time.monotonic() - begun
        self.slowest = max(self.slowest, seconds)
        self.statuses.setdefault(kind, Counter())[status.name] += 1
        self.answered += 1
        if status not in _ANSWERS:
            self.wrong.append(f"{kind}: {method} ended with {status.name}")
        # Above its limits a server refuses valid requests too.
        refused = status is grpc.StatusCode.RESOURCE_EXHAUSTED
        if expected is not None and not refused and _rows(answer) != expected:
            self.wrong.append(f"{kind}: {status.name}, or rows that were not asked for")


def _rows(answer: Any) -> bytes:
    return b"".join(features_pb2.RowChunk.FromString(chunk).data for chunk in answer or [])
