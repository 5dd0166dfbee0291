"""Ranks that stay for all tests of a session: importing torch takes longer than what most compute.

Each is a process of its own (standing_rank.py) that runs jobs: scripts, and the modules that
launchers start. Ranks of a job meet over gloo and part again. After a job that fails, all ranks are
ended, and the next job starts new ones: forks of a process that has imported what they need.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest

from hopper.config.loading import CONFIG_VARIABLE
from hopper.launch import run
from hopper.launch.failures import RanksFailed, read_failure
from hopper.launch.supervisor import Supervisor
from hopper.train.rank_process import DIE_WITH_PARENT, RECORD
from tests.server_processes import serve_here

STANDING_RANK = Path(__file__).with_name("standing_rank.py")
DEADLINE_SECONDS = 240.0
FAILING_SECONDS = 5.0
"""How long the other ranks of a job may go on after one has failed."""
KILLED = -9


class StandingRank:
    """A rank that waits for jobs.

    Parameters
    ----------
    forks: leads to the process that forks it, which tells its process id and later its exit code.
    """

    def __init__(self, forks: socket.socket) -> None:
        self._forks, self._has_ended = forks, False
        self._near, far = socket.socketpair()
        self._stream = self._near.makefile("rw")
        with far:
            socket.send_fds(forks, [b"fork"], [far.fileno()])
            self.pid = int(forks.recv(16))

    def fileno(self) -> int:
        """The descriptor that can be read once the rank has answered or has ended."""
        return self._near.fileno()

    def give(self, job: Mapping[str, Any]) -> None:
        """Let it run a job; standing_rank.py describes it."""
        print(json.dumps(job), file=self._stream, flush=True)

    def exit_code(self) -> int:
        """The exit code of the job that it has answered; a job may end its process itself."""
        line = ""
        with suppress(ConnectionResetError):
            line = self._stream.readline()
        return int(line) if line else self._wait()

    def has_ended(self) -> bool:
        """Whether the process has ended while it waited for a job."""
        return bool(wait([self], 0))

    def end(self) -> None:
        """End the process."""
        if not self._has_ended:
            os.kill(self.pid, signal.SIGKILL)
            self._wait()
        self._stream.close()
        self._near.close()

    def _wait(self) -> int:
        """Wait for the end of the process; returns its exit code."""
        self._has_ended = True
        self._forks.send(str(self.pid).encode())
        return int(self._forks.recv(16))


class RankPool:
    """Standing ranks, started when a job needs them.

    Parameters
    ----------
    path: returns the value of ``PYTHONPATH`` for jobs.
    free_port: returns a free port, at which a job's ranks meet.
    """

    def __init__(self, path: Callable[[], str], free_port: Callable[[], int]) -> None:
        self._path = path
        self._free_port = free_port
        self._ranks: list[StandingRank] = []
        self._fork_server: subprocess.Popen[bytes] | None = None

    def run(
        self,
        words: Callable[[int], Sequence[str]],
        world: int,
        files: Callable[[int], tuple[Path, Path]],
        environment: Callable[[int], Mapping[str, str]] = lambda _: {},
    ) -> list[int]:
        """Run a job on ranks of a world, and return their exit codes.

        Parameters
        ----------
        words, files, environment: return, for a rank, the words that follow ``python``, the files
            for what it prints to stdout and stderr, and variables of its environment.
        """
        self._start(world)
        assert self._fork_server is not None
        common = os.environ | {
            "PYTHONPATH": self._path(),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._free_port()),
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(world),
            DIE_WITH_PARENT: str(self._fork_server.pid),
        }
        codes = [KILLED] * world
        try:
            for number, rank in enumerate(self._ranks[:world]):
                own = {"RANK": str(number), "LOCAL_RANK": str(number)} | dict(environment(number))
                stdout, stderr = map(str, files(number))
                job = {"words": list(words(number)), "environment": common | own}
                rank.give(job | {"folder": os.getcwd(), "stdout": stdout, "stderr": stderr})
            self._await(codes)
        finally:
            if any(codes):
                self.end()
        return codes

    def import_ahead(self, module: str) -> None:
        """Start later ranks as forks of a process that has imported a module, too."""
        self.end()
        self._start(0)
        self._forks.send(module.encode())
        assert self._forks.recv(16) == b"0"

    def end(self) -> None:
        """End all ranks."""
        for rank in self._ranks:
            rank.end()
        self._ranks.clear()

    def close(self) -> None:
        """End all ranks and the process that forks them."""
        self.end()
        if self._fork_server is not None:
            self._forks.close()
            self._fork_server.wait()

    def _start(self, count: int) -> None:
        """Have at least so many ranks."""
        if self._fork_server is None:
            self._forks, far = socket.socketpair()
            words = [sys.executable, STANDING_RANK, str(os.getpid()), str(far.fileno())]
            environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
            with far:
                self._fork_server = subprocess.Popen(
                    words,
                    env=environment | {"PYTHONPATH": str(STANDING_RANK.parents[1])},
                    pass_fds=[far.fileno()],
                )
        for rank in [rank for rank in self._ranks if rank.has_ended()]:
            self._ranks.remove(rank)
            rank.end()
        while len(self._ranks) < count:
            self._ranks.append(StandingRank(self._forks))

    def _await(self, codes: list[int]) -> None:
        """Put the ranks' exit codes into a list, in which those that are too late are killed."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        awaited = {self._ranks[i]: i for i, _ in enumerate(codes)}
        while awaited:
            ranks: list[Any] = list(awaited)
            answered: list[Any] = wait(ranks, deadline - time.monotonic())
            if not answered:
                # They write to their logs where their threads are.
                for rank in awaited:
                    os.kill(rank.pid, signal.SIGUSR1)
                time.sleep(1)
                return
            for rank in answered:
                code = codes[awaited.pop(rank)] = rank.exit_code()
                if code:
                    deadline = min(deadline, time.monotonic() + FAILING_SECONDS)

    @contextmanager
    def launching(self) -> Iterator[None]:
        """While the context lasts, ranks that this process launches are those of the pool, and
        feature servers run in this process."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(run, "Supervisor", partial(_PooledSupervisor, self))
            # Of the processes that are started beside the ranks.
            patch.setenv("OMP_NUM_THREADS", "1")
            patch.setenv("PYTHONPATH", self._path())
            yield


class _PooledSupervisor(Supervisor):
    """Servers in this process, and ranks of the pool. What these print is printed at their end.

    Servers that need options of their command are processes, as a user's.
    """

    def __init__(self, pool: RankPool, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._pool, self._module, self._running = pool, "", []

    def start_servers(self, check: Callable[[], None]) -> list[str]:
        cluster = self._config.cluster
        needs_process = cluster.server_metrics, cluster.tls_certificate, cluster.token_file
        if any(needs_process) or self._config.data.features:
            return super().start_servers(check)
        self._running = serve_here(self._config.data.partitioned, len(self._places))
        return [server.address for server in self._running]

    def start_ranks(self, module: str, *_: Any, **__: Any) -> None:
        self._module = module

    def look(self) -> bool:
        return False

    def await_ranks(self, _check: Any) -> None:
        def name(rank: int, what: str) -> Path:
            return self._records / f"{rank}-{what}"

        codes = self._pool.run(
            lambda rank: ("-m", self._module, str(self._file)),
            self._world,
            lambda rank: (name(rank, "stdout"), name(rank, "stderr")),
            lambda rank: {RECORD: str(self._record(rank)), CONFIG_VARIABLE: str(self._file)},
        )
        for what, stream in (("stdout", sys.stdout), ("stderr", sys.stderr)):
            for rank in range(self._world):
                stream.write(name(rank, what).read_text(errors="replace"))
        failures = [
            read_failure(rank, 0, code, self._record(rank), time.time())
            for rank, code in enumerate(codes)
            if code
        ]
        if failures:
            raise RanksFailed(failures)

    def __exit__(self, *error: Any) -> None:
        for server in self._running:
            server.stop(1.0)
        super().__exit__(*error)
