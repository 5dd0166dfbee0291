"""Ranks that stay for all tests of a session: importing torch takes longer than what most compute.

Each is a process of its own (standing_rank.py) that runs jobs: scripts, and the modules that
launchers start. Ranks of a job meet over gloo and part again. After a job that fails, all ranks are
ended, and the next job starts new ones.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any

import pytest

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


@dataclass(frozen=True)
class Job:
    """What one rank runs: the words that follow ``python``, and the files that it prints to."""

    words: Sequence[str]
    environment: Mapping[str, str]
    stdout: str
    stderr: str


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
        self._ranks: list[subprocess.Popen[str]] = []

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
        common = os.environ | {
            "PYTHONPATH": self._path(),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._free_port()),
            "WORLD_SIZE": str(world),
            "LOCAL_WORLD_SIZE": str(world),
            DIE_WITH_PARENT: str(os.getpid()),
        }
        jobs = [
            Job(
                list(map(str, words(rank))),
                {**common, "RANK": str(rank), "LOCAL_RANK": str(rank), **environment(rank)},
                *map(str, files(rank)),
            )
            for rank in range(world)
        ]
        codes = [KILLED] * world
        try:
            self._start(world)
            for process, job in zip(self._ranks, jobs, strict=False):
                print(json.dumps(asdict(job)), file=process.stdin, flush=True)
            self._await(codes)
        finally:
            if any(codes) or any(process.poll() is not None for process in self._ranks):
                self.end()
        return codes

    def end(self) -> None:
        """End all ranks."""
        for process in self._ranks:
            process.kill()
        for process in self._ranks:
            with process:
                pass
        self._ranks.clear()

    def _start(self, count: int) -> None:
        """Have at least so many ranks."""
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        for _ in range(len(self._ranks), count):
            self._ranks.append(
                subprocess.Popen(
                    [sys.executable, STANDING_RANK, str(os.getpid())],
                    env=environment | {"PYTHONPATH": str(STANDING_RANK.parents[1])},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )

    def _await(self, codes: list[int]) -> None:
        """Put the ranks' exit codes into a list, in which those that are too late are killed."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        awaited: dict[IO[str], int] = {}
        for rank, _ in enumerate(codes):
            stdout = self._ranks[rank].stdout
            assert stdout is not None
            awaited[stdout] = rank
        while awaited:
            answered: list[Any] = wait(list(awaited), deadline - time.monotonic())
            if not answered:
                self._ask_what_they_do(awaited.values())
                return
            for stdout in answered:
                rank = awaited.pop(stdout)
                # A job may end its process itself.
                line = stdout.readline()
                codes[rank] = int(line) if line else self._ranks[rank].wait()
                if codes[rank]:
                    deadline = min(deadline, time.monotonic() + FAILING_SECONDS)

    def _ask_what_they_do(self, ranks: Iterable[int]) -> None:
        """Let ranks that are too late write to their logs where their threads are."""
        for rank in ranks:
            self._ranks[rank].send_signal(signal.SIGUSR1)
        time.sleep(1)

    @contextmanager
    def launching(self) -> Iterator[None]:
        """While the context lasts, ranks that this process launches are those of the pool, and
        feature servers run in this process."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(run, "Supervisor", self.supervise)
            # Of the processes that are started beside the ranks.
            patch.setenv("OMP_NUM_THREADS", "1")
            patch.setenv("PYTHONPATH", self._path())
            yield

    def supervise(self, *arguments: Any, **options: Any) -> Supervisor:
        """Make a supervisor whose ranks are those of the pool."""
        return _PooledSupervisor(self, *arguments, **options)


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
            lambda rank: {RECORD: str(self._record(rank))},
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
