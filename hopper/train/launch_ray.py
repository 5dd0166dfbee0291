"""``hopper launch ray``: a run whose servers and ranks are placed on the nodes of a Ray cluster."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from cache_server.errors import SecurityError
from hopper.config import Config, read_config
from hopper.errors import (
    ClusterError,
    ConfigError,
    DeadlineExceeded,
    RequestError,
    RunEnded,
    ServerLost,
)
from hopper.ray_cluster import connect_to_ray, one_line
from hopper.signal_handlers import TO_END, handled
from hopper.train.launch import prepare, require_main_thread, write_config
from hopper.train.rank_failures import Failure, explain, how_it_ended, was_killed
from hopper.train.ray_machine import HANDED_ON
from hopper.train.ray_placement import Placement, bundle_of, placed
from hopper.train.restarts import check_restarts, run_again_where_lost
from hopper.train.run_lock import lock_run_folder
from hopper.train.run_result import RunResult
from hopper.train.security import security_of

_LOOK_SECONDS: Final = 0.1
_GRACE_SECONDS: Final = 10.0
"""how long the machines of ranks that miss another have to end by themselves, and to tell whom"""
_STOP_SECONDS: Final = 10.0
_MODULE: Final = "hopper.train"


def launch_on_ray(
    config: str | os.PathLike[str], overrides: Sequence[str], address: str, restarts: int
) -> RunResult:
    """Train on a Ray cluster: a feature server and its ranks for each partition.

    Parameters
    ----------
    address: "HOST:PORT" of the cluster; "" = one of this machine, for as long as the run lasts.
    restarts: how many times a run that lost a rank, server or machine is started again.

    Raises
    ------
    As :func:`hopper.train`; RequestError also where Ray is missing or too small.
    """
    require_main_thread("hopper launch ray")
    check_restarts(restarts)
    checked = read_config(config, overrides)
    if checked.cluster.servers:
        raise ConfigError(
            "cluster.servers: hopper launch ray starts the servers; expected none, given "
            f"{len(checked.cluster.servers)}"
        )
    graph, run_dir = prepare(checked)
    option = f"--address {address}" if address else "launch ray"
    servers = graph.book.servers
    cpus = servers * int(bundle_of(checked, 0)["CPU"])
    with (
        lock_run_folder(run_dir, "launcher"),
        connect_to_ray(option, "HOST:PORT", address, cpus) as ray,
        _Told().noted() as told,
    ):
        run_again_where_lost(
            lambda own: _RayRun(ray, own, run_dir, servers, told).run(),
            *(checked, run_dir, restarts),
        )
    return RunResult.open(run_dir)


class _Told:
    """Signals to end, noted: an exception that is raised within Ray's own calls may be lost."""

    def __init__(self) -> None:
        self._numbers: list[int] = []

    @contextmanager
    def noted(self) -> Iterator[_Told]:
        """Note signals for a while."""
        with handled(TO_END, lambda number, _frame: self._numbers.append(number)):
            yield self

    def check(self) -> None:
        """Raise RunEnded if one has arrived."""
        if self._numbers:
            name = signal.Signals(self._numbers[0]).name
            raise RunEnded(f"ended by {name}; ranks and servers were ended")


class _RayRun:
    """One start of servers and ranks, its watch and its end."""

    def __init__(self, ray: Any, config: Config, run_dir: Path, servers: int, told: _Told) -> None:
        self._ray = ray
        self._config = config
        self._run_dir = run_dir
        self._servers = servers
        self._told = told
        self._machines: list[Any] = []
        self._places: list[dict[str, Any]] = []
        self._addresses: list[str] = []

    def run(self) -> None:
        """Start everything, wait for the ranks, and take everything down.

        Raises
        ------
        ClusterError: what ended first, and how; RunEnded: this process was told to end.
        """
        environment = {name: os.environ[name] for name in HANDED_ON if name in os.environ}
        limit = self._config.cluster.start_timeout_seconds
        with placed(self._ray, self._config, self._servers, limit, self._told.check) as placement:
            self._machines = _actors(placement, json.dumps(environment))
            is_well = False
            try:
                self._start(limit)
                self._watch()
                is_well = True
            finally:
                self._stop(is_well)

    def _start(self, limit: float) -> None:
        deadline = time.monotonic() + limit
        file = str(write_config(self._config, self._run_dir, []))
        self._places = [json.loads(text) for text in self._ask("place", deadline, file)]
        self._check_places(file)
        for reply in self._ask("start_server", deadline, file):
            _raise_lost(json.loads(reply)["error"])
        while not self._addresses or "" in self._addresses:
            replies = [json.loads(text) for text in self._ask("find_server", deadline, file)]
            for reply in replies:
                _raise_lost(reply["error"])
            self._addresses = [reply["address"] for reply in replies]
            if time.monotonic() > deadline:
                late = self._addresses.index("")
                raise DeadlineExceeded(f"feature server {late}", "starting", limit)
            time.sleep(_LOOK_SECONDS)
        config = self._with_threads()
        write_config(config, self._run_dir, self._addresses)
        endpoint = f"{self._places[0]['address']}:{self._places[0]['port']}"
        words = [(file, _MODULE, self._servers, endpoint, n) for n in self._ranks_on_nodes()]
        self._ask_each("start_ranks", deadline, words)

    def _ranks_on_nodes(self) -> list[int]:
        """By machine: the ranks of all machines that share its node."""
        nodes = [place["node"] for place in self._places]
        return [nodes.count(node) * self._config.cluster.ranks_per_server for node in nodes]

    def _with_threads(self) -> Config:
        """The configuration; with threads for each rank where machines share a node, since a rank
        knows only of those of its own machine."""
        shares = self._ranks_on_nodes()
        if self._config.train.threads or max(shares) == self._config.cluster.ranks_per_server:
            return self._config
        values = self._config.model_dump()
        each = [place["cores"] // ranks for place, ranks in zip(self._places, shares, strict=True)]
        values["train"]["threads"] = max(1, min(each))
        return Config.model_validate(values)

    def _check_places(self, file: str) -> None:
        """Refuse machines that do not share the file system, and to talk in the open."""
        for machine, place in enumerate(self._places):
            if not place["sees"]:
                raise RequestError(
                    f"train.run_dir: {self._name(machine)}does not find {file}; expected a folder "
                    "that all nodes of the Ray cluster share"
                )
        security = security_of(self._config)
        listening = [f"{place['address']}:0" for place in self._places]
        try:
            for address in listening:
                security.check_server(address)
            security.check_client(listening)
        except SecurityError as error:
            raise ConfigError(f"cluster.{error}") from error

    def _watch(self) -> None:
        """Hand on what ranks print until all have ended well.

        Raises
        ------
        ServerLost, RankLost, RankFailed, ClusterError: what ended first; DeadlineExceeded: a
        machine's ranks did not end after the others'.
        """
        end_limit = self._config.cluster.timeout_seconds
        judged_at = late_at = float("inf")
        while True:
            states = [json.loads(text) for text in self._ask("look")]
            for state in states:
                print(state["out"], end="", flush=True)
                print(state["err"], end="", file=sys.stderr, flush=True)
            self._find_lost_server(states)
            codes, now = [state["agent"] for state in states], time.monotonic()
            if not any(code != 0 for code in codes):
                return
            if any(codes):
                judged_at = min(judged_at, now + _GRACE_SECONDS)
                failures = [Failure(**each) for state in states for each in state["failures"]]
                is_known = any(was_killed(each) for each in failures)
                if is_known or None not in codes or now > judged_at:
                    raise self._judge(failures, codes)
            elif 0 in codes:
                late_at = min(late_at, now + end_limit)
                if now > late_at:
                    who = f"{self._name(codes.index(None))}its ranks"
                    raise DeadlineExceeded(who, "ending after the other ranks", end_limit)
            time.sleep(_LOOK_SECONDS)

    def _find_lost_server(self, states: list[dict[str, Any]]) -> None:
        for index, state in enumerate(states):
            if state["server"] is not None:
                raise ServerLost(
                    f"feature server {index} (pid {state['pid']}, {self._addresses[index]}) "
                    f"{how_it_ended(state['server'])}; the ranks were ended"
                )

    def _judge(self, failures: list[Failure], codes: list[int | None]) -> ClusterError:
        """What failed first; the rest failed in consequence."""
        if failures:
            ranks = self._config.cluster.ranks_per_server
            return explain(failures, lambda rank: self._name(rank // ranks))
        machine = next(i for i, code in enumerate(codes) if code)
        how = how_it_ended(codes[machine] or 1)
        return ClusterError(f"{self._name(machine)}the agent of its ranks {how}")

    def _name(self, machine: int) -> str:
        return f"machine {machine} ({self._places[machine]['address']}): "

    def _ask(self, method: str, deadline: float | None = None, *words: Any) -> list[str]:
        return self._ask_each(method, deadline, [words] * len(self._machines))

    def _ask_each(
        self, method: str, deadline: float | None, words: Sequence[tuple[Any, ...]]
    ) -> list[str]:
        """Call a method of all machines.

        Raises
        ------
        ClusterError: a machine is lost; DeadlineExceeded: it does not answer; RunEnded.
        """
        limit = self._config.cluster.timeout_seconds
        if deadline is None:
            deadline = time.monotonic() + limit
        calls = [
            getattr(machine, method).remote(*each)
            for machine, each in zip(self._machines, words, strict=True)
        ]
        while self._ray.wait(calls, num_returns=len(calls), timeout=_LOOK_SECONDS)[1]:
            self._told.check()
            if time.monotonic() > deadline:
                ready = self._ray.wait(calls, num_returns=len(calls), timeout=0)[0]
                late = next(i for i, call in enumerate(calls) if call not in ready)
                raise DeadlineExceeded(f"machine {late}", f"answering Ray ({method})", limit)
        self._told.check()
        return [self._result(machine, call) for machine, call in enumerate(calls)]

    def _result(self, machine: int, call: Any) -> str:
        try:
            return str(self._ray.get(call))
        except self._ray.exceptions.RayError as error:
            place = self._name(machine) if self._places else f"machine {machine}: "
            raise ClusterError(f"{place}lost: {one_line(error)}; the ranks were ended") from None

    def _stop(self, is_well: bool) -> None:
        """End ranks, then servers, then the actors; what does not end is killed."""
        for seconds in ((_STOP_SECONDS, 0.0), (0.0, _STOP_SECONDS if is_well else 1.0)):
            calls = [machine.stop.remote(*seconds) for machine in self._machines]
            self._ray.wait(calls, num_returns=len(calls), timeout=_STOP_SECONDS + 5)
        for machine in self._machines:
            # What it has started and not ended ends with it.
            self._ray.kill(machine)


def _actors(placement: Placement, environment: str) -> list[Any]:
    return [placement.start(index, environment) for index in range(placement.servers)]


def _raise_lost(error: str) -> None:
    if error:
        raise ServerLost(error)
