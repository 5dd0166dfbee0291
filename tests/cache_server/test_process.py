"""The server as a process: how it starts, reports its port, drains, and ends."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cache_server.errors import ListenError
from cache_server.generated import features_pb2, features_pb2_grpc
from cache_server.service.listen import bind
from cache_server.wire import SERVICE, encode_ids
from tests.cache_server.conftest import Partitioned, Start, ends_within
from tests.server_processes import REPOSITORY


def rows_request(ids: Any) -> features_pb2.FetchRowsRequest:
    return features_pb2.FetchRowsRequest(
        kind="features", type="paper", ids=encode_ids(ids), dtype="float32", dim=5
    )


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_server_tells_where_it_is_and_drains_after_a_signal(
    partitioned: Partitioned, start: Start, signum: signal.Signals
) -> None:
    """After the signal, a stream that is longer than any buffer can still be read to its end."""
    server = start(partitioned.path, 0)
    assert server.line == f"feature server 0 of 3 on {server.address}\n"
    assert re.fullmatch(r"127\.0\.0\.1:[1-9]\d*", server.address)
    # If nothing caught the signal, the kernel could end the process through a library's thread.
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    assert int(status.partition("SigCgt:")[2].split()[0], 16) >> (signum - 1) & 1
    ids = np.random.default_rng(3).integers(0, 40, 1_000_000)
    options = [("grpc.http2.bdp_probe", 0), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(server.address, options) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", SERVICE):
            reply = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        stream = features_pb2_grpc.FeatureServiceStub(channel).FetchRows(
            rows_request(ids), timeout=30
        )
        received = [next(stream).data]
        server.process.send_signal(signum)
        time.sleep(0.5)
        assert server.process.poll() is None
        received += [chunk.data for chunk in stream]
    assert b"".join(received) == partitioned.rows["features", "paper"][ids].tobytes()
    assert server.process.wait(15) == 0


def test_a_server_that_goes_on_and_is_told_to_end_at_once_drains(
    partitioned: Partitioned, start: Start
) -> None:
    """Its main thread does not wait yet."""
    server = start(partitioned.path, 0)
    for signum in (signal.SIGSTOP, signal.SIGCONT, signal.SIGTERM):
        server.process.send_signal(signum)
    assert server.process.wait(15) == 0


def test_the_drain_has_a_limit(partitioned: Partitioned, start: Start) -> None:
    server = start(partitioned.path, 0, "--drain", "0.3")
    request = rows_request(np.zeros(1_000_000, np.int64))
    with grpc.insecure_channel(server.address, [("grpc.http2.bdp_probe", 0)]) as channel:
        stream = features_pb2_grpc.FeatureServiceStub(channel).FetchRows(request, timeout=30)
        next(stream)
        assert server.stop() == 0
        with pytest.raises(grpc.RpcError):
            list(stream)


def test_a_server_ends_with_its_parent(partitioned):
    """The parent is killed with SIGKILL, and the kernel sends SIGTERM to its server."""
    parent = (
        "import os, subprocess, sys, time\n"
        "command = [*sys.argv[1:], '--die-with-parent', str(os.getpid())]\n"
        "child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-m", "cache_server", partitioned.path, "--server", "0"]
    command += ["--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [sys.executable, "-c", parent, *map(str, command)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    ) as process:
        pid = int(process.stdout.readline())
        assert not ends_within(pid, 0.2)
        process.kill()
        assert process.wait(5) == -signal.SIGKILL
    assert ends_within(pid, 10)


def test_a_stopped_process_ends_with_its_parent():
    child = (
        "import os, signal, sys\n"
        "from cache_server.process import end_with_parent\n"
        "end_with_parent(int(sys.argv[1]), signal.SIGKILL)\n"
        "print(os.getpid(), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n"
    )
    parent = (
        "import os, subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', sys.argv[1], str(os.getpid())])\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent, child], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    ) as process:
        pid = int(process.stdout.readline())
        process.kill()
        assert ends_within(pid, 10)


MAIN = """
import contextlib, io, json, sys
from cache_server.__main__ import main
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as error:
        try:
            status = main(words)
        except SystemExit as ended:
            status = ended.code
    print(json.dumps([status, error.getvalue()]))
"""


def run_main(usual, cases):
    """Run the command with more words in each case; yields its statuses and what it wrote."""
    command = [sys.executable, "-c", MAIN, json.dumps([[*usual, *words] for words in cases])]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_server_that_cannot_start_says_why(partitioned, addresses):
    texts = {
        ("--listen", "nowhere"): "error: listen: expected HOST:PORT, found 'nowhere'",
        ("--listen", "127.0.0.1:70000"): "error: listen: expected HOST:PORT",
        ("--listen", "203.0.113.1:0"): "error: listen: cannot bind 203.0.113.1:0",
        ("--listen", addresses[1]): f"cannot bind {addresses[1]}",
        ("--listen", "0.0.0.0:0"): "error: insecure: listening on 0.0.0.0:0, which is no loopback",
        ("--metrics", addresses[1]): f"error: metrics: cannot bind {addresses[1]}: ",
        ("--threads", "0"): "--threads: expected an integer >= 1, found '0'",
        ("--drain", "nan"): "--drain: expected seconds >= 0, found 'nan'",
        ("--server", "9"): "server-9/shard.json: cannot be read: No such file",
    }
    usual = [str(partitioned.path), "--server", "0", "--listen", "127.0.0.1:0"]
    for (status, error), text in zip(run_main(usual, texts), texts.values(), strict=True):
        assert status == 2
        assert text in error
        assert error.count("\n") == 1 or "usage" in error


def test_hopper_is_never_imported():
    script = (
        "import sys, cache_server.__main__, cache_server.client, cache_server.service.server\n"
        "assert not [m for m in sys.modules if m.split('.')[0] in ('hopper', 'torch', 'numba')]"
    )
    subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, check=True, timeout=60)


def test_a_name_is_bound_with_all_its_addresses_or_not_at_all(monkeypatch):
    """``localhost`` may be 127.0.0.1 and ::1, and grpc would be content with one of them."""

    class Server:
        def add_insecure_port(self, listen):
            pytest.fail(f"{listen} was bound")

    def two_addresses(host, port, *arguments, **keywords):
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, ("127.0.0.2", port)), (*kind, ("127.0.0.1", port))]

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        monkeypatch.setattr(socket, "getaddrinfo", two_addresses)
        with pytest.raises(ListenError) as caught:
            bind(Server(), f"localhost:{port}")
    expected = (
        f"listen: cannot bind localhost:{port}: 127.0.0.1 port {port}: Address already in use"
    )
    assert str(caught.value) == expected
