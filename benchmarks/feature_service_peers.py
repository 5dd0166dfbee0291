"""What the feature service is compared with, and where: bare peers, processes, emulated hosts."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
DIM = 600
ROW_BYTES = 4 * DIM
CHUNK = 1 << 20
METHOD = "/bare.Stream/Send"
STREAM_OPTIONS = [("grpc.max_receive_message_length", -1)]
RATE = "1gbit"
BURST = "128kb"


def serve_grpc(listen: str) -> None:
    """Serve a stream of as many bytes as 8 bytes of request stand for, in 1 MB chunks."""
    chunk = os.urandom(CHUNK)

    def send(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        bytes_left = len(request) // 8 * ROW_BYTES
        while bytes_left > 0:
            yield chunk if bytes_left >= CHUNK else chunk[:bytes_left]
            bytes_left -= CHUNK

    server = grpc.server(futures.ThreadPoolExecutor(4), options=STREAM_OPTIONS)
    service, name = METHOD[1:].split("/")
    handler = grpc.unary_stream_rpc_method_handler(send)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {name: handler}),)
    )
    host = listen.rpartition(":")[0]
    port = server.add_insecure_port(listen)
    server.start()
    print(f"{host}:{port}", flush=True)
    server.wait_for_termination()


def serve_tcp(listen: str) -> None:
    """Serve a socket that answers an 8-byte count and that many ids with that many rows' bytes."""
    host, _, port = listen.rpartition(":")
    chunk = memoryview(os.urandom(CHUNK))
    with socket.create_server((host, int(port))) as server:
        print(f"{host}:{server.getsockname()[1]}", flush=True)
        connection, _ = server.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while head := connection.recv(8, socket.MSG_WAITALL):
                count = int.from_bytes(head, "little")
                connection.recv(8 * count, socket.MSG_WAITALL)
                bytes_left = count * ROW_BYTES
                while bytes_left > 0:
                    connection.sendall(chunk[:bytes_left])
                    bytes_left -= CHUNK


def grpc_caller(address: str) -> Callable[[NDArray[np.int64], NDArray[np.float32]], None]:
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


def tcp_caller(address: str) -> Callable[[NDArray[np.int64], NDArray[np.float32]], None]:
    """Return a function that asks :func:`serve_tcp` for rows."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(ids: NDArray[np.int64], out: NDArray[np.float32]) -> None:
        connection.sendall(ids.size.to_bytes(8, "little") + ids.tobytes())
        target = memoryview(out.reshape(-1).view(np.uint8))
        while target:
            received = connection.recv_into(target)
            if not received:
                raise RuntimeError("the peer closed the connection")
            target = target[received:]

    return ask


@contextmanager
def start_server(command: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a server process. Yield it and its address, the last word of its first line; end it
    afterwards."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        line = process.stdout.readline().split()
        if not line:
            raise RuntimeError(f"{' '.join(command)} ended with {process.wait()}")
        yield process, line[-1]
    finally:
        process.terminate()
        try:
            process.wait(15)
        finally:
            process.kill()


@contextmanager
def two_hosts() -> Iterator[tuple[list[str], list[str], str]]:
    """Join two network namespaces by a rate-limited veth pair, and take them down afterwards.

    Yields the command prefixes that run in the first and in the second, and the first's address.
    """
    names = [f"hopper{os.getpid()}{side}" for side in "ab"]

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)

    try:
        for name in names:
            ip("netns", "add", name)
        ip(
            "link",
            "add",
            "eth0",
            "netns",
            names[0],
            "type",
            "veth",
            "peer",
            "eth0",
            "netns",
            names[1],
        )
        for number, name in enumerate(names, start=1):
            inside = ["ip", "netns", "exec", name]
            ip("-n", name, "address", "add", f"10.77.0.{number}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "eth0", "up")
            shaping = f"tc qdisc add dev eth0 root tbf rate {RATE} burst {BURST} latency 50ms"
            subprocess.run([*inside, *shaping.split()], check=True, capture_output=True)
        first, second = (["ip", "netns", "exec", name] for name in names)
        yield first, second, "10.77.0.1"
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
