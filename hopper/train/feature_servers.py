"""The feature servers of a run: started, awaited until they serve, watched, and ended."""

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
from hopper.signal_handlers import TO_END, deferred
from hopper.train.rank_failures import how_it_ended
from hopper.train.rank_processes import POLL_SECONDS
from hopper.train.run_metrics import server_metrics
from hopper.train.security import security_words
from hopper.train.watching import watching

_DRAIN_SECONDS: Final = 10.0
_LOST_SECONDS: Final = 1.0
"""how long a server may take to end after a run that failed: one that is stopped does not react"""


@dataclass(frozen=True)
class Place:
    """Where a server and its ranks run.

    Attributes
    ----------
    address: what the feature server listens on, without a port.
    prefix: words before every command that starts a process there.
    """

    address: str = "127.0.0.1"
    prefix: tuple[str, ...] = field(default=())


class FeatureServers:
    """The feature servers of a run; watched while ranks run.

    Attributes
    ----------
    processes: those that were started here, in order of server; none where others run them.
    addresses: "host:port" in order of server.
    lost: which server ended while ranks were watched, if one did.
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
    def watched(self) -> Iterator[None]:
        """End the ranks as soon as a server ends: a signal to this process makes torchrun's agent
        take them down."""

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

    What they print goes to ``run_dir``/servers. All have ended when this context has.

    Raises
    ------
    ServerLost, DeadlineExceeded: a server ended before it served, or did not come in time.
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
            # A server that has been started and is not known would be left behind.
            with deferred(TO_END):
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
    """Ask processes to end, all at once; kill those that have not after ``limit`` seconds."""
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
    """Start a feature server that ends with this process; ``folder`` takes what it prints and its
    address."""
    (folder / f"{index}.json").unlink(missing_ok=True)
    with (folder / f"{index}.log").open("ab") as log:
        return subprocess.Popen(
            [
                *place.prefix,
                # -P: nothing is imported from the folder that this process happens to be in.
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
            # Ctrl-C reaches the launching process alone, which then ends the run in order.
            start_new_session=True,
        )


def _sources(config: Config) -> Iterator[str]:
    """What tells a server where features come from instead of its files; nothing where no rank
    asks for rows."""
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
    """Where a feature server that :func:`start_server` started listens; None before it serves.

    Raises
    ------
    ServerLost: it ended before; quotes what it printed.
    """
    port_file = folder / f"{index}.json"
    if port_file.exists():
        return str(json.loads(port_file.read_text())["address"])
    code = process.poll()
    if code is None:
        return None
    said = (folder / f"{index}.log").read_text(errors="replace").strip()
    if not said:
        free = shutil.disk_usage(folder).free
        said = f"it has not logged why; {folder} has {free:,} bytes of free space"
    raise ServerLost(f"feature server {index} {how_it_ended(code)} before it served: {said}")
