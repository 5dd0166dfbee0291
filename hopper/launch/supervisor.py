"""The feature servers and ranks that this process starts: starting, watching and ending them."""

from __future__ import annotations

import itertools
import json
import math
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from cache_server.available_memory import LIMIT_VARIABLE, memory_share
from hopper.cluster.security import security_words
from hopper.config import Config
from hopper.config.loading import CONFIG_VARIABLE
from hopper.errors import ClusterError, DeadlineExceeded, ServerLost
from hopper.files.scratch import scratch_folder
from hopper.launch.failures import Failure, RanksFailed, how_it_ended, read_failure
from hopper.launch.processes import Child, start_module, stop_processes
from hopper.partition import PartitionedGraph
from hopper.process.signal_handlers import defer_signals
from hopper.process.thread_settings import thread_settings
from hopper.train.rank_process import DIE_WITH_PARENT, RECORD
from hopper.train.run_files import CONFIG_FILE
from hopper.train.run_metrics import server_metrics

SERVERS_FOLDER: Final = "servers"
LOOK_SECONDS: Final = 0.02
_END_SECONDS: Final = 1.0
"""How long a process may take to end after a failure. A suspended one never reacts."""
_DRAIN_SECONDS: Final = 10.0
_GRACE_SECONDS: Final = 1.0
"""How long ranks that only miss another one may take to say which, before they are believed."""
_STORE_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Place:
    """The place where a server and its ranks run."""

    server: int = 0
    """the number of the server"""
    address: str = "127.0.0.1"
    port: int = 0
    """where it listens; 0 = any free port"""
    host: tuple[str, ...] = ()
    """the network namespace and cgroups of an emulated host; places with the same ones are one
    machine"""
    log: Path | None = None
    """the file to which ranks print; None = they print where this process does"""


class Supervisor:
    """Feature servers and their ranks, in a context after which all of them have ended.

    They end with this process too, however it ends. Servers come first: ranks read a configuration
    that names where they listen.

    Parameters
    ----------
    config: a configuration that has passed all checks.
    run_dir: the folder of the run, for the files of servers and ranks.
    places: the places of the run that this process serves.
    world: number of ranks of the whole run.
    environment: environment variables of ranks, beside those of OpenMP. ``HOPPER_MEMORY_LIMIT`` is
        also one of servers; by default it is this machine's memory divided by the places.
    file: the configuration that ranks read; by default the one of the run's folder.
    """

    def __init__(
        self,
        config: Config,
        run_dir: Path,
        places: Sequence[Place],
        world: int,
        *,
        environment: Mapping[str, str] | None = None,
        file: Path | None = None,
    ) -> None:
        self._config = config
        self._file = file or run_dir / CONFIG_FILE
        self._folder = run_dir / SERVERS_FOLDER
        self._places = tuple(places)
        self._world = world
        self._environment = memory_share(len(self._places)) | dict(environment or {})
        self._exits = ExitStack()
        self._servers: list[Child] = []
        self._addresses: list[str] = []
        self._ranks: dict[int, Child] = {}
        self._ended: dict[int, float] = {}
        self._failed_at = self._late_at = math.inf

    def __enter__(self) -> Supervisor:
        self._records = self._exits.enter_context(scratch_folder("hopper-rank-records-"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        with defer_signals():
            stop_processes(list(self._ranks.values()), _END_SECONDS)
            stop_processes(self._servers, _DRAIN_SECONDS if kind is None else _END_SECONDS)
            self._exits.close()

    def start_servers(self, check: Callable[[], None]) -> list[str]:
        """Start a server at each place; return where they listen, once all serve.

        ServerLost quotes the output of a server that ended. ``check`` is called between looks.
        """
        self._folder.mkdir(exist_ok=True)
        memory = {LIMIT_VARIABLE: self._environment[LIMIT_VARIABLE]}
        for place in self._places:
            port_file = self._port_file(place)
            port_file.unlink(missing_ok=True)
            words = [
                self._config.data.partitioned,
                "--server",
                str(place.server),
                "--listen",
                f"{place.address}:{place.port}",
                "--port-file",
                str(port_file),
                "--die-with-parent",
                str(os.getpid()),
                *_sources(self._config),
                *server_metrics(self._config, place.server),
                f"--log-format={self._config.cluster.log_format}",
                *security_words(self._config),
            ]
            # A signal between start and append would leave the server behind.
            with defer_signals():
                server = start_module(
                    "cache_server",
                    words,
                    os.environ | memory,
                    place.host,
                    log=port_file.with_suffix(".log"),
                    name=f"cache_server {place.server}",
                )
                self._servers.append(server)
        limit = self._config.cluster.start_timeout_seconds
        deadline = time.monotonic() + limit
        for place, process in zip(self._places, self._servers, strict=True):
            while (address := _read_address(process, self._port_file(place))) is None:
                check()
                self._require_servers()
                if time.monotonic() > deadline:
                    raise DeadlineExceeded(f"feature server {place.server}", "starting", limit)
                time.sleep(LOOK_SECONDS)
            self._addresses.append(address)
        return self._addresses

    def _port_file(self, place: Place) -> Path:
        return self._folder / f"{place.server}.json"

    def start_ranks(self, module: str, meeting: str, *, holds_store: bool = True) -> None:
        """Start the ranks, whose configuration is complete.

        Parameters
        ----------
        module: the Python module that each rank runs.
        meeting: "HOST:PORT" where ranks meet.
        holds_store: whether a launcher holds the store there; otherwise rank 0 does.
        """
        host, _, port = meeting.rpartition(":")
        common = {"MASTER_ADDR": host, "MASTER_PORT": port, "WORLD_SIZE": str(self._world)}
        common |= {"TORCHELASTIC_USE_AGENT_STORE": str(holds_store)} | self._environment
        common |= {DIE_WITH_PARENT: str(os.getpid()), CONFIG_VARIABLE: str(self._file)}
        per_server = self._config.cluster.ranks_per_server
        for place, index in itertools.product(self._places, range(per_server)):
            rank = place.server * per_server + index
            machine = [other for other in self._places if other.host == place.host]
            here = len(machine) * per_server
            local = machine.index(place) * per_server + index
            own = {"RANK": str(rank), RECORD: str(self._record(rank))}
            own |= {"LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(here)}
            threads = thread_settings(here, self._config.train.threads)
            with defer_signals():
                self._ranks[rank] = start_module(
                    module,
                    [str(self._file)],
                    os.environ | threads | common | own,
                    host=place.host,
                    log=place.log,
                    name=f"hopper rank {rank}",
                )

    def look(self) -> bool:
        """Return whether all ranks have ended well.

        RanksFailed tells that some have not, and that the first cause is known. ServerLost tells
        that a server has ended, DeadlineExceeded that a rank did not end after the others.
        """
        self._require_servers()
        for rank, process in self._ranks.items():
            if process.poll() is not None:
                self._ended.setdefault(rank, time.time())
        living = [rank for rank in self._ranks if rank not in self._ended]
        if not self._ended:
            return False
        now, limit = time.monotonic(), self._config.cluster.timeout_seconds
        failures = [failure for rank in self._ended if (failure := self._failure(rank)).exit_code]
        if failures:
            self._failed_at = min(self._failed_at, now)
            is_known = any(failure.is_cause for failure in failures)
            if is_known or not living or now > self._failed_at + _GRACE_SECONDS:
                self._require_servers()
                raise RanksFailed(failures)
        elif living:
            self._late_at = min(self._late_at, now + limit)
            if now > self._late_at:
                names = ", ".join(f"rank {rank} (pid {self._ranks[rank].pid})" for rank in living)
                raise DeadlineExceeded(names, "ending after the other ranks", limit)
        return not living

    def await_ranks(self, check: Callable[[], None]) -> None:
        """Return once :meth:`look` does with True."""
        while not self.look():
            check()
            time.sleep(LOOK_SECONDS)

    def _record(self, rank: int) -> Path:
        return self._records / f"{rank}.json"

    def _failure(self, rank: int) -> Failure:
        process = self._ranks[rank]
        pid, code = process.pid or 0, process.wait()
        return read_failure(rank, pid, code, self._record(rank), self._ended[rank])

    def _require_servers(self) -> None:
        """Raise ServerLost if a server that has served has ended."""
        for place, process, address in zip(
            self._places, self._servers, self._addresses, strict=False
        ):
            code = process.poll()
            if code is not None:
                raise ServerLost(
                    f"feature server {place.server} (pid {process.pid}, {address}) "
                    f"{how_it_ended(code)}; the ranks were ended"
                )


@contextmanager
def hold_store(host: str, port: int = 0) -> Iterator[str]:
    """Hold the store at which ranks meet, and yield its address, "HOST:PORT".

    Parameters
    ----------
    host: the name or address that ranks reach this machine by. The store listens there alone, or
        everywhere if that name leads elsewhere, as some machines' own names do.
    port: 0 = any free one.
    """
    # A process that starts no store need not import torch.
    from torch._C._distributed_c10d import TCPStore

    where = _own_address(host)
    try:
        # A store that binds a port itself would listen on every interface.
        with socket.create_server((where or "", port), backlog=socket.SOMAXCONN) as listening:
            port = int(listening.getsockname()[1])
            store = TCPStore(
                where or "127.0.0.1",
                port,
                is_master=True,
                timeout=timedelta(seconds=_STORE_SECONDS),
                wait_for_workers=False,
                master_listen_fd=listening.fileno(),
            )
            # The store now owns the socket and closes it.
            listening.detach()
    except OSError as error:
        raise ClusterError(
            f"ranks cannot meet at {host}:{port}: {error.strerror}; expected a free port of an "
            "address of this machine"
        ) from error
    try:
        yield f"{host}:{port}"
    finally:
        del store


def _own_address(host: str) -> str | None:
    """Return the IPv4 address that a name leads to, if it is one of this machine that others may
    mean by that name; otherwise None."""
    try:
        address = socket.gethostbyname(host)
        with socket.socket() as probe:
            probe.bind((address, 0))
    except OSError:
        return None
    is_misleading = address.startswith("127.") and host not in ("localhost", address)
    return None if is_misleading else address


def _sources(config: Config) -> Iterator[str]:
    """Yield the arguments that tell a server which plug-ins features come from, if ranks ask it."""
    plug_ins = config.data.features
    if plug_ins and not PartitionedGraph.open(config.data.partitioned).layout.reads_remote_rows:
        return
    for node_type, name in plug_ins.items():
        yield f"--features={node_type}={name}"
        options = config.data.features_options.get(node_type)
        if options:
            yield f"--features-options={node_type}={json.dumps(options)}"


def _read_address(process: Child, port_file: Path) -> str | None:
    """Return the address that a server listens on; None before it serves."""
    if port_file.exists():
        return str(json.loads(port_file.read_text())["address"])
    code = process.poll()
    if code is None:
        return None
    output = port_file.with_suffix(".log").read_text(errors="replace").strip()
    if not output:
        folder = port_file.parent
        free = shutil.disk_usage(folder).free
        output = f"it has not logged why; {folder} has {free:,} bytes of free space"
    raise ServerLost(
        f"feature server {port_file.stem} {how_it_ended(code)} before it served: {output}"
    )
