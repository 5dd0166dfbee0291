"""``hopper train CONFIG --on ssh:HOSTFILE``: a run on machines that OpenSSH's client reaches."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hopper.config import Config
from hopper.errors import RequestError
from hopper.launch.machines import ProcessChannel, closing_all, train_on_machines
from hopper.process.signal_handlers import defer_signals
from hopper.train.run_result import RunResult

_LINE: Final = re.compile(
    r"(?P<name>(?:[^\s:@\[]+@)?(?:\[[0-9a-fA-F:.%\w]+\]|[^\s:\[]+))(?::(?P<port>\d+))?"
)
_OPTIONS: Final = (
    # It asks for no password, has no terminal, and notices in 15 seconds that a machine is gone.
    "-T",
    "-o",
    "BatchMode=yes",
    "-o",
    "ServerAliveInterval=5",
    "-o",
    "ServerAliveCountMax=3",
)
_RESOLVE_SECONDS: Final = 20.0


@dataclass(frozen=True)
class Machine:
    """A line of a hostfile."""

    name: str
    """what ssh is told: "HOST" or "USER@HOST\""""
    port: int | None
    """the port of its ssh; None = what ssh's configuration says"""
    slots: int | None
    """how many ranks it runs; None = ``cluster.ranks_per_server``"""
    address: str
    """the address by which other machines reach it; "" = that of the host"""
    line: int


@dataclass(frozen=True)
class SshOptions:
    """How machines are reached, and what runs there.

    Attributes
    ----------
    hostfile: has a line for each machine.
    ssh: the command, with options of its own.
    python: the interpreter that Hopper is installed for, on every machine.
    folder: the working folder on every machine.
    variables: further environment variables that are passed on.
    """

    hostfile: Path
    ssh: str = "ssh"
    python: str = sys.executable
    folder: str = ""
    variables: Sequence[str] = ()


def train_over_ssh(
    config: str | os.PathLike[str], overrides: Sequence[str], options: SshOptions, restarts: int
) -> RunResult:
    """Train on the machines of a hostfile: a server and its ranks on each, in order."""
    machines = read_hostfile(options.hostfile)

    @contextmanager
    def open_channels(config: Config, servers: int, file: Path) -> Iterator[list[ProcessChannel]]:
        _check_machines(options.hostfile, machines, servers, config.cluster.ranks_per_server)
        addresses = [_find_address(options.ssh, machine) for machine in machines]
        limit = max(1, int(config.cluster.start_timeout_seconds))
        with closing_all([]) as channels:
            for server, (machine, address) in enumerate(zip(machines, addresses, strict=True)):
                words = [*shlex.split(options.ssh), *_OPTIONS, "-o", f"ConnectTimeout={limit}"]
                words += [] if machine.port is None else ["-p", str(machine.port)]
                remote = _remote_command(options, file, server, address)
                label = f"[{server} {machine.name}] "
                with defer_signals():
                    channels.append(ProcessChannel([*words, machine.name, remote], label))
            yield channels

    return train_on_machines(
        config, overrides, restarts, "hopper train --on ssh", open_channels, options.variables
    )


def read_hostfile(path: Path) -> list[Machine]:
    """Read the machines of a file: a line ``[USER@]HOST[:PORT] [slots=N] [address=ADDRESS]`` each,
    or a comment after "#"."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"--on ssh: {path}: cannot be read: {error}") from None
    machines = [
        _read_line(path, number, words)
        for number, line in enumerate(lines, 1)
        if (words := line.partition("#")[0].split())
    ]
    if not machines:
        raise RequestError(f"--on ssh: {path}: expected a line for each machine, found none")
    return machines


def _read_line(path: Path, number: int, words: list[str]) -> Machine:
    where = f"--on ssh: {path}, line {number}"
    match = _LINE.fullmatch(words[0])
    # ssh would take a name that begins with a dash for an option.
    if match is None or words[0].startswith("-"):
        raise RequestError(f"{where}: expected [USER@]HOST[:PORT], given {words[0]!r}")
    port = int(match["port"]) if match["port"] else None
    if port is not None and not 0 < port < 65536:
        raise RequestError(f"{where}: expected a port from 1 to 65535, given {port}")
    given: dict[str, str] = {}
    for word in words[1:]:
        key, _, value = word.partition("=")
        if key not in ("slots", "address") or not value or key in given:
            raise RequestError(f"{where}: expected slots=N or address=ADDRESS, given {word!r}")
        given[key] = value
    slots = given.get("slots")
    if slots is not None and not (slots.isdecimal() and int(slots)):
        raise RequestError(f"{where}: slots: expected a number from 1, given {slots!r}")
    name = match["name"].replace("[", "").replace("]", "")
    return Machine(name, port, int(slots) if slots else None, given.get("address", ""), number)


def _check_machines(path: Path, machines: list[Machine], servers: int, ranks: int) -> None:
    if len(machines) != servers:
        raise RequestError(
            f"--on ssh: {path}: expected {servers} machines, one for each partition, given "
            f"{len(machines)}"
        )
    for machine in machines:
        if machine.slots not in (None, ranks):
            raise RequestError(
                f"--on ssh: {path}, line {machine.line}: slots: expected {ranks}, as "
                f"cluster.ranks_per_server says, given {machine.slots}"
            )


def _find_address(ssh: str, machine: Machine) -> str:
    """Return the address of a machine: as the hostfile says, or the host that ssh connects to."""
    if machine.address:
        return machine.address
    words = [*shlex.split(ssh), "-G", machine.name]
    try:
        told = subprocess.run(
            words, capture_output=True, text=True, timeout=_RESOLVE_SECONDS, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise RequestError(f"--on ssh: {shlex.join(words)}: {lines[-1]}") from None
    for line in told.splitlines():
        key, _, value = line.partition(" ")
        if key == "hostname":
            return value
    return machine.name.rpartition("@")[2]


def _remote_command(options: SshOptions, file: Path, server: int, address: str) -> str:
    """Return what the shell of a machine runs. It becomes the command, and ends with it."""
    path = os.environ.get("PYTHONPATH")
    words = [
        *(["env", f"PYTHONPATH={path}"] if path else []),
        options.python,
        "-P",
        "-m",
        "hopper.cli",
        "host",
        str(file),
        "--server",
        str(server),
        "--driven",
        address,
    ]
    return f"cd {shlex.quote(options.folder or os.getcwd())} && exec {shlex.join(words)}"
