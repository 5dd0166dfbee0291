"""A run on several machines whose launcher drives a ``hopper host`` on each of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final, Protocol

from cache_server.errors import SecurityError
from hopper.config import Config, change_config, read_config
from hopper.errors import ClusterError, ConfigError, DeadlineExceeded, RequestError, ServerLost
from hopper.launch.failures import Failure, explain, how_it_ended
from hopper.launch.host import SILENCE_SECONDS
from hopper.launch.restarts import check_restarts, run_again_where_lost
from hopper.launch.run import prepare, require_main_thread, write_config
from hopper.launch.supervisor import LOOK_SECONDS, stop_processes
from hopper.process.signal_handlers import EndSignals, defer_signals
from hopper.train.run_lock import lock_run_folder
from hopper.train.run_metrics import RESTARTS
from hopper.train.run_result import RunResult
from hopper.train.security import security_of

THREADS: Final = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY")
PASSED_VARIABLES: Final = (*THREADS, "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "PYTHONPATH")
"""Environment variables that servers and ranks of all machines get from the launcher."""
_GRACE_SECONDS: Final = 10.0
"""How long ranks that miss another rank may take to end by themselves and say which one."""
_LIVE_SECONDS: Final = 1.0
_STOP_SECONDS: Final = 15.0


class Channel(Protocol):
    """A connection to a machine's ``hopper host``. No method waits for it, except :meth:`close`."""

    label: str
    """what precedes a line that a rank of the machine prints"""

    def send(self, line: str) -> None:
        """Send a line to its standard input."""

    def receive(self) -> list[str]:
        """Return the lines that it has printed since the last call."""

    def how_ended(self) -> str | None:
        """Say how it ended; None while it lives."""

    def close(self, limit: float) -> None:
        """End it within some seconds, and with it all that it has started."""


OpenChannels = Callable[[Config, Path, Callable[[], None]], AbstractContextManager[list[Any]]]
"""Opens a channel to the machine of each server, for a configuration, the file of that name on all
machines, and a function that raises if a signal told this process to end."""


def train_on_machines(
    config: str | os.PathLike[str],
    overrides: Sequence[str],
    restarts: int,
    command: str,
    connect: Callable[[Config, int], AbstractContextManager[OpenChannels]],
    variables: Sequence[str] = (),
) -> RunResult:
    """Train with the server of each partition, and its ranks, on a machine of its own.

    Parameters
    ----------
    restarts: how many times a run that lost a rank, server or machine is started again.
    command: what asks for the run, for errors.
    connect: prepares the machines for a configuration and a number of servers.
    variables: environment variables that are passed on besides :data:`PASSED_VARIABLES`.

    Raises
    ------
    As :func:`hopper.train`.
    """
    require_main_thread(command)
    check_restarts(restarts)
    checked = read_config(config, overrides)
    if checked.cluster.servers:
        raise ConfigError(
            f"cluster.servers: {command} starts the servers; expected none, given "
            f"{len(checked.cluster.servers)}"
        )
    graph, run_dir = prepare(checked)
    names = (*PASSED_VARIABLES, RESTARTS, *variables)
    with (
        lock_run_folder(run_dir, "launcher"),
        connect(checked, graph.book.servers) as open_channels,
        EndSignals() as signals,
    ):

        def run(attempt: Config) -> None:
            environment = {name: os.environ[name] for name in names if name in os.environ}
            file = write_config(attempt, run_dir, [])
            with open_channels(attempt, file, signals.check) as channels:
                _Run(channels, attempt, file, environment, signals.check).run()

        run_again_where_lost(run, checked, run_dir, restarts)
    return RunResult.open(run_dir)


class _Machine:
    """What is known of a machine, from the lines of its ``hopper host``."""

    def __init__(self, index: int, channel: Channel) -> None:
        self.index = index
        self.channel = channel
        self.place: dict[str, Any] = {}
        self.address = ""
        self.failures: list[Failure] = []
        self.error: tuple[str, str] | None = None
        self.has_ended = False
        self.heard_at = time.monotonic()
        self.lost: str | None = None
        self._partial = {"out": "", "err": ""}

    @property
    def name(self) -> str:
        """The machine in words, to begin a text with."""
        address = f" ({self.place['address']})" if self.place else ""
        return f"machine {self.index}{address}: "

    def read(self) -> None:
        """Take in what the machine has said."""
        how = self.channel.how_ended()
        for line in self.channel.receive():
            self.heard_at = time.monotonic()
            if not line.startswith("{"):
                # A login shell may print something, too.
                self._show("out", f"{line}\n")
                continue
            facts = json.loads(line)
            self.place = facts.get("place", self.place)
            self.address = facts.get("serving", self.address)
            self.has_ended = facts.get("ended", self.has_ended)
            self.failures += [Failure(**failure) for failure in facts.get("failures", ())]
            if "error" in facts:
                self.error = facts["kind"], facts["error"]
            for stream in ("out", "err"):
                self._show(stream, facts.get(stream, ""))
        if how is not None:
            for stream in ("out", "err"):
                self._show(stream, "", at_end=True)
            if not (self.failures or self.error or self.has_ended):
                self.lost = how

    def _show(self, stream: str, text: str, *, at_end: bool = False) -> None:
        """Print whole lines of ranks."""
        *lines, rest = (self._partial[stream] + text).split("\n")
        if at_end and rest:
            lines, rest = [*lines, rest], ""
        self._partial[stream] = rest
        target = sys.stdout if stream == "out" else sys.stderr
        for line in lines:
            print(f"{self.channel.label}{line}", file=target, flush=True)


class _Run:
    """Starts servers and ranks once, watches them and ends them."""

    def __init__(
        self,
        channels: Sequence[Channel],
        config: Config,
        file: Path,
        environment: Mapping[str, str],
        check: Callable[[], None],
    ) -> None:
        self._machines = [_Machine(index, channel) for index, channel in enumerate(channels)]
        self._config = config
        self._file = file
        self._environment = dict(environment)
        self._check = check
        self._told_at = 0.0

    def run(self) -> None:
        """Start everything, and wait for the ranks. The caller closes the channels.

        Raises
        ------
        ClusterError: says which process ended first, and how.
        RunEnded: a signal told this process to end.
        """
        deadline = time.monotonic() + self._config.cluster.start_timeout_seconds
        self._await(lambda machine: bool(machine.place), "starting", deadline)
        self._check_places()
        per_server = self._config.cluster.ranks_per_server
        nodes = [machine.place["node"] for machine in self._machines]
        shares = [nodes.count(node) * per_server for node in nodes]
        config = self._with_threads(shares)
        run_dir = self._file.parent
        write_config(config, run_dir, [])
        order = {
            "environment": self._environment,
            "machines": len(self._machines),
            "meeting": self._machines[0].place["meeting"],
        }
        for machine, ranks in zip(self._machines, shares, strict=True):
            machine.channel.send(json.dumps(order | {"ranks_on_node": ranks}))
        self._await(lambda machine: bool(machine.address), "starting its server", deadline)
        write_config(config, run_dir, [machine.address for machine in self._machines])
        self._send_all({"release": True})
        self._watch()
        self._send_all({"stop": True})

    def _await(self, holds: Callable[[_Machine], bool], what: str, deadline: float) -> None:
        """Wait until something holds of all machines."""
        while late := [machine for machine in self._machines if not holds(machine)]:
            self._look()
            if time.monotonic() > deadline:
                limit = self._config.cluster.start_timeout_seconds
                raise DeadlineExceeded(f"machine {late[0].index}", what, limit)

    def _send_all(self, order: Mapping[str, Any]) -> None:
        self._told_at = time.monotonic()
        for machine in self._machines:
            machine.channel.send(json.dumps(order))

    def _with_threads(self, shares: Sequence[int]) -> Config:
        """Return the configuration, with a number of threads set if several machines share a node.

        A rank by itself knows only the ranks of its own machine.
        """
        if self._config.train.threads or max(shares) == self._config.cluster.ranks_per_server:
            return self._config
        threads = [
            machine.place["cores"] // ranks
            for machine, ranks in zip(self._machines, shares, strict=True)
        ]
        return change_config(self._config, train={"threads": max(1, min(threads))})

    def _check_places(self) -> None:
        """Refuse machines without the shared folder, and unprotected connections."""
        for machine in self._machines:
            if not machine.place["sees"]:
                raise RequestError(
                    f"train.run_dir: {machine.name}does not find {self._file}; expected a folder "
                    "that all machines share"
                )
        security = security_of(self._config)
        listening = [f"{machine.place['address']}:0" for machine in self._machines]
        try:
            for address in listening:
                security.check_server(address)
            security.check_client(listening)
        except SecurityError as error:
            raise ConfigError(f"cluster.{error}") from error

    def _watch(self) -> None:
        """Return once the ranks of all machines have ended well.

        Raises
        ------
        ClusterError: says what ended first, or which machine's ranks did not end after the others.
        """
        limit = self._config.cluster.timeout_seconds
        late_at = float("inf")
        while living := [machine for machine in self._machines if not machine.has_ended]:
            self._look()
            if len(living) < len(self._machines):
                late_at = min(late_at, time.monotonic() + limit)
                if time.monotonic() > late_at:
                    who = f"{living[0].name}its ranks"
                    raise DeadlineExceeded(who, "ending after the other ranks", limit)

    def _look(self) -> None:
        """Read what all machines say, and raise the error of what ended first."""
        self._look_once()
        if any(m.failures or m.error or m.lost for m in self._machines):
            deadline = time.monotonic() + _GRACE_SECONDS
            while not self._knows_cause() and time.monotonic() < deadline:
                self._look_once()
            raise self._judge()
        limit = max(SILENCE_SECONDS, self._config.cluster.timeout_seconds)
        for machine in self._machines:
            if machine.place and time.monotonic() > machine.heard_at + limit:
                raise DeadlineExceeded(f"{machine.name}hopper host", "answering", limit)

    def _look_once(self) -> None:
        self._check()
        for machine in self._machines:
            machine.read()
        if time.monotonic() > self._told_at + _LIVE_SECONDS:
            self._send_all({})
        time.sleep(LOOK_SECONDS)

    def _knows_cause(self) -> bool:
        """Return whether a machine told a cause, or none has anything more to tell."""
        is_over = [bool(m.failures or m.error or m.lost or m.has_ended) for m in self._machines]
        causes = (failure.is_cause for m in self._machines for failure in m.failures)
        return all(is_over) or any(m.error or m.lost for m in self._machines) or any(causes)

    def _judge(self) -> ClusterError:
        """Return the error of the server, machine or rank that failed first."""
        failures = [failure for machine in self._machines for failure in machine.failures]
        if not any(failure.is_cause for failure in failures):
            for machine in self._machines:
                if machine.lost is not None:
                    text = f"{machine.name}lost: {machine.lost}; the ranks were ended"
                    return ClusterError(text)
        for machine in self._machines:
            if machine.error is not None:
                kind, text = machine.error
                if kind == ServerLost.__name__:
                    return ServerLost(text)
                return ClusterError(f"{machine.name}{text}")
        per_server = self._config.cluster.ranks_per_server
        return explain(failures, lambda rank: self._machines[rank // per_server].name)


class ProcessChannel:
    """A :class:`Channel` to a process that this one starts: ``hopper host``, or ``ssh`` to one.

    Parameters
    ----------
    words: its command.
    label: what precedes a line that a rank prints.
    environment: its environment; None = this process's.
    """

    def __init__(
        self, words: Sequence[str], label: str = "", environment: Mapping[str, str] | None = None
    ) -> None:
        self.label = label
        self._program = Path(words[0]).name
        self._rest = b""
        self._errors = b""
        self.process = subprocess.Popen(
            list(words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=environment,
            # Ctrl-C must reach only the launching process, which ends the run in order.
            start_new_session=True,
        )
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)

    def send(self, line: str) -> None:
        """Send a line to its standard input; a process that has ended gets none."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError, ValueError):
            self.process.stdin.write(f"{line}\n".encode())

    def receive(self) -> list[str]:
        """Return the lines that it has printed since the last call."""
        self._errors = (self._errors + _read(self.process.stderr))[-4096:]
        *lines, self._rest = (self._rest + _read(self.process.stdout)).split(b"\n")
        return [line.decode(errors="replace") for line in lines]

    def how_ended(self) -> str | None:
        """Say how it ended, with the last line that it has written to standard error."""
        code = self.process.poll()
        if code is None:
            return None
        self._errors = (self._errors + _read(self.process.stderr))[-4096:]
        lines = self._errors.decode(errors="replace").strip().splitlines()
        return f"{self._program} {how_it_ended(code)}{': ' + lines[-1] if lines else ''}"

    def close(self, limit: float) -> None:
        """Close its standard input, at which a ``hopper host`` ends, and wait for its end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(limit)
        stop_processes([self.process], 1.0)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


def _read(stream: IO[bytes] | None) -> bytes:
    """Return what a pipe has for now."""
    assert stream is not None
    content = b""
    while part := stream.read(1 << 16):
        content += part
    return content


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
