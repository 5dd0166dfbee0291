"""The server as a process: how it starts, reports its port, drains, and ends."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from cache_server.errors import ListenError
from cache_server.generated import features_pb2
from cache_server.security import PLAIN
from cache_server.wire import FETCH_ROWS, SERVICE, encode_ids
from tests.cache_server.conftest import ends_within
from tests.server_processes import REPOSITORY, run_python

IDS = np.random.default_rng(3).integers(0, 40, 1_000_000)


def fetch_all(channel: grpc.Channel) -> Any:
    """Ask for more rows than any buffer holds."""
    fields: Any = {"kind": "features", "type": "paper", "dtype": "float32", "dim": 5}
    request = features_pb2.FetchRowsRequest(ids=encode_ids(IDS), **fields).SerializeToString()
    return channel.unary_stream(FETCH_ROWS)(request, timeout=30)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_server_tells_where_it_is_and_drains_after_a_signal(partitioned, start, signum):
    server = start(partitioned.path, 0)
    assert server.line == f"feature server 0 of 3 on {server.address}\n"
    assert re.fullmatch(r"127\.0\.0\.1:[1-9]\d*", server.address)
    # If nothing caught the signal, the kernel could end the process through a library's thread.
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    assert int(status.partition("SigCgt:")[2].split()[0], 16) >> (signum - 1) & 1
    options = [("grpc.http2.bdp_probe", 0), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(server.address, options) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for service in ("", SERVICE):
            reply = health.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
        stream = fetch_all(channel)
        received = [next(stream)]
        server.process.send_signal(signum)
        time.sleep(0.5)
        assert server.process.poll() is None
        received += stream
    chunks = [features_pb2.RowChunk.FromString(message).data for message in received]
    assert b"".join(chunks) == partitioned.rows["features", "paper"][IDS].tobytes()
    assert server.process.wait(15) == 0


def test_the_drain_has_a_limit(partitioned, start):
    server = start(partitioned.path, 0, "--drain", "0.3")
    with grpc.insecure_channel(server.address, [("grpc.http2.bdp_probe", 0)]) as channel:
        stream = fetch_all(channel)
        next(stream)
        # Its main thread does not wait yet when it goes on.
        for signum in (signal.SIGSTOP, signal.SIGCONT, signal.SIGTERM):
            server.process.send_signal(signum)
        assert server.process.wait(15) == 0
        with pytest.raises(grpc.RpcError):
            list(stream)


CHILDREN = {
    # The kernel sends SIGTERM to the server.
    "server": (
        "import os, subprocess, sys, time\n"
        "command = [*sys.argv[1:], '--die-with-parent', str(os.getpid())]\n"
        "child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    ),
    "stopped process": (
        "import os, signal\n"
        "from cache_server.process import end_with_parent\n"
        "parent = os.getpid()\n"
        "if os.fork():\n"
        "    os.wait()\n"
        "end_with_parent(parent, signal.SIGKILL)\n"
        "print(os.getpid(), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGSTOP)\n"
    ),
}


@pytest.mark.parametrize("child", CHILDREN)
def test_a_process_ends_with_its_parent(partitioned, child):
    """The parent is killed with SIGKILL."""
    words = ["-m", "cache_server", str(partitioned.path), "--server", "0"]
    words += ["--listen", "127.0.0.1:0"]
    command = [sys.executable, "-c", CHILDREN[child], sys.executable, *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, text=True, cwd=REPOSITORY) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert not ends_within(pid, 0.2)
        process.kill()
        assert process.wait(5) == -signal.SIGKILL
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


def run_main(usual: Sequence[str], cases: Collection[Sequence[str]]) -> list[tuple[int, str]]:
    """Run the command with more words in each case; returns its statuses and what it wrote."""
    done = run_python("-c", MAIN, json.dumps([[*usual, *words] for words in cases]))
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_server_that_cannot_start_says_why(partitioned, addresses):
    features, options = "--features", "--features-options"
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
        (features, "paper"): "--features: expected TYPE=package.module:Class, found 'paper'",
        (features, "paper=Sq"): "expected TYPE=package.module:Class, found 'paper=Sq'",
        (features, "paper=a:B", options, "paper=[1]"): "expected TYPE={JSON}, found 'paper=[1]'",
        (options, "paper={}"): "error: --features-options: expected a type of --features",
        (features, "paper=nowhere:B"): "features of paper: ",
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
    assert run_python("-c", script).returncode == 0


def test_a_name_is_bound_with_all_its_addresses_or_not_at_all(monkeypatch):
    """``localhost`` may be 127.0.0.1 and ::1, and grpc would be content with one of them."""

    def two_addresses(_host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, ("127.0.0.2", port)), (*kind, ("127.0.0.1", port))]

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        monkeypatch.setattr(socket, "getaddrinfo", two_addresses)
        where = f"listen: cannot bind localhost:{port}: 127.0.0.1 port {port}"
        with pytest.raises(ListenError, match=f"^{where}: Address already in use$"):
            PLAIN.check_server(f"localhost:{port}")


ARENAS = """
import ctypes, sys, threading
from cache_server.process import keep_freed_memory

keep_freed_memory(int(sys.argv[1]))
libc, all_there = ctypes.CDLL(None), threading.Barrier(17)
libc.malloc.restype = libc.fdopen.restype = ctypes.c_void_p

def allocate():
    libc.malloc(100)
    all_there.wait()
    all_there.wait()

for _ in range(16):
    threading.Thread(target=allocate).start()
all_there.wait()
out = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, out)
libc.fflush(out)
all_there.wait()
"""


def test_threads_share_as_many_arenas_as_they_are_told():
    """glibc would give them eight a core, and each keeps memory of its own."""
    told = run_python("-c", ARENAS, "2")
    assert (told.returncode, told.stdout.count("<heap nr=")) == (0, 2)
