"""A run on several machines whose launcher drives a ``hopper host`` on each of them."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, Protocol

from hopper.cluster.security import config_errors, security_of
from hopper.config import Config, change_config, read_config
from hopper.errors import ClusterError, ConfigError, DeadlineExceeded, RequestError, ServerLost
from hopper.launch.failures import Failure, explain, how_it_ended
from hopper.launch.host import MARK, SILENCE_SECONDS
from hopper.launch.processes import stop_processes
from hopper.launch.run import train_with, write_config
from hopper.launch.supervisor import LOOK_SECONDS
from hopper.partition import PartitionedGraph
from hopper.process.signal_handlers import defer_signals, recorded_signals
from hopper.train.run_metrics import RESTARTS
from hopper.train.run_result import RunResult

THREADS: Final = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY")
PASSED_VARIABLES: Final = (*THREADS, "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "PYTHONPATH")
"""Environment variables that servers and ranks of all machines get from the launcher."""
_GRACE_SECONDS: Final = 10.0
"""How long ranks that miss another rank may take to end by themselves and say which one."""
_LIVE_SECONDS: Final = 1.0
_DRAIN_SECONDS: Final = 1.0
_STOP_SECONDS: Final = 15.0


class Channel(Protocol):
    """A connection to a machine's ``hopper host``. Only :meth:`close` waits for it."""

    label: str
    """what precedes a line that the machine prints"""

    def send(self, line: str) -> None:
        """Send a line to its standard input."""

    def receive(self) -> list[list[str]]:
        """Return the lines that have come, each after the stream's name, "stdout" or "stderr"."""

    def how_ended(self) -> str | None:
        """Say how it ended; None while it lives."""

    def close(self, limit: float) -> None:
        """End it within some seconds, and with it all that it has started."""


OpenChannels = Callable[[Config, int, Path], AbstractContextManager[Sequence[Channel]]]
"""Opens a channel to the machine of each of so many servers, for a configuration and the file of
that name on all machines."""


def train_on_machines(
    config: str | os.PathLike[str],
    overrides: Sequence[str],
    restarts: int,
    command: str,
    open_channels: OpenChannels,
    variables: Sequence[str] = (),
) -> RunResult:
    """Train with the server of each partition, and its ranks, on a machine of its own.

    Parameters
    ----------
    restarts: how many times a run that lost a rank, server or machine is started again.
    command: what asks for the run, for errors, which are those of :func:`hopper.train`.
    variables: environment variables that are passed on besides :data:`PASSED_VARIABLES`.
    """
    checked = read_config(config, overrides)
    if checked.cluster.servers:
        raise ConfigError(
            f"cluster.servers: {command} starts the servers; expected none, given "
            f"{len(checked.cluster.servers)}"
        )

    def run(attempt: Config, graph: PartitionedGraph, run_dir: Path) -> None:
        names = {*PASSED_VARIABLES, RESTARTS, *variables} & os.environ.keys()
        environment = {name: os.environ[name] for name in names}
        file = write_config(attempt, run_dir, [])
        with (
            open_channels(attempt, graph.book.servers, file) as channels,
            recorded_signals() as check,
        ):
            _Run(channels, attempt, file, check).run(environment)

    return train_with(run, checked, restarts, command)


class _Machine:
    """What is known of a machine, from the lines of its ``hopper host``."""

    def __init__(self, index: int, channel: Channel) -> None:
        self.index = index
        self.channel = channel
        self.facts: dict[str, Any] = {}
        self.lost: ClusterError | None = None
        self.heard_at = time.monotonic()
        self._begun = ""

    @property
    def name(self) -> str:
        place = self.facts.get("place")
        return f"machine {self.index} ({place['address']})" if place else f"machine {self.index}"

    @property
    def error(self) -> ClusterError | None:
        """What ended its server or itself."""
        if "error" not in self.facts:
            return None
        text = str(self.facts["error"])
        is_server = self.facts["kind"] == ServerLost.__name__
        return ServerLost(text) if is_server else ClusterError(f"{self.name}: {text}")

    @property
    def failures(self) -> list[Failure]:
        return [Failure(**failure) for failure in self.facts.get("failures", ())]

    @property
    def has_failed(self) -> bool:
        return bool(self.lost or self.facts.keys() & {"error", "failures"})

    def read(self) -> None:
        """Take in what the machine has said, and print what its ranks have."""
        how = self.channel.how_ended()
        for stream, line in self.channel.receive():
            self.heard_at = time.monotonic()
            text, mark, facts = line.partition(MARK)
            if mark:
                # A rank may have written the beginning of a line, whose rest comes after this.
                self._begun += text
                self.facts |= json.loads(facts)
                continue
            if stream == "stdout":
                text, self._begun = self._begun + text, ""
            self._print(text, stream)
        if self._begun and (how is not None or "ended" in self.facts):
            text, self._begun = self._begun, ""
            self._print(text, "stdout")
        if how is not None and not self.has_failed and "ended" not in self.facts:
            self.lost = ClusterError(f"{self.name}: lost: {how}; the ranks were ended")

    def _print(self, text: str, stream: str) -> None:
        print(f"{self.channel.label}{text}", file=getattr(sys, stream), flush=True)


class _Run:
    """Starts servers and ranks once, watches them and ends them. The caller closes the channels."""

    def __init__(
        self, channels: Iterable[Channel], config: Config, file: Path, check: Callable[[], None]
    ) -> None:
        self._machines = [_Machine(index, channel) for index, channel in enumerate(channels)]
        self._config = config
        self._file = file
        self._check = check
        self._told_at = 0.0

    def run(self, environment: Mapping[str, str]) -> None:
        machines, limits = self._machines, self._config.cluster
        self._await("place", "starting", limits.start_timeout_seconds)
        self._check_places()
        places = [machine.facts["place"] for machine in machines]
        nodes = [place["node"] for place in places]
        shares = [nodes.count(node) * limits.ranks_per_server for node in nodes]
        config, run_dir = self._config, self._file.parent
        if not config.train.threads and max(shares) > limits.ranks_per_server:
            # Several machines share a node. A rank by itself knows only those of its own machine.
            threads = [place["cores"] // share for place, share in zip(places, shares, strict=True)]
            config = change_config(config, train={"threads": max(1, min(threads))})
        write_config(config, run_dir, [])
        order = {"environment": environment, "machines": len(machines)}
        order |= {"meeting": places[0]["meeting"]}
        for machine, ranks in zip(machines, shares, strict=True):
            machine.channel.send(json.dumps(order | {"ranks_on_node": ranks}))
        self._await("serving", "starting its server", limits.start_timeout_seconds)
        write_config(config, run_dir, [machine.facts["serving"] for machine in machines])
        self._send_all({"release": True})
        what = "ending after the other ranks"
        self._await("ended", what, math.inf, enough=any)
        self._await("ended", what, limits.timeout_seconds)
        self._read()

    def _await(
        self, fact: str, what: str, limit: float, enough: Callable[[Iterable[bool]], bool] = all
    ) -> None:
        deadline = time.monotonic() + limit
        while not enough(fact in machine.facts for machine in self._machines):
            self._look()
            if time.monotonic() > deadline:
                late = next(machine for machine in self._machines if fact not in machine.facts)
                raise DeadlineExceeded(late.name, what, limit)

    def _send_all(self, order: Mapping[str, Any]) -> None:
        self._told_at = time.monotonic()
        for machine in self._machines:
            machine.channel.send(json.dumps(order))

    def _check_places(self) -> None:
        for machine in self._machines:
            if not machine.facts["place"]["sees"]:
                raise RequestError(
                    f"train.run_dir: {machine.name}: does not find {self._file}; expected a folder "
                    "that all machines share"
                )
        security = security_of(self._config)
        listening = [f"{machine.facts['place']['address']}:0" for machine in self._machines]
        with config_errors():
            for address in listening:
                security.check_server(address)
            security.check_client(listening)

    def _look(self) -> None:
        """Read what all machines say, and raise the error of what ended first."""
        self._read()
        if any(machine.has_failed for machine in self._machines):
            deadline = time.monotonic() + _GRACE_SECONDS
            # What ranks have printed may still be on its way.
            self._read()
            while not self._knows_cause() and time.monotonic() < deadline:
                self._read()
            raise self._find_cause()
        limit = max(SILENCE_SECONDS, self._config.cluster.timeout_seconds)
        for machine in self._machines:
            if machine.facts and time.monotonic() > machine.heard_at + limit:
                raise DeadlineExceeded(f"{machine.name}: hopper host", "answering", limit)

    def _read(self) -> None:
        self._check()
        for machine in self._machines:
            machine.read()
        if time.monotonic() > self._told_at + _LIVE_SECONDS:
            self._send_all({})
        time.sleep(LOOK_SECONDS)

    def _knows_cause(self) -> bool:
        """Return whether a machine told a cause, or none has anything more to tell."""
        machines = self._machines
        return (
            all(machine.has_failed or "ended" in machine.facts for machine in machines)
            or any(machine.error or machine.lost for machine in machines)
            or any(failure.is_cause for machine in machines for failure in machine.failures)
        )

    def _find_cause(self) -> ClusterError:
        failures = [failure for machine in self._machines for failure in machine.failures]
        has_cause = any(failure.is_cause for failure in failures)
        lost = [machine.lost for machine in self._machines if machine.lost and not has_cause]
        errors = [machine.error for machine in self._machines if machine.error]
        if lost or errors:
            return [*lost, *errors][0]
        per_server = self._config.cluster.ranks_per_server
        return explain(failures, lambda rank: f"{self._machines[rank // per_server].name}: ")


class ProcessChannel:
    """A :class:`Channel` to a process that this one starts: ``hopper host``, or ``ssh`` to one."""

    def __init__(
        self, words: Sequence[str], label: str = "", environment: Mapping[str, str] | None = None
    ) -> None:
        self.label = label
        self._program = Path(words[0]).name
        self._lines = SimpleQueue[list[str]]()
        self._last_error = ""
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=environment,
            # Ctrl-C must reach only the launching process, which ends the run in order.
            start_new_session=True,
        )
        self._threads = [
            threading.Thread(target=self._read, args=(name,), daemon=True)
            for name in ("stdout", "stderr")
        ]
        for thread in self._threads:
            thread.start()

    def _read(self, name: str) -> None:
        with (
            getattr(self.process, name) as pipe,
            open(pipe.fileno(), "rb", closefd=False) as stream,
        ):
            for line in stream:
                text = line.decode(errors="replace").removesuffix("\n")
                self._lines.put([name, text])
                if name == "stderr":
                    self._last_error = text

    def send(self, line: str) -> None:
        """Send a line to its standard input; a process that has ended gets none."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError, ValueError):
            self.process.stdin.write(f"{line}\n".encode())

    def receive(self) -> list[list[str]]:
        """Return the lines that it has printed since the last call, and the stream of each."""
        return [self._lines.get() for _ in range(self._lines.qsize())]

    def how_ended(self) -> str | None:
        """Say how it ended, with the last line that it has written to standard error."""
        code = self.process.poll()
        if code is None:
            return None
        for thread in self._threads:
            # A process that it has left behind may still hold the other end.
            thread.join(_DRAIN_SECONDS)
        text = f"{self._program} {how_it_ended(code)}"
        return f"{text}: {self._last_error}" if self._last_error else text

    def close(self, limit: float) -> None:
        """Close its standard input, at which a ``hopper host`` ends, and wait for its end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(limit)
        stop_processes([self.process], 1.0)


@contextmanager
def closing_all(channels: list[Any]) -> Iterator[list[Any]]:
    """Close all channels at the end. The list may grow meanwhile."""
    try:
        yield channels
    finally:
        with defer_signals():
            deadline = time.monotonic() + _STOP_SECONDS
            for channel in channels:
                channel.send(json.dumps({"stop": True}))
            for channel in channels:
                channel.close(max(0.5, deadline - time.monotonic()))
