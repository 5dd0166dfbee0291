"""``hopper launch ray``: a run whose servers and ranks Ray places on the nodes of a cluster."""

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
from hopper.config import Config, change_config, read_config
from hopper.errors import (
    ClusterError,
    ConfigError,
    DeadlineExceeded,
    RequestError,
    RunEnded,
    ServerLost,
)
from hopper.ray_cluster import connect_to_ray, one_line
from hopper.signal_handlers import TO_END, handle_signals
from hopper.train.launch import prepare, require_main_thread, write_config
from hopper.train.rank_failures import Failure, explain, how_it_ended, was_killed
from hopper.train.ray_machine import PASSED_VARIABLES
from hopper.train.ray_placement import Placement, bundle_of, reserve_bundles
from hopper.train.restarts import check_restarts, run_again_where_lost
from hopper.train.run_lock import lock_run_folder
from hopper.train.run_result import RunResult
from hopper.train.security import security_of

_LOOK_SECONDS: Final = 0.1
_GRACE_SECONDS: Final = 10.0
"""How long ranks that miss another rank may take to end by themselves and say which one."""
_STOP_SECONDS: Final = 10.0
_MODULE: Final = "hopper.train"


def launch_on_ray(
    config: str | os.PathLike[str], overrides: Sequence[str], address: str, restarts: int
) -> RunResult:
    """Train on a Ray cluster: a feature server and its ranks for each partition.

    Parameters
    ----------
    address: "HOST:PORT" of the cluster; "" = a cluster on this machine, for this run alone.
    restarts: how many times a run that lost a rank, server or machine is started again.

    Raises
    ------
    RequestError: Ray is missing or has too few resources. Other errors are those of
        :func:`hopper.train`.
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
        _EndSignals().record() as end_signals,
    ):
        run_again_where_lost(
            lambda attempt: _RayRun(ray, attempt, run_dir, servers, end_signals).run(),
            *(checked, run_dir, restarts),
        )
    return RunResult.open(run_dir)


class _EndSignals:
    """Records signals to end. A handler that raised within Ray's own calls might go unnoticed."""

    def __init__(self) -> None:
        self._numbers: list[int] = []

    @contextmanager
    def record(self) -> Iterator[_EndSignals]:
        """Record signals while the context lasts."""
        with handle_signals(TO_END, lambda number, _frame: self._numbers.append(number)):
            yield self

    def check(self) -> None:
        """Raise RunEnded if a signal has arrived."""
        if self._numbers:
            raise RunEnded(signal.Signals(self._numbers[0]))


class _RayRun:
    """Starts servers and ranks once, watches them and ends them."""

    def __init__(
        self, ray: Any, config: Config, run_dir: Path, servers: int, end_signals: _EndSignals
    ) -> None:
        self._ray = ray
        self._config = config
        self._run_dir = run_dir
        self._servers = servers
        self._end_signals = end_signals
        self._machines: list[Any] = []
        self._places: list[dict[str, Any]] = []
        self._addresses: list[str] = []

    def run(self) -> None:
        """Start everything, wait for the ranks, and end everything.

        Raises
        ------
        ClusterError: says which process ended first, and how.
        RunEnded: a signal told this process to end.
        """
        environment = {name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ}
        limit = self._config.cluster.start_timeout_seconds
        check = self._end_signals.check
        with reserve_bundles(self._ray, self._config, self._servers, limit, check) as placement:
            self._machines = _start_actors(placement, json.dumps(environment))
            has_succeeded = False
            try:
                self._start(limit)
                self._watch()
                has_succeeded = True
            finally:
                self._stop(has_succeeded)

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
        arguments = [(file, _MODULE, self._servers, endpoint, n) for n in self._ranks_on_nodes()]
        self._ask_each("start_ranks", deadline, arguments)

    def _ranks_on_nodes(self) -> list[int]:
        """Return the number of ranks on each machine's node, with those of other machines there."""
        nodes = [place["node"] for place in self._places]
        return [nodes.count(node) * self._config.cluster.ranks_per_server for node in nodes]

    def _with_threads(self) -> Config:
        """Return the configuration, with a number of threads set if several machines share a node.

        A rank by itself knows only the ranks of its own machine.
        """
        shares = self._ranks_on_nodes()
        if self._config.train.threads or max(shares) == self._config.cluster.ranks_per_server:
            return self._config
        threads = [
            place["cores"] // ranks for place, ranks in zip(self._places, shares, strict=True)
        ]
        return change_config(self._config, train={"threads": max(1, min(threads))})

    def _check_places(self, file: str) -> None:
        """Refuse machines without the shared folder, and unprotected connections."""
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
        """Print the ranks' output until all ranks have ended well.

        Raises
        ------
        ServerLost, RankLost, RankFailed, ClusterError: says what ended first.
        DeadlineExceeded: a machine's ranks did not end after the others.
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
                failures = [Failure(**facts) for state in states for facts in state["failures"]]
                is_known = any(was_killed(failure) for failure in failures)
                if is_known or None not in codes or now > judged_at:
                    raise self._judge(failures, codes)
            elif 0 in codes:
                late_at = min(late_at, now + end_limit)
                if now > late_at:
                    ranks_text = f"{self._name(codes.index(None))}its ranks"
                    raise DeadlineExceeded(ranks_text, "ending after the other ranks", end_limit)
            time.sleep(_LOOK_SECONDS)

    def _find_lost_server(self, states: list[dict[str, Any]]) -> None:
        for index, state in enumerate(states):
            if state["server"] is not None:
                raise ServerLost(
                    f"feature server {index} (pid {state['pid']}, {self._addresses[index]}) "
                    f"{how_it_ended(state['server'])}; the ranks were ended"
                )

    def _judge(self, failures: list[Failure], codes: list[int | None]) -> ClusterError:
        """Return the error of the rank or machine that failed first and made the others fail."""
        if failures:
            ranks = self._config.cluster.ranks_per_server
            return explain(failures, lambda rank: self._name(rank // ranks))
        machine = next(i for i, code in enumerate(codes) if code)
        how = how_it_ended(codes[machine] or 1)
        return ClusterError(f"{self._name(machine)}the agent of its ranks {how}")

    def _name(self, machine: int) -> str:
        return f"machine {machine} ({self._places[machine]['address']}): "

    def _ask(self, method: str, deadline: float | None = None, *arguments: Any) -> list[str]:
        """Call a method of all machines with the same arguments, as :meth:`_ask_each`."""
        return self._ask_each(method, deadline, [arguments] * len(self._machines))

    def _ask_each(
        self, method: str, deadline: float | None, arguments: Sequence[tuple[Any, ...]]
    ) -> list[str]:
        """Call a method of all machines, with arguments for each.

        Parameters
        ----------
        deadline: the end of the start, ``cluster.start_timeout_seconds`` after its beginning; None
            = after the start, ``cluster.timeout_seconds`` from now.

        Raises
        ------
        ClusterError: a machine was lost.
        DeadlineExceeded: a machine does not answer.
        RunEnded: a signal told this process to end.
        """
        limits = self._config.cluster
        limit = limits.timeout_seconds if deadline is None else limits.start_timeout_seconds
        if deadline is None:
            deadline = time.monotonic() + limit
        calls = [
            getattr(machine, method).remote(*own_arguments)
            for machine, own_arguments in zip(self._machines, arguments, strict=True)
        ]
        while self._ray.wait(calls, num_returns=len(calls), timeout=_LOOK_SECONDS)[1]:
            self._end_signals.check()
            if time.monotonic() > deadline:
                ready = self._ray.wait(calls, num_returns=len(calls), timeout=0)[0]
                late = next(i for i, call in enumerate(calls) if call not in ready)
                raise DeadlineExceeded(f"machine {late}", f"answering Ray ({method})", limit)
        self._end_signals.check()
        return [self._result(machine, call) for machine, call in enumerate(calls)]

    def _result(self, machine: int, call: Any) -> str:
        try:
            return str(self._ray.get(call))
        except self._ray.exceptions.RayError as error:
            place = self._name(machine) if self._places else f"machine {machine}: "
            raise ClusterError(f"{place}lost: {one_line(error)}; the ranks were ended") from None

    def _stop(self, has_succeeded: bool) -> None:
        """End ranks, then servers, then the actors, and kill those that do not end."""
        for seconds in ((_STOP_SECONDS, 0.0), (0.0, _STOP_SECONDS if has_succeeded else 1.0)):
            calls = [machine.stop.remote(*seconds) for machine in self._machines]
            self._ray.wait(calls, num_returns=len(calls), timeout=_STOP_SECONDS + 5)
        for machine in self._machines:
            # Processes that an actor has started end with it.
            self._ray.kill(machine)


def _start_actors(placement: Placement, environment: str) -> list[Any]:
    return [placement.start(index, environment) for index in range(placement.servers)]


def _raise_lost(error: str) -> None:
    if error:
        raise ServerLost(error)
