"""The feature service against the least that could carry the same bytes, and under abuse and load.

usage: python -m benchmarks.feature_service --out DIR [--megabytes 600] [--calls 20]
    [--bad-requests 200000] [--load 60]

A client asks one server on loopback for random rows of 600 float32 from a file, 1 to 100,000 ids
at once, against a bare grpcio server stream of the same bytes (goal: 0.9x its rate with 20,000
ids). Calls of both sides alternate. A cell is a number of ids. Lines have the seconds of a round's
calls (a ratio of 0.8 means 0.8x the peer's rate), the milliseconds of a call that half (p50) and
99 % of calls stay below, and the processor milliseconds of a call, client and server together.

Then a server gets malformed requests beside valid ones (goal: all are answered, and no memory is
left behind), and another one serves 32 clients at once for a while (goal: no error, and bounded
memory); 0 leaves a part out. The status is 1 if one of these two goals is missed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
from numpy.typing import NDArray

from benchmarks.faults.bad_requests import send_bad_requests
from benchmarks.faults.load import load_server
from benchmarks.faults.outcomes import Outcome, print_outcomes, write_outcomes
from benchmarks.rounds import Results, make_parser, positive, take_turns
from cache_server.client import FeatureClient
from cache_server.security import Security
from cache_server.store.manifest import TableSpec, write_manifest
from hopper.graph import GraphDirectory
from hopper.partition import partition_graph

ROOT = Path(__file__).resolve().parent.parent
DIM = 600
ROW_BYTES = 4 * DIM
CHUNK = 1 << 20
METHOD = "/bare.Stream/Send"
STREAM_OPTIONS = [("grpc.max_receive_message_length", -1)]
SIZES = {1: 4, 64: 10, 20_000: 1, 100_000: 1}
"""by number of ids: calls of a round, times --calls"""
PEER = "bare grpcio"
CLIENTS = 32

Ask = Callable[[NDArray[np.int64], NDArray[np.float32]], None]
"""fetches the rows of some ids into an array"""


def serve_grpc() -> None:
    """Serve a stream of as many bytes as 8 bytes of request stand for, in 1 MB chunks."""
    chunk = os.urandom(CHUNK)

    def send(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        bytes_left = len(request) // 8 * ROW_BYTES
        while bytes_left > 0:
            yield chunk if bytes_left >= CHUNK else chunk[:bytes_left]
            bytes_left -= CHUNK

    server = grpc.server(futures.ThreadPoolExecutor(4), options=STREAM_OPTIONS)
    service, name = METHOD[1:].split("/")
    handlers = {name: grpc.unary_stream_rpc_method_handler(send)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"127.0.0.1:{port}", flush=True)
    server.wait_for_termination()


def grpc_caller(address: str) -> Ask:
    """Return a function that asks :func:`serve_grpc` for rows."""
    call = grpc.insecure_channel(address, STREAM_OPTIONS).unary_stream(METHOD)

    def ask(ids: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        target, offset = out.reshape(-1).view(np.uint8), 0
        for message in call(ids.tobytes(), timeout=60):
            target[offset : offset + len(message)] = np.frombuffer(message, np.uint8)
            offset += len(message)
        if offset != target.size:
            raise RuntimeError(f"{offset} of {target.size} bytes came")

    return ask


@contextmanager
def start_server(words: list[str]) -> Iterator[tuple[int, str]]:
    """Start Python. Yield its process id and address, the last word of its first line."""
    command = [sys.executable, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline().split()
            if not line:
                raise RuntimeError(f"{' '.join(command)} ended with {process.wait()}")
            yield process.pid, line[-1]
        finally:
            process.kill()


def make_table(directory: Path, megabytes: int) -> None:
    """Write a partitioned directory of one server with one table of about ``megabytes`` MB."""
    rows = megabytes * 10**6 // ROW_BYTES
    folder = directory / "server-0"
    folder.mkdir()
    rng = np.random.default_rng(0)
    table = np.lib.format.open_memmap(folder / "paper.npy", "w+", np.float32, (rows, DIM))
    for first in range(0, rows, 10_000):
        part = table[first : first + 10_000]
        part[:] = rng.standard_normal(part.shape, dtype=np.float32)
    table.flush()
    facts = {"kind": "features", "type": "paper", "file": "paper.npy", "dtype": "float32"}
    spec = TableSpec(**facts, first_id=0, count=rows, dim=DIM)  # type: ignore[arg-type]
    write_manifest(folder, 0, 1, [spec])


def measure(addresses: Sequence[str], pids: Sequence[int], options: Any) -> None:
    """Time the service and its peer call by call, in turns."""
    client = FeatureClient([addresses[0]], security=Security(insecure=True))
    client.wait_until_serving(30)
    rows = client.describe(0).tables[0].count

    def service(ids: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        client.fetch_rows("features", "paper", {0: ids}, out, {0: slice(None)})

    asks: dict[str, Ask] = {"service": service, PEER: grpc_caller(addresses[1])}
    rng, results = np.random.default_rng(0), Results("feature-service", options.out)
    for count, factor in SIZES.items():
        out, parts = np.zeros((count, DIM), np.float32), factor * options.calls
        ids = rng.integers(0, rows, (parts, count))
        sides: dict[str, Callable[[int], None]] = {
            name: (lambda part, ask=ask, ids=ids, out=out: ask(ids[part], out))
            for name, ask in asks.items()
        }
        measured = take_turns(sides, options.rounds, parts=parts)
        facts: list[tuple[str, str, float]] = []
        for (name, side), pid in zip(sides.items(), pids, strict=True):
            milliseconds = 1e3 * measured[name]["seconds"]
            for percent in (50, 99):
                value = float(np.percentile(milliseconds, percent))
                facts.append((name, f"p{percent} milliseconds", value))
            before = cpu_seconds(pid)
            for part in range(parts):
                side(part)
            spent = 1e3 * (cpu_seconds(pid) - before) / parts
            facts.append((name, "processor milliseconds", spent))
        results.add(f"{count} ids", measured, {"service": [PEER]}, facts)
    client.close()


def try_faults(folder: Path, options: Any) -> list[Outcome]:
    """Send malformed requests to a server, and load another one, of a small divided graph."""
    nodes, edges, rng = 20_000, 200_000, np.random.default_rng(0)
    graph = GraphDirectory.from_arrays(
        folder / "graph",
        rng.integers(0, nodes, (2, edges)),
        features=rng.standard_normal((nodes, 128), dtype=np.float32),
        labels=rng.integers(0, 9, nodes),
    )
    parts, results = folder / "parts", Results("feature-service-faults", options.out)
    partition_graph(graph, parts, 2, "random", topology="partitioned")
    outcomes: list[Outcome] = []
    if options.bad_requests:
        outcomes += send_bad_requests(parts, options.bad_requests, 0, results)
    if options.load:
        outcomes += load_server(folder, parts, options.load, 0, results, [CLIENTS])
    write_outcomes(options.out, outcomes)
    print_outcomes(outcomes)
    return outcomes


def cpu_seconds(pid: int) -> float:
    """Return the processor seconds of this process and another one together."""
    times = [process.cpu_times() for process in (psutil.Process(), psutil.Process(pid))]
    return sum(t.user + t.system for t in times)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--megabytes", type=positive, default=600, help="size of the table")
    parser.add_argument("--calls", type=positive, default=20, help="of the largest, in a round")
    count = {"type": int, "metavar": "N"}
    parser.add_argument("--bad-requests", default=200_000, help="default 200,000", **count)
    parser.add_argument("--load", default=60, help="seconds; default 60", **count)
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="hopper-feature-service-") as folder,
        ExitStack() as stack,
    ):
        make_table(Path(folder), options.megabytes)
        service = ["-m", "cache_server", folder, "--server", "0", "--listen", "127.0.0.1:0"]
        service += ["--die-with-parent", str(os.getpid()), "--insecure"]
        peer = ["-c", "from benchmarks.feature_service import serve_grpc; serve_grpc()"]
        started = [stack.enter_context(start_server(words)) for words in (service, peer)]
        pids, addresses = zip(*started, strict=True)
        measure(addresses, pids, options)
        stack.close()
        outcomes = try_faults(Path(folder), options)
    return int(any(outcome.is_wrong for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
