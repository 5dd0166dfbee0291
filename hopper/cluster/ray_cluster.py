"""Connecting to a Ray cluster, or starting one on this machine."""

from __future__ import annotations

import importlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from hopper.errors import RequestError, cannot_import

_CONNECT_SECONDS: Final = 10.0
_LOOPBACK: Final = "127.0.0.1"


@contextmanager
def connect_to_ray(option: str, expected: str, address: str, cpus: int | None) -> Iterator[Any]:
    """Connect to a Ray cluster while the context lasts; yield the module ``ray``.

    Parameters
    ----------
    option: the words of the command line that ask for it, for errors.
    expected: the form of address that errors name.
    address: "HOST:PORT" of an existing cluster; "" = start one on this machine's loopback, and shut
        it down at the end.
    cpus: CPUs of a cluster that is started; None = as many as the machine has.
    """
    try:
        ray = importlib.import_module("ray")
    except ImportError:
        raise RequestError(cannot_import(option, "ray")) from None
    options: dict[str, Any] = {"address": address}
    if address:
        _check_address(option, expected, address)
    else:
        options = {"address": "local", "num_cpus": cpus, "_node_ip_address": _LOOPBACK}
        # Ray's own 15 lets anything else on a busy machine go before servers and ranks.
        os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        _start(ray, options)
    except Exception as error:
        raise RequestError(f"{option}: no Ray cluster: {one_line(error)}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _start(ray: Any, options: dict[str, Any]) -> None:
    """Connect, and try once more if a cluster on this machine does not start: where it is busy, one
    of Ray's own processes may be given up before it has begun to answer."""
    silent = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    try:
        ray.init(**options, **silent)
    except Exception:
        if options["address"] != "local":
            raise
        ray.shutdown()
        ray.init(**options, **silent)


def one_line(error: BaseException) -> str:
    """Return the class and the last line of an error of Ray."""
    lines: list[str] = []
    with suppress(Exception):
        lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1] if lines else 'no text'}"


def _check_address(option: str, expected: str, address: str) -> None:
    """Refuse an address where nobody listens. Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise RequestError(f"{option}: expected {expected}")
    try:
        socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise RequestError(f"{option}: no Ray cluster: {one_line(error)}") from None
