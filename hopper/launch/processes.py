"""Processes that run a Python module: started anew, or forked beforehand from one that imported it.

Importing torch takes most of a start. A command therefore imports what its servers and ranks
need, and forks all of them, before anything else has happened in it: it has one thread then, and
has not touched a GPU. Each waits until it is told which module to run, as ``python -m`` would.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing import Pipe, current_process
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, Final

from cache_server.process import end_with_parent
from hopper.config import Config
from hopper.process.enter_host import enter_host, enter_words
from hopper.process.quick_imports import quick_imports
from hopper.process.signal_handlers import TO_END, defer_signals
from hopper.process.thread_settings import thread_settings

_IMPORTS: Final = ("cache_server.service.server", "numba.np.arraymath", "numba.cpython.charseq")
"""What servers import at their start, and what reading a compiled kernel does."""
_POLL_SECONDS: Final = 0.005


class ForkedProcess(ForkProcess):
    """A fork of this process that waits for what it is to run."""

    def __init__(self) -> None:
        super().__init__()
        self._parent = os.getpid()
        self._orders, self._sender = Pipe(duplex=False)
        self.start()
        self._orders.close()

    def order(
        self, module: str, words: Sequence[str], environment: Mapping[str, str], **more: Any
    ) -> None:
        """Tell it what to run, as :func:`start_module` does."""
        what = more | {"words": [module, *words], "environment": dict(environment)}
        # That it has ended is told by its exit code.
        with self._sender, suppress(OSError):
            self._sender.send_bytes(json.dumps(what).encode())

    def run(self) -> None:
        """Wait, and run a module; the process ends with it."""
        # First, since the handlers of its parent would take the signal of its parent's end.
        for number in TO_END:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        end_with_parent(self._parent)
        # Ctrl-C must reach only the launching process, which ends the run in order.
        os.setsid()
        self._sender.close()
        atexit._clear()
        _waiting.clear()
        what = json.loads(self._orders.recv_bytes())
        with suppress(OSError):
            Path("/proc/self/comm").write_text(what["name"])
        if what["log"]:
            log = os.open(what["log"], os.O_WRONLY | os.O_APPEND)
            os.dup2(log, sys.stdout.fileno())
            os.dup2(log, sys.stderr.fileno())
        if what["host"]:
            enter_host(*what["host"])
        os.environ.clear()
        os.environ.update(what["environment"])
        import numpy as np

        # All would draw the same numbers.
        np.random.seed()
        sys.argv = what["words"]
        try:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        finally:
            atexit._run_exitfuncs()

    def poll(self) -> int | None:
        """Return its exit code, the negative number of a signal; None while it lives."""
        return self.exitcode

    def wait(self) -> int:
        """Return its exit code when it has ended."""
        self.join()
        assert self.exitcode is not None
        return self.exitcode


Child = subprocess.Popen[bytes] | ForkedProcess
_waiting: Final[list[ForkedProcess]] = []


@contextmanager
def forked_ahead(
    config: Config | None, servers: int = 0, work: str = "hopper.train.rank", launchers: int = 0
) -> Iterator[None]:
    """Fork this process into so many servers of a run (0 = all) and their ranks, or into launchers
    of so many runs, for :func:`start_module`; end those that it has not taken.

    There are none if this process has done more than to start, or if configuration or graph cannot
    be read, which the run will tell. They are then started anew.

    Parameters
    ----------
    work: the module with the work of ranks.
    """
    before = dict(os.environ)
    try:
        is_new = "numpy" not in sys.modules or isinstance(current_process(), ForkedProcess)
        if config and is_new and (count := _count(config, servers)):
            with quick_imports():
                for module in (work, *_IMPORTS):
                    importlib.import_module(module)
            with defer_signals():
                for _ in range(launchers or count):
                    _waiting.append(ForkedProcess())
            if launchers:
                # Each run says anew how many threads its ranks have.
                os.environ.clear()
                os.environ.update(before)
        yield
    finally:
        stop_processes(_waiting, 0.0)
        _waiting.clear()


def _count(config: Config, servers: int) -> int:
    """Count the servers and ranks here, and set OpenMP's variables as these need them."""
    are_served = bool(config.cluster.servers) and not servers
    try:
        file = Path(config.data.partitioned, "partition.json")
        servers = servers or int(json.loads(file.read_bytes())["servers"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    ranks = servers * config.cluster.ranks_per_server
    os.environ.update(thread_settings(ranks, config.train.threads))
    return ranks if are_served else ranks + servers


def start_module(
    module: str,
    words: Sequence[str],
    environment: Mapping[str, str],
    host: Sequence[str] = (),
    *,
    log: Path | None,
    name: str,
) -> Child:
    """Start ``python -m MODULE WORDS``, which gets neither standard input nor Ctrl-C.

    Parameters
    ----------
    host: the network namespace and cgroups of an emulated host; none = this machine.
    log: the file to which it prints; None = where this process does.
    name: a name for ``ps``, which shows at most 15 characters.
    """
    with log.open("ab") if log else nullcontext() as stream:
        if _waiting:
            fork = _waiting.pop()
            file = str(log) if log else None
            fork.order(module, words, environment, name=name, log=file, host=list(host))
            return fork
        prefix = enter_words(host) if host else ()
        return subprocess.Popen(
            # -P keeps modules in the current folder from being imported.
            [*prefix, sys.executable, "-P", "-m", module, *words],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env=environment,
            start_new_session=True,
        )


def stop_processes(processes: Sequence[Child], limit: float) -> None:
    """Ask all processes to end; kill those that have not ended after ``limit`` seconds."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + limit
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    for process in processes:
        process.kill()
        process.wait()
