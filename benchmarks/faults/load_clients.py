"""Some of the clients that load a feature server, as threads of a process; see load.py."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from benchmarks.faults.strangers import LOCAL
from cache_server.generated import features_pb2
from cache_server.security import Security
from cache_server.shard import Shard
from cache_server.wire import FETCH_ROWS

_DEADLINE = 30.0
_PAUSE_SECONDS = 0.01


class Client:
    """Asks for rows over a connection of its own, one request after the other. A request that the
    server refuses for lack of resources is repeated."""

    def __init__(self, request: dict[str, Any], seed: int) -> None:
        self._ids = request["ids"]
        shard = Shard.open(Path(request["partitioned"]) / "server-0")
        self._table = next(
            table for table in shard.tables.values() if table.spec.kind == "features"
        )
        self.row_bytes = self._table.row_bytes
        credentials = Security(tls_ca=request["tls_ca"]).channel_credentials()
        if credentials is None:
            self._channel = grpc.insecure_channel(request["address"], LOCAL)
        else:
            self._channel = grpc.secure_channel(request["address"], credentials, LOCAL)
        self._draw = np.random.default_rng(seed)
        self.latencies: list[float] = []
        self.wrong: list[str] = []

    def connect(self) -> None:
        """Connect once the server serves."""
        grpc.channel_ready_future(self._channel).result(_DEADLINE)

    def run(self, until: float) -> None:
        """Ask for rows until a moment."""
        stub, spec = self._channel.unary_stream(FETCH_ROWS), self._table.spec
        while (begun := time.monotonic()) < until:
            ids = spec.first_id + self._draw.integers(0, spec.count, self._ids)
            request = features_pb2.FetchRowsRequest(
                kind=spec.kind, type=spec.type, ids=ids.astype("<i8").tobytes(), dtype=spec.dtype,
                dim=spec.dim,
            ).SerializeToString()  # fmt: skip
            answer = self._ask(stub, request)
            if answer is None:
                return
            self.latencies.append(time.monotonic() - begun)
            rows = np.empty((ids.size, self.row_bytes), np.uint8)
            self._table.gather(self._table.local_rows(ids), rows)
            if answer != rows.tobytes():
                self.wrong.append("other rows than were asked for")
                return

    def _ask(self, stub: Any, request: bytes) -> bytes | None:
        while True:
            try:
                chunks = [
                    features_pb2.RowChunk.FromString(chunk).data
                    for chunk in stub(request, timeout=_DEADLINE)
                ]
                return b"".join(chunks)
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    self.wrong.append(f"{error.code().name}: {error.details()}")
                    return None
                time.sleep(_PAUSE_SECONDS)


def main() -> None:
    """Connect, print a line, and send requests after a line on stdin."""
    request = json.loads(sys.argv[1])
    clients = [
        Client(request, request["seed"] * 1000 + number) for number in range(request["clients"])
    ]
    for client in clients:
        client.connect()
    print("ready", flush=True)
    sys.stdin.readline()
    until = time.monotonic() + request["seconds"]
    threads = [threading.Thread(target=client.run, args=(until,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.save(
        request["out"], np.array([latency for client in clients for latency in client.latencies])
    )
    summary = {
        "counts": [len(client.latencies) for client in clients],
        "wrong": [line for client in clients for line in client.wrong],
        "row_bytes": clients[0].row_bytes,
    }
    print(json.dumps(summary), flush=True)


if __name__ == "__main__":
    main()
