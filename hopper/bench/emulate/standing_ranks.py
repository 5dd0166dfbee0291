"""The ranks of emulated hosts, which stay from run to run."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cache_server.available_memory import LIMIT_VARIABLE
from hopper.bench.emulate.waiting_rank import Order, done_file, order_file
from hopper.scratch import scratch_folder
from hopper.signal_handlers import defer_signals
from hopper.train.feature_servers import Place, stop_processes
from hopper.train.machine_agent import agent_words, read_failures
from hopper.train.rank_failures import Failure
from hopper.train.rank_processes import Machine
from hopper.whole_files import write_text

_PREFIX: Final = "hopper-ranks-"
_MEETING_PORT: Final = 29500
_STOP_SECONDS: Final = 15.0


@dataclass(frozen=True)
class Start:
    """The settings that ranks are started with. A run with other settings needs other ranks.

    Attributes
    ----------
    places: the places of the hosts, in order.
    ranks_per_host: number of ranks on each host.
    end_limit: seconds within which all ranks must end after one has.
    environment: environment of their processes.
    """

    places: Sequence[Place]
    ranks_per_host: int
    end_limit: float
    environment: Mapping[str, str]


class StandingRanks:
    """Runs torchrun's agent on every host, with ranks that train one run after another.

    Attributes
    ----------
    agents: the agents' processes by host; empty if none were started.
    """

    def __init__(self) -> None:
        self.agents: list[subprocess.Popen[bytes]] = []
        self._start: Start | None = None
        self._folder = Path()
        self._exits = ExitStack()
        self._runs = 0

    @contextmanager
    def training(self, start: Start, order: Order) -> Iterator[None]:
        """Let the present ranks, or new ones, train a run. An error ends them."""
        try:
            # A signal during the start would leave processes behind.
            with defer_signals():
                ended = any(agent.poll() is not None for agent in self.agents)
                if start != self._start or ended:
                    self.stop()
                    self._begin_ranks(start)
            order.logs.mkdir(exist_ok=True)
            for host in range(len(start.places)):
                order.log(host).write_bytes(b"")
            content = {"config": str(order.config), "logs": str(order.logs)}
            write_text(order_file(self._folder, self._runs), json.dumps(content))
            self._runs += 1
            yield
        except BaseException:
            with defer_signals():
                self.stop()
            raise

    def find_missing(self) -> list[int]:
        """Return the ranks that have not ended the last run well."""
        assert self._start is not None
        ranks = range(len(self._start.places) * self._start.ranks_per_host)
        return [
            rank for rank in ranks if not done_file(self._folder, self._runs - 1, rank).exists()
        ]

    def failures(self) -> list[Failure]:
        """Return the failures of ranks that the agents have reported so far."""
        files = (self._failures_file(host) for host in range(len(self.agents)))
        return [failure for file in files for failure in read_failures(file)]

    def log(self, host: int) -> Path:
        """Return the file with the output of a host's agent, and of its ranks outside of runs."""
        return self._folder / f"{host}.log"

    def stop(self) -> None:
        """End all ranks and agents, if there are any."""
        try:
            stop_processes(self.agents, _STOP_SECONDS)
        finally:
            self._start, self.agents, self._runs = None, [], 0
            self._exits.close()

    def _begin_ranks(self, start: Start) -> None:
        self._folder = self._exits.enter_context(scratch_folder(_PREFIX))
        self._start = start
        endpoint = f"{start.places[0].address}:{_MEETING_PORT}"
        for host, place in enumerate(start.places):
            command = [
                *place.prefix,
                *agent_words(
                    *(self._folder, "hopper.bench.emulate.waiting_rank", start.ranks_per_host),
                    Machine(host, len(start.places), endpoint),
                    start.end_limit,
                    self._failures_file(host),
                ),
            ]
            with self.log(host).open("wb") as log:
                self.agents.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        env=dict(start.environment),
                        # Ctrl-C must reach only this process, which then ends them in order.
                        start_new_session=True,
                    )
                )

    def _failures_file(self, host: int) -> Path:
        return self._folder / f"failures-{host}.json"


def environment_of_ranks(threads: int, memory: int | None = None) -> dict[str, str]:
    """Return the environment of ranks on hosts: that of this process, with some variables set.

    Parameters
    ----------
    threads: threads of a rank.
    memory: bytes that a host may use; None = no bound.
    """
    bound = {} if memory is None else {LIMIT_VARIABLE: str(memory)}
    return (
        os.environ
        | bound
        | {
            "OMP_NUM_THREADS": str(threads),
            # Hosts share this machine's cores, so waiting threads must not spin.
            "OMP_WAIT_POLICY": "PASSIVE",
        }
    )
