"""The feature servers of a run: starting them, waiting for them, watching and ending them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hopper.config import Config
from hopper.errors import DeadlineExceeded, ServerLost
from hopper.partition import PartitionedGraph
from hopper.signal_handlers import defer_signals
from hopper.train.rank_failures import how_it_ended
from hopper.train.rank_processes import POLL_SECONDS
from hopper.train.run_metrics import server_metrics
from hopper.train.security import security_words
from hopper.train.watching import watching

_DRAIN_SECONDS: Final = 10.0
_LOST_SECONDS: Final = 1.0
"""How long a server may take to end after a run that failed. A suspended server never reacts."""


@dataclass(frozen=True)
class Place:
    """The place where a server and its ranks run.

    Attributes
    ----------
    address: the address that the feature server listens on, without a port.
    prefix: words in front of every command that starts a process there.
    """

    address: str = "127.0.0.1"
    prefix: tuple[str, ...] = field(default=())


class FeatureServers:
    """The feature servers of a run.

    Attributes
    ----------
    processes: the servers' processes, in order of server; empty if others run the servers.
    addresses: "host:port" of each server.
    lost: says which server ended while :meth:`watch` looked, if one did.
    """

    def __init__(self, processes: list[subprocess.Popen[bytes]], addresses: list[str]) -> None:
        self.processes = processes
        self.addresses = addresses
        self.lost: str | None = None

    def find_lost(self) -> str | None:
        """Say which server ended, if one did."""
        for index, process in enumerate(self.processes):
            code = process.poll()
            if code is not None:
                return (
                    f"feature server {index} (pid {process.pid}, {self.addresses[index]}) "
                    f"{how_it_ended(code)}"
                )
        return None

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Watch the servers in a thread, and end the ranks as soon as a server ends.

        SIGTERM to this process makes torchrun's agent end the ranks.
        """

        def watch(done: threading.Event) -> None:
            while not done.wait(POLL_SECONDS):
                self.lost = self.find_lost()
                if self.lost is not None:
                    os.kill(os.getpid(), signal.SIGTERM)
                    return

        with watching("server-watch", watch):
            yield


@contextmanager
def feature_servers(
    config: Config, run_dir: Path, places: Sequence[Place]
) -> Iterator[FeatureServers]:
    """Start one feature server per place, or use those that the configuration names.

    Their output goes to ``run_dir``/servers. All servers have ended when the context is left.

    Raises
    ------
    ServerLost: a server ended before it served.
    DeadlineExceeded: a server did not begin to serve in time.
    """
    if config.cluster.servers:
        yield FeatureServers([], list(config.cluster.servers))
        return
    folder = run_dir / "servers"
    folder.mkdir(exist_ok=True)
    processes: list[subprocess.Popen[bytes]] = []
    stop_limit = _LOST_SECONDS
    try:
        for index, place in enumerate(places):
            # A signal between start and append would leave the server behind.
            with defer_signals():
                processes.append(start_server(config, folder, index, place))
        limit = config.cluster.start_timeout_seconds
        deadline = time.monotonic() + limit
        addresses = [
            _await_address(process, folder, index, deadline, limit)
            for index, process in enumerate(processes)
        ]
        yield FeatureServers(processes, addresses)
        stop_limit = _DRAIN_SECONDS
    finally:
        stop_processes(processes, stop_limit)


def stop_processes(processes: Sequence[subprocess.Popen[bytes]], limit: float) -> None:
    """Ask all processes to end; kill those that have not ended after ``limit`` seconds."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + limit
    for process in processes:
        try:
            process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def start_server(config: Config, folder: Path, index: int, place: Place) -> subprocess.Popen[bytes]:
    """Start a feature server that ends with this process.

    Parameters
    ----------
    folder: where its output and its address are written.
    index: the server's number.
    """
    (folder / f"{index}.json").unlink(missing_ok=True)
    with (folder / f"{index}.log").open("ab") as log:
        return subprocess.Popen(
            [
                *place.prefix,
                # -P keeps modules in the current folder from being imported.
                *(sys.executable, "-P", "-m", "cache_server", config.data.partitioned),
                *("--server", str(index), "--listen", f"{place.address}:0"),
                *("--port-file", str(folder / f"{index}.json")),
                *("--die-with-parent", str(os.getpid())),
                *_sources(config),
                *server_metrics(config, index),
                f"--log-format={config.cluster.log_format}",
                *security_words(config),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Ctrl-C must reach only the launching process, which then ends the run in order.
            start_new_session=True,
        )


def _sources(config: Config) -> Iterator[str]:
    """Yield the arguments that tell a server which plug-ins features come from.

    There are none if no rank asks servers for rows.
    """
    if not PartitionedGraph.open(config.data.partitioned).layout.reads_remote_rows:
        return
    for node_type, name in config.data.features.items():
        yield f"--features={node_type}={name}"
        options = config.data.features_options.get(node_type)
        if options:
            yield f"--features-options={node_type}={json.dumps(options)}"


def _await_address(
    process: subprocess.Popen[bytes], folder: Path, index: int, deadline: float, limit: float
) -> str:
    while (address := read_address(process, folder, index)) is None:
        if time.monotonic() > deadline:
            raise DeadlineExceeded(f"feature server {index}", "starting", limit)
        time.sleep(0.02)
    return address


def read_address(process: subprocess.Popen[bytes], folder: Path, index: int) -> str | None:
    """Return the address that a feature server of :func:`start_server` listens on; None before it
    serves.

    Raises
    ------
    ServerLost: the server ended before it served; quotes its output.
    """
    port_file = folder / f"{index}.json"
    if port_file.exists():
        return str(json.loads(port_file.read_text())["address"])
    code = process.poll()
    if code is None:
        return None
    output = (folder / f"{index}.log").read_text(errors="replace").strip()
    if not output:
        free = shutil.disk_usage(folder).free
        output = f"it has not logged why; {folder} has {free:,} bytes of free space"
    raise ServerLost(f"feature server {index} {how_it_ended(code)} before it served: {output}")
