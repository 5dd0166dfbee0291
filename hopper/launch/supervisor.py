"""The feature servers and ranks that this process starts: starting, watching and ending them."""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Final

from hopper.config import Config
from hopper.device.kernel_threads import thread_settings
from hopper.errors import ClusterError, DeadlineExceeded, ServerLost
from hopper.files.scratch import scratch_folder
from hopper.launch.failures import Failure, RanksFailed, how_it_ended, read_failure
from hopper.launch.template import ForkedRank, Template, adopt_orphans
from hopper.partition import PartitionedGraph
from hopper.process.signal_handlers import defer_signals
from hopper.train.rank_failures import RECORD
from hopper.train.run_files import CONFIG_FILE
from hopper.train.run_metrics import server_metrics
from hopper.train.security import security_words

SERVERS_FOLDER: Final = "servers"
LOOK_SECONDS: Final = 0.02
_END_SECONDS: Final = 1.0
"""How long a process may take to end after a failure. A suspended one never reacts."""
_DRAIN_SECONDS: Final = 10.0
_STORE_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Place:
    """The place where a server and its ranks run.

    Attributes
    ----------
    server: the number of the server.
    address, port: where it listens; port 0 = any free one.
    prefix: words in front of every command that starts a process there.
    """

    server: int = 0
    address: str = "127.0.0.1"
    port: int = 0
    prefix: tuple[str, ...] = ()


class Supervisor:
    """Feature servers and their ranks, in a context after which all of them have ended.

    They end with this process too, however it ends. :meth:`start` starts them, :meth:`find_servers`
    says where servers listen, :meth:`release` lets ranks read the configuration that names these,
    and :meth:`look` says whether the ranks are done.

    Parameters
    ----------
    config: a configuration that has passed all checks. Where it names servers, none is started.
    run_dir: the folder of the run, for the files of servers and ranks.
    places: the places of the run that this process serves.
    world: number of ranks of the whole run.
    apart: whether each place is a machine of its own; otherwise all are this machine.
    grace: seconds that ranks which only miss another one may take to say which, before they are
        believed.
    environment: environment variables of ranks, beside those of OpenMP.
    file: the configuration that ranks read; by default the one of the run's folder.
    """

    def __init__(
        self,
        config: Config,
        run_dir: Path,
        places: Sequence[Place],
        world: int,
        *,
        apart: bool = False,
        grace: float = _END_SECONDS,
        environment: Mapping[str, str] | None = None,
        file: Path | None = None,
    ) -> None:
        self._config = config
        self._file = file or run_dir / CONFIG_FILE
        self._run_dir = run_dir
        self._places = tuple(places)
        self._world = world
        self._apart = apart
        self._grace = grace
        self._environment = dict(environment or {})
        self._exits = ExitStack()
        self._servers: list[subprocess.Popen[bytes]] = []
        self._addresses: list[str] = []
        self._adopting = ExitStack()
        self._templates: dict[Template, dict[int, dict[str, str]]] = {}
        self._ranks: dict[int, ForkedRank] = {}
        self._ended: dict[int, float] = {}
        self._deadline = math.inf
        self._failed_at = self._late_at = math.inf

    def __enter__(self) -> Supervisor:
        self._records = self._exits.enter_context(scratch_folder("hopper-rank-records-"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        with defer_signals():
            stop_processes([template.process for template in self._templates], _END_SECONDS)
            for template in list(self._templates):
                self._take_ranks(template)
            self._adopting.close()
            stop_processes(list(self._ranks.values()), _END_SECONDS)
            stop_processes(self._servers, _DRAIN_SECONDS if kind is None else _END_SECONDS)
            self._exits.close()

    def start(
        self,
        module: str,
        meeting: str,
        output: Callable[[Place], tuple[IO[bytes], IO[bytes]]] | None = None,
        *,
        holds_store: bool = True,
        serve: bool = True,
    ) -> None:
        """Start servers, and import what ranks need, which are then made by :meth:`release`.

        Parameters
        ----------
        module: the Python module that each rank runs.
        meeting: "HOST:PORT" where ranks meet.
        output: returns the files for what ranks of a place print to stdout and stderr; None = they
            print where this process does.
        holds_store: whether a launcher holds the store there; otherwise rank 0 does.
        serve: whether to start servers, unless the configuration names running ones.
        """
        self._deadline = time.monotonic() + self._config.cluster.start_timeout_seconds
        if serve:
            self._start_servers()
        host, _, port = meeting.rpartition(":")
        meet = {"MASTER_ADDR": host, "MASTER_PORT": port, "WORLD_SIZE": str(self._world)}
        meet["TORCHELASTIC_USE_AGENT_STORE"] = str(holds_store)
        per_server = self._config.cluster.ranks_per_server
        machines = [[place] for place in self._places] if self._apart else [self._places]
        here = per_server * len(machines[0])
        common = os.environ | thread_settings(here, self._config.train.threads) | meet
        common |= {"LOCAL_WORLD_SIZE": str(here)} | self._environment
        for places in machines:
            ranks = [place.server * per_server + i for place in places for i in range(per_server)]
            own = {
                rank: common
                | {"RANK": str(rank), "LOCAL_RANK": str(local), RECORD: str(self._record(rank))}
                for local, rank in enumerate(ranks)
            }
            files = output(places[0]) if output else (None, None)
            with defer_signals():
                template = Template(module, self._file, common, places[0].prefix, files)
                self._templates[template] = own

    def _start_servers(self) -> None:
        folder = self._run_dir / SERVERS_FOLDER
        folder.mkdir(exist_ok=True)
        for place in self._places:
            # A signal between start and append would leave the server behind.
            with defer_signals():
                self._servers.append(_start_server(self._config, folder, place))

    def find_servers(self) -> list[str] | None:
        """Return "host:port" of each server started here, in order; None before all of them serve.

        Raises
        ------
        ServerLost: a server ended before it served; quotes its output.
        DeadlineExceeded: a server did not begin to serve in time.
        """
        folder = self._run_dir / SERVERS_FOLDER
        for place, process in list(zip(self._places, self._servers, strict=False))[
            len(self._addresses) :
        ]:
            address = _read_address(process, folder, place.server)
            if address is None:
                if time.monotonic() > self._deadline:
                    limit = self._config.cluster.start_timeout_seconds
                    raise DeadlineExceeded(f"feature server {place.server}", "starting", limit)
                return None
            self._addresses.append(address)
        return self._addresses

    def release(self) -> None:
        """Make the ranks: their configuration is complete."""
        self._deadline = time.monotonic() + self._config.cluster.start_timeout_seconds
        self._adopting.enter_context(adopt_orphans())
        for template, ranks in self._templates.items():
            template.fork(self._file, list(ranks.values()))

    def look(self) -> bool:
        """Return whether all ranks have ended well.

        Raises
        ------
        ServerLost: a server has ended.
        RanksFailed: ranks have ended with an error or by a signal, and the first cause is known.
        DeadlineExceeded: a rank did not end after the others.
        """
        self._require_servers()
        if self._templates and not self._meet_ranks():
            return False
        codes = {rank: process.poll() for rank, process in self._ranks.items()}
        now = time.monotonic()
        for rank, code in codes.items():
            if code is not None:
                self._ended.setdefault(rank, time.time())
        living = [rank for rank, code in codes.items() if code is None]
        if not any(codes.values()) and not living:
            return True
        if any(codes.values()):
            self._failed_at = min(self._failed_at, now)
            failures = [self._failure(rank) for rank in self._ended if codes[rank]]
            is_known = any(failure.is_cause for failure in failures)
            if is_known or not living or now > self._failed_at + self._grace:
                self._require_servers()
                raise RanksFailed(failures)
        elif len(living) < len(codes):
            limit = self._config.cluster.timeout_seconds
            self._late_at = min(self._late_at, now + limit)
            if now > self._late_at:
                names = ", ".join(f"rank {rank} (pid {self._ranks[rank].pid})" for rank in living)
                raise DeadlineExceeded(names, "ending after the other ranks", limit)
        return False

    def await_servers(self, check: Callable[[], None]) -> list[str]:
        """Return what :meth:`find_servers` does, once all servers serve and if no rank has ended.

        Parameters
        ----------
        check: called between looks; may raise.
        """
        while (addresses := self.find_servers()) is None:
            check()
            self.look()
            time.sleep(LOOK_SECONDS)
        return addresses

    def await_ranks(self, check: Callable[[], None]) -> None:
        """Return once :meth:`look` does with True."""
        while not self.look():
            check()
            time.sleep(LOOK_SECONDS)

    def _meet_ranks(self) -> bool:
        """Take in the ranks of templates that have ended; return whether these are all.

        Raises
        ------
        RanksFailed: a template ended before it had made its ranks.
        DeadlineExceeded: a template did not make its ranks in time.
        """
        for template in list(self._templates):
            code = template.process.poll()
            if code is not None and (missing := self._take_ranks(template)):
                rank, pid = min(missing), template.process.pid
                record = self._record(rank)
                raise RanksFailed([read_failure(rank, pid, code, record, time.time())])
        if self._templates and time.monotonic() > self._deadline:
            rank = min(min(ranks) for ranks in self._templates.values())
            limit = self._config.cluster.start_timeout_seconds
            raise DeadlineExceeded(f"rank {rank}", "starting", limit)
        if not self._templates:
            self._adopting.close()
        return not self._templates

    def _take_ranks(self, template: Template) -> set[int]:
        """Take in the ranks of a template that has ended; return those that it has not made."""
        ranks = self._templates.pop(template)
        self._ranks |= dict(zip(ranks, template.close(), strict=False))
        return ranks.keys() - self._ranks.keys()

    def _record(self, rank: int) -> Path:
        return self._records / f"{rank}.json"

    def _failure(self, rank: int) -> Failure:
        process = self._ranks[rank]
        code = process.wait()
        return read_failure(rank, process.pid, code, self._record(rank), self._ended[rank])

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


class MeetingPoint:
    """The store at which ranks meet, held by this process as long as the context lasts.

    Parameters
    ----------
    host: the name or address that ranks reach this machine by. The store listens there alone, or
        everywhere if that name leads elsewhere, as some machines' own names do.
    port: 0 = any free one.

    Attributes
    ----------
    address: "HOST:PORT".

    Raises
    ------
    ClusterError: nobody can listen there.
    """

    def __init__(self, host: str, port: int = 0) -> None:
        # Imports torch, which a process that starts none need not do.
        from datetime import timedelta

        from torch._C._distributed_c10d import TCPStore

        where = _own_address(host)
        try:
            # A store that binds a port itself would listen on every interface.
            with socket.create_server((where or "", port), backlog=socket.SOMAXCONN) as listening:
                port = int(listening.getsockname()[1])
                self._store = TCPStore(
                    *(where or "127.0.0.1", port),
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
        self.address = f"{host}:{port}"

    def __enter__(self) -> MeetingPoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType
    ) -> None:
        del self._store


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


def stop_processes(processes: Sequence[subprocess.Popen[bytes] | ForkedRank], limit: float) -> None:
    """Ask all processes to end; kill those that have not ended after ``limit`` seconds."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + limit
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS / 4)
    for process in processes:
        process.kill()
        process.wait()


def _start_server(config: Config, folder: Path, place: Place) -> subprocess.Popen[bytes]:
    """Start a feature server, whose output and address are written to the folder."""
    index = place.server
    (folder / f"{index}.json").unlink(missing_ok=True)
    with (folder / f"{index}.log").open("ab") as log:
        return subprocess.Popen(
            [
                *place.prefix,
                *(sys.executable, "-P", "-m", "cache_server", config.data.partitioned),
                *("--server", str(index), "--listen", f"{place.address}:{place.port}"),
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


def _read_address(process: subprocess.Popen[bytes], folder: Path, index: int) -> str | None:
    """Return the address that a server listens on; None before it serves."""
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
