"""``hopper host``: one machine's part of a run, its feature servers and their ranks.

The machines of a run either know each other's addresses beforehand, or a launcher holds a
connection to each. It then writes orders to standard input, and reads lines from standard output,
all of them JSON.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Final

from cache_server.errors import SecurityError
from cache_server.events import events
from hopper.cluster.rank_store import machine_key
from hopper.config import Config, load_config
from hopper.device.kernel_threads import count_cores, thread_settings
from hopper.errors import ConfigError, HopperError, RequestError
from hopper.features import open_graph
from hopper.files.scratch import scratch_folder
from hopper.files.whole_files import write_text
from hopper.launch.failures import RanksFailed, explain
from hopper.launch.supervisor import LOOK_SECONDS, MeetingPoint, Place, Supervisor
from hopper.process.signal_handlers import EndSignals
from hopper.train.run_lock import make_run_folder
from hopper.train.security import check_security, security_of

HOSTS_FOLDER: Final = "hosts"
_MODULE: Final = "hopper.train"
_INPUT: Final = 0
_LIVE_SECONDS: Final = 1.0
SILENCE_SECONDS: Final = 30.0
"""How long the other end of a connection may be silent at least, before it is given up."""


def run_host(config: Config, servers: Sequence[int], meeting: str, listen: str) -> None:
    """Run some servers of a run and their ranks on this machine, until the ranks have ended.

    Parameters
    ----------
    config: names the addresses of all servers of the run.
    servers: the numbers of the servers that run here.
    meeting: "HOST:PORT" where all ranks meet. The machine of server 0 listens there.
    listen: the address that servers listen on, at the ports that the configuration names.

    Raises
    ------
    ConfigError, RequestError: names the key or option, what was expected and what came.
    ServerLost, RankLost, ClusterError: says which process ended first, and how.
    RunEnded: a signal told this process to end.
    """
    events.set_format(config.cluster.log_format, process="launcher")
    addresses, graph = config.cluster.servers, open_graph(config)
    count = graph.book.servers
    if len(addresses) != count:
        raise ConfigError(
            f"cluster.servers: expected the addresses of {count} servers, given {len(addresses)}"
        )
    if wrong := [server for server in servers if not 0 <= server < count]:
        raise RequestError(f"--server: expected a number from 0 to {count - 1}, given {wrong[0]}")
    if not config.train.run_dir:
        raise ConfigError("train.run_dir: name one: machines cannot agree on one by themselves")
    check_security(config)
    places = [
        Place(server, listen, split_address(addresses[server], "cluster.servers")[1])
        for server in servers
    ]
    try:
        security_of(config).check_server(f"{listen}:0")
    except SecurityError as error:
        raise ConfigError(f"cluster.{error}") from error
    run_dir = Path(config.train.run_dir).absolute()
    make_run_folder(run_dir / HOSTS_FOLDER)
    file = run_dir / HOSTS_FOLDER / f"{servers[0]}.json"
    write_text(file, config.model_dump_json(indent=1))
    host, port = split_address(meeting, "--meet")
    world = count * config.cluster.ranks_per_server
    try:
        with (
            EndSignals() as signals,
            MeetingPoint(host, port) if 0 in servers else nullcontext(),
            Supervisor(config, run_dir, places, world, file=file) as supervisor,
        ):
            supervisor.start(_MODULE, meeting)
            supervisor.await_servers(signals.check)
            supervisor.release()
            supervisor.await_ranks(signals.check)
    except RanksFailed as error:
        raise explain(error.failures) from error


def split_address(text: str, option: str) -> tuple[str, int]:
    """Split "HOST:PORT".

    Raises
    ------
    RequestError: it is something else; names the option.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise RequestError(f"{option}: expected HOST:PORT, given {text!r}")
    return host, int(port)


def follow_launcher(config_file: Path, server: int, address: str) -> int:
    """Run a server of a run and its ranks here, as a launcher orders; return the exit code.

    Everything ends with the connection to the launcher, and if that is silent for too long.

    Parameters
    ----------
    config_file: the run's configuration, which the launcher writes.
    address: the address by which other machines reach this one, and which the server listens on.
    """
    launcher = _Launcher()
    try:
        with EndSignals() as signals, MeetingPoint(address) as meeting, ExitStack() as exits:
            facts = {"address": address, "meeting": meeting.address, "node": machine_key()}
            facts |= {"cores": count_cores(), "sees": config_file.is_file()}
            launcher.tell(place=facts)
            while (order := launcher.hear()) is None:
                signals.check()
            os.environ.update(order["environment"])
            config = load_config(config_file)
            launcher.limit = max(SILENCE_SECONDS, config.cluster.timeout_seconds)
            world = order["machines"] * config.cluster.ranks_per_server
            threads = thread_settings(order["ranks_on_node"], config.train.threads)
            place = Place(server, address)
            run_dir = config_file.parent
            folder = exits.enter_context(scratch_folder("hopper-host-"))
            output = _Output(folder, launcher)
            with Supervisor(config, run_dir, [place], world, environment=threads) as supervisor:
                try:
                    supervisor.start(_MODULE, order["meeting"], output.files_of)
                    _follow(launcher, supervisor, signals, output)
                finally:
                    output.tell()
    except RanksFailed as error:
        launcher.tell(failures=[asdict(failure) for failure in error.failures])
    except _LauncherGone:
        return 1
    except HopperError as error:
        launcher.tell(error=str(error), kind=type(error).__name__)
    else:
        return 0
    return 1


def _follow(
    launcher: _Launcher, supervisor: Supervisor, signals: EndSignals, output: _Output
) -> None:
    """Follow orders until the launcher wants no more; say what happens here."""
    has_served = has_ended = False
    while True:
        order = launcher.hear()
        signals.check()
        if order is not None and order.get("release"):
            supervisor.release()
        elif order is not None and order.get("stop"):
            return
        if not has_served and (addresses := supervisor.find_servers()):
            has_served = True
            launcher.tell(serving=addresses[0])
        if supervisor.look() and not has_ended:
            has_ended = True
            output.tell()
            launcher.tell(ended=True)
        output.tell()


class _LauncherGone(Exception):
    """The connection to the launcher has ended, or it is silent."""


class _Launcher:
    """The launcher at the other end of this process's standard input and output."""

    def __init__(self) -> None:
        self.limit = 600.0
        self._rest = b""
        self._orders: list[dict[str, Any]] = []
        self._heard_at = self._told_at = time.monotonic()

    def tell(self, **facts: Any) -> None:
        """Send a line."""
        self._told_at = time.monotonic()
        try:
            print(json.dumps(facts), flush=True)
        except BrokenPipeError:
            # What is left to print has no reader.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise _LauncherGone from None

    def hear(self) -> dict[str, Any] | None:
        """Return the next order, if one comes within a moment."""
        now = time.monotonic()
        if now > self._told_at + _LIVE_SECONDS:
            self.tell()
        if not self._orders and select.select([_INPUT], [], [], LOOK_SECONDS)[0]:
            content = os.read(_INPUT, 1 << 16)
            if not content:
                raise _LauncherGone
            self._heard_at = now
            *lines, self._rest = (self._rest + content).split(b"\n")
            self._orders += [order for line in lines if (order := json.loads(line))]
        if now > self._heard_at + self.limit:
            raise _LauncherGone
        return self._orders.pop(0) if self._orders else None


class _Output:
    """What the ranks of this machine print, on its way to the launcher."""

    def __init__(self, folder: Path, launcher: _Launcher) -> None:
        self._launcher = launcher
        self._files = (folder / "out").open("wb"), (folder / "err").open("wb")
        self._readers = (folder / "out").open("rb"), (folder / "err").open("rb")

    def files_of(self, _place: Place) -> tuple[IO[bytes], IO[bytes]]:
        """Return the files that ranks print to."""
        return self._files

    def tell(self) -> None:
        """Send what has been printed since the last call."""
        with suppress(_LauncherGone):
            for name, reader in zip(("out", "err"), self._readers, strict=True):
                if text := reader.read().decode(errors="replace"):
                    self._launcher.tell(**{name: text})
