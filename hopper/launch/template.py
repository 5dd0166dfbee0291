"""A process that imports what ranks need once, and is then forked into the ranks of a machine.

Importing torch takes most of a rank's start. ``python -m hopper.launch.template MODULE CONFIG``
imports while it has a single thread, waits for the launcher's order, forks the ranks, tells their
process ids and ends. The launcher adopts them, since it is the subreaper of its descendants
meanwhile. They go on as ``python -m MODULE CONFIG`` would.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

from hopper.process.quick_imports import quick_imports
from hopper.process.signal_handlers import defer_signals
from hopper.train.parent import DIE_WITH_PARENT, follow_parent

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_MOST_BYTES: Final = 1 << 20


class Template:
    """The process, as its launcher sees it.

    Parameters
    ----------
    module: the Python module that each rank runs.
    file: the configuration that it is for.
    environment: its environment variables. Those of OpenMP are read during the imports.
    prefix: words in front of its command.
    output: files for what it and its ranks print; None = as this process.
    """

    def __init__(
        self,
        module: str,
        file: Path,
        environment: Mapping[str, str],
        prefix: Sequence[str] = (),
        output: tuple[IO[bytes] | None, IO[bytes] | None] = (None, None),
    ) -> None:
        self._channel, end = socket.socketpair()
        # -P keeps modules in the current folder from being imported.
        command = [*prefix, sys.executable, "-P", "-m", __name__, module, str(file)]
        with end, defer_signals():
            self.process = subprocess.Popen(
                command,
                stdin=end.fileno(),
                stdout=output[0],
                stderr=output[1],
                env={**environment, DIE_WITH_PARENT: str(os.getpid())},
                # Ctrl-C must reach only the launching process, which ends the run in order.
                start_new_session=True,
            )

    def fork(self, file: Path, ranks: Sequence[Mapping[str, str]]) -> None:
        """Let it become ranks, which read a configuration file and have these variables."""
        here = {DIE_WITH_PARENT: str(os.getpid())}
        order = {"file": str(file), "ranks": [{**variables, **here} for variables in ranks]}
        # That it has ended is told by its exit code.
        with suppress(OSError):
            self._channel.sendall(f"{json.dumps(order)}\n".encode())

    def close(self) -> list[ForkedRank]:
        """Return the ranks that it has made, once it has ended."""
        with self._channel, suppress(OSError, ValueError):
            self._channel.setblocking(False)
            return [ForkedRank(pid) for pid in json.loads(self._channel.recv(_MOST_BYTES))]
        return []


class ForkedRank:
    """A rank that is a child of this process; it has what we need of ``subprocess.Popen``."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self, options: int = os.WNOHANG) -> int | None:
        """Return its exit code, the negative number of a signal; None while it lives."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self) -> int:
        """Return its exit code when it has ended."""
        code = self.poll(0)
        assert code is not None
        return code

    def terminate(self) -> None:
        """Tell it to end."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


@contextmanager
def adopt_orphans() -> Iterator[None]:
    """Let the kernel make orphans among this process's descendants its children (Linux)."""
    control, before = ctypes.CDLL(None).prctl, ctypes.c_int()
    control(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    control(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        control(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def _main(module: str) -> None:
    """Import, and become ranks. In each of them, the call returns when the rank has ended well."""
    with quick_imports():
        import numpy as np

        import hopper.train.rank_main  # noqa: F401
    line = sys.stdin.readline()
    if not line:
        # The launcher wants no ranks.
        os._exit(1)
    order: dict[str, Any] = json.loads(line)
    template, pids = os.getpid(), []
    reading, writing = os.pipe()
    for variables in order["ranks"]:
        pid = os.fork()
        if not pid:
            os.close(writing)
            _await_launcher(reading, template)
            os.environ.clear()
            os.environ.update(variables)
            # All ranks would draw the same numbers.
            np.random.seed()
            sys.argv = [module, order["file"]]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            return
        pids.append(pid)
    os.write(sys.stdin.fileno(), json.dumps(pids).encode())
    os.write(writing, bytes(len(pids)))
    os._exit(0)


def _await_launcher(reading: int, template: int) -> None:
    """Return once the launcher is the parent of this process, in a session of its own."""
    if not os.read(reading, 1):
        # The template was ended before it could tell the launcher of this process.
        os._exit(1)
    while os.getppid() == template:
        time.sleep(0.001)
    os.close(reading)
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
    os.setsid()


if __name__ == "__main__":
    # Before anything else: importing torch takes seconds, in which the parent may end.
    follow_parent()
    _main(sys.argv[1])
