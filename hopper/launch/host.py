"""``hopper host``: one machine's part of a run, its feature servers and their ranks.

The machines of a run either know each other's addresses beforehand, or a launcher holds a
connection to each. It then writes orders to standard input, a line of JSON each. What it is told
stands on lines of standard output after a mark, among those that ranks print.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Final

from cache_server.available_memory import memory_share
from cache_server.events import events
from cache_server.security import parse_address
from hopper.cluster.rank_store import machine_key
from hopper.cluster.security import check_security, config_errors, security_of
from hopper.config import Config, load_config
from hopper.errors import ConfigError, HopperError, RequestError
from hopper.features import open_graph
from hopper.files.whole_files import write_text
from hopper.launch.failures import RanksFailed, explain
from hopper.launch.supervisor import LOOK_SECONDS, Place, Supervisor, hold_store
from hopper.process.signal_handlers import recorded_signals
from hopper.process.thread_settings import count_cores, thread_settings
from hopper.train.run_lock import make_run_folder

HOSTS_FOLDER: Final = "hosts"
MARK: Final = "\x1e"
"""What precedes JSON for the launcher in a line of standard output."""
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
    addresses, count = config.cluster.servers, open_graph(config).book.servers
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
        Place(server, listen, parse_address(addresses[server], "cluster.servers")[1])
        for server in servers
    ]
    with config_errors():
        security_of(config).check_server(f"{listen}:0")
    run_dir = Path(config.train.run_dir).absolute()
    make_run_folder(run_dir / HOSTS_FOLDER)
    file = run_dir / HOSTS_FOLDER / f"{servers[0]}.json"
    write_text(file, config.model_dump_json(indent=1))
    store = parse_address(meeting, "--meet")
    world = count * config.cluster.ranks_per_server
    try:
        with (
            recorded_signals() as check,
            hold_store(*store) if 0 in servers else nullcontext(),
            Supervisor(config, run_dir, places, world, file=file) as supervisor,
        ):
            supervisor.start_servers(check)
            supervisor.start_ranks(_MODULE, meeting)
            supervisor.await_ranks(check)
    except RanksFailed as error:
        raise explain(error.failures) from error


def follow_launcher(config_file: Path, server: int, address: str) -> int:
    """Run a server of a run and its ranks here, as a launcher orders; return the exit code.

    Everything ends with the connection to the launcher, and if that is silent for too long.

    Parameters
    ----------
    config_file: the run's configuration, which the launcher writes.
    address: the address by which other machines reach this one, and which the server listens on.
    """
    launcher = _Launcher()

    def check() -> None:
        check_signals()
        launcher.hear()

    try:
        with recorded_signals() as check_signals, hold_store(address) as store:
            facts = {"address": address, "meeting": store, "node": machine_key()}
            facts |= {"cores": count_cores(), "sees": config_file.is_file()}
            launcher.tell(place=facts)
            while "machines" not in launcher.orders:
                check()
            orders = launcher.orders
            os.environ.update(orders["environment"])
            config = load_config(config_file)
            launcher.limit = max(SILENCE_SECONDS, config.cluster.timeout_seconds)
            world = orders["machines"] * config.cluster.ranks_per_server
            ranks_on_node, per_server = orders["ranks_on_node"], config.cluster.ranks_per_server
            environment = thread_settings(ranks_on_node, config.train.threads)
            environment |= memory_share(ranks_on_node // per_server)
            places, run_dir = [Place(server, address)], config_file.parent
            with Supervisor(config, run_dir, places, world, environment=environment) as supervisor:
                launcher.tell(serving=supervisor.start_servers(check)[0])
                while "release" not in orders:
                    check()
                    supervisor.look()
                supervisor.start_ranks(_MODULE, orders["meeting"])
                supervisor.await_ranks(check)
                launcher.tell(ended=True)
                while True:
                    check()
                    supervisor.look()
    except RanksFailed as error:
        launcher.tell(failures=[asdict(failure) for failure in error.failures])
    except _LauncherGone:
        return 0
    except HopperError as error:
        launcher.tell(error=str(error), kind=type(error).__name__)
    return 1


class _LauncherGone(Exception):
    """The launcher wants no more, is silent, or its connection has ended."""


class _Launcher:
    """The launcher at the other end of this process's standard input and output."""

    def __init__(self) -> None:
        self.limit = 600.0
        self.orders: dict[str, Any] = {}
        self._rest = b""
        self._heard_at = self._told_at = time.monotonic()

    def tell(self, **facts: Any) -> None:
        self._told_at = time.monotonic()
        try:
            print(f"{MARK}{json.dumps(facts)}", flush=True)
        except BrokenPipeError:
            # What is left to print has no reader.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise _LauncherGone from None

    def hear(self) -> None:
        """Take in what is ordered within a moment."""
        now = time.monotonic()
        if now > self._told_at + _LIVE_SECONDS:
            self.tell()
        if wait([_INPUT], LOOK_SECONDS):
            content = os.read(_INPUT, 1 << 16)
            if not content:
                raise _LauncherGone
            self._heard_at = now
            *lines, self._rest = (self._rest + content).split(b"\n")
            for line in lines:
                self.orders |= json.loads(line)
        if now > self._heard_at + self.limit or "stop" in self.orders:
            raise _LauncherGone
