"""The options of an experiment's command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.registry import PEERS
from hopper.bench.emulate.request import Request, make_request
from hopper.errors import RequestError


@dataclass(frozen=True)
class Options:
    """What the command line asks for; None = the experiment's own default.

    Attributes
    ----------
    work: where graphs, partitions and the files of runs are kept.
    scale: of every preset.
    sides: of those that the experiment compares, by role.
    peers: other systems to compare with, by name.
    emulated: servers are emulated hosts where they can be had; False = all on loopback.
    words: overrides ``--section.key value`` of every configuration.
    """

    out: Path
    work: Path
    scale: float | None = None
    graphs: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    hidden: tuple[int, ...] | None = None
    rounds: int | None = None
    epochs: int | None = None
    iterations: int | None = None
    batch_size: int | None = None
    seeds: int = 5
    sides: tuple[str, ...] | None = None
    peers: tuple[str, ...] | None = None
    servers: int | None = None
    emulated: bool = True
    link_rate: str | None = None
    host_cpus: float | None = None
    host_memory: str | None = None
    words: tuple[str, ...] = ()

    def request(self, servers: int) -> Request | None:
        """Return the emulated cluster of a cell. None on loopback."""
        if not self.emulated:
            return None
        return make_request(servers, self.link_rate, self.host_cpus, self.host_memory)

    def check(self) -> None:
        """Check numbers that no experiment can use.

        Raises
        ------
        RequestError: names the option.
        """
        numbers = {
            "rounds": self.rounds,
            "iterations": self.iterations,
            "epochs": self.epochs,
            "batch-size": self.batch_size,
            "seeds": self.seeds,
        }
        for name, value in numbers.items():
            if value is not None and value < 1:
                raise RequestError(f"--{name}: expected at least 1, given {value}")
        unknown = [name for name in self.peers or () if name not in PEERS]
        if unknown:
            raise RequestError(
                f"--peers: expected some of {', '.join(PEERS)}, or none; given {unknown[0]!r}"
            )
        if self.scale is not None and not 0 < self.scale <= 1:
            raise RequestError(f"--scale: expected more than 0 and at most 1, given {self.scale:g}")
        if self.servers is not None and self.servers < 2:
            raise RequestError(
                f"--emulate or --loopback: expected at least 2 servers, given {self.servers}"
            )
        self.request(self.servers or 2)
