"""Requests that no client of ours sends, to a feature server that has to answer the others."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
from serving import serving

from cache_server.generated import features_pb2
from cache_server.shard import Shard
from cache_server.wire import DESCRIBE, FETCH_ROWS

HEALTH = "/grpc.health.v1.Health/Check"
UNKNOWN = "/hopper.features.v1.FeatureService/Unknown"
CLIENTS = 4
SAMPLES = 60
CONNECTIONS = 1000
LIMIT = 30.0
MOST_GROWTH_MIB = 8.0
"""between two fifths of the requests, at the lowest of each"""
ANSWERS = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
"""how a request may end; others mean that nobody answered it"""


def send_bad_requests(
    partitioned: Path, count: int, seed: int, advance: Callable[[int], None]
) -> dict[str, Any]:
    """Send requests to server 0 of a partitioned directory, one in ten of them a good one.

    Parameters
    ----------
    advance: told how many have been answered since the last time.

    Returns
    -------
    Counts by kind and status, memory over time in MiB, and ``faults``, a line each.
    """
    with serving(partitioned, 0, partitioned / "port.json") as (process, address):
        told = _abuse(process, address, partitioned, count, seed, advance)
        process.send_signal(signal.SIGTERM)
        begun = time.monotonic()
        said = process.communicate(timeout=LIMIT)[1]
        told["end"] = {"exit_code": process.returncode, "seconds": time.monotonic() - begun}
        if process.returncode != 0 or said:
            told["faults"].append(f"ended with {process.returncode}: {said!r:.300}")
    return told


def _abuse(
    process: subprocess.Popen[str],
    address: str,
    partitioned: Path,
    count: int,
    seed: int,
    advance: Callable[[int], None],
) -> dict[str, Any]:
    watched = psutil.Process(process.pid)
    clients = [_Client(address, partitioned, seed + each) for each in range(CLIENTS)]
    before = {"threads": watched.num_threads(), "files": watched.num_fds()}
    ended = threading.Event()
    stranger = threading.Thread(target=_connect, args=(address, seed, ended))
    threads = [
        threading.Thread(target=each.run, args=(count // CLIENTS,), name="client")
        for each in clients
    ]
    memory: list[tuple[int, float]] = []
    begun = time.monotonic()
    stranger.start()
    for each in threads:
        each.start()
    done = 0
    while any(each.is_alive() for each in threads):
        time.sleep(0.05)
        now = sum(each.answered for each in clients)
        advance(now - done)
        done = now
        if done >= len(memory) * count / SAMPLES and process.poll() is None:
            memory.append((done, watched.memory_info().rss / 2**20))
    seconds = time.monotonic() - begun
    ended.set()
    stranger.join()
    advance(count - done)
    faults = [fault for each in clients for fault in each.faults]
    if process.poll() is not None:
        faults.append(f"the server ended with {process.returncode}")
        after = dict.fromkeys(before, 0)
    else:
        memory.append((count, watched.memory_info().rss / 2**20))
        time.sleep(2.0)
        after = {"threads": watched.num_threads(), "files": watched.num_fds()}
    # It goes up and down by what is in flight, and the allocator takes its time to settle.
    lowest = [
        min(
            (rss for answered, rss in memory if first <= answered / count * 5 <= first + 1),
            default=0,
        )
        for first in (3, 4)
    ]
    growth = lowest[1] - lowest[0]
    if growth > MOST_GROWTH_MIB:
        faults.append(f"memory grew by {growth:.1f} MiB from the fourth fifth to the last")
    if after["files"] > before["files"] + 2 * CLIENTS:
        faults.append(f"{after['files']} open files, of which {before['files']} were there before")
    by_kind: dict[str, Counter[str]] = {}
    for each in clients:
        for kind, statuses in each.statuses.items():
            by_kind.setdefault(kind, Counter()).update(statuses)
    return {
        "requests": sum(each.answered for each in clients),
        "connections": CONNECTIONS,
        "requests_per_second": count / seconds,
        "statuses": {kind: dict(sorted(each.items())) for kind, each in sorted(by_kind.items())},
        "slowest_seconds": max(each.slowest for each in clients),
        "memory_mib": [[answered, round(rss, 1)] for answered, rss in memory],
        "growth_mib": round(growth, 1),
        "before": before,
        "after": after,
        "faults": faults,
    }


class _Client:
    """Sends requests from a channel of its own and looks at the answers."""

    def __init__(self, address: str, partitioned: Path, seed: int) -> None:
        self._address = address
        self._draw = random.Random(seed)
        shard = Shard.open(partitioned / "server-0")
        self._table = next(each for each in shard.tables.values() if each.spec.kind == "features")
        self.answered, self.slowest = 0, 0.0
        self.statuses: dict[str, Counter[str]] = {}
        self.faults: list[str] = []

    def run(self, count: int) -> None:
        """Send ``count`` requests, one after the other."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(self._address, options) as channel:
            calls = {
                name: (channel.unary_stream if name == FETCH_ROWS else channel.unary_unary)(name)
                for name in (FETCH_ROWS, DESCRIBE, HEALTH, UNKNOWN)
            }
            for _ in range(count):
                kind, method, request, expected = self._make()
                begun = time.monotonic()
                status = grpc.StatusCode.OK
                answer: Any = None
                try:
                    answer = calls[method](request, timeout=LIMIT)
                    answer = list(answer) if method == FETCH_ROWS else answer
                except grpc.RpcError as error:
                    status = error.code()
                self.slowest = max(self.slowest, time.monotonic() - begun)
                self.statuses.setdefault(kind, Counter())[status.name] += 1
                self.answered += 1
                if status not in ANSWERS:
                    self.faults.append(f"{kind}: {method} ended with {status.name}")
                if expected is not None and self._rows(answer) != expected:
                    self.faults.append(f"{kind}: {status.name}, or rows that were not asked for")

    def _rows(self, answer: Any) -> bytes:
        chunks = [features_pb2.RowChunk.FromString(each).data for each in answer or []]
        return b"".join(chunks)

    def _make(self) -> tuple[str, str, bytes, bytes | None]:
        """Of a request: its kind, method and bytes, and the rows that must come if it is good."""
        draw, spec = self._draw, self._table.spec
        ids = np.array(
            [spec.first_id + draw.randrange(spec.count) for _ in range(draw.randrange(1, 20))]
        )
        fields: dict[str, Any] = {
            "kind": spec.kind, "type": spec.type, "ids": ids.astype("<i8").tobytes(),
            "dtype": spec.dtype, "dim": spec.dim,
        }  # fmt: skip
        good = features_pb2.FetchRowsRequest(**fields).SerializeToString()
        kind = draw.choices(
            ("good", "bits flipped", "cut short", "random bytes", "wrong field", "large", "other"),
            (10, 25, 15, 25, 20, 0.1, 5),
        )[0]
        if kind == "good":
            rows = np.empty((ids.size, self._table.row_bytes), np.uint8)
            self._table.gather(self._table.local_rows(ids), rows)
            return kind, FETCH_ROWS, good, rows.tobytes()
        method = draw.choice((FETCH_ROWS, FETCH_ROWS, DESCRIBE, HEALTH))
        if kind == "bits flipped":
            changed = bytearray(good)
            for _ in range(draw.choice((1, 1, 2, 8))):
                changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
            return kind, method, bytes(changed), None
        if kind == "cut short":
            return kind, method, good[: draw.randrange(len(good))], None
        if kind == "random bytes":
            return kind, method, draw.randbytes(draw.randrange(1, 200)), None
        if kind == "large":
            return kind, method, draw.randbytes(draw.choice((1 << 20, 9 << 20))), None
        if kind == "other":
            return kind, UNKNOWN, good, None
        name, value = draw.choice(
            [
                ("kind", "k" * draw.choice((7, 257, 100_000))),
                ("type", "t" * draw.choice((7, 257, 100_000))),
                ("dtype", draw.choice(("object", "float16", "", "|O", "float32" * 99))),
                ("dim", draw.choice((0, 1, 2**31, 2**63, 2**64 - 1))),
                ("ids", draw.randbytes(draw.randrange(1, 64))),
                ("ids", np.array([-1, 2**62], "<i8").tobytes()),
            ]
        )
        return kind, method, features_pb2.FetchRowsRequest(
            **fields | {name: value}
        ).SerializeToString(), None  # fmt: skip


def _connect(address: str, seed: int, ended: threading.Event) -> None:
    """Open connections that speak no gRPC, and leave some of them open for long."""
    host, _, port = address.rpartition(":")
    draw = random.Random(seed)
    kept: list[socket.socket] = []
    for _ in range(CONNECTIONS):
        if ended.wait(0.01):
            break
        with suppress(OSError):
            stranger = socket.create_connection((host, int(port)), timeout=5.0)
            kept.append(stranger)
            start = draw.choice(
                (b"", b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            )
            stranger.sendall(start + draw.randbytes(draw.randrange(200)))
        if len(kept) > 50:
            kept.pop(draw.randrange(len(kept))).close()
    for each in kept:
        each.close()
